"""Moves the messages of one sub-queue of one partition to another entity, each once (D15).

```text
 source partition ──Granted, in order──▶ Pump ──┬─ way 0 ──Enqueue(origin)──▶ destination partition 0
        ▲                                       ├─ way 1 ...                       │ durable, with its mark
        └──────────── Forwarded ────────────────┴──────────────── Accepted ◀───────┘
```

To each partition of the destination there is one *way* with one batch under way; the next leaves when that is answered.
What could not be stored, or nobody knows of, is sent again as it was: the destination knows by the positions what it
has got. So does it when the source has forgotten that something was forwarded, after a crash, and another pump sends it
again. A partition that can't take anything holds up the others only when its messages fill the pump's window.

A pump lives as long as the source's store is in use here. There may be another one at a broker that has lost the store
and does not know it; see `partibus.partition.outbound` for why that does no harm.
"""

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from partibus.amqp.errors import DecodeError
from partibus.forwarding.destination import Destination, Find, Undeliverable, check, prepare
from partibus.message import Message
from partibus.partition.commands import (
    Accepted,
    CancelReceive,
    Command,
    Enqueue,
    Failed,
    Forwarded,
    Granted,
    LockToken,
    Receive,
    ReturnReserved,
)
from partibus.partition.entry import Entry
from partibus.partition.keys import SubqueueKind, subqueue_key
from partibus.partition.options import PartitionOptions
from partibus.routing.partitions import Numbers, PartitionHandle
from partibus.routing.send import COUNTER_BITS
from partibus.routing.store_access import StoreAccess

WINDOW_ENTRIES = 1_024
WINDOW_BYTES = 1 << 20
"""What a pump holds: at 10,000 messages of 1 KiB a second a tenth of a second's."""
RETRY_MS_MIN = 20.0
RETRY_MS_MAX = 2_000.0
"""Between two attempts to store what a destination that is full, or lost in between, did not take."""

CallLater = Callable[[float, Callable[[], None]], object]
"""Calls after so many ms."""


class Source(NamedTuple):
    """What is forwarded."""

    store: StoreAccess
    row: int
    kind: int
    options: Callable[[], PartitionOptions]
    """As they are now."""
    name: str
    partition_id: int


class _Way:
    """To one partition of the destination."""

    __slots__ = ("maybe_stored", "messages", "retry_ms", "sent", "stalled", "tokens", "waiting")

    def __init__(self) -> None:
        self.waiting: list[LockToken] = []
        self.messages: list[Message] = []
        """Of ``waiting``."""
        self.sent: Enqueue | None = None
        self.tokens: list[LockToken] = []
        """Of ``sent``."""
        self.maybe_stored = False
        """``sent`` has left, and nobody knows what became of it."""
        self.stalled = False
        """Somebody calls when there is something to be tried again."""
        self.retry_ms = RETRY_MS_MIN


