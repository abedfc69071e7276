"""Reading whole partitions: ranges of positions in large frames, cursors that keep what a reader has yet to read, and
the exclusive reader of an entity. For readers like Spark, that want everything and in parallel (D14, rows D1 to D3).

A frame comes as the store packed it: columns of numbers, and the messages in their stored form (`partibus.message`)
behind them. Nothing is decoded here, and nothing is copied.
"""

from __future__ import annotations  # memoryview[int] is for type checkers only

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

from partibus.amqp.codec.types import Array, Int
from partibus.client.client import Client, connect
from partibus.client.errors import ClientError
from partibus.client.values import binary, integer, integers, maps, text

FRAME_BYTES = 4 << 20
"""Of messages in one frame, when a reader does not say."""
WAIT_MAX_S = 25.0
"""The broker answers a wait after so long at the latest."""
BOUND_BYTES = 1 << 30
"""What finished messages that nobody has read may take up in each partition."""
COMPLETED_MAX = 4_096
"""Positions of each partition in one request to complete them."""
_LONGS = 0x81
_ANSWER_S = 30.0
"""On top of what the broker was told to wait."""

Start = str | Mapping[int, int] | datetime
"""``earliest``, ``latest``, a position by partition id, or a time: the first message that came then or later."""


class PartitionRange(NamedTuple):
    """What one partition of the entity holds now."""

    partition_id: int
    first_pos: int
    """No message is below it."""
    end_pos: int
    """Exclusive: the position that the next message will get, at the least; 1 where nothing ever came."""
    messages: int
    """Messages in the sub-queue; fewer than positions where some are gone."""
    retained: int = 0
    """Messages that have left it and are kept for cursors."""
    retained_bytes: int = 0
    passed_over: tuple[tuple[int, int], ...] = ()
    """Positions that no message will get, as (first, end) pairs that ascend: the store was put back from a copy."""


class PartitionMap(NamedTuple):
    """The partitions of an entity at one moment."""

    entity: str
    """Its path, as the broker spells it."""
    entity_id: str
    """Another one when the entity was deleted and made again, and in every other namespace."""
    version: int
    """Rises when partitions come or go."""
    partitions: tuple[PartitionRange, ...]
    """In the order of their ids."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A part of a range. The columns have `count` elements each; `data` holds the stored forms one after the other,
    ``sizes[i]`` bytes each. All of it is one buffer, which lives as long as one of them."""

    count: int
    positions: memoryview[int]
    sequences: memoryview[int]
    """The counter part of sequence numbers; the partition id goes on top of 48 bits."""
    enqueued_ms: memoryview[int]
    due_ms: memoryview[int]
    """When the message expires or comes back; -1: never."""
    delivery_counts: memoryview[int]
    sizes: memoryview[int]
    states: memoryview[int]
    """0 active, 1 deferred, 3 delayed; 16 and above: finished, and how (`Fate`)."""
    data: memoryview
    next_pos: int
    """Where to go on: behind the last message, or the end of the range."""
    complete_from: int
    """Of the cursor that was named: below it, messages may be missing. 0 without a cursor."""


class FateLine(NamedTuple):
    """One line of the log of fates: a message that has left the sub-queue."""

    number: int
    pos: int
    sequence: int
    fate: int
    """0 completed, 1 received and deleted, 2 dead-lettered, 3 expired, 4 purged, 5 forwarded, 6 consumed by an
    exclusive reader, 7 lost."""
    at_ms: int
    delivery_count: int


class CursorState(NamedTuple):
    """Where a cursor stands in one partition."""

    partition_id: int
    epoch: int
    """Of its exclusive lease; 0: it has none."""
    until_ms: int
    """When that ends, by the broker's clock."""
    position: int
    """The reader has everything below."""
    fate_position: int
    """Of the log of fates, likewise; -1: it does not read it."""
    complete_from: int
    """Above `position`: the bound was reached, and messages in between may be missing."""
    end_pos: int


