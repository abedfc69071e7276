"""What a partition remembers, and the moves that all handlers share."""

from partibus.partition.entry import Entry
from partibus.partition.events import LockChanged, Removed, Unlocked
from partibus.partition.journal import locked_positions
from partibus.partition.keys import SubqueueKind, kind_of, subqueue_key
from partibus.partition.lock_table import LockBatch
from partibus.partition.options import PartitionOptions
from partibus.partition.ports import EntryRow, LockBatchRow, Snapshot
from partibus.partition.step import Step
from partibus.partition.subqueue import Subqueue

UNWRITTEN_NUMBERS_MAX = 1 << 16
"""Numbers passed over when a partition is loaded. Lock ids are handed out before they are stored (D12); one that was
given twice would let a late settlement touch somebody else's lock. Each is an operation of a commit, of which a store's
queue holds some thousands (D24). The 39 bits of a number last for eight million loads."""


class PartitionState:
    """Counters and sub-queues of one partition."""

    __slots__ = ("next_number", "next_reservation", "next_sequence", "options", "row", "subqueues")

    def __init__(self, row: int, options: PartitionOptions, snapshot: Snapshot | None) -> None:
        self.row = row
        self.options = options
        self.next_sequence = snapshot.next_sequence if snapshot else 1
        self.next_number = snapshot.next_number + UNWRITTEN_NUMBERS_MAX if snapshot else 1
        """Lock ids, positions in dead-letter sub-queues, numbers of rewritten bodies; durable with what uses them."""
        self.next_reservation = 1
        self.subqueues: dict[int, Subqueue] = {}
        for kind in (SubqueueKind.ACTIVE, SubqueueKind.DEAD_LETTER):
            counts = snapshot.counts.get(subqueue_key(row, kind)) if snapshot else None
            self.subqueues[kind] = Subqueue(
                messages=counts.messages if counts else 0,
                size_bytes=counts.size_bytes if counts else 0,
                end_pos=self.next_sequence if kind == SubqueueKind.ACTIVE else self.next_number,
            )
        if snapshot:
            self._restore_locks(snapshot)

    @property
    def size_bytes(self) -> int:
        """Stored bytes in all sub-queues."""
        return sum(subqueue.size_bytes for subqueue in self.subqueues.values())

    def take_number(self) -> int:
        """A number that this partition has not used."""
        number = self.next_number
        self.next_number += 1
        return number

    def arrive(self, kind: int, entries: list[Entry], size_bytes: int, step: Step) -> None:
        """Put new entries at the end of a sub-queue."""
        limits = self.options.limits
        self.subqueues[kind].arrive(
            entries, size_bytes, window_entries=limits.window_entries, window_bytes=limits.window_bytes
        )
        step.change(kind)

    def leave(self, kind: int, entries: list[Entry]) -> None:
        """Entries are no longer in a sub-queue: one event or another says why."""
        subqueue = self.subqueues[kind]
        subqueue.messages -= len(entries)
        subqueue.size_bytes -= sum([entry.size_bytes for entry in entries])

    def remove(self, kind: int, entries: list[Entry], step: Step) -> None:
        """Entries are finished."""
        if entries:
            self.leave(kind, entries)
            step.events.append(Removed(kind, entries))
            step.change(kind)

    def unlock(self, kind: int, batch: LockBatch, positions: list[int], step: Step, *, still_covered: bool) -> None:
        """Take positions out of a lock. ``still_covered``: their rows stay, so the lock's row must not cover them."""
        if self.subqueues[kind].locks.unlock(batch.lock_id, positions):
            step.events.append(Unlocked(kind, batch.lock_id))
        elif still_covered:
            step.events.append(LockChanged(kind, batch.lock_id, batch.until_ms, sorted(batch.entries)))

    def _restore_locks(self, snapshot: Snapshot) -> None:
        """Entries under lock at the moment of the snapshot stay locked until the same deadlines (D12)."""
        entries = {
            (subqueue, row.pos): entry_of(row, None, size_bytes)
            for subqueue, row, size_bytes in snapshot.locked_entries
        }
        latest: dict[tuple[int, int], LockBatchRow] = {}
        for batch in sorted(snapshot.lock_batches, key=lambda row: row.until_ms):
            for pos in locked_positions(batch.first_pos, batch.bitmap):
                latest[batch.subqueue, pos] = batch
        held: dict[tuple[int, int, int], list[Entry]] = {}
        for (subqueue_of, pos), batch in sorted(latest.items()):
            entry = entries.get((subqueue_of, pos))
            if entry is not None:
                held.setdefault((subqueue_of, batch.lock_id, batch.until_ms), []).append(entry)
        for (subqueue_of, lock_id, until_ms), locked in held.items():
            subqueue = self.subqueues[kind_of(subqueue_of)]
            subqueue.locks.add(LockBatch(lock_id, until_ms, locked))
            subqueue.above.update(entry.pos for entry in locked)


def entry_of(row: EntryRow, data: bytes | None, size_bytes: int) -> Entry:
    """An entry in memory from a stored one."""
    return Entry(
        row.pos, row.body, row.sequence, row.enqueued_ms, row.delivery_count, row.session, row.due_ms, size_bytes, data
    )
