"""Delivery states and outcomes [3.4], and those of transactions [4.5].

The engine returns `ACCEPTED` and `RELEASED` as the only instances of their classes, so callers may compare with `is`.
"""

from __future__ import annotations

from typing import Final

from partibus.amqp.codec.composite import (
    ANY,
    BINARY,
    BOOLEAN,
    ERROR,
    MAP,
    SYMBOLS,
    UINT,
    ULONG,
    Kind,
    amqp,
    build,
    composite,
    kind_of,
)
from partibus.amqp.codec.types import Described
from partibus.amqp.errors import AmqpError, DecodeError


@composite(0x23, "amqp:received:list", kw_only=True)
class Received:
    """The state of a partial delivery: how much of it has arrived."""

    section_number: int = amqp(UINT, required=True)
    section_offset: int = amqp(ULONG, required=True)


@composite(0x24, "amqp:accepted:list")
class Accepted:
    """The outcome of a message that was processed [3.4.2]."""


@composite(0x25, "amqp:rejected:list")
class Rejected:
    """The outcome of an invalid message [3.4.3]."""

    error: AmqpError | None = amqp(ERROR)


@composite(0x26, "amqp:released:list")
class Released:
    """The outcome of a message that was returned unprocessed [3.4.4]."""


@composite(0x27, "amqp:modified:list")
class Modified:
    """The outcome of a message that was modified but not processed [3.4.5]."""

    delivery_failed: bool | None = amqp(BOOLEAN)
    undeliverable_here: bool | None = amqp(BOOLEAN)
    message_annotations: dict[object, object] | None = amqp(MAP)


@composite(0x31, "amqp:declare:list")
class Declare:
    """The body of a message to the coordinator that begins a transaction."""

    global_id: object = amqp(ANY)


@composite(0x32, "amqp:discharge:list", kw_only=True)
class Discharge:
    """The body of a message to the coordinator that commits, or rolls back if `fail`."""

    txn_id: bytes = amqp(BINARY, required=True)
    fail: bool = amqp(BOOLEAN, default=False)


@composite(0x33, "amqp:declared:list", kw_only=True)
class Declared:
    """The outcome of `Declare`, with the transaction's id."""

    txn_id: bytes = amqp(BINARY, required=True)


ACCEPTED: Final = Accepted()
RELEASED: Final = Released()

Outcome = Accepted | Rejected | Released | Modified | Declared

_OUTCOME: Final = kind_of("outcome", Accepted, Rejected, Released, Modified, Declared)


@composite(0x34, "amqp:transactional-state:list", kw_only=True)
class TransactionalState:
    """The state of a delivery in a transaction."""

    txn_id: bytes = amqp(BINARY, required=True)
    outcome: Outcome | Described | None = amqp(_OUTCOME)


DeliveryState = Outcome | Received | TransactionalState | Described

_STATES: Final = (Received, Accepted, Rejected, Released, Modified, Declared, TransactionalState)


def delivery_state(value: object) -> DeliveryState:
    """Return the state of a decoded described value; unknown states stay `Described`."""
    state = build(value)
    if isinstance(state, Accepted):
        return ACCEPTED
    if isinstance(state, Released):
        return RELEASED
    if isinstance(state, (*_STATES, Described)):
        return state
    raise DecodeError(f"{type(state).__name__} is no delivery state")


STATE: Final = Kind("delivery state", delivery_state)


@composite(0x30, "amqp:coordinator:list", frozen=True)
class Coordinator:
    """The target of a link that controls transactions [4.5.1]."""

    capabilities: object = amqp(SYMBOLS)
