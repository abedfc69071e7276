"""Sends and deletes of all requests that arrive in one round of the loop: one command to each partition.

A command costs the loop and the partition nearly the same for one message as for ten, and most requests of SQS bring
one. So requests that arrive together are stored together, as the messages of an AMQP link are, and each gets its own
answer. A run without company goes on in the next round, before the loop waits for input.
"""

from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Final

from msgspec import Struct

from partibus.errors import PartibusError
from partibus.message import Message
from partibus.namespace.entity import Entity
from partibus.partition.protocol.commands import Enqueue, LockToken, Outcome, Settle
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.replies import Accepted, Failed
from partibus.routing.entity import EntityRoute
from partibus.routing.partitions import PartitionHandle, error_of
from partibus.routing.placing import KeyedParts
from partibus.routing.send import send

MESSAGES_MAX: Final = 64
"""A run of so many messages goes on at once: a longer one would hold the loop for more than a ms."""
BYTES_MAX: Final = 256 * 1024
"""The same for the bytes of its messages."""
TOKENS_MAX: Final = 256
"""The same for deletes."""
_ACTIVE: Final = int(SubqueueKind.ACTIVE)


class Stored(Struct, gc=False):
    """The partition and sequence number of a message of a FIFO queue."""

    partition_id: int
    counter: int
    """Its sequence counter."""
    tag: bytes
    """The tag of the message that it is a duplicate of; empty for a new one."""


OnSent = Callable[[Sequence[PartibusError | None] | None], None]
"""A function that gets the errors of a request's messages; None if all are stored."""
OnStored = Callable[[Sequence[Stored | PartibusError]], None]
"""A function that gets the places, or the errors, of a request's messages."""
OnSettled = Callable[[Failed | None, Sequence[int], Sequence[int]], None]
"""A function that gets the failure of a request's deletes, or the indexes of lost locks, and of those of them whose
message does not exist.
"""


class Runs:
    """The runs that gather."""

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        """Begin without runs. ``soon`` makes a call in the next round of the loop."""
        self._soon = soon
        self._runs: dict[Hashable, _Sends | _GroupSends | _Deletes] = {}

    def send(self, entity: Entity, messages: list[Message], on_sent: OnSent) -> None:
        """Store messages of one request; each stands or falls alone."""
        run = self._runs.get(entity)
        if run is None:
            run = _Sends(entity)
            self._begin(entity, run)
        assert isinstance(run, _Sends), "an entity has one kind"
        if run.add(messages, on_sent):
            self._go(entity)

    def send_by_group(
        self, entity: Entity, messages: list[Message], on_stored: OnStored, *, measured: bool, unique: bool
    ) -> None:
        """Store messages of one request in the partitions of their groups, those of one partition all or none.

        ``measured``: they are counted as load already. ``unique``: a message is a duplicate of one in any partition.
        """
        key = (entity, measured, unique)
        run = self._runs.get(key)
        if run is None:
            run = _GroupSends(entity.route, measured, unique)
            self._begin(key, run)
        assert isinstance(run, _GroupSends), "the keys of kinds differ"
        if run.add(messages, on_stored):
            self._go(key)

    def delete(
        self,
        route: EntityRoute,
        partition: PartitionHandle,
        tokens: list[LockToken],
        on_settled: OnSettled,
        *,
        late: bool,
    ) -> None:
        """Complete messages of one request. ``late``: also those whose locks have ended."""
        run = self._runs.get(partition)
        if run is None:
            run = _Deletes(route, partition, late)
            self._begin(partition, run)
        assert isinstance(run, _Deletes), "the keys of kinds differ"
        if run.add(tokens, on_settled):
            self._go(partition)

    def _begin(self, key: Hashable, run: "_Sends | _GroupSends | _Deletes") -> None:
        self._runs[key] = run
        self._soon(partial(self._go, key, run))

    def _go(self, key: Hashable, only: object = None) -> None:
        """Have a run go on, unless it has already."""
        run = self._runs.get(key)
        if run is not None and (only is None or run is only):
            del self._runs[key]
            run.go()


class _Sends:
    """Messages of one standard queue."""

    __slots__ = ("_entity", "_messages", "_requests", "_size_bytes")

    def __init__(self, entity: Entity) -> None:
        self._entity = entity
        self._messages: list[Message] = []
        self._requests: list[tuple[int, OnSent]] = []
        """The number of messages of each request."""
        self._size_bytes = 0

    def add(self, messages: list[Message], on_sent: OnSent) -> bool:
        """Add the messages of a request; return whether the run is long enough."""
        self._requests.append((len(messages), on_sent))
        self._messages += messages
        self._size_bytes += sum([len(message.data) for message in messages])
        return len(self._messages) >= MESSAGES_MAX or self._size_bytes >= BYTES_MAX

    def go(self) -> None:
        entity = self._entity
        if entity.tracer is None and not entity.route.partitioned:
            send(entity.route, [self._messages], self._sent_together)
            return
        on_sent: Callable[[list[PartibusError | None] | None], None] = self._sent
        if entity.tracer is not None:
            data = [[message.data] for message in self._messages]
            on_sent = entity.tracer.sending(entity.queue.name, data, on_sent)
        send(entity.route, [[message] for message in self._messages], on_sent)

    def _sent_together(self, errors: Sequence[PartibusError | None] | None) -> None:
        self._sent(None if errors is None else [*errors] * len(self._messages))

    def _sent(self, errors: Sequence[PartibusError | None] | None) -> None:
        start = 0
        for count, on_sent in self._requests:
            on_sent(None if errors is None else errors[start : start + count])
            start += count


