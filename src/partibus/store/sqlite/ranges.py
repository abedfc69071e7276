"""Serves the loads of whole-partition readers: frames of many messages, finished entries, dispositions.

Nearly all waiting entries are consecutive and alike, and are read as runs (`Run`). A frame of other entries comes from
one statement, as one row: the narrow columns of all entries in few characters (`listed`), and their messages in one
blob. For 200-byte messages that takes 1.2 us each, of which Python takes 0.1 with the interpreter lock held. With the
narrow columns in hex, as for entries that differ from the first one of their frame, it takes 1.5 us, plus 0.3 for the
lookup.

Alternatives, measured per entry:

- walking through the two tables without building a result: 0.2 us
- fetching rows one by one and packing them: 2.2, with a hand-over of the interpreter lock at each
- JSON arrays, one per column: 1.3, half of it in Python
- a pass for the lengths before, for an exact bound on the bytes: 0.3 more, and four hand-overs a frame instead of two

So the lengths are guessed, and measured where the guess is bad.

A *run* is a sequence of entries that differ only in their times and sizes. Their keys give their positions, so SQLite
writes one number for each besides its message, and reads no other column. With the count before, that takes 0.9 us
where the characters of ``select_frame.sql`` take 1.6, measured side by side. A number written as text takes a quarter
of the time of characters made from it. A query without a nested one passes no message from the inner query to the
outer.

For other entries, ``select_frame.sql`` lists narrow columns, which are converted for
`partibus.store.frames.PackedRows`. No code for that runs once per entry, except for entries that differ from the first
one, and for times at which all entries are due. The characters become numbers of four bytes, and columns are assembled
from every sixteenth byte of these.
"""

import json
import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from sqlite3 import Connection
from typing import NamedTuple

import msgspec

from partibus.partition.protocol.keys import POSITION_BITS, POSITION_MAX, entry_key
from partibus.partition.protocol.ports import FINISHED, DispositionRow, EntryRow, RangeFrame
from partibus.store.frames import NOT_DUE, ROW_BYTES, PackedRows
from partibus.store.sqlite.reader import SEARCHED_MAX, key_range, keys_behind, one_view
from partibus.store.sqlite.sql import statement

SIZE_MAX = (1 << 24) - 1
"""The largest size of a message, beside 32 bits of its time."""
_WORTH = 64
"""The least entries of a run; with fewer, two statements may cost more than one."""

_ALL = (1 << 64) - 1
_numbers = msgspec.json.Decoder(list[int]).decode
_packed = msgspec.msgpack.Encoder().encode
_STRIDE = 9
"""The bytes of a number with more than 32 bits in MessagePack: 0xcf, and its bytes, the highest one first. After its
header, a list consists of nothing else. It is made of Python's numbers in a tenth of the time that an array takes.
"""


class Alike(NamedTuple):
    """The result of ``select_alike.sql``."""

    first_key: int
    state: int
    delivery_count: int
    high: int
    """The bits of the time above 32."""
    span: int | None
    """The time from enqueueing an entry to its due time; None: never due."""
    positions: int
    """The number of positions examined, from the first entry on."""
    entries: int
    """The number of entries there that are alike."""

    @property
    def is_run(self) -> bool:
        """Whether no entry is missing between them and none differs."""
        return self.entries == self.positions >= _WORTH

    @property
    def last_key(self) -> int:
        """The last key of a run."""
        return self.first_key + self.positions - 1


class Run:
    """The narrow columns of a run; the counterpart of `partibus.store.frames.PackedRows`."""

    def __init__(self, alike: Alike, listed: str) -> None:
        """Read the columns from ``listed``, a result of ``select_run.sql``."""
        self._alike = alike
        numbers = _numbers(f"[{listed}]")
        self._count = len(numbers)
        packed = _packed(numbers)[-_STRIDE * self._count :]
        sizes = bytearray(4 * self._count)
        for place in range(3):
            sizes[place::4] = packed[8 - place :: _STRIDE]
        times = bytearray((alike.high << 32 & _ALL).to_bytes(8, "little") * self._count)
        for place in range(4):
            times[place::8] = packed[5 - place :: _STRIDE]
        self._sizes = sizes
        self._times = times

    def __len__(self) -> int:
        return self._count

    @property
    def last_pos(self) -> int:
        """The position of the last entry; there must be one."""
        return (self._alike.first_key & POSITION_MAX) + self._count - 1

    def cut(self, max_bytes: int) -> int:
        """Drop entries that exceed ``max_bytes``, but keep the first; return the bytes of the remaining messages."""
        sums: list[int] = list(accumulate(struct.unpack(f"<{self._count}i", self._sizes)))
        self._count = max(1, bisect_right(sums, max_bytes))
        del self._sizes[4 * self._count :], self._times[8 * self._count :]
        return sums[self._count - 1]

    def frame(self, messages: bytes | memoryview, next_pos: int) -> RangeFrame:
        """Return a frame of the entries and their stored messages."""
        alike, count = self._alike, self._count
        positions = _bytes_of(range(self.last_pos - count + 1, self.last_pos + 1))
        if alike.span is None:
            due = NOT_DUE.to_bytes(8, "little", signed=True) * count
        else:
            span = alike.span
            due = _bytes_of([time + span for time in struct.unpack(f"<{count}q", self._times)])
        columns = (
            positions,
            positions,
            self._times,
            due,
            alike.delivery_count.to_bytes(4, "little") * count,
            self._sizes,
            bytes((alike.state,)) * count,
        )
        return RangeFrame(count, next_pos, b"".join((*columns, messages)))


