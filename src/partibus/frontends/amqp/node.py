"""Request/response nodes: `$cbs`, and the `$management` of the namespace and of each entity (sections 2 and 6).

A client makes two links in one session: it sends requests on one and gets replies on the other. Reply-to texts are not
unique between clients (trap 25), so a reply goes to a reply link of the same session and node: the latest one with the
request's reply-to as its target, else the latest one.
"""

from collections import deque
from collections.abc import Callable, KeysView, Mapping
from contextlib import suppress
from operator import attrgetter
from typing import Any, Final, Protocol

from msgspec import Struct, field

from partibus.amqp import (
    ACCEPTED,
    AmqpError,
    DecodeError,
    Delivery,
    DeliveryState,
    Receiver,
    Rejected,
    Sender,
    SessionPort,
    Target,
    TransactionalState,
)
from partibus.amqp.codec.encoder import encode, write_compound
from partibus.amqp.errors import DECODE_ERROR
from partibus.amqp.section_encoding import encode_application_properties, value_pieces
from partibus.amqp.section_fields import Property, decode_body, decode_map, raw_property, text_property
from partibus.amqp.sections import PROPERTIES, split_sections

_TAG = b"\x00\x00\x00\x00"
REQUEST_CREDIT = 100
REQUEST_ROOM_BYTES = 64 << 10
"""The room in a request beside the one message, or session state, that it carries."""
UNDER_WAY_MAX = 4
"""The most requests of one link in progress: the answer to each may hold megabytes."""
AT_ONCE_MAX = 16
AT_ONCE_BYTES = 64 << 10
"""The requests of one link, and their bytes, that begin before a pause in which other links have their turn. Many are
answered at once, and one with thousands of lock tokens takes some fifty milliseconds. The request that reaches the
limit still begins. Fewer requests need no pause: its timer is a good part of the cost of a lone put-token.
"""
READ_BYTES = 96 << 10
REQUEST_BYTES_MIN = 384
"""The bytes of requests of one link that one turn of its connection decodes, and the least that one of them counts:
refusing one that is no message takes some fifty microseconds.
"""
PROPERTIES_BYTES_MAX = 16 << 10
"""The most bytes of a request's application properties: its operation, its time-out, the audience of a token."""
VALUES_MAX = 30_000
"""The most values in the body of a request. The largest operation has 10,000 messages, their ids and their positions.
30,000 UUIDs take some 40 ms.
"""
REQUESTS_MAX = 1_000
"""The most requests that wait for their turn; past it the broker stops reading from the client."""
REPLIES_MAX = 1_000
REPLY_BYTES_MAX = 16 << 20
"""The most replies that wait for the client's credit, and their bytes; for a client that reads none the oldest are
dropped.
"""


class Request(Struct):
    """A request message."""

    properties: Mapping[str, object]
    """The application properties."""
    body: object
    message_id: bytes | None
    """The encoded message id: the reply repeats it with its type (trap 5)."""
    transaction: bytes | None = None
    """The transaction that the request's transfer names (section 8)."""
    size_bytes: int = 0
    """The size of the whole message."""
    properties_section: bytes = b""
    """The encoded properties, for `_reply_to`."""

    @property
    def operation(self) -> str:
        """The requested operation; empty if there is none."""
        operation = self.properties.get("operation")
        return operation if isinstance(operation, str) else ""


class Reply(Struct):
    """The answer of a node."""

    properties: dict[str, object]
    """The application properties, with the node's own names for status code and text."""
    body: object = None
    encoded: bytes | None = None
    """The encoded ``properties`` of a reply that many requests get."""


Respond = Callable[[Reply], None]


class Node(Protocol):
    """A node that answers requests."""

    @property
    def request_bytes_max(self) -> int:
        """The largest request that the node takes."""
        ...

    def handle(self, request: Request, respond: Respond) -> None:
        """Handle a request and call ``respond`` once, now or later."""
        ...


_Key = tuple[SessionPort | None, str, str | None]


class _Waiting(Struct):
    """The replies that wait for the credit of one link, and the link's keys in `ReplyLinks`."""

    keys: list[_Key]
    payloads: deque[bytes] = field(default_factory=deque)
    size_bytes: int = 0


