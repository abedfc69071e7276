"""Resolves a client's new link to a node or entity, and assigns its owner."""

from functools import partial

from partibus.amqp import Coordinator, Link, Receiver, Sender, Source, Target
from partibus.amqp.codec.types import Symbol, ULong
from partibus.errors import InvalidOperation, PartibusError, QuotaExceeded, Unsupported
from partibus.frontends.amqp.claims import CbsNode
from partibus.frontends.amqp.errors import amqp_error
from partibus.frontends.amqp.incoming import TRANSFER_DESTINATION, IncomingLink
from partibus.frontends.amqp.ingress import BATCH_LEEWAY_BYTES
from partibus.frontends.amqp.link_context import LinkContext
from partibus.frontends.amqp.links import Links
from partibus.frontends.amqp.management import EntityManagement, NamespaceManagement
from partibus.frontends.amqp.node import Node, ReplyLinks, RequestLink
from partibus.frontends.amqp.operations.request import ConnectionState
from partibus.frontends.amqp.outgoing import OutgoingLink
from partibus.frontends.amqp.session_link import Holds, SessionLink, check_session_filter, session_filter_of, wait_ms_of
from partibus.frontends.amqp.transactions import CoordinatorLink
from partibus.namespace.access import Right
from partibus.namespace.entity import Entity
from partibus.namespace.names import CBS, MANAGEMENT, Address, Subqueue, parse_address
from partibus.namespace.namespace import Queue
from partibus.namespace.namespaces import Namespaces
from partibus.namespace.requests import RequestKind
from partibus.namespace.tiers import Feature, check_has

MAX_BATCH_SIZE = Symbol("com.microsoft:max-message-batch-size")
SETTLED = 1
"""The snd-settle-mode of a link that receives and deletes (section 4.1)."""


class Attaching:
    """The attaching of links on one connection."""

    def __init__(
        self,
        namespaces: Namespaces,
        state: ConnectionState,
        links: Links,
        replies: ReplyLinks,
        link_context: LinkContext,
        sessions: Holds,
    ) -> None:
        self._namespaces = namespaces
        self._state = state
        self._broker = state.broker
        self._links = links
        self._replies = replies
        self._link_context = link_context
        self._sessions = sessions
        self._flush = link_context.flush

    def attach(self, link: Link) -> None:
        """Accept the link or refuse it by name, before any state exists."""
        try:
            most = self._broker.namespace.bounds.limits.links
            if len(self._links) >= most:
                raise QuotaExceeded("The connection", most, "links", "Detach one first.")
            if isinstance(link, Receiver):
                self._attach_incoming(link)
            elif isinstance(link, Sender):
                self._attach_outgoing(link)
        except PartibusError as error:
            self._links.end(link)
            self._broker.requests.answered(RequestKind.ATTACH, 1, (error,))
            link.refuse(amqp_error(error, link.session.connection.called or ""))

    def _attach_incoming(self, link: Receiver) -> None:
        """Attach a link on which the client sends, to an entity or to a node."""
        if isinstance(link.target, Coordinator):
            # One client library declares its first transaction before it puts a token to $cbs.
            check_has(self._broker.namespace.bounds.tier, Feature.TRANSACTIONS)
            self._links.incoming[link] = CoordinatorLink(link, self._state.transactions, self._flush)
            return
        if link.target is not None and not isinstance(link.target, Target):
            raise Unsupported("A target that is no node", "Name an entity as the address of the target.")
        text = _text(link.target.address if link.target else None)
        node = self._node(text)
        if node is not None:
            link.accept(max_message_size=node.request_bytes_max)
            self._links.incoming[link] = RequestLink(
                link, text.lower(), node, self._replies, self._flush, self._state.call_later
            )
            return
        address = _address_to_send_to(text)
        entity = self._authorized(Right.SEND, address)
        entity.check_send()
        onward = _transfer_destination(link)
        destination = self._authorized(Right.SEND, onward) if onward is not None else None
        self._links.use(link, entity.queue)
        queue = (destination or entity).queue
        link.accept(
            max_message_size=queue.message_size_max_bytes,
            leeway_bytes=BATCH_LEEWAY_BYTES,
            properties=_batch_size(queue),
        )
        self._links.need(link, *((Right.SEND, one.segments) for one in (address, onward) if one is not None))
        credit = self._broker.limits.connection.link_credit
        self._links.incoming[link] = IncomingLink(
            link,
            entity,
            self._state.ingress,
            self._state.transactions,
            self._broker.throttle,
            credit,
            self._flush,
            partial(self._find_again, link),
            destination,
        )

    def _find_again(self, link: Receiver, gone: Entity) -> Entity:
        """Return the entity at the path of a deleted one. Raises `EntityNotFound` and `QuotaExceeded`."""
        found = self._broker.entity(gone.queue.name)
        self._links.move(link, gone.queue, found.queue)
        return found

    def _attach_outgoing(self, link: Sender) -> None:
        """Attach a link on which the client receives: messages of a sub-queue, or replies of a node."""
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
        self._links.use(link, entity.queue)
        self._links.receive(link, entity.queue)
        self._links.need(link, (Right.LISTEN, address.segments))
        if session_filter is None:
            link.accept(max_message_size=entity.queue.message_size_max_bytes)
            self._links.outgoing[link] = OutgoingLink(
                link,
                entity,
                address.subqueue,
                self._link_context,
                delete=link.snd_settle_mode == SETTLED,
            )
        else:
            self._links.outgoing[link] = SessionLink(
                link,
                entity,
                session_filter,
                self._link_context,
                self._sessions,
                self._state.call_later,
                wait_ms=wait_ms,
                delete=link.snd_settle_mode == SETTLED,
            )

    def _node(self, text: str) -> Node | None:
        """Return the request/response node of that address; None for an entity's own.

        Raises `Unauthorized` for every node but `$cbs` without a claim that covers it, whether it exists or not.
        """
        folded = text.strip("/").lower()
        if folded == CBS:
            return CbsNode(self._state.claims)
        if folded == MANAGEMENT:
            self._state.claims.require_some((MANAGEMENT,))
            return NamespaceManagement(self._namespaces, self._broker, self._state.claims, self._state.client)
        address = parse_address(text)
        if not address.management:
            return None
        self._state.claims.require_some(address.segments)
        return EntityManagement(self._entity(address), address.subqueue, address.segments, self._state)

    def _authorized(self, right: Right, address: Address) -> Entity:
        """Return the entity for a client with the right. Other clients do not even learn whether it exists."""
        self._state.claims.require(right, address.segments)
        return self._entity(address)

    def _entity(self, address: Address) -> Entity:
        """Return the entity of an address. Raises `EntityNotFound`."""
        return self._broker.entity(address.entity_path)


def _batch_size(queue: Queue) -> dict[object, object] | None:
    """Return the batch size announced to clients where a message may be larger than a batch (section 3.2)."""
    if queue.batch_size_max_bytes == queue.message_size_max_bytes:
        return None
    return {MAX_BATCH_SIZE: ULong(queue.batch_size_max_bytes)}


def _transfer_destination(link: Receiver) -> Address | None:
    """Return the destination of messages sent through the entity of a link (section 3.7)."""
    text = (link.properties or {}).get(TRANSFER_DESTINATION)
    return None if text is None else _address_to_send_to(_text(text))


def _address_to_send_to(text: str) -> Address:
    address = parse_address(text)
    if address.subqueue is not Subqueue.ACTIVE or address.subscription:
        raise InvalidOperation(f"No client can send to '{address.path}'. Send to '{address.entity}'.")
    return address


def _text(address: object) -> str:
    return address if isinstance(address, str) else ""
