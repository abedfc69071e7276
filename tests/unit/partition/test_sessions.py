"""Sessions that receivers take one after the other."""

from __future__ import annotations

import pytest

from partibus.limits import KIB, PartitionLimits
from partibus.message import Message, pack
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.commands import Outcome
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.options import PartitionOptions
from tests.unit.partition.one_partition import OnePartition

ACTIVE = int(SubqueueKind.ACTIVE)
WINDOW = PartitionLimits(session_window_entries=4, session_window_bytes=4 * KIB)


class Queue(OnePartition):
    """A queue with sessions, whose next session a receiver takes, completes some messages of and leaves."""

    def __init__(self, *sessions: str, body_bytes: int = 10) -> None:
        super().__init__(PartitionOptions(requires_session=True, limits=WINDOW))
        self.numbers = iter(range(1, 1_000))
        body = pack(rest=bytes(body_bytes))
        self.give(c.Enqueue(next(self.numbers), [Message(body, session_id=name) for name in sessions]))
        self.settle_down()

    @property
    def candidates(self) -> list[str]:
        assert self.machine.state.sessions is not None
        return list(self.machine.state.sessions.candidates)

    def take(self, count: int) -> str:
        request, receiver = next(self.numbers), next(self.numbers)
        self.give(c.AcceptSession(request, receiver, None))
        self.settle_down()
        accepted = self.replies[request]
        assert isinstance(accepted, r.SessionAccepted)
        self.give(c.Receive(ACTIVE, receiver, count, 1 << 20, session=accepted.lock_id))
        self.settle_down()
        granted = self.replies[0]
        assert isinstance(granted, r.Granted)
        tokens = [(accepted.lock_id, entry.pos) for entry in granted.entries]
        assert len(tokens) == count
        self.give(c.Settle(next(self.numbers), ACTIVE, Outcome.COMPLETE, tokens))
        self.give(c.ReleaseSession(accepted.lock_id))
        self.settle_down()
        return accepted.session


def test_a_session_without_messages_is_no_candidate_for_the_next_receiver() -> None:
    queue = Queue("a", "b", "c")
    assert queue.take(1) == "a"
    assert queue.candidates == ["b", "c"]
    assert [queue.take(1), queue.take(1)] == ["b", "c"]
    assert queue.candidates == []


@pytest.mark.parametrize("body_bytes", [10, 1_500, 5 * KIB])
def test_a_session_with_messages_behind_its_page_stays_a_candidate(body_bytes: int) -> None:
    """A page ends at its number of entries, at its bytes, or behind one large message."""
    queue = Queue(*"aaaaab", body_bytes=body_bytes)
    assert queue.take(1) == "a"
    assert queue.candidates == ["b", "a"]
    assert [queue.take(1) for _ in range(5)] == list("baaaa")


def test_sessions_of_the_store_are_next_among_arrivals_after_a_restart() -> None:
    names = [f"s{number:03}" for number in range(600)]
    queue = Queue(*names)
    queue.numbers = iter(range(1, 100_000))
    queue.crash()
    left = set(names)
    for count in range(2 * len(names)):
        queue.give(c.Enqueue(next(queue.numbers), [Message(pack(rest=b"x"), session_id=f"new {count}")]))
        queue.settle_down()
        left.discard(queue.take(1))
    assert not left
