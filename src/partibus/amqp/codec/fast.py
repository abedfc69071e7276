"""The performatives that run once per message, read and written without objects.

`read_transfer` and `read_disposition` decode the common constructors inline and look the rest of the list up in tables
of its usual encodings. `read_flow` does the same for a flow, which a receiver may send for each message. Other
encodings go through the general decoder, with the same result. All three are called with the position after the
descriptor. The buffer may hold more bytes than the frame, so the functions check afterwards that they read no further
than the end of the list.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from struct import Struct
from struct import error as StructError  # noqa: N812 (the struct module spells its exception `error`)
from typing import ClassVar, Final

from partibus.amqp.codec.composite import from_list
from partibus.amqp.codec.decoder import ODD_FRAME_BYTES, Decoding, decode_frame_body
from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.performatives import ACCEPTED, RELEASED, DeliveryState, Disposition, Flow, Transfer
from partibus.amqp.codec.scalars import uint
from partibus.amqp.errors import DecodeError

TransferFields = tuple[int, int | None, bytes | None, int | None, bool, bool, DeliveryState | None, bool, int]
"""handle, delivery id, delivery tag, message format, settled, more, state, aborted, start of the payload"""

DispositionFields = tuple[bool, int, int, bool, DeliveryState | None]
"""role, first, last, settled, state"""

_U32 = Struct(">I").unpack_from

_NULL = b"\x40"
_FLAGS = {b"": False, _NULL: False, b"\x41": True, b"\x42": False}


def _transfer_tails() -> dict[bytes, tuple[bool, bool]]:
    """Build the table of the part after message-format: settled and more, then five fields usually null or false."""
    rests = {b"", _NULL, _NULL * 2}
    for length in (1, 2, 3):
        rests |= {_NULL * 2 + b"".join(flags) for flags in product((_NULL, b"\x42"), repeat=length)}
    rests |= {_NULL * 2 + b"".join(flags) + b"\x41" for flags in product((_NULL, b"\x42"), repeat=2)}
    tails = {b"": (False, False)}
    for settled in (_NULL, b"\x41", b"\x42"):
        tails[settled] = (_FLAGS[settled], False)
        for more in (_NULL, b"\x41", b"\x42"):
            for rest in rests:
                tails[settled + more + rest] = (_FLAGS[settled], _FLAGS[more])
    return tails


def _disposition_tails() -> dict[bytes, tuple[bool, DeliveryState | None, int]]:
    """Build the table of the part after last (settled, state, batchable), with the list's field count."""
    states: dict[bytes, DeliveryState | None] = {_NULL: None}
    empties = (b"\x45", b"\xc0\x01\x00", b"\xd0\x00\x00\x00\x04\x00\x00\x00\x00")
    outcomes: tuple[tuple[bytes, DeliveryState], ...] = ((b"\x24", ACCEPTED), (b"\x26", RELEASED))
    for code, outcome in outcomes:
        for empty in empties:
            states[b"\x00\x53" + code + empty] = outcome
    tails: dict[bytes, tuple[bool, DeliveryState | None, int]] = {b"": (False, None, 3)}
    for settled in (_NULL, b"\x41", b"\x42"):
        tails[settled] = (_FLAGS[settled], None, 4)
        for spelled, state in states.items():
            for batchable in _FLAGS:
                count = 5 + len(batchable)
                tails[settled + spelled + batchable] = (_FLAGS[settled], state, count)
    return tails


def _flow_tails() -> dict[bytes, tuple[bool, bool, int]]:
    """Build the table of the part after available (drain, echo), with its field count; null properties may follow."""
    tails = {b"": (False, False, 0)}
    for drain in (_NULL, b"\x41", b"\x42"):
        tails[drain] = (_FLAGS[drain], False, 1)
        for echo in (_NULL, b"\x41", b"\x42"):
            for properties in (b"", _NULL):
                tails[drain + echo + properties] = (_FLAGS[drain], _FLAGS[echo], 2 + len(properties))
    return tails


_FLOW_NUMBERS: Final = 8
_FLOW_FLAGS: Final = 3
"""The fields of a flow after its numbers: drain, echo, and properties that are null."""
_FLOW_TAILS: Final = _flow_tails()
_TRANSFER_TAILS: Final = _transfer_tails()
_DISPOSITION_TAILS: Final = _disposition_tails()


