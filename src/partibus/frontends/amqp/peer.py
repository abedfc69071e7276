"""One client's connection: passes each event to its owner.

The protocol engine reports what the client did; links and nodes have an owner that interprets it. No IO happens here:
the server feeds bytes and is told when there are some to send.
"""

import logging
from collections.abc import Callable, Iterator
from functools import lru_cache, partial

from msgspec.structs import replace

from partibus.amqp import (
    AmqpError,
    Attached,
    Closed,
    Connection,
    CreditChanged,
    Deliveries,
    Detached,
    Disposed,
    Event,
    Opened,
    PlainLogin,
    SessionClosed,
    WindowOpened,
)
from partibus.amqp import Limits as EngineLimits
from partibus.amqp.errors import CONNECTION_FORCED
from partibus.clock import Clock
from partibus.errors import PartibusError, QuotaExceeded
from partibus.frontends.admission import SignIns, policy_of
from partibus.frontends.amqp.attaching import Attaching
from partibus.frontends.amqp.claims import Claims
from partibus.frontends.amqp.errors import amqp_error
from partibus.frontends.amqp.ingress import Ingress
from partibus.frontends.amqp.link_context import Completions, CongestedLinks, LinkContext
from partibus.frontends.amqp.links import Links, LinkUse
from partibus.frontends.amqp.node import REPLY_BYTES_MAX, ReplyLinks
from partibus.frontends.amqp.operations.request import CallLater, ConnectionState
from partibus.frontends.amqp.session_link import Holds
from partibus.limits import ConnectionLimits, TransactionLimits
from partibus.namespace.broker import Broker
from partibus.namespace.namespaces import Namespaces
from partibus.partition.protocol.host import Timer
from partibus.routing.transactions import Transactions

log = logging.getLogger(__name__)

CONTAINER_ID = "partibus"
_WATCH_MS_MAX = 24 * 3_600_000
"""The longest delay of a timer; a claim that lasts longer is checked again then."""
PERFORMATIVES_AT_ONCE = 64
"""Attaches and similar performatives that one connection may execute before others have their turn. The costliest, an
attach that takes a session, is half a millisecond, and one read of a socket can bring thousands of them.
"""
UNCLAIMED_TRANSACTIONS = 16
"""Open transactions of a connection without a claim: one client library declares before it shows one."""
FRAMES_AT_ONCE = 1_024
"""Frames of any kind: an empty message takes some fifteen microseconds, one that the decoder's short cuts do not read
some forty. A read brings fewer larger ones.
"""
IDS_AT_ONCE = 4_096
"""Deliveries named by dispositions, in the same way: settling one takes some five microseconds."""
DECODED_AT_ONCE = 16 << 10
"""Bytes of frames that the decoder's short cuts do not read, in the same way: one takes up to half a microsecond. A
hundred attaches of a usual client have as many.
"""


