"""Every parser that bytes of a peer reach, each with inputs that are made to be bad for it.

A parser is driven as the broker drives it, without a socket. `Parser.run` says what came of an input in a few words,
and raises what must never be raised.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import h11
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.requests import Request

from partibus.amqp import Closed, Connection, DecodeError, Delivery, SessionClosed
from partibus.amqp.codec.decoder import decode_all
from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.performatives import Attach, Begin, Flow, Open
from partibus.amqp.frames import AMQP_HEADER, HEADER, SASL_HEADER, frame
from partibus.amqp.section_encoding import encode_application_properties, encode_data, encode_value
from partibus.amqp.sections import BATCH_FORMAT
from partibus.clock import ManualClock
from partibus.errors import PartibusError
from partibus.filters.model import EvaluationError, SqlAction, SqlFilter
from partibus.filters.sql import compile_action, compile_filter
from partibus.filters.view import GivenView
from partibus.frontends.admission import policy_of
from partibus.frontends.amqp.ingress import Ingress
from partibus.frontends.amqp.node import read_request
from partibus.frontends.amqp.operations.request import body_of, lock_tokens, mapping, sequence_numbers
from partibus.frontends.amqp.operations.rules import read_rule
from partibus.frontends.amqp.websocket import Websocket
from partibus.frontends.origins import Origins
from partibus.frontends.rest.atom.xml import parse_xml
from partibus.frontends.rest.data.message_in import MessageReader
from partibus.frontends.rest.data.message_out import body_of as body_over_http
from partibus.frontends.rest.portal.signing_in import grant_of
from partibus.frontends.rest.portal.visit import read_form
from partibus.frontends.rest.requests import BodyTooLarge
from partibus.frontends.sqs.actions.list_queues import name_of_token
from partibus.frontends.sqs.actions.move_tasks import read_task_handle
from partibus.frontends.sqs.actions.permissions import statements_of
from partibus.frontends.sqs.attributes import normalised, read_redrive, read_redrive_allow, same_value
from partibus.frontends.sqs.errors import SqsError
from partibus.frontends.sqs.handles import read_handle, write_handles
from partibus.frontends.sqs.messages import (
    Selection,
    body_bytes,
    check_id,
    md5_of_attributes,
    read_attributes,
    read_trace,
    shown_attributes,
    size_of,
)
from partibus.frontends.sqs.names import Home, QueueName, name_of_url, queue_of_arn
from partibus.frontends.sqs.protocol import Answer, Parsed, answer_to, parse, refusal_of
from partibus.frontends.sqs.protocol import Request as SqsRequest
from partibus.frontends.sqs.server import SqsConnection
from partibus.frontends.sqs.signature import canonical_request, check_signed_headers, check_time, read_signed
from partibus.frontends.sqs.stored import as_new, read_stored, stored_form
from partibus.frontends.sqs.wire_query import parse_parameters
from partibus.limits import AdmissionLimits, HttpLimits
from partibus.namespace.access import AccessPolicies, Right, SasPolicy
from partibus.namespace.catalog import EntityRecord
from partibus.namespace.config_document import ConfigError
from partibus.namespace.config_json import parse_config_json
from partibus.namespace.connection_string import parse_connection_string
from partibus.namespace.entities import EntityDescription, EntityKind, EntityOptions
from partibus.namespace.placement import Placement
from partibus.namespace.properties import options_of
from partibus.namespace.queues import Queue
from partibus.node.identity import IdentityProvider, IdentitySettings, PublicKey

Shape = Callable[[int], bytes]
"""A function from a size to an input of about as many bytes."""

CORPUS = Path(__file__).with_name("corpus")
_FILTER_EXPRESSIONS = ("p LIKE q", "p LIKE '%a_a_b%'", "p + q = q OR p IN (q, p + p)", "sys.ViaPartitionKey = p")


@dataclass(frozen=True)
class Parser:
    """``drive`` takes the bytes; what it may raise are refusals."""

    name: str
    drive: Callable[[bytes], object]
    shapes: Mapping[str, Shape]
    refusals: tuple[type[Exception], ...] = field(default=(DecodeError, PartibusError))
    sizes: tuple[int, int] = (1_000, 4_000)
    """Sizes of inputs whose work is compared, below the bound of what is read."""

    def run(self, data: bytes) -> str:
        """Return the result of an input, without the values that it quotes."""
        try:
            outcome = self.drive(data)
        except self.refusals as error:
            return f"{type(error).__name__} {complaint(error)}"
        return complaint(outcome) if isinstance(outcome, str) else type(outcome).__name__


def complaint(error: object) -> str:
    """The words of a message, without the values that it quotes."""
    text = re.sub(r"'[^']*'|\"[^\"]*\"|\(.*\)|\[.*\]|\{.*\}|channel.*|link [^ ]*", "", str(error)[:400])
    return " ".join(re.findall(r"\b[A-Za-z][a-z:-]+\b", text)[:4])


# Values of AMQP -------------------------------------------------------------------------------------------------------


def compound(code: int, count: int, content: bytes) -> bytes:
    """A list, map or array in the four-byte form."""
    return bytes((code,)) + (len(content) + 4).to_bytes(4) + count.to_bytes(4) + content


def repeated(item: bytes) -> Shape:
    """A list of one item."""
    return lambda size: compound(0xD0, size // len(item), item * (size // len(item)))


def a_map(pairs: list[bytes]) -> bytes:
    """A map of encoded pairs."""
    return compound(0xD1, 2 * len(pairs), b"".join(pairs))


def colliding_uuids(size: int) -> bytes:
    """A map whose keys have one hash: multiples of the modulus of Python's hashes."""
    return a_map([encode(UUID(int=(2**61 - 1) * n)) + b"\x40" for n in range(1, size // 18)])


def colliding_numbers(size: int) -> bytes:
    """A map whose keys are in one place of any small table."""
    return a_map([encode(n << 40) + b"\x40" for n in range(1, size // 10)])


def nested(size: int) -> bytes:
    """Lists in lists."""
    value = b"\x40"
    while len(value) < size:
        value = compound(0xD0, 1, value)
    return value


def text_map(size: int) -> bytes:
    """A map of short texts."""
    return a_map([encode(f"{n:06x}") + b"\x40" for n in range(size // 9)])


VALUES: dict[str, Shape] = {
    "nulls": repeated(b"\x40"),
    "UUIDs": repeated(b"\x98" + bytes(16)),
    "described values": repeated(b"\x00\x44\x40"),
    "chains of descriptors": repeated(b"\x00\x44" * 60 + b"\x40"),
    "empty lists": repeated(b"\xc0\x01\x00"),
    "arrays of nulls": repeated(b"\xe0\x02\x20\x40"),
    "texts": repeated(b"\xa1\x01x"),
    "lists in lists": nested,
    "colliding UUIDs": colliding_uuids,
    "colliding numbers": colliding_numbers,
    "maps of few UUIDs": repeated(colliding_uuids(90)),
    "a map of texts": text_map,
    "an array without room": lambda size: b"\xf0" + (size + 5).to_bytes(4) + b"\xff\xff\xff\xff\x40" + bytes(size),
    "one binary": lambda size: b"\xb0" + size.to_bytes(4) + bytes(size),
}
"""Each as one value."""


def values_in(wrap: Callable[[bytes], bytes]) -> dict[str, Shape]:
    """The same in something else."""
    return {name: (lambda size, make=make: wrap(make(size))) for name, make in VALUES.items()}  # type: ignore[misc]


# Frames ---------------------------------------------------------------------------------------------------------------

_OPENING = (
    AMQP_HEADER
    + frame(0, Open(container_id="peer"))
    + frame(0, Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9))
    + frame(0, Attach(name="in", handle=0, role=False, initial_delivery_count=0))
    + frame(0, Attach(name="out", handle=1, role=True))
)


def _feed(connection: Connection, data: bytes) -> str:
    events = list(connection.receive_data(data))
    while connection.more_to_read:
        events += connection.receive_data(b"")
    connection.data_to_send()
    ends = [str(event.error) for event in events if isinstance(event, Closed | SessionClosed)]
    return f"{sorted({type(event).__name__ for event in events})} {ends[:1]}"


def _frames(data: bytes) -> str:
    connection = Connection(server=True)
    for event in connection.receive_data(_OPENING):
        link = getattr(event, "link", None)
        if link is not None:
            link.accept()
            if hasattr(link, "grant"):
                link.grant(1_000)
    connection.open("broker")
    return _feed(connection, data)


def raw_frame(code: int, fields: bytes, count: int, kind: int = 0, payload: bytes = b"") -> bytes:
    """A frame of a performative with encoded fields."""
    body = b"\x00\x53" + bytes((code,)) + compound(0xD0, count, fields) + payload
    return HEADER.pack(8 + len(body), 2, kind, 0) + body


_FIELDS: dict[str, tuple[int, bytes, int]] = {
    "open": (0x10, encode("c") + b"\x40" * 8, 10),
    "begin": (0x11, b"\x40" + b"\x43" * 3 + b"\x40" * 3, 8),
    "attach": (0x12, encode("n") + b"\x52\x07\x41" + b"\x40" * 4, 8),
    "attach, properties": (0x12, encode("n") + b"\x52\x07\x41" + b"\x40" * 10, 14),
    "flow": (0x13, b"\x43" * 4 + b"\x40" * 6, 11),
    "transfer": (0x14, b"\x43\x43\xa0\x01t\x43\x42\x42\x40", 8),
    "disposition": (0x15, b"\x41\x43\x43\x41", 5),
    "detach": (0x16, b"\x43\x41", 3),
    "end": (0x17, b"", 1),
    "close": (0x18, b"", 1),
}
"""Fields by performative: its code, the fields before one that takes a compound, and the number of its fields."""


def _frame_of(code: int, fields: bytes, count: int) -> Callable[[bytes], bytes]:
    return lambda value: raw_frame(code, fields + value, count)


def _many(one: bytes) -> Shape:
    return lambda size: one * (size // len(one))


_TRANSFER = raw_frame(0x14, b"\x43\x43\xa0\x01t\x43\x42", 5, payload=b"\x00\x53\x75\xa0\x00")
_PART = raw_frame(0x14, b"\x43\x43\xa0\x01t\x43\x42\x41", 6, payload=b"x")
_FRAMES: dict[str, Shape] = {
    "empty frames": _many(HEADER.pack(8, 2, 0, 0)),
    "flows with an echo": _many(frame(0, Flow(incoming_window=9, next_outgoing_id=0, outgoing_window=9, echo=True))),
    "transfers": _many(_TRANSFER),
    "a transfer that never ends": _many(_PART),
    "dispositions of all": lambda size: (
        b"".join(raw_frame(0x14, b"\x43\x70" + n.to_bytes(4) + b"\xa0\x01t\x43\x42", 5) for n in range(size // 60))
        + raw_frame(0x15, b"\x42\x43\x70\x7f\xff\xff\xff\x42" + b"\x00\x53\x23\xc0\x05\x02\x52\x01\x44", 5)
        * (size // 60)
    ),
    "begins": lambda size: b"".join(
        frame(channel, Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9))
        for channel in range(1, size // 25)
    ),
    "attaches": lambda size: b"".join(
        frame(0, Attach(name=str(handle), handle=handle, role=True)) for handle in range(2, size // 30)
    ),
    "a length without a frame": lambda size: b"\x00\x00\xff\xff\x02\x00\x00\x00" + bytes(size),
}

# Messages -------------------------------------------------------------------------------------------------------------

_QUEUE = Queue(EntityRecord(1, EntityDescription("q", EntityOptions()), (Placement(0, 0, 1),), 0, 0))


def _message(data: bytes) -> object:
    ingress = Ingress(lambda: "0" * 32)
    batch = Delivery(None, 0, b"t", BATCH_FORMAT, False, None, data)  # type: ignore[arg-type]
    with contextlib.suppress(PartibusError):
        ingress.messages_of(batch, _QUEUE)
    ingress.begin()
    message = ingress.message_of(data, _QUEUE)
    received = read_stored(message.data)  # by a client of SQS
    shown_attributes(Selection(["All"]).of(received.attributes))
    md5_of_attributes(received.attributes)
    with contextlib.suppress(DecodeError):
        as_new(message.data, "0" * 36)
    return body_over_http(message.data)


_SECTIONS = {"annotations": 0x72, "properties": 0x73, "application properties": 0x74, "body": 0x77}


def _section(code: int) -> Callable[[bytes], bytes]:
    return lambda value: b"\x00\x53" + bytes((code,)) + value


_POLICIES = AccessPolicies([SasPolicy("p", Right.MANAGE, "key", "")])
_POLICIES.follow("a/a/a", [SasPolicy("p", Right.SEND, "other", "")])
_TOKEN = "SharedAccessSignature sr={}&sig=eA%3D%3D&se=99999999999&skn=p"


def _cbs(data: bytes) -> object:
    request = read_request(data)
    token, audience = request.body, request.properties.get("name")
    if isinstance(token, str) and isinstance(audience, str):
        return _POLICIES.check_token(token, audience, 0)
    return "no token"


def _put_token(token: str, audience: str) -> bytes:
    return encode_application_properties({"operation": "put-token", "name": audience}) + encode_value(token)


def _management(data: bytes) -> object:
    body = body_of(read_request(data).body)
    for read in (lock_tokens, sequence_numbers, lambda body: mapping(body, "properties"), partial(read_rule, "r")):
        with contextlib.suppress(PartibusError):
            read(body)
    return body


def _request(value: bytes) -> bytes:
    return encode_application_properties({"operation": "x"}) + b"\x00\x53\x77" + value


# HTTP and websockets --------------------------------------------------------------------------------------------------


class _Transport:
    """Takes everything."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_: None

    def is_closing(self) -> bool:
        return False


class _Inner(asyncio.Protocol):
    taken = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        pass

    def data_received(self, data: bytes) -> None:
        self.taken += len(data)


_HANDSHAKE = (
    b"GET /$servicebus/websocket HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def _websocket(data: bytes) -> str:
    async def serve() -> str:
        inner = _Inner()
        websocket = Websocket(inner, 1 << 20, 1.0)
        websocket.connection_made(_Transport())  # type: ignore[arg-type]
        websocket.data_received(_HANDSHAKE)
        websocket.data_received(data)
        closing = websocket.is_closing()
        websocket.connection_lost(None)
        return f"taken {bool(inner.taken)} {closing}"

    return asyncio.run(serve())


def _http_head(data: bytes) -> str:
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=32 * 1024)
    connection.receive_data(data)
    kinds = set()
    while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
        kinds.add(type(event).__name__)
        if isinstance(event, h11.ConnectionClosed):
            break
    return str(sorted(kinds))


def _web_request(query: bytes = b"", body: bytes = b"", *headers: tuple[bytes, bytes]) -> Request:
    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body}

    scope = {"type": "http", "scheme": "http", "path": "/portal", "query_string": query, "headers": list(headers)}
    return Request(scope, receive)


_BROKER: Any = SimpleNamespace(access=_POLICIES, wall_clock=ManualClock(1_000_000))


def _cookie(data: bytes) -> object:
    request = _web_request(b"", b"", (b"host", b"localhost:80"), (b"cookie", data))
    return grant_of(_BROKER, request) or "none"


def _query(data: bytes) -> object:
    return _web_request(data).query_params


def _form(data: bytes) -> object:
    request = _web_request(b"", data, (b"content-type", b"application/x-www-form-urlencoded"))
    return asyncio.run(read_form(request))


_READER = MessageReader(lambda: "0" * 32)


def _broker_properties(data: bytes) -> object:
    return _READER.from_headers([("brokerproperties", data.decode("latin-1"))], b"", _QUEUE)


def _json_batch(data: bytes) -> object:
    return list(_READER.from_batch(data, _QUEUE))


def _filter(data: bytes) -> object:
    """The text as a filter, as an action, and as a property that filters look at."""
    text = data.decode("latin-1")
    with contextlib.suppress(PartibusError):
        compile_filter(SqlFilter(text))
    with contextlib.suppress(PartibusError):
        compile_action(SqlAction(text))
    half = len(text) // 2
    view = GivenView({"p": text[:half], "q": text[half:]}, {"ViaPartitionKey": text})
    for expression in _FILTER_EXPRESSIONS:
        with contextlib.suppress(EvaluationError):
            compile_filter(SqlFilter(expression)).test(view)
    return "done"


def _text(drive: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: drive(data.decode("latin-1"))


def _sas(text: str) -> object:
    return _POLICIES.check_token(text, text[:4_000], 0)


@cache
def _provider() -> IdentityProvider:
    """An identity provider with one key, which no input is signed with."""
    public = ec.generate_private_key(ec.SECP256R1()).public_key()
    settings = IdentitySettings(issuer="https://i", audiences=["a"], keys="keys.jwks")
    provider = IdentityProvider(settings, SimpleNamespace(time=lambda: 0.0))  # type: ignore[arg-type]
    provider._keys = {"k": PublicKey(public, ("ES",), "ES256")}
    return provider


def _identity_token(text: str) -> object:
    policy_of(text)
    return _provider().check(text)


def _jwt(header: Callable[[int], str], rest: str = ".e30.QUFB") -> Shape:
    """A token with a header in JSON."""
    return lambda size: urlsafe_b64encode(header(size).encode()).rstrip(b"=") + rest.encode()


_JWT_HEAD = _jwt(lambda _: '{"alg":"ES256","kid":"k"}', "")(0)


def _entity_properties(text: str) -> object:
    """Lines of names and values as the properties of each kind of entity."""
    properties: dict[str, object] = {}
    for line in text.split("\n"):
        name, _, value = line.partition("=")
        properties[name] = int(value) if value.isascii() and value.isdigit() and len(value) < 20 else value
    return [options_of(kind, properties) for kind in EntityKind]


# SQS ------------------------------------------------------------------------------------------------------------------

_HOME = Home()
_SOURCE = QueueName("us-east-1", "q")


class _SqsService:
    """Reads requests, and answers each at once."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.namespaces = SimpleNamespace(default=SimpleNamespace(account=None, wall_clock=ManualClock(1_000_000)))

    def handle(self, request: SqsRequest, parsed: Parsed, respond: Callable[[Answer], None], claimed: object) -> None:
        answer, word = _answered(parsed)
        self.seen.append(f"{request.method.lower()}-{word}")
        respond(answer)

    def new_request_id(self) -> str:
        return "id"


def _answered(parsed: Parsed) -> tuple[Answer, str]:
    """Check the members of a request as its action does; return the answer, and a word for it."""
    try:
        if parsed.error is not None:
            raise parsed.error
        return answer_to(parsed, _checked(parsed.action, parsed.members or {}), "0" * 36), "taken"
    except SqsError as error:
        return refusal_of(parsed, error, "0" * 36), _word(error)


def _word(error: SqsError) -> str:
    """A refusal in one word, as `complaint` keeps it: its code, and the reason if it gives one apart from the value."""
    _, _, reason = str(error).rpartition("Reason: ") if "Reason: " in str(error) else ("", "", "")
    return "-".join([error.code.rpartition(".")[2], *complaint(reason).split()]).lower()


def _checked(action: str, members: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if "QueueUrl" in members:
        name_of_url.__wrapped__(members["QueueUrl"])
    for given in (members, *members.get("Entries", ())):
        attributes = read_attributes(given.get("MessageAttributes", {}))
        trace, _ = read_trace(given.get("MessageSystemAttributes", {}), None)
        for name in ("MessageGroupId", "MessageDeduplicationId", "ReceiveRequestAttemptId"):
            if given.get(name):
                check_id(name, given[name])
        if "MessageBody" in given:
            body = body_bytes(given["MessageBody"])
            size_of(body, attributes)
            stored = stored_form("0" * 36, "me", body, attributes, given.get("MessageGroupId"), None, trace)
            shown = read_stored(stored)
            found = Selection(members.get("MessageAttributeNames", ["All"])).of(shown.attributes)
            return {"Messages": [{"Body": shown.body, "MessageAttributes": shown_attributes(found)}]}
        if given.get("ReceiptHandle"):
            read_handle(given["ReceiptHandle"])
    if "Attributes" in members:
        _check_attributes(members["Attributes"], fifo=action == "CreateQueue")
    if "MessageAttributeNames" in members:
        attributes = read_attributes({"a": {"DataType": "String", "StringValue": "x"}})
        Selection(members["MessageAttributeNames"]).of(attributes)
    return None


def _check_attributes(given: Mapping[str, str], *, fifo: bool) -> None:
    values = normalised(given, fifo=fifo, creating=True)
    read_redrive(_HOME, values.get("RedrivePolicy", ""), _SOURCE)
    read_redrive_allow(values.get("RedriveAllowPolicy", ""))
    for name, value in values.items():
        same_value(name, value, value)
    statements_of(values.get("Policy", ""))


def _sqs_connection(data: bytes) -> str:
    """Read the bytes of one connection, which may be several requests."""
    later: list[Callable[[], object]] = []
    service = _SqsService()
    server: Any = SimpleNamespace(
        service=service,
        limits=HttpLimits(),
        connections=set(),
        enter=lambda connection: None,
        date=lambda: b"now",
        loop=SimpleNamespace(time=lambda: 0.0, call_soon=later.append, call_later=lambda *_: SimpleNamespace()),
        admission=SimpleNamespace(
            enter=lambda *_: None,
            leave=lambda *_: None,
            claim=lambda *_: None,
            hold_body=lambda *_: None,
            limits=AdmissionLimits(),
        ),
        scheduler=SimpleNamespace(begin=lambda account: True, end=lambda account, size: None),
        origins=Origins(public_key=True),
    )
    connection = SqsConnection(server)
    transport = _SqsTransport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    connection.data_received(data)
    while later:
        later.pop()()
    connection.connection_lost(None)
    return " ".join([f"closed-{transport.closed}".lower(), *sorted({*service.seen, *transport.texts})])


class _SqsTransport(_Transport):
    def __init__(self) -> None:
        self.texts: set[str] = set()
        """Refusals of what is no HTTP."""
        self.closed = False

    def write(self, data: bytes) -> None:
        if b"text/plain" in data:
            self.texts.add("-".join(complaint(data.rpartition(b"\n")[2].decode()).split()).lower())

    def close(self) -> None:
        self.closed = True


def _sqs_json(data: bytes) -> str:
    """The body of every kind of request."""
    return _of_bodies("application/x-amz-json-1.0", data)


def _sqs_form(data: bytes) -> str:
    return _of_bodies("application/x-www-form-urlencoded", data)


def _of_bodies(kind: str, data: bytes) -> str:
    words = set()
    for action in ("SendMessageBatch", "SendMessage", "CreateQueue", "ReceiveMessage"):
        if kind.endswith("urlencoded"):
            headers, body = {"content-type": kind}, b"Action=%b&%b" % (action.encode(), data)
        else:
            headers, body = {"content-type": kind, "x-amz-target": f"AmazonSQS.{action}"}, data
        _, word = _answered(parse(SqsRequest("POST", "/", "", headers, body, None)))
        words.add(word)
    return " ".join(sorted(words))


_STAMP = "20150830T123600Z"


def _sqs_signature(data: bytes) -> str:
    """The bytes as a header, as a name of a header that is signed, as a path and as a query."""
    text = data.decode("latin-1")
    headers = {"authorization": text, "x-amz-date": _STAMP, "host": text, "x-amz-target": "AmazonSQS.ListQueues"}
    found = []
    for given, query in ((headers, {}), ({}, parse_parameters(data)), ({**headers, "x-amz-date": text}, {})):
        try:
            signed = read_signed(given, query)
            if signed is None:
                continue
            check_time(signed, 1_440_938_160_000)
            check_signed_headers(signed, headers)
            canonical_request(signed, "GET", text, text, headers, "")
            found.append("signed")
        except SqsError as error:
            found.append(_word(error))
    return " ".join(found)


def _sqs_texts(text: str) -> str:
    """A text as everything that names something."""
    found = ["handle"] * (read_handle(text) is not None) + ["arn"] * (queue_of_arn(_HOME, text) is not None)
    for name, read in (("url", name_of_url.__wrapped__), ("task", read_task_handle), ("token", name_of_token)):
        try:
            read(text)
            found.append(name)
        except SqsError as error:
            found.append(_word(error))
    return " ".join(found)


def _sqs_policy(text: str) -> str:
    """A text as the value of each attribute of a queue."""
    found = []
    for name in ("Policy", "RedrivePolicy", "RedriveAllowPolicy", "VisibilityTimeout", "SqsManagedSseEnabled"):
        try:
            _check_attributes({name: text}, fifo=False)
            found.append(name.lower())
        except SqsError as error:
            found.append(_word(error))
    return " ".join(dict.fromkeys(found))


def _in_json(before: bytes, item: bytes, after: bytes) -> Shape:
    return lambda size: before + b",".join([item] * (size // (len(item) + 1))) + after


def _in_form(name: str) -> Shape:
    return lambda size: b"&".join(name.replace("N", str(n)).encode() + b"=x" for n in range(1, size // (len(name) + 4)))


_SENT = {
    "MessageAttributes": {
        "a": {"DataType": "Number.int", "StringValue": "-1.5e3"},
        "b": {"DataType": "Binary", "BinaryValue": "QUFB"},
    },
    "MessageSystemAttributes": {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}},
    "MessageGroupId": "g",
    "MessageDeduplicationId": "d",
    "DelaySeconds": 0,
}
_ATTRIBUTES = {
    "FifoQueue": "true",
    "VisibilityTimeout": "30",
    "KmsMasterKeyId": "k",
    "DeduplicationScope": "messageGroup",
    "RedrivePolicy": '{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:000000000000:d.fifo","maxReceiveCount":5}',
    "RedriveAllowPolicy": '{"redrivePermission":"byQueue","sourceQueueArns":["a"]}',
    "Policy": '{"Version":"2008-10-17","Statement":[{"Sid":"a","Effect":"Allow"}]}',
}
_SQS_HEAD = b"POST / HTTP/1.1\r\nHost: h\r\nX-Amz-Target: AmazonSQS.ListQueues\r\n"
_SCOPE = "AWS4-HMAC-SHA256 Credential=k/20150830/us-east-1/sqs/aws4_request, SignedHeaders=host, Signature=0"
_PRESIGNED = (
    b"X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=k%2F20150830%2Fr%2Fsqs%2Faws4_request&X-Amz-Date=20150830T123600Z"
    b"&X-Amz-Expires=9&X-Amz-SignedHeaders=host&X-Amz-Signature=0"
)

SQS_PARSERS: tuple[Parser, ...] = (
    Parser(
        "SQS connections",
        _sqs_connection,
        {
            "headers": lambda size: _SQS_HEAD + b"a: b\r\n" * (size // 6) + b"\r\n",
            "one header": lambda size: _SQS_HEAD + b"a: " + b" x" * (size // 2) + b"\r\n\r\n",
            "a head without end": lambda size: _SQS_HEAD + b"a" * size,
            "requests": _many(_SQS_HEAD + b"\r\n"),
            "empty lines": _many(b"\r\n"),
            "chunks of a byte": lambda size: (
                _SQS_HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * (size // 6) + b"0\r\n\r\n"
            ),
            "trailers": lambda size: (
                _SQS_HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * (size // 6) + b"\r\n"
            ),
            "a query": lambda size: (
                b"GET /?Action=ListQueues" + b"&a=%41" * (size // 6) + b" HTTP/1.1\r\nHost: h\r\n\r\n"
            ),
            "a path": lambda size: b"GET /" + b"../" * (size // 3) + b"?Action=PurgeQueue HTTP/1.1\r\nHost: h\r\n\r\n",
            "a body": lambda size: _SQS_HEAD + b"Content-Length: %d\r\n\r\n" % size + bytes(size),
            "good requests": lambda size: b"".join(
                b"POST /000000000000/q HTTP/1.1\r\nHost: h\r\nX-Amz-Target: AmazonSQS.SendMessage\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
                for body in [b'{"QueueUrl":"q","MessageBody":"%d"}' % n for n in range(size // 140 + 1)]
            ),
        },
        (),
    ),
    Parser(
        "SQS in JSON",
        _sqs_json,
        {
            "nested lists": lambda size: b'{"a":' + b"[" * size,
            "nested objects": lambda size: b'{"a":' * (size // 5),
            "nested and closed": lambda size: b'{"Entries":' + b"[" * (size // 2) + b"]" * (size // 2) + b"}",
            "one number": lambda size: b'{"MaxNumberOfMessages":' + b"9" * size + b"}",
            "one number as text": lambda size: b'{"MaxNumberOfMessages":"' + b"9" * size + b'"}',
            "a fraction": lambda size: b'{"MaxNumberOfMessages":1e' + b"9" * size + b"}",
            "members": lambda size: b"{" + b",".join(b'"%x":0' % n for n in range(size // 8)) + b"}",
            "members twice": _in_json(b"{", b'"MessageBody":"x"', b"}"),
            "entries": _in_json(b'{"Entries":[', b"{}", b"]}"),
            "entries of bodies": _in_json(b'{"Entries":[', b'{"Id":"a","MessageBody":"x"}', b"]}"),
            "names": _in_json(b'{"MessageAttributeNames":[', b'"a.*"', b"]}"),
            "numbers": _in_json(b'{"AttributeNames":[', b"0", b"]}"),
            "attributes": lambda size: (
                b'{"MessageBody":"x","MessageAttributes":{'
                + b",".join(b'"%x":{"DataType":"String","StringValue":"x"}' % n for n in range(size // 45))
                + b"}}"
            ),
            "a number of digits": lambda size: (
                b'{"MessageBody":"x","MessageAttributes":{"a":{"DataType":"Number","StringValue":"'
                + b"9" * size
                + b'"}}}'
            ),
            "base64": lambda size: (
                b'{"MessageBody":"x","MessageAttributes":{"a":{"DataType":"Binary","BinaryValue":"'
                + b"QUFB" * (size // 4)
                + b'"}}}'
            ),
            "dots in a name": lambda size: (
                b'{"MessageBody":"x","MessageAttributes":{"' + b"a." * (size // 2) + b'":{"DataType":"String"}}}'
            ),
            "escapes": lambda size: b'{"MessageBody":"' + b"\\u2603" * (size // 6) + b'"}',
            "halves of characters": lambda size: b'{"MessageBody":"' + b"\\ud800" * (size // 6) + b'"}',
            "carriage returns": lambda size: b'{"MessageBody":"' + b"\\r\\n" * (size // 4) + b'"}',
            "queue attributes": lambda size: (
                b'{"Attributes":{' + b",".join(b'"%x":""' % n for n in range(size // 9)) + b"}}"
            ),
            "a URL": lambda size: b'{"QueueUrl":"http://h' + b"/%41" * (size // 4) + b'"}',
            "a good request": lambda size: json.dumps(
                {
                    "QueueUrl": "http://h/000000000000/q.fifo",
                    "Entries": [{"Id": "a", "MessageBody": "x" * size, **_SENT}],
                    "MessageBody": "x",
                    "QueueName": "q",
                    "Attributes": _ATTRIBUTES,
                    "MessageAttributeNames": ["a.*", "All"],
                    **_SENT,
                }
            ).encode(),
        },
        (),
    ),
    Parser(
        "SQS in forms",
        _sqs_form,
        {
            "queue attributes": _in_form("Attribute.N.Name"),
            "entries": _in_form("SendMessageBatchRequestEntry.N.MessageBody"),
            "message attributes": _in_form("MessageAttribute.N.Value.StringValue"),
            "attributes of one entry": _in_form("SendMessageBatchRequestEntry.1.MessageAttribute.N.Name"),
            "names": _in_form("AttributeName.N"),
            "parameters twice": _many(b"MessageBody=x&"),
            "parameters": lambda size: b"&".join(b"%x=" % n for n in range(size // 5)),
            "dots": lambda size: b".".join([b"a"] * 60) + b"=&" + b"." * size + b"=",
            "deep names": lambda size: b"&".join(b"a." * 60 + b"%x=" % n for n in range(size // 125)),
            "a number of digits": lambda size: b"MaxNumberOfMessages=" + b"9" * size,
            "an index of digits": lambda size: b"Attribute." + b"9" * min(size, 110) + b".Name=x" + b"&" * size,
            "escapes": lambda size: b"MessageBody=" + b"%e2%98%83" * (size // 9),
            "pluses": lambda size: b"MessageBody=" + b"+" * size,
            "percents": lambda size: b"MessageBody=" + b"%" * size,
            "equal signs": lambda size: b"=" * size,
            "ampersands": _many(b"&"),
            "a good request": lambda size: urlencode(
                {
                    "QueueUrl": "http://h/000000000000/q",
                    "MessageBody": "x" * size,
                    "MaxNumberOfMessages": "1",
                    "MessageAttribute.1.Name": "a",
                    "MessageAttribute.1.Value.DataType": "Binary",
                    "MessageAttribute.1.Value.BinaryValue": "QUFB",
                    "SendMessageBatchRequestEntry.1.Id": "a",
                    "SendMessageBatchRequestEntry.1.MessageBody": "x",
                    **{f"Attribute.{n}.Name": name for n, name in enumerate(_ATTRIBUTES, 1)},
                    **{f"Attribute.{n}.Value": value for n, value in enumerate(_ATTRIBUTES.values(), 1)},
                }
            ).encode(),
        },
        (),
    ),
    Parser(
        "SQS signatures",
        _sqs_signature,
        {
            "fields": lambda size: b"AWS4-HMAC-SHA256 " + b"a=b, " * (size // 5),
            "commas": lambda size: b"AWS4-HMAC-SHA256 " + b"," * size,
            "signed headers": lambda size: _SCOPE.replace("=host", "=host;x-amz-date" + ";host" * (size // 5)).encode(),
            "slashes": lambda size: _SCOPE.replace("=k/", "=" + "k/" * (size // 2)).encode(),
            "blanks": lambda size: _SCOPE.encode() + b" " * size,
            "signatures": lambda size: _SCOPE.encode() + b"Signature=" * (size // 10),
            "a presigned URL": lambda size: _PRESIGNED + b"&a=%41" * (size // 6),
            "a life of digits": lambda size: _PRESIGNED.replace(b"Expires=9", b"Expires=" + b"9" * size),
            "a good header": lambda size: _SCOPE.replace("=host", "=host;x-amz-date;x-amz-target").encode(),
            "a good URL": lambda size: _PRESIGNED + b"&QueueUrl=q&Action=SendMessage&MessageBody=" + b"x" * size,
            "dots in a path": lambda size: _PRESIGNED + b"/.." * (size // 3),
        },
        (SqsError,),
    ),
    Parser(
        "SQS names",
        _text(_sqs_texts),
        {
            "a handle": lambda size: (write_handles(1, 2, 3, 4, [5], 6)[0] * (size // 72 + 1)).encode(),
            "base64": lambda size: b"QUFB" * (size // 4),
            "slashes": _many(b"/a"),
            "escapes": _many(b"%2f"),
            "colons": _many(b"arn:aws:sqs:"),
            "a task": lambda size: b64encode(json.dumps({"taskId": "x" * size, "sourceArn": "a"}).encode()),
            "a task nested": lambda size: b64encode(b"[" * size),
            "a URL": lambda size: b"http://[" + b":" * size,
            "a good URL": lambda size: b"http://" + b"h" * size + b"/queue/us-east-1/000000000000/q.fifo",
            "a good task": lambda size: b64encode(b'{"taskId":"x","sourceArn":"arn:aws:sqs:us-east-1:000000000000:q"}'),
            "a good ARN": lambda size: b"arn:aws:sqs:us-east-1:000000000000:q",
        },
    ),
    Parser(
        "SQS policies",
        _text(_sqs_policy),
        {
            "nested": _many(b"["),
            "nested objects": _many(b'{"a":'),
            "digits": lambda size: b'{"deadLetterTargetArn":"a","maxReceiveCount":' + b"9" * size + b"}",
            "digits as text": lambda size: b'{"deadLetterTargetArn":"a","maxReceiveCount":"' + b"9" * size + b'"}',
            "only digits": _many(b"9"),
            "members": lambda size: b"{" + b",".join(b'"%x":0' % n for n in range(size // 8)) + b"}",
            "members twice": lambda size: b"{" + b",".join([b'"a":0'] * (size // 6)) + b"}",
            "statements": lambda size: b'{"Statement":[' + b",".join([b'{"Sid":"x"}'] * (size // 12)) + b"]}",
            "ARNs": lambda size: (
                b'{"redrivePermission":"byQueue","sourceQueueArns":[' + b",".join([b'"a"'] * (size // 4)) + b"]}"
            ),
            "good policies": lambda size: _ATTRIBUTES["RedrivePolicy"].encode(),
            "an ARN": lambda size: b'{"deadLetterTargetArn":"' + b"arn:" * (size // 4) + b'","maxReceiveCount":5}',
        },
    ),
)
"""The parsers of the front end of SQS."""


PARSERS: tuple[Parser, ...] = (
    Parser("values", decode_all, VALUES),
    *(Parser(f"frames, {name}", _frames, values_in(_frame_of(*fields))) for name, fields in _FIELDS.items()),
    Parser("frames", _frames, _FRAMES),
    Parser(
        "SASL",
        lambda data: _feed(Connection(server=True), SASL_HEADER + data),
        values_in(lambda value: raw_frame(0x41, encode("PLAIN") + value, 2, kind=1)),
    ),
    *(Parser(f"messages, {name}", _message, values_in(_section(code))) for name, code in _SECTIONS.items()),
    Parser(
        "messages",
        _message,
        {
            "data sections": _many(b"\x00\x53\x75\xa0\x00"),
            "messages of no bytes": _many(encode_data(encode_data(b""))),
            "sections spelled otherwise": _many(b"\x00\xa3\x10amqp:data:binary\xa0\x00"),
            "a descriptor nested": lambda size: b"\x00" * size,
        },
    ),
    Parser(
        "$cbs",
        _cbs,
        {
            "segments": lambda size: _put_token(_TOKEN.format("a/" * (size // 2)), "sb://h/" + "a/" * (size // 4)),
            "escapes": lambda size: _put_token(_TOKEN.format("%25" * (size // 3)), "%41" * (size // 3)),
            **values_in(_request),
        },
    ),
    Parser(
        "$management",
        _management,
        values_in(_request)
        | values_in(lambda value: _request(a_map([encode("lock-tokens") + value])))
        | values_in(lambda value: _request(a_map([encode("properties") + value, encode("sequence-numbers") + value]))),
    ),
    Parser(
        "websockets",
        _websocket,
        {
            "frames of a byte": _many(b"\x82\x81\0\0\0\0A"),
            "empty frames": _many(b"\x82\x80\0\0\0\0"),
            "pings": _many(b"\x89\x80\0\0\0\0"),
            "fragments": lambda size: b"\x02\x81\0\0\0\0A" + b"\x00\x81\0\0\0\0A" * (size // 7),
            "one frame": lambda size: b"\x82\xff" + size.to_bytes(8) + b"\1\2\3\4" + bytes(size),
        },
        (),
    ),
    Parser(
        "HTTP",
        _http_head,
        {
            "headers": lambda size: b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * (size // 6) + b"\r\n",
            "folded lines": lambda size: b"GET / HTTP/1.1\r\nHost: x\r\na: b" + b"\r\n c" * (size // 4) + b"\r\n\r\n",
            "one line": lambda size: b"GET /" + b"a" * size,
            "chunks of a byte": lambda size: (
                b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * (size // 6)
            ),
            "lines of a byte": lambda size: b"\n" * size,
        },
        (h11.RemoteProtocolError,),
    ),
    Parser(
        "cookies",
        _cookie,
        {
            "backslashes": lambda size: b'partibus-portal-80="' + b"\\" * size + b'"',
            "quotes": lambda size: b'partibus-portal-80="' + b'\\"' * (size // 2) + b'"',
            "pairs": _many(b"a=b;"),
            "semicolons": _many(b";"),
            "base64": lambda size: b"partibus-portal-80=" + b"QUFB" * (size // 4),
        },
    ),
    Parser("queries", _query, {"pairs": _many(b"a=b&"), "escapes": _many(b"%41"), "ampersands": _many(b"&")}),
    Parser(
        "forms",
        _form,
        {"pairs": _many(b"a=b&"), "escapes": _many(b"%41"), "one field": lambda size: b"a=" + b"+" * size},
        (PartibusError, BodyTooLarge),
    ),
    Parser(
        "XML",
        parse_xml,
        {
            "elements": lambda size: b"<a>" + b"<b/>" * (size // 4) + b"</a>",
            "attributes": lambda size: b"<a " + b" ".join(b'a%x=""' % n for n in range(size // 8)) + b"/>",
            "namespaces": lambda size: b"<a " + b" ".join(b'xmlns:a%x="u"' % n for n in range(size // 14)) + b"/>",
            "entities": lambda size: b"<a>" + b"&lt;" * (size // 4) + b"</a>",
            "opened": _many(b"<a>"),
            "one text": lambda size: b"<a>" + b"x\n" * (size // 2) + b"</a>",
        },
    ),
    Parser(
        "BrokerProperties",
        _broker_properties,
        {
            "nested": lambda size: b'{"a":' * (size // 5),
            "members": lambda size: b"{" + b",".join(b'"%x":0' % n for n in range(size // 8)) + b"}",
            "one number": lambda size: b'{"TimeToLive":' + b"9" * size + b"}",
            "one text": lambda size: b'{"Label":"' + b"\\u0041" * (size // 6) + b'"}',
        },
    ),
    Parser(
        "batches in JSON",
        _json_batch,
        {
            "messages": lambda size: b"[" + b",".join([b'{"Body":""}'] * (size // 12)) + b"]",
            "properties": lambda size: (
                b'[{"UserProperties":{' + b",".join(b'"%x":0' % n for n in range(size // 8)) + b"}}]"
            ),
            "nested": _many(b"["),
            "lists": lambda size: b'[{"x":[' + b"[]," * (size // 3) + b"[]]}]",
            "numbers": lambda size: b"[" + b"9" * size + b"]",
        },
    ),
    Parser(
        "filters",
        _filter,
        {
            "characters of one pattern": _many(b"a_"),
            "percents": _many(b"%a"),
            "parentheses": _many(b"("),
            "conditions": lambda size: b" OR ".join([b"a=1"] * (size // 7)),
            "members": lambda size: b"a IN (" + b",".join([b"1"] * (size // 2)) + b")",
            "digits": _many(b"9"),
            "quotes": _many(b"''"),
        },
        sizes=(250, 1_000),
    ),
    Parser(
        "tokens",
        _text(_sas),
        {
            "segments": lambda size: _TOKEN.format("a/" * (size // 2)).encode(),
            "escapes": lambda size: _TOKEN.format("%25" * (size // 3)).encode(),
            "claims": lambda size: b"SharedAccessSignature " + b"&".join(b"%x=1" % n for n in range(size // 6)),
            "a signature": lambda size: b"SharedAccessSignature sr=a&se=1&skn=p&sig=" + b"QUFB" * (size // 4),
            "a policy": lambda size: b"SharedAccessSignature sr=a&se=1&sig=QUFB&skn=" + b"%2525" * (size // 5),
        },
    ),
    Parser(
        "tokens of an identity provider",
        _text(_identity_token),
        {
            "a header nested": _jwt(lambda size: "[" * size),
            "a header of members": _jwt(lambda size: "{" + ",".join(f'"{n:x}":0' for n in range(size // 8)) + "}"),
            "a header of digits": _jwt(lambda size: '{"kid":' + "9" * size + "}"),
            "critical headers": _jwt(lambda size: '{"kid":"k","alg":"ES256","crit":["a"' + ',"a"' * (size // 4) + "]}"),
            "no signature": _jwt(lambda size: '{"alg":"none","kid":"k","x":"' + "x" * size + '"}', ".e30."),
            "a shared secret": _jwt(lambda size: '{"alg":"HS256","kid":"k","x":"' + "x" * size + '"}'),
            "a payload apart": _jwt(lambda size: '{"alg":"ES256","kid":"k","b64":false,"x":"' + "x" * size + '"}'),
            "another key": _jwt(lambda size: '{"alg":"ES256","kid":"' + "k" * size + '"}'),
            "a name of lists": _jwt(lambda size: '{"alg":"ES256","kid":[' + "[]," * (size // 3) + "0]}"),
            "a payload": lambda size: _JWT_HEAD + b"." + b"QUFB" * (size // 4) + b"." + b"QUFB" * 21,
            "a signature": lambda size: _JWT_HEAD + b".e30." + b"QUFB" * (size // 4),
            "dots": lambda size: _JWT_HEAD + b"." * size,
            "only dots": _many(b"."),
            "no base64": lambda size: b"e" + b"=" * size + b".e30.QUFB",
        },
    ),
    Parser(
        "properties of entities",
        _text(_entity_properties),
        {
            "unknown names": lambda size: b"\n".join(b"%x=1" % n for n in range(size // 6)),
            "names like known ones": lambda size: b"\n".join(b"RequiresDuplicate%x=1" % n for n in range(size // 22)),
            "a long name": lambda size: b"RequiresDuplicateDetection" * (size // 26),
            "a duration of digits": lambda size: b"LockDuration=PT" + b"9" * size + b"S",
            "a duration of units": lambda size: b"PartibusPartitionCalm=P" + b"1D" * (size // 2),
            "a path": lambda size: b"ForwardTo=" + b"a/" * (size // 2),
            "a number": lambda size: b"PartibusPartitionRequests=" + b"9" * size,
            "capacity of partitions": lambda size: (
                b"PartibusElasticPartitions=8\nPartibusPartitionRequests=300\nPartibusPartitionMessages=3000\n"
                b"PartibusPartitionSplitPercent=80\nPartibusPartitionMergePercent=30\nPartibusPartitionCalm=PT%dS\n"
                b"UserMetadata=%b" % (size, b"x" * size)
            ),
        },
    ),
    Parser(
        "connection strings",
        _text(parse_connection_string),
        {
            "pairs": _many(b"Endpoint=sb://h/;"),
            "semicolons": _many(b";"),
            "a host": lambda size: b"Endpoint=sb://" + b"a." * (size // 2) + b"!",
            "a name": lambda size: b"x" * size + b"=y",
            "a key": lambda size: b"Endpoint=sb://h/;SharedAccessKeyName=p;SharedAccessKey=" + b"=" * size,
        },
    ),
    Parser(
        "Config.json",
        parse_config_json,
        {
            "nested": _many(b"["),
            "members": lambda size: b"{" + b",".join(b'"%x":0' % n for n in range(size // 8)) + b"}",
            "members twice": lambda size: b"{" + b",".join([b'"a":0'] * (size // 6)) + b"}",
            "queues": lambda size: (
                b'{"UserConfig":{"Namespaces":[{"Name":"n","Queues":['
                + b",".join(b'{"Name":"q%x","Properties":{}}' % n for n in range(size // 35))
                + b"]}]}}"
            ),
        },
        (ConfigError,),
    ),
    *SQS_PARSERS,
)
