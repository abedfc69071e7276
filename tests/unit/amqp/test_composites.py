"""Composite types: performatives, terminuses, states, errors."""

from __future__ import annotations

from typing import Any

import pytest

from partibus.amqp import (
    ACCEPTED,
    RELEASED,
    AmqpError,
    Coordinator,
    Declare,
    Declared,
    DecodeError,
    Discharge,
    EncodeError,
    Modified,
    Received,
    Rejected,
    Source,
    Target,
    TransactionalState,
)
from partibus.amqp.codec.composite import SHARED_BYTES_MAX, SHARED_MAX, build, symbols
from partibus.amqp.codec.decoder import decode, decode_all
from partibus.amqp.codec.encoder import LONG_BYTES, encode, encode_pieces
from partibus.amqp.codec.performatives import (
    AMQP_BODIES,
    REPEATED_MAX,
    SASL_BODIES,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Transfer,
    decode_performative,
    delivery_state,
    repeated,
)
from partibus.amqp.codec.types import Array, Described, Symbol, ULong

FULL_SOURCE = Source(
    address="amqps://host/queue",
    durable=1,
    expiry_policy="session-end",
    timeout=120,
    dynamic=False,
    dynamic_node_properties={Symbol("lifetime-policy"): Described(ULong(0x2B), [])},
    distribution_mode="move",
    filter={Symbol("com.microsoft:session-filter"): Described(ULong(0x137000000C), "session")},
    default_outcome=Described(ULong(0x26), []),
    outcomes=Array.of_symbols(["amqp:accepted:list"]),
    capabilities=Symbol("queue"),
)

PERFORMATIVES: list[tuple[Any, int]] = [
    (Open(container_id="c", hostname="h", idle_time_out=1000, properties={Symbol("product"): "p"}), 10),
    (Begin(remote_channel=3, next_outgoing_id=1, incoming_window=2, outgoing_window=4294967295), 8),
    (Attach(name="l", handle=0, role=True, source=FULL_SOURCE, target=Target("t"), initial_delivery_count=0), 14),
    (Attach(name="l", handle=4294967295, role=False, target=Coordinator(Array.of_symbols(["amqp:local"]))), 14),
    (Flow(incoming_window=1, next_outgoing_id=2, outgoing_window=3, handle=4, link_credit=5, drain=True), 11),
    (Transfer(handle=0, delivery_id=1, delivery_tag=b"t", message_format=0x80013700, more=True), 11),
    (Disposition(role=True, first=1, last=2, settled=True, state=ACCEPTED), 6),
    (Detach(handle=1, closed=True, error=AmqpError("amqp:not-found", "no", {Symbol("k"): 1})), 3),
    (End(AmqpError("amqp:not-allowed")), 1),
    (Close(), 1),
    (SaslMechanisms(sasl_server_mechanisms=Array.of_symbols(["PLAIN"])), 1),
    (SaslInit(mechanism="PLAIN", initial_response=b"\0u\0p", hostname="h"), 3),
    (SaslOutcome(code=0), 2),
]


@pytest.mark.parametrize(("performative", "count"), PERFORMATIVES, ids=lambda value: type(value).__name__)
def test_performative_survives_with_all_its_fields_written(performative: Any, count: int) -> None:
    """Trap 11: the descriptor is the one-byte form at a fixed place. All fields stand there, null or not."""
    encoded = encode(performative)
    assert encoded[:3] == bytes((0x00, 0x53, type(performative).CODE))
    decoded, end = decode_performative(encoded + b"payload", 0, len(encoded) + 7, allowed=AMQP_BODIES + SASL_BODIES)
    assert (decoded, end) == (performative, len(encoded))
    raw = decode_all(encoded)
    assert isinstance(raw, Described)
    assert isinstance(raw.value, list)
    assert len(raw.value) == count
    assert encoded[3] in (0xC0, 0xD0)


@pytest.mark.parametrize(
    "descriptor", [b"\x80\0\0\0\0\0\0\0\x10", b"\xa3\x0eamqp:open:list", b"\xb3\0\0\0\x0eamqp:open:list"]
)
def test_descriptor_is_read_in_any_spelling(descriptor: bytes) -> None:
    decoded, _ = decode_performative(b"\0" + descriptor + b"\xc0\x04\x01\xa1\x01c", 0, 8 + len(descriptor))
    assert decoded == Open(container_id="c")