_NO_TURNS: Final = Decoding()
"""The default of a caller that decodes all frames at once."""


def _decode(buf: bytes, pos: int, end: int, decoding: Decoding) -> tuple[object, int]:
    """Decode a list that no short cut reads."""
    items, after = decode_frame_body(buf, pos, end, decoding.nesting_max)
    decoding.left -= ODD_FRAME_BYTES + after - pos
    return items, after


def read_transfer(buf: bytes, pos: int, end: int, decoding: Decoding = _NO_TURNS) -> TransferFields:
    """Read the fields of the transfer whose list starts at `pos`; the frame ends at `end`."""
    start = pos
    try:
        if buf[pos] != 0xC0 or buf[pos + 2] < 4:
            return _read_any_transfer(buf, start, end, decoding)
        after = pos + 2 + buf[pos + 1]
        code = buf[pos + 3]
        if code == 0x52:
            handle = buf[pos + 4]
            pos += 5
        elif code == 0x43:
            handle = 0
            pos += 4
        elif code == 0x70:
            handle = _U32(buf, pos + 4)[0]
            pos += 8
        else:
            return _read_any_transfer(buf, start, end, decoding)
        code = buf[pos]
        if code == 0x70:
            delivery_id = _U32(buf, pos + 1)[0]
            pos += 5
        elif code == 0x52:
            delivery_id = buf[pos + 1]
            pos += 2
        elif code == 0x43:
            delivery_id = 0
            pos += 1
        elif buf.startswith(_NULL * 3, pos):
            return _read_later_transfer(buf, start, pos, handle, after, end, decoding)
        else:
            return _read_any_transfer(buf, start, end, decoding)
        if buf[pos] != 0xA0:
            return _read_any_transfer(buf, start, end, decoding)
        tag_end = pos + 2 + buf[pos + 1]
        tag = buf[pos + 2 : tag_end]
        code = buf[tag_end]
        if code == 0x43:
            message_format = 0
            pos = tag_end + 1
        elif code == 0x70:
            message_format = _U32(buf, tag_end + 1)[0]
            pos = tag_end + 5
        elif code == 0x52:
            message_format = buf[tag_end + 1]
            pos = tag_end + 2
        else:
            return _read_any_transfer(buf, start, end, decoding)
    except (IndexError, StructError):
        raise DecodeError(f"the transfer at byte {start} is cut short") from None
    tail = _TRANSFER_TAILS.get(buf[pos:after]) if pos <= after <= end else None
    if tail is None or buf[start + 2] != 4 + after - pos:
        return _read_any_transfer(buf, start, end, decoding)
    return handle, delivery_id, tag, message_format, tail[0], tail[1], None, False, after


def _read_later_transfer(
    buf: bytes, start: int, pos: int, handle: int, after: int, end: int, decoding: Decoding
) -> TransferFields:
    """Read a transfer without the delivery's identity, whose three nulls start at ``pos``.

    All frames but the first one of a large delivery are of this kind [2.6.14].
    """
    tail = _TRANSFER_TAILS.get(buf[pos + 3 : after]) if pos + 3 <= after <= end else None
    if tail is None or buf[start + 2] != 4 + after - pos - 3:
        return _read_any_transfer(buf, start, end, decoding)
    return handle, None, None, None, tail[0], tail[1], None, False, after


def _read_any_transfer(buf: bytes, pos: int, end: int, decoding: Decoding) -> TransferFields:
    items, after = _decode(buf, pos, end, decoding)
    transfer: Transfer = from_list(Transfer, items)
    return (
        transfer.handle,
        transfer.delivery_id,
        transfer.delivery_tag,
        transfer.message_format,
        transfer.settled is True,
        transfer.more,
        transfer.state,
        transfer.aborted,
        after,
    )


