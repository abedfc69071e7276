"""Packs entries into one piece, as `partibus.partition.ports.RangeFrame` lays them out."""

import sys
from array import array
from collections.abc import Iterable, Sequence

from partibus.partition.ports import EntryRow, RangeFrame

NOT_DUE = -1


def pack(rows: Sequence[EntryRow], next_pos: int) -> RangeFrame:
    """A frame of rows that were read one by one."""
    columns = (
        _numbers("q", (row.pos for row in rows)),
        _numbers("q", (row.sequence for row in rows)),
        _numbers("q", (row.enqueued_ms for row in rows)),
        _numbers("q", (NOT_DUE if row.due_ms is None else row.due_ms for row in rows)),
        _numbers("i", (row.delivery_count for row in rows)),
        _numbers("i", (len(row.data) for row in rows)),
        bytes(row.state for row in rows),
    )
    return RangeFrame(len(rows), next_pos, b"".join((*columns, *(row.data for row in rows))))


def _numbers(typecode: str, numbers: Iterable[int]) -> bytes:
    packed = array(typecode, numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
