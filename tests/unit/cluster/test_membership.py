"""A broker on the roster: what it says, what it hears, and what it makes of a registry that is away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from threading import Event
from typing import Any, NamedTuple

import pytest

from partibus.cluster import membership as membership_module
from partibus.cluster.membership import MemberInfo, Membership, Row
from partibus.cluster.ownership import Identity
from partibus.errors import InvalidOperation, StoreUnavailable
from tests.unit.cluster.loops import eventually, on_loop

US = Identity("a", "1")


class HeartbeatReply(NamedTuple):
    brokers: Sequence[Row]
    changes: Sequence[tuple[int, str]]
    is_complete: bool


class FakeRegistry:
    """A registry in memory; another broker, ``b``, is registered and goes by what ``b_follows`` says."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[str, str, str, int, str]] = {}
        self.silent: set[str] = set()
        """Brokers without heartbeats."""
        self._beats = 0
        self.log: list[tuple[int, str]] = []
        self.is_complete = True
        self.failure: Exception | None = None
        self.used: set[int] = set()
        self.told = 0
        self.left = False
        self.on_read: Callable[[], object] | None = None
        """Called once, on the registry's thread: a beat has read what it answers, and has not answered."""
        self._woken = Event()

    def put(self, broker: str, followed: int, *, is_silent: bool = False, **facts: object) -> None:
        self.rows[broker] = (f"run of {broker}", f"{broker}:1", "the first", followed, json.dumps(facts))
        if is_silent:
            self.silent.add(broker)

    def beat(self, followed: int, facts: str, used: Iterable[int], *, tell: bool) -> HeartbeatReply:
        if self.failure is not None:
            raise self.failure
        self.used.update(used)
        self.told += tell
        self.rows[US.broker] = (US.incarnation, "a:1", "the first", followed, facts)
        self._beats += 1
        for broker in self.rows.keys() - self.silent:
            incarnation, address, _, follows, said = self.rows[broker]
            self.rows[broker] = (incarnation, address, f"of beat {self._beats}", follows, said)
        brokers = [(broker, *row) for broker, row in sorted(self.rows.items())]
        heard = HeartbeatReply(brokers, [one for one in self.log if one[0] > followed], self.is_complete)
        call, self.on_read = self.on_read, None
        if call is not None:
            call()
        return heard

    def wait(self, seconds: float) -> None:
        self._woken.wait(min(seconds, 0.02))
        self._woken.clear()

    def wake(self) -> None:
        self._woken.set()

    def announce(self, body: Mapping[str, Any]) -> None:
        if self.failure is not None:
            raise self.failure
        self.log.append((len(self.log) + 1, json.dumps(body)))

    def take_used(self) -> list[int]:
        return sorted(self.used)

    def leave(self) -> None:
        self.left = True

    def close(self) -> None: ...


