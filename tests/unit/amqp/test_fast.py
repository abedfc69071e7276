"""The per-message readers and writers agree with the general codec."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from partibus.amqp import ACCEPTED, RELEASED, AmqpError, DecodeError, Modified, Rejected, TransactionalState
from partibus.amqp.codec.composite import from_list
from partibus.amqp.codec.decoder import decode
from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.fast import (
    DispositionWriter,
    TransferWriter,
    flow_frame,
    later_transfer_head,
    read_disposition,
    read_flow,
    read_transfer,
    transfer_head,
)
from partibus.amqp.codec.performatives import Disposition, Flow, Transfer
from partibus.amqp.codec.types import Described, UByte, UInt, ULong
from partibus.amqp.frames import frame
from tests.unit.amqp.peers import read_frames

BIG = UInt(0x01020304)


def fields_of(items: list[object]) -> bytes:
    """The list of a performative, without descriptor, as another implementation would write it."""
    return encode(items)


def test_transfer_is_read_in_every_width() -> None:
    handles, delivery_ids = [UInt(0), UInt(7), BIG], [UInt(0), UInt(200), BIG, None]
    formats, tags = [UInt(0), UInt(1), UInt(0x80013700), None], [b"", b"0123456789abcdef", None]
    for handle, delivery_id, message_format, tag in product(handles, delivery_ids, formats, tags):
        encoded = fields_of([handle, delivery_id, tag, message_format, False, True])
        frame = b"before" + encoded + b"payload"
        assert read_transfer(frame, 6, len(frame)) == (
            handle, delivery_id, tag, message_format, False, True, None, False, 6 + len(encoded),
        )  # fmt: skip


FLAGS = (None, True, False)


@pytest.mark.parametrize("length", range(1, 12))
@pytest.mark.parametrize("identity", [(UInt(2), b"t", UInt(0)), (None, None, None)], ids=["first", "later"])
def test_transfer_tail_is_read_like_the_general_decoder_does(identity: tuple[object, ...], length: int) -> None:
    for settled, more, aborted, batchable in product(FLAGS, FLAGS, FLAGS, FLAGS):
        items: list[object] = [UInt(1), *identity, settled, more, None, None, None, aborted, batchable]
        encoded = fields_of(items[:length]) + b"rest"
        values = (items[:length] + [None] * 11)[:11]
        fields = read_transfer(encoded, 0, len(encoded))
        assert fields[:4] == tuple(values[:4])
        assert fields[4:8] == (bool(values[4]), bool(values[5]), None, bool(values[9]))
        assert encoded[fields[8] :] == b"rest"


@pytest.mark.parametrize(
    "items",
    [
        [UInt(1), UInt(2), b"t", UInt(0), None, None, UByte(1), Described(ULong(0x34), [b"txn"])],
        [ULong(1), 2, b"t" * 300, UInt(0)],
        [UInt(1), UInt(2), b"t", UInt(0), False, False, None, None, True],
    ],
)
def test_unusual_transfer_goes_through_the_general_decoder(items: list[object]) -> None:
    encoded = fields_of(items)
    fields = read_transfer(encoded, 0, len(encoded))
    assert fields[0] == items[0]
    assert fields[8] == len(encoded)
    state = TransactionalState(txn_id=b"txn") if len(items) == 8 else None
    assert fields[6] == state


def test_booleans_in_two_bytes_are_read() -> None:
    body = bytes.fromhex("c00c06" + "5201" + "5202" + "a000" + "43" + "5601" + "5600")
    assert read_transfer(body, 0, len(body)) == (1, 2, b"", 0, True, False, None, False, len(body))


@pytest.mark.parametrize(
    "spelling",
    [
        "",
        "45",
        "c0",
        "c00301",
        "c0050443434343",
        "c00e0b5201",
        "c006" + "05" + "5201" + "43" + "a000" + "43",
        "c007" + "03" + "5201" + "43" + "a000" + "43",
        "c008" + "04" + "5201" + "43" + "a005" + "43",
        "c008" + "05" + "5201" + "43" + "a000" + "43" + "43",
        "c0ff" + "04" + "5201" + "43" + "a000" + "43",
        "c005" + "04" + "5201" + "4040",
        "c006" + "05" + "5201" + "404040",
        "c0ff" + "04" + "5201" + "404040",
    ],
)
def test_malformed_transfer_is_a_decode_error(spelling: str) -> None:
    body = bytes.fromhex(spelling)
    with pytest.raises(DecodeError):
        read_transfer(body, 0, len(body))
    with pytest.raises(DecodeError):
        read_transfer(body + b"\x40" * 300, 0, len(body))


STATES: list[Any] = [None, ACCEPTED, RELEASED, Modified(True), Rejected(AmqpError("a:b")), Rejected()]


def test_disposition_is_read_in_every_width() -> None:
    """Trap 27: a null last equals first."""
    firsts, lasts = [UInt(0), UInt(200), BIG], [None, UInt(0), UInt(201), UInt(0x01020305)]
    for role, first, last, settled, state, batchable, length in product(
        [True, False], firsts, lasts, FLAGS, STATES, FLAGS, range(2, 7)
    ):
        items: list[object] = [role, first, last, settled, state, batchable]
        encoded = fields_of(items[:length])
        values = (items[:length] + [None] * 6)[:6]
        wanted_last = first if values[2] is None else values[2]
        assert read_disposition(encoded, 0, len(encoded)) == (role, first, wanted_last, bool(values[3]), values[4])


@pytest.mark.parametrize(
    "spelling", ["", "45", "c0", "c0020141", "c0040341", "c005034143", "c00603414343ff", "c0ff0341434300"]
)
def test_malformed_disposition_is_a_decode_error(spelling: str) -> None:
    body = bytes.fromhex(spelling)
    with pytest.raises(DecodeError):
        read_disposition(body, 0, len(body))
    with pytest.raises(DecodeError):
        read_disposition(body + b"\x40" * 300, 0, len(body))


def test_flow_is_read_in_every_width() -> None:
    numbers: list[UInt | None] = [None, UInt(0), UInt(200), BIG]
    maps: list[dict[object, object] | None] = [None, {}]
    for known, window, handle, credit, drain, echo, properties in product(
        numbers, numbers[1:], numbers, numbers[1:], FLAGS, FLAGS, maps
    ):
        items: list[object] = [known, window, UInt(7), BIG, handle, credit, credit, None, drain, echo, properties]
        for length in (4, 7, 9, 10, 11):
            encoded = fields_of(items[:length])
            value, _ = decode(encoded, 0, len(encoded))
            assert read_flow(encoded + b"\x41" * 20, 0, len(encoded)) == from_list(Flow, value)


@pytest.mark.parametrize(
    "spelling",
    ["", "45", "c0", "c00504404343", "c0050443434340", "c00604434343434343", "c0050443434341", "c00604434343437001"],
)
def test_malformed_flow_is_a_decode_error(spelling: str) -> None:
    body = bytes.fromhex(spelling)
    with pytest.raises(DecodeError):
        read_flow(body, 0, len(body))
    with pytest.raises(DecodeError):
        read_flow(body + b"\x40" * 300, 0, len(body))


@pytest.mark.parametrize("number", [0, 1, 255, 256, 2**32 - 1])
@pytest.mark.parametrize("drain", [True, False])
def test_written_flow_is_that_of_the_general_encoder(number: int, drain: bool) -> None:
    numbers = [number, 5, number, 256, 7, number, 2**32 - 1]
    flow = Flow(
        next_incoming_id=number,
        incoming_window=5,
        next_outgoing_id=number,
        outgoing_window=256,
        handle=7,
        delivery_count=number,
        link_credit=2**32 - 1,
        drain=drain,
    )
    assert flow_frame(300, numbers, drain) == frame(300, flow)


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("handle", [0, 255, 2**32 - 1])
@pytest.mark.parametrize("tag", [b"", b"0123456789abcdef", bytes(32)])
def test_written_transfer_reads_back(settled: bool, handle: int, tag: bytes) -> None:
    writer = TransferWriter(3, handle, len(tag), settled)
    total = writer.overhead + 4
    head = writer.pack(total, writer.prefix, 77, writer.tag_header, tag, writer.suffix)
    (frame,) = read_frames(head + b"body")
    assert frame.channel == 3
    assert frame.payload == b"body"
    assert frame.body == Transfer(handle=handle, delivery_id=77, delivery_tag=tag, message_format=0, settled=settled)


@pytest.mark.parametrize("state", [None, ACCEPTED, TransactionalState(txn_id=b"x" * 300)])
@pytest.mark.parametrize("identity", [None, (5, b"tag", 0x80013700)])
def test_written_transfer_head_of_any_kind_reads_back(state: Any, identity: tuple[int, bytes, int] | None) -> None:
    head = transfer_head(9, identity, True, state)
    assert len(head.last) == len(head.more)
    for encoded, more in ((head.last, False), (head.more, True)):
        fields = read_transfer(encoded, 3, len(encoded))
        delivery = identity or (None, None, None)
        assert fields == (9, *delivery, True, more, state, False, len(encoded))


@pytest.mark.parametrize("settled", [True, False])
def test_the_head_of_later_frames_is_that_of_any_transfer(settled: bool) -> None:
    head, any_head = later_transfer_head(300, settled), transfer_head(300, None, settled, None)
    assert (head.more, head.last) == (any_head.more, any_head.last)


@pytest.mark.parametrize("state", [*STATES, Rejected(AmqpError("a:b", "x" * 300))], ids=repr)
@pytest.mark.parametrize("role", [True, False])
def test_written_disposition_reads_back(state: Any, role: bool) -> None:
    (frame,) = read_frames(DispositionWriter(7, role, True, state).frame(3, 2**32 - 1))
    assert frame.channel == 7
    assert frame.body == Disposition(role=role, first=3, last=2**32 - 1, settled=True, state=state)
