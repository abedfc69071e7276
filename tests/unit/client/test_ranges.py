"""Reading by ranges: frames, loops over them, and answers that make no sense."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from typing import Any

import pytest

from partibus.amqp.codec.types import Array, Int
from partibus.client.errors import ClientError, CursorHeld, CursorLost
from partibus.client.extensions.ranges import (
    ROW_BYTES,
    CursorPartition,
    DispositionLine,
    PartitionRange,
    RangeClient,
    unpack_frame,
)
from tests.kit.plain_client import Client
from tests.unit.client.broker import TinyBroker

STATE = {
    "partition-id": Int(3),
    "epoch": 7,
    "until": 90,
    "position": 5,
    "fate-position": -1,
    "complete-from": 0,
    "end-position": 9,
}


@pytest.fixture
def ranges(client: Client) -> RangeClient:
    return RangeClient(client.inner, "q")


def packed(*rows: tuple[int, int, bytes]) -> bytes:
    """A frame of (position, enqueued ms, message)."""
    positions, times, messages = [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
    count = len(rows)
    columns = struct.pack(f"<{4 * count}q", *positions, *positions, *times, *([-1] * count))
    columns += struct.pack(f"<{2 * count}i", *([0] * count), *map(len, messages)) + bytes(count)
    return columns + b"".join(messages)


def holds(broker: TinyBroker, rows: list[tuple[int, int, bytes]], end_pos: int) -> None:
    """Have the broker answer for one partition: one message for each request."""

    def read(body: dict[str, Any]) -> Any:
        found = [row for row in rows if body["from-position"] <= row[0] < body["to-position"]][:1]
        next_pos = found[-1][0] + 1 if found else body["to-position"]
        frame = {"count": len(found), "next-position": next_pos, "complete-from": 2, "frame": packed(*found)}
        return 200, None, "OK", frame

    partition = {"partition-id": 0, "first-position": 0, "end-position": end_pos, "messages": len(rows)}
    partition |= {"retained": 1, "retained-bytes": 10}
    found = {"entity": "q", "entity-id": "1-2", "map-version": Int(1), "partitions": [partition]}
    broker.answers["partibus:read-range"] = read
    broker.answers["partibus:partitions"] = lambda _: (200, None, "OK", found)
    broker.answers["partibus:wait"] = lambda _: (200, None, "OK", found)


def test_a_frame_is_columns_and_messages() -> None:
    frame = unpack_frame(2, packed((4, 1_000, b"abc"), (6, 2_000, b"de")), 7, 4)
    assert frame.positions.tolist() == frame.sequences.tolist() == [4, 6]
    assert frame.enqueued_ms.tolist() == [1_000, 2_000]
    assert frame.due_ms.tolist() == [-1, -1]
    assert frame.sizes.tolist() == [3, 2]
    assert (bytes(frame.data), frame.next_pos, frame.complete_from) == (b"abcde", 7, 4)


def test_a_frame_that_is_too_short_is_refused() -> None:
    with pytest.raises(ClientError, match=f"a frame of {ROW_BYTES} bytes for 2 messages"):
        unpack_frame(2, bytes(ROW_BYTES), 0)


def test_all_of_a_range_is_read(broker: TinyBroker, ranges: RangeClient) -> None:
    holds(broker, [(2, 0, b"a"), (5, 0, b"b"), (9, 0, b"c")], 10)
    frames = list(ranges.read(0, 1, 9, 100, finished=True, cursor="c"))
    assert [frame.positions.tolist() for frame in frames] == [[2], [5], []]
    assert frames[-1].next_pos == 9
    assert broker.requests[-1] == (
        "q/$management",
        "partibus:read-range",
        {
            "partition-id": 0,
            "from-position": 6,
            "to-position": 9,
            "max-bytes": 100,
            "finished": True,
            "cursor": "c",
        },
    )


def test_a_broker_that_does_not_get_on_is_refused(broker: TinyBroker, ranges: RangeClient) -> None:
    answer = {"count": 0, "next-position": 1, "complete-from": 0, "frame": b""}
    broker.answers["partibus:read-range"] = lambda _: (200, None, "OK", answer)
    with pytest.raises(ClientError, match="reading partition 0 of 'q' stands still at 1"):
        list(ranges.read(0, 1, 9))


def test_the_map(broker: TinyBroker, ranges: RangeClient) -> None:
    holds(broker, [(2, 0, b"a")], 10)
    found = ranges.map()
    assert (found.entity, found.entity_id, found.version) == ("q", "1-2", 1)
    assert found.partitions == (PartitionRange(0, 0, 10, 1, 1, 10),)


def test_waiting_ends_with_something_new_or_in_time(broker: TinyBroker, ranges: RangeClient) -> None:
    holds(broker, [(2, 0, b"a")], 10)
    assert ranges.wait({0: 9}, 5).partitions[0].end_pos == 10
    assert len(broker.requests) == 1
    assert broker.requests[0][2]["positions"] == {0: 9}
    assert ranges.wait({0: 10}, 0.05).partitions[0].end_pos == 10


@pytest.mark.parametrize(
    ("at_s", "position"), [(0, 0), (10, 0), (11, 3), (20, 3), (25, 6), (30, 6), (31, 40), (99, 40)]
)
def test_a_time_is_found_in_some_requests(broker: TinyBroker, ranges: RangeClient, at_s: int, position: int) -> None:
    holds(broker, [(2, 10_000, b"a"), (5, 20_000, b"b"), (30, 30_000, b"c")], 40)
    found = ranges.find_positions(datetime.fromtimestamp(at_s, UTC))[0]
    rows = [2, 5, 30, 40]
    assert min(row for row in rows if row >= found) == min(row for row in rows if row >= position)
    assert len(broker.requests) <= 8


def test_cursors_are_opened_renewed_and_advanced(broker: TinyBroker, ranges: RangeClient) -> None:
    for operation in ("open-cursor", "advance-cursor"):
        broker.answers[f"partibus:{operation}"] = lambda _: (200, None, "OK", {"cursors": [STATE]})
    states = ranges.open_cursor("c", start={3: 5}, lease_ms=1_000, epochs={3: 7})
    assert states[3].epoch == 7
    assert states[3].end_pos == 9
    assert broker.requests[-1][2] == {
        "name": "c",
        "start": {3: 5},
        "fates": False,
        "bound-bytes": 1 << 30,
        "lease-ms": 1_000,
        "revoke": False,
        "epochs": {3: 7},
    }
    ranges.advance_cursor("c", {3: 6}, disposition_positions={3: 1}, epochs={3: 7})
    assert broker.requests[-1][2] == {
        "name": "c",
        "positions": {3: 6},
        "fate-positions": {3: 1},
        "epochs": {3: 7},
    }


def test_fates_come_as_lines(broker: TinyBroker, ranges: RangeClient) -> None:
    names = ("numbers", "positions", "sequences", "fates", "times", "delivery-counts")
    answer = {name: Array(0x81, [10 * index, 10 * index + 1]) for index, name in enumerate(names)}
    broker.answers["partibus:read-fates"] = lambda _: (200, None, "OK", answer)
    assert ranges.read_dispositions(0, "c", 0) == [
        DispositionLine(0, 10, 20, 30, 40, 50),
        DispositionLine(1, 11, 21, 31, 41, 51),
    ]


@pytest.mark.parametrize(
    ("status", "condition", "kind"),
    [(409, "partibus:cursor-held", CursorHeld), (410, "partibus:cursor-lost", CursorLost)],
)
def test_refusals_have_kinds(
    broker: TinyBroker, ranges: RangeClient, status: int, condition: str, kind: type[ClientError]
) -> None:
    broker.answers["partibus:open-cursor"] = lambda _: (status, condition, "why", None)
    with pytest.raises(kind, match="why"):
        ranges.open_cursor("c")


def test_positions_that_a_store_passed_over_are_no_lag() -> None:
    def lag(position: int) -> int:
        return CursorPartition(0, 0, 0, position, -1, 0, 0, 1_010, 0, 0, 0, ((20, 500), (600, 1_000))).lag

    assert [lag(position) for position in (10, 20, 499, 500, 599, 700, 1_000, 1_010, 1_020)] == [
        120, 110, 110, 110, 11, 10, 10, 0, 0
    ]  # fmt: skip
