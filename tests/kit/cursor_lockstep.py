"""Cursors of a partition machine, held against those of the reference model: a part of `tests.kit.lockstep`."""

from typing import Any, Protocol

from partibus.partition.core.events import CursorSet, DispositionsLogged, Event, Kept, Moved, Removed
from partibus.partition.core.machine import Partition
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import load_requests as w
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.ports import DISPOSITION_COLUMNS, EntryState
from tests.kit.cursor_model import NOWHERE, CursorState, unpack
from tests.kit.model import READY, Model

KINDS = (SubqueueKind.ACTIVE, SubqueueKind.DEAD_LETTER)
DELAYED_ROW = int(EntryState.DELAYED)


class Both(Protocol):
    """A machine and its model."""

    machine: Partition
    model: Model
    now_ms: int
    paused_ms: dict[int, int]
    """Kind -> the end of the time without grants, since a reader wants to read alone."""


class CursorLockstep:
    """Replies about cursors, applied to the model or refused as not allowed."""

    def __init__(self, both: Both) -> None:
        self._both = both

    def opened(self, command: c.OpenCursor | c.AdvanceCursor, reply: r.CursorOpened) -> None:
        """A cursor was opened, or has advanced."""
        model, cursors = self._both.model, self._both.model.cursors[command.kind]
        end_pos = self._both.machine.state.subqueues[command.kind].end_pos
        if command.kind == SubqueueKind.ACTIVE:
            end_pos = model.next_sequence
        cursor = cursors.by_name.get(command.name)
        if isinstance(command, c.AdvanceCursor):
            assert cursor is not None
            assert command.epoch == (cursor.epoch if cursor.until_ms else 0)
            cursor.position = max(cursor.position, min(command.position, end_pos))
            if cursor.disposition_position >= 0:
                cursor.disposition_position = max(
                    cursor.disposition_position, min(command.disposition_position, self._both.machine.state.next_number)
                )
        else:
            cursor = self._made(command, reply, end_pos)
        assert (reply.epoch, reply.until_ms) == ((cursor.epoch, cursor.until_ms) if cursor.until_ms else (0, 0))
        assert (reply.position, reply.disposition_position) == (cursor.position, cursor.disposition_position)
        assert (reply.complete_from, reply.end_pos) == (cursor.complete_from, end_pos)

    def _made(self, command: c.OpenCursor, reply: r.CursorOpened, end_pos: int) -> CursorState:
        cursors = self._both.model.cursors[command.kind]
        cursor = cursors.by_name.get(command.name)
        if cursor is None:
            start = end_pos if command.start == c.LATEST else min(command.start, end_pos)
            cursor = cursors.by_name[command.name] = CursorState(start)
        cursor.bound_bytes = command.bound_bytes
        if command.dispositions and cursor.disposition_position < 0:
            assert all(row.number < reply.disposition_position for row in cursors.log)
            cursor.disposition_position = reply.disposition_position
        if command.epoch:
            assert cursors.alone is cursor, f"renewed, and it has no lease: {reply}"
            assert cursor.epoch == command.epoch
            cursor.until_ms = self._both.now_ms + command.lease_ms
        elif command.lease_ms:
            assert cursors.alone in (None, cursor), f"two read alone: {cursors}"
            assert command.revoke or not self._both.model.is_congested(command.kind), f"there are locks: {command}"
            self._both.model.take(command.kind)
            self._both.paused_ms.pop(command.kind, None)
            cursor.epoch += 1
            cursor.until_ms = self._both.now_ms + command.lease_ms
            cursor.readable_from = cursor.read_to = cursor.position
            cursor.shown = set()
        return cursor

    def closed(self, command: c.CloseCursor) -> None:
        """A cursor's lease was given back, or the cursor was dropped."""
        cursors = self._both.model.cursors[command.kind].by_name
        cursor = cursors.get(command.name)
        if cursor is not None:
            by_force = command.drop and not command.epoch
            assert by_force or not cursor.until_ms or cursor.epoch == command.epoch, f"not his: {command}"
            cursor.until_ms = 0
            if command.drop:
                del cursors[command.name]

    def check_lost(self, command: Any) -> None:
        """Check the reply that a cursor belongs to another reader."""
        name: Any = command.cursor if isinstance(command, c.ReadRange | c.ReadDispositions) else command.name
        cursor = self._both.model.cursors[command.kind].by_name.get(name)
        if cursor is None:
            return
        if isinstance(command, c.ReadDispositions):
            assert cursor.disposition_position < 0
        else:
            chooses = isinstance(command, c.AdvanceCursor) and command.only and not cursor.until_ms
            assert chooses or command.epoch != (cursor.epoch if cursor.until_ms else 0), f"it is his: {command}"

    def moved(self, event: CursorSet, command: w.Input) -> None:
        """Move an exclusive reader slice by slice."""
        range_scan = (
            command.load.range_scan
            if isinstance(command, w.Loaded) and isinstance(command.load, w.RangeScanLoad)
            else None
        )
        if isinstance(range_scan, w.Consume) and range_scan.command.name == event.cursor.name:
            cursor = self._both.model.cursors[event.kind].by_name[event.cursor.name]
            assert cursor.position <= event.cursor.position <= min(range_scan.to_pos, range_scan.command.position)
            cursor.position = event.cursor.position

    def check_consumed(self, command: w.Loaded) -> None:
        """All that was readable and was passed is completed."""
        if isinstance(command.load, w.RangeScanLoad) and isinstance(command.load.range_scan, w.Consume):
            kind = command.load.kind
            reader = self._both.model.cursors[kind].by_name[command.load.range_scan.command.name]
            passed = range(reader.readable_from, reader.position)
            left = [item for item in self._both.model.queues[kind] if item.state == READY and item.pos in passed]
            assert not left, f"passed and not completed: {left}"

    def range_read(self, command: c.ReadRange, reader: tuple[CursorState, int] | None, reply: r.RangeRead) -> None:
        """A range was read through a cursor. ``reader``: who read alone when that was asked for, and its lease."""
        assert command.cursor is not None, f"read without a cursor: {command}"
        cursor = self._both.model.cursors[command.kind].by_name[command.cursor]
        assert reply.complete_from == cursor.complete_from
        if reader == (cursor, cursor.epoch) and cursor.until_ms:
            cursor.shown |= {shown.pos for shown in unpack(reply.count, reply.data) if shown.is_active}
            cursor.read_to = max(cursor.read_to, reply.next_pos)


def check_dispositions(model: Model, events: list[Event]) -> None:
    """While a reader follows the log, each message that leaves is in it once."""
    for kind in KINDS:
        left: list[int] = []
        logged: list[int] = []
        for event in events:
            if isinstance(event, DispositionsLogged) and event.kind == kind:
                logged += event.rows[1::DISPOSITION_COLUMNS]
            elif isinstance(event, Removed | Kept) and event.kind == kind and event.disposition is not None:
                left += [entry.pos for entry in event.entries]
            elif isinstance(event, Moved) and event.kind == kind and event.to_kind != SubqueueKind.ACTIVE:
                left += [old.pos for old, _ in event.pairs if old.state != DELAYED_ROW]
        expected = left if model.cursors[kind].dispositions_from != NOWHERE else []
        assert sorted(logged) == sorted(expected)


def chosen(command: w.Input) -> list[int]:
    """The positions that who reads alone has asked to be completed, if it asked for some only."""
    range_scan = (
        command.load.range_scan if isinstance(command, w.Loaded) and isinstance(command.load, w.RangeScanLoad) else None
    )
    return range_scan.command.only if isinstance(range_scan, w.Consume) else []
