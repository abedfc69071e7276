"""Reading whole partitions, for readers like Spark that read everything and in parallel (D14, rows D1 to D3).

The module has ranges of positions in large frames, cursors that keep messages until a reader has read them, and the
exclusive reader of an entity.

A frame is the store's own packing: columns of numbers, followed by the messages in their stored form
(`partibus.message`). This module decodes and copies none of it.
"""

from __future__ import annotations  # memoryview[int] is for type checkers only

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

from partibus.amqp.codec.types import Array, Int
from partibus.client.errors import ClientError
from partibus.client.management import binary, integer, integers, maps, text

if TYPE_CHECKING:
    from partibus.client.sync import Client

FRAME_BYTES = 4 << 20
"""The default size of the messages in one frame."""
WAIT_MAX_S = 25.0
"""The longest wait at the broker."""
BOUND_BYTES = 1 << 30
"""The largest size of finished but unread messages kept in each partition."""
COMPLETED_MAX = 4_096
"""The largest number of positions of each partition in one request to complete them."""
_LONGS = 0x81
_ANSWER_S = 30.0
"""Time for an answer, in addition to the wait that the broker was asked for."""

Start = str | Mapping[int, int] | datetime
"""``earliest``, ``latest``, a position by partition id, or a time: the first message at or after it."""


class PartitionRange(NamedTuple):
    """The messages that one partition of the entity holds."""

    partition_id: int
    first_pos: int
    """The first position; no message is below it."""
    end_pos: int
    """The exclusive end: a lower bound of the next message's position, 1 in a partition that never had messages."""
    messages: int
    """The number of messages in the sub-queue; fewer than positions where messages were removed."""
    retained: int = 0
    """The number of messages that have left the sub-queue and are kept for cursors."""
    retained_bytes: int = 0
    passed_over: tuple[tuple[int, int], ...] = ()
    """Positions that no message will get, as ascending (first, end) pairs: the store was restored from a copy."""


class PartitionMap(NamedTuple):
    """The partitions of an entity at one moment."""

    entity: str
    """The path of the entity, as the broker spells it."""
    entity_id: str
    """An id that differs if the entity is deleted and created again, and in every other namespace."""
    version: int
    """A number that rises when partitions are added or removed."""
    partitions: tuple[PartitionRange, ...]
    """The partitions, ordered by id."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A part of a range.

    The columns have `count` elements each. `data` holds the concatenated stored forms, ``sizes[i]`` bytes each. All of
    them share one buffer, which lives as long as any of them.
    """

    count: int
    positions: memoryview[int]
    sequences: memoryview[int]
    """The counter parts of sequence numbers; the partition id goes above 48 bits."""
    enqueued_ms: memoryview[int]
    due_ms: memoryview[int]
    """The times when messages expire or come back; -1 means never."""
    delivery_counts: memoryview[int]
    sizes: memoryview[int]
    states: memoryview[int]
    """The states: 0 active, 1 deferred, 3 delayed; 16 and above for the `Disposition` of a finished message."""
    data: memoryview
    next_pos: int
    """The next position to read: behind the last message, or the end of the range."""
    complete_from: int
    """The position of the named cursor below which messages may be missing; 0 without a cursor."""


class DispositionLine(NamedTuple):
    """One line of the disposition log: a message that has left the sub-queue."""

    number: int
    pos: int
    sequence: int
    disposition: int
    """The disposition: 0 completed, 1 received and deleted, 2 dead-lettered, 3 expired, 4 purged, 5 forwarded, 6
    consumed by an exclusive reader, 7 lost.
    """
    at_ms: int
    delivery_count: int


class CursorState(NamedTuple):
    """The position of a cursor in one partition."""

    partition_id: int
    epoch: int
    """The epoch of the cursor's exclusive lease; 0 without one."""
    until_ms: int
    """The end of the lease, by the broker's clock."""
    position: int
    """The position below which the reader has everything."""
    disposition_position: int
    """The same in the disposition log; -1 if the cursor does not read it."""
    complete_from: int
    """A position above `position` if the bound was reached: messages in between may be missing."""
    end_pos: int


