"""Messages in their stored form to columns."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from partibus.amqp.errors import DecodeError
from partibus.message import pack, with_hop
from partibus.partition.protocol.ports import FINISHED, Disposition, EntryState
from partibus.spark import sections
from partibus.spark.decoding import Origin, decode_columns
from partibus.spark.schema import STATES
from partibus.spark.stored import PREFIX, rows_of
from tests.spark.simulated import COMPLETED, ENQUEUED_MS, Held, frame_of, message, section, stored
from tests.unit.spark.arrow_types import SCHEMA

ID = UUID("12345678-1234-5678-1234-567812345678")
ENQUEUED = datetime.fromtimestamp(ENQUEUED_MS // 1000, UTC) + timedelta(milliseconds=ENQUEUED_MS % 1000)

PLAIN = Origin(0)


@pytest.fixture(autouse=True, params=[1, 1_000], ids=["together", "one by one"])
def alike_min(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode the same, however many messages come along."""
    monkeypatch.setattr(sections, "ALIKE_MIN", request.param)


def rows(*messages: Held, origin: Origin = PLAIN, schema: pa.Schema = SCHEMA) -> list[dict[str, object]]:
    frame = frame_of([(10 + place, message) for place, message in enumerate(messages)], 100)
    batch = decode_columns(rows_of(frame), origin, schema)
    assert batch.schema == schema
    batch.validate(full=True)
    found: list[dict[str, object]] = batch.to_pylist()
    return found


def test_every_column_of_a_full_message() -> None:
    full = message(
        7,
        b"body",
        state=1,
        ttl_ms=1500,
        annotations={
            "x-opt-partition-key": "key",
            "x-opt-via-partition-key": "via",
            "x-opt-scheduled-enqueue-time": Timestamp(0),
        },
        properties=[
            "id", b"user", "to", "label", "reply", ID, Symbol("application/json"), Symbol("gzip"),
            Timestamp(5), Timestamp(4), "session", UInt(1), "reply session",
        ],
        application_properties={"DeadLetterReason": "why", "DeadLetterErrorDescription": "words", "n": 1},
    )  # fmt: skip
    full.delivery_count = 2
    (row,) = rows(full, origin=Origin(3, "incarnation", "orders"))
    assert row == {
        "body": b"body",
        "body_type": "data",
        "content_type": "application/json",
        "content_encoding": "gzip",
        "message_id": "id",
        "session_id": "session",
        "partition_key": "key",
        "entity_id": "incarnation",
        "partition_id": 3,
        "position": 10,
        "sequence_number": 3 << 48 | 7,
        "enqueued_sequence_number": 0,
        "enqueued_time": ENQUEUED + timedelta(milliseconds=7),
        "scheduled_enqueue_time": datetime(1970, 1, 1, tzinfo=UTC),
        "expires_at": ENQUEUED + timedelta(milliseconds=1507),
        "time_to_live_ms": 1500,
        "delivery_count": 2,
        "state": "deferred",
        "dead_letter_reason": "why",
        "dead_letter_error_description": "words",
        "dead_letter_source": "orders",
        "correlation_id": str(ID),
        "subject": "label",
        "to": "to",
        "reply_to": "reply",
        "reply_to_session_id": "reply session",
        "via_partition_key": "via",
        "application_properties": [("DeadLetterReason", "why"), ("DeadLetterErrorDescription", "words"), ("n", "1")],
        "application_property_types": [
            ("DeadLetterReason", "string"), ("DeadLetterErrorDescription", "string"), ("n", "long"),
        ],
    }  # fmt: skip


def test_forwarded_message_brings_its_first_number_and_the_queue_that_it_died_in() -> None:
    died = Held(with_hop(stored(b"x"), 5, "first"))
    rejected = Held(with_hop(stored(b"x"), 6, None))
    found = rows(died, Held(stored(b"x")), rejected, origin=Origin(0, dead_letter_source="here"))
    assert [(row["enqueued_sequence_number"], row["dead_letter_source"]) for row in found] == [
        (5, "first"), (0, "here"), (6, "here"),
    ]  # fmt: skip


def test_message_of_a_body_alone_gives_nulls() -> None:
    (row,) = rows(Held(stored(b"x"), 1))
    given = {name for name, value in row.items() if value not in (None, [])}
    assert given == {
        "body", "body_type", "entity_id", "partition_id", "position", "sequence_number", "enqueued_sequence_number",
        "enqueued_time", "delivery_count", "state",
    }  # fmt: skip
    assert (row["delivery_count"], row["state"]) == (0, "active")


def test_no_messages_are_no_rows() -> None:
    assert rows() == []


def test_prefix_is_read_as_it_is_written() -> None:
    packed = pack(
        durable=True, priority=9, ttl_ms=8, annotation_count=7, annotations=b"1", properties=b"12",
        application_properties=b"123",
    )  # fmt: skip
    (found,) = np.frombuffer(packed[: PREFIX.itemsize], PREFIX)
    assert found.tolist() == (1, 3, 9, 7, 8, 1, 2, 3)
    assert PREFIX.itemsize == len(pack())


