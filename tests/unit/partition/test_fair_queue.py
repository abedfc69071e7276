"""Fair queues: a noisy tenant of a standard SQS queue delays no other."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from itertools import islice
from random import Random
from typing import Any

import pytest

from partibus.limits import PartitionLimits
from partibus.partition.core import fair_queue
from partibus.partition.core.fair_queue import IN_FLIGHT_MIN, QUIET_MS, Fairness, FairQueue
from partibus.partition.core.ready_list import ReadyList
from partibus.partition.protocol import commands as c
from partibus.partition.protocol.keys import Entry
from tests.kit.memory import held_bytes
from tests.robustness.work import work_of
from tests.unit.partition.test_standard_receives import ACTIVE, LOCK_MS, Handle, Standard

SMALL = PartitionLimits(window_entries=64, page_entries=32)


class Fair(Standard):
    """A fair queue. Messages are known by position."""

    def __init__(self, **options: Any) -> None:
        self.tenants: dict[int, str | None] = {}
        super().__init__(fair=True, **options)

    def put(self, tenant: str | None, count: int = 1, *, delay_ms: int = 0) -> list[int]:
        found = self.send(count, group=tenant, delay_ms=delay_ms)
        self.tenants.update(dict.fromkeys(found, tenant))
        return found

    def take(self, count: int = 1) -> list[tuple[str | None, int]]:
        """Receive; return tenants and positions in the order of the grant."""
        return [(self.tenants[handle[1]], handle[1]) for handle, _ in self.receive(count)]

    def make_noisy(self, tenant: str = "noisy", backlog: int = 100) -> list[Handle]:
        self.put(tenant, IN_FLIGHT_MIN + backlog)
        return [handle for handle, _ in self.receive(IN_FLIGHT_MIN)]


def test_without_a_noisy_tenant_the_order_is_that_of_the_sends() -> None:
    queue = Fair()
    for tenant in ("a", "b", None, "a", "c", None):
        queue.put(tenant)
    assert [pos for _, pos in queue.take(10)] == [1, 2, 3, 4, 5, 6]


def test_entries_may_be_taken_in_order_unless_one_has_a_tenant() -> None:
    queue = FairQueue(Fairness())
    queue.extend([Entry(1, 1, 1, 0, 0, None, None, 4, b"data")], 4)
    assert [*(queue.in_order or ())]
    queue.extend([Entry(2, 2, 2, 0, 0, "a", None, 4, b"data")], 4)
    assert not queue.in_order
    assert [queue.pop().pos for _ in range(2)] == [1, 2]


def test_messages_of_other_tenants_come_before_the_backlog_of_a_noisy_one() -> None:
    queue = Fair()
    queue.make_noisy()
    queue.put("quiet", 2)
    queue.put(None)
    queue.put("other")
    assert [tenant for tenant, _ in queue.take(6)] == ["quiet", "quiet", None, "other", "noisy", "noisy"]


def test_thirty_in_flight_are_noisy_only_if_they_are_a_tenth_of_all() -> None:
    queue = Fair()
    queue.put("many", 400)
    for n in range(400):
        queue.put(f"tenant-{n}")
    queue.receive(20)
    noisy = queue.machine.state.fairness
    assert noisy is not None
    assert not noisy.noisy
    queue.receive(20)
    assert list(noisy.noisy) == ["many"]


def test_of_two_noisy_tenants_the_one_with_fewer_in_flight_comes_first() -> None:
    queue = Fair()
    first = queue.make_noisy("a")
    second = queue.make_noisy("b")
    for handle in first[:5]:
        queue.delete(handle)
    assert [tenant for tenant, _ in queue.take(5)] == ["a"] * 5
    for handle in second[:2]:
        queue.delete(handle)
    assert [tenant for tenant, _ in queue.take(2)] == ["b", "b"]


def test_a_tenant_whose_messages_take_long_is_noisy() -> None:
    queue = Fair()
    queue.put("slow", 20)
    queue.receive(5)
    queue.advance(10_000)
    queue.receive(1)
    queue.put("quick")
    assert [tenant for tenant, _ in queue.take(2)] == ["quick", "slow"]


def test_a_tenant_is_quiet_again_when_its_backlog_is_empty() -> None:
    queue = Fair()
    held = queue.make_noisy(backlog=1)
    assert [tenant for tenant, _ in queue.take()] == ["noisy"]
    for handle in held:
        queue.delete(handle)
    queue.put("noisy")
    queue.put("other")
    assert [tenant for tenant, _ in queue.take(2)] == ["noisy", "other"]


def test_a_tenant_is_quiet_again_when_it_has_sent_nothing_for_five_minutes() -> None:
    queue = Fair(default_ttl_ms=10 * QUIET_MS)
    held = queue.make_noisy()
    for handle in held:
        queue.change(handle, 2 * QUIET_MS)
    queue.put("other")
    queue.advance(QUIET_MS - 1)
    assert [tenant for tenant, _ in queue.take()] == ["other"]
    queue.put("other")
    queue.advance(1)
    for handle in held:
        queue.delete(handle)
    assert [tenant for tenant, _ in queue.take()] == ["noisy"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_quiet_tenants_pass_a_backlog_that_is_only_in_the_store(is_restarted: bool) -> None:
    queue = Fair(limits=SMALL)
    queue.put("noisy", 300)
    quiet = queue.put("quiet", 25)
    rare = queue.put("rare")
    queue.put("noisy", 300)
    queue.receive(IN_FLIGHT_MIN)
    if is_restarted:
        queue.crash()
    got = queue.take(30)
    assert sorted(pos for _, pos in got[:26]) == [*quiet, *rare]
    rest = []
    while more := queue.take(50):
        rest += more
    assert {tenant for tenant, _ in rest} == {"noisy"}
    assert len(rest) + sum(tenant == "noisy" for tenant, _ in got) + IN_FLIGHT_MIN == 600


def test_arrivals_of_quiet_tenants_pass_a_long_backlog_at_once() -> None:
    queue = Fair(limits=SMALL)
    queue.make_noisy(backlog=500)
    for n in range(20):
        queue.put("noisy", 20)
        (pos,) = queue.put(f"tenant-{n % 3}")
        assert queue.take()[0] == (f"tenant-{n % 3}", pos)


def test_a_queue_that_forwards_keeps_its_order() -> None:
    queue = Fair(forwards=1)
    queue.make_noisy()
    queue.put("quiet")
    assert [tenant for tenant, _ in queue.take(1)] == ["noisy"]


def test_a_queue_with_all_that_may_be_in_flight_gives_nothing_until_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fair_queue, "IN_FLIGHT_MAX", 5)
    queue = Fair()
    queue.put(None, 8)
    (first, _), *_ = queue.receive(5)
    queue.give(c.Receive(ACTIVE, 999, 10, 1 << 20))
    queue.settle_down()
    assert 999 not in queue.granted
    queue.delete(first)
    assert [len(one.entries) for one in queue.granted.pop(999)] == [3], "a receiver that waits is woken"


# Histories -----------------------------------------------------------------------------------------------------------


DEEDS = ("send", "receive", "delete", "change", "wait", "crash", "cold")


def run_history(seed: int) -> None:
    """Send, receive, delete, wait, crash: each message comes once per lock, quiet ones before noisy ones."""
    random = Random(seed)
    queue = Fair(limits=SMALL)
    waiting: set[int] = set()
    locked: dict[int, tuple[Handle, int]] = {}
    names = ["a", "b", "c", "d", None]
    for _ in range(120):
        deed = random.choices(("send", "receive", "delete", "change", "wait", "crash", "cold"), (6, 10, 6, 2, 1, 1, 1))[
            0
        ]
        now_ms = queue.now_ms
        if deed == "send":
            tenant = random.choice(names) if random.random() < 0.6 else "a"
            waiting.update(queue.put(tenant, random.choice((1, 3, 200 if tenant == "a" else 20))))
        elif deed == "receive":
            count = random.choice((1, 10, 40))
            fairness = queue.machine.state.fairness
            assert fairness is not None
            noisy = set(fairness.noisy)
            got = [handle for handle, _ in queue.receive(count)]
            assert len({pos for _, pos in got}) == len(got), "a message came twice in one answer"
            for handle in got:
                assert handle[1] in waiting, "it was deleted or is in flight"
                waiting.discard(handle[1])
                locked[handle[1]] = (handle, now_ms + LOCK_MS)
            assert len(got) == min(count, len(got) + len(waiting)), "messages wait"
            quiet = [pos for pos in waiting if queue.tenants[pos] not in noisy and queue.tenants[pos] is not None]
            came = [queue.tenants[pos] for _, pos in got]
            if quiet and noisy and not set(fairness.noisy) - noisy:
                assert not set(came) & noisy, f"{came} came before {quiet[:5]}"
        elif deed == "delete" and locked:
            for pos in random.sample(sorted(locked), min(len(locked), random.choice((1, 20)))):
                assert queue.delete(locked.pop(pos)[0]).lost == []
        elif deed == "change" and locked:
            pos = random.choice(sorted(locked))
            handle, _ = locked[pos]
            lock_ms = random.choice((0, 500, 90_000))
            assert queue.change(handle, lock_ms).lost == []
            if lock_ms:
                locked[pos] = (handle, now_ms + lock_ms)
            else:
                del locked[pos]
                waiting.add(pos)
        elif deed == "wait":
            queue.advance(random.choice((100, LOCK_MS)))
        elif deed == "crash":
            queue.crash()
            queue.advance(0)
        elif deed == "cold":
            queue.machine.drop_windows()
        for pos, (_, until_ms) in list(locked.items()):
            if until_ms <= queue.now_ms:
                del locked[pos]
                waiting.add(pos)


def test_histories_lose_nothing_and_are_fair() -> None:
    for seed in range(40):
        try:
            run_history(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def after_a_restart() -> None:
    test_quiet_tenants_pass_a_backlog_that_is_only_in_the_store(is_restarted=True)


@pytest.mark.parametrize(
    ("owner", "name", "planted", "catches"),
    [
        (Fairness, "hand_out", lambda *_: None, test_arrivals_of_quiet_tenants_pass_a_long_backlog_at_once),
        (ReadyList, "_make_ready", lambda self, one: self.ready.requeue(one), test_histories_lose_nothing_and_are_fair),
        (ReadyList, "take_quiet", lambda *_: 0, after_a_restart),
    ],
    ids=["no tenant is noisy", "pages bring entries again", "the store is not looked at"],
)
def test_planted_bugs_are_caught(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, planted: Any, catches: Callable[[], None]
) -> None:
    monkeypatch.setattr(owner, name, planted)
    with pytest.raises((AssertionError, KeyError, ValueError)):
        catches()


# The queue by itself -------------------------------------------------------------------------------------------------


def entry(pos: int, tenant: str | None) -> Entry:
    return Entry(pos, pos, pos, 0, 0, tenant, None, 1, b"x")


def test_the_queue_keeps_its_counts() -> None:
    random = Random(7)
    fairness = Fairness()
    queue = FairQueue(fairness)
    here: dict[int, str | None] = {}
    out: list[Entry] = []
    for pos in range(1, 2_000):
        tenant = random.choice(["a", "b", "c", None])
        queue.extend([entry(pos, tenant)], 1)
        here[pos] = tenant
        if random.random() < 0.1:
            fairness.noisy["a"] = 0
            fairness.version += 1
        elif random.random() < 0.1:
            fairness.calm("a")
        while queue and random.random() < 0.5:
            head = queue.head()
            taken = queue.pop()
            assert taken is head
            tenant = here.pop(taken.pos)
            allowed = [p for p, t in here.items() if t not in fairness.noisy or tenant in fairness.noisy]
            assert not [p for p in allowed if p < taken.pos and here[p] not in fairness.noisy], "the lowest one first"
            assert tenant not in fairness.noisy or all(t in fairness.noisy for t in here.values())
            out.append(taken)
        if out and random.random() < 0.3:
            back = out.pop(random.randrange(len(out)))
            here[back.pos] = back.session
            queue.requeue(back)
        if here and random.random() < 0.05:
            gone = set(random.sample(sorted(here), min(3, len(here))))
            assert {one.pos for one in queue.remove(gone)} == gone
            for one in gone:
                del here[one]
        assert (len(queue), queue.size_bytes) == (len(here), len(here))
        assert queue.positions() == set(here)
        assert queue.lowest() == min(here, default=None)


def test_a_message_that_passed_the_backlog_comes_again_after_a_delay() -> None:
    queue = Fair(limits=PartitionLimits(window_entries=100, page_entries=50))
    queue.put("noisy", 400)
    queue.receive(40)
    (pos,) = queue.put("quiet")
    ((handle, _),) = queue.receive(1)
    assert handle[1] == pos
    queue.give(c.Settle(77, ACTIVE, c.Outcome.ABANDON, [handle], delay_ms=1_000))
    queue.settle_down()
    queue.now_ms += 1_001
    queue.give(c.Tick())
    queue.settle_down()
    assert ("quiet", pos) in [taken for _ in range(45) for taken in queue.take(10)]


def test_many_tenants_in_flight_are_gone_through_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of each message does not grow with the tenants in flight, nor does memory grow with those that were."""
    monkeypatch.setattr(fair_queue, "TENANTS_MAX", 10)

    def work_of_later_tenants(count: int) -> int:
        fairness, numbers = Fairness(), itertools.count(1_000)
        entries = [entry(number, f"t{number}") for number in range(count)]
        fairness.hand_out(entries)
        before = held_bytes(fairness)

        def come_and_go() -> None:
            for number in islice(numbers, 2 * count):
                later = [entry(number, f"later {number}")]
                fairness.hand_out(later)
                fairness.take_back(later)

        work = work_of(come_and_go)
        for _ in range(4):
            come_and_go()
        assert held_bytes(fairness) < 3 * before
        fairness.take_back(entries)
        assert held_bytes(fairness) < 3 * before
        return work

    assert work_of_later_tenants(400) < 5 * work_of_later_tenants(100)