class CursorPartition(NamedTuple):
    """The state of a cursor in one partition, as seen by an observer (see `CursorState`)."""

    partition_id: int
    epoch: int
    until_ms: int
    position: int
    disposition_position: int
    complete_from: int
    moved_ms: int
    """The time when the cursor last moved."""
    end_pos: int
    bound_bytes: int
    retained: int
    """The number of messages that have left this partition's sub-queue and are kept for its cursors."""
    retained_bytes: int
    passed_over: tuple[tuple[int, int], ...] = ()
    """Positions that no message will get (`PartitionRange.passed_over`)."""

    @property
    def lag(self) -> int:
        """The number of positions that the cursor has not passed yet."""
        between = max(0, self.end_pos - self.position)
        return between - sum(
            max(0, min(end, self.end_pos) - max(first, self.position)) for first, end in self.passed_over
        )


class CursorSummary(NamedTuple):
    """One cursor of an entity."""

    name: str
    partitions: tuple[CursorPartition, ...]
    """The partitions that know the cursor, ordered by id."""
    now_ms: int
    """The broker's time, to compare leases and `CursorPartition.moved_ms` with."""

    @property
    def lag(self) -> int:
        """The number of positions not passed yet: at least the number of unread messages."""
        return sum(one.lag for one in self.partitions)

    @property
    def retained_bytes(self) -> int:
        """Bytes that have left the sub-queue and are kept for all cursors, including this one."""
        return sum(one.retained_bytes for one in self.partitions)


