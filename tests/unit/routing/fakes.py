"""Partitions that write down what they are asked and answer when a test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, TypeVar

from partibus.message import Message, pack
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.host import overloaded_stores
from partibus.partition.protocol.keys import Entry
from partibus.routing.partitions import PartitionHandle

C = TypeVar("C")
UNAVAILABLE = r.Failed(0, executed=False, full=False, message="the disk is away")
UNKNOWN = r.Failed(0, executed=None, full=False, message="no answer")


class FakePartition(PartitionHandle):
    """``accepts`` answers enqueues at once; otherwise everything waits for `answer`."""

    def __init__(self, partition_id: int, *, accepts: bool = True) -> None:
        self.partition_id = partition_id
        self.row = partition_id + 1
        self.commands: list[Any] = []
        self.receivers: dict[int, Callable[[Any], None]] = {}
        self.accepts = accepts
        self.fails: r.Failed | r.Refused | None = None
        self.is_available = True
        self.callbacks: list[Callable[[Any], None]] = []
        """The calls that commands without a reply wait for, in order."""
        self.awaiting: list[Callable[[], None]] = []
        self._reservations = count(1)
        self._positions = count(1)

    @property
    def available(self) -> bool:
        return self.is_available

    @property
    def overloaded(self) -> bool:
        return self in overloaded_stores

    def overload(self) -> None:
        """Exceed the limits of a queue, as a store does, until `recover`."""
        overloaded_stores.add(self)

    def when_usable(self, call: Callable[[], None]) -> None:
        self.awaiting.append(call)

    def submit(self, command: Any, on_reply: Callable[[Any], None] | None = None, *, more: bool = False) -> None:
        self.commands.append(command)
        if on_reply is None:
            return
        if self.fails is not None:
            on_reply(self.fails)
        elif self.accepts and isinstance(command, c.Enqueue):
            on_reply(r.Accepted(command.request, 1))
        else:
            self.callbacks.append(on_reply)

    def forget(self, request: int) -> None:
        """Messages on their way still arrive."""

    def register(self, receiver: int, on_granted: Callable[[Any], None]) -> None:
        self.receivers[receiver] = on_granted

    def unregister(self, receiver: int) -> None:
        self.receivers.pop(receiver, None)

    # -- the test's verbs --------------------------------------------------------------------------------------------

    def taken(self, kind: type[C]) -> list[C]:
        """Commands of a kind since they were last taken."""
        found = [command for command in self.commands if isinstance(command, kind)]
        self.commands = [command for command in self.commands if not isinstance(command, kind)]
        return found

    def answer(self, reply: Any) -> None:
        """Answer the oldest request."""
        self.callbacks.pop(0)(reply)

    def reserve(self, messages: int, *, size_bytes: int = 100, enqueued_ms: int = 0, ended: bool = False) -> None:
        """Grant a reservation of new messages to the cache."""
        (ask,) = {command.receiver for command in self.commands if isinstance(command, c.Receive)}
        entries = [entry(next(self._positions), size_bytes, enqueued_ms) for _ in range(messages)]
        granted = r.Granted(ask, 0, next(self._reservations), 5_000, entries, ended=ended)
        self.receivers[ask](granted)

    def lock(self, missing: Iterable[int] = ()) -> list[int]:
        """Answer the oldest hand-out, without the positions that have lapsed; the positions that it named."""
        command = next(command for command in self.commands if isinstance(command, c.LockReserved))
        self.commands.remove(command)
        positions = [pos for _, pos in command.tokens]
        entries = [entry(pos) for pos in positions if pos not in set(missing)]
        self.answer(r.Locked(command.request, 0, 77, 60_000, entries))
        return positions

    def fail(self) -> None:
        """Fail the store: the outcomes of requests are unknown, and every receiver is told and forgotten."""
        self.is_available = False
        callbacks, self.callbacks = self.callbacks, []
        for answer in callbacks:
            answer(UNKNOWN)
        self.give_up()

    def give_up(self) -> None:
        """The store gets another owner: every receiver is told and forgotten, and requests are still answered."""
        self.is_available = False
        receivers, self.receivers = self.receivers, {}
        for receiver, callback in receivers.items():
            callback(r.Failed(receiver, executed=None, full=False, message="the disk is sick"))

    def recover(self) -> None:
        overloaded_stores.discard(self)
        self.is_available = True
        calls, self.awaiting = self.awaiting, []
        for call in calls:
            call()


def entry(pos: int, size_bytes: int = 100, enqueued_ms: int = 0) -> Entry:
    return Entry(pos, pos, pos, enqueued_ms, 0, None, None, size_bytes, b"data")


def message(key: str | None = None) -> Message:
    return Message(pack(rest=b"body"), partition_key=key)
