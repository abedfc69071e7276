"""Messages for tests of rules, and a look into what became of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from partibus.amqp.codec.decoder import decode
from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.types import Symbol
from partibus.amqp.section_encoding import encode_application_properties, encode_data, encode_properties
from partibus.amqp.section_fields import Property, properties
from partibus.message import Message, StoredMessage, pack

NOW_MS = 1_700_000_000_000


def message(
    user: Mapping[str, object] | None = None,
    *,
    ttl_ms: int | None = None,
    scheduled_ms: int | None = None,
    annotations: Mapping[str, object] | None = None,
    **fields: Any,
) -> Message:
    """A message with these application properties and fields of the properties section."""
    pairs = {Symbol(key): value for key, value in (annotations or {}).items()}
    return Message(
        pack(
            ttl_ms=ttl_ms,
            annotation_count=len(pairs),
            annotations=b"".join(encode(key) + encode(value) for key, value in pairs.items()),
            properties=encode_properties(**{"message_id": "id", **fields}),
            application_properties=encode_application_properties(user) if user else b"",
            rest=encode_data(b"body"),
        ),
        partition_key=(annotations or {}).get("x-opt-partition-key"),  # type: ignore[arg-type]
        session_id=fields.get("group_id"),
        ttl_ms=ttl_ms,
        scheduled_ms=scheduled_ms,
    )


def user_of(changed: Message) -> dict[str, object]:
    """Application properties as they are on the wire."""
    decoded, _ = decode(StoredMessage(changed.data).application_properties, 3)
    assert isinstance(decoded, dict)
    return decoded


def field_of(changed: Message, which: Property) -> object:
    """One field of the properties section."""
    return properties(StoredMessage(changed.data).properties)[which]
