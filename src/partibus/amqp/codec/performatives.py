"""The performatives of the transport [2.7] and of SASL [5.3.3], and the values in their fields.

The values are the source and target of a link [3.5.3, 3.5.4], delivery states and outcomes [3.4], and those of
transactions [4.5]. The engine returns `ACCEPTED` and `RELEASED` as the only instances of their classes, so callers may
compare with `is`.

`transfer` and `disposition` are here for completeness and as the general decoder; `fast` has the code that runs per
message.

Source and target are kept as received, so that they can be echoed exactly.
"""

from __future__ import annotations

from typing import Any, Final

from partibus.amqp.codec.composite import (
    ANY,
    BINARY,
    BOOLEAN,
    ERROR,
    MAP,
    STRING,
    SYMBOL,
    SYMBOLS,
    UBYTE,
    UINT,
    ULONG,
    USHORT,
    Kind,
    amqp,
    build,
    composite,
    kind_of,
    read_composite,
)
from partibus.amqp.codec.decoder import MAX_NESTING
from partibus.amqp.codec.types import Described, ULong
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


@composite(0x28, "amqp:source:list", frozen=True)
class Source:
    """The source of a link's messages. Null fields stay None, so an echo equals the received value."""

    address: object = amqp(ANY)
    durable: int | None = amqp(UINT)
    expiry_policy: str | None = amqp(SYMBOL)
    timeout: int | None = amqp(UINT)
    dynamic: bool | None = amqp(BOOLEAN)
    dynamic_node_properties: dict[object, object] | None = amqp(MAP)
    distribution_mode: str | None = amqp(SYMBOL)
    filter: dict[object, object] | None = amqp(MAP)
    default_outcome: object = amqp(ANY)
    outcomes: object = amqp(SYMBOLS)
    capabilities: object = amqp(SYMBOLS)


@composite(0x29, "amqp:target:list", frozen=True)
class Target:
    """The target of a link's messages."""

    address: object = amqp(ANY)
    durable: int | None = amqp(UINT)
    expiry_policy: str | None = amqp(SYMBOL)
    timeout: int | None = amqp(UINT)
    dynamic: bool | None = amqp(BOOLEAN)
    dynamic_node_properties: dict[object, object] | None = amqp(MAP)
    capabilities: object = amqp(SYMBOLS)


AnySource = Source | Described
AnyTarget = Target | Coordinator | Described

SOURCE: Final[Kind] = kind_of("source", Source, shared=True)
TARGET: Final[Kind] = kind_of("target", Target, Coordinator, shared=True)


UNLIMITED: Final = 0xFFFFFFFF


@composite(0x10, "amqp:open:list", frame_body=True, kw_only=True)
class Open:
    """The performative that opens a connection [2.7.1]."""

    container_id: str = amqp(STRING, required=True)
    hostname: str | None = amqp(STRING)
    max_frame_size: int = amqp(UINT, default=UNLIMITED)
    channel_max: int = amqp(USHORT, default=0xFFFF)
    idle_time_out: int | None = amqp(UINT)
    outgoing_locales: object = amqp(SYMBOLS)
    incoming_locales: object = amqp(SYMBOLS)
    offered_capabilities: object = amqp(SYMBOLS)
    desired_capabilities: object = amqp(SYMBOLS)
    properties: dict[object, object] | None = amqp(MAP)


@composite(0x11, "amqp:begin:list", frame_body=True, kw_only=True, frozen=True)
class Begin:
    """The performative that begins a session [2.7.2]."""

    remote_channel: int | None = amqp(USHORT)
    next_outgoing_id: int = amqp(UINT, required=True)
    incoming_window: int = amqp(UINT, required=True)
    outgoing_window: int = amqp(UINT, required=True)
    handle_max: int = amqp(UINT, default=UNLIMITED)
    offered_capabilities: object = amqp(SYMBOLS)
    desired_capabilities: object = amqp(SYMBOLS)
    properties: dict[object, object] | None = amqp(MAP)


@composite(0x12, "amqp:attach:list", frame_body=True, kw_only=True)
class Attach:
    """The performative that attaches a link [2.7.3]."""

    name: str = amqp(STRING, required=True)
    handle: int = amqp(UINT, required=True)
    role: bool = amqp(BOOLEAN, required=True)
    snd_settle_mode: int = amqp(UBYTE, default=2)
    rcv_settle_mode: int = amqp(UBYTE, default=0)
    source: AnySource | None = amqp(SOURCE)
    target: AnyTarget | None = amqp(TARGET)
    unsettled: dict[object, object] | None = amqp(MAP)
    incomplete_unsettled: bool | None = amqp(BOOLEAN)
    initial_delivery_count: int | None = amqp(UINT)
    max_message_size: int | None = amqp(ULONG)
    offered_capabilities: object = amqp(SYMBOLS)
    desired_capabilities: object = amqp(SYMBOLS)
    properties: dict[object, object] | None = amqp(MAP)


@composite(0x13, "amqp:flow:list", frame_body=True, kw_only=True)
class Flow:
    """The performative that updates the flow state of a session or link [2.7.4]."""

    next_incoming_id: int | None = amqp(UINT)
    incoming_window: int = amqp(UINT, required=True)
    next_outgoing_id: int = amqp(UINT, required=True)
    outgoing_window: int = amqp(UINT, required=True)
    handle: int | None = amqp(UINT)
    delivery_count: int | None = amqp(UINT)
    link_credit: int | None = amqp(UINT)
    available: int | None = amqp(UINT)
    drain: bool = amqp(BOOLEAN, default=False)
    echo: bool = amqp(BOOLEAN, default=False)
    properties: dict[object, object] | None = amqp(MAP)