class Peer:
    """The server's side of one connection.

    ``flush`` requests that pending output is sent soon; ``congested`` tells whether too much is unsent.
    """

    def __init__(
        self,
        namespaces: Namespaces,
        ingress: Ingress,
        flush: Callable[[], None],
        congested: Callable[[], bool],
        call_later: CallLater,
        on_claimed: Callable[[], None] = lambda: None,
        sign_ins: SignIns | None = None,
    ) -> None:
        """Begin as a connection to the default namespace, until the client's open names another one.

        ``on_claimed`` is called when the connection has shown its first claim.
        """
        self._namespaces = namespaces
        self._login: PlainLogin | None = None
        self._sign_ins = sign_ins or SignIns(monotonic_of(namespaces.default.wall_clock))
        self.host: str | None = None
        """The client's address."""
        self.called: str | None = None
        """The server's name below AMQP, as the client requested it: by TLS, or in the request for a websocket."""
        self._left: list[Event] = []
        """Events of the client's input for its next turn: the ingress has done enough in the former one."""
        self.more_to_read = False
        """Whether the client's input must wait for another turn. `receive_data` then takes no bytes."""
        self._is_lost = False
        self._counted: Broker | None = None
        """The namespace that this connection is counted in, once it has shown a claim there: a connection without a
        claim takes no place of a tenant's.
        """
        self.account = namespaces.default.account
        """The account that pays for work on this connection, set in the same way. Otherwise knowing a namespace's name
        would suffice to use up its messaging units.
        """
        self._on_claimed = on_claimed
        self._claimed_s: float | None = None
        """The time of the last tick that found a valid claim, or of the first tick."""
        self._claims_end: Timer | None = None
        """The timer for the end of the first claim."""
        self._claims_end_s: int | None = None
        self._ingress = ingress
        self._flush = flush
        self._congested_links = CongestedLinks(congested)
        self._call_later = call_later
        self._sessions = Holds()
        broker = namespaces.default
        limits = broker.limits.connection
        self._replies = ReplyLinks(congested, limits.unclaimed_bytes)
        self.overloaded_nodes = self._replies.overloaded
        """The request links on which too many requests wait: work that no store is overloaded with."""
        self._serve(broker)
        self._limits, unclaimed = _engine_limits(limits, broker.limits.message_bytes_max)
        self.connection = Connection(server=True, limits=unclaimed)

    def _serve(self, broker: Broker) -> None:
        """Serve a namespace; nothing may have been requested from another one yet."""
        self.broker = broker
        self._completions = Completions(broker.numbers)
        self._claims = Claims(broker.access, broker.wall_clock, self._count, self._watch_claims)
        self._claims.guard = self
        self._links = Links(broker, self._claims, self._replies)
        bounds, ingress = broker.namespace.bounds, self._ingress
        self._transactions = Transactions(
            broker.clock,
            _unclaimed(broker.limits.transaction),
            lambda: bytes.fromhex(ingress.new_message_id()),
            lambda: bounds.limits.transaction_messages,
        )
        self._state = ConnectionState(
            broker, self._claims, self._ingress, self._sessions, self._transactions, self._call_later
        )
        link_context = LinkContext(
            self._transactions,
            broker.throttle,
            broker.limits.connection,
            broker.clock,
            self._congested_links,
            self._completions,
            self._flush,
        )
        self._attaching = Attaching(
            self._namespaces,
            self._state,
            self._links,
            self._replies,
            link_context,
            self._sessions,
        )

    # -- events ------------------------------------------------------------------------------------------------------

    def receive_data(self, data: bytes) -> None:
        """Handle bytes from the client; without bytes, continue with the rest of earlier ones (`more_to_read`)."""
        left, self._left = self._left, []
        self._dispatch(left or self.connection.receive_data(data))

    @property
    def is_behind(self) -> bool:
        """Whether input that was decoded waits for another turn."""
        return bool(self._left)

    def tick(self, now_s: float) -> None:
        """Send heartbeats; detect a silent client, expired tokens and deleted entities."""
        self._dispatch(self.connection.tick(now_s))
        self._check_claimed(now_s)
        self._transactions.expire()
        self._links.tick()

    def check_claims(self) -> None:
        """Detach links whose claim has expired."""
        self._links.check_claims()

    @property
    def links(self) -> int:
        """The number of links to entities and nodes, in both directions."""
        return len(self._links)

    @property
    def unsettled(self) -> int:
        """The number of messages that the client was given and still holds."""
        return self._links.unsettled

    def uses(self) -> Iterator[LinkUse]:
        """Yield what the client's links use of entities."""
        return self._links.uses()

    @property
    def overloaded(self) -> bool:
        """Whether a store that this client writes to exceeds its limits, or too many of its requests wait."""
        return self._links.overloaded

    def when_relieved(self, call: Callable[[], None]) -> None:
        """Call once, when a store or node that makes this `overloaded` has caught up; another one may not have."""
        self._links.when_relieved(call)

    def resume(self) -> None:
        """Send replies and ask for more messages: there is room again on the connection."""
        self._replies.resume()
        self._congested_links.resume()

    def close(self, error: AmqpError | None) -> None:
        """End the connection from the server's side."""
        self.connection.close(error)
        self.on_lost()

    def on_lost(self) -> None:
        """Remove all state of a lost connection."""
        if self._is_lost:
            return
        if self._claims_end is not None:
            self._claims_end.cancel()
        self._is_lost = True
        self._left = []
        self.more_to_read = self.connection.more_to_read
        if self._counted is not None:
            self._counted.clients.disconnect()
            self._counted = None
        self._completions.flush()
        self._links.end_all()

    def release(self) -> None:
        """Break the reference cycles of a connection whose transport is gone, after `on_lost`.

        Without them it is freed at once. A collection of those of a thousand strangers that came and went took 100 ms.
        """
        self._claims.release()
        self.connection.abandon()

    def _dispatch(self, events: list[Event]) -> None:
        if self._left:
            self._left += events
            return
        links = self._links
        has_begun = False
        for index, event in enumerate(events):
            # No event has a subclass, and a comparison takes a third of the time of a match.
            if type(event) is Deliveries:
                if not has_begun:
                    has_begun = True
                    self._ingress.begin()
                incoming = links.incoming.get(event.link)
                if incoming is not None:
                    left = incoming.on_deliveries(event.deliveries)
                    if left:
                        self._left = [Deliveries(event.link, left), *events[index + 1 :]]
                        break
            elif type(event) is Disposed:
                outgoing = links.outgoing.get(event.link)
                if outgoing is not None:
                    outgoing.on_disposed(event)
            elif type(event) is CreditChanged:
                outgoing = links.outgoing.get(event.link)
                if outgoing is not None:
                    outgoing.on_credit()
                else:
                    links.on_reply_credit(event.link)
            elif type(event) is Attached:
                self._attaching.attach(event.link)
            elif type(event) is Detached:
                self._completions.flush()  # before a session is given up with its link
                links.end(event.link)
            elif type(event) is Opened:
                self._on_opened()
                links = self._links  # those of the namespace that the client has named
            elif type(event) is WindowOpened:
                self.resume()
            elif type(event) is PlainLogin:
                self._on_login(event)
                links = self._links
            elif type(event) is SessionClosed:
                self._completions.flush()
                links.end_of(event.session)
            elif type(event) is Closed:
                self.on_lost()
        if self._completions.waiting:
            self._completions.flush()
        self.more_to_read = bool(self._left) or self.connection.more_to_read

    def _on_login(self, login: PlainLogin) -> None:
        """Admit the client if any namespace accepts its key.

        The client names its namespace with its open, after the answer. Then the login is checked again, and only what
        it has shown in that namespace counts.
        """
        if not self._sign_ins.may_try(self.host, login.username):
            log.info("login refused unseen: too many from its address have failed")
            self._answer_login()
            return
        meant = self._namespaces.of_host(login.hostname or self.called)
        refusal = _refusal_of(meant, login)
        # Ask each namespace, whatever the others answer: the time must reveal nothing about them.
        others = [] if refusal is None else [_refusal_of(broker, login) for broker in self._namespaces]
        if refusal is None or None in others:
            self._login = login
            self._sign_ins.succeeded(self.host, login.username)
            self._answer_login()
            return
        log.info("login refused: %s", refusal)
        waits_s = self._sign_ins.failed(self.host, login.username)
        if waits_s:
            self._call_later(waits_s * 1000, self._answer_login)
        else:
            self._answer_login()

    def _answer_login(self) -> None:
        if not self._is_lost:
            self._dispatch(self.connection.answer_login(self._login is not None))
            self._flush()

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
        except PartibusError as error:
            self.close(amqp_error(error))

    def _count(self) -> None:
        """Count the connection in its namespace when the client shows a claim.

        Raises `QuotaExceeded`, and ends the connection, if its namespace has its maximum of connections (row C35).
        """
        if self._counted is not None or self._is_lost:  # the client may have left while the keys were read
            return
        try:
            self.broker.clients.connect()
        except QuotaExceeded as error:
            self._call_later(0, partial(self._refuse, amqp_error(error)))  # what has asked is answered first
            raise
        self._counted = self.broker
        self.account = self.broker.account
        self.connection.change_limits(self._limits)
        self._transactions.limits = self.broker.limits.transaction
        self._replies.bytes_max = REPLY_BYTES_MAX
        self._on_claimed()

    def may_try(self, token: str) -> bool:
        """Tell whether to check a token (`partibus.frontends.amqp.claims.Guard`)."""
        return self._sign_ins.may_try(self.host, policy_of(token))

    def shown(self, token: str, respond: Callable[[], None], *, good: bool) -> None:
        """Note a checked token and answer now, or later (`partibus.frontends.amqp.claims.Guard`)."""
        if good:
            self._sign_ins.succeeded(self.host, policy_of(token))
            respond()
        elif waits_s := self._sign_ins.failed(self.host, policy_of(token)):
            self._call_later(waits_s * 1000, respond)
        else:
            respond()

    def _refuse(self, error: AmqpError) -> None:
        self.close(error)
        self._flush()

    def _check_claimed(self, now_s: float) -> None:
        """Close a connection that has had no valid claim for long (section 1.9)."""
        if self._claimed_s is None or self._claims.hold:
            self._claimed_s = now_s
        unclaimed_s = now_s - self._claimed_s
        if unclaimed_s >= self.broker.limits.connection.unclaimed_s:
            text = f"The connection has shown no valid claim for {unclaimed_s:.0f} seconds. Put a token to $cbs."
            self.close(AmqpError(CONNECTION_FORCED, text))

    def _watch_claims(self) -> None:
        """Schedule a check of the links for the end of the first claim."""
        ends_s = self._claims.ends_s
        if ends_s == self._claims_end_s or self._is_lost:
            return
        if self._claims_end is not None:
            self._claims_end.cancel()
            self._claims_end = None
        self._claims_end_s = ends_s
        if ends_s is not None:
            delay_ms = min(max(0, ends_s * 1000 - self.broker.wall_clock.now_ms()) + 1, _WATCH_MS_MAX)
            self._claims_end = self._call_later(delay_ms, self._end_claims)

    def _end_claims(self) -> None:
        self._claims_end_s = None
        self._claims.drop_expired()
        self._links.check_claims()
        self._watch_claims()
        self._flush()


