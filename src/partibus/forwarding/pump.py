"""Moving the messages of one sub-queue of one partition to another entity, each once (D15).

```text
 source partition ──Granted, in order──▶ Pump ──┬─ way 0 ──Enqueue(origin)──▶ destination partition 0
        ▲                                       ├─ way 1 ...                       │ durable, with its mark
        └──────────── Forwarded ────────────────┴──────────────── Accepted ◀───────┘
```

Each partition of the destination has one *way* with one batch in flight; the next batch leaves after the answer. The
pump resends a batch unchanged when it could not be stored or is in doubt. The destination recognizes repeated messages
by their positions. This also covers a source that crashed and forgot a completed forward, so that another pump sends
the messages again. A partition that accepts no messages blocks the others only when its messages fill the pump's
window.

A pump lives as long as the source's store is in use here. Another pump may exist at a broker that has lost the store
without knowing it; `partition.core.forwarding` explains why that is harmless.
"""

import struct
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from partibus.amqp.errors import DecodeError
from partibus.errors import StoreUnavailable
from partibus.forwarding.destination import (
    Destination,
    Find,
    Outgoing,
    Undeliverable,
    check,
    prepare,
    prepare_redriven,
    prepare_transfer,
)
from partibus.message import Message, with_receives, without_destination
from partibus.namespace.names import fold_name
from partibus.partition.protocol.commands import (
    CancelReceive,
    Command,
    Enqueue,
    Forwarded,
    LockToken,
    Receive,
    ReturnReserved,
)
from partibus.partition.protocol.generations import Generation, History, Series, origin_key, origin_of
from partibus.partition.protocol.keys import Entry, SubqueueKind, subqueue_key
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.replies import Accepted, Failed, Granted, Moved, ReceiveRefused, ScreenFirst
from partibus.routing.partitions import Numbers, PartitionHandle
from partibus.routing.placing import screen
from partibus.routing.send import COUNTER_BITS
from partibus.routing.slots import SlotMap
from partibus.routing.store_access import StoreAccess
from partibus.tracing.tracer import Step, Tracer

WINDOW_ENTRIES = 1_024
WINDOW_BYTES = 1 << 20
"""The bytes that a pump holds: a tenth of a second at 10,000 messages of 1 KiB a second."""
RETRY_MS_MIN = 20.0
RETRY_MS_MAX = 2_000.0
"""The longest pause between two attempts to store a batch in a destination that is full or temporarily lost."""

SIZE_UNLIMITED = 1 << 62

CallLater = Callable[[float, Callable[[], None]], object]
"""A function that calls another one after so many ms."""


class Source(NamedTuple):
    """The sub-queue whose messages a pump forwards."""

    store: StoreAccess
    row: int
    kind: int
    options: Callable[[], PartitionOptions]
    """A function that returns the current options."""
    name: str
    partition_id: int
    generations: Callable[[], Sequence[Generation]]
    """A function that returns the generations of the store, which is open."""


class _Way:
    """The route from a pump to one partition of a destination."""

    __slots__ = (
        "batch_messages",
        "index",
        "maybe_stored",
        "messages",
        "partitions",
        "retry_ms",
        "sent",
        "since_ns",
        "stalled",
        "target",
        "tokens",
        "waiting",
    )

    def __init__(self, destination: Destination, target: str, index: int) -> None:
        self.target = target
        self.batch_messages = destination.batch_messages
        self.partitions = destination.partitions
        """The partitions of the destination. A different object means a different destination entity."""
        self.index = index
        self.waiting: list[LockToken] = []
        self.messages: list[Message] = []
        """The messages of ``waiting``."""
        self.sent: Enqueue | None = None
        self.tokens: list[LockToken] = []
        """The lock tokens of ``sent``."""
        self.maybe_stored = False
        """Whether an attempt to store ``sent`` is in doubt; so it remains, whatever a later attempt brings."""
        self.stalled = False
        """Whether a pending callback will retry the batch."""
        self.retry_ms = RETRY_MS_MIN
        self.since_ns = 0
        """The time when ``sent`` was first sent, for traces."""


