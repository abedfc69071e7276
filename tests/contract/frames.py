"""Takes a `partition.protocol.ports.RangeFrame` apart, by its description alone."""

import struct
from typing import NamedTuple

from partibus.partition.protocol.ports import EntryRow, RangeFrame


class Packed(NamedTuple):
    """One entry as a frame reports it."""

    pos: int
    sequence: int
    enqueued_ms: int
    due_ms: int
    delivery_count: int
    size: int
    state: int
    data: bytes


def unpack(frame: RangeFrame) -> list[Packed]:
    """All of it, and nothing is left over."""
    columns: list[tuple[int, ...]] = []
    at = 0
    for code in "qqqqiiB":
        form = f"<{frame.count}{code}"
        columns.append(struct.unpack_from(form, frame.data, at))
        at += struct.calcsize(form)
    entries = []
    for numbers in zip(*columns, strict=True):
        size = numbers[5]
        entries.append(Packed._make((*numbers, frame.data[at : at + size])))
        assert len(entries[-1].data) == size
        at += size
    assert at == len(frame.data)
    assert len(entries) == frame.count
    return entries


def packed(row: EntryRow) -> Packed:
    """The entry that a frame must report for a row."""
    due_ms = -1 if row.due_ms is None else row.due_ms
    return Packed(
        row.pos, row.sequence, row.enqueued_ms, due_ms, row.delivery_count, len(row.data), row.state, row.data
    )