def test_missing_and_null_fields_mean_the_defaults() -> None:
    short_bytes = encode(Described(ULong(0x10), ["c"]))
    short = decode_performative(short_bytes, 0, len(short_bytes))[0]
    padded_bytes = encode(Described(ULong(0x10), ["c"] + [None] * 9))
    padded = decode_performative(padded_bytes, 0, len(padded_bytes))[0]
    assert short == padded
    assert (short.max_frame_size, short.channel_max, short.idle_time_out) == (4294967295, 65535, None)


@pytest.mark.parametrize(
    ("code", "fields", "complaint"),
    [
        (0x10, [], "amqp:open:list.container-id is missing|container_id is missing"),
        (0x10, [5], "5 is no string"),
        (0x10, ["c"] + [None] * 10, "has 10 fields, not 11"),
        (0x10, ["c", None, "big"], "'big' is no uint"),
        (0x10, ["c", None, True], "True is no uint"),
        (0x10, ["c", None, -1], "-1 is no uint"),
        (0x11, [None, 0, 0, 2**32], "4294967296 is no uint"),
        (0x12, ["l", 0, True, None, None, "source"], "has no descriptor"),
        (0x12, ["l", 0, True, None, None, Described(ULong(0x29), [])], "Target is no source"),
        (0x16, [0, True, Described(ULong(0x1D), [])], "an error has no condition"),
        (0x16, [0, True, Described(ULong(0x24), [])], "is no error"),
        (0x15, [True, 0, 0, True, Described(ULong(0x28), [])], "Source is no delivery state"),
        (0x19, [], "is not defined"),
        (0x10, {}, "is no list"),
    ],
)
def test_field_of_the_wrong_type_is_a_decode_error(code: int, fields: object, complaint: str) -> None:
    encoded = encode(Described(ULong(code), fields))
    with pytest.raises(DecodeError, match=complaint):
        decode_performative(encoded, 0, len(encoded))


def test_error_is_written_with_three_fields() -> None:
    """Trap 3: one client hangs on an error with fewer."""
    for carrier in (Rejected(AmqpError("c:x")), Close(AmqpError("c:x", "d")), Detach(handle=0, error=AmqpError("c:x"))):
        raw = decode_all(encode(carrier))
        assert isinstance(raw, Described)
        assert isinstance(raw.value, list)
        (error,) = [field for field in raw.value if isinstance(field, Described)]
        assert isinstance(error.value, list)
        assert len(error.value) == 3
        assert encode(error).endswith(b"\x40")


def test_error_with_fewer_or_odd_fields_is_read() -> None:
    encoded = encode(Described(ULong(0x18), [Described(ULong(0x1D), [Symbol("a:b")])]))
    assert decode_performative(encoded, 0, len(encoded))[0] == Close(AmqpError("a:b"))


@pytest.mark.parametrize(
    "state",
    [
        ACCEPTED,
        RELEASED,
        Rejected(),
        Rejected(AmqpError("com.microsoft:dead-letter", "text", {Symbol("DeadLetterReason"): "r"})),
        Modified(),
        Modified(True, False, {Symbol("x-opt"): 1}),
        Received(section_number=1, section_offset=2),
        Declared(txn_id=b"t"),
        TransactionalState(txn_id=b"t", outcome=ACCEPTED),
        TransactionalState(txn_id=b"t"),
        Described(Symbol("vendor:state"), ["x"]),
    ],
    ids=repr,
)
def test_state_survives(state: Any) -> None:
    assert delivery_state(decode_all(encode(state))) == state


def test_accepted_and_released_are_single_objects() -> None:
    assert delivery_state(decode_all(bytes.fromhex("005324c00100"))) is ACCEPTED
    assert delivery_state(decode_all(encode(RELEASED))) is RELEASED
    assert encode(ACCEPTED).hex() == "00532445"


