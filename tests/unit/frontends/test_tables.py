"""The two tables of this front end: errors -> conditions, delivery states -> settlements."""

from __future__ import annotations

from uuid import UUID

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
from partibus.amqp.codec.types import Array, Described, Int, Symbol, Timestamp, UInt
from partibus.errors import REQUEST_ERRORS, ArgumentError, InvalidOperation, PartibusError, Unsupported
from partibus.frontends.amqp.errors import CONDITIONS, amqp_error, status_of
from partibus.frontends.amqp.outcomes import DELAY_KEY, DELAY_MAX_MS, Settlement, check_delay, settlement_of
from partibus.partition.protocol.commands import Outcome
from partibus.routing.lock_tokens import delivery_tag, read_token, tag_start, token_uuid

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


TIME = Timestamp(1_700_000_000_000)
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
            Rejected(AmqpError("x", "y", {"DeadLetterReason": None, Symbol("p"): Int(1)})),
            Settlement(Outcome.DEAD_LETTER, Rejected(), properties={"p": 1}),
            id="rejected with properties",
        ),
        pytest.param(
            Modified(undeliverable_here=True), Settlement(Outcome.DEFER, Modified()), id="modified, undeliverable here"
        ),
        pytest.param(
            Modified(delivery_failed=True, undeliverable_here=True, message_annotations={Symbol("p"): TIME}),
            Settlement(Outcome.DEFER, Modified(), properties={"p": TIME}),
            id="modified, undeliverable here, with properties",
        ),
        pytest.param(
            Modified(message_annotations={"p": None, "DeadLetterReason": "kept"}),
            Settlement(Outcome.ABANDON, Modified(), properties={"p": None, "DeadLetterReason": "kept"}),
            id="modified with properties",
        ),
        pytest.param(
            Modified(message_annotations={Symbol(DELAY_KEY): Int(5_000)}),
            Settlement(Outcome.ABANDON, Modified(), delay_ms=5_000),
            id="modified with a delay",
        ),
        pytest.param(
            Modified(message_annotations={DELAY_KEY: UInt(DELAY_MAX_MS), "p": "v"}),
            Settlement(Outcome.ABANDON, Modified(), properties={"p": "v"}, delay_ms=DELAY_MAX_MS),
            id="modified with the longest delay and properties",
        ),
    ],
)
def test_a_delivery_state_means(state: DeliveryState | None, settlement: Settlement) -> None:
    assert settlement_of(state) == settlement


@pytest.mark.parametrize(
    ("state", "what"),
    [
        pytest.param(TransactionalState(txn_id=b"t"), "TransactionalState", id="transaction"),
        pytest.param(Described(Symbol("x:y:list"), []), "Described", id="foreign"),
    ],
)
def test_a_state_that_is_no_outcome_is_refused_by_name(state: DeliveryState, what: str) -> None:
    with pytest.raises(Unsupported, match=what):
        settlement_of(state)


def rejected(**info: object) -> Rejected:
    found: dict[object, object] = {}
    found.update(info)
    return Rejected(AmqpError("com.microsoft:dead-letter", None, found))


@pytest.mark.parametrize(
    ("state", "text"),
    [
        pytest.param(rejected(DeadLetterReason=7), "DeadLetterReason is 7, but must be a string", id="reason"),
        pytest.param(
            rejected(DeadLetterErrorDescription="x" * 4_097), "at most 4096 characters", id="description too long"
        ),
        pytest.param(rejected(p=[1]), "property p is .* no list, map or array", id="list"),
        pytest.param(rejected(p=Array(0x71, [1])), "property p", id="array"),
        pytest.param(Modified(message_annotations={7: 1}), "must be a string", id="name"),
        pytest.param(Modified(message_annotations={"p": "x" * 65_536}), "at most 65536 bytes", id="too much"),
        pytest.param(Modified(message_annotations={"p": 1 << 64}), "must be encodable", id="no type holds it"),
        pytest.param(Modified(message_annotations={DELAY_KEY: -1}), f"from 0 to {DELAY_MAX_MS}", id="delay < 0"),
        pytest.param(
            Modified(message_annotations={DELAY_KEY: DELAY_MAX_MS + 1}),
            f"from 0 to {DELAY_MAX_MS}",
            id="delay too long",
        ),
        pytest.param(Modified(message_annotations={DELAY_KEY: "5 s"}), f"{DELAY_KEY} is '5 s'", id="delay, text"),
        pytest.param(Modified(message_annotations={DELAY_KEY: True}), f"{DELAY_KEY} is True", id="delay, boolean"),
        pytest.param(
            Modified(undeliverable_here=True, message_annotations={DELAY_KEY: 5}), "absent from a deferral", id="defer"
        ),
        pytest.param(rejected(**{DELAY_KEY: 5}), "absent from a dead-letter", id="dead-letter"),
    ],
)
def test_properties_that_cannot_be_set_are_refused_by_name_and_bound(state: DeliveryState, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        settlement_of(state)


def test_an_abandon_is_not_delayed_where_order_is_kept() -> None:
    delayed = settlement_of(Modified(message_annotations={DELAY_KEY: 5}))
    check_delay(delayed, "orders", ordered=False)
    check_delay(settlement_of(Modified()), "orders", ordered=True)
    with pytest.raises(InvalidOperation, match="'orders' keeps the order"):
        check_delay(delayed, "orders", ordered=True)


@pytest.mark.parametrize("parts", [(0, 1, 1), (15, 7, 123), (32_767, (1 << 48) - 1, (1 << 64) - 1)])
def test_a_lock_token_is_the_delivery_tag_read_as_a_guid(parts: tuple[int, int, int]) -> None:
    partition_id, lock_id, pos = parts
    token = token_uuid(*parts)
    assert token == UUID(bytes_le=delivery_tag(tag_start(partition_id, lock_id), pos))
    assert read_token(token) == parts