def _bytes_of(numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)


RUN = 1 << 20
"""The positions of one frame are within one run of this length, so they share their higher bits."""
_OTHER = "\U0010ffff"
"""A marker in place of a size: the entry is among the others."""
_CHARACTERS = 4
_NUMBERS = ROW_BYTES // 8
_PASSED = "surrogatepass"
"""The codec error handler: the low bits of a position may be a surrogate code point."""


class Usual(NamedTuple):
    """The result of ``select_usual.sql``."""

    state: int
    delivery_count: int
    high: int
    """The bits of the time above 32."""
    span: int | None
    """The time from enqueueing an entry to its due time; None: never due."""


def rows_listed(first_pos: int, usual: Usual, characters: bytes, others: str | None) -> bytes:
    """Return packed rows from listed characters.

    ``first_pos``: any position of the same run; ``others``: the entries that are not usual, in their order.
    """
    text = characters.decode("utf-8", _PASSED)
    count = len(text) // _CHARACTERS
    if others is not None and len(others) == 2 * ROW_BYTES * count:
        return bytes.fromhex(others)
    units = text.encode("utf-32-le", _PASSED)
    run = first_pos & ~(RUN - 1)
    # The third byte has the last four bits of the low ones, and four of the run.
    low = units[0::16], units[1::16], units[2::16].translate(bytes(byte | run >> 16 & 0xF0 for byte in range(256)))
    times = _column(count, usual.high << 32 & _ALL, units[4::16], units[5::16], units[8::16], units[9::16])
    rows = array("q", bytes(ROW_BYTES * count))
    rows[0::_NUMBERS] = _column(count, run, *low)
    rows[1::_NUMBERS] = _column(count, usual.state << 56 | run, *low)
    rows[2::_NUMBERS] = times
    rows[3::_NUMBERS] = _due(times, usual.span)
    rows[4::_NUMBERS] = _column(count, usual.delivery_count << 32, units[12::16], units[13::16], units[14::16])
    if others is not None:
        found = array("q", bytes.fromhex(others))
        places = (place for place, size in enumerate(text[3::_CHARACTERS]) if size == _OTHER)
        for number, place in enumerate(places):
            start = _NUMBERS * number
            rows[_NUMBERS * place : _NUMBERS * (place + 1)] = found[start : start + _NUMBERS]
    return rows.tobytes()


def _column(count: int, common: int, *lowest: bytes) -> "array[int]":
    """Return big-endian numbers that share all but their lowest bytes; the lowest byte of all comes first."""
    column = bytearray(common.to_bytes(8, "big") * count)
    for place, values in enumerate(lowest):
        column[7 - place :: 8] = values
    return array("q", bytes(column))


def _due(times: "array[int]", span: int | None) -> "array[int]":
    if span is None:
        return _swapped(array("q", [NOT_DUE])) * len(times)
    return _swapped(array("q", [time + span for time in _swapped(times[:])]))


def _swapped(numbers: "array[int]") -> "array[int]":
    """Convert between big-endian and this machine's order; changes its argument."""
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


_PROBED = 64
"""The entries whose sizes determine how many to request next."""

_STATE_END = 1 << 8

_BYTES_MAX = 1 << 29
"""The most bytes of messages in a frame: SQLite makes no value of more than a gigabyte."""


def read_range(
    connection: Connection,
    subqueue: int,
    from_pos: int,
    to_pos: int,
    max_entries: int,
    max_bytes: int,
    finished: bool,
) -> RangeFrame:
    """Load readable entries, packed (`queries.Range`). One transaction sees at most `SEARCHED_MAX` positions."""
    keys = key_range(subqueue, from_pos, to_pos - 1)
    if keys is not None and max_entries <= 0:
        return PackedRows().frame(b"", from_pos)
    states = _STATE_END if finished else FINISHED
    while keys is not None:
        first, end = keys
        last = min(first + SEARCHED_MAX, end, first | RUN - 1)
        bounds = (first, last, states, max_entries, min(max_bytes, _BYTES_MAX))
        found = _run(connection, *bounds) or _guessed(connection, *bounds) or _measured(connection, *bounds)
        following = keys_behind(connection, last, end) if found.is_all else keys
        if found.rows:
            next_pos = to_pos if following is None else found.rows.last_pos + 1
            return found.rows.frame(found.messages, next_pos)
        keys = following
    return PackedRows().frame(b"", to_pos)


class _Found(NamedTuple):
    """The entries found in a stretch of positions."""

    rows: PackedRows | Run
    messages: bytes | memoryview
    is_all: bool
    """Whether the stretch has no further entries."""


