"""Requests -> messages as they are stored (dialect section 10)."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Final, NoReturn

from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.types import Symbol, Timestamp
from partibus.amqp.section_encoding import encode_application_properties, encode_data, encode_properties
from partibus.amqp.section_fields import iter_map
from partibus.errors import ArgumentError, InvalidOperation, MessageTooLarge, QuotaExceeded
from partibus.message import TTL_MAX_MS, Message, lifetime_ms, pack
from partibus.namespace.namespace import Queue

BROKER_PROPERTIES = "BrokerProperties"
USER_PROPERTIES = "UserProperties"
KEY_CHARS_MAX = 128
"""Longest message id, session id and partition key (section 11.2)."""
INT64 = range(-(2**63), 2**63)

_TEXTS = {
    "CorrelationId": "correlation_id",
    "Label": "subject",
    "ReplyTo": "reply_to",
    "ReplyToSessionId": "reply_to_group_id",
    "To": "to",
}
"""Members that are fields of the properties section."""
_KEYS = ("MessageId", "SessionId", "PartitionKey", "ViaPartitionKey")
_SPAN = re.compile(r"(?:([0-9]{1,8})\.)?([0-9]{1,2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,7}))?")

STANDARD_HEADERS = frozenset(
    {
        *("accept", "accept-charset", "accept-encoding", "accept-language", "authorization", "brokerproperties"),
        *("cache-control", "connection", "content-encoding", "content-language", "content-length", "content-type"),
        *("cookie", "date", "dnt", "etag", "expect", "forwarded", "from", "host", "if-match", "if-none-match"),
        *("keep-alive", "location", "origin", "pragma", "proxy-authorization", "proxy-connection"),
        *("range", "referer", "server", "set-cookie", "te", "trailer", "transfer-encoding", "upgrade", "user-agent"),
        *("via", "www-authenticate", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"),
        *("x-ms-client-request-id", "x-ms-request-id", "x-ms-retrypolicy", "x-ms-version"),
        *("traceparent", "tracestate"),
    }
)
"""Headers that say something about the request, and not about the message."""


VALUES_MAX: Final = 40_000
"""Values in the JSON of a batch: room for 8 in each of 4,500 messages. Reading them takes 10 to 30 ms."""
_BETWEEN: Final = (b",", b"[", b"{")
PAIRS_MAX: Final = 16_384
"""User properties of a message; with more they are larger than the 64 KiB that a message may have."""


class MessageReader:
    """``new_message_id`` makes the id of a message that comes without one."""

    def __init__(self, new_message_id: Callable[[], str]) -> None:
        self._new_message_id = new_message_id

    def from_headers(self, headers: Iterable[tuple[str, str]], body: bytes, queue: Queue) -> Message:
        """Return the message of a request. Names of headers are in lower case. Raises a `PartibusError`."""
        broker: Mapping[str, object] = {}
        user: dict[str, object] = {}
        content_type = None
        for name, value in headers:
            if name == BROKER_PROPERTIES.lower():
                broker = _json_object(BROKER_PROPERTIES, value)
            elif name == "content-type":
                content_type = value
            elif name not in STANDARD_HEADERS:
                user[name] = _header_value(value)
        return self._message(broker, user, body, content_type, queue)

    def from_batch(self, body: bytes, queue: Queue) -> Iterator[Message]:
        """Yield the messages of a batch. Raises a `PartibusError` that refuses all of them."""
        check_value_count(body)
        try:
            batch = json.loads(body)
        except (ValueError, RecursionError):
            batch = None
        if not isinstance(batch, list) or not batch:
            raise ArgumentError("The body", body[:60], "a JSON array of at least one message")
        if len(batch) > queue.bounds.batch_messages:
            raise QuotaExceeded(
                f"A batch to '{queue.name}'", queue.bounds.batch_messages, "messages", "Send it as several batches."
            )
        total, most = 0, queue.batch_size_max_bytes
        for item in batch:
            message = self._of_batch(item, queue)
            # Three bytes of JSON are a message: there may be a million of them in a body.
            total += len(message.data)
            if total > most:
                raise QuotaExceeded(f"A batch to '{queue.name}'", most, "bytes", "Send less in one batch.")
            yield message

    def _of_batch(self, item: object, queue: Queue) -> Message:
        if not isinstance(item, dict) or not isinstance(item.get("Body", ""), str):
            raise ArgumentError("A message of the batch", item, "an object whose Body is text")
        broker = _object(BROKER_PROPERTIES, item.get(BROKER_PROPERTIES))
        user = _object(USER_PROPERTIES, item.get(USER_PROPERTIES))
        if len(user) > PAIRS_MAX:
            raise ArgumentError(USER_PROPERTIES, f"{len(user)} properties", f"at most {PAIRS_MAX} of them")
        content_type = _text("ContentType", broker.get("ContentType"))
        body = item.get("Body", "").encode("utf-8", "replace")
        properties = {_without_surrogates(name): _property(name, value) for name, value in user.items()}
        return self._message(broker, properties, body, content_type, queue)

    def _message(
        self,
        broker: Mapping[str, object],
        user: Mapping[str, object],
        body: bytes,
        content_type: str | None,
        queue: Queue,
    ) -> Message:
        message_id, session_id, partition_key, via_key = (_key(name, broker.get(name)) for name in _KEYS)
        _check_keys(session_id, partition_key, queue)
        if content_type is not None and not content_type.isascii():  # a symbol in AMQP
            raise ArgumentError("The content type", content_type, "of ASCII characters only")
        message_id = message_id or self._new_message_id()
        ttl_ms, scheduled_ms = _ttl_ms(broker), _scheduled_ms(broker.get("ScheduledEnqueueTimeUtc"))
        annotations: dict[str, object] = {
            "x-opt-partition-key": partition_key,
            "x-opt-via-partition-key": via_key,
            "x-opt-scheduled-enqueue-time": None if scheduled_ms is None else Timestamp(scheduled_ms),
        }
        pairs = [encode(Symbol(name)) + encode(value) for name, value in annotations.items() if value is not None]
        texts: dict[str, Any] = {field: _text(name, broker.get(name)) for name, field in _TEXTS.items()}
        properties = encode_properties(message_id=message_id, content_type=content_type, group_id=session_id, **texts)
        application_properties = encode_application_properties(user) if user else b""
        annotations_bytes = b"".join(pairs)
        data = pack(
            durable=_flag("ForcePersistence", broker.get("ForcePersistence")),
            ttl_ms=ttl_ms,
            annotation_count=len(pairs),
            annotations=annotations_bytes,
            properties=properties,
            application_properties=application_properties,
            rest=encode_data(body),
        )
        if len(data) > queue.batch_size_max_bytes:
            raise MessageTooLarge(queue.name, len(data), queue.batch_size_max_bytes)
        if len(data) > queue.bounds.small_bytes:
            headers_bytes = len(annotations_bytes) + len(properties) + len(application_properties)
            pairs_of_user = iter_map(application_properties) if application_properties else ()
            queue.bounds.check_headers(headers_bytes, pairs_of_user)
        return Message(
            data,
            message_id=message_id if queue.requires_duplicate_detection else None,
            partition_key=partition_key,
            session_id=session_id,
            ttl_ms=lifetime_ms(ttl_ms),
            scheduled_ms=scheduled_ms,
        )


def check_value_count(body: bytes) -> None:
    """Refuse JSON that may have more than `VALUES_MAX` values. Raises `QuotaExceeded`.

    Counting the separators costs a hundredth of reading the values. Separators in texts are left out where they would
    decide.
    """
    if sum(map(body.count, _BETWEEN)) <= VALUES_MAX:
        return
    body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if body.count(b'"') <= 4 * VALUES_MAX:
        body = b"".join(body.split(b'"')[::2])
        if sum(map(body.count, _BETWEEN)) <= VALUES_MAX:
            return
    raise QuotaExceeded("A batch in JSON", VALUES_MAX, "values", "Send it as several batches.")


def _check_keys(session_id: str | None, partition_key: str | None, queue: Queue) -> None:
    if session_id is not None and partition_key is not None and session_id != partition_key:  # row K6
        raise InvalidOperation(
            f"SessionId '{session_id}' and PartitionKey '{partition_key}' of a message differ. Set both to the same "
            "value, or only one of them."
        )
    if session_id is None and queue.requires_session:
        raise InvalidOperation(f"'{queue.name}' requires sessions, but a message has no SessionId. Set one.")


def _json_object(name: str, text: str) -> Mapping[str, object]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ArgumentError(name, text, "a JSON object") from None
    return _object(name, value)


def _object(name: str, value: object) -> Mapping[str, object]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ArgumentError(name, value, "a JSON object")
    return value


def _text(name: str, value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ArgumentError(name, value, "text")
    return None if value is None else _without_surrogates(value)


def _without_surrogates(text: str) -> str:
    """JSON can spell halves of characters, which are no text anywhere else."""
    return text.encode("utf-8", "replace").decode()


def _key(name: str, value: object) -> str | None:
    text = _text(name, value)
    if text is not None and len(text) > KEY_CHARS_MAX:
        raise ArgumentError(name, text, f"at most {KEY_CHARS_MAX} characters long")
    return text


def _flag(name: str, value: object) -> bool:
    if value is not None and not isinstance(value, bool):
        raise ArgumentError(name, value, "true or false")
    return bool(value)


def _ttl_ms(broker: Mapping[str, object]) -> int | None:
    """Return the value of ``TimeToLive`` in seconds, or of ``TimeToLiveTimeSpan``."""
    value = broker.get("TimeToLive")
    if value is None:
        return _span_ms(broker.get("TimeToLiveTimeSpan"))
    # Not a number is neither less nor more than anything.
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ArgumentError("TimeToLive", value, "a number of seconds above 0")
    return max(1, int(min(value * 1000, TTL_MAX_MS)))


def _span_ms(value: object) -> int | None:
    if value is None:
        return None
    match = _SPAN.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ArgumentError("TimeToLiveTimeSpan", value, "a time span such as 1.12:30:00")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups()[:4])
    ms = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + int((match[5] or "")[:3].ljust(3, "0"))
    return max(1, min(ms, TTL_MAX_MS))


def _scheduled_ms(value: object) -> int | None:
    if value is None:
        return None
    try:
        if not isinstance(value, str):
            raise TypeError
        date = parsedate_to_datetime(value)
        if date.tzinfo is None:  # without a zone, or with -0000: without this it would be the machine's time
            date = date.replace(tzinfo=UTC)
        return int(date.timestamp() * 1000)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError("ScheduledEnqueueTimeUtc", value, "a date such as Tue, 01 Dec 2026 08:00:00 GMT") from None


def _header_value(text: str) -> object:
    """Return a custom property: text in double quotes, a number, true or false; any other form is text."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text.removeprefix('"').removesuffix('"') if text.startswith('"') else text
    return _property("header", value) if isinstance(value, str | int | float) else text


def _no_constant(name: str) -> NoReturn:
    """JSON has no NaN and no Infinity, though Python reads them."""
    raise ValueError(name)


def _property(name: str, value: object) -> object:
    """Return a custom property as an AMQP value."""
    if isinstance(value, str):
        return _without_surrogates(value)
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and value in INT64):
        return value
    raise ArgumentError(f"The property {name}", value, "text, true, false, or a number of 64 bits")
