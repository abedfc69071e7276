"""Encoded messages to columns."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime, timedelta
from uuid import UUID

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
from partibus.client.browse import BrowsedMessage
from partibus.spark.decoding import decode_columns
from partibus.spark.schema import COLUMNS
from tests.spark.simulated import ENQUEUED_MS, message, section

ARROW = {
    "binary": pa.binary(),
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}
SCHEMA = pa.schema([(column.name, ARROW[column.type]) for column in COLUMNS])
ID = UUID("12345678-1234-5678-1234-567812345678")
ENQUEUED = datetime.fromtimestamp(ENQUEUED_MS // 1000, UTC) + timedelta(milliseconds=ENQUEUED_MS % 1000)


def rows(*payloads: bytes, partition_id: int = 0, schema: pa.Schema = SCHEMA) -> list[dict[str, object]]:
    messages = [BrowsedMessage(10 + place, payload) for place, payload in enumerate(payloads)]
    batch = decode_columns(messages, partition_id, schema)
    assert batch.schema == schema
    found: list[dict[str, object]] = batch.to_pylist()
    return found


def test_every_column_of_a_full_message() -> None:
    (row,) = rows(
        message(
            7,
            b"body",
            partition_id=3,
            ttl_ms=1500,
            annotations={
                "x-opt-message-state": Int(2),
                "x-opt-partition-key": "key",
                "x-opt-via-partition-key": "via",
                "x-opt-enqueue-sequence-number": 5,
                "x-opt-scheduled-enqueue-time": Timestamp(0),
                "x-opt-deadletter-source": "orders",
            },
            properties=[
                "id", b"user", "to", "label", "reply", ID, Symbol("application/json"), Symbol("gzip"),
                Timestamp(5), Timestamp(4), "session", UInt(1), "reply session",
            ],
            application_properties={"DeadLetterReason": "why", "DeadLetterErrorDescription": "words", "n": 1},
        ),
        partition_id=3,
    )  # fmt: skip
    assert row == {
        "body": b"body",
        "body_type": "data",
        "content_type": "application/json",
        "content_encoding": "gzip",
        "message_id": "id",
        "session_id": "session",
        "partition_key": "key",
        "partition_id": 3,
        "position": 10,
        "sequence_number": 3 << 48 | 7,
        "enqueued_sequence_number": 5,
        "enqueued_time": ENQUEUED + timedelta(milliseconds=7),
        "scheduled_enqueue_time": datetime(1970, 1, 1, tzinfo=UTC),
        "expires_at": ENQUEUED + timedelta(milliseconds=1507),
        "time_to_live_ms": 1500,
        "delivery_count": 0,
        "state": "scheduled",
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


def test_message_of_a_body_alone_gives_nulls() -> None:
    (row,) = rows(section(0x75, b"x"))
    given = {name for name, value in row.items() if value not in (None, [])}
    assert given == {"body", "body_type", "partition_id", "position", "delivery_count", "state"}
    assert (row["delivery_count"], row["state"]) == (0, "active")


def test_data_sections_are_joined() -> None:
    (row,) = rows(message(1, body_section=section(0x75, b"one,") + section(0x75, b"two")))
    assert (row["body"], row["body_type"]) == (b"one,two", "data")


@pytest.mark.parametrize(
    ("code", "value", "type_"),
    [(0x77, "text", "value"), (0x77, {"a": [1, None]}, "value"), (0x76, ["a", 1], "sequence")],
)
def test_other_bodies_are_their_encoding(code: int, value: object, type_: str) -> None:
    (row,) = rows(message(1, body_section=section(code, value)))
    assert (row["body"], row["body_type"]) == (encode(value), type_)


@pytest.mark.parametrize(("id_", "text"), [(ULong(2**64 - 1), str(2**64 - 1)), (ID, str(ID)), (b"\x00\xff", "AP8=")])
def test_message_ids_of_every_type_are_text(id_: object, text: str) -> None:
    assert rows(message(1, properties=[id_]))[0]["message_id"] == text


def test_times_outside_of_the_calendar_are_cut_to_it() -> None:
    annotations = {"x-opt-scheduled-enqueue-time": Timestamp(2**63 - 1), "x-opt-enqueued-time": Timestamp(-(2**63))}
    (row,) = rows(message(1, annotations=annotations))
    assert row["scheduled_enqueue_time"] == datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)
    assert row["enqueued_time"] == datetime(1, 1, 1, tzinfo=UTC)


def test_time_to_live_past_the_header_comes_from_the_properties() -> None:
    properties = ["id", *[None] * 7, Timestamp(2**33 + 1000), Timestamp(1000)]
    assert rows(message(1, ttl_ms=2**32 - 1, properties=properties))[0]["time_to_live_ms"] == 2**33
    assert rows(message(1, ttl_ms=2**32 - 1))[0]["time_to_live_ms"] == 2**32 - 1


def test_annotations_of_unexpected_types_are_null_not_an_error() -> None:
    annotations: dict[str, object] = {
        "x-opt-sequence-number": "seven",
        "x-opt-enqueued-time": True,
        "x-opt-message-state": 9,
        "x-opt-partition-key": 12,
    }
    (row,) = rows(message(1, annotations=annotations))
    assert (row["sequence_number"], row["enqueued_time"], row["state"]) == (None, None, "9")
    assert row["partition_key"] == "12"


def test_fewer_columns_in_the_asked_order() -> None:
    schema = pa.schema([("position", pa.int64()), ("body", pa.binary())])
    assert rows(message(1, b"a"), message(2, b"b"), schema=schema) == [
        {"position": 10, "body": b"a"},
        {"position": 11, "body": b"b"},
    ]


def test_payload_that_is_no_message_names_its_position() -> None:
    with pytest.raises(DecodeError, match="position 11"):
        rows(message(1), b"\x00\x53\x75\xa0\x05abc")


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