class RangeClient:
    """One connection that reads one entity by ranges.

    Calls block, and each may raise `ClientError`.
    """

    def __init__(self, client: Client, entity: str) -> None:
        self._client = client
        self.entity = entity
        """The entity as requested. The part behind a subscription or queue selects the sub-queue."""

    def map(self) -> PartitionMap:
        """Return the current partitions."""
        return _map(self._request("partibus:partitions", {}))

    def wait(self, positions: Mapping[int, int], timeout_s: float) -> PartitionMap:
        """Wait until a partition's end exceeds its position in ``positions``, or the time is over; return the map.

        A partition without a position counts from 0.
        """
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
        """Read the messages with ``from_pos <= position < to_pos``, ordered by position.

        These are the active, locked, deferred and delayed messages. With ``finished`` they include messages that have
        left and are kept for cursors. Frames hold at most ``max_bytes`` of messages, or one message; the last one may
        be empty. ``cursor`` has the frames state from which position on that cursor's messages are complete.
        """
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
        """Read the first of the frames that `read` returns."""
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

    def read_dispositions(
        self, partition_id: int, cursor: str, from_number: int, most: int = 10_000
    ) -> list[DispositionLine]:
        """Return lines of the disposition log from a number on; [] at its end.

        Only a cursor that was opened with ``fates`` has this log.
        """
        body = {"partition-id": Int(partition_id), "cursor": cursor, "from-number": from_number, "most": Int(most)}
        answer = self._request("partibus:read-fates", body)
        names = ("numbers", "positions", "sequences", "fates", "times", "delivery-counts")
        columns = [integers(answer, name) for name in names]
        return [DispositionLine(*line) for line in zip(*columns, strict=True)]

    # -- cursors -----------------------------------------------------------------------------------------------------

    def open_cursor(
        self,
        name: str,
        *,
        start: Start = "earliest",
        dispositions: bool = False,
        bound_bytes: int = BOUND_BYTES,
        lease_ms: int = 0,
        epochs: Mapping[int, int] | None = None,
        revoke: bool = False,
    ) -> dict[int, CursorState]:
        """Create a cursor in every partition, or find it where it stands; the result is by partition id.

        From now on messages that the cursor has not passed stay readable, up to ``bound_bytes`` in each partition.

        ``lease_ms`` makes the cursor the exclusive reader for that time. With ``epochs``, those of the last answer, it
        renews the lease. Raises `CursorHeld` when another cursor is the exclusive reader, and `CursorLost` when the
        lease to be renewed has ended. Raises `Busy` while messages are locked, unless ``revoke`` ends those locks.
        Retry soon: the broker grants no messages for a while.
        """
        if isinstance(start, datetime):
            start = self.find_positions(start)
        body: dict[str, object] = {
            "name": name,
            "start": start if isinstance(start, str) else _by_partition(start),
            "fates": dispositions,
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
        disposition_positions: Mapping[int, int] | None = None,
        epochs: Mapping[int, int] | None = None,
    ) -> dict[int, CursorState]:
        """Advance a cursor: the reader has everything below these positions.

        Messages that an exclusive cursor passes are completed. The advance is durable when this returns. Repeating it,
        or lower positions, have no effect. Raises `CursorLost`.
        """
        body: dict[str, object] = {"name": name, "positions": _by_partition(positions)}
        if disposition_positions is not None:
            body["fate-positions"] = _by_partition(disposition_positions)
        if epochs is not None:
            body["epochs"] = _by_partition(epochs)
        return _states(self._request("partibus:advance-cursor", body))

    def complete(self, name: str, chosen: Mapping[int, Sequence[int]], epochs: Mapping[int, int]) -> None:
        """Complete the active messages at these ascending positions, and no others.

        For an exclusive reader that leaves some of the messages it reads. ``chosen`` is by partition id, with at most
        `COMPLETED_MAX` positions each. The completion is durable when this returns; repeating it has no effect. Raises
        `CursorLost`.
        """
        only: dict[object, object] = {
            Int(partition_id): Array(_LONGS, list(positions)) for partition_id, positions in chosen.items() if positions
        }
        body = {"name": name, "only": only, "epochs": _by_partition(epochs)}
        self._request("partibus:advance-cursor", body)

    def close_cursor(self, name: str, *, epochs: Mapping[int, int] | None = None, drop: bool = False) -> None:
        """End the exclusive lease of these epochs.

        ``drop`` removes the cursor and the messages kept for it alone. Without epochs it does so whoever holds the
        lease. A missing cursor is no error.
        """
        body: dict[str, object] = {"name": name, "drop": drop}
        if epochs is not None:
            body["epochs"] = _by_partition(epochs)
        self._request("partibus:close-cursor", body)

    def cursors(self) -> list[CursorSummary]:
        """Return all cursors of the sub-queue, sorted by name."""
        answer = self._request("partibus:cursors", {})
        now_ms = integer(answer, "now-ms")
        return [_summary(entry, now_ms) for entry in maps(answer, "cursors")]

    def find_positions(self, at: datetime, *, finished: bool = True) -> dict[int, int]:
        """Return the position of the first message at or after a time, by partition id.

        A partition without such a message has its end instead. The search reads about forty messages of each partition.
        """
        at_ms = int(at.timestamp() * 1000)
        return {one.partition_id: self._find_position(one, at_ms, finished) for one in self.map().partitions}

    def _find_position(self, partition: PartitionRange, at_ms: int, finished: bool) -> int:
        """Find the position by bisection, because later messages have higher positions."""
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
        """Close the connection. Idempotent."""
        self._client.close()

    def _request(self, operation: str, body: Mapping[str, object], timeout_s: float | None = None) -> dict[str, object]:
        return self._client.request(self.entity, operation, body, timeout=timeout_s)


def open_ranges(connection: str, entity: str) -> RangeClient:
    """Connect to read one entity.

    Raises `partibus.errors.ArgumentError` or `ClientError`.
    """
    # Imported here: Spark plans with this module's types alone, in a new process for each query.
    from partibus.client.sync import connect

    return RangeClient(connect(connection), entity)


_Column = Literal["q", "i", "B"]
_COLUMNS: tuple[_Column, ...] = ("q", "q", "q", "q", "i", "i", "B")
"""The formats of a frame's columns in order (`partibus.partition.protocol.ports.RangeFrame`)."""
_WIDTH: dict[_Column, int] = {"q": 8, "i": 4, "B": 1}
ROW_BYTES = sum(_WIDTH[column] for column in _COLUMNS)
"""The bytes of a frame for each message, beside its stored form."""


def unpack_frame(count: int, data: bytes, next_pos: int, complete_from: int = 0) -> Frame:
    """Unpack the columns of a frame.

    Raises `ClientError` when the frame is shorter than stated, and on a machine with the other byte order.
    """
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
