"""Where the credits of a namespace are handed out, and how brokers ask there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from partibus.clock import ManualClock
from partibus.cluster.credits import VACANT_S, Credits, OnGrant, Owner
from partibus.cluster.serving import Serving
from partibus.cluster.wire import AskCredits, WireError
from partibus.throttling.allocator import Ask, Grant
from partibus.throttling.settings import ThrottlingPolicy, ThrottlingSettings
from partibus.throttling.throttle import Throttle
from tests.unit.cluster.loops import eventually, on_loop
from tests.unit.cluster.test_peers import brokers

A, B = ("a", "1"), ("b", "1")
PERIOD_MS = 1_000
NOW_MS = 5_000
NAMESPACE = 2
SETTINGS = ThrottlingSettings(ThrottlingPolicy.ENFORCE, credits_per_s=100)


class Cluster:
    """Brokers that hear of owners when they are told; channels answer at once, but for those that are cut."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOW_MS)
        self.time_s = 0.0
        self.cut: set[Owner] = set()
        self.asked: list[Owner] = []
        self.views = {owner: Credits(owner, 4, self, self.clock, lambda: self.time_s) for owner in (A, B)}
        for view in self.views.values():
            view.settings_of = lambda namespace: SETTINGS if namespace == NAMESPACE else None

    def ask_credits(self, owner: Owner, namespace: int, ask: Ask, on_grant: OnGrant) -> None:
        self.asked.append(owner)
        on_grant(None if owner in self.cut else self.views[owner].grant(namespace, ask))

    def follow(self, *owners: Owner | None) -> None:
        for view in self.views.values():
            view.follow(owners)

    def ask(self, who: Owner, credits: int = 10) -> Grant | None:
        answers: list[Grant | None] = []
        ask = Ask(self.clock.now_ms() // PERIOD_MS, credits)
        self.views[who].ask(NAMESPACE, ask, answers.append)
        (answer,) = answers
        return answer

    def granted(self, who: Owner) -> int | None:
        answer = self.ask(who)
        return None if answer is None else answer.credits


def test_the_owner_of_the_home_store_is_asked() -> None:
    cluster = Cluster()
    cluster.follow(B, B, A, B)
    cluster.clock.advance(2 * PERIOD_MS)
    assert cluster.granted(A) == 10
    assert cluster.asked == []
    assert cluster.granted(B) == 10
    assert cluster.asked == [A]


def test_an_allocator_begins_with_the_next_full_period_after_its_store_was_taken() -> None:
    cluster = Cluster()
    cluster.follow(A, A, A, A)
    assert cluster.granted(B) == 0
    cluster.clock.advance(PERIOD_MS)
    assert cluster.granted(B) == 10
    cluster.follow(A, A, B, A)
    assert cluster.granted(A) == 0
    cluster.clock.advance(PERIOD_MS)
    assert cluster.granted(A) == 10


def test_who_has_had_the_store_for_long_begins_at_once_with_a_namespace_that_is_new() -> None:
    cluster = Cluster()
    for view in cluster.views.values():
        view.settings_of = lambda namespace: None
    cluster.follow(A, A, A, A)
    assert cluster.granted(B) is None
    cluster.clock.advance(2 * PERIOD_MS + 1)
    cluster.follow(B, A, A, A)  # is about another one
    for view in cluster.views.values():
        view.settings_of = lambda namespace: SETTINGS
    assert cluster.granted(B) == 10


def test_a_store_that_nobody_has_is_stood_in_for_by_the_next_after_a_while() -> None:
    cluster = Cluster()
    cluster.follow(A, A, A, B)
    cluster.clock.advance(2 * PERIOD_MS)
    cluster.follow(A, A, None, B)
    assert cluster.ask(A) is None
    cluster.time_s = VACANT_S - 0.1
    assert cluster.ask(A) is None
    cluster.time_s = VACANT_S
    assert cluster.granted(A) == 0
    cluster.clock.advance(PERIOD_MS)
    assert cluster.granted(A) == 10
    assert set(cluster.asked) == {B}
    cluster.follow(A, A, A, B)
    assert cluster.granted(B) == 0
    cluster.clock.advance(PERIOD_MS)
    assert cluster.granted(B) == 10
    assert cluster.asked[-1] == A


def test_while_two_brokers_see_different_owners_nobody_gets_credits_twice() -> None:
    cluster = Cluster()
    cluster.follow(A, A, A, A)
    cluster.clock.advance(2 * PERIOD_MS)
    assert cluster.granted(A) == 10
    cluster.views[A].follow([A, A, B, A])  # B does not know yet
    assert cluster.granted(A) is None
    assert cluster.granted(B) is None
    cluster.views[B].follow([A, A, B, A])
    assert cluster.granted(A) == 0


def test_another_rate_holds_at_the_allocator_with_the_next_period() -> None:
    cluster = Cluster()
    cluster.follow(A, A, A, A)
    cluster.clock.advance(2 * PERIOD_MS)
    assert cluster.ask(B, 500) == Grant(7, 500, True, 400)
    for view in cluster.views.values():
        view.settings_of = lambda namespace: ThrottlingSettings(ThrottlingPolicy.ENFORCE, credits_per_s=1_000)
    cluster.clock.advance(PERIOD_MS)
    assert cluster.ask(B, 500) == Grant(8, 500, False, 0)


@pytest.mark.row("R6")
def test_a_debt_goes_along_when_its_allocator_moves() -> None:
    cluster = Cluster()
    throttles = {
        owner: Throttle(SETTINGS, cluster.clock, lambda delay_ms, call: _Never(), view.bank(NAMESPACE))
        for owner, view in cluster.views.items()
    }
    for owner, view in cluster.views.items():
        view.on_moved = throttles[owner].tell_debt
    cluster.follow(A, A, A, A)
    cluster.clock.advance(2 * PERIOD_MS)
    assert throttles[B].admit_sends([450], 0, _unheard) == 1  # 350 over: three periods, and half of a fourth
    cluster.follow(B, B, B, B)
    for admitted in (0, 0, 0, 0, 1):
        assert [throttle.admit_sends([1], 0, _unheard) for throttle in throttles.values()] == [admitted] * 2
        cluster.clock.advance(PERIOD_MS)


@on_loop
async def test_credits_are_asked_for_over_a_channel(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a", "b") as (a, b):
        b.own(1)
        answers: list[Grant | None] = []
        ask = Ask(1, 2, 3, 4, 5, 6, 7, 8)
        a.peers.ask_credits(b.identity, NAMESPACE, ask, answers.append)
        assert answers == [None], "there is no way to it"
        a.peers.lead(a.routes[1], b.identity, 1)
        await a.reached(1)
        a.peers.ask_credits(b.identity, NAMESPACE, ask, answers.append)
        await eventually(lambda: len(answers) == 2)
        assert answers[1] is None, "it has no allocator"
        heard: list[tuple[int, Ask]] = []

        def grant(namespace: int, ask: Ask) -> Grant:
            heard.append((namespace, ask))
            return Grant(9, 8, True, 7)

        b.serving.grant = grant
        a.peers.ask_credits(b.identity, NAMESPACE, ask, answers.append)
        await eventually(lambda: len(answers) == 3)
        assert heard == [(NAMESPACE, ask)]
        assert answers[2] == Grant(9, 8, True, 7)
        b.hear_nothing()
        a.peers.ask_credits(b.identity, NAMESPACE, ask, answers.append)
        await asyncio.sleep(0)
        b.drop_remote_brokers()
        await eventually(lambda: len(answers) == 4)
        assert answers[3] is None, "it is gone"


def test_a_question_with_other_numbers_ends_the_channel() -> None:
    remote_broker = Serving().remote_broker(None)  # type: ignore[arg-type]
    with pytest.raises(WireError, match="7 numbers, not 8"):
        remote_broker.receive([AskCredits(0, [1] * 7)])


class _Never:
    def cancel(self) -> None:
        pass


def _unheard(admitted: int) -> None:
    raise AssertionError(admitted)
