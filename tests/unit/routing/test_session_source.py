"""The messages of a held session, and the end of the hold."""

from __future__ import annotations

from typing import Any

from partibus.errors import PartibusError, SessionLockLost
from partibus.partition import commands as c
from partibus.partition import replies as r
from partibus.routing.partitions import Numbers
from partibus.routing.session_hold import SessionHold
from partibus.routing.session_source import SessionSource
from tests.unit.routing.fakes import FakePartition, entry

LOCK = 7


class Bench:
    def __init__(self) -> None:
        self.partition = FakePartition(0)
        self.hold = SessionHold(self.partition, Numbers())
        self.hold.ask("s", lambda _: None, wait=False)
        self.hold.accepted(r.SessionAccepted(0, "s", LOCK, 60_000))
        self.partition.taken(c.AcceptSession)
        self.granted: list[Any] = []
        self.failed: list[PartibusError] = []
        self.source = SessionSource(
            "q",
            self.hold,
            Numbers(),
            delete=False,
            on_granted=lambda _, granted: self.granted.append(granted),
            on_failed=self.failed.append,
        )

    def tell(self, reply: Any) -> None:
        self.partition.receivers[1](reply)


def test_it_asks_under_the_lock_of_the_session_and_passes_on_what_comes() -> None:
    bench = Bench()
    bench.source.ask(5, 1000)
    assert bench.partition.commands == [c.Receive(0, 1, 5, 1000, delete=False, session=LOCK)]
    granted = r.Granted(1, 0, LOCK, 60_000, [entry(1)], asked=1, ended=False)
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
    bench.partition._callbacks.pop()(r.Cancelled(1, 3))
    assert stopped == [True]
