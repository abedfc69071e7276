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


class Waiting(Queue):
    """A queue whose receiver holds a session, has had its first message, and waits for more."""

    def __init__(self, count: int, *, delete: bool = False) -> None:
        super().__init__("a")
        self.give(c.AcceptSession(next(self.numbers), 99, "a"))
        self.give(c.Receive(ACTIVE, 99, 1 + count, 1 << 20, delete=delete, session=self.lock_id))
        self.settle_down()
        self.step = self.machine.handle(c.Inspect(0), self.now_ms)

    @property
    def lock_id(self) -> int:
        assert self.machine.state.sessions is not None
        return self.machine.state.sessions.held["a"].lock_id

    def handle(self, command: c.Command) -> list[list[int]]:
        """Return the positions of each grant that a command causes."""
        self.step = self.machine.handle(command, self.now_ms)
        return [[entry.pos for entry in reply.entries] for reply in self.step.replies if isinstance(reply, r.Granted)]

    def send(self, *messages: Message) -> list[list[int]]:
        return self.handle(c.Enqueue(0, list(messages)))


def message(*, ttl_ms: int | None = None, body_bytes: int = 10, session: str = "a") -> Message:
    return Message(pack(rest=bytes(body_bytes)), session_id=session, ttl_ms=ttl_ms)


@pytest.mark.parametrize("body_bytes", [10, 5 * KIB])
def test_a_waiting_holder_gets_arrivals_up_to_its_demand_in_order(body_bytes: int) -> None:
    queue = Waiting(3)
    arrivals = [message(body_bytes=body_bytes), message(session="b"), message(body_bytes=body_bytes)]
    assert queue.send(*arrivals) == [[2, 4]]
    assert queue.send(message(), message()) == [[5]]
    assert queue.send(message()) == []
    assert queue.handle(c.Receive(ACTIVE, 99, 9, 1 << 20, session=queue.lock_id)) == [[6, 7]]


def test_a_message_that_comes_back_goes_before_those_that_arrive_in_the_same_transaction() -> None:
    queue = Waiting(5)
    released = c.Settle(0, ACTIVE, Outcome.RELEASE, [(queue.lock_id, 1)])
    assert queue.handle(c.Transact(0, [c.Enqueue(0, [message()]), released])) == [[1, 2]]


def test_a_waiting_holder_does_not_get_an_arrival_that_has_expired() -> None:
    queue = Waiting(5)
    assert queue.send(message(ttl_ms=0), message(ttl_ms=1_000)) == [[3]]
    assert queue.machine.state.tally.expired == 1


def test_arrivals_for_a_waiting_holder_that_deletes_are_removed() -> None:
    queue = Waiting(5, delete=True)
    assert queue.send(message()) == [[2]]
    assert [reply.lock_id for reply in queue.step.replies if isinstance(reply, r.Granted)] == [0]
    assert queue.machine.state.subqueues[ACTIVE].messages == 0


def test_a_session_is_not_read_from_the_store_while_its_queue_is_empty() -> None:
    queue = Queue("b")
    assert queue.machine.handle(c.AcceptSession(50, 98, "a"), queue.now_ms).loads
    queue = Queue("b")
    queue.take(1)
    accepting = queue.machine.handle(c.AcceptSession(50, 99, "a"), queue.now_ms)
    assert not accepting.loads
    (accepted,) = accepting.replies
    assert isinstance(accepted, r.SessionAccepted)
    queue.give(c.Receive(ACTIVE, 99, 9, 1 << 20, session=accepted.lock_id))
    queue.give(c.Enqueue(0, [message()]))
    queue.settle_down()
    assert queue.machine.state.tally.delivered == 2