class CursorPartition(NamedTuple):
    """As `CursorState`, for who looks at it from outside."""

    partition_id: int
    epoch: int
    until_ms: int
    position: int
    fate_position: int
    complete_from: int
    moved_ms: int
    """When it last moved."""
    end_pos: int
    bound_bytes: int
    retained: int
    """Messages that have left this partition's sub-queue and are kept for its cursors."""
    retained_bytes: int
    passed_over: tuple[tuple[int, int], ...] = ()
    """See `PartitionRange.passed_over`."""

    @property
    def lag(self) -> int:
        """Positions that it has yet to pass."""
        between = max(0, self.end_pos - self.position)
        return between - sum(
            max(0, min(end, self.end_pos) - max(first, self.position)) for first, end in self.passed_over
        )


class CursorSummary(NamedTuple):
    """One cursor of an entity."""

    name: str
    partitions: tuple[CursorPartition, ...]
    """Those that know it, in the order of their ids."""
    now_ms: int
    """The broker's time: what leases and `CursorPartition.moved_ms` are compared with."""

    @property
    def lag(self) -> int:
        """Positions that it has yet to pass: no less than the messages that it has yet to read."""
        return sum(one.lag for one in self.partitions)

    @property
    def retained_bytes(self) -> int:
        """What has left the sub-queue and is kept for cursors, this one among them."""
        return sum(one.retained_bytes for one in self.partitions)


