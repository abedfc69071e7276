"""Messages from requests, and answers from messages."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.types import Symbol, Timestamp
from partibus.amqp.section_encoding import (
    encode_application_properties,
    encode_data,
    encode_properties,
    encode_value,
)
from partibus.errors import ArgumentError, MessageTooLarge, PartibusError, QuotaExceeded
from partibus.frontends.rest.data.calls import parse_place
from partibus.frontends.rest.data.message_in import PAIRS_MAX, VALUES_MAX, MessageReader
from partibus.frontends.rest.data.message_out import PROPERTIES_MAX, body_of, date_text, headers_of
from partibus.message import Message, pack, ttl_of
from partibus.namespace.catalog import EntityRecord
from partibus.namespace.entities import EntityDescription, EntityOptions
from partibus.namespace.namespace_options import Bounds, NamespaceOptions
from partibus.namespace.placement import Placement
from partibus.namespace.queues import Queue
from partibus.namespace.tiers import Tier
from partibus.partition.protocol.keys import Entry

READER = MessageReader(lambda: "made-here")


def queue_with(**options: Any) -> Queue:
    return Queue(EntityRecord(1, EntityDescription("q", EntityOptions(**options)), (Placement(0, 0, 1),), 0, 0))


QUEUE = queue_with()


def shown(message: Message) -> tuple[dict[str, str], dict[str, Any], bytes]:
    """Headers, broker properties and body of the answer that gives a message out."""
    entry = Entry(7, 1, 7, 1_000, 0, message.session_id, None, len(message.data), message.data)
    headers = headers_of(entry, message.data, 2, token=UUID(int=5), locked_until_ms=61_000)
    return headers, json.loads(headers["BrokerProperties"]), body_of(message.data)


TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
MEMBERS = st.sampled_from(
    [
        *("MessageId", "SessionId", "PartitionKey", "ViaPartitionKey", "Label", "To", "ReplyTo", "CorrelationId"),
        *("TimeToLive", "TimeToLiveTimeSpan", "ScheduledEnqueueTimeUtc", "Other"),
    ]
)


@given(st.dictionaries(MEMBERS, JSON, max_size=4), st.binary(max_size=50))
def test_any_broker_properties_are_a_message_or_refused_by_name(members: dict[str, object], body: bytes) -> None:
    headers = [("brokerproperties", json.dumps(members)), ("content-type", "a/b")]
    with contextlib.suppress(PartibusError):
        message = READER.from_headers(headers, body, QUEUE)
        _, properties, out = shown(message)
        assert out == body
        for name in ("MessageId", "SessionId", "PartitionKey", "ViaPartitionKey", "Label", "To"):
            wanted = members.get(name)
            if wanted is not None and not (name == "MessageId" and wanted == ""):
                assert properties[name] == wanted


@given(st.dictionaries(st.from_regex(r"\Ax[a-z0-9-]{0,8}\Z"), TEXT | st.booleans() | st.integers(-9, 9), max_size=4))
def test_custom_properties_come_back_in_their_form(properties: dict[str, Any]) -> None:
    headers = [(name, json.dumps(value)) for name, value in properties.items()]
    out, _, _ = shown(READER.from_headers(headers, b"", QUEUE))
    assert {name: json.loads(out[name]) for name in properties} == properties


@given(st.binary(max_size=100) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_batch_is_messages_or_refused(body: bytes) -> None:
    with contextlib.suppress(PartibusError):
        assert list(READER.from_batch(body, QUEUE))


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("High", "High"),
        ('"quoted"', "quoted"),
        ('"broken', "broken"),
        ("1.5", 1.5),
        ("-3", -3),
        ("true", True),
        ("null", "null"),
        ("NaN", "NaN"),
        ("[1]", "[1]"),
    ],
)
def test_a_value_is_what_its_form_says(header: str, value: object) -> None:
    message = READER.from_headers([("x", header)], b"", QUEUE)
    assert json.loads(shown(message)[0]["x"]) == value


def test_a_content_type_that_no_symbol_can_be_is_refused_by_name() -> None:
    with pytest.raises(ArgumentError, match="content type"):
        READER.from_headers([("content-type", "caf\xe9")], b"", QUEUE)
    with pytest.raises(ArgumentError, match="content type"):
        list(READER.from_batch(b'[{"BrokerProperties": {"ContentType": "caf\\u00e9"}}]', QUEUE))


def test_headers_of_the_request_are_no_properties() -> None:
    message = READER.from_headers([("host", "h"), ("authorization", "a"), ("x-ms-retrypolicy", "NoRetry")], b"", QUEUE)
    assert set(shown(message)[0]) == {"BrokerProperties", "Content-Type"}


def test_no_property_becomes_a_header_of_its_own_meaning_or_ends_its_line() -> None:
    """Use any name and any text of a property, as AMQP allows."""
    properties = {"Content-Length": 5, "location": "x", "a b": 1, "ok": "1\r\nEvil: 2", "when": Timestamp(0), "ü": 1}
    data = pack(
        properties=encode_properties(content_type="a/b\r\nEvil: 1"),
        application_properties=encode_application_properties(properties),
        rest=encode_data(b"x"),
    )
    headers, _, _ = shown(Message(data))
    assert headers["ok"] == '"1\\r\\nEvil: 2"'
    assert headers["when"] == '"Thu, 01 Jan 1970 00:00:00 GMT"'
    assert headers["Content-Type"] == "application/octet-stream"
    assert set(headers) == {"ok", "when", "BrokerProperties", "Content-Type"}


@pytest.mark.parametrize(
    ("rest", "body"),
    [
        (encode_data(b"a") + encode_data(b"b"), b"ab"),
        (encode_value("ü"), "ü".encode()),
        (encode_value(b"\x00"), b"\x00"),
        (encode_value({"a": [1, None]}), b'{"a": [1, null]}'),
        (b"", b"[]"),
    ],
)
def test_bodies_of_other_kinds_are_written_as_they_can_be(rest: bytes, body: bytes) -> None:
    assert body_of(pack(rest=rest)) == body


def test_what_the_partition_needs_is_beside_the_message() -> None:
    properties = {"MessageId": "m", "SessionId": "s", "TimeToLive": 0.0001, "PartitionKey": "s"}
    headers = [("brokerproperties", json.dumps(properties))]
    message = READER.from_headers(headers, b"", queue_with(requires_duplicate_detection=True))
    assert (message.message_id, message.session_id, message.partition_key, message.ttl_ms) == ("m", "s", "s", 1)
    assert READER.from_headers(headers, b"", QUEUE).message_id is None
    assert shown(READER.from_headers([], b"", QUEUE))[1]["MessageId"] == "made-here"


@pytest.mark.parametrize(
    ("given", "lives_ms"),
    [
        ({"TimeToLive": 4_294_967.294}, 4_294_967_294),
        ({"TimeToLive": 922337203685.47754}, None),
        ({"TimeToLiveTimeSpan": "10675199.02:48:05.4775807"}, None),
        ({"TimeToLiveTimeSpan": "100.00:00:00"}, None),
    ],
)
def test_a_time_to_live_past_what_a_header_can_say_is_no_limit(given: dict[str, object], lives_ms: int | None) -> None:
    message = READER.from_headers([("brokerproperties", json.dumps(given))], b"", QUEUE)
    assert (message.ttl_ms, ttl_of(message.data)) == (lives_ms, lives_ms)


def test_sizes_count_everything() -> None:
    small = queue_with(max_message_size_kb=1)
    READER.from_headers([], bytes(900), small)
    with pytest.raises(MessageTooLarge):
        READER.from_headers([("x", '"' + "y" * 200 + '"')], bytes(900), small)


def test_dates_that_no_calendar_has_are_the_nearest_ones() -> None:
    assert date_text(2**62) == "Fri, 31 Dec 9999 23:59:59 GMT"
    assert date_text(-(2**62)) == "Mon, 01 Jan 0001 00:00:00 GMT"


@pytest.mark.parametrize(
    ("path", "entity", "below"),
    [
        ("/q/messages", "q", ()),
        ("/Q/MESSAGES/Head/", "Q", ("Head",)),
        ("/t/Subscriptions/s/messages/head", "t/Subscriptions/s", ("head",)),
        ("/q/$DeadLetterQueue/messages/1/x", "q/$DeadLetterQueue", ("1", "x")),
        ("/messages/messages", "messages", ()),
    ],
)
def test_paths_of_messages(path: str, entity: str, below: tuple[str, ...]) -> None:
    place = parse_place(path)
    assert place is not None
    assert (place.entity, place.below) == (entity, below)


@pytest.mark.parametrize("path", ["/q", "/messages", "/q/messages/tail", "/q/messages/1/2/3", "/messages/head"])
def test_other_paths_are_not_about_messages(path: str) -> None:
    assert parse_place(path) is None


KIB = 1024
PREMIUM = Queue(
    EntityRecord(1, EntityDescription("q", EntityOptions(max_message_size_kb=100 * KIB)), (Placement(0, 0, 1),), 0, 0),
    Bounds(NamespaceOptions(tier=Tier.PREMIUM)),
)


def test_a_message_over_http_is_as_large_as_a_batch_whatever_its_entity_takes() -> None:
    assert len(READER.from_headers([], bytes(1000 * KIB), PREMIUM).data) > 1000 * KIB
    with pytest.raises(MessageTooLarge, match="over the 1048576 bytes"):
        READER.from_headers([], bytes(1024 * KIB), PREMIUM)


def test_a_batch_over_http_has_so_many_messages() -> None:
    one = b'{"Body": ""}'
    assert len(list(READER.from_batch(b"[" + b",".join([one] * 4_500) + b"]", PREMIUM))) == 4_500
    with pytest.raises(QuotaExceeded, match="A batch to 'q' is at its quota of 4500 messages"):
        list(READER.from_batch(b"[" + b",".join([one] * 4_501) + b"]", PREMIUM))


def test_a_batch_over_http_has_so_many_values() -> None:
    """Count no value in texts, however they are escaped."""
    many = b",".join([b"0"] * (VALUES_MAX + 1))
    with pytest.raises(QuotaExceeded, match="A batch in JSON is at its quota of 40000 values"):
        list(READER.from_batch(b'[{"Ignored":[' + many + b"]}]", PREMIUM))
    with pytest.raises(QuotaExceeded, match="quota of 40000 values"):
        list(READER.from_batch(b"[" + b'""' * (2 * VALUES_MAX + 1) + many, PREMIUM))
    for text in ('["a",{},[]]' * 20_000, '\\"[,' * 40_000, "\\" * 60_001 + "," * 40_000 + '"' * 5):
        body = json.dumps([{"Body": text}, {"Body": text}]).encode()
        assert body.count(b",") + body.count(b"[") + body.count(b"{") > 2
        sent = list(READER.from_batch(body, PREMIUM))
        assert [body_of(message.data).decode() for message in sent] == [text, text]


def test_a_message_over_http_has_no_more_properties_than_there_is_room_for() -> None:
    user = {f"{number:x}": 0 for number in range(PAIRS_MAX + 1)}
    with pytest.raises(ArgumentError, match="UserProperties is '16385 properties'"):
        list(READER.from_batch(json.dumps([{"UserProperties": user}]).encode(), QUEUE))


def test_a_body_of_very_many_values_stays_as_it_is() -> None:
    few, many = encode_value([None] * 5_000), encode_value([None] * 5_001)
    assert json.loads(body_of(pack(rest=few))) == [None] * 5_000
    assert body_of(pack(rest=many)) == many
    assert body_of(pack(rest=encode_data(b"x") * 60_000)) == b"x" * 60_000


def test_properties_over_http_have_the_bounds_of_others() -> None:
    for headers, says in (
        ([("big", json.dumps("x" * 33 * KIB))], "property 'big' is "),
        ([(f"big-{i}", json.dumps("x" * 17 * KIB)) for i in range(4)], "properties and headers of a message is "),
    ):
        with pytest.raises(ArgumentError, match=says):
            READER.from_headers(headers, b"", QUEUE)
        user = {name: json.loads(value) for name, value in headers}
        batch = json.dumps([{"Body": "", "UserProperties": user}]).encode()
        with pytest.raises(ArgumentError, match=says):
            list(READER.from_batch(batch, QUEUE))


@pytest.mark.parametrize("zone", ["", " GMT", " -0000", " +0000"])
def test_a_scheduled_time_without_a_zone_is_utc(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    properties = json.dumps({"ScheduledEnqueueTimeUtc": f"Thu, 01 Jan 2026 00:00:00{zone}"})
    try:
        with monkeypatch.context() as patch:
            patch.setenv("TZ", "America/New_York")
            time.tzset()
            message = READER.from_headers([("brokerproperties", properties)], b"", QUEUE)
    finally:
        time.tzset()
    assert message.scheduled_ms == 1_767_225_600_000


def test_only_so_many_properties_become_headers() -> None:
    named = {f"p{number}": number for number in range(10_500)}
    data = pack(application_properties=encode_application_properties(named), rest=encode_data(b"x"))
    entry = Entry(7, 1, 7, 1_000, 0, None, None, len(data), data)
    headers = headers_of(entry, data, 2, token=None, locked_until_ms=None)
    assert [name for name in headers if name in named] == list(named)[:PROPERTIES_MAX]


def test_parts_that_can_not_be_read_stay_as_they_are_or_are_left_out() -> None:
    unreadable = b"\xc0\x02\x01\x99"  # a list whose value has no known type
    body = b"\x00\x53\x77" + unreadable
    annotations = encode(Symbol("x-opt-partition-key")) + encode("k") + encode(Symbol("x")) + unreadable
    data = pack(
        annotation_count=2,
        annotations=annotations,
        properties=b"\x00\x53\x73" + unreadable,
        application_properties=b"\x00\x53\x74\xc1" + unreadable[1:],
        rest=body,
    )
    headers, broker, shown_body = shown(Message(data))
    assert shown_body == body
    assert broker["PartitionKey"] == "k"
    assert set(headers) == {"BrokerProperties", "Content-Type"}
