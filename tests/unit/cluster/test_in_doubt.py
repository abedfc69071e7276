"""The outcome of requests whose owner was lost: the next owner tells which were executed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from partibus.cluster.in_doubt import DISTRUST_S, STOOD_STILL_S, WAIT_S, Asked, InDoubt
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.runtime.commits import LOST_MAX, answer_of, note_of
from partibus.routing.store_access import TRIES_MAX, WAIT_MS, WAITING_MAX, StoreRoute

LOST, NEXT = "broker-1/run-1", "broker-2/run-1"
OPTIONS = PartitionOptions()
ROW = 7
TOKENS = [(11, 1), (11, 2), (11, 3)]
WHY = "its owner was killed"


class Time:
    """Seconds and milliseconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[Timer] = []
        self.soon: list[Callable[[], None]] = []

    def later_s(self, delay_s: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.now_s + delay_s, call))
        return self.timers[-1]

    def later_ms(self, delay_ms: float, call: Callable[[], None]) -> Timer:
        return self.later_s(delay_ms / 1_000, call)

    def settle(self) -> None:
        while self.soon:
            self.soon.pop(0)()

    def pass_s(self, seconds: float) -> None:
        """Let seconds pass in steps, as for a process that runs."""
        for _ in range(int(seconds * 10)):
            self.jump_s(0.1)

    def jump_s(self, seconds: float) -> None:
        self.now_s += seconds
        for timer in [timer for timer in self.timers if timer.at_s <= self.now_s]:
            self.timers.remove(timer)
            if timer.call is not None:
                timer.call()
        self.settle()


class Timer:
    def __init__(self, at_s: float, call: Callable[[], None]) -> None:
        self.at_s = at_s
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Owner:
    """A way to a store; ``known``: what it remembers of requests."""

    def __init__(self, time: Time, run: str = NEXT, known: Mapping[int, int | None] | None = None) -> None:
        self.time = time
        self.run = run
        self.known = known or {}
        self.failure: str | None = None
        self.overloaded = False
        self.submitted: list[tuple[int, c.Command, Any]] = []

    def find_executed(self, asker: str, requests: Sequence[int], found: Any) -> None:
        assert asker == "us"
        self.time.soon.append(lambda: found(self.known))

    def submit(self, row: int, options: Any, command: Any, on_reply: Any = None, *, holdable: bool = False) -> None:
        self.submitted.append((row, command, on_reply))

    def register(self, receiver: int, on_granted: Any) -> None: ...

    def unregister(self, receiver: int) -> None: ...

    def forget(self, request: int) -> None: ...

    def when_usable(self, call: Any) -> None:
        self.time.soon.append(call)

    def drop(self, row: int, on_dropped: Any) -> None: ...

    def retire(self, why: str) -> list[Any]:
        return []


class Bench:
    def __init__(self) -> None:
        self.time = Time()
        self.route = StoreRoute("store-03", self.time.soon.append, self.time.later_ms)
        self.in_doubt = InDoubt("us", self.time.later_s, lambda: self.time.now_s)
        self.answers: list[Any] = []

    def lose(self, *commands: Any) -> None:
        asked = {
            command.request: Asked(
                type(command), self.answers.append, (ROW, OPTIONS, command) if type(command) is c.Settle else None
            )
            for command in commands
        }
        self.in_doubt.hold(self.route, LOST, asked, WHY)

    def lead_to(self, owner: Owner) -> None:
        self.route.lead_to(owner)
        self.time.settle()


def settle(request: int, outcome: c.Outcome = c.Outcome.COMPLETE) -> c.Settle:
    return c.Settle(request, 0, outcome, TOKENS)


SEND, COMPLETE, ABANDON, TRANSACT = c.Enqueue(1, []), settle(2), settle(3, c.Outcome.ABANDON), c.Transact(4, [])


def test_what_was_done_is_answered_as_its_owner_would_have() -> None:
    bench = Bench()
    bench.lose(SEND, COMPLETE, ABANDON, TRANSACT)
    assert bench.answers == []
    lost_one = note_of(r.Settled(2, [1]))
    owner = Owner(bench.time, known={1: 40, 2: lost_one, 3: 0, 4: 0})
    bench.lead_to(owner)
    assert bench.answers == [r.Accepted(1, 40), r.Settled(2, [1]), r.Settled(3, []), r.Transacted(4)]


