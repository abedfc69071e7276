"""The state of a partition, and the operations that all handlers share."""

from collections.abc import Mapping

from partibus.message import ttl_of, with_application_properties
from partibus.partition.core.cursors import restored_cursors
from partibus.partition.core.duplicates import DuplicateIds
from partibus.partition.core.events import LockChanged, MarkRaised, Removed, Rewritten, Unlocked
from partibus.partition.core.express import Express, Pool, Room
from partibus.partition.core.fair_queue import Fairness
from partibus.partition.core.journal import locked_positions
from partibus.partition.core.lock_table import LockBatch
from partibus.partition.core.meters import Tally
from partibus.partition.core.ready_list import ENTRY_BYTES, ReadyList
from partibus.partition.core.residency import Cold
from partibus.partition.core.retention import keep
from partibus.partition.core.sessions import Groups, Sessions
from partibus.partition.core.sink import Sinks
from partibus.partition.core.slot_moves import RULES_KEY, SlotRules
from partibus.partition.core.step import Step
from partibus.partition.core.subqueue import Subqueue
from partibus.partition.core.subscriptions import Subscriptions
from partibus.partition.protocol.generations import Series
from partibus.partition.protocol.keys import (
    POSITION_BITS,
    POSITION_MAX,
    REWRITTEN_BODY,
    Entry,
    SubqueueKind,
    body_key,
    kind_of,
    subqueue_key,
)
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.ports import Disposition, EntryRow, EntryState, LockBatchRow, Snapshot

UNWRITTEN_NUMBERS_MAX = 1 << 16
"""The numbers that a partition skips when it is loaded. Lock ids are handed out before they are stored (D12); an id
that was given twice would let a late settlement touch another receiver's lock. Each is an operation of a commit, and a
store's queue holds some thousands (D24).
"""
SERIES_KEY = -(1 << 63) + (1 << 19)
"""The mark that holds the series of a sub-queue, after a kind is added. The rules of slots are below it, the keys of
sources above it. A series that has ended has `POSITION_MAX` as its first position.
"""
REFUSALS_KEY = SERIES_KEY + (1 << 8)
"""The mark that holds the number of refusals of a sub-queue (`History`), after a kind is added."""
EPOCHS_APART = 16
"""A partition that is lost again before anything of it was written begins with the same stored number: owners that
follow each other have numbers of their own. The 39 bits of a number last for half a million loads."""


