"""Every content of a message comes out the same, to the type, also for another library than the sender's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType
from azure.servicebus.exceptions import MessageSizeExceededError

from tests.conformance.clients.interface import WAIT_S, Outgoing, receive_all
from tests.conformance.clients.javascript import JavaScriptServiceBus
from tests.conformance.clients.python_sync import PythonSync
from tests.conformance.conftest import Clients, CountMessages

MakeQueue = Callable[..., str]

PROPERTIES: dict[str, Any] = {
    "true": True,
    "false": False,
    "zero": 0,
    "negative": -1,
    "int": 2**31 - 1,
    "lowest": -(2**31),
    "double": 1.5,
    "text": "Zürich 東京 🛫",
    "empty": "",
    "uuid": UUID("00112233-4455-6677-8899-aabbccddeeff"),
}
"""Every type that the Python library takes as a property, except times, which it gives back as numbers, and binary,
which it sends as text."""


@pytest.fixture
def queue(make_queue: MakeQueue) -> str:
    """How messages are kept does not depend on partitions."""
    return make_queue(EnablePartitioning=True)


def exchange(python: PythonSync, queue: str, message: ServiceBusMessage | AmqpAnnotatedMessage) -> Any:
    """Send and receive with the Python library; the message as it shows it."""
    python.sender(queue).send_messages(message)
    (received,) = python.receiver(queue, delete=True).receive_messages(1, WAIT_S)
    return received


def decoded(value: Any) -> Any:
    """This library hands out texts in maps as UTF-8."""
    return value.decode() if isinstance(value, bytes) else value


def test_property_of_each_type_comes_back_with_its_type(python: PythonSync, queue: str) -> None:
    properties: dict[Any, Any] = dict(PROPERTIES)
    received = exchange(python, queue, ServiceBusMessage(b"", application_properties=properties))
    found = {decoded(key): value for key, value in received.application_properties.items()}
    for name, value in PROPERTIES.items():
        expected = value.encode() if isinstance(value, str) else value
        assert (name, found[name], type(found[name])) == (name, expected, type(expected))
    assert len(found) == len(PROPERTIES)


def test_another_library_reads_the_same_types(clients: Clients, python: PythonSync, queue: str) -> None:
    proton = clients.get("proton")
    when = datetime(2013, 1, 1, 5, 15, tzinfo=UTC)
    properties: dict[Any, Any] = {**PROPERTIES, "time": when}
    sent = ServiceBusMessage(b"", application_properties=properties)
    python.sender(queue).send_messages(sent)
    (received,) = receive_all(proton, queue, 1, delete=True)
    assert {name: received.properties[name] for name in PROPERTIES} == PROPERTIES
    assert type(received.properties["time"]).__name__ == "timestamp"
    assert received.properties["time"] == int(when.timestamp() * 1000)


def test_numbers_and_times_of_javascript_reach_python(
    javascript: JavaScriptServiceBus, python: PythonSync, queue: str
) -> None:
    properties = {"int": 7, "long": 2**40, "double": 0.25, "flag": False, "text": "ü"}
    javascript.send(queue, Outgoing(b"", properties=properties))
    (received,) = receive_all(python, queue, 1, delete=True)
    assert received.properties == properties


def test_property_of_each_amqp_type_comes_back_with_its_type(clients: Clients, queue: str) -> None:
    client = clients.get("proton")
    import proton

    properties = {
        "ubyte": proton.ubyte(255),
        "byte": proton.byte(-128),
        "ushort": proton.ushort(65_535),
        "short": proton.short(-32_768),
        "uint": proton.uint(2**32 - 1),
        "int": proton.int32(-(2**31)),
        "ulong": proton.ulong(2**64 - 1),
        "long": -(2**63),
        "float": proton.float32(0.5),
        "double": 1e300,
        "decimal": proton.decimal128(bytes(range(16))),
        "char": proton.char("🛫"),
        "timestamp": proton.timestamp(-62_135_596_800_000),
        "uuid": UUID(int=2**128 - 1),
        "symbol": proton.symbol("a-symbol"),
        "text": "x" * 300,
        "null": None,
    }
    client.send(queue, Outgoing(b"", properties=properties))
    (received,) = receive_all(client, queue, 1, delete=True)
    assert {name: (type(v), v) for name, v in received.properties.items()} == {
        name: (type(v), v) for name, v in properties.items()
    }


@pytest.mark.parametrize(
    "body",
    [None, True, 42, 2.5, "text", b"binary", [1, "two", None], {"key": [1, 2]}, UUID(int=1)],
    ids=["null", "boolean", "integer", "double", "text", "binary", "list", "map", "uuid"],
)
def test_value_body_is_kept(python: PythonSync, queue: str, body: Any) -> None:
    received = exchange(python, queue, AmqpAnnotatedMessage(value_body=body))
    assert received.body_type is AmqpMessageBodyType.VALUE
    assert plain(received.body) == body


def plain(value: Any) -> Any:
    """Texts inside of values come as UTF-8; the one binary of these tests stays."""
    if isinstance(value, bytes) and value != b"binary":
        return value.decode()
    if isinstance(value, dict):
        return {plain(key): plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list) else value


def test_body_of_several_data_sections_is_kept(python: PythonSync, queue: str) -> None:
    received = exchange(python, queue, AmqpAnnotatedMessage(data_body=[b"one", b"", b"three"]))
    assert received.body_type is AmqpMessageBodyType.DATA
    assert list(received.body) == [b"one", b"", b"three"]


def test_body_of_several_sequences_is_kept(python: PythonSync, queue: str) -> None:
    received = exchange(python, queue, AmqpAnnotatedMessage(sequence_body=[[1, 2], ["three"]]))
    assert received.body_type is AmqpMessageBodyType.SEQUENCE
    assert plain(list(received.body)) == [[1, 2], ["three"]]


def test_empty_body_is_kept(python: PythonSync, queue: str) -> None:
    received = exchange(python, queue, ServiceBusMessage(b""))
    assert list(received.body) == [b""]


def test_all_sections_of_a_raw_message_are_kept(python: PythonSync, queue: str) -> None:
    """The library writes sections in an order of its own and pads what it leaves out."""
    sent = AmqpAnnotatedMessage(
        data_body=b"body",
        header={"priority": 7, "durable": True, "time_to_live": 60_000},
        properties={"message_id": "m", "correlation_id": "c", "reply_to": "r", "to": "t", "content_type": "text/plain"},
        application_properties={"a": 1},
        annotations={"x-opt-of-mine": "kept"},
        footer={"sum": "f"},
    )
    raw = exchange(python, queue, sent).raw_amqp_message
    assert (raw.header.priority, raw.header.durable, raw.header.time_to_live) == (7, True, 60_000)
    properties = raw.properties
    assert [decoded(properties.message_id), decoded(properties.correlation_id)] == ["m", "c"]
    assert [decoded(properties.reply_to), decoded(properties.to)] == ["r", "t"]
    assert decoded(properties.content_type) == "text/plain"
    assert {decoded(key): value for key, value in raw.application_properties.items()} == {"a": 1}
    assert {decoded(key): decoded(value) for key, value in raw.annotations.items()}["x-opt-of-mine"] == "kept"
    assert {decoded(key): decoded(value) for key, value in raw.footer.items()} == {"sum": "f"}


def test_annotations_of_the_broker_can_not_be_forged(python: PythonSync, queue: str) -> None:
    forged = {"x-opt-sequence-number": 4711, "x-opt-enqueued-time": 0, "x-opt-deadletter-source": "other"}
    received: ServiceBusReceivedMessage = exchange(
        python, queue, AmqpAnnotatedMessage(data_body=b"", annotations=forged)
    )
    assert received.sequence_number is not None
    assert received.sequence_number & (1 << 48) - 1 == 1
    assert received.dead_letter_source is None
    assert received.enqueued_time_utc is not None
    assert datetime.now(UTC) - received.enqueued_time_utc < timedelta(hours=1)


@pytest.mark.parametrize("size", [0, 65_000, 65_535, 65_536, 131_072, 261_000])
def test_body_of_any_size_survives_the_cut_into_frames(
    javascript: JavaScriptServiceBus, python: PythonSync, queue: str, size: int
) -> None:
    body = bytes(i * 7 % 251 for i in range(size))
    javascript.send(queue, Outgoing(body))
    python.send(queue, Outgoing(body))
    assert {message.body for message in receive_all(javascript, queue, 2, delete=True)} == {body}


@pytest.mark.parametrize("size", [100, 255, 5_000])
@pytest.mark.parametrize("key", [None, "ключ" * 32])
def test_python_fills_a_batch_to_its_own_bound(
    python: PythonSync, make_queue: MakeQueue, messages_in: CountMessages, size: int, key: str | None
) -> None:
    queue = make_queue()
    count = 0
    with python.azure.get_queue_sender(queue) as sender:
        batch = sender.create_message_batch()
        with suppress(MessageSizeExceededError, ValueError):
            while True:
                batch.add_message(ServiceBusMessage(bytes(size), message_id=key, partition_key=key))
                count += 1
        with suppress(MessageSizeExceededError, ValueError):
            while True:
                batch.add_message(ServiceBusMessage(b"", message_id=key, partition_key=key))
                count += 1
        sender.send_messages(batch)
    assert messages_in(queue) == count