@composite(0x14, "amqp:transfer:list", frame_body=True, kw_only=True)
class Transfer:
    """The performative that transfers a message, or a part of one [2.7.5]."""

    handle: int = amqp(UINT, required=True)
    delivery_id: int | None = amqp(UINT)
    delivery_tag: bytes | None = amqp(BINARY)
    message_format: int | None = amqp(UINT)
    settled: bool | None = amqp(BOOLEAN)
    more: bool = amqp(BOOLEAN, default=False)
    rcv_settle_mode: int | None = amqp(UBYTE)
    state: DeliveryState | None = amqp(STATE)
    resume: bool = amqp(BOOLEAN, default=False)
    aborted: bool = amqp(BOOLEAN, default=False)
    batchable: bool = amqp(BOOLEAN, default=False)


@composite(0x15, "amqp:disposition:list", frame_body=True, kw_only=True)
class Disposition:
    """The performative that states the outcome of deliveries [2.7.6]."""

    role: bool = amqp(BOOLEAN, required=True)
    first: int = amqp(UINT, required=True)
    last: int | None = amqp(UINT)
    settled: bool = amqp(BOOLEAN, default=False)
    state: DeliveryState | None = amqp(STATE)
    batchable: bool = amqp(BOOLEAN, default=False)


@composite(0x16, "amqp:detach:list", frame_body=True, kw_only=True, frozen=True)
class Detach:
    """The performative that detaches a link [2.7.7]."""

    handle: int = amqp(UINT, required=True)
    closed: bool = amqp(BOOLEAN, default=False)
    error: AmqpError | None = amqp(ERROR)


@composite(0x17, "amqp:end:list", frame_body=True, frozen=True)
class End:
    """The performative that ends a session [2.7.8]."""

    error: AmqpError | None = amqp(ERROR)


@composite(0x18, "amqp:close:list", frame_body=True, frozen=True)
class Close:
    """The performative that closes a connection [2.7.9]."""

    error: AmqpError | None = amqp(ERROR)


@composite(0x40, "amqp:sasl-mechanisms:list", frame_body=True, kw_only=True)
class SaslMechanisms:
    """The server's list of SASL mechanisms [5.3.3.1]."""

    sasl_server_mechanisms: object = amqp(SYMBOLS, required=True)


@composite(0x41, "amqp:sasl-init:list", frame_body=True, kw_only=True, frozen=True)
class SaslInit:
    """The client's choice of a SASL mechanism [5.3.3.2]."""

    mechanism: str = amqp(SYMBOL, required=True)
    initial_response: bytes | None = amqp(BINARY)
    hostname: str | None = amqp(STRING)


@composite(0x42, "amqp:sasl-challenge:list", frame_body=True, kw_only=True)
class SaslChallenge:
    """The server's SASL challenge [5.3.3.3]."""

    challenge: bytes = amqp(BINARY, required=True)


@composite(0x43, "amqp:sasl-response:list", frame_body=True, kw_only=True)
class SaslResponse:
    """The client's SASL response [5.3.3.4]."""

    response: bytes = amqp(BINARY, required=True)


@composite(0x44, "amqp:sasl-outcome:list", frame_body=True, kw_only=True)
class SaslOutcome:
    """The result of the SASL exchange [5.3.3.5]."""

    code: int = amqp(UBYTE, required=True)
    additional_data: bytes | None = amqp(BINARY)


SaslFrame = SaslMechanisms | SaslInit | SaslChallenge | SaslResponse | SaslOutcome


AMQP_BODIES: Final = (Open, Begin, Attach, Flow, Transfer, Disposition, Detach, End, Close)
SASL_BODIES: Final = (SaslMechanisms, SaslInit, SaslChallenge, SaslResponse, SaslOutcome)


_REPEATED: Final = tuple(b"\x00\x53" + bytes((code,)) for code in (0x11, 0x16, 0x17, 0x18, 0x41))
"""The starts of begin, detach, end, close and SASL init."""
REPEATED_MAX: Final = 256
_REPEATED_BYTES_MAX: Final = 128
_ANONYMOUS: Final = frozenset({"ANONYMOUS", "MSSBCBS"})
repeated: Final[dict[bytes, Any]] = {}
"""Performatives that many connections send with the same bytes. Their classes are frozen. A peer that sends many
different ones only empties the table.
"""


def decode_performative(
    buf: bytes, pos: int, end: int, depth: int = MAX_NESTING, allowed: tuple[type, ...] = AMQP_BODIES
) -> tuple[Any, int]:
    """Return the frame body at `pos`, one of `allowed`, and the position after it, where a payload starts."""
    performative: Any
    received = b""
    if buf.startswith(_REPEATED, pos) and end - pos <= _REPEATED_BYTES_MAX and depth >= MAX_NESTING:
        received = buf[pos:end]
        performative = repeated.get(received)
        if performative is not None and type(performative) in allowed:
            return performative, end
    performative, after = read_composite(buf, pos, end, depth)
    if not isinstance(performative, allowed):
        of = performative.descriptor if isinstance(performative, Described) else ULong(performative.CODE)
        raise DecodeError(f"a frame body with descriptor {of!r} is not defined here")
    # A log-in with a password is not kept.
    if received and after == end and (type(performative) is not SaslInit or performative.mechanism in _ANONYMOUS):
        if len(repeated) >= REPEATED_MAX:
            repeated.clear()
        repeated[received] = performative
    return performative, after