class PartitionState:
    """Counters and sub-queues of one partition."""

    __slots__ = (
        "activated_ms",
        "body_base",
        "closed",
        "duplicates",
        "epoch",
        "express",
        "fairness",
        "inbound_marks",
        "left_off",
        "next_number",
        "next_reservation",
        "next_sequence",
        "options",
        "pool",
        "publishing",
        "row",
        "run",
        "series",
        "session_state_bytes",
        "sessions",
        "sinks",
        "slots",
        "subqueue_base",
        "subqueues",
        "subscriptions",
        "tally",
        "window_bytes",
    )

    def __init__(
        self,
        row: int,
        options: PartitionOptions,
        snapshot: Snapshot | None,
        epoch: int = 0,
        cold: Cold | None = None,
    ) -> None:
        """Restore the state of a partition from its snapshot.

        ``epoch``: the number of the store's opening. ``cold``: the state kept since the partition went cold, in the
        same opening.
        """
        self.row = row
        self.body_base = body_key(row, 0)
        """The key of the partition's body 0: a body's number is added to it."""
        self.subqueue_base = subqueue_key(row, 0)
        """The key of the partition's first sub-queue: the kind of another one is added to it."""
        self.options = options
        self.epoch = epoch
        self.next_sequence = snapshot.next_sequence if snapshot else 1
        apart = epoch % EPOCHS_APART + (snapshot is not None)
        self.next_number = (snapshot.next_number if snapshot else 1) + apart * UNWRITTEN_NUMBERS_MAX
        """Lock ids, positions in dead-letter sub-queues, numbers of rewritten bodies; durable with what uses them."""
        if cold is not None and cold.next_number:
            self.next_number = cold.next_number
        self.session_state_bytes = snapshot.session_state_bytes if snapshot else 0
        self.next_reservation = 1 if cold is None else cold.next_reservation
        self.tally = Tally()
        """The counters of messages; the runtime gives an object that outlives this state."""
        self.pool = Pool(Room())
        """The store's messages in memory only. The runtime gives the object that its partitions share."""
        self.express: Express | None = None
        """The express messages; None before the first one."""
        self.activated_ms = 0 if cold is None else cold.activated_ms
        """When a scheduled message last became active since the store was opened; 0: never."""
        self.window_bytes = 0
        """Memory of the windows of all ready lists, as of each list's last change."""
        self.inbound_marks = dict(snapshot.inbound_marks) if snapshot else {}
        """Key of a sub-queue that forwards to this partition -> the highest position there that has come (D15)."""
        self.series: dict[int, int] = {}
        """The packed series (`partition.protocol.generations.Series`) by kind, of sub-queues that are in one."""
        for forwarded in SubqueueKind:
            packed = self.inbound_marks.get(SERIES_KEY + forwarded, POSITION_MAX)
            if packed & POSITION_MAX != POSITION_MAX:
                self.series[int(forwarded)] = packed
        self.left_off = tuple(snapshot.left_off) if snapshot else ()
        """The numbers that were passed over when generations of the store began."""
        self.closed = 0
        """Bit ``1 << kind`` is set for each sub-queue that hands nothing out now (`partition.core.exclusive`)."""
        self.subqueues: dict[int, Subqueue] = _Subqueues()
        kinds = [int(SubqueueKind.ACTIVE), int(SubqueueKind.DEAD_LETTER)]
        cursors = restored_cursors(snapshot.cursors, snapshot.retained) if snapshot else {}
        if snapshot:
            rare = (SubqueueKind.TRANSFER_DEAD_LETTER, SubqueueKind.TRANSFER)
            kinds += [int(kind) for kind in rare if subqueue_key(row, kind) in snapshot.counts or kind in cursors]
        for kind in kinds:
            key = subqueue_key(row, kind)
            counts = snapshot.counts.get(key) if snapshot else None
            due = snapshot.next_due.items() if snapshot else ()
            self.subqueues[kind] = Subqueue(
                kind,
                messages=counts.messages if counts else 0,
                size_bytes=counts.size_bytes if counts else 0,
                end_pos=self.next_sequence if kind == SubqueueKind.ACTIVE else self.next_number,
                next_due={state: due_ms for (subqueue, state), due_ms in due if subqueue == key},
            )
        for kind, found in cursors.items():
            self.subqueues[kind].cursors = found
            if found.exclusive is not None:
                self.closed |= 1 << kind
        self.sessions: Sessions | None = None
        """The sessions of an entity that requires them; None otherwise."""
        if options.requires_session:
            self.sessions = Sessions(may_have_more=snapshot is not None)
            self.subqueues[SubqueueKind.ACTIVE].of_sessions = True
        self.fairness: Fairness | None = None
        """The tenants of a fair queue."""
        if options.fair and not options.requires_session and not options.express_ms:
            self.fairness = Fairness()
            self.fairness.is_on = not options.forwards & 1
            self.subqueues[SubqueueKind.ACTIVE].be_fair(self.fairness)
        self.slots: SlotRules | None = None
        """The slots that have moved here or away; None: none has."""
        if RULES_KEY in self.inbound_marks:
            self.slots = SlotRules(self.inbound_marks)
            if self.sessions is not None:
                self.sessions.rules = self.slots
        self.duplicates: DuplicateIds | None = None
        """The ids of an entity with duplicate detection; None otherwise."""
        if options.duplicate_window_ms is not None:
            self.duplicates = DuplicateIds(options.duplicate_window_ms, is_known=snapshot is None)
            self.duplicates.trim_ms = None if cold is None else cold.trim_ms
        self.sinks: Sinks | None = Sinks(snapshot.sinks) if snapshot and snapshot.sinks else None
        """The sinks; None before the first row of one."""
        self.subscriptions: Subscriptions | None = Subscriptions() if options.topic else None
        """The subscriptions of a topic; None otherwise."""
        self.publishing = False
        """Whether a large publish is under way, whose rest comes before other messages."""
        self.run = ""
        """The run of the owner, where several brokers share the stores; set by the runtime."""
        if snapshot:
            self._restore_locks(snapshot)
            if self.sessions is not None:
                self.sessions.restore(snapshot.session_locks, self.next_sequence)

    @property
    def size_bytes(self) -> int:
        """Stored bytes in all sub-queues, of all session states, and in a topic's subscriptions."""
        size_bytes = self.session_state_bytes
        for subqueue in self.subqueues.values():
            size_bytes += subqueue.size_bytes
        return size_bytes if self.subscriptions is None else size_bytes + self.subscriptions.total

    @property
    def end_number(self) -> int:
        """The end of positions in all sub-queues but the active one.

        They have their numbers from one counter, so later entries of each get this one or a higher one.
        """
        return max(subqueue.end_pos for kind, subqueue in self.subqueues.items() if kind != SubqueueKind.ACTIVE)

    def take_number(self) -> int:
        """Return a number that this partition has not used."""
        number = self.next_number
        self.next_number += 1
        return number

    @property
    def held_bytes(self) -> int:
        """Held bytes of all ready lists."""
        return sum([ready_list.held_bytes for ready_list in self.ready_lists])

    # -- lanes -------------------------------------------------------------------------------------------------------

    @property
    def ready_lists(self) -> list[ReadyList]:
        """Return the ready lists of sub-queues, and those of sessions that are held."""
        ready_lists: list[ReadyList] = list(self.subqueues.values())
        if self.sessions is not None:
            ready_lists += [session.ready_list for session in self.sessions.held.values()]
        return ready_lists

    def weigh(self, ready_list: ReadyList) -> None:
        """Count the present memory of a ready list's windows."""
        ready = ready_list.ready
        weighs = ready.size_bytes + ready_list.tail_bytes + ENTRY_BYTES * (ready.count + len(ready_list.tail))
        if weighs != ready_list.weighed and ready_list.weighed >= 0:
            self.window_bytes += weighs - ready_list.weighed
            ready_list.weighed = weighs

    def ready_list_under(self, kind: int, lock_id: int, now_ms: int) -> ReadyList | None:
        """Return the ready list of a lock id: that of the sub-queue, or of the session held under it."""
        if self.sessions is None or kind != SubqueueKind.ACTIVE:
            return self.subqueues[kind]
        session = self.sessions.by_lock.get(lock_id)
        if session is not None and session.until_ms > now_ms:  # `Sessions.find`
            return session.ready_list
        subqueue = self.subqueues[kind]
        return None if subqueue.locks.find(lock_id) is None else subqueue

    def ready_list_of(self, kind: int, session: str | None) -> ReadyList | None:
        """Return the ready list of an entry.

        None while its session has no holder: all of its waiting entries are in the store.
        """
        if self.sessions is None or kind != SubqueueKind.ACTIVE or session is None:
            return self.subqueues[kind]
        held = self.sessions.held.get(session)
        return None if held is None else held.ready_list

    # -- entries -----------------------------------------------------------------------------------------------------

    def arrive(self, kind: int, entries: list[Entry], size_bytes: int, step: Step) -> None:
        """Put new active entries at the end of a sub-queue."""
        subqueue = self.subqueues[kind]
        if self.options.forwards >> kind & 1 and not subqueue.messages:  # no receiver can have had any of them
            self.in_series(kind, entries[0].pos, step)
        subqueue.messages += len(entries)
        subqueue.size_bytes += size_bytes
        express = self.express
        if express is not None and kind == SubqueueKind.ACTIVE and entries[0].pos not in express.unwritten:
            express.stored_to = entries[-1].pos
        limits = self.options.limits
        if self.sessions is not None and kind == SubqueueKind.ACTIVE:
            self.sessions.arrive(entries, limits, step)
            subqueue.end_pos = subqueue.tail_from = entries[-1].pos + 1
            subqueue.paged_up_to = 0
            return
        if self.closed >> kind & 1 and subqueue.is_read_alone:  # who reads alone reads the store
            subqueue.end_pos = subqueue.tail_from = entries[-1].pos + 1
            subqueue.paged_up_to = 0
            return
        subqueue.arrive(entries, size_bytes, window_entries=limits.window_entries, window_bytes=limits.window_bytes)
        step.changed[subqueue] = None

    def in_series(self, kind: int, first: int, step: Step) -> int:
        """Return the packed series of a sub-queue that is forwarded.

        Begin one with the position ``first``, if a receiver has taken messages since the last one.
        """
        if kind == SubqueueKind.TRANSFER:  # no receiver ever takes its messages
            return self.series.get(kind, 0)
        if kind not in self.series:
            number = self.inbound_marks.get(SERIES_KEY + kind, 0) >> POSITION_BITS
            self.series[kind] = Series(number + 1, first).pack()
            self._note_series(kind, self.series[kind], step)
        return self.series[kind]

    def end_series(self, kind: int, step: Step) -> None:
        """End the series of a sub-queue, because a receiver takes messages from it."""
        packed = self.series.pop(kind, None)
        if packed is not None:
            self._note_series(kind, packed | POSITION_MAX, step)

    def refusals(self, kind: int) -> int:
        """Return how often messages of a sub-queue became transfer dead letters."""
        return self.inbound_marks.get(REFUSALS_KEY + kind, 0)

    def count_refusal(self, kind: int, step: Step) -> None:
        """Count that messages of a sub-queue became transfer dead letters (`History`).

        The counts of a restored copy and of its original rise apart, so a destination can't compare them. After the
        first refusal in a copy, marks from the time before count for none of its messages.
        """
        packed = self.series.get(kind, 0 if kind == SubqueueKind.TRANSFER else POSITION_MAX)
        if self.left_off and packed & POSITION_MAX < self.left_off[-1].first:
            self.series[kind] = packed & ~POSITION_MAX | self.subqueues[kind].end_pos
            self._note_series(kind, self.series[kind], step)
        self.raise_mark(REFUSALS_KEY + kind, self.refusals(kind) + 1, step)

    def _note_series(self, kind: int, packed: int, step: Step) -> None:
        self.raise_mark(SERIES_KEY + kind, packed, step)

    def raise_mark(self, key: int, value: int, step: Step) -> None:
        """Set a mark, durably with the step."""
        self.inbound_marks[key] = value
        step.events.append(MarkRaised(key, value))

    def leave(self, kind: int, entries: list[Entry]) -> None:
        """Remove entries from a sub-queue; an event of the caller says why."""
        subqueue = self.subqueues[kind]
        subqueue.messages -= len(entries)
        size_bytes = 0
        for entry in entries:
            size_bytes += entry.size_bytes
        subqueue.size_bytes -= size_bytes
        if subqueue.claimed:
            subqueue.claimed.difference_update([entry.sequence for entry in entries])

    def remove(self, kind: int, entries: list[Entry], disposition: Disposition | None, step: Step) -> None:
        """Remove finished entries.

        ``disposition`` is None for those that had not become active yet: they concern no cursor.
        """
        if entries:
            self.leave(kind, entries)
            subqueue = self.subqueues[kind]
            if subqueue.cursors is not None and disposition is not None:
                entries = keep(subqueue, entries, disposition, step, self.take_number)
                if not entries:
                    return
            step.events.append(Removed(kind, entries, disposition))

    def rewrite(self, kind: int, entries: list[Entry], properties: Mapping[str, object], step: Step) -> None:
        """Set application properties of entries, whose bodies are there."""
        pairs = []
        subqueue = self.subqueues[kind]
        for entry in entries:
            assert entry.data is not None, "callers read the body first"
            old_body = entry.body
            entry.body = body_key(self.row, REWRITTEN_BODY | self.take_number())
            entry.data = with_application_properties(entry.data, properties)
            if self.express is not None and kind == SubqueueKind.ACTIVE:
                self.express.resized(entry, len(entry.data) - entry.size_bytes)
            subqueue.size_bytes += len(entry.data) - entry.size_bytes
            entry.size_bytes = len(entry.data)
            pairs.append((old_body, entry))
        step.events.append(Rewritten(pairs))

    def unlock(
        self, ready_list: ReadyList, batch: LockBatch, positions: list[int], step: Step, *, still_covered: bool
    ) -> None:
        """Take positions out of a lock. ``still_covered``: their rows stay, so the lock's row must not cover them."""
        if ready_list.session is not None:  # its lock is the session's, which has no row and no deadline of its own
            for pos in positions:
                del batch.entries[pos]
            if not batch.entries:
                del ready_list.locks.batches[batch.lock_id]
            return
        if self.sessions is not None and ready_list.kind == SubqueueKind.ACTIVE:
            self.sessions.take_back([batch.entries[pos] for pos in positions], step)
        if self.fairness is not None and ready_list.kind == SubqueueKind.ACTIVE:
            if self.fairness.is_full:
                step.change(ready_list)  # receivers wait for room
            self.fairness.take_back([batch.entries[pos] for pos in positions])
        ended = ready_list.locks.unlock(batch.lock_id, positions)
        if ready_list.forwarder:
            step.change(ready_list)  # it waits for what others hold
        if ended:
            step.events.append(Unlocked(ready_list.kind, batch.lock_id))
        elif still_covered:
            step.events.append(LockChanged(ready_list.kind, batch.lock_id, batch.parts()))

    # -- times -------------------------------------------------------------------------------------------------------

    def expires_ms(self, enqueued_ms: int, ttl_ms: int | None) -> int | None:
        """Return when a message's time to live ends, the entity's own included."""
        default_ms = self.options.default_ttl_ms
        if default_ms is not None and (ttl_ms is None or ttl_ms > default_ms):
            ttl_ms = default_ms
        return None if ttl_ms is None else enqueued_ms + ttl_ms

    def become_active(self, kind: int, entry: Entry) -> None:
        """Make a scheduled or delayed entry, whose body is loaded, available to receivers.

        A dead-letter sub-queue has no time to live.
        """
        assert entry.data is not None, "sweeps bring bodies"
        entry.state = EntryState.ACTIVE
        entry.due_ms = None
        if kind == SubqueueKind.ACTIVE:
            entry.due_ms = self.expires_ms(entry.enqueued_ms, ttl_of(entry.data))

    def _restore_locks(self, snapshot: Snapshot) -> None:
        """Lock the entries that were locked at the snapshot, until the same deadlines (D12)."""
        entries = {
            (subqueue, row.pos): entry_of(row, None, size_bytes)
            for subqueue, row, size_bytes in snapshot.locked_entries
        }
        latest: dict[tuple[int, int], LockBatchRow] = {}
        for batch in sorted(snapshot.lock_batches, key=lambda row: row.until_ms):
            for pos in locked_positions(batch.first_pos, batch.bitmap):
                latest[batch.subqueue, pos] = batch
        held: dict[tuple[int, int], dict[int, int]] = {}
        for (subqueue_of, pos), batch in sorted(latest.items()):
            if (subqueue_of, pos) in entries:
                held.setdefault((subqueue_of, batch.lock_id), {})[pos] = batch.until_ms
        for (subqueue_of, lock_id), untils in held.items():
            subqueue = self.subqueues[kind_of(subqueue_of)]
            until_ms = min(untils.values())
            locked = [entries[subqueue_of, pos] for pos in untils]
            restored = LockBatch(lock_id, until_ms, locked)
            restored.renewed.update((pos, later_ms) for pos, later_ms in untils.items() if later_ms > until_ms)
            subqueue.locks.add(restored)
            subqueue.above.update(entry.pos for entry in locked)
            if self.fairness is not None and kind_of(subqueue_of) == SubqueueKind.ACTIVE:
                self.fairness.hand_out(locked)
            if self.sessions is not None and kind_of(subqueue_of) == SubqueueKind.ACTIVE:
                if self.sessions.groups is None:
                    self.sessions.groups = Groups()
                for entry in locked:
                    self.sessions.groups.hand_out(entry.session or "", [entry])
            subqueue.claimed.update(entry.sequence for entry in locked if entry.state == EntryState.DEFERRED)


class _Subqueues(dict[int, Subqueue]):
    """The sub-queues by kind.

    Most partitions never have transfers, nor dead letters of those. Such a sub-queue is made at its first use, or every
    commit would have a row for its counts.
    """

    def __missing__(self, kind: int) -> Subqueue:
        assert kind > SubqueueKind.DEAD_LETTER, "the others are there from the start"
        subqueue = self[int(kind)] = Subqueue(int(kind), messages=0, size_bytes=0, end_pos=1, next_due={})
        return subqueue


def entry_of(row: EntryRow, data: bytes | None, size_bytes: int) -> Entry:
    """Return the entry in memory for a stored one."""
    return Entry(
        row.pos, row.body, row.sequence, row.enqueued_ms, row.delivery_count, row.session, row.due_ms, size_bytes,
        data, row.state,
    )  # fmt: skip
