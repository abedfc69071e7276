"""One client's connection: which event goes to whom.

The protocol engine says what the client did; links and nodes have an owner that knows what it means. No IO here: the
server feeds bytes and is told when there are some to send.
"""

import logging
from collections.abc import Callable
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
from partibus.frontends.amqp.completions import Completions
from partibus.frontends.amqp.errors import amqp_error
from partibus.frontends.amqp.handing_out import HandingOut
from partibus.frontends.amqp.held_back import HeldBack
from partibus.frontends.amqp.ingress import Ingress
from partibus.frontends.amqp.links import Links
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
"""Longest delay of a timer; a claim that lasts longer is looked at again then."""
PERFORMATIVES_AT_ONCE = 64
"""Attaches and the like that one connection may have done before others have their turn: the costliest, an attach that
takes a session, is half a millisecond, and thousands of them fit into what one read of a socket brings."""
UNCLAIMED_TRANSACTIONS = 16
"""Open transactions of a connection without a claim: one client library declares before it shows one."""
FRAMES_AT_ONCE = 2_048
"""Frames of any kind: a message of no bytes takes some fifteen microseconds. Of larger ones fewer come in a read."""
IDS_AT_ONCE = 4_096
"""Deliveries that dispositions name, likewise: to settle one takes some five microseconds."""


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
        on_claimed: Callable[[], None] = lambda: None,
        sign_ins: SignIns | None = None,
    ) -> None:
        """Until the client's open names another one it is a connection to the default namespace. ``on_claimed`` is
        called when the connection has shown its first claim."""
        self._namespaces = namespaces
        self._login: PlainLogin | None = None
        self._sign_ins = sign_ins or SignIns(monotonic_of(namespaces.default.wall_clock))
        self.host: str | None = None
        """The client's address."""
        self.called: str | None = None
        """What the client calls the server below AMQP: by TLS, or in the request for a websocket."""
        self._is_lost = False
        self._counted: Broker | None = None
        """The namespace that this connection is counted in, once it has shown a claim there: who has none takes no
        place of a tenant's."""
        self.account = namespaces.default.account
        """Who pays for what is done on this connection: likewise, or whoever knows a namespace's name could use up its
        messaging units."""
        self._on_claimed = on_claimed
        self._claimed_s: float | None = None
        """When a tick found a valid claim last, or the first tick."""
        self._claims_end: Timer | None = None
        """Runs out with the first of the claims."""
        self._claims_end_s: int | None = None
        self._ingress = ingress
        self._flush = flush
        self._held_back = HeldBack(congested)
        self._call_later = call_later
        self._sessions = Holds()
        broker = namespaces.default
        limits = broker.limits.connection
        self._replies = ReplyLinks(congested, limits.unclaimed_bytes)
        self._serve(broker)
        self._limits, unclaimed = _engine_limits(limits, broker.limits.message_bytes_max)
        self.connection = Connection(server=True, limits=unclaimed)

    def _serve(self, broker: Broker) -> None:
        """Nothing was asked of another namespace yet."""
        self.broker = broker
        self._completions = Completions(broker.numbers)
        self._claims = Claims(broker.access, broker.wall_clock, self._count, self._watch_claims)
        self._claims.guard = self
        self._links = Links(broker, self._claims, self._replies)
        bounds = broker.namespace.bounds
        self._transactions = Transactions(
            broker.clock,
            _unclaimed(broker.limits.transaction),
            lambda: bytes.fromhex(self._ingress.new_message_id()),
            lambda: bounds.limits.transaction_messages,
        )
        self._state = ConnectionState(
            broker, self._claims, self._ingress, self._sessions, self._transactions, self._call_later
        )
        handing_out = HandingOut(
            self._transactions,
            broker.throttle,
            broker.limits.connection,
            self._held_back,
            self._completions,
            self._flush,
        )
        self._attaching = Attaching(
            self._namespaces,
            self._state,
            self._links,
            self._replies,
            handing_out,
            self._sessions,
        )

    # -- events ------------------------------------------------------------------------------------------------------

    def receive_data(self, data: bytes) -> None:
        """Bytes from the client."""
        self._dispatch(self.connection.receive_data(data))

    def tick(self, now_s: float) -> None:
        """Keep the client awake; notice a silent one, tokens that have expired and entities that were deleted."""
        self._dispatch(self.connection.tick(now_s))
        self._check_claimed(now_s)
        self._transactions.expire()
        self._links.tick()

    def check_claims(self) -> None:
        """Detach links whose claim has ended."""
        self._links.check_claims()

    @property
    def is_claimed(self) -> bool:
        """Whether the connection has shown a claim."""
        return self._counted is not None

    @property
    def links(self) -> int:
        """To entities and nodes, both directions."""
        return len(self._links)

    @property
    def unsettled(self) -> int:
        """Messages that the client was given and holds."""
        return self._links.unsettled

    @property
    def overloaded(self) -> bool:
        """A store that this client writes to has more to do than its limits allow."""
        return self._links.overloaded

    def when_relieved(self, call: Callable[[], None]) -> None:
        """Call once, when a store that makes this `overloaded` has caught up; another one may not have."""
        self._links.when_relieved(call)

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
        if self._claims_end is not None:
            self._claims_end.cancel()
        self._is_lost = True
        if self._counted is not None:
            self._counted.clients.disconnect()
            self._counted = None
        self._completions.flush()
        self._links.end_all()

    def _dispatch(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case Deliveries():
                    incoming = self._links.incoming.get(event.link)
                    if incoming is not None:
                        incoming.on_deliveries(event.deliveries)
                case Disposed():
                    outgoing = self._links.outgoing.get(event.link)
                    if outgoing is not None:
                        outgoing.on_disposed(event)
                case CreditChanged():
                    self._links.on_credit(event.link)
                case Attached():
                    self._attaching.attach(event.link)
                case Detached():
                    self._completions.flush()  # before a session is given up with its link
                    self._links.end(event.link)
                case WindowOpened():
                    self.resume()
                case Opened():
                    self._on_opened()
                case PlainLogin():
                    self._on_login(event)
                case SessionClosed():
                    self._completions.flush()
                    self._links.end_of(event.session)
                case Closed():
                    self.on_lost()
        self._completions.flush()

    def _on_login(self, login: PlainLogin) -> None:
        """Which namespace the client means is said with its open, after the answer: then it is checked once more, and
        what counts is what it has shown in that one. Here it is let in when any of them takes its key."""
        if not self._sign_ins.may_try(self.host, login.username):
            log.info("login refused unseen: too many from its address have failed")
            self._answer_login()
            return
        meant = self._namespaces.of_host(login.hostname or self.called)
        refusal = _refusal_of(meant, login)
        # Each is asked whatever the others say: how long it takes tells nothing of them.
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
        """The client shows a claim. Raises `QuotaExceeded`, and ends the connection, when its namespace has as many as
        it may (row C35)."""
        if self._counted is not None:
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
        """See `partibus.frontends.amqp.claims.Guard`."""
        return self._sign_ins.may_try(self.host, policy_of(token))

    def shown(self, token: str, respond: Callable[[], None], *, good: bool) -> None:
        """See `partibus.frontends.amqp.claims.Guard`."""
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
        """Look at the links again when the first claim ends."""
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
    """Of a connection with a claim, and without. Made once: that takes as long as a tenth of an admission."""
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
    """Seconds of a clock."""
    return lambda: clock.now_ms() / 1000


def _refusal_of(broker: Broker, login: PlainLogin) -> PartibusError | None:
    """Why a namespace does not take a name and key; None when it does."""
    try:
        broker.access.check_key(login.username, login.password)
    except PartibusError as error:
        return error
    return None
