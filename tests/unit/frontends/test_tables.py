"""The two tables of this front end: errors -> conditions, delivery states -> settlements."""

from __future__ import annotations

import pytest

from partibus.amqp import (
    ACCEPTED,
    RELEASED,
    AmqpError,
    DeliveryState,
    Modified,
    Received,
    Rejected,
    TransactionalState,
)
from partibus.errors import REQUEST_ERRORS, InvalidOperation, PartibusError, Unsupported
from partibus.frontends.amqp.errors import CONDITIONS, amqp_error, status_of
from partibus.frontends.amqp.outcomes import Settlement, settlement_of
from partibus.partition.commands import Outcome

RETRIED_BY_CLIENTS = {"com.microsoft:server-busy", "com.microsoft:timeout", "amqp:internal-error"}


def test_every_request_error_has_a_condition_and_nothing_else_has() -> None:
    assert set(CONDITIONS) == set(REQUEST_ERRORS)


@pytest.mark.parametrize("kind", REQUEST_ERRORS, ids=lambda kind: kind.__name__)
def test_clients_try_again_exactly_when_it_helps(kind: type[PartibusError]) -> None:
    condition, status = CONDITIONS[kind]
    assert (condition in RETRIED_BY_CLIENTS) is kind.retriable
    assert (status in {408, 500, 503}) is kind.retriable


def test_an_error_on_the_wire_keeps_its_text() -> None:
    error = InvalidOperation("No.")
    assert amqp_error(error) == AmqpError("amqp:not-allowed", "No.")
    assert status_of(error) == 400


RECEIVED = Received(section_number=0, section_offset=0)
DEAD_LETTER = Rejected(
    AmqpError("com.microsoft:dead-letter", None, {"DeadLetterReason": "why", "DeadLetterErrorDescription": "how"})
)


@pytest.mark.parametrize(
    ("state", "settlement"),
    [
        pytest.param(ACCEPTED, Settlement(Outcome.COMPLETE, ACCEPTED), id="accepted"),
        pytest.param(RELEASED, Settlement(Outcome.RELEASE, RELEASED), id="released"),
        pytest.param(None, Settlement(Outcome.RELEASE, RELEASED), id="no state"),
        pytest.param(
            Received(section_number=0, section_offset=0), Settlement(Outcome.RELEASE, RELEASED), id="received"
        ),
        pytest.param(Modified(), Settlement(Outcome.ABANDON, Modified()), id="modified"),
        pytest.param(Modified(delivery_failed=True), Settlement(Outcome.ABANDON, Modified()), id="modified, failed"),
        pytest.param(Rejected(), Settlement(Outcome.DEAD_LETTER, Rejected()), id="rejected"),
        pytest.param(
            DEAD_LETTER, Settlement(Outcome.DEAD_LETTER, Rejected(), "why", "how"), id="rejected with a reason"
        ),
        pytest.param(
            Rejected(AmqpError("x", "y", {"DeadLetterReason": 7})),
            Settlement(Outcome.DEAD_LETTER, Rejected()),
            id="rejected with a reason that is no text",
        ),
    ],
)
def test_a_delivery_state_means(state: DeliveryState | None, settlement: Settlement) -> None:
    assert settlement_of(state) == settlement


@pytest.mark.parametrize(
    ("state", "what"),
    [
        pytest.param(Modified(delivery_failed=True, undeliverable_here=True), "Deferring", id="undeliverable here"),
        pytest.param(
            Modified(delivery_failed=True, message_annotations={"a": 1}),
            "Modifying properties",
            id="changed annotations",
        ),
        pytest.param(TransactionalState(txn_id=b"t"), "TransactionalState", id="transaction"),
    ],
)
def test_a_delivery_state_of_later_work_is_refused_by_name(state: DeliveryState, what: str) -> None:
    with pytest.raises(Unsupported, match=what):
        settlement_of(state)
