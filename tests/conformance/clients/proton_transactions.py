"""Local transactions of python-qpid-proton, the one library with a transactional API in Python."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from proton import Delivery, Message, symbol
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import AtLeastOnce, AtMostOnce
from proton.utils import BlockingConnection

from tests.conformance.clients.interface import WAIT_S, Outgoing

TRANSACTIONAL_STATE = 0x34


class Outcome(TransactionHandler):
    """The outcome of one transaction."""

    def __init__(self) -> None:
        self.transaction: Any = None
        self.declared = self.committed = self.aborted = False
        self.error: Any = None
        """The condition with which the broker refused to declare or to commit."""

    @property
    def ended(self) -> bool:
        return self.committed or self.aborted or self.error is not None

    def on_transaction_declared(self, event: Any) -> None:
        self.declared = True

    def on_transaction_committed(self, event: Any) -> None:
        self.committed = True

    def on_transaction_aborted(self, event: Any) -> None:
        self.aborted = True

    def on_transaction_declare_failed(self, event: Any) -> None:
        self.error = event.delivery.remote.condition

    def on_transaction_commit_failed(self, event: Any) -> None:
        self.error = event.delivery.remote.condition


class _Inbox(MessagingHandler):
    """Messages of one link, settled when the test says so."""

    def __init__(self) -> None:
        super().__init__(prefetch=0, auto_accept=False, auto_settle=False)
        self.messages: deque[tuple[bytes, Delivery]] = deque()

    def on_message(self, event: Any) -> None:
        self.messages.append((bytes(event.message.body), event.delivery))
        event.container.yield_()


class TransactionalProton:
    """One connection with any number of transactions."""

    def __init__(self, host: str, port: int, policy: str, key: str) -> None:
        self._blocking: Any = BlockingConnection(
            f"amqp://{host}:{port}",
            timeout=WAIT_S,
            user=policy,
            password=key,
            allowed_mechs="PLAIN",
            allow_insecure_mechs=True,
        )
        self._senders: dict[str, Any] = {}
        self._receivers: dict[str, tuple[Any, _Inbox]] = {}

    def begin(self, *, settle_before_discharge: bool = False) -> Outcome:
        """Declare a transaction."""
        outcome = Outcome()
        outcome.transaction = self._blocking.container.declare_transaction(
            self._blocking.conn, outcome, settle_before_discharge
        )
        self._wait(lambda: outcome.declared or outcome.error is not None)
        return outcome

    def send(self, outcome: Outcome, entity: str, *messages: Outgoing) -> list[Any]:
        """Send in the transaction; of each message None, or the condition with which it was refused."""
        if entity not in self._senders:
            self._senders[entity] = self._blocking.create_sender(entity)
        deliveries = [outcome.transaction.send(self._senders[entity].link, _to_proton(message)) for message in messages]
        self._wait(lambda: all(delivery.settled for delivery in deliveries))
        return [_refusal(delivery) for delivery in deliveries]

    def receive(self, entity: str, count: int, *, delete: bool = False) -> list[tuple[bytes, Delivery]]:
        """Wait for messages, under lock unless they are to be deleted."""
        if entity not in self._receivers:
            inbox = _Inbox()
            options = AtMostOnce() if delete else AtLeastOnce()
            link = self._blocking.create_receiver(entity, credit=count, handler=inbox, options=options)
            self._receivers[entity] = (link, inbox)
        else:
            link, inbox = self._receivers[entity]
            link.flow(count - len(inbox.messages) - link.credit)
        self._wait(lambda: len(inbox.messages) >= count)
        return [inbox.messages.popleft() for _ in range(count)]

    def accept(self, outcome: Outcome, deliveries: Iterable[Delivery]) -> list[Any]:
        """Complete messages in the transaction; as `send`."""
        accepted = list(deliveries)
        for delivery in accepted:
            outcome.transaction.accept(delivery)
        if outcome.transaction.settle_before_discharge:
            return []
        self._wait(lambda: all(delivery.settled for delivery in accepted))
        return [_refusal(delivery) for delivery in accepted]

    def commit(self, *outcomes: Outcome) -> None:
        """Discharge and wait for the ends, whatever they are."""
        for outcome in outcomes:
            outcome.transaction.commit()
        self._wait(lambda: all(outcome.ended for outcome in outcomes))

    def abort(self, outcome: Outcome) -> None:
        outcome.transaction.abort()
        self._wait(lambda: outcome.ended)

    def close_receivers(self) -> None:
        """Close the receivers, so that returned messages are there for others."""
        for link, _ in self._receivers.values():
            link.close()
        self._receivers.clear()

    def drop(self) -> None:
        """The connection breaks: the socket is closed without a word of the protocol."""
        transport = self._blocking.conn.transport
        transport.close_tail()
        transport.close_head()
        while not self._blocking.disconnected:
            self._blocking.container.process()

    def close(self) -> None:
        self._blocking.close()

    def _wait(self, done: Any) -> None:
        self._blocking.wait(done, timeout=WAIT_S)


def _to_proton(message: Outgoing) -> Message:
    built = Message(body=message.body, inferred=True)
    if message.partition_key is not None:
        built.annotations = {symbol("x-opt-partition-key"): message.partition_key}
    if message.session_id is not None:
        built.group_id = message.session_id
    return built


def _refusal(delivery: Delivery) -> Any:
    """The condition of a rejection; None for what was taken into the transaction."""
    if delivery.remote_state == TRANSACTIONAL_STATE:
        return None
    assert delivery.remote_state == Delivery.REJECTED, delivery.remote_state
    return delivery.remote.condition
