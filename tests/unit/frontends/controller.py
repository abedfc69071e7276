"""A client's side of transactions: a link to the coordinator, and sends and settlements that name a transaction."""

from __future__ import annotations

from collections.abc import Iterable

from partibus.amqp import (
    ACCEPTED,
    AmqpError,
    Coordinator,
    Declare,
    Declared,
    Delivery,
    DeliveryState,
    Discharge,
    Receiver,
    Rejected,
    Sender,
    Session,
    Source,
    TransactionalState,
)
from partibus.amqp.codec.performatives import Outcome
from partibus.amqp.section_encoding import encode_value
from tests.unit.frontends.harness import Client


class Controller:
    """One coordinator link."""

    def __init__(self, client: Client, session: Session | None = None) -> None:
        self.client = client
        session = session or client.session()
        name = f"coordinator-{len(client.events)}-{id(session)}"
        self.link: Sender = session.attach_sender(name, source=Source("client"), target=Coordinator())
        client.world.wait()

    def declare(self) -> bytes:
        """The new transaction's id."""
        state = self.ask(encode_value(Declare()))
        assert isinstance(state, Declared), state
        return state.txn_id

    def discharge(self, transaction: bytes, *, fail: bool = False) -> DeliveryState | None:
        """Commit, or roll back; the answer, None without one."""
        return self.ask(encode_value(Discharge(txn_id=transaction, fail=fail)))

    def commit(self, transaction: bytes) -> None:
        """Commit with success."""
        state = self.discharge(transaction)
        assert state is ACCEPTED, state

    def refusal(self, transaction: bytes) -> AmqpError:
        """Why a commit was rejected."""
        return error_of(self.discharge(transaction))

    def ask(self, payload: bytes) -> DeliveryState | None:
        """One message to the coordinator and its answer."""
        (state,) = self.client.send(self.link, payload) or [None]
        return state


def send_in(client: Client, link: Sender, transaction: bytes, *messages: bytes) -> list[DeliveryState | None]:
    """Send in a transaction and wait; what came back, in the order of the messages."""
    start = len(client.events)
    for index, payload in enumerate(messages):
        client.send_raw(link, payload, index, state=TransactionalState(txn_id=transaction))
    client.world.wait()
    states = client.outcomes(link, start)
    return [states[index] for index in sorted(states)]


def settle_in(
    client: Client, link: Receiver, transaction: bytes, deliveries: Iterable[Delivery], outcome: Outcome | None
) -> list[DeliveryState | None]:
    """Settle in a transaction and wait; one answer for each delivery."""
    events = client.settle(link, deliveries, TransactionalState(txn_id=transaction, outcome=outcome))
    return [event.state for event in events for _ in event.contexts]


def in_transaction(transaction: bytes, outcome: Outcome) -> TransactionalState:
    """The broker's answer to a declaration."""
    return TransactionalState(txn_id=transaction, outcome=outcome)


def error_of(state: DeliveryState | None) -> AmqpError:
    """The error of a rejection, which travels without a transactional state around it."""
    assert isinstance(state, Rejected), state
    assert state.error is not None
    return state.error
