"""The links of one connection: their owners, the entities they use, and the rights they depend on."""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from partibus.amqp import Delivery, Disposed, Link, Sender, SessionPort
from partibus.errors import Unauthorized
from partibus.frontends.amqp.claims import Claims
from partibus.frontends.amqp.errors import amqp_error
from partibus.frontends.amqp.node import ReplyLinks
from partibus.namespace.access import Right
from partibus.namespace.broker import Broker
from partibus.namespace.queues import Queue
from partibus.namespace.requests import RequestKind
from partibus.namespace.sas import Path


class LinkUse(NamedTuple):
    """The use that one link makes of an entity at the moment."""

    entity: Queue
    sends: bool
    held: int = 0
    """Messages that a receiver holds or has credit for: its prefetch count, or what it asks for at a time."""
    deletes: bool = False
    """Whether it receives in the mode receive-and-delete."""


class Incoming(Protocol):
    """The owner of a link on which the client sends."""

    @property
    def overloaded(self) -> bool:
        """Whether the link's target exceeds its limits."""
        ...

    def when_relieved(self, call: Callable[[], None]) -> None:
        """Call once, when the target that was `overloaded` has caught up."""
        ...

    def on_deliveries(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Handle deliveries of the client; return those left for the connection's next turn."""
        ...

    def on_detached(self) -> None:
        """Handle the end of the link."""
        ...


class Outgoing(Protocol):
    """The owner of a link on which the client receives messages; the link may not be attached yet."""

    @property
    def unsettled(self) -> int:
        """The number of messages that the client was given and still holds."""
        ...

    @property
    def deletes(self) -> bool:
        """Whether messages are deleted as they are received."""
        ...

    def on_credit(self) -> None:
        """Handle the client's flow, or room again on its connection."""
        ...

    def on_disposed(self, event: Disposed) -> None:
        """Handle dispositions of the client."""
        ...

    def on_detached(self) -> None:
        """Handle the end of the link."""
        ...


class Links:
    """Links to the entities and nodes of one namespace, in both directions."""

    def __init__(self, broker: Broker, claims: Claims, replies: ReplyLinks) -> None:
        self.incoming: dict[Link, Incoming] = {}
        self.outgoing: dict[Link, Outgoing] = {}
        self._broker = broker
        self._claims = claims
        self._replies = replies
        self._receiving: dict[Link, Queue] = {}
        """The entities that outgoing links receive from, counted in the namespace's `Clients`."""
        self._using: dict[Link, Queue] = {}
        """The entities that links use, also counted there."""
        self._needed: dict[Link, tuple[tuple[Right, Path], ...]] = {}
        """The rights that a link to an entity depends on."""

    def __len__(self) -> int:
        return len(self.incoming) + len(self.outgoing) + len(self._replies.links)

    def _all(self) -> list[Link]:
        """Return the links of both directions, those that replies are sent on among them."""
        return [*self.incoming, *self.outgoing, *self._replies.links]

    @property
    def unsettled(self) -> int:
        """The number of messages that the client was given and still holds."""
        return sum([outgoing.unsettled for outgoing in self.outgoing.values()])

    def uses(self) -> Iterator[LinkUse]:
        """Yield what the links to entities use; links to nodes use none."""
        for link, entity in self._using.items():
            if link in self.incoming:
                yield LinkUse(entity, sends=True)
            elif isinstance(link, Sender) and (outgoing := self.outgoing.get(link)) is not None:
                yield LinkUse(entity, False, outgoing.unsettled + link.credit, outgoing.deletes)

    @property
    def overloaded(self) -> bool:
        """Whether a store that the client writes to exceeds its limits, or too many requests wait at a node."""
        return any(link.overloaded for link in self.incoming.values())

    def when_relieved(self, call: Callable[[], None]) -> None:
        """Call once, when a store or node that makes this `overloaded` has caught up; another one may not have."""
        next(link for link in self.incoming.values() if link.overloaded).when_relieved(call)

    # -- begin -------------------------------------------------------------------------------------------------------

    def use(self, link: Link, entity: Queue) -> None:
        """Count a link that uses the entity. Raises `QuotaExceeded` if the entity has its maximum of connections."""
        self._broker.clients.use(entity, self)
        self._using[link] = entity

    def move(self, link: Link, old: Queue, new: Queue) -> None:
        """Count a link that uses ``old`` at ``new``. Raises as `use`; the link is then counted at ``old`` still."""
        if self._using.get(link) is old:
            self.use(link, new)
            self._broker.clients.leave(old, self)

    def receive(self, link: Link, entity: Queue) -> None:
        """Count a receiver of the entity. Raises `ServerBusy` if the entity has its maximum of receivers."""
        self._broker.clients.add_receiver(entity)
        self._receiving[link] = entity

    def need(self, link: Link, *needed: tuple[Right, Path]) -> None:
        """Set the rights of a link; the broker detaches it when one of them ends."""
        self._needed[link] = needed

    # -- while they are there ----------------------------------------------------------------------------------------

    def on_reply_credit(self, link: Link) -> None:
        """Handle a flow of the client for a link of replies."""
        if isinstance(link, Sender):
            self._replies.on_credit(link)

    def tick(self) -> None:
        """Detach links after the expiry of tokens and the deletion of entities."""
        for outgoing in list(self.outgoing.values()):
            outgoing.on_credit()
        self.check_claims()

    def check_claims(self) -> None:
        """Detach links whose claim has expired."""
        for link, needs in list(self._needed.items()):
            try:
                for right, path in needs:
                    self._claims.require(right, path)
            except Unauthorized as error:
                self._broker.requests.answered(RequestKind.ATTACH, 1, (error,))
                link.detach(amqp_error(error))
                self.end(link)

    # -- end ---------------------------------------------------------------------------------------------------------

    def end(self, link: Link) -> None:
        """Remove a link that was detached or refused."""
        self._needed.pop(link, None)
        incoming = self.incoming.pop(link, None)
        if incoming is not None:
            incoming.on_detached()
        outgoing = self.outgoing.pop(link, None)
        if outgoing is not None:
            outgoing.on_detached()
        received = self._receiving.pop(link, None)
        if received is not None:
            self._broker.clients.remove_receiver(received)
        used = self._using.pop(link, None)
        if used is not None:
            self._broker.clients.leave(used, self)
        if isinstance(link, Sender):
            self._replies.remove(link)

    def end_of(self, session: SessionPort) -> None:
        """Remove all links of an AMQP session."""
        for link in self._all():
            if link.session is session:
                self.end(link)

    def end_all(self) -> None:
        """Remove all links of a lost connection."""
        for link in self._all():
            self.end(link)