def read_disposition(buf: bytes, pos: int, end: int, decoding: Decoding = _NO_TURNS) -> DispositionFields:
    """Read the fields of the disposition whose list starts at `pos`. A null `last` is `first` [2.7.6]."""
    start = pos
    try:
        if buf[pos] != 0xC0 or buf[pos + 2] < 3:
            return _read_any_disposition(buf, start, end, decoding)
        after = pos + 2 + buf[pos + 1]
        code = buf[pos + 3]
        if code != 0x41 and code != 0x42:
            return _read_any_disposition(buf, start, end, decoding)
        role = code == 0x41
        pos += 4
        code = buf[pos]
        if code == 0x70:
            first = _U32(buf, pos + 1)[0]
            pos += 5
        elif code == 0x52:
            first = buf[pos + 1]
            pos += 2
        elif code == 0x43:
            first = 0
            pos += 1
        else:
            return _read_any_disposition(buf, start, end, decoding)
        code = buf[pos]
        if code == 0x70:
            last = _U32(buf, pos + 1)[0]
            pos += 5
        elif code == 0x40:
            last = first
            pos += 1
        elif code == 0x52:
            last = buf[pos + 1]
            pos += 2
        elif code == 0x43:
            last = 0
            pos += 1
        else:
            return _read_any_disposition(buf, start, end, decoding)
    except (IndexError, StructError):
        raise DecodeError(f"the disposition at byte {start} is cut short") from None
    tail = _DISPOSITION_TAILS.get(buf[pos:after]) if pos <= after == end else None
    if tail is None or buf[start + 2] != tail[2]:
        return _read_any_disposition(buf, start, end, decoding)
    return role, first, last, tail[0], tail[1]


def _read_any_disposition(buf: bytes, pos: int, end: int, decoding: Decoding) -> DispositionFields:
    items, _after = _decode(buf, pos, end, decoding)
    disposition: Disposition = from_list(Disposition, items)
    last = disposition.first if disposition.last is None else disposition.last
    return disposition.role, disposition.first, last, disposition.settled, disposition.state


def read_flow(buf: bytes, pos: int, end: int, decoding: Decoding = _NO_TURNS) -> Flow:
    """Read the flow whose list starts at `pos`; the frame ends at `end`."""
    start = pos
    try:
        count = buf[pos + 2]
        if buf[pos] != 0xC0 or count > _FLOW_NUMBERS + _FLOW_FLAGS or pos + 2 + buf[pos + 1] != end:
            return _read_any_flow(buf, start, end, decoding)
        pos += 3
        numbers: list[int | None] = []
        for _ in range(min(count, _FLOW_NUMBERS)):
            code = buf[pos]
            if code == 0x52:
                numbers.append(buf[pos + 1])
                pos += 2
            elif code == 0x70:
                numbers.append(_U32(buf, pos + 1)[0])
                pos += 5
            elif code == 0x43 or code == 0x40:
                numbers.append(0 if code == 0x43 else None)
                pos += 1
            else:
                return _read_any_flow(buf, start, end, decoding)
    except (IndexError, StructError):
        raise DecodeError(f"the flow at byte {start} is cut short") from None
    flags = _FLOW_TAILS.get(buf[pos:end]) if pos <= end else None
    numbers += (None,) * (_FLOW_NUMBERS - len(numbers))
    known, incoming_window, next_outgoing_id, outgoing_window, handle, delivery_count, credit, available = numbers
    if (
        flags is None
        or flags[2] != max(0, count - _FLOW_NUMBERS)
        or incoming_window is None
        or next_outgoing_id is None
        or outgoing_window is None
    ):
        return _read_any_flow(buf, start, end, decoding)
    return Flow(
        next_incoming_id=known,
        incoming_window=incoming_window,
        next_outgoing_id=next_outgoing_id,
        outgoing_window=outgoing_window,
        handle=handle,
        delivery_count=delivery_count,
        link_credit=credit,
        available=available,
        drain=flags[0],
        echo=flags[1],
    )


def _read_any_flow(buf: bytes, pos: int, end: int, decoding: Decoding) -> Flow:
    items, _after = _decode(buf, pos, end, decoding)
    flow: Flow = from_list(Flow, items)
    return flow


_SMALL: Final = tuple(uint(number) for number in range(256))
_U32_FIELD: Final = Struct(">BI").pack


def flow_frame(channel: int, numbers: Sequence[int], drain: bool) -> bytes:
    """Write the frame of a link's flow. ``numbers`` are its first seven fields, next-incoming-id to link-credit."""
    fields = b"".join([_SMALL[number] if number < 256 else _U32_FIELD(0x70, number) for number in numbers])
    fields += b"\x40\x41\x42\x40" if drain else b"\x40\x42\x42\x40"
    size = len(fields)
    return _FLOW_HEAD(size + 14, 2, 0, channel, b"\x00\x53\x13\xc0", size + 1, _FLOW_NUMBERS + _FLOW_FLAGS) + fields


