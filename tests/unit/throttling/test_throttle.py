"""One namespace's throttle: periods, receivers that wait for them, and an allocator that does not answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from partibus.throttling.account import EVENTUALLY_MS, RETRY_MS
from partibus.throttling.allocator import Allocator, Ask, Grant
from partibus.throttling.settings import ThrottlingPolicy, ThrottlingSettings
from partibus.throttling.throttle import RESUMED_AT_ONCE, Throttle
from partibus.throttling.uses import Operation
from tests.kit.simulated_host import Timeline

PERIOD_MS = 1_000
SETTINGS = ThrottlingSettings(ThrottlingPolicy.ENFORCE, credits_per_s=10)


class Bank:
    """An allocator elsewhere: answers after ``delay_ms``, or never; ``away``: it is not reachable."""

    alone = False

    def __init__(self, timeline: Timeline, settings: ThrottlingSettings = SETTINGS) -> None:
        self.timeline = timeline
        self.allocator = Allocator(settings)
        self.delay_ms: float | None = 1
        self.away = False
        self.asked = 0

    def ask(self, ask: Ask, on_grant: Callable[[Grant | None], None]) -> None:
        self.asked += 1
        if self.away:
            on_grant(None)
        elif self.delay_ms is not None:
            grant = self.allocator.grant(ask, int(self.timeline.now_ms()))
            self.timeline.call_later(self.delay_ms, lambda: on_grant(grant))


class Receiver:
    """Notes when it is called; ``takes`` that many messages then."""

    def __init__(self, throttle: Throttle, timeline: Timeline, takes: int = 0) -> None:
        self.throttle = throttle
        self.timeline = timeline
        self.takes = takes
        self.called_ms: list[float] = []

    def on_credits(self) -> None:
        self.called_ms.append(self.timeline.now_ms())
        if self.takes and not self.throttle.withholds(self):
            self.throttle.charge(Operation.RECEIVE, self.takes)

    def on_exhausted(self) -> None:
        pass


@pytest.fixture
def timeline() -> Timeline:
    return Timeline(5 * PERIOD_MS)


@pytest.fixture
def bank(timeline: Timeline) -> Bank:
    return Bank(timeline)


def run(timeline: Timeline, ms: float) -> None:
    end_ms = timeline.time_ms + ms
    timeline.call_later(ms, lambda: None)
    while timeline.time_ms < end_ms:
        timeline.run_next()


def unheard(admitted: int) -> None:
    raise AssertionError(f"answered later, with {admitted}")


class TestAlone:
    def test_it_is_told_in_the_order_of_asking_when_the_period_has_begun(self, timeline: Timeline) -> None:
        throttle = Throttle(SETTINGS, timeline, timeline.call_later)
        assert throttle.admit_sends([10], 0, unheard) == 1
        receiver = Receiver(throttle, timeline)
        run(timeline, 300)
        assert throttle.withholds(receiver)
        run(timeline, 600)
        assert receiver.called_ms == []
        run(timeline, 200)
        assert [round(ms) for ms in receiver.called_ms] == [6 * PERIOD_MS + 1]
        assert not throttle.withholds(receiver)

    def test_receivers_that_there_are_no_credits_for_are_first_in_the_next_period(self, timeline: Timeline) -> None:
        throttle = Throttle(SETTINGS, timeline, timeline.call_later)
        throttle.charge(Operation.RECEIVE, 10)
        receivers = [Receiver(throttle, timeline, takes=5) for _ in range(5)]
        for receiver in receivers:
            assert throttle.withholds(receiver)
        run(timeline, PERIOD_MS + 10)
        assert [len(receiver.called_ms) for receiver in receivers] == [1, 1, 0, 0, 0]
        run(timeline, PERIOD_MS)
        assert [len(receiver.called_ms) for receiver in receivers] == [1, 1, 1, 1, 0]
        assert throttle.counters.throttled[Operation.RECEIVE] == 5

    def test_thousands_of_receivers_are_called_in_turns(self, timeline: Timeline) -> None:
        throttle = Throttle(SETTINGS, timeline, timeline.call_later)
        throttle.charge(Operation.RECEIVE, 10)
        receivers = [Receiver(throttle, timeline) for _ in range(3 * RESUMED_AT_ONCE)]
        for receiver in receivers:
            throttle.withholds(receiver)
        while not receivers[0].called_ms:
            timeline.run_next()
        assert sum(len(receiver.called_ms) for receiver in receivers) == RESUMED_AT_ONCE
        throttle.leave(receivers[-1])
        run(timeline, 10)
        assert [len(receiver.called_ms) for receiver in receivers] == [1] * (len(receivers) - 1) + [0]

    def test_an_error_at_one_receiver_holds_no_other_up(
        self, timeline: Timeline, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Raising(Receiver):
            def on_credits(self) -> None:
                super().on_credits()
                raise ZeroDivisionError

            def on_exhausted(self) -> None:
                raise ZeroDivisionError

        class Stopped(Receiver):
            is_told = False

            def on_exhausted(self) -> None:
                self.is_told = True

        throttle = Throttle(SETTINGS, timeline, timeline.call_later)
        receivers = [Raising(throttle, timeline), Stopped(throttle, timeline)]
        for receiver in receivers:
            throttle.join(receiver)
        throttle.charge(Operation.RECEIVE, 10)
        for receiver in receivers:
            throttle.withholds(receiver)
        run(timeline, PERIOD_MS + 10)
        assert [len(receiver.called_ms) for receiver in receivers] == [1, 1]
        assert receivers[1].is_told  # type: ignore[attr-defined]
        assert caplog.text.count("internal error") == 2

    def test_what_costs_nothing_is_never_refused(self, timeline: Timeline) -> None:
        free = ThrottlingSettings(ThrottlingPolicy.ENFORCE, credits_per_s=10, receive_credits=0)
        throttle = Throttle(free, timeline, timeline.call_later)
        assert throttle.admit_sends([10], 0, unheard) == 1
        assert throttle.refuses(Operation.SEND)
        assert not throttle.refuses(Operation.RECEIVE)
        assert not throttle.withholds(Receiver(throttle, timeline))
        assert throttle.admit(Operation.RECEIVE, 50, unheard) is True

    def test_counted_periods_are_those_in_which_something_was_paid_for(self, timeline: Timeline) -> None:
        throttle = Throttle(SETTINGS, timeline, timeline.call_later)
        for paid in (1, 0, 10, 0, 3):
            throttle.charge(Operation.PEEK, paid)
            run(timeline, PERIOD_MS)
        assert throttle.periods == 3


class TestElsewhere:
    def test_requests_wait_in_line_for_their_credits(self, timeline: Timeline, bank: Bank) -> None:
        throttle = Throttle(SETTINGS, timeline, timeline.call_later, bank)
        answers: list[tuple[str, int]] = []
        for name, costs in (("a", [4]), ("b", [1, 1]), ("c", [6, 6]), ("d", [1])):
            at_once = throttle.admit_sends(costs, 0, lambda admitted, name=name: answers.append((name, admitted)))  # type: ignore[misc]
            assert at_once is None
        run(timeline, 10)
        assert answers == [("a", 1), ("b", 2), ("c", 1), ("d", 0)]  # the first of c is 2 over
        assert throttle.admit_sends([1], 0, unheard) == 0

    def test_who_gets_no_answer_is_refused_and_later_ones_ask_again(self, timeline: Timeline, bank: Bank) -> None:
        throttle = Throttle(SETTINGS, timeline, timeline.call_later, bank)
        answers: list[int] = []
        bank.delay_ms = None
        assert throttle.admit_sends([1], 0, answers.append) is None
        run(timeline, EVENTUALLY_MS - 1)
        assert answers == []
        run(timeline, 2)
        assert answers == [0]
        bank.delay_ms = 1
        assert throttle.admit_sends([1], 0, answers.append) is None
        run(timeline, 2)
        assert answers == [0, 1]

    def test_a_bank_that_nobody_holds_is_asked_again_in_a_moment(self, timeline: Timeline, bank: Bank) -> None:
        throttle = Throttle(SETTINGS, timeline, timeline.call_later, bank)
        answers: list[int] = []
        bank.away = True
        assert throttle.admit_sends([1], 0, answers.append) is None
        run(timeline, 2.5 * RETRY_MS)
        assert (answers, bank.asked) == ([], 3)
        bank.away = False
        run(timeline, RETRY_MS)
        assert answers == [1]

    def test_nobody_waits_for_a_bank_that_nobody_holds_for_long(self, timeline: Timeline, bank: Bank) -> None:
        throttle = Throttle(SETTINGS, timeline, timeline.call_later, bank)
        answers: list[int] = []
        bank.away = True
        assert throttle.admit_sends([1], 0, answers.append) is None
        run(timeline, EVENTUALLY_MS + 1)
        assert answers == [0]

    def test_a_late_answer_is_good_for_who_asks_then(self, timeline: Timeline, bank: Bank) -> None:
        throttle = Throttle(SETTINGS, timeline, timeline.call_later, bank)
        answers: list[int] = []
        bank.delay_ms = EVENTUALLY_MS + 50
        throttle.admit_sends([4], 0, answers.append)
        run(timeline, EVENTUALLY_MS + 60)
        assert answers == [0]
        assert throttle.admit_sends([3], 0, unheard) == 1

    def test_what_is_owed_is_told_until_there_is_an_answer(self, timeline: Timeline, bank: Bank) -> None:
        throttle = Throttle(SETTINGS, timeline, timeline.call_later, bank)
        bank.away = True
        throttle.charge(Operation.RECEIVE, 25)
        run(timeline, 200)
        bank.away = False
        run(timeline, 200)
        assert bank.allocator.grant(Ask(5, 1), int(timeline.now_ms())) == Grant(5, 0, True, 15)
        assert throttle.refuses(Operation.RECEIVE)


@pytest.mark.parametrize("rules", [0, 2])
def test_what_is_observed_is_what_would_be_refused(timeline: Timeline, rules: int) -> None:
    """The same requests, with a policy that refuses and with one that looks on."""
    settings = ThrottlingSettings(ThrottlingPolicy.ENFORCE, credits_per_s=10, filter_credits=1)
    enforcing = Throttle(settings, timeline)
    observing = Throttle(replace(settings, policy=ThrottlingPolicy.OBSERVE), timeline)
    for messages in ([1, 3, 1, 2], [1], [4], [1, 1]):
        enforcing.admit_sends(messages, rules, unheard)
        observing.observe_sends(messages, rules)
    assert observing.counters.used[:2] == [14, 14 * rules]
    assert observing.counters.would_throttle == enforcing.counters.throttled
    assert any(enforcing.counters.throttled)
    assert not any(observing.counters.throttled)


def test_a_change_of_prices_keeps_the_credits_of_the_period(timeline: Timeline) -> None:
    throttle = Throttle(SETTINGS, timeline)
    assert throttle.admit_sends([2], 0, unheard) == 1
    throttle.change(replace(SETTINGS, management_credits=5))
    assert throttle.admit_sends([3], 0, unheard) == 1
    throttle.change(replace(SETTINGS, credits_per_s=1_000))
    assert throttle.admit_sends([5, 1], 0, unheard) == 1, "the new rate takes effect with the next period"


def test_a_debt_before_a_change_of_prices_is_told_to_a_new_allocator(timeline: Timeline, bank: Bank) -> None:
    throttle = Throttle(SETTINGS, timeline, timeline.call_later, bank)
    throttle.charge(Operation.RECEIVE, 45)
    run(timeline, 10)
    throttle.change(replace(SETTINGS, management_credits=5))
    bank.allocator = Allocator(SETTINGS, since_ms=int(timeline.now_ms()))
    throttle.tell_debt()
    run(timeline, PERIOD_MS)
    answers: list[int] = []
    assert throttle.admit_sends([1], 0, answers.append) is None
    run(timeline, 10)
    assert answers == [0], "35 credits are owed, more than a period's"
