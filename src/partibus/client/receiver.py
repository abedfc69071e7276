"""Receiving from one entity: peek-lock with confirmed settlement, or receive-and-delete."""

from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import Final

from partibus.amqp import (
    ACCEPTED,
    RELEASED,
    AmqpError,
    Delivery,
    DeliveryState,
    Disposed,
    Modified,
    Rejected,
    Source,
    Target,
)
from partibus.amqp.codec.types import Symbol, UInt
from partibus.client.driver import Driver, LinkOwner
from partibus.client.errors import ClientError, InvalidRequest, LockLost, error_from
from partibus.client.messages import IncomingMessage

COMPLETE: Final[DeliveryState] = ACCEPTED
ABANDON: Final[DeliveryState] = Modified()
DEFER: Final[DeliveryState] = Modified(undeliverable_here=True)
"""Left alone until somebody asks for it by its sequence number (`Management.receive_deferred`)."""
RELEASE: Final[DeliveryState] = RELEASED
"""Back to its place, without counting as a delivery."""


def dead_letter(reason: str | None = None, description: str | None = None) -> DeliveryState:
    """The outcome that moves a message to the dead-letter sub-queue."""
    info: dict[object, object] = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
    return Rejected(AmqpError("com.microsoft:dead-letter", None, info))


class NextSession(Enum):
    """Instead of a session's id."""

    NEXT = "next"
    """Any session that has messages and that nobody holds."""


NEXT_SESSION: Final = NextSession.NEXT

_SESSION_FILTER: Final = Symbol("com.microsoft:session-filter")
_SESSION_WAIT: Final = Symbol("com.microsoft:timeout")


class ReceiveMode(Enum):
    """Values are snd-settle-mode and rcv-settle-mode of the link (Service Bus dialect, section 4.1)."""

    PEEK_LOCK = (0, 1)
    RECEIVE_AND_DELETE = (1, 0)


