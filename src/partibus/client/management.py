"""Requests to `$management` nodes, also about rules, and their replies: the bodies are maps, built and read here.

Each function that reads a value raises `ClientError` naming the key when the value has another type.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol
from uuid import UUID

from msgspec import Struct, field

from partibus.amqp import DeliveryState, Modified, Rejected
from partibus.amqp.codec.types import Array, Described, Int, UInt
from partibus.client.errors import ClientError, LockLost, error_from_status
from partibus.client.messages import IncomingMessage
from partibus.client.outcomes import COMPLETE
from partibus.errors import ArgumentError


def items(body: Mapping[str, object], key: str) -> list[object]:
    """Return an AMQP list or array; [] when it is missing or null."""
    value = body.get(key)
    if value is None:
        return []
    if isinstance(value, Array):
        return value.items
    if isinstance(value, list):
        return value
    raise _unexpected(key, value, "a list")


def maps(body: Mapping[str, object], key: str) -> list[dict[str, object]]:
    """Return a list of maps with text keys."""
    found: list[dict[str, object]] = []
    for value in items(body, key):
        if not isinstance(value, dict):
            raise _unexpected(key, value, "a list of maps")
        found.append({str(name): entry for name, entry in value.items()})
    return found


def texts(body: Mapping[str, object], key: str) -> list[str]:
    """Return a list of texts."""
    values = items(body, key)
    for value in values:
        if not isinstance(value, str):
            raise _unexpected(key, value, "a list of texts")
    return [str(value) for value in values]


def integers(body: Mapping[str, object], key: str) -> list[int]:
    """Return a list of integers."""
    values = items(body, key)
    for value in values:
        if not isinstance(value, int):
            raise _unexpected(key, value, "a list of integers")
    return [int(value) for value in values if isinstance(value, int)]


def binary(body: Mapping[str, object], key: str) -> bytes:
    """Return a binary value."""
    value = body.get(key)
    if not isinstance(value, bytes):
        raise _unexpected(key, value, "binary")
    return value


def integer(body: Mapping[str, object], key: str) -> int:
    """Return an integer."""
    value = body.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise _unexpected(key, value, "an integer")
    return int(value)


def text(body: Mapping[str, object], key: str) -> str:
    """Return a text."""
    value = body.get(key)
    if not isinstance(value, str):
        raise _unexpected(key, value, "text")
    return str(value)


def _unexpected(key: str, value: object, wanted: str) -> ClientError:
    return ClientError(f"the broker's reply has {type(value).__name__} in '{key}', not {wanted}")


PEEK = "com.microsoft:peek-message"
RECEIVE_DEFERRED = "com.microsoft:receive-by-sequence-number"
SETTLE = "com.microsoft:update-disposition"
_LOST_TOKENS = "partibus:lost-lock-tokens"
_NO_CONTENT = 204
_LONGS = 0x81
_UUIDS = 0x98


class DeferredMessage(Struct, frozen=True):
    """A deferred message received by its number, and its lock token (None if it was deleted)."""

    message: IncomingMessage
    lock_token: UUID | None


class Requests(Protocol):
    """A blocking client, for modules that need only its requests (`partibus.client.sync.Client`)."""

    def request(
        self, entity: str | None, operation: str, body: Mapping[str, object], *, timeout: float | None = None
    ) -> dict[str, object]:
        """Perform an operation of an entity's `$management` node, or of the namespace's for ""."""
        ...


class Reply(Struct, frozen=True):
    """The application properties and body of a reply."""

    properties: dict[str, object]
    body: object


def request_properties(operation: str, timeout_s: float) -> dict[str, object]:
    """Return the application properties of a request."""
    return {"operation": operation, "com.microsoft:server-timeout": UInt(int(timeout_s * 1000))}


def body_of(reply: Reply, what: str) -> dict[str, object]:
    """Return the body of a reply, {} where it has none. Raises the error that the reply states."""
    status = reply.properties.get("statusCode")
    if not isinstance(status, int):
        raise ClientError(f"{what}: the reply has no statusCode; is this a Service Bus endpoint?")
    if not 200 <= status < 300:
        description = str(reply.properties.get("statusDescription") or "")
        condition = reply.properties.get("errorCondition")
        error = error_from_status(what, status, description, None if condition is None else str(condition))
        if isinstance(error, LockLost):
            error.tokens = _lost_tokens(reply.body)
        raise error
    if status == _NO_CONTENT or not isinstance(reply.body, dict):
        return {}
    return {str(key): value for key, value in reply.body.items()}


def _lost_tokens(body: object) -> tuple[UUID, ...]:
    """Return the lost lock tokens that an answer names; only this broker names them."""
    found = body.get(_LOST_TOKENS) if isinstance(body, dict) else None
    tokens = found.items if isinstance(found, Array) else []
    return tuple(token for token in tokens if isinstance(token, UUID))


def peek_arguments(from_sequence: int, count: int, session: str | None) -> dict[str, object]:
    """Return the body of a request to peek."""
    return _of_session({"from-sequence-number": sequence_number(from_sequence), "message-count": Int(count)}, session)


def peeked_messages(reply: Mapping[str, object]) -> list[IncomingMessage]:
    """Return the messages in the answer to a peek."""
    return [IncomingMessage(binary(entry, "message")) for entry in maps(reply, "messages")]


def deferred_arguments(sequence_numbers: Sequence[int], delete: bool, session: str | None) -> dict[str, object]:
    """Return the body of a request for deferred messages."""
    wanted = {
        "sequence-numbers": number_array(sequence_numbers),
        "receiver-settle-mode": UInt(0 if delete else 1),
    }
    return _of_session(wanted, session)


def deferred_messages(reply: Mapping[str, object]) -> list[DeferredMessage]:
    """Return the messages in the answer to a request for deferred ones."""
    found = [(entry, entry.get("lock-token")) for entry in maps(reply, "messages")]
    return [
        DeferredMessage(IncomingMessage(binary(entry, "message"), token=known), known)
        for entry, token in found
        for known in [token if isinstance(token, UUID) else None]
    ]


def settle_arguments(
    lock_tokens: Sequence[UUID],
    status: str,
    *,
    reason: str | None = None,
    description: str | None = None,
    session: str | None = None,
) -> dict[str, object]:
    """Return the body of a request to settle messages by their tokens."""
    arguments: dict[str, object] = {"disposition-status": status, "lock-tokens": token_array(lock_tokens)}
    if reason is not None:
        arguments["deadletter-reason"] = reason
    if description is not None:
        arguments["deadletter-description"] = description
    return _of_session(arguments, session)


def outcome_arguments(lock_tokens: Sequence[UUID], outcome: DeliveryState, session: str | None) -> dict[str, object]:
    """Return the body of a request that gives messages an outcome by their tokens."""
    if isinstance(outcome, Rejected):
        info = (outcome.error.info if outcome.error is not None else None) or {}
        reason, description = info.get("DeadLetterReason"), info.get("DeadLetterErrorDescription")
        return settle_arguments(
            lock_tokens,
            "suspended",
            reason=None if reason is None else str(reason),
            description=None if description is None else str(description),
            session=session,
        )
    if isinstance(outcome, Modified) and outcome.undeliverable_here:
        return settle_arguments(lock_tokens, "defered", session=session)
    return settle_arguments(lock_tokens, "completed" if outcome is COMPLETE else "abandoned", session=session)


def token_array(lock_tokens: Sequence[UUID]) -> Array:
    """Return lock tokens as a request holds them."""
    return Array(_UUIDS, list(lock_tokens))


def number_array(numbers: Sequence[int]) -> Array:
    """Return sequence numbers as a request holds them. Raises `ArgumentError`."""
    return Array(_LONGS, [sequence_number(number) for number in numbers])


def sequence_number(number: int) -> int:
    """Check a sequence number. Raises `ArgumentError`."""
    if isinstance(number, bool) or not isinstance(number, int) or not -(1 << 63) <= number < 1 << 63:
        raise ArgumentError("sequence number", number, "a whole number of 64 bits, as messages have it")
    return number


def _of_session(arguments: dict[str, object], session: str | None) -> dict[str, object]:
    return arguments if session is None else arguments | {"session-id": session}


CORRELATION_TEXTS = (
    "correlation-id",
    "message-id",
    "to",
    "reply-to",
    "label",
    "session-id",
    "reply-to-session-id",
    "content-type",
)
"""Fields that a correlation filter compares beside application properties, in wire order."""
PAGE = 100
ADD_RULE = "com.microsoft:add-rule"
REMOVE_RULE = "com.microsoft:remove-rule"
LIST_RULES = "com.microsoft:enumerate-rules"

_SQL_FILTER, _TRUE_FILTER, _FALSE_FILTER, _CORRELATION_FILTER = range(0x1370000006, 0x137000000A)


class RuleInfo(Struct, frozen=True):
    """A rule with an SQL text, or with values to compare."""

    name: str
    sql: str | None = None
    correlation: Mapping[str, object] = field(default_factory=dict)
    """The values by the names in `CORRELATION_TEXTS`, and ``properties``."""
    action: str | None = None


def add_arguments(rule: RuleInfo) -> dict[str, object]:
    """Return the body of a request to add a rule."""
    described: dict[str, object] = {"rule-name": rule.name}
    if rule.sql is not None:
        described["sql-filter"] = {"expression": rule.sql}
    else:
        described["correlation-filter"] = dict(rule.correlation)
    if rule.action is not None:
        described["sql-rule-action"] = {"expression": rule.action}
    return {"rule-name": rule.name, "rule-description": described}


def list_arguments(skip: int) -> dict[str, object]:
    """Return the body of a request for a page of rules."""
    return {"top": Int(PAGE), "skip": Int(skip)}


def listed(reply: Mapping[str, object]) -> list[RuleInfo]:
    """Return the rules of a page."""
    return [_rule(entry.get("rule-description")) for entry in maps(reply, "rules")]


def _rule(described: object) -> RuleInfo:
    """Convert the described list of section 6.3. Raises `ClientError` for any other value."""
    match described:
        case Described(value=[Described() as selects, Described() as action, str(name), *_]):
            sql, correlation = _filter(selects)
            match action.value:
                case [str(expression), *_]:
                    return RuleInfo(name, sql, correlation, expression)
            return RuleInfo(name, sql, correlation)
    raise ClientError("the broker's reply has something in 'rule-description' that is no rule")


def _filter(described: Described) -> tuple[str | None, Mapping[str, object]]:
    match described.descriptor, described.value:
        case int(code), [str(expression), *_] if code == _SQL_FILTER:
            return expression, {}
        case int(code), _ if code == _TRUE_FILTER:
            return "1=1", {}
        case int(code), _ if code == _FALSE_FILTER:
            return "1=0", {}
        case int(code), [*fields] if code == _CORRELATION_FILTER:
            *texts, properties = fields
            values = {name: value for name, value in zip(CORRELATION_TEXTS, texts, strict=True) if value is not None}
            return None, values | ({"properties": properties} if properties else {})
    raise ClientError("the broker's reply has a filter of an unknown kind")