class ReplyLinks(Struct):
    """The reply links of one connection, and the replies that wait for their credit."""

    congested: Callable[[], bool]
    """Tells whether too much is unsent on the connection."""
    bytes_max: int = REPLY_BYTES_MAX
    overloaded: set["RequestLink"] = field(default_factory=set)
    """The connection's request links on which too many requests wait."""
    _links: dict[_Key, dict[Sender, None]] = field(default_factory=dict)
    """Links, the latest last, by session, node address and target address. Each is found without its target address,
    and without its session, too.
    """
    _waiting: dict[Sender, _Waiting] = field(default_factory=dict)
    """An entry for each reply link, also without waiting replies."""
    _bytes_waiting: int = 0

    @property
    def links(self) -> KeysView[Sender]:
        """All reply links."""
        return self._waiting.keys()

    def add(self, address: str, link: Sender) -> None:
        """Add an attached reply link."""
        target = link.target.address if isinstance(link.target, Target) else None
        keys: list[_Key] = [(link.session, address, None), (None, address, None)]
        if isinstance(target, str):
            keys.append((link.session, address, str(target)))
        for key in keys:
            self._links.setdefault(key, {})[link] = None
        self._waiting[link] = _Waiting(keys)

    def remove(self, link: Sender) -> None:
        """Remove a detached link and the replies that waited for it; do nothing for a link that is no reply link."""
        waiting = self._waiting.pop(link, None)
        if waiting is None:
            return
        self._bytes_waiting -= waiting.size_bytes
        for key in waiting.keys:
            del self._links[key][link]
            if not self._links[key]:
                del self._links[key]

    def send(self, session: SessionPort, address: str, request: Request, payload: bytes) -> None:
        """Reply to a request on a link of the session, or, if it has none, on another one of the node.

        Past the bounds the oldest replies are dropped: those of the link itself, or of the link with the most bytes.
        """
        links = self._links
        found = links.get((session, address, None)) or links.get((None, address, None))
        if found is None:
            return
        if len(found) > 1:
            found = links.get((session, address, _reply_to(request)), found)
        link = next(reversed(found))
        waiting = self._waiting[link]
        waiting.payloads.append(payload)
        waiting.size_bytes += len(payload)
        self._bytes_waiting += len(payload)
        self.on_credit(link)
        if len(waiting.payloads) > REPLIES_MAX:
            self._drop_oldest(waiting)
        while self._bytes_waiting > self.bytes_max:
            self._drop_oldest(max(self._waiting.values(), key=attrgetter("size_bytes")))

    def _drop_oldest(self, waiting: _Waiting) -> None:
        size = len(waiting.payloads.popleft())
        waiting.size_bytes -= size
        self._bytes_waiting -= size

    def resume(self) -> None:
        """Send waiting replies: there is room again on the connection."""
        for link in list(self._waiting):
            self.on_credit(link)

    def on_credit(self, link: Sender) -> None:
        """Send waiting replies as far as the client's credit allows."""
        waiting = self._waiting.get(link)
        if waiting is not None:
            payloads = waiting.payloads
            while payloads and not self.congested() and link.send_many([(_TAG, payloads[0], None)], settled=True):
                self._drop_oldest(waiting)
        if link.drain_requested:
            link.drained()


