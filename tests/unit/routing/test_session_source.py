"""The messages of a held session, and the end of the hold."""

from __future__ import annotations

from typing import Any

from partibus.errors import PartibusError, SessionLockLost
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.routing.partitions import Numbers
from partibus.routing.session_source import RESUME_MS, TRIES_MAX, Resuming, SessionHold, SessionSource
from tests.unit.routing.fakes import FakePartition, entry

LOCK = 7


class Clock:
    """A timer at a time."""

    def __init__(self) -> None:
        self.call: Any = None

    def call_later(self, delay_ms: float, call: Any) -> Clock:
        assert delay_ms == RESUME_MS
        self.call = call
        return self

    def cancel(self) -> None:
        self.call = None


class Bench:
    def __init__(self, *, is_stored: bool = False) -> None:
        self.clock = Clock()
        self.held = [4, 6]
        self.partition = FakePartition(0)
        self.hold = SessionHold(self.partition, Numbers())
        self.hold.ask("s", lambda _: None, wait=False)
        self.hold.accepted(r.SessionAccepted(0, "s", LOCK, 60_000, is_stored))
        self.partition.taken(c.AcceptSession)
        self.partition.callbacks.clear()
        self.granted: list[Any] = []
        self.failed: list[PartibusError] = []
        self.source = SessionSource(
            "q",
            self.hold,
            Numbers(),
            delete=False,
            on_granted=lambda _, granted: self.granted.append(granted),
            on_failed=self.failed.append,
            resuming=Resuming(self.clock.call_later, lambda: self.held),
        )

    def tell(self, reply: Any) -> None:
        self.partition.receivers[1](reply)


def test_it_asks_under_the_lock_of_the_session_and_passes_on_what_comes() -> None:
    bench = Bench()
    bench.source.ask(5, 1000)
    assert bench.partition.commands == [c.Receive(0, 1, 5, 1000, delete=False, session=LOCK)]
    granted = r.Granted(1, 0, LOCK, 60_000, [entry(1)], ended=False)
    bench.tell(granted)
    assert bench.granted == [granted]


def test_closing_frees_the_session_once() -> None:
    bench = Bench()
    bench.source.close()
    bench.source.close()
    assert bench.partition.taken(c.ReleaseSession) == [c.ReleaseSession(LOCK)]
    assert bench.partition.receivers == {}


def test_the_end_of_the_lock_is_told_once_and_frees_nothing_that_is_free() -> None:
    bench = Bench()
    tell = bench.partition.receivers[1]
    tell(r.SessionEnded(1, LOCK))
    tell(r.SessionEnded(1, LOCK))
    assert [str(error) for error in bench.failed] == [str(SessionLockLost("q", "s"))]
    bench.source.ask(1, 1000)
    bench.source.close()
    assert bench.partition.commands == []


def test_a_failed_store_ends_the_hold() -> None:
    bench = Bench()
    bench.partition.fail()
    assert [type(error) for error in bench.failed] == [SessionLockLost]


def test_a_stop_is_confirmed_when_the_partition_has() -> None:
    bench = Bench()
    stopped: list[bool] = []
    bench.source.stop(lambda: stopped.append(True))
    assert not stopped
    bench.partition.callbacks.pop()(r.Cancelled(1, 3))
    assert stopped == [True]


# -- another owner -----------------------------------------------------------------------------------------------------


def lose_owner(bench: Bench) -> c.AcceptSession:
    """The owner is lost, and the next one is asked."""
    bench.partition.fail()
    bench.partition.recover()
    (command,) = bench.partition.taken(c.AcceptSession)
    return command


def test_the_next_owner_is_told_what_the_receiver_has_and_asked_for_what_it_waits_for() -> None:
    bench = Bench(is_stored=True)
    bench.source.ask(5, 1000)
    bench.tell(r.Granted(1, 0, LOCK, 60_000, [entry(4), entry(6)], ended=False))
    bench.partition.taken(c.Receive)
    command = lose_owner(bench)
    assert (command.session, command.resumes, command.held) == ("s", LOCK, [4, 6])
    bench.source.ask(2, 1000)
    assert bench.partition.taken(c.Receive) == [], "nobody is there to be asked"
    bench.partition.answer(r.SessionAccepted(command.request, "s", LOCK, 60_000, is_stored=True))
    assert bench.partition.taken(c.Receive) == [c.Receive(0, 1, 5, 1000, delete=False, session=LOCK)]
    assert bench.clock.call is None
    assert bench.failed == []


def test_an_owner_that_is_lost_as_well_is_followed_by_another() -> None:
    bench = Bench(is_stored=True)
    for _ in range(TRIES_MAX - 1):
        command = lose_owner(bench)
        bench.partition.answer(r.Failed(command.request, False, False, "lost again"))
    assert bench.failed == []
    command = lose_owner(bench)
    bench.partition.answer(r.Failed(command.request, False, False, "lost again"))
    assert [type(error) for error in bench.failed] == [SessionLockLost]


def test_an_owner_that_knows_nothing_of_the_lock_ends_it() -> None:
    bench = Bench(is_stored=True)
    command = lose_owner(bench)
    bench.partition.answer(r.SessionLost(command.request))
    assert [type(error) for error in bench.failed] == [SessionLockLost]
    assert bench.partition.taken(c.ReleaseSession) == [c.ReleaseSession(LOCK)]
    assert bench.clock.call is None


def test_without_an_owner_for_long_the_session_is_over() -> None:
    bench = Bench(is_stored=True)
    bench.partition.fail()
    bench.clock.call()
    assert [type(error) for error in bench.failed] == [SessionLockLost]
    bench.partition.recover()
    assert bench.partition.taken(c.AcceptSession) == []


def test_who_goes_while_the_owner_is_lost_leaves_no_lock() -> None:
    bench = Bench(is_stored=True)
    command = lose_owner(bench)
    bench.source.close()
    assert bench.partition.taken(c.ReleaseSession) == [c.ReleaseSession(LOCK)]
    bench.partition.answer(r.SessionAccepted(command.request, "s", LOCK, 60_000, is_stored=True))
    assert bench.partition.taken(c.ReleaseSession) == [c.ReleaseSession(LOCK)]
    assert bench.failed == []
