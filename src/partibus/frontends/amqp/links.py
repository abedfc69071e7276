"""The links of one connection: who owns each, what it uses, and what it lives by."""

from collections.abc import Callable
from typing import Protocol

from partibus.amqp import Delivery, Disposed, Link, Sender, Session
from partibus.errors import Unauthorized
from partibus.frontends.amqp.claims import Claims
from partibus.frontends.amqp.errors import amqp_error
from partibus.frontends.amqp.node import ReplyLinks
from partibus.namespace.access import Right
from partibus.namespace.broker import Broker
from partibus.namespace.queues import Queue
from partibus.namespace.requests import RequestKind
from partibus.namespace.sas import Path


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


class Links:
    """To the entities and nodes of one namespace, both directions."""

    def __init__(self, broker: Broker, claims: Claims, replies: ReplyLinks) -> None:
        self.incoming: dict[Link, Incoming] = {}
        self.outgoing: dict[Link, Outgoing] = {}
        self._broker = broker
        self._claims = claims
        self._replies = replies
        self._receiving: dict[Link, Queue] = {}
        """The entities whose receivers our outgoing links are, counted in the namespace's `Clients`."""
        self._using: dict[Link, Queue] = {}
        """The entities that links lead to, counted likewise."""
        self._needed: dict[Link, tuple[tuple[Right, Path], ...]] = {}
        """What a link to an entity lives by."""

    def __len__(self) -> int:
        return len(self.incoming) + len(self.outgoing)

    @property
    def unsettled(self) -> int:
        """Messages that the client was given and holds."""
        return sum([outgoing.unsettled for outgoing in self.outgoing.values()])

    @property
    def overloaded(self) -> bool:
        """A store that the client writes to has more to do than its limits allow."""
        return any(link.overloaded for link in self.incoming.values())

    def when_relieved(self, call: Callable[[], None]) -> None:
        """Call once, when a store that makes this `overloaded` has caught up; another one may not have."""
        next(link for link in self.incoming.values() if link.overloaded).when_relieved(call)

    # -- begin -------------------------------------------------------------------------------------------------------

    def use(self, link: Link, entity: Queue) -> None:
        """Raises `QuotaExceeded` when as many connections use the entity as may."""
        self._broker.clients.use(entity, self)
        self._using[link] = entity

    def move(self, link: Link, old: Queue, new: Queue) -> None:
        """Count a link that uses ``old`` at ``new``. Raises as `use`."""
        if self._using.get(link) is old:
            self._broker.clients.leave(old, self)
            del self._using[link]
            self.use(link, new)

    def receive(self, link: Link, entity: Queue) -> None:
        """Raises `ServerBusy` when the entity has as many receivers as it takes."""
        self._broker.clients.add_receiver(entity)
        self._receiving[link] = entity

    def need(self, link: Link, *needed: tuple[Right, Path]) -> None:
        """The link goes when one of these rights does."""
        self._needed[link] = needed

    # -- while they are there ----------------------------------------------------------------------------------------

    def on_credit(self, link: Sender) -> None:
        """The client takes so much more."""
        outgoing = self.outgoing.get(link)
        if outgoing is not None:
            outgoing.on_credit()
        else:
            self._replies.on_credit(link)

    def tick(self) -> None:
        """Notice tokens that have expired and entities that were deleted."""
        for outgoing in list(self.outgoing.values()):
            outgoing.on_credit()
        self.check_claims()

    def check_claims(self) -> None:
        """Links go whose claim is good no more."""
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
        """A link is gone, or was refused."""
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

    def end_of(self, session: Session) -> None:
        """All links of an AMQP session are."""
        for link in [*self.incoming, *self.outgoing]:
            if link.session is session:
                self.end(link)

    def end_all(self) -> None:
        """The connection is gone."""
        for link in [*self.incoming, *self.outgoing]:
            self.end(link)
