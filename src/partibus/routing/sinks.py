"""Storing the rows of a sink in their partitions, each once (row D5, ADR 0014).

A partition knows the rows that it has stored, so a repeated row must reach the same partition: by its key, or by its
name if it has no key. While a store is unavailable its rows do not go elsewhere; the sender retries.

```text
 key                       the partition of the key (D7)
 none, a 16-byte id        its first two bytes: the creator of the ids decides which rows go together
 none, a position          blocks of 256 positions in turn
```
"""

from collections.abc import Callable, Sequence
from typing import Any

from partibus.errors import PartibusError
from partibus.message import Message
from partibus.partition.protocol.commands import CommitSink, Enqueue
from partibus.partition.protocol.replies import Accepted, Done
from partibus.routing.entity import EntityRoute
from partibus.routing.partitions import PartitionHandle, error_of
from partibus.routing.placing import KeyedParts

BLOCK_BITS = 8
ID_BYTES = 16

OnPut = Callable[[int | PartibusError], None]
"""A function that gets the number of rows stored before when all are durable, or the error. After a retry each row is
stored once.
"""


def place_of_id(row_id: bytes, partitions: int) -> int:
    """Return the partition of a row without a key, named by an id."""
    return (row_id[0] << 8 | row_id[1]) * partitions >> 16


def place_of_position(source: int, position: int, partitions: int) -> int:
    """Return the partition of a row without a key, named by its position in a source."""
    return ((position >> BLOCK_BITS) - source) % partitions


def put_by_id(route: EntityRoute, messages: Sequence[Message], sink: int, ids: Sequence[bytes], on_put: OnPut) -> None:
    """Store the rows that the sink has not stored."""
    count = len(route.partitions)
    places = [
        route.partition_of(key) if (key := message.key) is not None else place_of_id(row_id, count)
        for message, row_id in zip(messages, ids, strict=True)
    ]
    parts = _Parts(route, messages, places, on_put)
    parts.send(lambda request, part, indexes: Enqueue(request, part, sink=(sink, [ids[i] for i in indexes])))


def put_by_position(
    route: EntityRoute, messages: Sequence[Message], source: int, positions: Sequence[int], on_put: OnPut
) -> None:
    """Store the rows above the source's highest stored position; ``positions`` ascend."""
    count = len(route.partitions)
    places = [
        route.partition_of(key) if (key := message.key) is not None else place_of_position(source, pos, count)
        for message, pos in zip(messages, positions, strict=True)
    ]
    parts = _Parts(route, messages, places, on_put)
    parts.send(lambda request, part, indexes: Enqueue(request, part, origin=(source, [positions[i] for i in indexes])))


def commit_sink(route: EntityRoute, sink: int, batch: int, on_done: Callable[[PartibusError | None], None]) -> None:
    """Tell every partition that a batch is committed. A failed partition does not undo the others."""
    left = len(route.partitions)
    failed: PartibusError | None = None

    def answered(reply: Any) -> None:
        nonlocal left, failed
        if not isinstance(reply, Done):
            failed = error_of(reply, route.name)
        left -= 1
        if not left:
            on_done(failed)

    for partition in route.partitions:
        partition.submit(CommitSink(route.numbers.next(), sink, batch), answered)


class _Parts:
    """The rows of one request by partition."""

    def __init__(self, route: EntityRoute, messages: Sequence[Message], places: Sequence[int], on_put: OnPut) -> None:
        self._route = route
        self._messages = messages
        self._on_put = on_put
        self._duplicates = 0
        self._error: PartibusError | None = None
        self._indexes: dict[int, list[int]] = {}
        for index, place in enumerate(places):
            if place in self._indexes:
                self._indexes[place].append(index)
            else:
                self._indexes[place] = [index]
        self._answered_rows = 0

    def send(self, command_of: Callable[[int, list[Message], list[int]], Enqueue]) -> None:
        """Send each partition's command.

        ``command_of`` gets the number of the request, and the messages of one partition with their indexes.
        """

        def make(request: int, indexes: list[int]) -> Enqueue:
            return command_of(request, [self._messages[index] for index in indexes], indexes)

        parts = KeyedParts(self._route, self._messages, make, self._answered)
        for place, indexes in self._indexes.items():
            parts.send(place, indexes)

    def _answered(self, _: PartitionHandle, indexes: list[int], reply: Any) -> None:
        self._answered_rows += len(indexes)
        if isinstance(reply, Accepted):
            self._duplicates += reply.duplicates
        else:
            error = error_of(reply, self._route.name)
            if self._error is None or not error.retriable:
                self._error = error
        if self._answered_rows == len(self._messages):
            self._on_put(self._duplicates if self._error is None else self._error)