_FLOW_HEAD: Final = Struct(">IBBH4sBB").pack


class TransferWriter:
    """Frame headers for the single-frame transfers of one link: message-format 0, no state.

    All parts but size, delivery id and tag are the same for all of them, so one `Struct` per length of tag writes the
    frame up to the payload. All eleven fields are there: one client looks for the payload behind the eleventh.
    """

    TAG_BYTES_MAX: ClassVar = 32

    __slots__ = ("overhead", "pack", "prefix", "suffix", "tag_header")

    def __init__(self, channel: int, handle: int, tag_bytes: int, settled: bool) -> None:
        handle_field = uint(handle)
        list_bytes = 1 + len(handle_field) + 5 + 2 + tag_bytes + 8
        self.prefix = (
            b"\x02\x00" + channel.to_bytes(2) + b"\x00\x53\x14\xc0" + bytes((list_bytes, 11)) + handle_field + b"\x70"
        )
        self.tag_header = bytes((0xA0, tag_bytes))
        self.suffix = b"\x43" + (b"\x41" if settled else b"\x42") + _NULL * 6
        struct = Struct(f">I{len(self.prefix)}sI2s{tag_bytes}s8s")
        self.pack = struct.pack
        self.overhead = struct.size


transfer_writer = lru_cache(1024)(TransferWriter)
"""Return the writer of channel, handle, length of the tags and settlement: most connections have the same few."""


class DispositionWriter:
    """Complete disposition frames of one channel, role and state; only the range differs."""

    __slots__ = ("_frame", "_head", "_tail")

    def __init__(self, channel: int, role: bool, settled: bool, state: DeliveryState | None) -> None:
        tail = (b"\x41" if settled else b"\x42") + encode(state) + _NULL
        list_bytes = 1 + 1 + 5 + 5 + len(tail)
        role_field = b"\x41" if role else b"\x42"
        if list_bytes < 256:
            start = b"\xc0" + bytes((list_bytes, 6))
        else:
            start = b"\xd0" + (list_bytes + 3).to_bytes(4) + (6).to_bytes(4)
        body = b"\x02\x00" + channel.to_bytes(2) + b"\x00\x53\x15" + start + role_field
        self._head = (4 + len(body) + 10 + len(tail)).to_bytes(4) + body
        self._tail = tail
        self._frame = Struct(f">{len(self._head)}sBIBI{len(tail)}s").pack

    def frame(self, first: int, last: int) -> bytes:
        """Return the frame for a range of delivery ids."""
        return self._frame(self._head, 0x70, first, 0x70, last, self._tail)


@lru_cache(256)
def accepted_writer(channel: int, role: bool) -> DispositionWriter:
    """Return the writer of the dispositions that accept and settle; each session has both roles."""
    return DispositionWriter(channel, role, True, ACCEPTED)


class TransferHead:
    """The performative of one transfer frame, encoded with `more` true and false in equal length."""

    __slots__ = ("last", "more")

    def __init__(self, last: bytes, more: bytes) -> None:
        self.last = last
        self.more = more


def transfer_head(
    handle: int, identity: tuple[int, bytes, int] | None, settled: bool, state: DeliveryState | None
) -> TransferHead:
    """Build a transfer of any kind.

    `identity` is delivery id, tag and message format; None in a later frame.
    """
    if identity is None:
        start = uint(handle) + _NULL * 3
    else:
        delivery_id, tag, message_format = identity
        start = uint(handle) + uint(delivery_id) + encode(tag) + uint(message_format)
    start += b"\x41" if settled else b"\x42"
    end = _NULL + (_NULL if state is None else encode(state)) + _NULL * 3
    list_bytes = len(start) + 1 + len(end)
    if list_bytes < 255:
        opening = b"\x00\x53\x14\xc0" + bytes((list_bytes + 1, 11))
    else:
        opening = b"\x00\x53\x14\xd0" + (list_bytes + 4).to_bytes(4) + (11).to_bytes(4)
    return TransferHead(opening + start + b"\x42" + end, opening + start + b"\x41" + end)


@lru_cache(1024)
def later_transfer_head(handle: int, settled: bool) -> TransferHead:
    """Return the head of the later frames of a delivery without a state: the same for all deliveries of a link."""
    return transfer_head(handle, None, settled, None)