class Pump:
    """The forwarder of one sub-queue of a partition."""

    def __init__(
        self,
        source: Source,
        target: str | None,
        find: Find,
        numbers: Numbers,
        call_later: CallLater,
        on_lost: Callable[[], None],
        tracer: Tracer | None = None,
    ) -> None:
        """Build a pump for ``target``, or for the destination that each message names if it is None.

        The pump calls ``on_lost`` when it ends because the source's store is unusable.
        """
        self.target = target
        self._source = source
        self._find = find
        self._numbers = numbers
        self._call_later = call_later
        self._on_lost = on_lost
        self._tracer = tracer
        self._subqueue = subqueue_key(source.row, source.kind)
        self._dead_letter_source = source.name if source.kind == SubqueueKind.DEAD_LETTER else None
        self._alive = False
        self._stopped: Callable[[], None] | None = None
        self._receiver = 0
        self._series = Series()
        self._refusals = 0
        """The source's count of refusals (`partition.protocol.generations.History`)."""
        self._refusing = 0
        """Refusals that are not durable yet. No message leaves before they are."""
        self._slots_outdated: SlotMap | None = None
        """The destination's owners of slots at the last `Moved`."""
        self._moved_ms = RETRY_MS_MIN
        """The pause after the next `Moved` with the same owners."""

    def begin(self) -> None:
        """Start receiving from the source, which grants messages held before again."""
        self._alive = True
        self._generations = self._source.generations()
        self._ways: dict[str, dict[int, _Way]] = {}
        """The ways by folded name of the destination, and partition index. Those of a name lead to one entity."""
        self._held = 0
        self._held_bytes: dict[int, int] = {}
        self._bytes = 0
        self._asked = 0
        self._refusing = 0
        self._paused = False
        """Whether the pump holds no message and asks for none until it begins again."""
        self._receiver = receiver = self._numbers.next()
        self._source.store.register(receiver, lambda reply: self._told(receiver, reply))
        self._ask()

    def stop(self, on_stopped: Callable[[], None]) -> None:
        """Return all unsent messages; call ``on_stopped`` when no batch is in flight."""
        self._stopped = on_stopped
        self._submit(CancelReceive(0, self._source.kind, self._receiver))
        for way in self._all_ways():
            self._give_back(way.waiting)
            way.waiting, way.messages = [], []
            if way.stalled and not way.maybe_stored:
                self._give_back(self._take_off(way))
        self._see_stopped()

    def abandon(self) -> None:
        """Stop at once, because the source is unavailable."""
        if self._alive:
            self._alive = False
            self._source.store.unregister(self._receiver)

    # -- from the source ---------------------------------------------------------------------------------------------

    def _submit(self, command: Command) -> None:
        source = self._source
        source.store.submit(source.row, source.options(), command, holdable=True)

    def _ask(self) -> None:
        """Request messages to keep the window full, without one request for each message."""
        if self._stopped is not None or self._paused:
            return
        room = WINDOW_ENTRIES - self._held - self._asked
        if room * 4 >= WINDOW_ENTRIES or (room > 0 and not self._asked):
            self._asked += room
            size_bytes = max(1, WINDOW_BYTES - self._bytes)
            self._submit(Receive(self._source.kind, self._receiver, room, size_bytes, forward=True))

    def _told(self, receiver: int, reply: Granted | ReceiveRefused | Failed) -> None:
        if not self._alive or receiver != self._receiver:
            return
        if isinstance(reply, Failed):
            self._alive = False
            if self._stopped is not None:
                self._stopped()
            else:
                self._on_lost()
            return
        if isinstance(reply, ReceiveRefused):
            self._pause()
            return
        self._asked = 0 if reply.ended else self._asked - len(reply.entries)
        self._take(reply)

    def _pause(self) -> None:
        """Return all messages and begin again later: a cursor reads the source alone, or a queue of SQS is missing.

        The pump withdraws its demand first. Otherwise the source would grant later messages before the returned ones,
        and a destination that is made meanwhile would drop the returned ones as known. A pump that is stopped in the
        pause holds nothing. Batches in flight or in doubt go back, too: a missing queue keeps nothing, and the mark of
        an existing destination drops what it has stored. The lease may be renewed any number of times, so the pump
        retries at intervals.
        """
        if self._stopped is not None or self._paused:
            return
        self._paused = True
        receiver, kind = self._receiver, self._source.kind
        self._submit(CancelReceive(0, kind, receiver))
        self._give_back([token for way in self._all_ways() for token in way.tokens + way.waiting])
        self._ways = {}

        def again() -> None:
            if self._alive and receiver == self._receiver and self._stopped is None:
                self._begin_again()

        self._call_later(RETRY_MS_MAX, again)

    def _take(self, granted: Granted) -> None:
        entries = granted.entries
        self._refusals = granted.refusals
        tokens = [(granted.lock_id, entry.pos) for entry in entries]
        if self._is_sqs and self.target is not None and self._find(self.target) is None:
            self._pause()  # no action of SQS reads transfer dead letters
        if self._stopped is not None or self._paused:
            self._give_back(tokens)
            return
        series = Series.unpack(granted.series)
        if series != self._series:
            if self._ways:  # a receiver took messages meanwhile; the source grants again what is held
                self._begin_again()
                return
            self._series = series
        touched: dict[_Way, None] = {}
        undeliverable: dict[Undeliverable, list[LockToken]] = {}
        for token, entry in zip(tokens, entries, strict=True):
            way = self._take_one(token, entry)
            if way is None:
                self._begin_again()
                return
            if isinstance(way, Undeliverable):
                undeliverable.setdefault(way, []).append(token)
            else:
                touched[way] = None
        for why, refused in undeliverable.items():
            self._undeliverable(refused, why)
        for way in touched:
            self._send(way)
        self._ask()

    def _take_one(self, token: LockToken, entry: Entry) -> _Way | Undeliverable | None:
        """Queue a message on its way, or return why it can't be forwarded.

        Return None if the destination was deleted and made again since earlier messages were queued. All of them have
        to go to the new entity in their order: its marks would drop an earlier message that comes after this one.
        """
        assert entry.data is not None, "granted with its body"
        name, data = self.target, entry.data
        destination: Destination | None = None
        try:
            if name is None:
                name, data = without_destination(data)
            destination = self._find(name)
            outgoing: Outgoing | Undeliverable | None = check(name, destination)
            if destination is not None and outgoing is None:
                outgoing = self._prepare(data, entry, destination)
        except (
            DecodeError,
            ValueError,
            struct.error,
        ) as error:  # checked at ingress: a damaged row
            outgoing = Undeliverable("MessageUnreadable", f"The stored message can't be read: {error}.")
        if not isinstance(outgoing, Outgoing):
            assert outgoing is not None, "checked"
            return outgoing
        assert name is not None, "found"
        assert destination is not None, "checked"
        ways = self._ways.setdefault(fold_name(name), {})
        if ways and next(iter(ways.values())).partitions is not destination.partitions:
            return None
        way = ways.get(outgoing.partition)
        if way is None:
            way = ways[outgoing.partition] = _Way(destination, name, outgoing.partition)
        way.waiting.append(token)
        way.messages.append(outgoing.message)
        self._held += 1
        self._bytes += entry.size_bytes
        self._held_bytes[entry.pos] = entry.size_bytes
        return way

    @property
    def _is_sqs(self) -> bool:
        """Whether it forwards dead letters of a queue of SQS."""
        return self._dead_letter_source is not None and self._source.options().dead_letter_at_receive

    def _prepare(self, data: bytes, entry: Entry, destination: Destination) -> Outgoing | Undeliverable:
        source = self._source
        if self.target is None:
            return prepare_transfer(data, entry.pos, source.partition_id, destination)
        number = source.partition_id << COUNTER_BITS | entry.sequence
        options = source.options()
        is_sqs = self._is_sqs
        if is_sqs:
            data = with_receives(data, entry.delivery_count)
            # SQS takes messages of 1 MiB at each queue. The entity's maximum is that of AMQP, and smaller.
            destination = destination._replace(message_size_max_bytes=SIZE_UNLIMITED)
        prepared = prepare_redriven if is_sqs and entry.delivery_count > 0 else prepare  # expiry takes no receive
        outgoing = prepared(data, entry.pos, number, self._dead_letter_source, source.partition_id, destination)
        if is_sqs and not options.requires_session and isinstance(outgoing, Outgoing):
            outgoing.message.enqueued_ms = entry.enqueued_ms
        return outgoing

    def _undeliverable(self, tokens: list[LockToken], why: Undeliverable) -> None:
        """Make messages transfer dead letters; no other message leaves before that is durable.

        Otherwise a mark of the destination could be above a message that a crash, or a copy of the store, still has at
        its place.
        """
        if not tokens or not self._alive:
            return
        source, receiver = self._source, self._receiver
        command = Forwarded(self._numbers.next(), source.kind, tokens, why.reason, why.description)
        self._refusing += 1

        def refused(reply: Any) -> None:
            if isinstance(reply, Failed) or not self._alive or receiver != self._receiver:
                return
            self._refusing -= 1
            if not self._refusing:
                for way in self._all_ways():
                    self._send(way)

        source.store.submit(source.row, source.options(), command, refused, holdable=True)

    def _give_back(self, tokens: list[LockToken]) -> None:
        if tokens and self._alive:
            self._submit(ReturnReserved(self._source.kind, tokens))

    def _begin_again(self) -> None:
        """Restart without held messages: the source grants them again to the next receiver."""
        self._source.store.unregister(self._receiver)
        self.begin()

    # -- to the destination ------------------------------------------------------------------------------------------

    def _send(self, way: _Way) -> None:
        """Send the queued messages, unless a batch is in flight or a refusal is not durable yet."""
        if way.sent is not None or way.stalled or not way.waiting or self._refusing:
            return
        generation, end_pos = origin_of(self._generations, self._series, way.waiting[0][1])
        count = bisect_left(way.waiting, end_pos, key=lambda token: token[1])  # positions ascend
        count = min(count, way.batch_messages)
        way.tokens, way.waiting = way.waiting[:count], way.waiting[count:]
        messages, way.messages = way.messages[:count], way.messages[count:]
        latest = self._generations[-1]
        origin = origin_key(self._subqueue, latest, self._series)
        before = 0 if generation is latest else origin_key(self._subqueue, generation, self._series)
        history = History(self._refusals, before) if self._refusals or before else None
        way.sent = Enqueue(0, messages, origin=(origin, [pos for _, pos in way.tokens]), history=history)
        way.since_ns = 0 if self._tracer is None else self._tracer.now_ns()
        self._attempt(way)

    def _all_ways(self) -> list[_Way]:
        return [way for ways in self._ways.values() for way in ways.values()]

    def _is_over(self, way: _Way) -> bool:
        """Tell whether there is nothing to do for a batch: it was given back, or the pump has ended or restarted."""
        if not self._alive or way.sent is None:
            return True
        return self._ways.get(fold_name(way.target), {}).get(way.index) is not way

    def _attempt(self, way: _Way) -> None:
        if self._is_over(way):
            return
        way.stalled = False
        if self._stopped is not None and not way.maybe_stored:
            self._go_elsewhere(way)
            return
        destination = self._find(way.target)
        why_not = check(way.target, destination)
        if destination is None and self._is_sqs and self._stopped is None:
            self._pause()
            return
        if destination is None or (why_not is not None and not way.maybe_stored):
            self._settle(way, why_not)
            self._go_on(way)
            return
        if way.partitions is not destination.partitions or way.index >= len(way.partitions):
            self._go_elsewhere(way)  # another entity of that name, or fewer partitions
            return
        partition = destination.partitions[way.index]
        if partition.failure is not None or partition.overloaded:
            way.stalled = True
            partition.when_usable(lambda: self._attempt(way))
            return
        assert way.sent is not None, "there is something to send"
        # Each attempt gets a command of its own: another component may still hold the last one.
        sent = way.sent
        command = Enqueue(
            self._numbers.next(), sent.messages, origin=sent.origin, screened=sent.screened, history=sent.history
        )
        partition.submit(command, lambda reply: self._answered(way, reply))

    def _answered(self, way: _Way, reply: Any) -> None:
        if self._is_over(way):
            return
        if isinstance(reply, Moved):
            self._follow_slots(way)
            return
        if isinstance(reply, ScreenFirst):
            self._screen(way, list(reply.sources))
            return
        if not isinstance(reply, Accepted):
            # The destination is full, was lost before storing, or the outcome is in doubt. Resend: the destination's
            # mark decides.
            way.maybe_stored = way.maybe_stored or (isinstance(reply, Failed) and reply.executed is not False)
            way.stalled = True
            self._call_later(way.retry_ms, lambda: self._attempt(way))
            way.retry_ms = min(2 * way.retry_ms, RETRY_MS_MAX)
            return
        way.retry_ms = RETRY_MS_MIN
        if self._tracer is not None and way.sent is not None:
            self._trace(self._tracer, way, way.sent)
        self._settle(way, None)
        self._go_on(way)

    def _follow_slots(self, way: _Way) -> None:
        """Send a batch elsewhere after a pause: slots belong to other partitions now (ADR 0026).

        The source grants the messages again, and by then this broker should know where they go. While it does not, each
        pause is twice as long as the last one.
        """
        way.stalled = True
        before = self._find(way.target)
        slots = None if before is None else before.slots
        if slots is not self._slots_outdated:
            self._slots_outdated, self._moved_ms = slots, RETRY_MS_MIN

        def again() -> None:
            if self._is_over(way):
                return
            self._moved_ms = min(2 * self._moved_ms, RETRY_MS_MAX)
            destination = self._find(way.target)
            if destination is not None and destination.slots is slots:
                with suppress(StoreUnavailable):
                    destination.catch_up()
            if not self._is_over(way):
                self._go_elsewhere(way)

        self._call_later(self._moved_ms, again)

    def _go_elsewhere(self, way: _Way) -> None:
        """Return a batch that can't stay on its way: to the source if the pump is stopping, else by a restart."""
        if self._stopped is None:
            self._begin_again()
        else:
            self._give_back(self._take_off(way))
            self._see_stopped()

    def _screen(self, way: _Way, sources: list[int]) -> None:
        """Ask former owners of slots which messages of a batch they have stored; then send it again."""
        sent, partitions = way.sent, way.partitions
        assert sent is not None, "it was answered"

        def asked(failed: Any) -> None:
            if self._is_over(way):
                return
            if failed is None:
                self._attempt(way)
            else:
                sent.screened = None
                self._answered(way, Failed(0, False, False, "a former owner of slots does not answer"))

        def partition_of(partition_id: int) -> PartitionHandle | None:
            return partitions[partition_id] if partition_id < len(partitions) else None

        screen(self._numbers, partition_of, partitions[way.index], [sent], sources, asked)

    def _trace(self, tracer: Tracer, way: _Way, sent: Enqueue) -> None:
        details = (("partibus.forwarded.to", way.target),)
        for parent in tracer.parents(message.data for message in sent.messages):
            tracer.record(Step.FORWARD, parent, self._source.name, way.since_ns, details)

    def _settle(self, way: _Way, why_not: Undeliverable | None) -> None:
        """Settle a batch that the destination has stored or can't accept."""
        tokens = self._take_off(way)
        if why_not is None:
            self._submit(Forwarded(0, self._source.kind, tokens))
        elif self._stopped is not None:
            self._give_back(tokens)
        else:
            self._undeliverable(tokens, why_not)

    def _take_off(self, way: _Way) -> list[LockToken]:
        """Take a batch off its way; return its tokens."""
        tokens, way.tokens, way.sent, way.maybe_stored = way.tokens, [], None, False
        self._held -= len(tokens)
        self._bytes -= sum([self._held_bytes.pop(pos) for _, pos in tokens])
        return tokens

    def _go_on(self, way: _Way) -> None:
        if self._stopped is not None:
            self._see_stopped()
            return
        if self.target is None and way.sent is None and not way.waiting:
            ways = self._ways[fold_name(way.target)]  # there may be any number of destinations
            del ways[way.index]
            if not ways:
                del self._ways[fold_name(way.target)]
        self._send(way)
        self._ask()

    def _see_stopped(self) -> None:
        if self._stopped is not None and self._alive and all(way.sent is None for way in self._all_ways()):
            self._submit(CancelReceive(0, self._source.kind, self._receiver))  # again: now it holds nothing
            self.abandon()
            self._stopped()
