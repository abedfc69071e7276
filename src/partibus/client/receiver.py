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
"""The outcome that defers a message until a receiver asks for its number (`Management.receive_deferred`)."""
RELEASE: Final[DeliveryState] = RELEASED
"""The outcome that requeues a message without counting a delivery."""


def dead_letter(reason: str | None = None, description: str | None = None) -> DeliveryState:
    """Return the outcome that moves a message to the dead-letter sub-queue."""
    info: dict[object, object] = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
    return Rejected(AmqpError("com.microsoft:dead-letter", None, info))


class NextSession(Enum):
    """A placeholder for the id of a session."""

    NEXT = "next"
    """Any session with messages that no receiver holds."""


NEXT_SESSION: Final = NextSession.NEXT

_SESSION_FILTER: Final = Symbol("com.microsoft:session-filter")
_SESSION_WAIT: Final = Symbol("com.microsoft:timeout")


class ReceiveMode(Enum):
    """The settle modes of a link: snd-settle-mode and rcv-settle-mode (Service Bus dialect, section 4.1)."""

    PEEK_LOCK = (0, 1)
    RECEIVE_AND_DELETE = (1, 0)


class Receiver(LinkOwner):
    """A link that receives messages, made by `Client.receiver` and used by one thread at a time.

    With a ``prefetch`` the broker sends up to that many messages ahead. Without it, each `receive` grants credit for
    the messages it wants and revokes it before it returns, so no unwanted message is locked.

    With a ``session`` the receiver holds that session until it is closed, and receives no other messages.
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
        """Attach the link.

        ``session_wait_s`` is how long to wait for a next session. Raises `TimedOut` when none becomes available.
        """
        super().__init__(f"receiver of '{entity}'")
        self._driver = driver
        self._timeout_s = timeout_s
        self._prefetch = prefetch
        self._buffer: deque[Delivery] = deque()
        self._unconfirmed: set[int] = set()
        """Ids of deliveries whose settlement is not confirmed."""
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
        # The broker has the shorter time limit for a session: then no session stays locked.
        driver.await_open(self._link, self, session_wait_s + timeout_s)
        self._top_up()

    @property
    def session_id(self) -> str | None:
        """The session that the receiver holds."""
        source = self._link.source
        found = source.filter.get(_SESSION_FILTER) if isinstance(source, Source) and source.filter else None
        return str(found) if isinstance(found, str) else None

    def receive(self, max_messages: int = 1, timeout_s: float | None = None) -> list[IncomingMessage]:
        """Wait for the first message, then return the available ones, up to ``max_messages``.

        Returns [] when the time is over. Raises the error that ended the link, once all earlier messages have been
        returned.
        """
        return [IncomingMessage(delivery.payload, delivery) for delivery in self.take(max_messages, timeout_s)]

    def take(self, max_messages: int, timeout_s: float | None = None) -> list[Delivery]:
        """Receive as `receive` does, without an object per message."""
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
        """Settle messages and wait until the broker has confirmed.

        Raises `LockLost` when the broker refuses one. The other messages of the call are settled in that case.
        """
        self.settle_nowait(messages, outcome)
        self.flush(timeout_s)

    def settle_nowait(self, messages: Iterable[IncomingMessage | Delivery], outcome: DeliveryState = COMPLETE) -> None:
        """Settle messages without waiting; `flush` reports refusals.

        Settled messages are skipped.
        """
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
        """The number of settlements that the broker has not confirmed."""
        return len(self._unconfirmed)

    def close(self) -> None:
        """Return unread messages and detach; does nothing on a link that has ended.

        Raises `ConnectionLost`. The receiver revokes the credit first, because messages in flight would stay locked.
        """
        if self.error is None:
            self._take_back_credit()
        if self.error is None and self._buffer:
            self._link.settle_many(self._buffer, RELEASE)
            self._buffer.clear()
        self._driver.end(self._session)

    # -- inside ----------------------------------------------------------------------------------------

    def _top_up(self) -> None:
        """Grant credit so that credit and buffer together equal the prefetch.

        A flow frame is worth sending from half of the prefetch on.
        """
        wanted = self._prefetch - len(self._buffer)
        if wanted > 0 and self._link.credit <= wanted // 2:
            self._link.grant(wanted)

    def _take_back_credit(self) -> None:
        """Drain the credit, so that all messages that the broker sent for it are in the buffer.

        This includes incomplete messages: a message of several frames uses its credit with the first of them.
        """
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
        """Add deliveries to the buffer."""
        self._buffer.extend(deliveries)

    def on_disposed(self, event: Disposed) -> None:
        """Record the confirmation or refusal of a settlement."""
        if event.settled:
            self._unconfirmed.difference_update(event.delivery_ids)
        if isinstance(event.state, Rejected) and event.state.error is not None:
            self._refusals.append(error_from(self.name, event.state.error, LockLost))


def _delivery(message: IncomingMessage | Delivery) -> Delivery:
    delivery = message.delivery if isinstance(message, IncomingMessage) else message
    if delivery is None:
        raise InvalidRequest("a peeked message has no lock and can not be settled; receive it")
    return delivery
