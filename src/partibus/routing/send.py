"""Sending messages to the partitions that store them (D8).

A *batch* is the content of one delivery: one message, or several that are stored all or none. All waiting batches of a
link form one *run*. A run without keys is one command to one partition, and a run with keys one command to each
partition that it touches. A batch is rejected if any part of it was. Parts that other partitions stored stay (the
service promises the same: a batch is atomic per partition).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from partibus.errors import PartibusError
from partibus.message import Message, with_destination
from partibus.partition.protocol.commands import CancelScheduled, Enqueue
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.replies import Accepted, Failed, Moved, ScreenFirst
from partibus.routing.entity import EntityRoute
from partibus.routing.partitions import PartitionHandle, error_of
from partibus.routing.placing import KeyedParts

Batch = Sequence[Message]
COUNTER_BITS = 48
"""The bits of a sequence number below the partition id (D9)."""
OnSent = Callable[[list[PartibusError | None] | None], None]
"""A function that gets None if every batch is stored, else an error or None for each batch."""


def send(route: EntityRoute, batches: Sequence[Batch], on_sent: OnSent, *, more: bool = False) -> None:
    """Store a run of batches; call ``on_sent`` once all of it is durable or refused.

    ``more`` means that the sender has other runs in flight.
    """
    partitioned = route.partitioned
    if partitioned:
        if len(batches) == 1 and len(batches[0]) == 1 and (key := batches[0][0].key) is not None:
            _KeyedMessage(route, batches, on_sent, more).send(key)
            return
        if any(message.key is not None for batch in batches for message in batch):
            _KeyedRun(route, batches, on_sent, more=more).start()
            return
    messages = [*batches[0]] if len(batches) == 1 else [message for batch in batches for message in batch]
    first = route.next_partition() if partitioned else route.partitions[0]
    _UnkeyedRun(route, messages, len(batches), on_sent, more=more).send_to(first)


def send_in_runs(route: EntityRoute, batches: Sequence[Batch], most: int, on_sent: OnSent) -> None:
    """Send as `send` does, in several runs of at most ``most`` messages, or of one larger batch."""
    runs: list[list[Batch]] = [[]]
    count = 0
    for batch in batches:
        if runs[-1] and count + len(batch) > most:
            runs.append([])
            count = 0
        runs[-1].append(batch)
        count += len(batch)
    found: dict[int, list[PartibusError | None] | None] = {}

    def sent(index: int, errors: list[PartibusError | None] | None) -> None:
        found[index] = errors
        if len(found) < len(runs):
            return
        if not any(found.values()):
            on_sent(None)
        else:
            on_sent([error for at, run in enumerate(runs) for error in (found[at] or [None] * len(run))])

    for index, run in enumerate(runs):
        send(route, run, partial(sent, index))


class _UnkeyedRun:
    """Messages without a key in flight: they go to one partition together, or to another one if it surely failed (K12).

    This is an object, because functions that call one another would form a reference cycle. A cycle keeps the messages
    in memory until garbage collection, and would make up most of the collector's work.
    """

    __slots__ = ("_batches", "_messages", "_more", "_on_sent", "_route", "_target", "_tried")

    def __init__(
        self, route: EntityRoute, messages: list[Message], batches: int, on_sent: OnSent, *, more: bool
    ) -> None:
        """Prepare a run; ``on_sent`` gets None, or an error for each of ``batches``."""
        self._route = route
        self._messages = messages
        self._batches = batches
        self._on_sent = on_sent
        self._more = more
        self._tried: tuple[PartitionHandle, ...] = ()

    def send_to(self, target: PartitionHandle) -> None:
        self._target = target
        target.submit(Enqueue(self._route.numbers.next(), self._messages), self._answered, more=self._more)

    def _answered(self, reply: Any) -> None:
        if type(reply) is Accepted:
            self._on_sent(None)
            return
        self._tried += (self._target,)
        if isinstance(reply, Failed) and reply.executed is False:
            for other in self._route.partitions:
                if other not in self._tried and other.available:
                    self.send_to(other)
                    return
        self._on_sent([error_of(reply, self._route.name)] * self._batches)


class _NumberedUnkeyedRun(_UnkeyedRun):
    """Messages without a key whose sender wants their numbers."""

    __slots__ = ("_on_numbered",)

    def __init__(
        self,
        route: EntityRoute,
        messages: list[Message],
        on_numbered: Callable[[PartitionHandle, int], None],
        on_failed: OnSent,
    ) -> None:
        """Prepare a run; ``on_numbered`` gets the partition that stored it and the first counter that it assigned."""
        super().__init__(route, messages, 1, on_failed, more=False)
        self._on_numbered = on_numbered

    def _answered(self, reply: Any) -> None:
        if type(reply) is Accepted:
            self._on_numbered(self._target, reply.first_sequence)
        else:
            super()._answered(reply)


def send_through(route: EntityRoute, destination: str, batches: Sequence[Batch], on_sent: OnSent) -> None:
    """Send messages that go on to another entity (section 3.7); any partition with slots takes them (see `send`)."""
    messages = [Message(with_destination(message.data, destination)) for batch in batches for message in batch]
    partition = route.next_owner() if route.partitioned else route.partitions[0]

    def answered(reply: Any) -> None:
        on_sent(None if isinstance(reply, Accepted) else [error_of(reply, route.name)] * len(batches))

    if messages:
        partition.submit(Enqueue(route.numbers.next(), messages, via=True), answered)
    else:
        on_sent(None)


class _KeyedMessage:
    """A run of one message with a key: most runs of senders that wait for each answer."""

    __slots__ = ("_batches", "_more", "_on_sent", "_route")

    def __init__(self, route: EntityRoute, batches: Sequence[Batch], on_sent: OnSent, more: bool) -> None:
        self._route = route
        self._batches = batches
        self._on_sent = on_sent
        self._more = more

    def send(self, key: str) -> None:
        route = self._route
        place = route.slots.partition_of(key)
        partition = route.partition(place)
        if partition is None:
            _KeyedRun(route, self._batches, self._on_sent, more=self._more).start()
            return
        if route.load.is_due():
            route.load.note_run(key, 1)
        if route.on_sent is not None:
            route.on_sent({place: 1})
        partition.submit(Enqueue(route.numbers.next(), [*self._batches[0]]), self._answered, more=self._more)

    def _answered(self, reply: Any) -> None:
        kind = type(reply)
        if kind is Accepted:
            self._on_sent(None)
        elif kind is Moved or kind is ScreenFirst:
            # The partition stored nothing, since the key's slot has moved. The general way follows it, and asks the
            # same partition again.
            _KeyedRun(self._route, self._batches, self._on_sent, more=self._more).start(measured=True)
        else:
            self._on_sent([error_of(reply, self._route.name)])


class _KeyedRun:
    """A run in which at least one message has a key."""

    def __init__(self, route: EntityRoute, batches: Sequence[Batch], on_sent: OnSent, *, more: bool) -> None:
        self._more = more
        self._route = route
        self._batches = batches
        self._on_sent = on_sent
        self._errors: list[PartibusError | None] = [None] * len(batches)
        self._failed = False
        self._keyed: list[Message] = []
        self._members: list[int] = []
        """The batch of each message in `_keyed`."""
        self._parts: KeyedParts
        self._open_unkeyed = False

    def start(self, *, measured: bool = False) -> None:
        """Send the messages. ``measured``: they are counted as load already."""
        unkeyed: list[Message] = []
        unkeyed_members: list[int] = []
        for index, batch in enumerate(self._batches):
            for message in batch:
                if message.key is None:
                    unkeyed.append(message)
                    unkeyed_members.append(index)
                else:
                    self._keyed.append(message)
                    self._members.append(index)
        self._parts = KeyedParts(self._route, self._keyed, self._command, self._answered, more=self._more)
        self._open_unkeyed = bool(unkeyed)
        self._parts.send_by_key(range(len(self._keyed)), measured=measured)
        if unkeyed:

            def sent(errors: list[PartibusError | None] | None) -> None:
                self._open_unkeyed = False
                self._done(unkeyed_members, None if errors is None else errors[0])

            _UnkeyedRun(self._route, unkeyed, 1, sent, more=self._more).send_to(self._route.next_partition())

    def _command(self, request: int, indexes: list[int]) -> Enqueue:
        return Enqueue(request, [self._keyed[index] for index in indexes])

    def _answered(self, partition: PartitionHandle, indexes: list[int], reply: Any) -> None:
        error = None if isinstance(reply, Accepted) else error_of(reply, self._route.name)
        self._done([self._members[index] for index in indexes], error)

    def _done(self, members: list[int], error: PartibusError | None) -> None:
        if error is not None:
            self._failed = True
            for index in members:
                self._errors[index] = error
        if not self._parts.open and not self._open_unkeyed:
            del self._parts  # a reference cycle
            self._on_sent(self._errors if self._failed else None)


OnNumbered = Callable[[list[int] | PartibusError], None]
"""A function that gets the sequence numbers of the messages in order, or the error."""


def send_numbered(route: EntityRoute, messages: Sequence[Message], on_sent: OnNumbered) -> None:
    """Store messages and return their sequence numbers (D9).

    If some could not be stored, those that were stored and scheduled are cancelled where possible. A sender that
    repeats the request then has each message once.
    """
    _NumberedRun(route, messages, on_sent).start()


class _NumberedRun:
    """Messages in flight to the partitions of their keys; those without a key go together (K11, K12)."""

    def __init__(self, route: EntityRoute, messages: Sequence[Message], on_sent: OnNumbered) -> None:
        self._route = route
        self._messages = messages
        self._on_sent = on_sent
        self._numbers = [0] * len(messages)
        self._stored: list[tuple[PartitionHandle, list[int]]] = []
        self._error: PartibusError | None = None
        self._parts: KeyedParts
        self._open_unkeyed = False

    def start(self) -> None:
        route = self._route
        self._parts = KeyedParts(route, self._messages, self._command, self._answered)
        everything = list(range(len(self._messages)))
        if not route.partitioned:
            self._parts.send(0, everything)
            return
        unkeyed = [index for index in everything if self._messages[index].key is None]
        self._open_unkeyed = bool(unkeyed)
        self._parts.send_by_key([index for index in everything if self._messages[index].key is not None])
        if unkeyed:

            def numbered(partition: PartitionHandle, first: int) -> None:
                self._open_unkeyed = False
                self._stored_at(partition, unkeyed, first)

            def failed(errors: list[PartibusError | None] | None) -> None:
                self._open_unkeyed = False
                self._failed(None if errors is None else errors[0])

            messages = [self._messages[index] for index in unkeyed]
            _NumberedUnkeyedRun(route, messages, numbered, failed).send_to(route.next_partition())

    def _command(self, request: int, indexes: list[int]) -> Enqueue:
        return Enqueue(request, [self._messages[index] for index in indexes])

    def _answered(self, partition: PartitionHandle, indexes: list[int], reply: Any) -> None:
        if isinstance(reply, Accepted):
            self._stored_at(partition, indexes, reply.first_sequence)
        else:
            self._failed(error_of(reply, self._route.name))

    def _stored_at(self, partition: PartitionHandle, members: list[int], first: int) -> None:
        counters = list(range(first, first + len(members)))
        self._stored.append((partition, counters))
        for index, counter in zip(members, counters, strict=True):
            self._numbers[index] = partition.partition_id << COUNTER_BITS | counter
        self._finish_if_done()

    def _failed(self, error: PartibusError | None) -> None:
        self._error = error
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        if not self._parts.open and not self._open_unkeyed:
            del self._parts  # a reference cycle
            self._finish()

    def _finish(self) -> None:
        if self._error is None:
            self._on_sent(self._numbers)
            return
        for partition, counters in self._stored:
            partition.submit(CancelScheduled(self._route.numbers.next(), SubqueueKind.ACTIVE, counters))
        self._on_sent(self._error)