def test_source_and_target_are_echoed_exactly() -> None:
    """Trap 9: what came is what goes back, in type and letter."""
    for terminus in (FULL_SOURCE, Target("a"), Target(), Source(Symbol("not a string"))):
        encoded = encode(terminus)
        built = build(decode_all(encoded))
        assert built == terminus
        assert encode(built) == encoded
    assert encode(Source()).hex() == "00532845"


@pytest.mark.parametrize("text", ["@", "queue@", "@@@@@@@", "@" * 200])
def test_texts_of_the_letter_that_is_the_format_code_of_null_survive(text: str) -> None:
    """A list may end in nulls, and they follow such a text without a border."""
    for value in (Target(text), Source(text, distribution_mode=text), End(), Detach(handle=64)):
        assert build(decode_all(encode(value))) == value
    attach = Attach(name=text, handle=64, role=True, source=Source(text), target=Target("t"))
    encoded = encode(attach)
    assert decode_performative(encoded, 0, len(encoded)) == (attach, len(encoded))


@pytest.mark.parametrize(
    "fields",
    [
        "03 a1 02 40 40 43 41 40",  # a byte more than three fields
        "05 a1 02 40 40 43 41 40",  # a field less than five
        "03 a1 40 40 40 40 40 40",  # a text that passes the end
        "04 a1 02 40 40 43 40 40",  # no role
        "0f a1 02 40 40 43 41 40 40 40 40 40 40 40 40 40 40 40 40",  # a field more than there are
    ],
)
def test_a_performative_of_the_wrong_number_of_fields_is_a_decode_error(fields: str) -> None:
    count, *content = bytes.fromhex(fields)
    body = b"\x00\x53\x12\xc0" + bytes((len(content) + 1, count, *content))
    with pytest.raises(DecodeError):
        decode_performative(body + b"\x40" * 300, 0, len(body))


def attached(*sources: object) -> list[Any]:
    """The sources of attaches from the wire."""
    encoded = [encode(Attach(name="l", handle=0, role=True, source=Source(source))) for source in sources]
    return [decode_performative(one, 0, len(one))[0].source for one in encoded]


def test_equal_terminuses_are_decoded_and_encoded_once() -> None:
    first, second, symbol, other = attached("$cbs", "$cbs", Symbol("$cbs"), "$cbt")
    assert first is second
    assert other is not first
    assert type(first.address) is str
    assert type(symbol.address) is Symbol
    attach = Attach(name="m", handle=1, role=False, source=first)
    for answer in (attach, attach, Attach(name="m", handle=1, role=False, source=Source("$cbs"))):
        assert encode(answer) == encode(Attach(name="m", handle=1, role=False, source=Source("$cbs")))
    with pytest.raises(AttributeError):
        first.address = "another"


def test_terminuses_of_strangers_take_little_memory() -> None:
    """A peer can attach to a new address each time, or to long ones."""
    (kept,) = attached("kept")
    assert attached("kept") == [kept]
    attached(*map(str, range(SHARED_MAX)))
    assert attached("kept")[0] is not kept
    first, second = attached("x" * SHARED_BYTES_MAX, "x" * SHARED_BYTES_MAX)
    assert first is not second


def test_transaction_bodies_survive() -> None:
    for body in (Declare(), Discharge(txn_id=b"t", fail=True)):
        assert build(decode_all(encode(body))) == body


def test_symbols_come_alone_or_in_an_array() -> None:
    assert symbols(None) == []
    assert symbols(Symbol("one")) == ["one"]
    assert symbols(Array.of_symbols(["one", "two"])) == ["one", "two"]
    assert encode(Coordinator(["a", "b"])) == encode(Coordinator(Array.of_symbols(["a", "b"])))


def test_our_own_wrong_values_are_an_encode_error() -> None:
    with pytest.raises(EncodeError):
        encode(Open(container_id="c", max_frame_size=2**32))
    with pytest.raises(EncodeError):
        encode(Coordinator(5))


@pytest.mark.parametrize("large", [LONG_BYTES - 1, LONG_BYTES, 3 * LONG_BYTES])
def test_pieces_of_a_map_are_its_encoding(large: int) -> None:
    value = {"before": 1, Symbol("frame"): bytes(large), "between": [b"x"], "again": b"y" * large, "behind": None}
    pieces = encode_pieces(value)
    assert decode(b"".join(pieces))[0] == value
    copied = [piece for piece in pieces if not any(piece is item for item in value.values())]
    assert len(pieces) - len(copied) == (2 if large >= LONG_BYTES else 0)


