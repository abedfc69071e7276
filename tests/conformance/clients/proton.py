"""python-qpid-proton, a plain AMQP 1.0 client, logged in with SASL PLAIN."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from proton import Condition, ConnectionException, Delivery, Endpoint, Message, SSLDomain, symbol, timestamp
from proton import Timeout as ProtonTimeout
from proton.handlers import MessagingHandler
from proton.reactor import AtLeastOnce, AtMostOnce
from proton.utils import BlockingConnection, ConnectionClosed, LinkDetached

from tests.conformance.clients.interface import (
    WAIT_S,
    ClientTrouble,
    Outgoing,
    Received,
    Trouble,
    topic_and_subscription,
)

_KINDS = {
    "amqp:not-found": Trouble.NOT_FOUND,
    "amqp:unauthorized-access": Trouble.UNAUTHORIZED,
    "amqp:link:message-size-exceeded": Trouble.TOO_LARGE,
    "com.microsoft:entity-disabled": Trouble.DISABLED,
    "com.microsoft:message-lock-lost": Trouble.LOCK_LOST,
    "com.microsoft:session-lock-lost": Trouble.SESSION_LOST,
    "amqp:resource-limit-exceeded": Trouble.FULL,
    "com.microsoft:server-busy": Trouble.BUSY,
    "amqp:not-allowed": Trouble.NOT_ALLOWED,
    "amqp:not-implemented": Trouble.NOT_IMPLEMENTED,
    "com.microsoft:argument-error": Trouble.ARGUMENT,
}
_PARTITION_KEY = symbol("x-opt-partition-key")
_SCHEDULED = symbol("x-opt-scheduled-enqueue-time")


class _Inbox(MessagingHandler):
    """Messages of one link, not accepted before the test says so."""

    def __init__(self) -> None:
        super().__init__(prefetch=0, auto_accept=False, auto_settle=False)
        self.messages: deque[tuple[Message, Delivery]] = deque()

    def on_message(self, event: Any) -> None:
        self.messages.append((event.message, event.delivery))
        event.container.yield_()

    def on_link_error(self, event: Any) -> None:
        """The base class would close the connection. The waiter for the link finds its error there."""
        event.link.close()
        event.container.yield_()


class Proton:
    """One connection; a link for each entity and direction."""

    def __init__(self, host: str, port: int, policy: str, key: str, *, ca_file: Path | None = None) -> None:
        """Connect, over TLS if there is a ``ca_file``, which names the trusted authority."""
        domain = None
        if ca_file is not None:
            domain = SSLDomain(SSLDomain.MODE_CLIENT)
            domain.set_trusted_ca_db(str(ca_file))
            domain.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)
        with _troubles():
            self._connection = BlockingConnection(
                f"{'amqp' if domain is None else 'amqps'}://{host}:{port}",
                ssl_domain=domain,
                timeout=WAIT_S,
                user=policy,
                password=key,
                allowed_mechs="PLAIN",
                allow_insecure_mechs=True,
            )
        self._senders: dict[str, Any] = {}
        self._receivers: dict[tuple[str, bool], tuple[Any, _Inbox]] = {}

    def attach_sender(self, entity: str | None, *options: Any) -> Any:
        """A link to send on, as the library makes it."""
        with _troubles():
            return self._connection.create_sender(entity, options=list(options))

    def send(self, entity: str, *messages: Outgoing) -> None:
        with _troubles():
            if entity not in self._senders:
                self._senders[entity] = self.attach_sender(topic_and_subscription(entity)[0])
            for message in messages:
                delivery = self._senders[entity].link.send(_to_proton(message))
                self._wait_settled(delivery)

    def receive(self, entity: str, count: int, *, delete: bool = False, wait_s: float = WAIT_S) -> list[Received]:
        with _troubles():
            link, inbox = self._receiver(entity, delete)
            missing = count - len(inbox.messages) - link.credit
            if missing > 0:
                link.flow(missing)
            if not inbox.messages:
                try:
                    self._connection.wait(lambda: bool(inbox.messages) or _ended(link), timeout=wait_s)
                except ProtonTimeout:
                    return []
                if not inbox.messages:
                    del self._receivers[entity, delete]
                    raise LinkDetached(link.link)
            return [_from_proton(*inbox.messages.popleft()) for _ in range(min(count, len(inbox.messages)))]

    def complete(self, entity: str, message: Received) -> None:
        self._settle(message.token, Delivery.ACCEPTED)

    def abandon(self, entity: str, message: Received) -> None:
        message.token.local.failed = True
        self._settle(message.token, Delivery.MODIFIED)

    def dead_letter(self, entity: str, message: Received, reason: str, description: str) -> None:
        info: Any = {symbol("DeadLetterReason"): reason, symbol("DeadLetterErrorDescription"): description}
        message.token.local.condition = Condition("com.microsoft:dead-letter", "asked for", info)
        self._settle(message.token, Delivery.REJECTED)

    def defer(self, entity: str, message: Received) -> None:
        message.token.local.undeliverable = True
        self._settle(message.token, Delivery.MODIFIED)

    def close(self) -> None:
        self._connection.close()

    def _receiver(self, entity: str, delete: bool) -> tuple[Any, _Inbox]:
        if (entity, delete) not in self._receivers:
            inbox = _Inbox()
            mode = AtMostOnce() if delete else AtLeastOnce()
            link = self._connection.create_receiver(entity, credit=0, handler=inbox, options=mode)
            self._receivers[entity, delete] = (link, inbox)
        return self._receivers[entity, delete]

    def _settle(self, delivery: Any, state: int) -> None:
        with _troubles():
            delivery.update(state)
            self._wait_settled(delivery)

    def _wait_settled(self, delivery: Any) -> None:
        """Raises `ClientTrouble` with the condition of a rejection."""
        self._connection.wait(lambda: delivery.settled)
        condition = delivery.remote.condition
        delivery.settle()
        if condition is not None:
            raise _trouble(condition)


def _ended(receiver: Any) -> bool:
    """Whether the broker has closed the link."""
    return bool(receiver.link.state & Endpoint.REMOTE_CLOSED)


def _to_proton(message: Outgoing) -> Message:
    built = Message(body=message.body, inferred=True, properties=dict(message.properties) or None)
    built.id = message.message_id
    if message.session_id is not None:
        built.group_id = message.session_id
    if message.subject is not None:
        built.subject = message.subject
    if message.ttl_ms is not None:
        built.ttl = message.ttl_ms / 1000
    annotations: dict[Any, Any] = {}
    if message.partition_key is not None:
        annotations[_PARTITION_KEY] = message.partition_key
    if message.scheduled_ms is not None:
        annotations[_SCHEDULED] = timestamp(message.scheduled_ms)
    built.annotations = annotations or None
    return built


def _from_proton(message: Any, delivery: Delivery) -> Received:
    notes = message.annotations or {}
    properties = {str(key): value for key, value in (message.properties or {}).items()}
    return Received(
        body=bytes(message.body),
        message_id=message.id,
        sequence_number=notes.get("x-opt-sequence-number"),
        delivery_count=message.delivery_count,
        partition_key=notes.get("x-opt-partition-key"),
        session_id=message.group_id,
        subject=message.subject,
        properties=properties,
        dead_letter_reason=properties.get("DeadLetterReason"),
        dead_letter_description=properties.get("DeadLetterErrorDescription"),
        dead_letter_source=notes.get("x-opt-deadletter-source"),
        enqueued_ms=notes.get("x-opt-enqueued-time"),
        locked_until_ms=notes.get("x-opt-locked-until"),
        scheduled_ms=notes.get("x-opt-scheduled-enqueue-time"),
        token=delivery,
    )


@contextmanager
def _troubles() -> Iterator[None]:
    try:
        yield
    except LinkDetached as error:
        condition = error.link.remote_condition
        raise (ClientTrouble(Trouble.OTHER, str(error)) if condition is None else _trouble(condition)) from error
    except ConnectionClosed as error:
        condition = error.connection.remote_condition
        raise (ClientTrouble(Trouble.OTHER, str(error)) if condition is None else _trouble(condition)) from error
    except ConnectionException as error:
        kind = Trouble.UNAUTHORIZED if "Authentication failed" in str(error) else Trouble.OTHER
        raise ClientTrouble(kind, str(error)) from error


def _trouble(condition: Any) -> ClientTrouble:
    return ClientTrouble(_KINDS.get(condition.name, Trouble.OTHER), f"{condition.name}: {condition.description}")