def test_the_holder_of_a_session_has_not_what_he_has_given_back() -> None:
    bench = Bench()
    bench.lose(COMPLETE, ABANDON)
    owner = Owner(bench.time, known={2: 0, 3: 0})
    bench.lead_to(owner)
    assert [(row, command) for row, command, _ in owner.submitted] == [(ROW, c.Settle(0, 0, c.Outcome.RELEASE, TOKENS))]


def test_of_what_was_not_done_settlements_are_asked_again() -> None:
    bench = Bench()
    bench.lose(SEND, COMPLETE, TRANSACT)
    owner = Owner(bench.time, known={1: None, 2: None, 4: None})
    bench.lead_to(owner)
    assert bench.answers == [r.Failed(1, False, False, WHY), r.Failed(4, False, False, WHY)]
    ((row, command, on_reply),) = owner.submitted
    assert (row, command) == (ROW, COMPLETE)
    on_reply(r.Settled(2, []))
    assert bench.answers[2:] == [r.Settled(2, [])]


def test_nobody_can_tell_of_the_same_run_nor_of_what_was_forgotten_nor_too_late() -> None:
    bench = Bench()
    bench.lose(COMPLETE)
    bench.lead_to(Owner(bench.time, run=LOST, known={2: 0}))
    assert bench.answers == [r.Failed(2, None, False, WHY)]
    bench.lose(ABANDON)
    bench.lead_to(Owner(bench.time, known={}))
    assert bench.answers[1:] == [r.Failed(3, None, False, WHY)]
    bench.route.lead_nowhere("gone")
    bench.lose(SEND)
    bench.time.pass_s(WAIT_S + 1)
    assert bench.answers[2:] == [r.Failed(1, None, False, WHY)]


def test_who_stood_still_does_not_ask() -> None:
    bench = Bench()
    bench.time.jump_s(STOOD_STILL_S + 2)
    bench.lose(COMPLETE)
    assert bench.answers == [r.Failed(2, None, False, WHY)]
    bench.time.pass_s(DISTRUST_S + 1)
    bench.lose(ABANDON)
    assert len(bench.answers) == 1


def test_of_very_many_tokens_it_is_not_remembered_which_were_lost() -> None:
    few = r.Settled(5, [0, LOST_MAX - 1])
    noted = note_of(few)
    assert noted is not None
    assert answer_of(c.Settle, 5, noted) == few
    assert -(1 << 63) <= noted < 1 << 63
    many = note_of(r.Settled(5, [0, LOST_MAX]))
    assert many is not None
    answer = answer_of(c.Settle, 5, many)
    assert isinstance(answer, r.Failed)
    assert answer.executed is None
    assert note_of(r.Done(5)) is None


# -- what waits at a route ---------------------------------------------------------------------------------------------


def test_settlements_wait_for_the_next_owner_and_sends_do_not() -> None:
    bench = Bench()
    bench.route.submit(ROW, OPTIONS, SEND, bench.answers.append)
    assert [answer.executed for answer in bench.answers] == [False]
    unconfirmed = settle(0)
    bench.route.submit(ROW, OPTIONS, COMPLETE, bench.answers.append)
    bench.route.submit(ROW, OPTIONS, unconfirmed)
    owner = Owner(bench.time)
    bench.lead_to(owner)
    assert [command for _, command, _ in owner.submitted] == [COMPLETE, unconfirmed]
    owner.submitted[0][2](r.Settled(2, []))
    assert bench.answers[1:] == [r.Settled(2, [])]


def test_what_has_waited_too_long_or_is_too_much_is_refused() -> None:
    bench = Bench()
    bench.route.submit(ROW, OPTIONS, COMPLETE, bench.answers.append)
    for _ in range(WAITING_MAX):
        bench.route.submit(ROW, OPTIONS, ABANDON, bench.answers.append)
    assert [answer.request for answer in bench.answers] == [3], "one too many"
    bench.time.pass_s(WAIT_MS / 1_000 + 1)
    assert len(bench.answers) == WAITING_MAX + 1
    assert {answer.executed for answer in bench.answers} == {False}
    owner = Owner(bench.time)
    bench.lead_to(owner)
    assert owner.submitted == []


def test_what_is_refused_again_and_again_is_refused() -> None:
    bench = Bench()
    owner = Owner(bench.time)
    bench.lead_to(owner)
    on_reply: Any = bench.answers.append
    for _ in range(TRIES_MAX):
        bench.route.hold(ROW, OPTIONS, COMPLETE, on_reply)
        bench.time.settle()
        on_reply = owner.submitted[-1][2]
    assert bench.answers == []
    bench.route.hold(ROW, OPTIONS, COMPLETE, on_reply)
    assert [answer.executed for answer in bench.answers] == [False]
