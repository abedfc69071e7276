"""What waits for a store, and who waits for it to become less (D24)."""

from collections.abc import Callable

from partibus.limits import StoreLimits
from partibus.message import Message
from partibus.partition.protocol import commands as c
from partibus.partition.protocol.load_requests import Input
from partibus.partition.runtime.commit_queue import CommitQueue
from partibus.partition.runtime.slot import Slot


class Backlog:
    """Rows that are not durable yet, and commands that wait for their partition to be loaded."""

    __slots__ = ("_awaiting", "_bytes", "_call_soon", "_limits", "_operations", "_queue")

    def __init__(
        self, limits: StoreLimits, queue: CommitQueue, call_soon: Callable[[Callable[[], None]], None]
    ) -> None:
        """``call_soon`` makes a call when what is being handled now has been."""
        self._limits = limits
        self._queue = queue
        self._call_soon = call_soon
        self._operations = 0
        self._bytes = 0
        """Of commands that wait."""
        self._awaiting: list[Callable[[], None]] = []

    def park(self, slot: Slot, command: Input, holdable: bool) -> None:
        """A command begins to wait for partitions to be loaded."""
        slot.waiting.append((command, holdable))
        self._count(command, 1)

    def take_parked(self, slot: Slot) -> list[tuple[Input, bool]]:
        """The commands that waited, in their order; they do no longer."""
        waiting, slot.waiting = slot.waiting, []
        for command, _ in waiting:
            self._count(command, -1)
        return waiting

    def _count(self, command: Input, sign: int) -> None:
        messages = stored_by(command)
        self._operations += sign * (len(messages) or 1)
        self._bytes += sign * sum([len(message.data) for message in messages])

    @property
    def queued(self) -> tuple[int, int]:
        """(operations, bytes) that wait."""
        return self._queue.operations + self._operations, self._queue.size_bytes + self._bytes

    @property
    def overloaded(self) -> bool:
        """More waits than the limits allow: no more credit until the store has caught up."""
        operations, size_bytes = self.queued
        return operations > self._limits.queued_operations or size_bytes > self._limits.queued_bytes

    def when_less(self, call: Callable[[], None]) -> None:
        """Have a call made by whoever takes them."""
        self._awaiting.append(call)

    @property
    def awaited(self) -> bool:
        """Somebody waits for it to become less."""
        return bool(self._awaiting)

    def take_calls(self) -> list[Callable[[], None]]:
        """All calls of `when_less`, once."""
        calls, self._awaiting = self._awaiting, []
        return calls

    def release(self) -> None:
        """It has become less, or who waits is to look elsewhere: make the calls."""
        for call in self.take_calls():
            self._call_soon(call)


_STORING = frozenset((c.Enqueue, c.Transact, c.SetSessionState))
"""Commands that may need room in the store."""


def needs_room(command: Input) -> bool:
    """It brings what is not stored yet: messages, or the state of a session."""
    if type(command) not in _STORING:
        return False
    return bool(stored_by(command)) or (isinstance(command, c.SetSessionState) and command.state is not None)


def stored_by(command: Input) -> list[Message]:
    """The messages that a command stores."""
    if isinstance(command, c.Enqueue):
        return command.messages
    if isinstance(command, c.Transact):
        return [message for part in command.commands if isinstance(part, c.Enqueue) for message in part.messages]
    return []