class RangeClient:
    """One connection that reads one entity by ranges. Calls block; one thread at a time. Each may raise `ClientError`
    or `OSError`; after one that is `ConnectionError` the client is of no more use but to be closed."""

    def __init__(self, client: Client, entity: str) -> None:
        self._client = client
        self.entity = entity
        """As it was asked for; the part behind a subscription or queue says which sub-queue."""

    def map(self) -> PartitionMap:
        """The partitions as they are."""
        return _map(self._request("partibus:partitions", {}))

    def wait(self, positions: Mapping[int, int], timeout_s: float) -> PartitionMap:
        """As `map`, as soon as a partition's end is above its position here (0 where it has none), or the time is
        over."""
        end_s = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, min(end_s - time.monotonic(), WAIT_MAX_S))
            body = {"positions": _by_partition(positions), "timeout-ms": Int(int(left_s * 1000))}
            found = _map(self._request("partibus:wait", body, left_s + _ANSWER_S))
            is_new = any(one.end_pos > max(1, positions.get(one.partition_id, 0)) for one in found.partitions)
            if is_new or time.monotonic() >= end_s:
                return found

    def read(
        self,
        partition_id: int,
        from_pos: int,
        to_pos: int,
        max_bytes: int = FRAME_BYTES,
        *,
        finished: bool = False,
        cursor: str | None = None,
    ) -> Iterator[Frame]:
        """The messages with ``from_pos <= position < to_pos`` that can be received, are locked, deferred or delayed,
        with ``finished`` also those that have left and are kept for cursors, in order of position. Frames hold
        ``max_bytes`` of messages at most, or one message; the last one may be empty. ``cursor`` has them say from where
        on that cursor's messages are all there."""
        next_pos = from_pos
        while next_pos < to_pos:
            frame = self.read_frame(partition_id, next_pos, to_pos, max_bytes, finished=finished, cursor=cursor)
            if frame.next_pos <= next_pos:
                raise ClientError(f"reading partition {partition_id} of '{self.entity}' stands still at {next_pos}")
            next_pos = frame.next_pos
            yield frame

    def read_frame(
        self,
        partition_id: int,
        from_pos: int,
        to_pos: int,
        max_bytes: int = FRAME_BYTES,
        *,
        finished: bool = False,
        cursor: str | None = None,
    ) -> Frame:
        """The first of the frames that `read` gives."""
        body: dict[str, object] = {
            "partition-id": Int(partition_id),
            "from-position": from_pos,
            "to-position": to_pos,
            "max-bytes": Int(max_bytes),
            "finished": finished,
        }
        if cursor is not None:
            body["cursor"] = cursor
        answer = self._request("partibus:read-range", body)
        return unpack_frame(
            integer(answer, "count"),
            binary(answer, "frame"),
            integer(answer, "next-position"),
            integer(answer, "complete-from"),
        )

    def read_fates(self, partition_id: int, cursor: str, from_number: int, most: int = 10_000) -> list[FateLine]:
        """Lines of the log of fates from a number on; [] at its end. Only a cursor that was opened with ``fates`` has
        one."""
        body = {"partition-id": Int(partition_id), "cursor": cursor, "from-number": from_number, "most": Int(most)}
        answer = self._request("partibus:read-fates", body)
        names = ("numbers", "positions", "sequences", "fates", "times", "delivery-counts")
        columns = [integers(answer, name) for name in names]
        return [FateLine(*line) for line in zip(*columns, strict=True)]

    # -- cursors -----------------------------------------------------------------------------------------------------

    def open_cursor(
        self,
        name: str,
        *,
        start: Start = "earliest",
        fates: bool = False,
        bound_bytes: int = BOUND_BYTES,
        lease_ms: int = 0,
        epochs: Mapping[int, int] | None = None,
        revoke: bool = False,
    ) -> dict[int, CursorState]:
        """Make a cursor in every partition, or find it where it stands; by partition id. From now on what it has not
        passed stays readable, up to ``bound_bytes`` in each partition.

        ``lease_ms`` makes it the exclusive reader for so long; with ``epochs``, those of the last answer, it renews
        that. Raises `CursorHeld` when another one is, `Busy` while messages are under lock (ask again soon: nobody is
        handed more for a while), unless ``revoke`` ends those locks; `CursorLost` when the lease that is renewed has
        ended."""
        if isinstance(start, datetime):
            start = self.find_positions(start)
        body: dict[str, object] = {
            "name": name,
            "start": start if isinstance(start, str) else _by_partition(start),
            "fates": fates,
            "bound-bytes": bound_bytes,
            "lease-ms": Int(lease_ms),
            "revoke": revoke,
        }
        if epochs is not None:
            body["epochs"] = _by_partition(epochs)
        return _states(self._request("partibus:open-cursor", body))

    def advance_cursor(
        self,
        name: str,
        positions: Mapping[int, int],
        *,
        fate_positions: Mapping[int, int] | None = None,
        epochs: Mapping[int, int] | None = None,
    ) -> dict[int, CursorState]:
        """The reader has everything below these positions; what an exclusive one passes is completed. Durable when it
        returns; repeating it, or lower positions, change nothing. Raises `CursorLost`."""
        body: dict[str, object] = {"name": name, "positions": _by_partition(positions)}
        if fate_positions is not None:
            body["fate-positions"] = _by_partition(fate_positions)
        if epochs is not None:
            body["epochs"] = _by_partition(epochs)
        return _states(self._request("partibus:advance-cursor", body))

    def complete(self, name: str, chosen: Mapping[int, Sequence[int]], epochs: Mapping[int, int]) -> None:
        """Complete what is active at these positions, which rise, and nothing else: for an exclusive reader that leaves
        some of what it reads. By partition id, `COMPLETED_MAX` in each at most. Durable when it returns; repeating it
        changes nothing. Raises `CursorLost`."""
        only: dict[object, object] = {
            Int(partition_id): Array(_LONGS, list(positions)) for partition_id, positions in chosen.items() if positions
        }
        body = {"name": name, "only": only, "epochs": _by_partition(epochs)}
        self._request("partibus:advance-cursor", body)

    def close_cursor(self, name: str, *, epochs: Mapping[int, int] | None = None, drop: bool = False) -> None:
        """End the exclusive lease of these epochs; ``drop`` removes the cursor, and what is kept for it alone: without
        epochs whoever holds it. No error when there is none."""
        body: dict[str, object] = {"name": name, "drop": drop}
        if epochs is not None:
            body["epochs"] = _by_partition(epochs)
        self._request("partibus:close-cursor", body)

    def cursors(self) -> list[CursorSummary]:
        """All cursors of the sub-queue, by name."""
        answer = self._request("partibus:cursors", {})
        now_ms = integer(answer, "now-ms")
        return [_summary(entry, now_ms) for entry in maps(answer, "cursors")]

    def find_positions(self, at: datetime, *, finished: bool = True) -> dict[int, int]:
        """By partition id, the position of the first message that came at that time or later; where there is none, the
        partition's end. Looks at some forty messages of each partition."""
        at_ms = int(at.timestamp() * 1000)
        return {one.partition_id: self._find_position(one, at_ms, finished) for one in self.map().partitions}

    def _find_position(self, partition: PartitionRange, at_ms: int, finished: bool) -> int:
        """What comes later gets a higher position, so halve the range until nothing is left of it."""
        low, high = partition.first_pos, partition.end_pos
        while low < high:
            middle = (low + high) // 2
            found = self.read_frame(partition.partition_id, middle, high, 1, finished=finished)
            if found.count and found.enqueued_ms[0] < at_ms:
                low = found.positions[0] + 1
            else:
                high = middle
        return low

    def close(self) -> None:
        """Idempotent."""
        self._client.close()

    def _request(self, operation: str, body: Mapping[str, object], timeout_s: float | None = None) -> dict[str, object]:
        return self._client.management(self.entity).request(operation, body, timeout_s)


