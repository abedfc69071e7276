"""The promises of cursors, in the most obvious code (D14): beside `tests.kit.model`, for `lockstep`.

Everything that has left a sub-queue and that a cursor has not passed is in one dictionary, by position.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from partibus.partition.core.cursors import Cursors
from partibus.partition.protocol.ports import FINISHED, DispositionRow, EntryState

NOWHERE = 1 << 62


@dataclass(slots=True)
class CursorState:
    """One cursor."""

    position: int
    disposition_position: int = -1
    complete_from: int = 0
    bound_bytes: int = 0
    epoch: int = 0
    until_ms: int = 0
    readable_from: int = 0
    """The position of the lease at the grant."""
    read_to: int = 0
    """The end of what the holder of the lease was shown."""
    shown: set[int] = field(default_factory=set)
    """Positions of active messages that it was shown under the lease."""


@dataclass
class CursorModel:
    """The cursors of one sub-queue."""

    by_name: dict[str, CursorState] = field(default_factory=dict)
    kept: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """Position -> (sequence counter, stored form) of what has left and stays readable."""
    log: list[DispositionRow] = field(default_factory=list)
    """Every line that was ever written."""

    @property
    def keep_from(self) -> int:
        """Keep the messages that leave their place from here on."""
        return min((cursor.position for cursor in self.by_name.values() if cursor.bound_bytes), default=NOWHERE)

    @property
    def dispositions_from(self) -> int:
        """The log is kept from here on."""
        positions = [
            cursor.disposition_position for cursor in self.by_name.values() if cursor.disposition_position >= 0
        ]
        return min(positions, default=NOWHERE)

    @property
    def bound_bytes(self) -> int:
        """The largest holds."""
        return max((cursor.bound_bytes for cursor in self.by_name.values()), default=0)

    @property
    def kept_bytes(self) -> int:
        """Return the bytes of all that stays."""
        return sum(len(data) for _, data in self.kept.values())

    @property
    def alone(self) -> CursorState | None:
        """The exclusive cursor, beside which no receiver gets messages."""
        return next((cursor for cursor in self.by_name.values() if cursor.until_ms), None)

    @property
    def passed_to(self) -> int:
        """Return the position below which an entry that becomes active again has to go to the end."""
        if self.alone is not None:
            return NOWHERE
        return max((cursor.position for cursor in self.by_name.values() if cursor.epoch), default=0)

    def leave(self, pos: int, sequence: int, data: bytes) -> None:
        """A message has left its place."""
        if pos >= self.keep_from:
            self.kept[pos] = (sequence, data)

    def clear(self, positions: Iterable[int]) -> None:
        """The janitor took these away: as far as it had read, the lowest ones."""
        for pos in positions:
            assert pos in self.kept, f"what is kept at {pos} was not"
            if pos >= self.keep_from:
                assert self.kept_bytes > self.bound_bytes, f"{pos} was taken away and nothing is too much"
                for cursor in self.by_name.values():
                    if cursor.bound_bytes and cursor.position <= pos:
                        cursor.complete_from = max(cursor.complete_from, pos + 1)
            del self.kept[pos]

    def end_leases(self, now_ms: int) -> None:
        """Time has passed."""
        for cursor in self.by_name.values():
            if cursor.until_ms <= now_ms:
                cursor.until_ms = 0

    def check_memory(self, cursors: Cursors | None) -> None:
        """Compare the machine's cursors with those of the model."""
        if cursors is None:
            assert not self.by_name
            assert not self.kept
            return
        assert (cursors.retained, cursors.retained_bytes) == (len(self.kept), self.kept_bytes)
        mine = {
            name: (c.position, c.disposition_position, c.complete_from, c.bound_bytes, c.epoch, c.until_ms)
            for name, c in self.by_name.items()
        }
        theirs = {
            name: (c.position, c.disposition_position, c.complete_from, c.bound_bytes, c.epoch, c.until_ms)
            for name, c in cursors.by_name.items()
        }
        assert theirs == mine

    def check_at_rest(self, finished: dict[int, tuple[int, bytes]], log: list[DispositionRow]) -> None:
        """Rows, when the janitor has nothing left to do."""
        assert finished == self.kept, "what cursors have not passed is not what is readable"
        assert not [pos for pos in self.kept if pos < self.keep_from], "kept for nobody"
        assert self.kept_bytes <= self.bound_bytes or not self.kept, "more is kept than may be"
        assert log == [row for row in self.log if row.number >= self.dispositions_from]


class Shown(NamedTuple):
    """One entry of a frame."""

    pos: int
    sequence: int
    state: int
    data: bytes

    @property
    def is_active(self) -> bool:
        return self.state == EntryState.ACTIVE

    @property
    def is_finished(self) -> bool:
        return self.state >= FINISHED


def unpack(count: int, data: bytes) -> list[Shown]:
    """The entries of a frame (`partition.protocol.ports.RangeFrame`)."""
    columns = []
    at = 0
    for code in "qqqqiiB":
        columns.append(struct.unpack_from(f"<{count}{code}", data, at))
        at += struct.calcsize(f"<{count}{code}")
    entries = []
    for pos, sequence, _, _, _, size, state in zip(*columns, strict=True):
        entries.append(Shown(pos, sequence, state, data[at : at + size]))
        at += size
    return entries
