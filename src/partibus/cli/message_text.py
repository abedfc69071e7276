"""A message as JSON values, and as the cells of a table."""

import base64
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from uuid import UUID

from partibus.amqp.codec.types import Array, Described, Timestamp
from partibus.amqp.errors import DecodeError
from partibus.cli.output import print_table
from partibus.client.errors import ClientError
from partibus.client.messages import IncomingMessage

_BODY_SHOWN = 200
"""Characters of a body in a table; `--json` gives all of it."""

_COLUMNS = ("sequence", "enqueued", "id", "key", "state", "deliveries", "properties", "body")


def message_json(message: IncomingMessage) -> dict[str, object]:
    """Return all fields of a message, without absent ones.

    A body that is not UTF-8 text is in ``body_base64``. Raises `ClientError` for a message that can't be decoded.
    """
    try:
        return _values(message)
    except DecodeError as error:
        raise _unreadable(error) from error


def print_messages(messages: Iterable[IncomingMessage]) -> None:
    """Print messages as a table, in order. Raises `ClientError` before it prints."""
    try:
        rows = [_row(message) for message in messages]
    except DecodeError as error:
        raise _unreadable(error) from error
    print_table(_COLUMNS, rows, numeric=("sequence", "deliveries"))


def _unreadable(error: DecodeError) -> ClientError:
    return ClientError(f"a message can not be read: {error}.")


def _values(message: IncomingMessage) -> dict[str, object]:
    values: dict[str, object] = {
        "sequence_number": message.sequence_number,
        "partition_id": message.partition_id,
        "enqueued_time": _time(message.enqueued_ms),
        "scheduled_enqueue_time": _time(message.scheduled_ms),
        "locked_until": _time(message.locked_until_ms),
        "state": message.state,
        "delivery_count": message.delivery_count,
        "message_id": message.message_id,
        "partition_key": message.partition_key,
        "session_id": message.session_id,
        "correlation_id": message.correlation_id,
        "subject": message.subject,
        "content_type": message.content_type,
        "to": message.to,
        "reply_to": message.reply_to,
        "time_to_live_ms": message.header.ttl,
        "application_properties": message.application_properties or None,
        **_body(message.body),
    }
    return {key: _plain(value) for key, value in values.items() if value is not None}


def _row(message: IncomingMessage) -> list[object]:
    body = _body(message.body)
    text = str(body.get("body", f"(binary) {body.get('body_base64', '')}"))
    return [
        message.sequence_number,
        _time(message.enqueued_ms),
        _plain(message.message_id),
        message.session_id if message.session_id is not None else message.partition_key,
        message.state,
        message.delivery_count,
        " ".join(f"{key}={_plain(value)}" for key, value in message.application_properties.items()) or None,
        text if len(text) <= _BODY_SHOWN else f"{text[:_BODY_SHOWN]}… ({len(text)} characters)",
    ]


def _body(body: object) -> dict[str, object]:
    if not isinstance(body, bytes):
        return {"body": _plain(body)}
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def _time(ms: int | None) -> str | None:
    """ISO 8601 in UTC, with milliseconds."""
    if ms is None:
        return None
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"


def _plain(value: object) -> object:
    """Return an AMQP value as JSON."""
    if isinstance(value, Timestamp):
        return _time(int(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Described):
        return _plain(value.value)
    if isinstance(value, Array):
        return [_plain(one) for one in value.items]
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(one) for key, one in value.items()}
    return str(value)