def test_rows_of_all_kinds_side_by_side_keep_their_own() -> None:
    """Decode shared parts for all messages at once, and give them to no other."""
    found = rows(
        message(1, b"a" * 300, properties=["one"], application_properties={"n": 1, "m": "x"}),
        message(2, rest=section(0x77, "value"), properties=[5], ttl_ms=7),
        message(3, b"", properties=["three", None, "to"], annotations={"x-opt-partition-key": "k"}),
        message(4, rest=section(0x75, b"fo") + section(0x75, b"ur"), application_properties={"m": UInt(2), "n": None}),
        message(5, b"b", application_properties={}),
    )
    assert [row["body"] for row in found] == [b"a" * 300, encode("value"), b"", b"four", b"b"]
    assert [row["body_type"] for row in found] == ["data", "value", "data", "data", "data"]
    assert [row["message_id"] for row in found] == ["one", "5", "three", "id-4", "id-5"]
    assert [row["to"] for row in found] == [None, None, "to", None, None]
    assert [row["partition_key"] for row in found] == [None, None, "k", None, None]
    assert [row["time_to_live_ms"] for row in found] == [None, 7, None, None, None]
    assert [row["application_properties"] for row in found] == [
        [("n", "1"), ("m", "x")], [], [], [("m", "2"), ("n", None)], [],
    ]  # fmt: skip
    assert [row["application_property_types"] for row in found] == [
        [("n", "long"), ("m", "string")], [], [], [("m", "uint"), ("n", "null")], [],
    ]  # fmt: skip


def test_footer_behind_the_body_is_left_out() -> None:
    footer = section(0x78, {Symbol("x"): 1})
    assert rows(message(1, rest=section(0x75, b"x") + footer))[0]["body"] == b"x"
    assert rows(message(1, rest=section(0x77, 5) + footer))[0]["body"] == encode(5)
    assert rows(message(1, rest=footer))[0]["body_type"] is None


@pytest.mark.parametrize(("state", "name"), STATES.items())
def test_states_have_names(state: int, name: str) -> None:
    assert rows(message(1, state=state))[0]["state"] == name


def test_states_are_those_of_the_broker() -> None:
    finished = {FINISHED + disposition: disposition.name.lower() for disposition in Disposition}
    assert {state.value: state.name.lower() for state in EntryState} | finished == STATES
    assert COMPLETED == FINISHED


def test_data_sections_are_joined() -> None:
    (row,) = rows(message(1, rest=section(0x75, b"one,") + section(0x75, b"two")))
    assert (row["body"], row["body_type"]) == (b"one,two", "data")


@pytest.mark.parametrize(
    ("code", "value", "type_"),
    [(0x77, "text", "value"), (0x77, {"a": [1, None]}, "value"), (0x76, ["a", 1], "sequence")],
)
def test_other_bodies_are_their_encoding(code: int, value: object, type_: str) -> None:
    (row,) = rows(message(1, rest=section(code, value)))
    assert (row["body"], row["body_type"]) == (encode(value), type_)


@pytest.mark.parametrize(("id_", "text"), [(ULong(2**64 - 1), str(2**64 - 1)), (ID, str(ID)), (b"\x00\xff", "AP8=")])
def test_message_ids_of_every_type_are_text(id_: object, text: str) -> None:
    assert rows(message(1, properties=[id_]))[0]["message_id"] == text


def test_times_outside_of_the_calendar_are_cut_to_it() -> None:
    late, early = (message(1, annotations={"x-opt-scheduled-enqueue-time": Timestamp(2**63 - 1)}) for _ in range(2))
    late.enqueued_ms, early.enqueued_ms = 2**62, -(2**62)
    found = rows(late, early)
    last = datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)
    assert [row["scheduled_enqueue_time"] for row in found] == [last, last]
    assert [row["enqueued_time"] for row in found] == [last, datetime(1, 1, 1, tzinfo=UTC)]


def test_time_to_live_past_the_header_comes_from_the_properties() -> None:
    properties = ["id", *[None] * 7, Timestamp(2**33 + 1000), Timestamp(1000)]
    assert rows(message(1, ttl_ms=2**32 - 1, properties=properties))[0]["time_to_live_ms"] == 2**33
    assert rows(message(1, ttl_ms=2**32 - 1))[0]["time_to_live_ms"] == 2**32 - 1


def test_annotations_of_unexpected_types_are_null_not_an_error() -> None:
    annotations: dict[str, object] = {"x-opt-scheduled-enqueue-time": True, "x-opt-partition-key": 12}
    (row,) = rows(message(1, annotations=annotations))
    assert (row["scheduled_enqueue_time"], row["partition_key"]) == (None, "12")


