"""The coordinator: a link on which a client declares and discharges transactions (section 8).

| client sends                  | means                | answer                                                  |
|-------------------------------|----------------------|---------------------------------------------------------|
| declare                       | begin one            | declared, with its id                                   |
| discharge, fail false         | commit               | accepted when it is durable                             |
| discharge, fail true          | roll back            | accepted                                                |
| transfer, transactional-state | send at the commit   | transactional-state with accepted, at once              |
| disposition, the same         | settle at the commit | transactional-state with the outcome's answer, at once  |

The broker rejects what it can't do, a discharge with one of the conditions `amqp:transaction:...`.

Links to entities handle the last two rows; they find the transaction by its id. Sessions do not matter: a transaction
is known on all of its connection. It ends with the coordinator link that declared it.
"""

from collections.abc import Callable

from partibus.amqp import (
    ACCEPTED,
    AmqpError,
    Coordinator,
    Declare,
    Declared,
    DecodeError,
    Delivery,
    DeliveryState,
    Discharge,
    Receiver,
    Rejected,
    TransactionalState,
)
from partibus.amqp.codec.composite import build
from partibus.amqp.errors import DECODE_ERROR, DETACH_FORCED
from partibus.amqp.section_fields import decode_body
from partibus.amqp.sections import split_sections
from partibus.errors import ArgumentError, OutcomeUnknown, PartibusError, Unsupported
from partibus.frontends.amqp.errors import amqp_error
from partibus.routing.transactions import Transaction, Transactions

CAPABILITIES = ("amqp:local-transactions", "amqp:multi-txns-per-ssn", "amqp:multi-ssns-per-txn")
"""The capabilities of a coordinator [4.5.4]."""
CREDIT = 100
AT_ONCE_MAX = 2 * CREDIT
"""The requests handled in one turn of a connection. Each takes some fifty microseconds, and a read brings thousands of
them from a client that ignores its credit.
"""
REQUEST_BYTES_MAX = 4 << 10
"""The size of a declare or discharge: an id of at most 32 bytes, and any sections that a client adds."""


class CoordinatorLink:
    """One coordinator link of a client."""

    overloaded = False
    """Transactions have limits of their own; links to entities hold back a client that sends too much."""

    def __init__(self, link: Receiver, transactions: Transactions, flush: Callable[[], None]) -> None:
        self.session = link.session
        """Links on the same session may send to entities outside of the transaction (section 8)."""
        self._link = link
        self._transactions = transactions
        self._flush = flush
        link.accept(target=Coordinator(CAPABILITIES), max_message_size=REQUEST_BYTES_MAX)
        link.grant(CREDIT)

    def when_relieved(self, call: Callable[[], None]) -> None:
        """Do nothing: it is never `overloaded`."""
        call()

    def on_deliveries(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Declare and discharge; reject each request that fails. Return those left after `AT_ONCE_MAX`."""
        for delivery in deliveries[:AT_ONCE_MAX]:
            try:
                self._on_delivery(delivery)
            except PartibusError as error:
                self._link.settle_many([delivery], Rejected(amqp_error(error)))
            except DecodeError as error:
                self._link.settle_many([delivery], Rejected(AmqpError(DECODE_ERROR, str(error))))
        if 2 * self._link.credit <= CREDIT:
            self._link.grant(CREDIT)
        return deliveries[AT_ONCE_MAX:]

    def _on_delivery(self, delivery: Delivery) -> None:
        request = read_request(delivery.payload)
        if isinstance(request, Discharge):
            transaction = self._transactions.find(request.txn_id)
            if request.fail:
                transaction.roll_back()
                self._link.settle_many([delivery], ACCEPTED)
            else:
                transaction.commit(lambda error: self._on_committed(delivery, error))
        elif request.global_id is not None:
            raise Unsupported("A distributed transaction", "Declare without a global id.")
        elif not delivery.settled:  # a settled delivery gets no reply, so the client could not learn the id
            transaction = self._transactions.declare(self)
            self._link.settle_many([delivery], Declared(txn_id=transaction.id))

    def _on_committed(self, delivery: Delivery, error: PartibusError | None) -> None:
        if error is None:
            self._link.settle_many([delivery], ACCEPTED)
        elif isinstance(error, OutcomeUnknown):
            # A rejection would say that surely nothing of it was done (D11).
            self._link.detach(AmqpError(DETACH_FORCED, str(error)))
            self.on_detached()
        else:
            self._link.settle_many([delivery], Rejected(amqp_error(error)))
        self._flush()

    def on_detached(self) -> None:
        """Roll back the link's open transactions. A commit under way goes on."""
        self._transactions.roll_back_all(self)


def read_request(payload: bytes) -> Declare | Discharge:
    """Return the body of a message to the coordinator. Raises `DecodeError` and `ArgumentError`."""
    values = decode_body(split_sections(payload).body)
    request = build(values[0]) if values else None
    if not isinstance(request, Declare | Discharge):
        raise ArgumentError("the body of a message to the coordinator", request, "declare or discharge")
    return request


def transaction_of(state: DeliveryState, transactions: Transactions) -> Transaction:
    """Return the transaction that the state of a transfer or disposition names.

    Raises `TransactionUnknown`, and `Unsupported` for other states.
    """
    if isinstance(state, TransactionalState):
        return transactions.find(state.txn_id)
    raise Unsupported(f"A transfer with the state {type(state).__name__}", "Send the message without a state.")
