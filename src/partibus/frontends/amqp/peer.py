"""One client's connection: which event goes to whom.

The protocol engine says what the client did; links and nodes have an owner that knows what it means. No IO here: the
server feeds bytes and is told when there are some to send.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from partibus.amqp import (
    AmqpError,
    Attached,
    Closed,
    Connection,
    Coordinator,
    CreditChanged,
    Deliveries,
    Delivery,
    Detached,
    Disposed,
    Event,
    Link,
    Opened,
    PlainLogin,
    Receiver,
    Sender,
    SessionClosed,
    Source,
    Target,
    WindowOpened,
)
from partibus.amqp import Limits as EngineLimits
from partibus.amqp.codec.types import Symbol, ULong
from partibus.errors import (
    InvalidOperation,
    PartibusError,
    QuotaExceeded,
    Unauthorized,
    Unsupported,
)
from partibus.frontends.amqp.claims import CbsNode, Claims
from partibus.frontends.amqp.completions import Completions
from partibus.frontends.amqp.errors import amqp_error
from partibus.frontends.amqp.held_back import HeldBack
from partibus.frontends.amqp.incoming import TRANSFER_DESTINATION, IncomingLink
from partibus.frontends.amqp.ingress import Ingress
from partibus.frontends.amqp.management import EntityManagement, NamespaceManagement
from partibus.frontends.amqp.node import REQUEST_ROOM_BYTES, Node, ReplyLinks, RequestLink
from partibus.frontends.amqp.operations.request import ConnectionState
from partibus.frontends.amqp.outgoing import OutgoingLink
from partibus.frontends.amqp.session_filter import check_session_filter, session_filter_of
from partibus.frontends.amqp.session_link import CallLater, Holds, SessionLink, wait_ms_of
from partibus.frontends.amqp.transactions import CoordinatorLink
from partibus.namespace.access import Right
from partibus.namespace.addresses import CBS, MANAGEMENT, Address, Subqueue, parse_address
from partibus.namespace.broker import Broker, Entity
from partibus.namespace.namespace import Queue
from partibus.namespace.namespaces import Namespaces
from partibus.namespace.requests import RequestKind
from partibus.namespace.sas import Path
from partibus.namespace.tiers import Feature, check_has
from partibus.routing.transactions import Transactions

log = logging.getLogger(__name__)

CONTAINER_ID = "partibus"
MAX_BATCH_SIZE = Symbol("com.microsoft:max-message-batch-size")
SETTLED = 1
"""snd-settle-mode of a link that receives and deletes (section 4.1)."""
PERFORMATIVES_AT_ONCE = 64
"""Attaches and the like that one connection may have done before others have their turn: the costliest, an attach that
takes a session, is half a millisecond, and thousands of them fit into what one read of a socket brings."""


class Incoming(Protocol):
    """Owns a link on which the client sends."""

    @property
    def overloaded(self) -> bool:
        """What this link leads to has more to do than its limits allow."""
        ...

    def when_relieved(self, call: Callable[[], None]) -> None:
        """Call once, when what is `overloaded` has caught up."""
        ...

    def on_deliveries(self, deliveries: list[Delivery]) -> None: ...

    def on_detached(self) -> None: ...


class Outgoing(Protocol):
    """Owns a link on which the client receives messages, perhaps one that is not attached yet."""

    @property
    def unsettled(self) -> int:
        """Messages that the client was given and holds."""
        ...

    def on_credit(self) -> None:
        """The client's flow, or room again on its connection."""
        ...

    def on_disposed(self, event: Disposed) -> None: ...

    def on_detached(self) -> None: ...