class Pump:
    """Of one sub-queue of a partition."""

    def __init__(
        self,
        source: Source,
        target: str,
        find: Find,
        numbers: Numbers,
        call_later: CallLater,
        on_lost: Callable[[], None],
    ) -> None:
        """``on_lost``: the source's store can't be used any more, so the pump has ended."""
        self.target = target
        self._source = source
        self._find = find
        self._numbers = numbers
        self._call_later = call_later
        self._on_lost = on_lost
        self._origin = subqueue_key(source.row, source.kind)
        self._dead_letter_source = source.name if source.kind == SubqueueKind.DEAD_LETTER else None
        self._alive = False
        self._stopped: Callable[[], None] | None = None
        self._receiver = 0

    def begin(self) -> None:
        """Begin with what the source has now; what was held before is granted again."""
        self._alive = True
        self._partitions: object = None
        self._ways: dict[int, _Way] = {}
        self._held = 0
        self._held_bytes: dict[int, int] = {}
        self._bytes = 0
        self._asked = 0
        self._receiver = receiver = self._numbers.next()
        self._source.store.register(receiver, lambda reply: self._told(receiver, reply))
        self._ask()

    def stop(self, on_stopped: Callable[[], None]) -> None:
        """Give back what has not been sent; call when nothing is under way any more."""
        self._stopped = on_stopped
        self._submit(CancelReceive(0, self._source.kind, self._receiver))
        for way in self._ways.values():
            self._give_back(way.waiting)
            way.waiting, way.messages = [], []
        self._see_stopped()

    def abandon(self) -> None:
        """The source is gone."""
        if self._alive:
            self._alive = False
            self._source.store.unregister(self._receiver)

    # -- from the source ---------------------------------------------------------------------------------------------

    def _submit(self, command: Command) -> None:
        source = self._source
        source.store.submit(source.row, source.options(), command, holdable=True)

    def _ask(self) -> None:
        """Keep the window full, without a question for each message."""
        if self._stopped is not None:
            return
        room = WINDOW_ENTRIES - self._held - self._asked
        if room * 4 >= WINDOW_ENTRIES or (room > 0 and not self._asked):
            self._asked += room
            size_bytes = max(1, WINDOW_BYTES - self._bytes)
            self._submit(Receive(self._source.kind, self._receiver, room, size_bytes, forward=True))

    def _told(self, receiver: int, reply: Granted | Failed) -> None:
        if not self._alive or receiver != self._receiver:
            return
        if isinstance(reply, Failed):
            self._alive = False
            if self._stopped is not None:
                self._stopped()
            else:
                self._on_lost()
            return
        self._asked = 0 if reply.ended else self._asked - len(reply.entries)
        self._take(reply)

    def _take(self, granted: Granted) -> None:
        entries = granted.entries
        tokens = [(granted.lock_id, entry.pos) for entry in entries]
        if self._stopped is not None:
            self._give_back(tokens)
            return
        destination = self._find(self.target)
        why_not = check(self.target, destination)
        if why_not is not None or destination is None:
            assert why_not is not None, "there is none"
            self._undeliverable(tokens, why_not)
            self._ask()
            return
        if self._partitions is not destination.partitions and self._partitions is not None:
            self._begin_again()  # another entity of that name, with other partitions
            return
        self._partitions = destination.partitions
        touched: dict[int, _Way] = {}
        for token, entry in zip(tokens, entries, strict=True):
            outgoing = self._prepare(entry, destination)
            if isinstance(outgoing, Undeliverable):
                self._undeliverable([token], outgoing)
                continue
            way = self._ways.get(outgoing.partition)
            if way is None:
                way = self._ways[outgoing.partition] = _Way()
            way.waiting.append(token)
            way.messages.append(outgoing.message)
            self._held += 1
            self._bytes += entry.size_bytes
            self._held_bytes[entry.pos] = entry.size_bytes
            touched[outgoing.partition] = way
        for index, way in touched.items():
            self._send(index, way)
        self._ask()

    def _prepare(self, entry: Entry, destination: Destination) -> Any:
        """`Outgoing` or `Undeliverable`."""
        source = self._source
        assert entry.data is not None, "granted with its body"
        number = source.partition_id << COUNTER_BITS | entry.sequence
        try:
            return prepare(entry.data, entry.pos, number, self._dead_letter_source, source.partition_id, destination)
        except (DecodeError, ValueError, struct.error) as error:  # checked at ingress, so the row was damaged since
            return Undeliverable("MessageUnreadable", f"The stored message can't be read: {error}.")

    def _undeliverable(self, tokens: list[LockToken], why: Undeliverable) -> None:
        if tokens and self._alive:
            self._submit(Forwarded(0, self._source.kind, tokens, why.reason, why.description))

    def _give_back(self, tokens: list[LockToken]) -> None:
        if tokens and self._alive:
            self._submit(ReturnReserved(self._source.kind, tokens))

    def _begin_again(self) -> None:
        """Forget what is held: the source grants it again to the next receiver."""
        self._source.store.unregister(self._receiver)
        self.begin()

    # -- to the destination ------------------------------------------------------------------------------------------

    def _send(self, index: int, way: _Way) -> None:
        """Send what waits, unless something is under way."""
        if way.sent is not None or way.stalled or not way.waiting:
            return
        way.sent = Enqueue(0, way.messages, origin=(self._origin, [pos for _, pos in way.waiting]))
        way.tokens, way.waiting, way.messages = way.waiting, [], []
        self._attempt(index, way)

    def _attempt(self, index: int, way: _Way) -> None:
        if not self._alive or self._ways.get(index) is not way:
            return
        way.stalled = False
        destination = self._find(self.target)
        why_not = check(self.target, destination)
        if destination is None or (why_not is not None and not way.maybe_stored):
            self._settle(way, why_not)
            self._go_on(index, way)
            return
        if self._partitions is not destination.partitions:
            self._begin_again()
            return
        partition = destination.partitions[index]
        if partition.failure is not None or partition.overloaded:
            self._stall(way, partition, index)
            return
        assert way.sent is not None, "there is something to send"
        # A command of its own for each attempt: nobody knows who still holds the last one.
        command = Enqueue(self._numbers.next(), way.sent.messages, origin=way.sent.origin)
        way.maybe_stored = True
        partition.submit(command, lambda reply: self._answered(index, way, reply))

    def _stall(self, way: _Way, partition: PartitionHandle, index: int) -> None:
        way.stalled = True
        partition.when_usable(lambda: self._attempt(index, way))

    def _answered(self, index: int, way: _Way, reply: Any) -> None:
        if not self._alive or self._ways.get(index) is not way:
            return
        if not isinstance(reply, Accepted):
            # Full, lost before it was stored, or nobody knows: the same again, and the destination's mark decides.
            way.maybe_stored = isinstance(reply, Failed) and reply.executed is not False
            way.stalled = True
            self._call_later(way.retry_ms, lambda: self._attempt(index, way))
            way.retry_ms = min(2 * way.retry_ms, RETRY_MS_MAX)
            return
        way.retry_ms = RETRY_MS_MIN
        self._settle(way, None)
        self._go_on(index, way)

    def _settle(self, way: _Way, why_not: Undeliverable | None) -> None:
        """What was sent is stored there, or can't be."""
        tokens, way.tokens, way.sent, way.maybe_stored = way.tokens, [], None, False
        self._held -= len(tokens)
        self._bytes -= sum([self._held_bytes.pop(pos) for _, pos in tokens])
        if why_not is None:
            self._submit(Forwarded(0, self._source.kind, tokens))
        elif self._stopped is not None:
            self._give_back(tokens)
        else:
            self._undeliverable(tokens, why_not)

    def _go_on(self, index: int, way: _Way) -> None:
        if self._stopped is not None:
            self._see_stopped()
            return
        self._send(index, way)
        self._ask()

    def _see_stopped(self) -> None:
        if self._stopped is not None and self._alive and all(way.sent is None for way in self._ways.values()):
            self.abandon()
            self._stopped()