@pytest.mark.parametrize("value", [None, "text", {}, {"a": 1}, [b"x" * LONG_BYTES]])
def test_pieces_of_what_is_no_map_with_long_binaries_are_one(value: object) -> None:
    assert encode_pieces(value) == [encode(value)]


@pytest.mark.parametrize("name", ["$cbs", "@", ""])
def test_a_terminus_that_came_without_its_last_fields_is_echoed_with_all_of_them(name: str) -> None:
    """One client reads fields by their number without a look at the count."""
    for code, cls in ((0x28, Source), (0x29, Target)):
        address = encode(name)
        field = b"\x00\x53" + bytes((code, 0xC0, len(address) + 2, 2)) + address + b"\x43"
        ends = field + b"\x40" if cls is Source else b"\x40" + field
        fields = encode("l") + b"\x43\x41\x40\x40" + ends
        body = b"\x00\x53\x12\xc0" + bytes((len(fields) + 1, 7)) + fields
        attach = decode_performative(body, 0, len(body))[0]
        assert (attach.source or attach.target) == cls(name, 0)
        source, target = (Source(name, 0), None) if cls is Source else (None, Target(name, 0))
        whole = Attach(name="l", handle=0, role=True, source=source, target=target)
        assert encode(attach) == encode(whole)


def test_performatives_of_equal_bytes_are_decoded_once() -> None:
    for one in (
        Begin(next_outgoing_id=7, incoming_window=8, outgoing_window=9),
        Detach(handle=3, closed=True),
        End(),
        Close(AmqpError("amqp:not-found", "x")),
        SaslInit(mechanism="ANONYMOUS", hostname="h"),
    ):
        encoded = encode(one)
        first, second = (
            decode_performative(encoded + b"tail", 0, len(encoded), allowed=AMQP_BODIES + SASL_BODIES)[0]
            for _ in range(2)
        )
        assert first == one
        assert first is second
        with pytest.raises(AttributeError):
            first.error = None


def test_a_performative_that_is_known_is_refused_where_it_is_not_allowed() -> None:
    encoded = encode(SaslInit(mechanism="ANONYMOUS", hostname="elsewhere"))
    assert decode_performative(encoded, 0, len(encoded), allowed=SASL_BODIES)[0].hostname == "elsewhere"
    with pytest.raises(DecodeError):
        decode_performative(encoded, 0, len(encoded))


def test_a_password_is_not_kept() -> None:
    encoded = encode(SaslInit(mechanism="PLAIN", initial_response=b"\0name\0a password"))
    for _ in range(2):
        decode_performative(encoded, 0, len(encoded), allowed=SASL_BODIES)
    assert not any(b"a password" in known for known in repeated)


def test_a_peer_with_many_different_performatives_is_decoded_and_fills_no_memory() -> None:
    for number in range(1_000):
        begin = Begin(next_outgoing_id=number, incoming_window=1, outgoing_window=1)
        encoded = encode(begin)
        assert decode_performative(encoded, 0, len(encoded))[0] == begin
    assert len(repeated) <= REPEATED_MAX


@pytest.mark.parametrize("field_no", [2, 6, 9, 10])
def test_a_symbol_outside_of_ascii_is_a_decode_error(field_no: int) -> None:
    """A string is taken for a symbol, and is written back as one."""
    fields: list[object] = ["$cbs", *[None] * 10]
    fields[field_no] = "é" * 70
    encoded = encode(Described(ULong(0x12), ["l", 0, True, None, None, Described(ULong(0x28), fields)]))
    with pytest.raises(DecodeError, match="only ASCII"):
        decode_performative(encoded, 0, len(encoded))
    fields[field_no] = "e" * 70
    encoded = encode(Described(ULong(0x12), ["l", 0, True, None, None, Described(ULong(0x28), fields)]))
    attach, _ = decode_performative(encoded, 0, len(encoded))
    assert decode_performative(encode(attach), 0, len(encode(attach)))[0] == attach