class Receiver(LinkOwner):
    """Made by `Client.receiver`. Of one thread, as its client.

    With a ``prefetch`` the broker sends ahead up to so many; without, each `receive` asks for what it wants and takes
    the wish back before it returns, so nothing is locked that nobody asked for.

    With a ``session`` it holds that session until it is closed and receives nothing else.
    """

    def __init__(
        self,
        driver: Driver,
        entity: str,
        name: str,
        timeout_s: float,
        mode: ReceiveMode,
        prefetch: int,
        session: str | NextSession | None = None,
        session_wait_s: float = 0.0,
    ) -> None:
        """``session_wait_s``: how long to wait for a next session to come; `TimedOut` when there is none."""
        super().__init__(f"receiver of '{entity}'")
        self._driver = driver
        self._timeout_s = timeout_s
        self._prefetch = prefetch
        self._buffer: deque[Delivery] = deque()
        self._unconfirmed: set[int] = set()
        """Delivery ids."""
        self._refusals: list[ClientError] = []
        self._session = driver.begin()
        snd_settle_mode, rcv_settle_mode = mode.value
        wanted: dict[object, object] = {}
        if session is not None:
            wanted[_SESSION_FILTER] = None if session is NEXT_SESSION else session
        self._link = self._session.attach_receiver(
            name,
            source=Source(entity, filter=wanted or None),
            target=Target(name),
            snd_settle_mode=snd_settle_mode,
            rcv_settle_mode=rcv_settle_mode,
            properties={_SESSION_WAIT: UInt(int(session_wait_s * 1000))} if session is NEXT_SESSION else None,
        )
        driver.adopt(self._link, self)
        # The broker is the one that gives up waiting for a session: then nothing stays locked.
        driver.await_open(self._link, self, session_wait_s + timeout_s)
        self._top_up()

    @property
    def session_id(self) -> str | None:
        """The session that it holds."""
        source = self._link.source
        found = source.filter.get(_SESSION_FILTER) if isinstance(source, Source) and source.filter else None
        return str(found) if isinstance(found, str) else None

    def receive(self, max_messages: int = 1, timeout_s: float | None = None) -> list[IncomingMessage]:
        """Wait for the first message, then take what is there, up to ``max_messages``; [] when the time is over.

        Raises why the link is over, once everything that came before has been handed out.
        """
        return [IncomingMessage(delivery.payload, delivery) for delivery in self.take(max_messages, timeout_s)]

    def take(self, max_messages: int, timeout_s: float | None = None) -> list[Delivery]:
        """As `receive`, without an object per message."""
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        if self._prefetch:
            self._top_up()
        elif len(self._buffer) < max_messages:
            self._link.grant(max_messages - len(self._buffer))
        if self._buffer:
            self._driver.poll()
        else:
            self._driver.wait_quietly(lambda: bool(self._buffer) or self.error is not None, timeout_s)
        if not self._prefetch:
            self._take_back_credit()
        if not self._buffer:
            self.check()
        taken = [self._buffer.popleft() for _ in range(min(max_messages, len(self._buffer)))]
        if self._prefetch:
            self._top_up()
        return taken

    def settle(
        self,
        messages: Iterable[IncomingMessage | Delivery],
        outcome: DeliveryState = COMPLETE,
        timeout_s: float | None = None,
    ) -> None:
        """Settle and wait until the broker has confirmed. Raises `LockLost` when it refuses; the other messages of the
        call are settled then."""
        self.settle_nowait(messages, outcome)
        self.flush(timeout_s)

    def settle_nowait(self, messages: Iterable[IncomingMessage | Delivery], outcome: DeliveryState = COMPLETE) -> None:
        """Settle without waiting; `flush` tells about refusals. What is settled already is passed over."""
        self.check()
        known = self._session.inbound.unsettled
        unsettled = [delivery for delivery in map(_delivery, messages) if delivery.delivery_id in known]
        self._link.settle_many(unsettled, outcome, settled=False)
        self._unconfirmed.update([delivery.delivery_id for delivery in unsettled])
        self._driver.poll()

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every settlement is confirmed. Raises the first refusal."""
        self._driver.wait(
            lambda: not self._unconfirmed or self.error is not None,
            self._timeout_s if timeout_s is None else timeout_s,
            f"{self.name}: waiting for {len(self._unconfirmed)} settlements",
        )
        self.check()
        if self._refusals:
            refusals, self._refusals = self._refusals, []
            raise refusals[0]

    @property
    def unconfirmed(self) -> int:
        """Settlements that the broker has not confirmed."""
        return len(self._unconfirmed)

    def close(self) -> None:
        """Give back what was not handed out, and detach. Raises `ConnectionLost`; does nothing on a link that is over.

        What is on its way would stay locked, so the credit is taken back first.
        """
        if self.error is None:
            self._take_back_credit()
        if self.error is None and self._buffer:
            self._link.settle_many(self._buffer, RELEASE)
            self._buffer.clear()
        self._driver.end(self._session)

    # -- inside ----------------------------------------------------------------------------------------

    def _top_up(self) -> None:
        """Keep credit and buffer together at the prefetch; a flow is worth while from half of it on."""
        wanted = self._prefetch - len(self._buffer)
        if wanted > 0 and self._link.credit <= wanted // 2:
            self._link.grant(wanted)

    def _take_back_credit(self) -> None:
        """Drain: afterwards everything that the broker sent for our wish is in the buffer, also what has begun to come:
        a message of several frames takes its credit with the first of them."""
        link = self._link
        if self.error is None and (link.credit or link.partial is not None):
            if link.credit:
                link.drain()
            drained = self._driver.wait_quietly(
                lambda: (link.credit == 0 and link.partial is None) or self.error is not None, self._timeout_s
            )
            if not drained:
                self.on_over(ClientError(f"{self.name}: the broker does not answer a drain"))

    def on_deliveries(self, deliveries: list[Delivery]) -> None:
        self._buffer.extend(deliveries)

    def on_disposed(self, event: Disposed) -> None:
        if event.settled:
            self._unconfirmed.difference_update(event.delivery_ids)
        if isinstance(event.state, Rejected) and event.state.error is not None:
            self._refusals.append(error_from(self.name, event.state.error, LockLost))


def _delivery(message: IncomingMessage | Delivery) -> Delivery:
    delivery = message.delivery if isinstance(message, IncomingMessage) else message
    if delivery is None:
        raise InvalidRequest("a peeked message has no lock and can not be settled; receive it")
    return delivery