def open_ranges(connection: str, entity: str) -> RangeClient:
    """Connect to read one entity. Raises `partibus.errors.ArgumentError`, `ClientError` or `OSError`."""
    return RangeClient(connect(connection), entity)


_Column = Literal["q", "i", "B"]
_COLUMNS: tuple[_Column, ...] = ("q", "q", "q", "q", "i", "i", "B")
"""Formats of a frame's columns, in their order (`partition.protocol.ports.RangeFrame`)."""
_WIDTH: dict[_Column, int] = {"q": 8, "i": 4, "B": 1}
ROW_BYTES = sum(_WIDTH[column] for column in _COLUMNS)
"""Of a frame, for each message, beside its stored form."""


def unpack_frame(count: int, data: bytes, next_pos: int, complete_from: int = 0) -> Frame:
    """The columns of a frame. Raises `ClientError` when it is shorter than it says, and on a machine whose numbers have
    their bytes in the other order."""
    if sys.byteorder != "little":
        raise ClientError("frames can be read on little-endian machines only")
    if len(data) < count * ROW_BYTES:
        raise ClientError(f"the broker sent a frame of {len(data)} bytes for {count} messages")
    whole = memoryview(data)
    columns: list[memoryview[int]] = []
    start = 0
    for column in _COLUMNS:
        end = start + count * _WIDTH[column]
        columns.append(whole[start:end].cast(column))
        start = end
    positions, sequences, enqueued_ms, due_ms, delivery_counts, sizes, states = columns
    return Frame(
        count,
        positions,
        sequences,
        enqueued_ms,
        due_ms,
        delivery_counts,
        sizes,
        states,
        whole[start:],
        next_pos,
        complete_from,
    )


def _by_partition(values: Mapping[int, int]) -> dict[object, int]:
    return {Int(partition_id): value for partition_id, value in values.items()}


def _map(body: Mapping[str, object]) -> PartitionMap:
    partitions = [
        PartitionRange(
            integer(entry, "partition-id"),
            integer(entry, "first-position"),
            integer(entry, "end-position"),
            integer(entry, "messages"),
            integer(entry, "retained"),
            integer(entry, "retained-bytes"),
            _pairs(integers(entry, "passed-over")),
        )
        for entry in maps(body, "partitions")
    ]
    return PartitionMap(
        text(body, "entity"), text(body, "entity-id"), integer(body, "map-version"), tuple(sorted(partitions))
    )


def _pairs(flat: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def _states(body: Mapping[str, object]) -> dict[int, CursorState]:
    names = ("partition-id", "epoch", "until", "position", "fate-position", "complete-from", "end-position")
    states = [CursorState(*_numbers(entry, names)) for entry in maps(body, "cursors")]
    return {state.partition_id: state for state in states}


def _summary(entry: Mapping[str, object], now_ms: int) -> CursorSummary:
    names = (
        "partition-id",
        "epoch",
        "until",
        "position",
        "fate-position",
        "complete-from",
        "moved",
        "end-position",
        "bound-bytes",
        "retained",
        "retained-bytes",
    )
    partitions = tuple(
        CursorPartition._make((*_numbers(one, names), _pairs(integers(one, "passed-over"))))
        for one in maps(entry, "partitions")
    )
    return CursorSummary(text(entry, "name"), partitions, now_ms)


def _numbers(entry: Mapping[str, object], names: Sequence[str]) -> list[int]:
    return [integer(entry, name) for name in names]
