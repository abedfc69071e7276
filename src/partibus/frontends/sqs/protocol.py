"""The protocol of a request: AWS JSON 1.0 or Query, told apart by its content type."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final
from urllib.parse import unquote

from msgspec import Struct

from partibus.frontends.sqs.errors import SqsError
from partibus.frontends.sqs.shapes import SHAPES
from partibus.frontends.sqs.signature import EMPTY_HASH
from partibus.frontends.sqs.wire_json import CONTENT_TYPE as JSON_TYPE
from partibus.frontends.sqs.wire_json import TARGET_PREFIX, read_json, write_json, write_json_error
from partibus.frontends.sqs.wire_query import CONTENT_TYPE as XML_TYPE
from partibus.frontends.sqs.wire_query import parse_parameters, read_query, write_query, write_query_error
from partibus.frontends.sqs.wire_query_json import CONTENT_TYPE as QUERY_JSON_TYPE
from partibus.frontends.sqs.wire_query_json import accepts_json, write_query_json, write_query_json_error

BODY_BYTES_MAX: Final = 8 * 1024 * 1024
"""A message of 1 MiB takes six times as much in JSON escapes, and three times as much percent-encoded."""
ASIDE_BYTES: Final = 128 * 1024
"""Bodies above this size are hashed and parsed on another thread."""


class Request(Struct):
    """One HTTP request, complete."""

    method: str
    path: str
    """The path as on the wire."""
    query: str
    headers: Mapping[str, str]
    """Values by name in lower case; values of one name are joined by commas."""
    body: bytes
    host: str | None
    """The address of the client."""
    scheme: str = "http"


class Parsed(Struct):
    """The action and the parameters of a request."""

    action: str = ""
    is_json: bool = True
    """Whether it is in AWS JSON 1.0, not in the Query protocol."""
    members: dict[str, Any] | None = None
    """None if it could not be read; then there is an ``error``."""
    is_plain: bool = False
    """Whether all texts are known to be printable ASCII: then their characters need no check."""
    accepts_json: bool = False
    """Whether the answer of the Query protocol is JSON, not XML."""
    url_parameters: Mapping[str, str] = {}
    body_hash: str = EMPTY_HASH
    error: SqsError | None = None


class Answer(Struct):
    """One HTTP answer."""

    status: int
    body: bytes
    content_type: str
    request_id: str
    query_error: str = ""
    """The value of ``x-amzn-query-error``; empty for none."""


def parse(request: Request) -> Parsed:
    """Read a request. The result holds its errors, since the answer has to be in the request's protocol.

    The function needs only the request, so large ones can be parsed on another thread.
    """
    headers = request.headers
    target = headers.get("x-amz-target")
    is_json = target is not None or headers.get("content-type", "").startswith(JSON_TYPE)
    parsed = Parsed(is_json=is_json, accepts_json=not is_json and accepts_json(headers))
    try:
        if request.body:
            parsed.body_hash = sha256(request.body).hexdigest()
        if request.query:
            parsed.url_parameters = parse_parameters(request.query.encode("latin-1", "replace"))
        if is_json:
            _parse_json(parsed, request, target or "")
        else:
            _parse_query(parsed, request)
    except SqsError as error:
        parsed.error = error
    return parsed


def _parse_json(parsed: Parsed, request: Request, target: str) -> None:
    action = target.removeprefix(TARGET_PREFIX)
    shape = SHAPES.get(action)
    if shape is None or action == target or request.method != "POST":
        raise SqsError("UnknownOperationException", f"The operation {target[:100]!r} is unknown.")
    parsed.action = action
    parsed.members = read_json(shape, request.body)
    # A control character in JSON is written as an escape; otherwise the decoder has refused it.
    parsed.is_plain = b"\\" not in request.body and request.body.isascii()


def _parse_query(parsed: Parsed, request: Request) -> None:
    parameters = dict(parsed.url_parameters)
    if request.method == "POST" and request.body:
        parameters |= parse_parameters(request.body)
    action = parameters.get("Action")
    if action is None:
        raise SqsError("UnknownOperationException", "The request names no Action.")
    shape = SHAPES.get(action)
    names_queue = len(request.path) > 1
    if shape is None or (names_queue and not shape.on_path and _has_queue(request.path)):
        raise SqsError("InvalidAction", f"The action {action[:100]} is not valid for this endpoint.")
    parsed.action = action
    members = read_query(shape, parameters)
    if shape.on_queue and "QueueUrl" not in members and names_queue:
        members["QueueUrl"] = unquote(request.path)
    parsed.members = members


def _has_queue(path: str) -> bool:
    """Tell whether a path ends in an account and a name; a base path of the endpoint has no account."""
    parts = path.strip("/").split("/")
    return len(parts) >= 2 and len(parts[-2]) == 12 and parts[-2].isdigit()


def answer_to(parsed: Parsed, output: Mapping[str, Any] | None, request_id: str) -> Answer:
    """Return the answer to a request that was carried out."""
    if parsed.is_json:
        return Answer(200, write_json(output), JSON_TYPE, request_id)
    write, kind = (write_query_json, QUERY_JSON_TYPE) if parsed.accepts_json else (write_query, XML_TYPE)
    return Answer(200, write(parsed.action, SHAPES[parsed.action], output, request_id), kind, request_id)


def refusal_of(parsed: Parsed, error: SqsError, request_id: str) -> Answer:
    """Return the answer that refuses a request."""
    form = error.form
    if parsed.is_json:
        body, query_error = write_json_error(error)
        return Answer(form.status, body, JSON_TYPE, request_id, query_error)
    fault = "Sender" if error.is_sender_fault else "Receiver"
    # A request without an action gets the same document from the service, whatever it accepts.
    as_json = parsed.accepts_json and error.code != "UnknownOperationException"
    write, kind = (write_query_json_error, QUERY_JSON_TYPE) if as_json else (write_query_error, XML_TYPE)
    return Answer(form.query_status, write(error, request_id), kind, request_id, f"{error.code};{fault}")
