"""``GET /$partibus/openapi.json``: what HTTP offers, for tools (OpenAPI 3.1).

Made from the tables that requests are dispatched by, so that an operation without a description fails at the start.
Names of queues and topics may have slashes, which a tool that escapes them gets through, too.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from partibus.frontends.rest.atom.api import HANDLERS as ADMIN
from partibus.frontends.rest.atom.calls import PAGE_MAX, Kind
from partibus.frontends.rest.atom.envelope import ENTRY_TYPE, FEED_TYPE
from partibus.frontends.rest.data.api import HANDLERS as DATA
from partibus.frontends.rest.data.message_in import BROKER_PROPERTIES
from partibus.frontends.rest.data.receive import TIMEOUT_MAX_S, TIMEOUT_S
from partibus.frontends.rest.data.send import BATCH_TYPE

PATH = "/$partibus/openapi.json"

Json = dict[str, Any]

_ERROR_TYPE = "application/xml; charset=utf-8"
_STRING: Json = {"type": "string"}
_OBJECT: Json = {"type": "object"}
_PARAMETERS: Mapping[str, Json] = {
    "entity": {
        "in": "path",
        "required": True,
        "description": "Name of a queue or topic; for messages also topic/Subscriptions/name, or one of these with "
        "/$DeadLetterQueue behind it",
        "schema": {"type": "string", "minLength": 1, "maxLength": 260},
    },
    "topic": {"in": "path", "required": True, "schema": {"type": "string", "minLength": 1, "maxLength": 260}},
    "subscription": {"in": "path", "required": True, "schema": {"type": "string", "minLength": 1, "maxLength": 50}},
    "rule": {"in": "path", "required": True, "schema": {"type": "string", "minLength": 1, "maxLength": 50}},
    "number": {
        "in": "path",
        "required": True,
        "description": "Sequence number or id of the message",
        "schema": {"type": "string", "minLength": 1},
    },
    "token": {
        "in": "path",
        "required": True,
        "description": "The lock token",
        "schema": {"type": "string", "format": "uuid"},
    },
    "api-version": {"in": "query", "schema": {"type": "string", "examples": ["2021-05"]}},
    "timeout": {
        "in": "query",
        "description": "How long to wait for a message, in seconds",
        "schema": {"type": "integer", "minimum": 0, "maximum": TIMEOUT_MAX_S, "default": TIMEOUT_S},
    },
    "$skip": {"in": "query", "schema": {"type": "integer", "minimum": 0, "default": 0, "maximum": 999_999_999}},
    "$top": {"in": "query", "schema": {"type": "integer", "minimum": 0, "default": PAGE_MAX, "maximum": PAGE_MAX}},
    "If-Match": {
        "in": "header",
        "description": "Absent: make it. `*` or the present ETag: change it",
        "schema": {"type": "string"},
    },
    BROKER_PROPERTIES: {
        "in": "header",
        "description": "A JSON object with MessageId, Label, PartitionKey, SessionId, TimeToLive …",
        "schema": {"type": "string", "contentMediaType": "application/json"},
    },
}


class _Operation(NamedTuple):
    summary: str
    statuses: tuple[int, ...]
    """The statuses of success."""
    errors: tuple[int, ...]
    parameters: tuple[str, ...] = ()
    """The parameters besides those in the path and the api-version."""
    body: Json | None = None
    answer: Json | None = None
    """Content of a success; None: nothing that is worth a word."""


_XML_BODY: Json = {"application/atom+xml": {"schema": _STRING}}
_ENTRY: Json = {ENTRY_TYPE: {"schema": _STRING}}
_FEED: Json = {FEED_TYPE: {"schema": _STRING}}
_BYTES: Json = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_BATCH: Json = {
    BATCH_TYPE: {
        "schema": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {"Body": _STRING, "BrokerProperties": _OBJECT, "UserProperties": _OBJECT},
            },
        }
    }
}
_ALWAYS = (400, 401, 503, 504)
_CHANGE = (*_ALWAYS, 403, 404, 409, 412, 413)
_MESSAGE = (*_ALWAYS, 403, 410)


def _get(what: str) -> _Operation:
    return _Operation(f"Show {what}", (200,), (*_ALWAYS, 404), answer=_ENTRY)


def _put(what: str) -> _Operation:
    return _Operation(f"Make {what}, or change it", (200, 201), _CHANGE, ("If-Match",), _XML_BODY, _ENTRY)


def _delete(what: str) -> _Operation:
    return _Operation(f"Delete {what}", (200,), (*_ALWAYS, 404, 412), ("If-Match",))


def _list(what: str) -> _Operation:
    return _Operation(f"List {what}", (200,), (*_ALWAYS, 404), ("$skip", "$top"), answer=_FEED)


_ADMIN_PATHS = {
    Kind.ROOT: "/",
    Kind.NAMESPACE_INFO: "/$namespaceinfo",
    Kind.QUEUES: "/$Resources/Queues",
    Kind.TOPICS: "/$Resources/Topics",
    Kind.ENTITY: "/{entity}",
    Kind.SUBSCRIPTIONS: "/{topic}/Subscriptions",
    Kind.SUBSCRIPTION: "/{topic}/Subscriptions/{subscription}",
    Kind.RULES: "/{topic}/Subscriptions/{subscription}/Rules",
    Kind.RULE: "/{topic}/Subscriptions/{subscription}/Rules/{rule}",
}
_ADMIN_OPERATIONS = {
    (Kind.ROOT, "GET"): _list("queues and topics"),
    (Kind.NAMESPACE_INFO, "GET"): _get("the namespace"),
    (Kind.QUEUES, "GET"): _list("queues"),
    (Kind.TOPICS, "GET"): _list("topics"),
    (Kind.ENTITY, "GET"): _get("a queue or topic"),
    (Kind.ENTITY, "PUT"): _put("a queue or topic"),
    (Kind.ENTITY, "DELETE"): _delete("a queue or topic"),
    (Kind.SUBSCRIPTIONS, "GET"): _list("the subscriptions of a topic"),
    (Kind.SUBSCRIPTION, "GET"): _get("a subscription"),
    (Kind.SUBSCRIPTION, "PUT"): _put("a subscription"),
    (Kind.SUBSCRIPTION, "DELETE"): _delete("a subscription"),
    (Kind.RULES, "GET"): _list("the rules of a subscription"),
    (Kind.RULE, "GET"): _get("a rule"),
    (Kind.RULE, "PUT"): _put("a rule"),
    (Kind.RULE, "DELETE"): _delete("a rule"),
}
_DATA_PATHS = ("/{entity}/messages", "/{entity}/messages/head", "/{entity}/messages/{number}/{token}")
_DATA_OPERATIONS = {
    (0, "POST"): _Operation(
        "Send a message, or a batch", (201,), (*_MESSAGE, 413), (BROKER_PROPERTIES,), _BYTES | _BATCH
    ),
    (1, "POST"): _Operation("Receive a message under lock", (201, 204), _MESSAGE, ("timeout",), answer={"*/*": {}}),
    (1, "DELETE"): _Operation("Receive and delete a message", (200, 204), _MESSAGE, ("timeout",), answer={"*/*": {}}),
    (2, "DELETE"): _Operation("Complete a message", (200,), (*_MESSAGE, 404)),
    (2, "PUT"): _Operation("Unlock a message", (200,), (*_MESSAGE, 404)),
    (2, "POST"): _Operation("Renew the lock of a message", (200,), (*_MESSAGE, 404)),
}
_REASONS = {
    200: "Done",
    201: "Made, stored, or locked",
    204: "No message came in time",
    400: "Something in the request is not right",
    401: "No claim, or none that is good for this",
    403: "A quota, or nothing that this version has",
    404: "There is no such thing, or no such lock",
    409: "There is one already",
    410: "There is no such entity",
    412: "It was changed in between",
    413: "The body is too large",
    503: "A messaging store is away, or too busy; nothing was done",
    504: "The outcome is still unknown",
}


def describe() -> Json:
    """Return the document."""
    paths: dict[str, Json] = {}
    for path, method, operation in _operations():
        paths.setdefault(path, {})[method.lower()] = _described(path, operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "partibus", "version": "1", "description": "Entities and messages over HTTP."},
        "paths": paths,
        "components": {
            "securitySchemes": {"sas": {"type": "apiKey", "in": "header", "name": "Authorization"}},
        },
        "security": [{"sas": []}],
    }


def _operations() -> Iterator[tuple[str, str, _Operation]]:
    for kind, handlers in ADMIN.items():
        for method in handlers:
            yield _ADMIN_PATHS[kind], method, _ADMIN_OPERATIONS[kind, method]
    for count, method in DATA:
        yield _DATA_PATHS[count], method, _DATA_OPERATIONS[count, method]


def _described(path: str, operation: _Operation) -> Json:
    in_path = [name for name, parameter in _PARAMETERS.items() if f"{{{name}}}" in path and parameter["in"] == "path"]
    error: Json = {"content": {_ERROR_TYPE: {"schema": _STRING}}}
    answer: Json = {} if operation.answer is None else {"content": operation.answer}
    found: Json = {
        "summary": operation.summary,
        "parameters": [
            {"name": name, **_PARAMETERS[name]} for name in (*in_path, "api-version", *operation.parameters)
        ],
        "responses": {
            **{str(status): {"description": _REASONS[status], **answer} for status in operation.statuses},
            **{str(status): {"description": _REASONS[status], **error} for status in sorted(operation.errors)},
        },
    }
    return found if operation.body is None else found | {"requestBody": {"content": operation.body}}


class ShowDescription:
    """The resource of the document. It is public: it says nothing about this namespace."""

    def __init__(self) -> None:
        self._response = JSONResponse(describe())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the document."""
        await self._response(scope, receive, send)