@lru_cache
def _engine_limits(limits: ConnectionLimits, message_bytes_max: int) -> tuple[EngineLimits, EngineLimits]:
    """Return the limits of a connection with a claim, and without.

    They are made once: that takes a tenth of the time of an admission.
    """
    claimed = EngineLimits(
        max_frame_size=limits.frame_bytes_max,
        channel_max=limits.channel_max,
        handle_max=limits.handle_max,
        links_max=limits.links_max,
        max_message_size=message_bytes_max,
        partial_bytes_max=limits.incoming_bytes,
        pending_bytes_max=limits.outgoing_bytes,
        idle_timeout_ms=limits.idle_timeout_ms,
        performatives_at_once=PERFORMATIVES_AT_ONCE,
        frames_at_once=FRAMES_AT_ONCE,
        ids_at_once=IDS_AT_ONCE,
        decoded_at_once=DECODED_AT_ONCE,
    )
    unclaimed = replace(
        claimed,
        sessions_max=limits.unclaimed_links,
        links_max=limits.unclaimed_links,
        partial_bytes_max=limits.unclaimed_bytes,
    )
    return claimed, unclaimed


@lru_cache
def _unclaimed(limits: TransactionLimits) -> TransactionLimits:
    return replace(limits, open_max=UNCLAIMED_TRANSACTIONS)


def monotonic_of(clock: Clock) -> Callable[[], float]:
    """Return a function that reads a clock in seconds."""
    return lambda: clock.now_ms() / 1000


def _refusal_of(broker: Broker, login: PlainLogin) -> PartibusError | None:
    """Return why a namespace refuses a name and key; None if it accepts them."""
    try:
        broker.access.check_key(login.username, login.password)
    except PartibusError as error:
        return error
    return None
