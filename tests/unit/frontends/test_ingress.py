"""A delivery as it came -> messages as they are stored."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from partibus.amqp import Delivery
from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.types import Symbol, Timestamp, UInt, ULong
from partibus.amqp.section_encoding import (
    encode_annotations,
    encode_application_properties,
    encode_batch,
    encode_data,
    encode_header,
    encode_properties,
    encode_value,
)
from partibus.amqp.section_fields import properties
from partibus.amqp.sections import BATCH_FORMAT
from partibus.errors import ArgumentError, InvalidOperation, MessageTooLarge, PartibusError
from partibus.frontends.amqp.ingress import (
    BATCH_LEEWAY_BYTES,
    KEY_CHARS_MAX,
    REMEMBERED_MAX,
    WRITTEN_BY_BROKER,
    Ingress,
)
from partibus.frontends.sqs.stored import read_stored
from partibus.message import TIME_MAX_MS, TTL_MAX_MS, Message, StoredMessage, ttl_of, with_receives
from partibus.namespace.namespace import Queue
from tests.unit.frontends.harness import World

BODY = encode_data(b"body")
NEVER_MS = (1 << 63) - 1


@pytest.fixture
def ingress() -> Ingress:
    numbers = count()
    return Ingress(lambda: f"made-{next(numbers)}")


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    world = World(tmp_path)
    return world.namespace.queue(world.queue("q"))


@pytest.fixture
def sessions(tmp_path: Path) -> Queue:
    world = World(tmp_path)
    return world.namespace.queue(world.queue("sessions", RequiresSession=True))


@pytest.fixture
def duplicates(tmp_path: Path) -> Queue:
    world = World(tmp_path)
    return world.namespace.queue(world.queue("duplicates", RequiresDuplicateDetection=True))


def delivery(payload: bytes, message_format: int = 0, **fields: Any) -> Delivery:
    values: dict[str, Any] = {"settled": False, "state": None} | fields
    return Delivery(None, 0, b"tag", message_format, payload=payload, **values)  # type: ignore[arg-type]


def one(ingress: Ingress, queue: Queue, *sections: bytes) -> Message:
    (message,) = ingress.messages_of(delivery(b"".join(sections)), queue)
    return message


def raw_section(code: int, content: bytes, constructor: int = 0xD0) -> bytes:
    """A section whose content is not looked at by who splits a message."""
    return bytes((0, 0x53, code, constructor)) + len(content).to_bytes(4) + content


class TestWhatIsStored:
    def test_sections_may_come_in_any_order(self, ingress: Ingress, queue: Queue) -> None:
        given = [
            encode_header(durable=True, priority=7, ttl=5_000),
            encode_annotations({"x-opt-partition-key": "k"}),
            encode_properties(message_id="m"),
            encode_application_properties({"a": 1}),
            BODY,
        ]
        in_order = one(ingress, queue, *given)
        assert one(ingress, queue, *reversed(given)).data == in_order.data
        stored = StoredMessage(in_order.data)
        assert (stored.durable, stored.priority, stored.ttl_ms) == (True, 7, 5_000)
        assert (in_order.partition_key, in_order.session_id, in_order.ttl_ms) == ("k", None, 5_000)
        assert stored.properties == given[2]
        assert stored.application_properties == given[3]
        assert stored.rest == BODY

    def test_the_largest_time_to_live_is_no_limit_and_is_shown_as_it_was(self, ingress: Ingress, queue: Queue) -> None:
        """Clients write it for whatever is longer than 49.7 days, with the true one in the properties."""
        for ttl_ms, lives_ms in ((TTL_MAX_MS, None), (TTL_MAX_MS - 1, TTL_MAX_MS - 1)):
            message = one(ingress, queue, encode_header(ttl=ttl_ms), BODY)
            assert (message.ttl_ms, ttl_of(message.data)) == (lives_ms, lives_ms)
            assert StoredMessage(message.data).ttl_ms == ttl_ms

    def test_a_lock_token_of_the_sender_is_not_stored(self, ingress: Ingress, queue: Queue) -> None:
        annotations = encode_annotations({"x-opt-lock-token": 1}, 0x71)
        message = one(ingress, queue, encode_properties(message_id="m"), BODY, annotations)
        assert b"x-opt-lock-token" not in message.data

    def test_annotations_that_the_broker_writes_are_dropped(self, ingress: Ingress, queue: Queue) -> None:
        reserved = dict.fromkeys(WRITTEN_BY_BROKER, 1)
        message = one(ingress, queue, encode_annotations({**reserved, "mine": 2}), BODY)
        stored = StoredMessage(message.data)
        assert stored.annotation_count == 1
        assert stored.annotations == encode(Symbol("mine")) + encode(2)

    def test_string_keys_of_annotations_become_symbols(self, ingress: Ingress, queue: Queue) -> None:
        section = b"\x00\x53\x72" + encode({"mine": 2, "x-opt-partition-key": "k"})
        message = one(ingress, queue, section, BODY)
        assert encode(Symbol("mine")) in StoredMessage(message.data).annotations
        assert message.partition_key == "k"

    @pytest.mark.row("K8")
    def test_a_message_without_an_id_gets_one(self, ingress: Ingress, queue: Queue) -> None:
        given = encode_properties(subject="s", group_id="g", group_sequence=7)
        stored = StoredMessage(one(ingress, queue, given, BODY).data)
        fields = properties(stored.properties)
        assert fields == ["made-0", *properties(given)[1:]]
        bare = StoredMessage(one(ingress, queue, BODY).data)
        assert properties(bare.properties)[0] == "made-1"

    @pytest.mark.parametrize("message_id", ["m", "", b"binary", UUID(int=7), ULong(7)])
    def test_a_message_keeps_its_id_with_its_type(self, ingress: Ingress, queue: Queue, message_id: Any) -> None:
        given = encode_properties(message_id=message_id)
        assert StoredMessage(one(ingress, queue, given, BODY).data).properties == given

    @pytest.mark.row("K3", "K5")
    def test_the_session_id_is_the_key_and_else_the_partition_key(self, ingress: Ingress, queue: Queue) -> None:
        with_key = encode_annotations({"x-opt-partition-key": "k"})
        with_session = encode_properties(group_id="k")
        assert one(ingress, queue, with_key, BODY).key == "k"
        assert one(ingress, queue, with_session, BODY).key == "k"
        assert one(ingress, queue, with_key, with_session, BODY).key == "k"

    @pytest.mark.row("K10")
    def test_the_message_id_is_no_key(self, ingress: Ingress, queue: Queue) -> None:
        assert one(ingress, queue, encode_properties(message_id="m"), BODY).key is None

    def test_null_keys_are_none(self, ingress: Ingress, queue: Queue) -> None:
        annotations = encode_annotations({"x-opt-partition-key": None, "x-opt-scheduled-enqueue-time": None})
        assert one(ingress, queue, annotations, encode_properties(), BODY).key is None

    def test_a_scheduled_enqueue_time_is_taken_and_stays_to_be_shown(self, ingress: Ingress, queue: Queue) -> None:
        known = len(ingress._annotations)
        for time_ms in (NEVER_MS, -62_135_596_800_000, 1_700_000_000_000):
            annotations = encode_annotations({"x-opt-scheduled-enqueue-time": Timestamp(time_ms)})
            message = one(ingress, queue, annotations, BODY)
            assert message.scheduled_ms == time_ms
            assert encode(Timestamp(time_ms)) in StoredMessage(message.data).annotations
        assert one(ingress, queue, BODY).scheduled_ms is None
        assert len(ingress._annotations) == known, "times do not fill what is remembered"

    @pytest.mark.row("K7", "K8")
    def test_with_duplicate_detection_the_message_id_is_a_key_whoever_made_it(
        self, ingress: Ingress, duplicates: Queue
    ) -> None:
        assert one(ingress, duplicates, encode_properties(message_id="m"), BODY).key == "m"
        assert one(ingress, duplicates, BODY).key == "made-0"
        with_key = encode_annotations({"x-opt-partition-key": "k"}) + encode_properties(message_id="m")
        message = one(ingress, duplicates, with_key, BODY)
        assert (message.key, message.message_id) == ("k", "m")

    def test_ids_of_different_types_are_different_ids(self, ingress: Ingress, duplicates: Queue) -> None:
        ids: list[Any] = ["1", ULong(1), b"1", b"\x01", UUID(int=1), str(UUID(int=1)), "\0ULong 1", "\0\0ULong 1", ""]
        found = [one(ingress, duplicates, encode_properties(message_id=one_id), BODY).message_id for one_id in ids]
        assert len(set(found)) == len(ids)
        assert found[0] == "1"

    def test_messages_of_a_batch_come_in_order(self, ingress: Ingress, queue: Queue) -> None:
        inner = [encode_properties(message_id=name) + BODY for name in "abc"]
        batch = encode_batch(inner, encode_properties(message_id="envelope", group_id="of the envelope"))
        found = ingress.messages_of(delivery(batch, BATCH_FORMAT), queue)
        assert [properties(StoredMessage(message.data).properties)[0] for message in found] == ["a", "b", "c"]
        assert [message.key for message in found] == [None, None, None]

    def test_what_is_remembered_is_bounded(self, ingress: Ingress, queue: Queue) -> None:
        for number in range(REMEMBERED_MAX + 500):
            one(ingress, queue, encode_annotations({"mine": number}), encode_header(ttl=number), BODY)
        one(ingress, queue, encode_annotations({"mine": "x" * 5_000}), BODY)
        known = [*ingress._annotations, *ingress._headers]
        assert len(known) <= 2 * REMEMBERED_MAX
        assert max(map(len, known)) < 1_100


class TestWhatIsRefused:
    @pytest.mark.row("K6")
    def test_another_session_id_than_partition_key(self, ingress: Ingress, queue: Queue) -> None:
        annotations = encode_annotations({"x-opt-partition-key": "a"})
        with pytest.raises(InvalidOperation, match="'b' and the partition key 'a'"):
            one(ingress, queue, annotations, encode_properties(group_id="b"), BODY)

    @pytest.mark.parametrize(
        ("name", "section"),
        [
            ("message id", encode_properties(message_id="m" * (KEY_CHARS_MAX + 1))),
            ("session id", encode_properties(group_id="g" * (KEY_CHARS_MAX + 1))),
            ("partition key", encode_annotations({"x-opt-partition-key": "k" * (KEY_CHARS_MAX + 1)})),
            ("partition key", encode_annotations({"x-opt-partition-key": 7})),
        ],
    )
    def test_a_key_that_is_too_long_or_no_text(self, ingress: Ingress, queue: Queue, name: str, section: bytes) -> None:
        with pytest.raises(ArgumentError, match=name):
            one(ingress, queue, section, BODY)

    def test_keys_of_the_greatest_length_are_taken(self, ingress: Ingress, queue: Queue) -> None:
        key = "k" * KEY_CHARS_MAX
        assert one(ingress, queue, encode_properties(message_id=key, group_id=key), BODY).key == key

    @pytest.mark.parametrize(
        "value", ["tomorrow", True, [1], ULong(2**64 - 1), ULong(TIME_MAX_MS + 1), Timestamp(-(2**63))]
    )
    def test_a_scheduled_enqueue_time_that_is_none(self, ingress: Ingress, queue: Queue, value: Any) -> None:
        annotations = encode_annotations({"x-opt-scheduled-enqueue-time": value})
        with pytest.raises(ArgumentError, match=r"x-opt-scheduled-enqueue-time is .* must be a timestamp"):
            one(ingress, queue, annotations, BODY)

    @pytest.mark.row("T7")
    def test_a_message_without_session_id_where_sessions_are_required(self, ingress: Ingress, sessions: Queue) -> None:
        with pytest.raises(InvalidOperation, match="'sessions' requires sessions"):
            one(ingress, sessions, encode_annotations({"x-opt-partition-key": "k"}), BODY)
        assert one(ingress, sessions, encode_properties(group_id=""), BODY).key == ""

    def test_more_than_the_entity_takes(self, ingress: Ingress, queue: Queue) -> None:
        with pytest.raises(MessageTooLarge):
            one(ingress, queue, encode_data(bytes(queue.message_size_max_bytes)))

    @pytest.mark.parametrize(
        "sections",
        [
            pytest.param([b"\x01"], id="no section"),
            pytest.param([BODY[:-1]], id="cut short"),
            pytest.param([encode_header(), encode_header(), BODY], id="header twice"),
            pytest.param([raw_section(0x70, b"\0\0\0\1\x99"), BODY], id="header garbage"),
            pytest.param([b"\x00\x53\x70" + encode(["durable"]), BODY], id="header of other types"),
            pytest.param([b"\x00\x53\x70" + encode([True, UInt(999)]), BODY], id="priority out of range"),
            pytest.param([raw_section(0x72, b"\0\0\0\2\xa3\x01a\x99", 0xD1), BODY], id="annotation value garbage"),
            pytest.param([raw_section(0x72, b"\0\0\0\1\xa3\x01a", 0xD1), BODY], id="odd annotations"),
            pytest.param([b"\x00\x53\x72" + encode({"é": 1}), BODY], id="annotation key that is no symbol"),
            pytest.param([b"\x00\x53\x72" + encode({7: 1}), BODY], id="annotation key that is no text"),
            pytest.param(
                [raw_section(0x72, (140_000).to_bytes(4) + b"\xa3\x00\x40" * 70_000, 0xD1), BODY],
                id="70,000 annotations",
            ),
            pytest.param([raw_section(0x73, b"\0\0\0\1\x99"), BODY], id="properties garbage"),
            pytest.param([raw_section(0x73, b"\0\0\0\2\xa1\x01m\x99"), BODY], id="garbage behind the message id"),
            pytest.param([b"\x00\x53\x73" + encode([None] * 14), BODY], id="too many properties"),
            pytest.param([b"\x00\x53\x73" + encode([[]]), BODY], id="message id of another type"),
            pytest.param([b"\x00\x53\x73" + encode([None] * 10 + [7]), BODY], id="session id of another type"),
            pytest.param([raw_section(0x74, b"\0\0\0\2\xa1\x01a\x99", 0xD1), BODY], id="application property garbage"),
            pytest.param([raw_section(0x74, b"\0\0\0\2\xa1\x01\xff\x40", 0xD1), BODY], id="a name that is no UTF-8"),
            pytest.param([b"\x00\x53\x74" + encode({7: 1}), BODY], id="application property without a name"),
            pytest.param([b"\x00\x53\x77\x99"], id="value garbage"),
            pytest.param([b"\x00\x53\x77" + b"\xc0\x03\x01\xa1\x05"], id="garbage inside a value"),
            pytest.param([b"\x00\x53\x77" + b"\x00" * 50_000 + b"\x40"], id="descriptors of descriptors"),
            pytest.param([raw_section(0x76, b"\0\0\0\1\x99")], id="sequence garbage"),
            pytest.param([BODY, raw_section(0x78, b"\0\0\0\2\xa3\x01a\x99", 0xD1)], id="footer garbage"),
            pytest.param([BODY, encode_value(1)], id="two kinds of bodies"),
        ],
    )
    def test_what_no_client_could_read(self, ingress: Ingress, queue: Queue, sections: list[bytes]) -> None:
        with pytest.raises(PartibusError):
            one(ingress, queue, *sections)
        good = encode_properties(message_id="good") + BODY
        batch = encode_batch([good, b"".join(sections), good])
        with pytest.raises(PartibusError):
            ingress.messages_of(delivery(batch, BATCH_FORMAT), queue)


def test_a_batch_that_a_client_filled_to_its_bound(ingress: Ingress, queue: Queue) -> None:
    """The client does not count what it sends around the messages."""
    body = encode_data(bytes(100_000))
    over = queue.batch_size_max_bytes - len(encode_batch([body, body, encode_data(bytes(1_000))])) + 1_000
    filled = encode_batch([body, body, encode_data(bytes(over + BATCH_LEEWAY_BYTES))])
    assert len(filled) == queue.batch_size_max_bytes + BATCH_LEEWAY_BYTES
    assert len(ingress.messages_of(delivery(filled, BATCH_FORMAT), queue)) == 3
    larger = encode_batch([body, body, encode_data(bytes(over + BATCH_LEEWAY_BYTES + 1))])
    with pytest.raises(MessageTooLarge):
        ingress.messages_of(delivery(larger, BATCH_FORMAT), queue)


class TestManyValues:
    """Runs with more than some thousand values are stored as they are: looking at the rest would take too long."""

    UNREADABLE = b"\x00\x53\x77\xc0\x03\x01\x56\x07"
    """A list of a boolean that is neither true nor false."""

    def test_a_body_that_can_not_be_read_is_refused_within_the_first_values(
        self, ingress: Ingress, queue: Queue
    ) -> None:
        ingress.begin()
        one(ingress, queue, encode_value([None] * 5_000))
        with pytest.raises(ArgumentError, match="a boolean is 0 or 1"):
            one(ingress, queue, self.UNREADABLE)
        one(ingress, queue, encode_value([None] * 4_000))
        one(ingress, queue, encode_value([None] * 50_000))
        one(ingress, queue, encode_value([None] * 997))
        assert one(ingress, queue, self.UNREADABLE).data.endswith(self.UNREADABLE)
        ingress.begin()
        with pytest.raises(ArgumentError, match="a boolean is 0 or 1"):
            one(ingress, queue, self.UNREADABLE)

    def test_properties_with_many_values_are_stored(self, ingress: Ingress, queue: Queue) -> None:
        given = encode_application_properties({"a": [None] * 20_000})
        assert StoredMessage(one(ingress, queue, given, BODY).data).application_properties == given


def test_keys_that_come_as_the_bytes_of_a_text(ingress: Ingress, queue: Queue) -> None:
    annotations = encode_annotations({"x-opt-partition-key": "schlüssel".encode()})
    found = one(ingress, queue, annotations, BODY)
    assert found.partition_key == "schlüssel"
    assert encode("schlüssel") in StoredMessage(found.data).annotations
    properties = raw_section(0x73, (11).to_bytes(4) + b"\x40" * 10 + b"\xa0\x03key")
    assert one(ingress, queue, properties, BODY).session_id == "key"
    with pytest.raises(ArgumentError, match="the bytes of one in UTF-8"):
        one(ingress, queue, encode_annotations({"x-opt-partition-key": b"\xff"}), BODY)


def test_a_sender_does_not_choose_the_receives_of_a_dead_letter(ingress: Ingress, queue: Queue) -> None:
    annotations = encode_annotations({"x-opt-partibus-receives": 7, "x-opt-partibus-sqs-trace": "t"})
    message = one(ingress, queue, annotations, BODY)
    assert (read_stored(message.data).receives, read_stored(message.data).trace) == (0, "t")
    dead = read_stored(with_receives(message.data, 2))
    assert dead.receives == 2
