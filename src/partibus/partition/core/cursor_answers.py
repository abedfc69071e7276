"""Replies about the positions and holders of cursors (D14)."""

from partibus.partition.core.cursors import Cursor, Cursors
from partibus.partition.core.events import CursorSet
from partibus.partition.core.retention import cursors_of
from partibus.partition.core.state import PartitionState
from partibus.partition.core.step import Step
from partibus.partition.core.subqueue import Subqueue
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.replies import CursorHeld, CursorInfo, CursorOpened


def find(subqueue: Subqueue, name: str) -> Cursor | None:
    """Return the cursor of that name."""
    return None if subqueue.cursors is None else subqueue.cursors.by_name.get(name)


def end_of(state: PartitionState, subqueue: Subqueue) -> int:
    """Return the end of a sub-queue: later entries get this position or a higher one."""
    return state.next_sequence if subqueue.kind == SubqueueKind.ACTIVE else state.end_number


def moved(subqueue: Subqueue, cursor: Cursor, now_ms: int, step: Step) -> None:
    """Note that a position of a cursor has risen."""
    cursor.moved_ms = now_ms
    cursors_of(subqueue).refresh()
    step.events.append(CursorSet(subqueue.kind, cursor))


def opened(
    state: PartitionState, request: int, subqueue: Subqueue, cursor: Cursor, *, made: bool = False
) -> CursorOpened:
    """Return the reply with a cursor's positions."""
    return CursorOpened(
        request,
        cursor.epoch if cursor.until_ms else 0,
        cursor.until_ms,
        cursor.position,
        cursor.disposition_position,
        cursor.complete_from,
        end_of(state, subqueue),
        made,
    )


def cursor_infos(state: PartitionState) -> list[CursorInfo]:
    """Return all cursors of the partition."""
    return [
        CursorInfo(
            kind, cursor.name, cursor.position, cursor.disposition_position, cursor.complete_from,
            cursor.epoch if cursor.until_ms else 0, cursor.until_ms, cursor.moved_ms, cursor.bound_bytes,
        )
        for kind, subqueue in state.subqueues.items()
        if subqueue.cursors is not None
        for cursor in subqueue.cursors.by_name.values()
    ]  # fmt: skip


def held_by(cursors: Cursors, request: int) -> CursorHeld:
    """Return the refusal that names the exclusive reader, or the cursor that paused the sub-queue to become one."""
    if cursors.exclusive is not None:
        return CursorHeld(request, cursors.exclusive.name, cursors.exclusive.until_ms)
    return CursorHeld(request, cursors.paused_by, cursors.paused_until_ms, paused=True)


def why_lost(cursor: Cursor | None, name: str, epoch: int) -> str:
    """Return why a reader does not hold a cursor, with the next step."""
    if cursor is None:
        return f"there is no cursor {name!r}: open it first"
    if not cursor.until_ms:
        return f"the exclusive lease {epoch} of cursor {name!r} has ended: open it again"
    if not epoch:
        return f"cursor {name!r} is read exclusively until {cursor.until_ms}: this needs the epoch of its lease"
    return f"lease {epoch} of cursor {name!r} gave way to a later one"