class Clock:
    """A time that the test moves."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def move(self, seconds: float) -> None:
        self.now_s += seconds


class Here:
    """The broker."""

    def __init__(self) -> None:
        self.owned: dict[str, int] = {}
        self.used: list[int] = []
        self.followed: list[object] = []
        self.brokers: dict[str, MemberInfo] = {}
        self.beats = 0
        self.why_replaced = ""
        self.catalog_is_away = False
        self.followed_all = 0
        self.presences: list[bool] = []
        """Whether ``b`` was there, at each beat."""

    def describe(self) -> Mapping[str, Any]:
        return {"owned": self.owned, "leaving": False}

    def take_used(self) -> list[int]:
        used, self.used = self.used, []
        return used

    def follow(self, change: Mapping[str, Any]) -> None:
        if self.catalog_is_away:
            raise StoreUnavailable("the catalog is away")
        self.followed.append(change["entity"])

    def follow_all(self) -> None:
        self.followed_all += 1

    def seen(self, brokers: Sequence[MemberInfo]) -> None:
        self.brokers = {one.member.owner.broker: one for one in brokers}
        self.presences += [one.member.is_there for one in brokers if one.member.owner.broker == "b"]
        self.beats += 1

    def replaced(self, why: str) -> None:
        self.why_replaced = why


@asynccontextmanager
async def membership(
    registry: FakeRegistry, here: Here, lease_s: float = 0.0, now_s: Callable[[], float] | None = None
) -> Any:
    one = Membership(registry, US, here, 0, lease_s, now_s or asyncio.get_running_loop().time)
    yield one
    await one.leave()
    assert registry.left


@on_loop
async def test_it_says_what_it_has_and_hears_what_others_have() -> None:
    registry, here = FakeRegistry(), Here()
    registry.put("b", 0, owned={"7": 4}, leaving=True)
    registry.put("c", is_silent=True, followed=0, owned={"8": 2})
    registry.rows["d"] = ("run of d", "", "the first", 0, "{}")  # has ended in order
    here.owned = {"1": 2}
    here.used = [5]
    async with membership(registry, here):
        await eventually(lambda: here.beats > 1)
        assert here.brokers.keys() == {"a", "b", "c"}
        b, c = here.brokers["b"], here.brokers["c"]
        assert (b.member.owned, b.member.is_there, b.member.is_leaving, b.address) == ({7: 4}, True, True, "b:1")
        assert (c.member.owned, c.member.is_there) == ({8: 2}, False)
        assert here.brokers["a"].member.owned == {1: 2}
        assert registry.used == {5}
        told = registry.told
        here.owned = {"1": 2, "2": 1}
        await eventually(lambda: here.brokers["a"].member.owned == {1: 2, 2: 1})
        assert registry.told == told + 1  # nobody is woken for nothing


@on_loop
async def test_a_change_is_over_when_all_that_are_there_go_by_it() -> None:
    registry, here = FakeRegistry(), Here()
    registry.put("b", 0)
    registry.put("gone", is_silent=True, followed=0)
    async with membership(registry, here) as one:
        registry.log.append((1, '{"entity": "q"}'))  # with the change itself
        noted = asyncio.ensure_future(one.announce({"entity": "q"}, is_noted=True))
        announced = asyncio.ensure_future(one.announce({"entity": "r"}, is_noted=False))
        await eventually(lambda: one.followed == 2)
        beats = here.beats
        await eventually(lambda: here.beats > beats + 2)
        assert not announced.done()
        assert not noted.done()
        registry.put("b", 2)
        await asyncio.gather(announced, noted)
        assert here.followed == ["q", "r"]


@on_loop
async def test_a_beat_that_began_before_a_change_says_nothing_about_it() -> None:
    registry, here = FakeRegistry(), Here()
    registry.put("b", 0)
    async with membership(registry, here) as one:
        loop = asyncio.get_running_loop()
        noted: list[asyncio.Future[None]] = []

        def change() -> None:
            registry.log.append((1, '{"entity": "q"}'))
            begun = Event()

            def begin() -> None:
                noted.append(asyncio.ensure_future(one.announce({"entity": "q"}, is_noted=True)))
                loop.call_soon(begun.set)

            loop.call_soon_threadsafe(begin)
            begun.wait()

        registry.on_read = change
        await eventually(lambda: one.followed == 1)
        beats = here.beats
        await eventually(lambda: here.beats > beats + 2)
        assert not noted[0].done()
        registry.put("b", 1)
        await noted[0]


@on_loop
async def test_a_change_that_can_not_be_followed_is_told_again() -> None:
    registry, here = FakeRegistry(), Here()
    here.catalog_is_away = True
    registry.log += [(1, '{"entity": "q"}'), (2, '{"entity": "r"}')]
    async with membership(registry, here) as one:
        await eventually(lambda: here.beats > 1)
        assert (one.followed, here.followed) == (0, [])
        here.catalog_is_away = False
        await eventually(lambda: one.followed == 2)
        assert here.followed == ["q", "r"]
        assert here.followed_all == 0


@on_loop
async def test_who_has_missed_more_than_is_remembered_looks_at_everything() -> None:
    registry, here = FakeRegistry(), Here()
    registry.is_complete = False
    registry.log.append((70_000, '{"entity": "q"}'))
    async with membership(registry, here) as one:
        await eventually(lambda: one.followed == 70_000)
        assert here.followed_all
        assert here.followed == ["q"]


@on_loop
async def test_after_an_outage_of_the_registry_nobody_counts_as_gone_before_a_lease_has_passed() -> None:
    registry, here = FakeRegistry(), Here()
    registry.put("b", is_silent=True, followed=0)
    registry.failure = StoreUnavailable("away")
    here.used = [5]
    async with membership(registry, here, lease_s=3_600) as one:
        await eventually(lambda: one.failure is not None)
        assert here.beats == 0
        with pytest.raises(StoreUnavailable):
            await one.announce({"rehearsals": []}, is_noted=False)
        registry.failure = None
        await eventually(lambda: here.beats > 0)
        assert one.failure is None
        assert here.brokers["b"].member.is_there
        assert registry.used == {5}  # what was used meanwhile is not forgotten


@on_loop
async def test_an_outage_of_the_registry_is_no_silence_of_the_others() -> None:
    """Brokers could not write meanwhile, so the time until they count as gone begins anew."""
    registry, here, clock = FakeRegistry(), Here(), Clock()
    registry.put("b", 0, is_silent=True)
    async with membership(registry, here, lease_s=3_600, now_s=clock) as one:
        await eventually(lambda: here.beats > 1)
        clock.move(3_000)
        registry.failure = StoreUnavailable("away")
        await eventually(lambda: one.failure is not None)
        clock.move(3_000)
        registry.failure = None
        await eventually(lambda: one.failure is None)
        clock.move(3_000)
        later = here.beats + 2
        await eventually(lambda: here.beats > later)
        assert all(here.presences)
        clock.move(3_000)
        await eventually(lambda: not here.presences[-1])


@on_loop
async def test_a_broker_that_stood_still_while_it_asked_misses_nobody() -> None:
    """The answer is as old as the question, so it tells nothing about the time since then."""
    registry, here, clock = FakeRegistry(), Here(), Clock()
    registry.put("b", 0, is_silent=True)

    def stand_still() -> None:
        here.presences.clear()
        clock.move(7_200)

    async with membership(registry, here, lease_s=3_600, now_s=clock):
        await eventually(lambda: here.beats > 1)
        registry.on_read = stand_still
        await eventually(lambda: clock.now_s > 0 and len(here.presences) > 1)
        assert here.presences[:2] == [True, False]


@on_loop
async def test_a_broker_is_late_before_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership_module, "LATE_S", 0.0001)
    registry, here = FakeRegistry(), Here()
    registry.put("b", 0, is_silent=True)
    registry.put("c", 0)
    async with membership(registry, here, lease_s=3_600):
        await eventually(lambda: here.beats > 1)
        assert (here.brokers["b"].is_late, here.brokers["b"].member.is_there) == (True, True)
        assert not here.brokers["c"].is_late
        registry.silent.clear()
        await eventually(lambda: not here.brokers["b"].is_late)


@on_loop
async def test_another_run_of_the_same_broker_ends_this_one() -> None:
    registry, here = FakeRegistry(), Here()
    registry.failure = InvalidOperation("another run of the broker 'a' has been started")
    async with membership(registry, here):
        await eventually(lambda: bool(here.why_replaced))
    assert "another run" in here.why_replaced


@on_loop
async def test_an_unexpected_error_in_a_heartbeat_stops_no_later_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(membership_module, "RETRY_S", 0.01)
    registry, here = FakeRegistry(), Here()
    registry.failure = ZeroDivisionError("a bug")
    here.used = [5]
    async with membership(registry, here) as one:
        await eventually(lambda: one.failure is not None)
        assert one.failure == "internal error: ZeroDivisionError: a bug"
        announcing = asyncio.ensure_future(one.announce({"entity": "q"}, is_noted=True))
        registry.failure = None
        await announcing
        assert here.beats > 0
        assert one.failure is None
        assert registry.used == {5}  # what was used meanwhile is not forgotten
    assert "internal error: a heartbeat failed" in caplog.text


@pytest.mark.parametrize("said", ["no JSON", "[]", '{"owned": 7}', '{"owned": {"x": 1}}', "[" * 100_000])
@on_loop
async def test_a_report_that_can_not_be_read_hides_no_other_broker(said: str, caplog: pytest.LogCaptureFixture) -> None:
    registry, here = FakeRegistry(), Here()
    registry.rows["b"] = ("run of b", "b:1", "the first", 0, said)
    registry.put("c", 0, owned={"7": 4})
    async with membership(registry, here, lease_s=3_600) as one:
        await one.announce({"entity": "q"}, is_noted=True)
        await eventually(lambda: here.beats > 3)
        assert (here.brokers["b"].member.is_there, here.brokers["b"].member.owned) == (True, {})
        assert here.brokers["c"].member.owned == {7: 4}
    assert caplog.text.count("the report of broker b (incarnation run of b) can't be read") == 1


@on_loop
async def test_a_change_that_can_not_be_applied_has_everything_read_again(caplog: pytest.LogCaptureFixture) -> None:
    registry, here = FakeRegistry(), Here()
    registry.log += [(1, '{"unknown": 1}'), (2, '{"entity": "r"}')]
    async with membership(registry, here) as one:
        await eventually(lambda: one.followed == 2)
        assert (here.followed, here.followed_all) == (["r"], 1)
    assert "change 1 of another broker can't be applied" in caplog.text


@on_loop
async def test_everyone_has_reported_after_a_heartbeat_that_began_later() -> None:
    registry, here = FakeRegistry(), Here()
    registry.put("b", 0, is_silent=True)
    registry.rows["d"] = ("run of d", "", "the first", 0, "{}")  # has ended in order
    async with membership(registry, here, lease_s=3_600) as one:
        await eventually(lambda: here.beats > 1)
        reported = asyncio.ensure_future(one.all_report())
        for version in ("under way", "begun later"):
            later = here.beats + 3
            await eventually(partial(_has_begun, here, later))
            assert not reported.done()
            registry.rows["b"] = (*registry.rows["b"][:2], version, *registry.rows["b"][3:])
        assert await reported
        assert one.absences == 0


@on_loop
async def test_a_silent_broker_has_not_reported() -> None:
    registry, here = FakeRegistry(), Here()
    registry.put("b", 0, is_silent=True)
    async with membership(registry, here) as one:
        assert not await one.all_report()


@on_loop
async def test_while_the_registry_is_away_nobody_has_reported() -> None:
    registry, here, clock = FakeRegistry(), Here(), Clock()
    registry.put("b", 0, is_silent=True)
    async with membership(registry, here, lease_s=3_600, now_s=clock) as one:
        reported = asyncio.ensure_future(one.all_report())
        await eventually(lambda: here.beats > 1)
        registry.failure = StoreUnavailable("away")
        assert not await reported
        registry.failure = None
        await eventually(lambda: one.failure is None)
        before = one.absences
        clock.move(7_200)
        await eventually(lambda: one.absences == before + 1)


def _has_begun(here: Here, beat: int) -> bool:
    return here.beats > beat


@on_loop
async def test_a_registry_that_is_lost_for_a_moment_may_have_lost_reports() -> None:
    registry, here = FakeRegistry(), Here()
    async with membership(registry, here, lease_s=3_600) as one:
        await eventually(lambda: here.beats > 1)
        registry.failure = StoreUnavailable("it has crashed")
        await eventually(lambda: one.absences > 0)
        registry.failure = None


@on_loop
async def test_an_answer_that_is_lost_may_have_had_the_only_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    registry, here = FakeRegistry(), Here()

    def lose() -> list[int]:
        raise StoreUnavailable("the connection broke before the answer")

    async with membership(registry, here, lease_s=3_600) as one:
        await eventually(lambda: here.beats > 1)
        monkeypatch.setattr(registry, "take_used", lose)
        with pytest.raises(StoreUnavailable):
            await one.take_used()
        assert (one.absences, one.failure) == (1, None), "the next heartbeat has another connection"
