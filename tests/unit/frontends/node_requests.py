"""Requests to `$management` nodes as clients write them, and what is in the replies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from partibus.amqp import Delivery
from partibus.amqp.codec.types import Array, Int, Symbol, Timestamp
from partibus.amqp.section_encoding import encode_annotations, encode_data, encode_properties
from partibus.client.messages import IncomingMessage
from tests.unit.frontends.harness import Client, World

LONG, UUID_CODE = 0x81, 0x98


def ask(
    client: Client, address: str, operation: str, body: Mapping[str, object] | None = None, **options: Any
) -> tuple[int, dict[Any, Any]]:
    """Status code and body of a reply that says success, whose types are what clients insist on."""
    reply = client.request(f"{address}/$management", f"com.microsoft:{operation}", dict(body or {}), **options)
    properties = reply.application_properties
    status = properties["statusCode"]
    assert isinstance(status, Int)
    assert isinstance(properties["statusDescription"], str)
    assert status in (200, 204), properties
    assert status == 204 or "errorCondition" not in properties
    content = reply.body
    assert isinstance(content, dict if status == 200 else None.__class__)
    return int(status), content or {}


def refusal(
    client: Client, address: str, operation: str, body: Mapping[str, object] | None = None, **options: Any
) -> tuple[int, str, str]:
    """Status code, condition and text of a reply that says no."""
    reply = client.request(f"{address}/$management", f"com.microsoft:{operation}", dict(body or {}), **options)
    properties = reply.application_properties
    status, condition = properties["statusCode"], properties["errorCondition"]
    assert isinstance(status, Int)
    assert isinstance(condition, Symbol)
    return int(status), str(condition), str(properties["statusDescription"])


def longs(numbers: Iterable[int]) -> Array:
    return Array(LONG, numbers)


def uuids(tokens: Iterable[UUID]) -> Array:
    return Array(UUID_CODE, tokens)


def token_of(delivery: Delivery) -> UUID:
    """The lock token as clients read it from the delivery tag."""
    return UUID(bytes_le=delivery.tag)


def number_of(delivery: Delivery) -> int:
    number = IncomingMessage(delivery.payload).sequence_number
    assert number is not None
    return number


def messages(found: Mapping[Any, Any]) -> list[IncomingMessage]:
    """The messages in the body of a reply."""
    return [IncomingMessage(item["message"]) for item in found.get("messages", [])]


def bodies(found: Mapping[Any, Any]) -> list[object]:
    return [message.body for message in messages(found)]


def peek(client: Client, address: str, *, count: int = 100, session: str | None = None) -> list[IncomingMessage]:
    """Everything that there is to peek at."""
    body: dict[str, object] = {"from-sequence-number": 0, "message-count": Int(count)}
    if session is not None:
        body["session-id"] = session
    seen: list[IncomingMessage] = []
    while True:
        status, found = ask(client, address, "peek-message", body)
        if status == 204:
            return seen
        seen += messages(found)
        last = seen[-1].sequence_number
        assert last is not None
        body["from-sequence-number"] = last + 1


def now_ms(world: World) -> int:
    return int(world.timeline.now_ms())


def scheduled(time_ms: int, body: bytes = b"body", *, key: str | None = None, session: str | None = None) -> bytes:
    """An encoded message with a scheduled enqueue time."""
    annotations: dict[str, object] = {"x-opt-scheduled-enqueue-time": Timestamp(time_ms)}
    if key is not None:
        annotations["x-opt-partition-key"] = key
    return encode_annotations(annotations) + encode_properties(group_id=session) + encode_data(body)


def defer_all(client: Client, queue: str, deliveries: Sequence[Delivery]) -> list[int]:
    """Defer over the management node; the sequence numbers."""
    status, _ = ask(
        client,
        queue,
        "update-disposition",
        {"disposition-status": "defered", "lock-tokens": uuids(map(token_of, deliveries))},
    )
    assert status == 200
    return [number_of(delivery) for delivery in deliveries]
