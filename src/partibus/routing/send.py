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
    if route.partitioned:
        if len(batches) == 1 and len(batches[0]) == 1 and (key := batches[0][0].key) is not None:
            _KeyedMessage(route, batches, on_sent, more).send(key)
            return
        if any(message.key is not None for batch in batches for message in batch):
            _KeyedRun(route, batches, on_sent, more=more).start()
            return
    messages = [message for batch in batches for message in batch]
    first = route.next_partition() if route.partitioned else route.partitions[0]

    def done(_: PartitionHandle, result: int | PartibusError) -> None:
        on_sent([result] * len(batches) if isinstance(result, PartibusError) else None)

    _send_unkeyed(route, messages, first, done, more=more)


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


def _send_unkeyed(
    route: EntityRoute,
    messages: list[Message],
    partition: PartitionHandle,
    on_done: Callable[[PartitionHandle, int | PartibusError], None],
    *,
    more: bool,
) -> None:
    """Store messages without a key together in ``partition``, or in another one if it surely failed (K12).

    ``on_done`` gets the partition and the first counter that it assigned, or the error.
    """
    _UnkeyedRun(route, messages, on_done, more=more).send_to(partition)


class _UnkeyedRun:
    """Messages without a key in flight.

    This is an object, because functions that call one another would form a reference cycle. A cycle keeps the messages
    in memory until garbage collection, and would make up most of the collector's work.
    """

    __slots__ = ("_messages", "_more", "_on_done", "_route", "_target", "_tried")

    def __init__(
        self,
        route: EntityRoute,
        messages: list[Message],
        on_done: Callable[[PartitionHandle, int | PartibusError], None],
        *,
        more: bool,
    ) -> None:
        self._route = route
        self._messages = messages
        self._on_done = on_done
        self._more = more
        self._tried: tuple[PartitionHandle, ...] = ()

    def send_to(self, target: PartitionHandle) -> None:
        self._target = target
        target.submit(Enqueue(self._route.numbers.next(), self._messages), self._answered, more=self._more)

    def _answered(self, reply: Any) -> None:
        if isinstance(reply, Accepted):
            self._on_done(self._target, reply.first_sequence)
            return
        self._tried += (self._target,)
        if isinstance(reply, Failed) and reply.executed is False:
            for other in self._route.partitions:
                if other not in self._tried and other.available:
                    self.send_to(other)
                    return
        self._on_done(self._target, error_of(reply, self._route.name))


def send_through(route: EntityRoute, destination: str, batches: Sequence[Batch], on_sent: OnSent) -> None:
    """Send messages that go on to another entity (section 3.7); any partition takes them (see `send`)."""
    messages = [Message(with_destination(message.data, destination)) for batch in batches for message in batch]
    partition = route.next_partition() if route.partitioned else route.partitions[0]

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
            # Nothing was stored. The key's slot has moved: the general way follows it, and asks the same partition
            # again.
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
            first = self._route.next_partition()

            def done(_: PartitionHandle, result: int | PartibusError) -> None:
                self._open_unkeyed = False
                self._done(unkeyed_members, result if isinstance(result, PartibusError) else None)

            _send_unkeyed(self._route, unkeyed, first, done, more=self._more)

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

            def done(partition: PartitionHandle, result: int | PartibusError) -> None:
                self._open_unkeyed = False
                self._done(partition, unkeyed, result)

            messages = [self._messages[index] for index in unkeyed]
            _send_unkeyed(route, messages, route.next_partition(), done, more=False)

    def _command(self, request: int, indexes: list[int]) -> Enqueue:
        return Enqueue(request, [self._messages[index] for index in indexes])

    def _answered(self, partition: PartitionHandle, indexes: list[int], reply: Any) -> None:
        accepted = isinstance(reply, Accepted)
        self._done(partition, indexes, reply.first_sequence if accepted else error_of(reply, self._route.name))

    def _done(self, partition: PartitionHandle, members: list[int], result: int | PartibusError) -> None:
        if isinstance(result, PartibusError):
            self._error = result
        else:
            counters = list(range(result, result + len(members)))
            self._stored.append((partition, counters))
            for index, counter in zip(members, counters, strict=True):
                self._numbers[index] = partition.partition_id << COUNTER_BITS | counter
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