class _GroupSends:
    """Messages of one FIFO queue."""

    __slots__ = (
        "_left",
        "_measured",
        "_messages",
        "_outcomes",
        "_parts",
        "_requests",
        "_route",
        "_size_bytes",
        "_unique",
    )

    def __init__(self, route: EntityRoute, measured: bool, unique: bool) -> None:
        self._route = route
        self._measured = measured
        self._unique = unique
        self._messages: list[Message] = []
        self._requests: list[tuple[int, int, OnStored]] = []
        """The first message of each request and the one behind its last."""
        self._size_bytes = 0
        self._outcomes: dict[int, Stored | PartibusError] = {}
        self._parts: KeyedParts

    def add(self, messages: list[Message], on_stored: OnStored) -> bool:
        """Add the messages of a request; return whether the run is long enough."""
        start = len(self._messages)
        self._messages += messages
        self._size_bytes += sum([len(message.data) for message in messages])
        self._requests.append((start, len(self._messages), on_stored))
        return len(self._messages) >= MESSAGES_MAX or self._size_bytes >= BYTES_MAX

    def go(self) -> None:
        self._parts = KeyedParts(self._route, self._messages, self._command, self._stored, unique=self._unique)
        requests = [range(start, end) for start, end, _ in self._requests]
        self._parts.send_by_key(range(len(self._messages)), measured=self._measured, requests=requests)

    def _command(self, request: int, numbers: list[int]) -> Enqueue:
        return Enqueue(request, [self._messages[number] for number in numbers])

    def _stored(self, partition: PartitionHandle, numbers: list[int], reply: Any) -> None:
        outcomes = self._outcomes
        if isinstance(reply, Accepted):
            former = self._parts.known
            here = partition.partition_id
            if not reply.known and not former:
                first = reply.first_sequence
                outcomes.update(
                    zip(
                        numbers,
                        [Stored(here, counter, b"") for counter in range(first, first + len(numbers))],
                        strict=True,
                    )
                )
                self._answer()
                return
            for place, number in enumerate(numbers):
                known = reply.known.get(place)
                if known is not None:
                    outcomes[number] = Stored(here, *known)
                elif number in former:  # the group's owner before a move
                    outcomes[number] = Stored(*former[number])
                else:
                    outcomes[number] = Stored(here, reply.first_sequence + place, b"")
        else:
            error = error_of(reply, self._route.name)
            for number in numbers:
                outcomes[number] = error
        self._answer()

    def _answer(self) -> None:
        """Answer the requests whose messages all have their outcomes."""
        outcomes, left = self._outcomes, []
        done = []
        is_whole = len(outcomes) == len(self._messages)
        for request in self._requests:
            start, end, on_stored = request
            if is_whole or all(number in outcomes for number in range(start, end)):
                done.append((on_stored, [outcomes[number] for number in range(start, end)]))
            else:
                left.append(request)
        self._requests = left
        if not left:
            del self._parts  # a reference cycle
        for on_stored, found in done:
            on_stored(found)


class _Deletes:
    """Messages of one partition that are completed."""

    __slots__ = ("_late", "_partition", "_requests", "_route", "_tokens")

    def __init__(self, route: EntityRoute, partition: PartitionHandle, late: bool) -> None:
        self._route = route
        self._partition = partition
        self._late = late
        self._tokens: list[LockToken] = []
        self._requests: list[tuple[int, OnSettled]] = []
        """The first token of each request."""

    def add(self, tokens: list[LockToken], on_settled: OnSettled) -> bool:
        """Add the tokens of a request; return whether the run is long enough."""
        self._requests.append((len(self._tokens), on_settled))
        self._tokens += tokens
        return len(self._tokens) >= TOKENS_MAX

    def go(self) -> None:
        command = Settle(
            self._route.numbers.next(), _ACTIVE, Outcome.COMPLETE, self._tokens, late=self._late, explain=not self._late
        )
        self._partition.submit(command, self._settled)

    def _settled(self, reply: Any) -> None:
        failed = reply if isinstance(reply, Failed) else None
        lost: Sequence[int] = () if failed is not None else reply.lost
        gone: Sequence[int] = () if failed is not None else reply.gone
        if not lost:
            for _, on_settled in self._requests:
                on_settled(failed, (), ())
            return
        starts = [start for start, _ in self._requests]
        lost_of, gone_of = self._shared(starts, lost), self._shared(starts, gone)
        for (_, on_settled), lost_here, gone_here in zip(self._requests, lost_of, gone_of, strict=True):
            on_settled(None, lost_here, gone_here)

    @staticmethod
    def _shared(starts: list[int], places: Sequence[int]) -> list[list[int]]:
        """Return the indexes in each request that places in the command stand for."""
        shares: list[list[int]] = [[] for _ in starts]
        for place in places:
            request = bisect_right(starts, place) - 1
            shares[request].append(place - starts[request])
        return shares