def _run(connection: Connection, first: int, last: int, states: int, max_entries: int, max_bytes: int) -> _Found | None:
    """Read consecutive entries that are alike in two statements; return None if they are not.

    The entries may change between count and read. If one leaves, the read misses it and this returns None. Another
    state or delivery count is answered as it was when it was counted: time and number do not change. A message changes
    when it is abandoned with other properties; the later form is returned, as if it had been read a moment later.
    """
    found = connection.execute(statement("select_alike"), (first, last, states, max_bytes, max_entries)).fetchone()
    if found is None:
        return _Found(PackedRows(), b"", is_all=True)
    alike = Alike._make(found)
    if not alike.is_run:
        return None
    # A blob with some much larger messages would have no bound.
    largest = min(SIZE_MAX, 8 * max_bytes // alike.positions)
    bounds = (alike.first_key, alike.last_key, largest)
    listed, messages = connection.execute(statement("select_run"), bounds).fetchone()
    if listed is None:
        return None
    rows = Run(alike, listed)
    is_all = alike.last_key == last
    is_small = not is_all and alike.positions < max_entries and 4 * len(messages) < max_bytes
    if is_small or len(rows) != alike.positions:
        return None
    if len(messages) > max_bytes:
        messages = memoryview(messages)[: rows.cut(max_bytes)]
        is_all = is_all and len(rows) == alike.positions
    return _Found(rows, messages, is_all)


def _guessed(
    connection: Connection, first: int, last: int, states: int, max_entries: int, max_bytes: int
) -> _Found | None:
    """Read messages about as large as the sub-queue's others in one statement; return None if they are not."""
    usual = connection.execute(statement("select_usual"), (first, last, states)).fetchone()
    if usual is None:
        return _Found(PackedRows(), b"", is_all=True)
    wanted, listed, others, messages = connection.execute(
        statement("select_frame"), (first, last, states, max_entries, max_bytes, *usual)
    ).fetchone()
    if listed is None:
        return _Found(PackedRows(), b"", is_all=True)
    rows = PackedRows(rows_listed(first & POSITION_MAX, Usual._make(usual), listed, others))
    size_bytes = rows.size_bytes
    is_all = len(rows) < wanted
    is_small = not is_all and wanted < max_entries and 4 * size_bytes < max_bytes
    if is_small or size_bytes != len(messages or b""):
        return None
    if size_bytes > max_bytes:
        cut = rows.first(max_bytes)
        return _Found(cut, memoryview(messages)[: cut.size_bytes], is_all and len(cut) == len(rows))
    return _Found(rows, messages, is_all)


def _measured(connection: Connection, first: int, last: int, states: int, max_entries: int, max_bytes: int) -> _Found:
    """Read the narrow columns first, since they give the sizes of the messages."""
    with one_view(connection):
        rows, is_all = _rows(connection, first, last, states, max_entries, max_bytes)
        if not rows:
            return _Found(rows, b"", is_all)
        bounds = (first, entry_key(first >> POSITION_BITS, rows.last_pos), states)
        (messages,) = connection.execute(statement("select_range_bodies"), bounds).fetchone()
    return _Found(rows, messages, is_all)


def _rows(
    connection: Connection, first: int, last: int, states: int, max_entries: int, max_bytes: int
) -> tuple[PackedRows, bool]:
    """Return the narrow columns of the first entries within the bounds, and whether these are all."""
    rows = PackedRows()
    wanted = min(_PROBED, max_entries)
    while True:
        (listed,) = connection.execute(statement("select_range"), (first, last, states, wanted)).fetchone()
        before = len(rows)
        if listed is not None:
            rows.append(bytes.fromhex(listed))
        is_all = len(rows) - before < wanted
        size_bytes = rows.size_bytes
        if size_bytes > max_bytes:
            cut = rows.first(max_bytes)
            return cut, is_all and len(cut) == len(rows)
        wanted = min(max_entries - len(rows), (max_bytes - size_bytes) * len(rows) // max(1, size_bytes))
        if is_all or wanted <= 0 or 2 * size_bytes > max_bytes:
            return rows, is_all
        first = (first & ~POSITION_MAX) + rows.last_pos + 1


def scan(
    connection: Connection, subqueue: int, from_pos: int, to_pos: int, max_entries: int
) -> list[tuple[EntryRow, int]]:
    """Load entries in any state, finished ones too, without their data but with its length."""
    keys = key_range(subqueue, from_pos, to_pos - 1)
    if keys is None:
        return []
    (listed,) = connection.execute(statement("scan_entries"), (*keys, max(0, max_entries))).fetchone()
    return [(EntryRow._make((key & POSITION_MAX, *columns, b"")), size) for key, *columns, size in json.loads(listed)]


def read_dispositions(connection: Connection, subqueue: int, from_number: int, max_rows: int) -> list[DispositionRow]:
    """Load lines of the disposition log with ``number >= from_number``, in order."""
    keys = key_range(subqueue, from_number, POSITION_MAX)
    if keys is None:
        return []
    (listed,) = connection.execute(statement("select_fates"), (*keys, max(0, max_rows))).fetchone()
    return [DispositionRow._make(columns) for columns in json.loads(listed)]
