"""Receives of standard SQS queues: handles whose visibility timeout has ended still work."""

from __future__ import annotations

from typing import Any

import pytest

from partibus.message import Message, pack
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.options import PartitionOptions
from tests.unit.partition.one_partition import OnePartition

ACTIVE = SubqueueKind.ACTIVE
LOCK_MS = 30_000
Handle = tuple[int, int]


class Standard(OnePartition):
    """A standard queue of one partition."""

    def __init__(self, **options: Any) -> None:
        options = {"max_delivery_count": 1 << 31, "dead_letter_at_receive": True} | options
        super().__init__(PartitionOptions(**options))
        self._request = 0

    def ask(self, command: Any) -> Any:
        self._request += 1
        command.request = self._request
        self.give(command)
        self.settle_down()
        return self.replies.pop(self._request)

    def send(self, count: int = 1, *, delay_ms: int = 0, group: str | None = None) -> list[int]:
        due_ms = self.now_ms + delay_ms if delay_ms else None
        messages = [Message(pack(rest=b"x"), scheduled_ms=due_ms, session_id=group) for _ in range(count)]
        first = self.ask(c.Enqueue(0, messages)).first_sequence
        return list(range(first, first + count))

    def receive(self, count: int = 10, lock_ms: int = LOCK_MS) -> list[tuple[Handle, int]]:
        """Return handles and delivery counts, this delivery included."""
        self._request += 1
        receiver = self._request
        self.give(c.Receive(ACTIVE, receiver, count, 1 << 20, lock_ms=lock_ms))
        self.settle_down()
        self.ask(c.CancelReceive(0, ACTIVE, receiver))
        return [
            ((granted.lock_id, entry.pos), entry.delivery_count + 1)
            for granted in self.granted.pop(receiver, ())
            for entry in granted.entries
        ]

    @property
    def granted(self) -> dict[int, list[r.Granted]]:
        """The grants by receiver."""
        return self._granted

    def load(self) -> None:
        self._granted: dict[int, list[r.Granted]] = {}
        super().load()

    def _let_go(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._durable:
            _, reply = self._waiting.popleft()
            if isinstance(reply, r.Granted):
                self._granted.setdefault(reply.receiver, []).append(reply)
            else:
                self.replies[getattr(reply, "request", 0)] = reply

    def delete(self, handle: Handle) -> r.Settled:
        settled: r.Settled = self.ask(c.Settle(0, ACTIVE, c.Outcome.COMPLETE, [handle], late=True))
        return settled

    def change(self, handle: Handle, lock_ms: int) -> r.Settled:
        settled: r.Settled = self.ask(c.ChangeLocks(0, ACTIVE, [handle], [lock_ms], late=True))
        return settled

    def advance(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.give(c.Tick())
        self.settle_down()


def late(queue: Standard) -> Handle:
    """Receive one message, and let its visibility timeout end."""
    ((handle, count),) = queue.receive()
    assert count == 1
    queue.advance(LOCK_MS)
    return handle


@pytest.mark.parametrize("delay_ms", [0, 5_000])
@pytest.mark.parametrize("is_cold", [False, True])
def test_a_late_delete_removes_the_message(delay_ms: int, is_cold: bool) -> None:
    queue = Standard()
    queue.send(delay_ms=delay_ms)
    if delay_ms:
        assert queue.receive() == []
        queue.advance(delay_ms)
    handle = late(queue)
    if is_cold:
        queue.machine.drop_windows()
    settled = queue.delete(handle)
    assert (settled.lost, settled.gone) == ([], [])
    assert queue.receive() == []
    settled = queue.delete(handle)
    assert (settled.lost, settled.gone) == ([0], [0]), "it does not exist"


def test_a_late_delete_removes_a_message_that_was_received_again() -> None:
    queue = Standard()
    queue.send()
    handle = late(queue)
    ((second, count),) = queue.receive()
    assert count == 2
    assert queue.delete(handle).lost == []
    assert queue.delete(second).gone == [0]


@pytest.mark.parametrize("is_cold", [False, True])
def test_a_late_change_hides_the_message_again_and_counts_no_receive(is_cold: bool) -> None:
    queue = Standard()
    queue.send(3)
    (handle, _), *_ = queue.receive()
    queue.advance(LOCK_MS)
    if is_cold:
        queue.machine.drop_windows()
    assert queue.change(handle, 60_000).lost == []
    assert [one[1] for one, _ in queue.receive()] == [2, 3]
    queue.crash()
    queue.advance(59_000)
    assert 1 not in [one[1] for one, _ in queue.receive()]
    queue.advance(1_000)
    assert [count for one, count in queue.receive() if one[1] == 1] == [2], "the first receive went on"


def test_a_change_just_after_the_timeout_extends_it() -> None:
    queue = Standard()
    queue.send()
    ((handle, _),) = queue.receive()
    queue.now_ms += LOCK_MS  # the tick that ends the lock has not come yet
    assert queue.change(handle, 10_000).lost == []
    queue.advance(9_000)
    assert queue.receive() == []


def test_a_late_change_to_zero_leaves_the_message_visible() -> None:
    queue = Standard()
    queue.send()
    handle = late(queue)
    settled = queue.change(handle, 0)
    assert (settled.lost, settled.gone) == ([0], [])
    ((_, count),) = queue.receive()
    assert count == 2


def test_a_late_change_sets_the_end_of_the_present_lock() -> None:
    queue = Standard()
    queue.send()
    handle = late(queue)
    queue.receive()
    assert queue.change(handle, 2 * LOCK_MS).lost == []
    queue.advance(2 * LOCK_MS - 1)
    assert queue.receive() == []
    queue.advance(1)
    assert len(queue.receive()) == 1
    assert queue.change(handle, 0).lost == []
    ((_, count),) = queue.receive()
    assert count == 4


def test_a_change_of_a_deleted_message_is_told_apart() -> None:
    queue = Standard()
    queue.send()
    handle = late(queue)
    queue.delete(handle)
    settled = queue.change(handle, 1_000)
    assert (settled.lost, settled.gone) == ([0], [0])


def test_a_message_that_a_front_end_has_reserved_is_changed_and_deleted() -> None:
    queue = Standard()
    queue.send(2)
    handles = [handle for handle, _ in queue.receive()]
    queue.advance(LOCK_MS)
    queue.give(c.Receive(ACTIVE, 999, 10, 1 << 20, reserve=True))
    queue.settle_down()
    (reserved,) = queue.granted.pop(999)
    assert len(reserved.entries) == 2
    assert queue.change(handles[0], 60_000).lost == []
    assert queue.delete(handles[1]).lost == []
    tokens = [(reserved.lock_id, entry.pos) for entry in reserved.entries]
    assert queue.ask(c.LockReserved(0, ACTIVE, tokens, delete=False)).entries == []


@pytest.mark.parametrize("delete", [False, True])
@pytest.mark.parametrize("order", [["purge", "ask"], ["ask", "purge"]])
def test_a_purge_counts_a_deferred_message_once_that_is_asked_for_meanwhile(order: list[str], delete: bool) -> None:
    queue = Standard()
    (number,) = queue.send()
    ((handle, _),) = queue.receive()
    queue.ask(c.Settle(0, ACTIVE, c.Outcome.DEFER, [handle]))
    commands: dict[str, Any] = {
        "purge": c.PurgeAll(1_000, ACTIVE),
        "ask": c.ReceiveDeferred(1_001, ACTIVE, [number], delete=delete),
    }
    for name in order:
        queue.give(commands[name])
    queue.settle_down()
    assert queue.replies[1_000] == r.Done(1_000)
    granted = queue.replies[1_001]
    assert isinstance(granted, r.DeferredGranted)
    if not delete:
        queue.ask(c.Settle(0, ACTIVE, c.Outcome.COMPLETE, [(granted.lock_id, number)]))
    counts = queue.ask(c.Inspect(0)).subqueues[ACTIVE]
    assert (counts.messages, counts.size_bytes) == (0, 0)