def test_fewer_columns_in_the_asked_order() -> None:
    schema = pa.schema([("position", pa.int64()), ("body", pa.binary())])
    assert rows(message(1, b"a"), message(2, b"b"), schema=schema) == [
        {"position": 10, "body": b"a"},
        {"position": 11, "body": b"b"},
    ]


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\x01" * 20,
        b"\x02" + stored(b"x")[1:],
        pack(rest=b"\x00\x53\x75\xa0\x05abc"),
        pack(rest=b"\x00\x53\x75\xb0\x00\x00\x00\x09abc"),
        pack(properties=b"\x00\x53\x73\xc0\x05\x01", rest=section(0x75, b"")),
        pack(application_properties=section(0x74, {"a": 1})[:-1], rest=section(0x75, b"")),
        pack(annotation_count=2, annotations=encode(Symbol("x")), rest=section(0x75, b"")),
        stored(b"x", properties=["id"])[: PREFIX.itemsize + 2],
    ],
)
def test_what_is_no_message_names_its_position(damaged: bytes) -> None:
    with pytest.raises(DecodeError, match="position 11"):
        rows(message(1), Held(damaged), message(2))


def test_keys_that_come_twice_are_refused() -> None:
    twice = section(0x74, {"a": 1, "b": 2}).replace(b"\xa1\x01b", b"\xa1\x01a")
    good = message(1, application_properties={"a": 1})
    with pytest.raises(DecodeError, match="position 11"):
        rows(good, Held(pack(application_properties=twice, rest=section(0x75, b""))))


def test_frame_whose_sizes_do_not_add_up_is_refused() -> None:
    frame = frame_of([(1, message(1)), (2, message(2))], 3)
    with pytest.raises(DecodeError, match="a frame of 2 messages has 2 sizes"):
        rows_of(replace(frame, data=frame.data[:-1]))


@pytest.mark.parametrize(
    ("value", "type_", "text"),
    [
        (None, "null", None),
        (True, "boolean", "true"),
        (False, "boolean", "false"),
        (UByte(255), "ubyte", "255"),
        (UShort(65535), "ushort", "65535"),
        (UInt(2**32 - 1), "uint", "4294967295"),
        (ULong(2**64 - 1), "ulong", "18446744073709551615"),
        (Byte(-128), "byte", "-128"),
        (Short(-32768), "short", "-32768"),
        (Int(-(2**31)), "int", "-2147483648"),
        (-(2**63), "long", "-9223372036854775808"),
        (Float(0.5), "float", "0.5"),
        (0.1, "double", "0.1"),
        (float("inf"), "double", "inf"),
        (Decimal32(b"\x01\x02\x03\x04"), "decimal32", "AQIDBA=="),
        (Decimal64(bytes(8)), "decimal64", "AAAAAAAAAAA="),
        (Decimal128(bytes(16)), "decimal128", "AAAAAAAAAAAAAAAAAAAAAA=="),
        (Char("é"), "char", "é"),
        (Timestamp(1_356_998_400_123), "timestamp", "2013-01-01T00:00:00.123Z"),
        (Timestamp(-1), "timestamp", "1969-12-31T23:59:59.999Z"),
        (Timestamp(-(2**63)), "timestamp", "-9223372036854775808"),
        (ID, "uuid", str(ID)),
        (b"\x00\x01", "binary", "AAE="),
        ("text", "string", "text"),
        (Symbol("name"), "symbol", "name"),
        (Described(Symbol("com.microsoft:timespan"), 5), "com.microsoft:timespan:long", "5"),
        (["a"], "list", "wAQBoQFh"),
        ({"a": None}, "map", "wQUCoQFhQA=="),
        (Array(0x71, [Int(1)]), "array", b64encode(encode(Array(0x71, [Int(1)]))).decode()),
    ],
)
def test_application_properties_of_every_type(value: object, type_: str, text: str | None) -> None:
    (row,) = rows(message(1, application_properties={"p": value}))
    assert row["application_properties"] == [("p", text)]
    assert row["application_property_types"] == [("p", type_)]


@pytest.mark.parametrize("created_ms", [0, -(1 << 63)])
def test_time_to_live_of_any_two_timestamps_is_a_number_and_its_end_is_not_in_the_past(created_ms: int) -> None:
    properties = [*[None] * 8, Timestamp((1 << 63) - 1), Timestamp(created_ms)]
    (found,) = rows(message(1, ttl_ms=2**32 - 1, properties=properties))
    assert found["time_to_live_ms"] == (1 << 63) - 1
    assert found["expires_at"] == datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)


def test_message_that_never_expires_has_no_end() -> None:
    long = [*[None] * 8, Timestamp(1 << 33), Timestamp(0)]
    found = rows(
        message(1, ttl_ms=2**32 - 1), message(2, ttl_ms=2**32 - 2), message(3, ttl_ms=2**32 - 1, properties=long)
    )
    ends = [None, *(ENQUEUED + timedelta(milliseconds=ms) for ms in (2 + 2**32 - 2, 3 + 2**33))]
    assert [row["expires_at"] for row in found] == ends, "message n was enqueued n ms later than the first"