class Peer:
    """The server's side of one connection.

    ``flush`` asks for what the connection has to send to be sent soon; ``congested`` says whether too much is unsent.
    """

    def __init__(
        self,
        namespaces: Namespaces,
        ingress: Ingress,
        flush: Callable[[], None],
        congested: Callable[[], bool],
        call_later: CallLater,
    ) -> None:
        """Until the client's open names another one it is a connection to the default namespace."""
        self._namespaces = namespaces
        self._login: PlainLogin | None = None
        self.called: str | None = None
        """What the client calls the server below AMQP: by TLS, or in the request for a websocket."""
        self._counted: Broker | None = None
        """The namespace that this connection is counted in."""
        self._ingress = ingress
        self._flush = flush
        self._held_back = HeldBack(congested)
        self._call_later = call_later
        self._sessions = Holds()
        self._serve(namespaces.default)
        broker = namespaces.default
        limits = broker.limits.connection
        self._replies = ReplyLinks(congested)
        self._incoming: dict[Link, Incoming] = {}
        self._outgoing: dict[Link, Outgoing] = {}
        self._receiving: dict[Link, Queue] = {}
        """The entities whose receivers our outgoing links are, counted in the namespace's `Clients`."""
        self._using: dict[Link, Queue] = {}
        """The entities that links lead to, counted likewise."""
        self._needed: dict[Link, tuple[tuple[Right, Path], ...]] = {}
        """What a link to an entity lives by."""
        self.connection = Connection(
            server=True,
            limits=EngineLimits(
                max_frame_size=limits.frame_bytes_max,
                channel_max=limits.channel_max,
                handle_max=limits.handle_max,
                links_max=limits.links_max,
                max_message_size=broker.limits.message_bytes_max,
                partial_bytes_max=limits.incoming_bytes,
                pending_bytes_max=limits.outgoing_bytes,
                idle_timeout_ms=limits.idle_timeout_ms,
                performatives_at_once=PERFORMATIVES_AT_ONCE,
            ),
        )

    def _serve(self, broker: Broker) -> None:
        """Nothing was asked of another namespace yet."""
        self.broker = broker
        self._completions = Completions(broker.numbers)
        self._claims = Claims(broker.access, broker.wall_clock)
        bounds = broker.namespace.bounds
        self._transactions = Transactions(
            broker.clock,
            broker.limits.transaction,
            lambda: bytes.fromhex(self._ingress.new_message_id()),
            lambda: bounds.limits.transaction_messages,
        )
        self._state = ConnectionState(
            broker, self._claims, self._ingress, self._sessions, self._transactions, self._call_later
        )

    # -- events ------------------------------------------------------------------------------------------------------

    def receive_data(self, data: bytes) -> None:
        """Bytes from the client."""
        self._dispatch(self.connection.receive_data(data))

    def tick(self, now_s: float) -> None:
        """Keep the client awake; notice a silent one, tokens that have expired and entities that were deleted."""
        self._dispatch(self.connection.tick(now_s))
        self._transactions.expire()
        for outgoing in list(self._outgoing.values()):
            outgoing.on_credit()
        self.check_claims()

    def check_claims(self) -> None:
        """Links go whose claim is good no more."""
        for link, needs in list(self._needed.items()):
            try:
                for right, path in needs:
                    self._claims.require(right, path)
            except Unauthorized as error:
                self.broker.requests.answered(RequestKind.ATTACH, 1, (error,))
                link.detach(amqp_error(error))
                self._on_detached(link)

    @property
    def links(self) -> int:
        """To entities and nodes, both directions."""
        return len(self._incoming) + len(self._outgoing)

    @property
    def unsettled(self) -> int:
        """Messages that the client was given and holds."""
        return sum([outgoing.unsettled for outgoing in self._outgoing.values()])

    @property
    def overloaded(self) -> bool:
        """A store that this client writes to has more to do than its limits allow."""
        return any(link.overloaded for link in self._incoming.values())

    def when_relieved(self, call: Callable[[], None]) -> None:
        """Call once, when a store that makes this `overloaded` has caught up; another one may not have."""
        next(link for link in self._incoming.values() if link.overloaded).when_relieved(call)

    def resume(self) -> None:
        """There is room again on the connection: send replies, ask for more messages."""
        self._replies.resume()
        self._held_back.resume()

    def close(self, error: AmqpError | None) -> None:
        """End the connection from our side."""
        self.connection.close(error)
        self.on_lost()

    def on_lost(self) -> None:
        """The connection is gone, with all that was on it."""
        if self._counted is not None:
            self._counted.clients.disconnect()
            self._counted = None
        self._completions.flush()
        for link in [*self._incoming, *self._outgoing]:
            self._on_detached(link)

    def _dispatch(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case Deliveries():
                    incoming = self._incoming.get(event.link)
                    if incoming is not None:
                        incoming.on_deliveries(event.deliveries)
                case Disposed():
                    outgoing = self._outgoing.get(event.link)
                    if outgoing is not None:
                        outgoing.on_disposed(event)
                case CreditChanged():
                    self._on_credit(event.link)
                case Attached():
                    self._on_attached(event.link)
                case Detached():
                    self._completions.flush()  # before a session is given up with its link
                    self._on_detached(event.link)
                case WindowOpened():
                    self.resume()
                case Opened():
                    self._on_opened()
                case PlainLogin():
                    self._on_login(event)
                case SessionClosed():
                    self._completions.flush()
                    for link in [*self._incoming, *self._outgoing]:
                        if link.session is event.session:
                            self._on_detached(link)
                case Closed():
                    self.on_lost()
        self._completions.flush()

    def _on_login(self, login: PlainLogin) -> None:
        """Which namespace the client means is said with its open, after the answer: then it is checked once more, and
        what counts is what it has shown in that one. Here it is let in when any of them takes its key."""
        meant = self._namespaces.of_host(login.hostname or self.called)
        refusal = _refusal_of(meant, login)
        # Each is asked whatever the others say: how long it takes tells nothing of them.
        others = [] if refusal is None else [_refusal_of(broker, login) for broker in self._namespaces]
        if refusal is None or None in others:
            self._login = login
        else:
            log.info("login refused: %s", refusal)
        self._dispatch(self.connection.answer_login(self._login is not None))

    def _on_opened(self) -> None:
        broker = self._namespaces.of_host(self.connection.called or self.called)
        if broker is not self.broker:
            self._serve(broker)
        if self.connection.peer is not None:
            self._state.client = self.connection.peer.container_id or ""
        self.connection.open(CONTAINER_ID)
        try:
            if self._login is not None:
                self._claims.log_in(self._login.username, self._login.password)
            broker.clients.connect()
        except PartibusError as error:
            self.close(amqp_error(error))
            return
        self._counted = broker

    def _on_credit(self, link: Sender) -> None:
        outgoing = self._outgoing.get(link)
        if outgoing is not None:
            outgoing.on_credit()
        else:
            self._replies.on_credit(link)

    def _on_detached(self, link: Link) -> None:
        self._needed.pop(link, None)
        incoming = self._incoming.pop(link, None)
        if incoming is not None:
            incoming.on_detached()
        outgoing = self._outgoing.pop(link, None)
        if outgoing is not None:
            outgoing.on_detached()
        received = self._receiving.pop(link, None)
        if received is not None:
            self.broker.clients.remove_receiver(received)
        used = self._using.pop(link, None)
        if used is not None:
            self.broker.clients.leave(used, self)
        if isinstance(link, Sender):
            self._replies.remove(link)

    # -- attaching ---------------------------------------------------------------------------------------------------

    def _on_attached(self, link: Link) -> None:
        """Accept the link or refuse it by name, before any state exists."""
        try:
            most = self.broker.namespace.bounds.limits.links
            if len(self._incoming) + len(self._outgoing) >= most:
                raise QuotaExceeded("The connection", most, "links", "Detach one first.")
            if isinstance(link, Receiver):
                self._attach_incoming(link)
            elif isinstance(link, Sender):
                self._attach_outgoing(link)
        except PartibusError as error:
            self._on_detached(link)
            self.broker.requests.answered(RequestKind.ATTACH, 1, (error,))
            link.refuse(amqp_error(error))

    def _attach_incoming(self, link: Receiver) -> None:
        """The client sends: to an entity or to a node."""
        if isinstance(link.target, Coordinator):
            check_has(self.broker.namespace.bounds.tier, Feature.TRANSACTIONS)
            self._incoming[link] = CoordinatorLink(link, self._transactions, self._flush)
            return
        if link.target is not None and not isinstance(link.target, Target):
            raise Unsupported("A target that is no node", "Name an entity as the address of the target.")
        text = _text(link.target.address if link.target else None)
        node = self._node(text)
        if node is not None:
            link.accept(max_message_size=node.carried_bytes_max + REQUEST_ROOM_BYTES)
            self._incoming[link] = RequestLink(link, text.lower(), node, self._replies, self._flush, self._call_later)
            return
        address = _address_to_send_to(text)
        entity = self._authorized(Right.SEND, address)
        entity.check_send()
        onward = _transfer_destination(link)
        destination = self._authorized(Right.SEND, onward) if onward is not None else None
        self._use(link, entity.queue)
        queue = (destination or entity).queue
        link.accept(max_message_size=queue.message_size_max_bytes, properties=_batch_size(queue))
        self._needed[link] = tuple((Right.SEND, one.segments) for one in (address, onward) if one is not None)
        credit = self.broker.limits.connection.link_credit
        self._incoming[link] = IncomingLink(
            link,
            entity,
            self._ingress,
            self._transactions,
            self.broker.throttle,
            credit,
            self._flush,
            destination,
        )

    def _attach_outgoing(self, link: Sender) -> None:
        """The client receives: messages of a sub-queue, or replies of a node."""
        source = link.source
        if source is not None and not isinstance(source, Source):
            raise Unsupported("A source that is no node", "Name an entity as the address of the source.")
        text = _text(source.address if source else None)
        if self._node(text) is not None:
            link.accept()
            self._replies.add(text.lower(), link)
            return
        address = parse_address(text)
        entity = self._authorized(Right.LISTEN, address)
        entity.check_receive()
        refusal = entity.refusal_of_receivers(address.subqueue)
        if refusal is not None:
            raise refusal
        session_filter = session_filter_of(source)
        check_session_filter(session_filter, entity.queue, address.subqueue)
        wait_ms = wait_ms_of(link.properties) if session_filter is not None else 0
        self._use(link, entity.queue)
        self.broker.clients.add_receiver(entity.queue)
        self._receiving[link] = entity.queue
        self._needed[link] = ((Right.LISTEN, address.segments),)
        if session_filter is None:
            link.accept(max_message_size=entity.queue.message_size_max_bytes)
            self._outgoing[link] = OutgoingLink(
                link,
                entity,
                address.subqueue,
                self._transactions,
                self.broker.throttle,
                self.broker.limits.connection,
                self._flush,
                self._held_back,
                self._completions,
                delete=link.snd_settle_mode == SETTLED,
            )
        else:
            self._outgoing[link] = SessionLink(
                link,
                entity,
                session_filter,
                self._sessions,
                self._transactions,
                self.broker.throttle,
                self.broker.limits.connection,
                self._flush,
                self._held_back,
                self._completions,
                self._call_later,
                wait_ms=wait_ms,
                delete=link.snd_settle_mode == SETTLED,
            )

    def _use(self, link: Link, entity: Queue) -> None:
        """Raises `QuotaExceeded` when as many connections use the entity as may."""
        self.broker.clients.use(entity, self)
        self._using[link] = entity

    def _node(self, text: str) -> Node | None:
        """The request/response node of that address; None for an entity's own."""
        folded = text.strip("/").lower()
        if folded == CBS:
            return CbsNode(self._claims)
        if folded == MANAGEMENT:
            return NamespaceManagement(self._namespaces, self.broker, self._claims, self._state.client)
        address = parse_address(text)
        if not address.management:
            return None
        return EntityManagement(self._entity(address), address.subqueue, address.segments, self._state)

    def _authorized(self, right: Right, address: Address) -> Entity:
        """The entity, for who has the right: whoever has not does not even learn whether it exists."""
        self._claims.require(right, address.segments)
        return self._entity(address)

    def _entity(self, address: Address) -> Entity:
        """The entity of an address. Raises `EntityNotFound`."""
        return self.broker.entity(address.entity_path)


def _batch_size(queue: Queue) -> dict[object, object] | None:
    """What clients are told of batches where a message may be larger than one (section 3.2)."""
    if queue.batch_size_max_bytes == queue.message_size_max_bytes:
        return None
    return {MAX_BATCH_SIZE: ULong(queue.batch_size_max_bytes)}


def _refusal_of(broker: Broker, login: PlainLogin) -> PartibusError | None:
    """Why a namespace does not take a name and key; None when it does."""
    try:
        broker.access.check_key(login.username, login.password)
    except PartibusError as error:
        return error
    return None


def _transfer_destination(link: Receiver) -> Address | None:
    """Where messages go that the client sends through the entity of a link (section 3.7)."""
    text = (link.properties or {}).get(TRANSFER_DESTINATION)
    return None if text is None else _address_to_send_to(_text(text))


def _address_to_send_to(text: str) -> Address:
    address = parse_address(text)
    if address.subqueue is not Subqueue.ACTIVE or address.subscription:
        raise InvalidOperation(f"Nobody can send to '{address.path}'. Send to '{address.entity}'.")
    return address


def _text(address: object) -> str:
    return address if isinstance(address, str) else ""