class RequestLink:
    """The link on which one client sends its requests to a node."""

    def __init__(
        self,
        link: Receiver,
        address: str,
        node: Node,
        replies: ReplyLinks,
        flush: Callable[[], None],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        """Take over an attached link. ``call_later`` takes milliseconds."""
        self._link = link
        self._address = address
        self._node = node
        self._replies = replies
        self._flush = flush
        self._call_later = call_later
        self._waiting: deque[Request] = deque()
        self._waiting_bytes = 0
        self._waiting_bytes_max = 2 * node.request_bytes_max
        self._under_way = 0
        self._working = False
        self._begun = 0
        """The requests that were begun since the last pause."""
        self._begun_bytes = 0
        self._pausing = False
        self._on_relieved: list[Callable[[], None]] = []
        link.grant(REQUEST_CREDIT)

    @property
    def overloaded(self) -> bool:
        """Whether too many requests wait."""
        return len(self._waiting) > REQUESTS_MAX or self._waiting_bytes > self._waiting_bytes_max

    def when_relieved(self, call: Callable[[], None]) -> None:
        """Call once, when this is no longer `overloaded`."""
        self._on_relieved.append(call)

    def on_deliveries(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Answer each request in its turn; reject deliveries that are no request.

        Return those left after requests of `READ_BYTES`, which the connection's next turn decodes.
        """
        read_bytes = 0
        for index, delivery in enumerate(deliveries):
            if read_bytes >= READ_BYTES:
                self._work()
                return deliveries[index:]
            read_bytes += max(REQUEST_BYTES_MIN, len(delivery.payload))
            try:
                request = read_request(delivery.payload, delivery.state)
            except DecodeError as error:
                self._link.settle_many([delivery], Rejected(AmqpError(DECODE_ERROR, str(error))))
                continue
            self._link.settle_many([delivery], ACCEPTED)
            self._waiting.append(request)
            self._waiting_bytes += request.size_bytes
        self._work()
        return []

    def _work(self) -> None:
        """Begin the requests that may begin.

        A request that is answered at once must not begin the next one recursively.
        """
        if self._working:
            return
        self._working = True
        while self._waiting and self._under_way < UNDER_WAY_MAX:
            if self._begun == AT_ONCE_MAX or self._begun_bytes >= AT_ONCE_BYTES:
                if not self._pausing:
                    self._pausing = True
                    self._call_later(0, self._go_on)
                break
            request = self._waiting.popleft()
            self._waiting_bytes -= request.size_bytes
            self._begun += 1
            self._begun_bytes += request.size_bytes
            self._under_way += 1
            self._node.handle(request, self._respond(request))
        self._working = False
        if 2 * self._link.credit <= REQUEST_CREDIT and len(self._waiting) < REQUEST_CREDIT:
            self._link.grant(REQUEST_CREDIT)
        if self._waiting and self.overloaded:
            self._replies.overloaded.add(self)
        elif self._replies.overloaded:
            self._relieve()

    def _go_on(self) -> None:
        """End the pause: other links have had their turn."""
        self._pausing = False
        self._begun = self._begun_bytes = 0
        self._work()

    def _relieve(self) -> None:
        self._replies.overloaded.discard(self)
        calls, self._on_relieved = self._on_relieved, []
        for call in calls:
            call()

    def _respond(self, request: Request) -> Respond:
        session = self._link.session

        def respond(reply: Reply) -> None:
            self._under_way -= 1
            self._replies.send(session, self._address, request, write_reply(request, reply))
            self._flush()
            self._work()

        return respond

    def on_detached(self) -> None:
        """Drop the waiting requests; replies under way still go to the reply link."""
        self._waiting.clear()
        self._waiting_bytes = 0
        self._relieve()


def read_request(payload: bytes, state: DeliveryState | None = None) -> Request:
    """Decode a request message; ``state`` is that of its transfer. Raises `DecodeError`."""
    sections = split_sections(payload)
    size = len(sections.application_properties)
    if size > PROPERTIES_BYTES_MAX:
        raise DecodeError(f"the application properties of a request have {size} bytes, at most {PROPERTIES_BYTES_MAX}")
    properties = decode_map(sections.application_properties)
    values: list[Any] = decode_body(sections.body, VALUES_MAX)
    return Request(
        properties,
        values[0] if values else None,
        raw_property(sections.properties, Property.MESSAGE_ID),
        state.txn_id if isinstance(state, TransactionalState) else None,
        len(payload),
        sections.properties,
    )


def _reply_to(request: Request) -> str | None:
    """Return the reply-to of a request; None if it has none that names a link."""
    with suppress(DecodeError):
        return text_property(request.properties_section, Property.REPLY_TO)
    return None


def write_reply(request: Request, reply: Reply) -> bytes:
    """Encode a reply: correlation-id is the request's message-id, to the byte."""
    head = bytearray(_PROPERTIES_HEAD)
    write_compound(head, 0xC0, Property.CORRELATION_ID + 1, _REPLY_FIELDS + (request.message_id or b"\x40"))
    properties = reply.encoded or encode_application_properties(reply.properties)
    body = _NO_BODY if reply.body is None else value_pieces(reply.body)
    return b"".join((head, properties, *body))


_PROPERTIES_HEAD: Final = b"\x00\x53" + bytes((PROPERTIES,))
_REPLY_FIELDS: Final = encode("reply") + b"\x40" * (Property.CORRELATION_ID - 1)
"""The properties up to correlation-id: the message-id alone."""
_NO_BODY: Final = value_pieces(None)
