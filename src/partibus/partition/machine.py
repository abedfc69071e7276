"""The partition: a state machine. Commands in; events, replies and loads out. No IO, no clock, no randomness (D3).

The runtime calls `handle` with a command and the time, hands the events to the store's next commit, lets the replies
go once what they saw is durable (D11), and brings back what a load asked for as `Loaded`.

One command is taken at a time and completely; memory has changed when `handle` returns.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from operator import attrgetter

from partibus.limits import PartitionLimits
from partibus.message import with_application_properties
from partibus.partition import commands as c
from partibus.partition.entry import Entry
from partibus.partition.events import Counted, Enqueued, Event, LockChanged, Locked, Moved, Removed, Unlocked
from partibus.partition.journal import locked_positions
from partibus.partition.keys import REWRITTEN_BODY, SubqueueKind, body_key, kind_of, subqueue_key
from partibus.partition.lock_table import LockBatch
from partibus.partition.ports import EntryRow, LockBatchRow, Snapshot
from partibus.partition.subqueue import Demand, Subqueue

REASON_PROPERTY = "DeadLetterReason"
DESCRIPTION_PROPERTY = "DeadLetterErrorDescription"
MAX_DELIVERIES_REASON = "MaxDeliveryCountExceeded"
EXPIRED_REASON = "TTLExpiredException"

UNWRITTEN_NUMBERS_MAX = 1 << 16
"""Numbers passed over when a partition is loaded. Lock ids are handed out before they are stored (D12); one that was
given twice would let a late settlement touch somebody else's lock. Each is an operation of a commit, of which a store's
queue holds some thousands (D24). The 39 bits of a number last for eight million loads."""


@dataclass(frozen=True, slots=True)
class PartitionOptions:
    """What a partition has to know of its entity; times in ms."""

    lock_duration_ms: int = 60_000
    max_delivery_count: int = 10
    default_ttl_ms: int | None = None
    size_bytes_max: int | None = None
    """Stored bytes past which a send is refused."""
    dead_letter_on_expiration: bool = False
    reservation_ms: int = 5_000
    limits: PartitionLimits = field(default_factory=PartitionLimits)


class Step:
    """What one command led to."""

    __slots__ = ("events", "loads", "replies")

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.replies: list[c.Reply] = []
        self.loads: list[c.Load] = []


class Partition:
    """One partition of one entity with its sub-queues."""

    def __init__(self, partition_row: int, options: PartitionOptions, snapshot: Snapshot | None = None) -> None:
        self.row = partition_row
        self.options = options
        self.next_sequence = snapshot.next_sequence if snapshot else 1
        self.next_number = snapshot.next_number + UNWRITTEN_NUMBERS_MAX if snapshot else 1
        """Lock ids, positions in dead-letter sub-queues, numbers of rewritten bodies; durable with what uses them."""
        self._next_reservation = 1
        self._subqueues: dict[int, Subqueue] = {}
        for kind in (SubqueueKind.ACTIVE, SubqueueKind.DEAD_LETTER):
            counts = snapshot.counts.get(subqueue_key(partition_row, kind)) if snapshot else None
            self._subqueues[kind] = Subqueue(
                messages=counts.messages if counts else 0,
                size_bytes=counts.size_bytes if counts else 0,
                end_pos=self.next_sequence if kind == SubqueueKind.ACTIVE else self.next_number,
            )
        if snapshot:
            self._restore_locks(snapshot)
        self._handlers: dict[type, Callable[..., None]] = {
            c.Enqueue: self._enqueue,
            c.Receive: self._receive,
            c.CancelReceive: self._cancel_receive,
            c.LockReserved: self._lock_reserved,
            c.ReturnReserved: self._return_reserved,
            c.Settle: self._settle,
            c.Peek: self._peek,
            c.Browse: self._browse,
            c.Inspect: self._inspect,
            c.Tick: self._tick,
            c.Loaded: self._loaded,
        }

    # -- the outside -------------------------------------------------------------------------------------------------

    def handle(self, command: c.Command, now_ms: int) -> Step:
        """Apply one command at one moment."""
        step = Step()
        self._handlers[type(command)](command, now_ms, step)
        return step

    def next_deadline_ms(self) -> int | None:
        """When a `Tick` has something to do: the earliest end of a lock or reservation."""
        deadlines = [
            deadline
            for subqueue in self._subqueues.values()
            for table in (subqueue.locks, subqueue.reservations)
            if (deadline := table.next_deadline_ms()) is not None
        ]
        return min(deadlines) if deadlines else None

    def counts(self) -> Iterable[tuple[int, int, int]]:
        """(sub-queue key, messages, bytes) of every sub-queue: goes into each commit beside the events."""
        for kind, subqueue in self._subqueues.items():
            yield subqueue_key(self.row, kind), subqueue.messages, subqueue.size_bytes

    @property
    def size_bytes(self) -> int:
        """Stored bytes in all sub-queues."""
        return sum(subqueue.size_bytes for subqueue in self._subqueues.values())

    # -- coming in ---------------------------------------------------------------------------------------------------

    def _enqueue(self, command: c.Enqueue, now_ms: int, step: Step) -> None:
        limit = self.options.size_bytes_max
        if limit is not None and self.size_bytes >= limit:
            step.replies.append(c.Refused(command.request, self.size_bytes, limit))
            return
        first = sequence = self.next_sequence
        base = body_key(self.row, 0)
        default_ttl = self.options.default_ttl_ms
        entries = []
        total = 0
        for message in command.messages:
            ttl = message.ttl_ms
            if default_ttl is not None and (ttl is None or ttl > default_ttl):
                ttl = default_ttl
            size = len(message.data)
            expires = None if ttl is None else now_ms + ttl
            entries.append(
                Entry(sequence, base | sequence, sequence, now_ms, 0, message.session_id, expires, size, message.data)
            )
            sequence += 1
            total += size
        self.next_sequence = sequence
        step.replies.append(c.Accepted(command.request, first))
        if not entries:
            return
        step.events.append(Enqueued(entries))
        subqueue = self._subqueues[SubqueueKind.ACTIVE]
        limits = self.options.limits
        subqueue.arrive(entries, total, window_entries=limits.window_entries, window_bytes=limits.window_bytes)
        self._serve(SubqueueKind.ACTIVE, subqueue, now_ms, step)

    # -- going out ---------------------------------------------------------------------------------------------------

    def _receive(self, command: c.Receive, now_ms: int, step: Step) -> None:
        subqueue = self._subqueues[command.kind]
        if command.count <= 0:
            return
        for demand in subqueue.demands:
            if demand.receiver == command.receiver:
                demand.count += command.count
                demand.size_bytes = command.max_bytes
                break
        else:
            subqueue.demands.append(
                Demand(command.receiver, command.count, command.max_bytes, command.delete, command.reserve)
            )
        self._serve(command.kind, subqueue, now_ms, step)

    def _cancel_receive(self, command: c.CancelReceive, now_ms: int, step: Step) -> None:
        subqueue = self._subqueues[command.kind]
        left = [demand for demand in subqueue.demands if demand.receiver == command.receiver]
        for demand in left:
            subqueue.demands.remove(demand)
        step.replies.append(c.Cancelled(command.request, sum(demand.count for demand in left)))

    def _serve(self, kind: int, subqueue: Subqueue, now_ms: int, step: Step) -> None:
        """Hand out what is ready to who waits, an even share for each in turn."""
        demands = subqueue.demands
        while demands:
            if not subqueue.ready and subqueue.tail and subqueue.in_memory:
                subqueue.absorb_tail()
            if not subqueue.ready:
                break
            share = max(1, len(subqueue.ready) // len(demands))
            demand = demands[0]
            taken = self._take(kind, subqueue, min(share, demand.count), demand.size_bytes, now_ms, step)
            if not taken:
                if subqueue.ready:
                    break  # its head waits for a body
                continue
            demands.popleft()
            demand.count -= len(taken)
            demand.size_bytes -= sum([entry.size_bytes for entry in taken])
            ended = demand.count <= 0 or demand.size_bytes <= 0
            if not ended:
                demands.append(demand)
            self._grant(kind, subqueue, demand, taken, ended, now_ms, step)
        self._page_ahead(kind, subqueue, step)

    def _take(self, kind: int, subqueue: Subqueue, count: int, max_bytes: int, now_ms: int, step: Step) -> list[Entry]:
        """Take up to ``count`` entries from the head, at least one, else no more than ``max_bytes``; what has expired
        or was delivered often enough goes its own way. Stops before an entry whose body must be read first, and before
        one that came back from above the mark while the pages below it are still to come."""
        ready = subqueue.ready
        taken: list[Entry] = []
        expired: list[Entry] = []
        used_up: list[Entry] = []
        budget = max_bytes
        while count and (entry := ready.head()) is not None and entry.data is not None:
            if (taken and entry.size_bytes > budget) or entry.pos >= subqueue.paged_up_to:
                break
            ready.pop()
            if entry.delivery_count and self._used_up(kind, entry):  # the store stopped between count and move
                used_up.append(entry)
            elif entry.expires_ms is not None and _is_expired(kind, entry, now_ms):
                expired.append(entry)
            else:
                taken.append(entry)
                budget -= entry.size_bytes
                count -= 1
        if expired:
            self._expire(kind, subqueue, expired, now_ms, step)
        if used_up:
            self._dead_letter_used_up(kind, subqueue, used_up, now_ms, step)
        return taken

    def _grant(
        self,
        kind: int,
        subqueue: Subqueue,
        demand: Demand,
        entries: list[Entry],
        ended: bool,
        now_ms: int,
        step: Step,
    ) -> None:
        lock_id = until_ms = 0
        if demand.reserve:
            lock_id = self._next_reservation
            self._next_reservation += 1
            until_ms = now_ms + self.options.reservation_ms
            subqueue.reservations.add(LockBatch(lock_id, until_ms, entries))
        elif demand.delete:
            self._remove(kind, subqueue, entries, step)
        else:
            lock_id, until_ms = self._lock(kind, subqueue, entries, now_ms, step)
        step.replies.append(
            c.Granted(demand.receiver, kind, lock_id, until_ms, entries, asked=len(entries), ended=ended)
        )

    def _lock(self, kind: int, subqueue: Subqueue, entries: list[Entry], now_ms: int, step: Step) -> tuple[int, int]:
        lock_id = self.next_number
        self.next_number += 1
        until_ms = now_ms + self.options.lock_duration_ms
        subqueue.locks.add(LockBatch(lock_id, until_ms, self._remembered(entries)))
        step.events.append(Locked(kind, lock_id, until_ms, entries))
        return lock_id, until_ms

    def _remembered(self, entries: list[Entry]) -> list[Entry]:
        """Large bodies leave memory while their message is locked. The entries given stay whole: events of this step
        and the grant, perhaps an earlier one that only reserved, still need them."""
        most = self.options.limits.locked_body_max
        if max([entry.size_bytes for entry in entries]) <= most:
            return entries
        return [entry.without_body() if entry.size_bytes > most else entry for entry in entries]

    def _lock_reserved(self, command: c.LockReserved, now_ms: int, step: Step) -> None:
        subqueue = self._subqueues[command.kind]
        entries: list[Entry] = []
        for reservation, positions in _by_lock(command.tokens):
            batch = subqueue.reservations.find(reservation, now_ms)
            if batch is None:
                continue
            held = [pos for pos in positions if pos in batch.entries]
            entries += [batch.entries[pos] for pos in held]
            subqueue.reservations.unlock(reservation, held)
        expired = [entry for entry in entries if _is_expired(command.kind, entry, now_ms)]
        if expired:
            entries = [entry for entry in entries if not _is_expired(command.kind, entry, now_ms)]
            self._expire(command.kind, subqueue, expired, now_ms, step)
        if not entries:
            lock_id = until_ms = 0
        elif command.delete:
            lock_id = until_ms = 0
            self._remove(command.kind, subqueue, entries, step)
        else:
            entries.sort(key=attrgetter("pos"))
            lock_id, until_ms = self._lock(command.kind, subqueue, entries, now_ms, step)
        step.replies.append(
            c.Granted(
                command.receiver, command.kind, lock_id, until_ms, entries, asked=len(command.tokens), ended=False
            )
        )

    def _return_reserved(self, command: c.ReturnReserved, now_ms: int, step: Step) -> None:
        subqueue = self._subqueues[command.kind]
        for reservation, positions in _by_lock(command.tokens):
            batch = subqueue.reservations.find(reservation, now_ms)
            if batch is not None:
                held = [pos for pos in positions if pos in batch.entries]
                for pos in held:
                    subqueue.ready.put_back(batch.entries[pos])
                subqueue.reservations.unlock(reservation, held)
        self._serve(command.kind, subqueue, now_ms, step)

    # -- settling ----------------------------------------------------------------------------------------------------

    def _settle(self, command: c.Settle, now_ms: int, step: Step) -> None:
        subqueue = self._subqueues[command.kind]
        outcome = command.outcome
        if outcome is c.Outcome.DEAD_LETTER and self._await_bodies(command, subqueue, now_ms, step):
            return
        lost: list[int] = []
        settled: list[Entry] = []
        for lock_id, positions in _by_lock(command.tokens):
            batch = subqueue.locks.find(lock_id, now_ms)
            held = [] if batch is None else [pos for pos in positions if pos in batch.entries]
            if len(held) != len(positions):
                missing = {(lock_id, pos) for pos in positions}.difference((lock_id, pos) for pos in held)
                lost += [index for index, token in enumerate(command.tokens) if token in missing]
            if batch is None or not held:
                continue
            entries = [batch.entries[pos] for pos in held]
            gone = outcome is c.Outcome.COMPLETE or outcome is c.Outcome.DEAD_LETTER
            self._unlock(command.kind, subqueue, batch, held, step, still_covered=not gone)
            settled += entries
        if outcome is c.Outcome.COMPLETE:
            if settled:
                self._remove(command.kind, subqueue, settled, step)
        elif outcome is c.Outcome.DEAD_LETTER:
            self._dead_letter(command.kind, subqueue, settled, command.reason, command.description, now_ms, step)
        else:
            self._put_back(command.kind, subqueue, settled, now_ms, step, counted=outcome is c.Outcome.ABANDON)
        step.replies.append(c.Settled(command.request, lost))
        self._serve(command.kind, subqueue, now_ms, step)

    def _await_bodies(self, command: c.Settle, subqueue: Subqueue, now_ms: int, step: Step) -> bool:
        """A message to be dead-lettered is rewritten, so its body has to be there; True when it must be read first and
        the command comes again with it."""
        missing = []
        for lock_id, pos in command.tokens:
            batch = subqueue.locks.find(lock_id, now_ms)
            entry = batch.entries.get(pos) if batch else None
            if entry is not None and entry.data is None:
                missing.append(entry)
        if missing:
            step.loads.append(_body_load(command.kind, missing, then=command))
        return bool(missing)

    def _unlock(
        self, kind: int, subqueue: Subqueue, batch: LockBatch, held: list[int], step: Step, *, still_covered: bool
    ) -> None:
        """Take positions out of a lock. ``still_covered``: their rows stay, so the lock's row must not cover them."""
        if subqueue.locks.unlock(batch.lock_id, held):
            step.events.append(Unlocked(kind, batch.lock_id))
        elif still_covered:
            step.events.append(LockChanged(kind, batch.lock_id, batch.until_ms, sorted(batch.entries)))

    def _remove(self, kind: int, subqueue: Subqueue, entries: list[Entry], step: Step) -> None:
        subqueue.messages -= len(entries)
        subqueue.size_bytes -= sum([entry.size_bytes for entry in entries])
        step.events.append(Removed(kind, entries))

    def _put_back(
        self, kind: int, subqueue: Subqueue, entries: list[Entry], now_ms: int, step: Step, *, counted: bool
    ) -> None:
        """Return entries to their place; those delivered often enough are dead-lettered."""
        if not entries:
            return
        if counted:
            for entry in entries:
                entry.delivery_count += 1
            step.events.append(Counted(kind, entries))
        for entry in entries:
            if self._used_up(kind, entry):
                subqueue.doomed[entry.pos] = entry
            else:
                subqueue.ready.put_back(entry)
        self._dead_letter_doomed(kind, subqueue, now_ms, step)

    def _used_up(self, kind: int, entry: Entry) -> bool:
        return kind == SubqueueKind.ACTIVE and entry.delivery_count >= self.options.max_delivery_count

    def _dead_letter_doomed(self, kind: int, subqueue: Subqueue, now_ms: int, step: Step) -> None:
        ready = [entry for entry in subqueue.doomed.values() if entry.data is not None]
        for entry in ready:
            del subqueue.doomed[entry.pos]
        self._dead_letter_used_up(kind, subqueue, ready, now_ms, step)
        self._load_bodies(kind, subqueue, step)

    def _dead_letter_used_up(
        self, kind: int, subqueue: Subqueue, entries: list[Entry], now_ms: int, step: Step
    ) -> None:
        description = f"Message could not be consumed after {self.options.max_delivery_count} delivery attempts."
        self._dead_letter(kind, subqueue, entries, MAX_DELIVERIES_REASON, description, now_ms, step)

    def _expire(self, kind: int, subqueue: Subqueue, entries: list[Entry], now_ms: int, step: Step) -> None:
        if self.options.dead_letter_on_expiration:
            description = "The message expired and was dead lettered."
            self._dead_letter(kind, subqueue, entries, EXPIRED_REASON, description, now_ms, step)
        else:
            self._remove(kind, subqueue, entries, step)

    def _dead_letter(
        self,
        kind: int,
        subqueue: Subqueue,
        entries: list[Entry],
        reason: str | None,
        description: str | None,
        now_ms: int,
        step: Step,
    ) -> None:
        """Move entries to the dead-letter sub-queue. They keep their sequence number and get a new position. A message
        that is there already goes to its end, with the new reason."""
        if not entries:
            return
        properties = {REASON_PROPERTY: reason, DESCRIPTION_PROPERTY: description}
        changes = {name: text for name, text in properties.items() if text is not None}
        target = self._subqueues[SubqueueKind.DEAD_LETTER]
        pairs = []
        total = 0
        for old in entries:
            assert old.data is not None, "callers read the body first"
            number = self.next_number
            self.next_number += 1
            body, data = old.body, old.data
            if changes:
                body = body_key(self.row, REWRITTEN_BODY | number)
                data = with_application_properties(data, changes)
            new = Entry(
                number, body, old.sequence, old.enqueued_ms, old.delivery_count, old.session, None, len(data), data
            )
            pairs.append((old, new))
            total += new.size_bytes
        subqueue.messages -= len(entries)
        subqueue.size_bytes -= sum([entry.size_bytes for entry in entries])
        step.events.append(Moved(kind, SubqueueKind.DEAD_LETTER, pairs))
        limits = self.options.limits
        moved = [new for _, new in pairs]
        target.arrive(moved, total, window_entries=limits.window_entries, window_bytes=limits.window_bytes)
        if target is not subqueue:
            self._serve(SubqueueKind.DEAD_LETTER, target, now_ms, step)

    # -- time --------------------------------------------------------------------------------------------------------

    def _tick(self, command: c.Tick, now_ms: int, step: Step) -> None:
        # Dead-letter sub-queues first: what the others move there comes behind what is put back.
        for kind, subqueue in reversed(self._subqueues.items()):
            changed = False
            for batch in subqueue.reservations.expired(now_ms):
                for entry in batch.entries.values():
                    subqueue.ready.put_back(entry)
                subqueue.reservations.unlock(batch.lock_id, list(batch.entries))
                changed = True
            for batch in subqueue.locks.expired(now_ms):
                entries = list(batch.entries.values())
                self._unlock(kind, subqueue, batch, list(batch.entries), step, still_covered=True)
                self._put_back(kind, subqueue, entries, now_ms, step, counted=True)
                changed = True
            if changed:
                self._serve(kind, subqueue, now_ms, step)

    # -- reading -----------------------------------------------------------------------------------------------------

    def _peek(self, command: c.Peek, now_ms: int, step: Step) -> None:
        step.loads.append(
            c.PeekLoad(
                command.request, command.kind, command.from_sequence, command.count, self.options.limits.peek_bytes
            )
        )

    def _browse(self, command: c.Browse, now_ms: int, step: Step) -> None:
        step.loads.append(
            c.BrowseLoad(command.request, command.kind, command.from_pos, command.to_pos, command.max_bytes)
        )

    def _inspect(self, command: c.Inspect, now_ms: int, step: Step) -> None:
        infos = {
            int(kind): c.SubqueueInfo(subqueue.messages, subqueue.size_bytes, len(subqueue.locks))
            for kind, subqueue in self._subqueues.items()
        }
        step.replies.append(c.Inspected(command.request, self.next_sequence, self.next_number, infos))

    def _page_ahead(self, kind: int, subqueue: Subqueue, step: Step) -> None:
        """Ask for the next page when what is ready runs low, and for bodies that stand in the way."""
        limits = self.options.limits
        ready = subqueue.ready
        head = ready.head()
        if subqueue.loading_page or (
            (head is None or head.pos < subqueue.paged_up_to)
            and (2 * len(ready) >= limits.window_entries or 2 * ready.size_bytes >= limits.window_bytes)
        ):
            pass
        elif not subqueue.in_memory:
            if subqueue.messages:
                subqueue.loading_page = True
                most = min(limits.page_entries, subqueue.tail_from - subqueue.paged_up_to)
                step.loads.append(c.PageLoad(kind, subqueue.paged_up_to, subqueue.tail_from, most, limits.page_bytes))
        elif subqueue.tail:
            subqueue.absorb_tail()
        if subqueue.demands:
            self._load_bodies(kind, subqueue, step)

    def _load_bodies(self, kind: int, subqueue: Subqueue, step: Step) -> None:
        if subqueue.loading_bodies:
            return
        limits = self.options.limits
        head = subqueue.ready.head()
        missing = list(subqueue.doomed.values())
        if head is not None and head.data is None:
            missing += subqueue.ready.bodyless(limits.page_entries)
        if missing:
            subqueue.loading_bodies = True
            sizes = accumulate(entry.size_bytes for entry in missing)
            most = max(1, sum(1 for total in sizes if total <= limits.page_bytes))
            step.loads.append(_body_load(kind, missing[: min(most, limits.page_entries)]))

    def _loaded(self, command: c.Loaded, now_ms: int, step: Step) -> None:
        load = command.load
        match load:
            case c.PageLoad():
                self._page_loaded(load, command.rows, now_ms, step)  # type: ignore[arg-type]
            case c.BodyLoad():
                self._bodies_loaded(load, command.rows, now_ms, step)  # type: ignore[arg-type]
            case c.PeekLoad() | c.BrowseLoad():
                step.replies.append(c.Rows(load.request, command.rows))  # type: ignore[arg-type]

    def _page_loaded(self, load: c.PageLoad, rows: list[EntryRow], now_ms: int, step: Step) -> None:
        subqueue = self._subqueues[load.kind]
        subqueue.loading_page = False
        entries = [entry_of(row, row.data, len(row.data)) for row in rows]
        subqueue.page_in(entries, rows[-1].pos + 1 if rows else load.end_pos)
        self._serve(load.kind, subqueue, now_ms, step)

    def _bodies_loaded(self, load: c.BodyLoad, bodies: list[bytes | None], now_ms: int, step: Step) -> None:
        subqueue = self._subqueues[load.kind]
        found = {pos: data for pos, data in zip(load.positions, bodies, strict=True) if data is not None}
        gone = set(load.positions).difference(found)
        if load.then is not None:
            self._settle_with_bodies(load.then, subqueue, found, gone, now_ms, step)
            return
        subqueue.loading_bodies = False
        for pos, entry in subqueue.doomed.items():
            if entry.data is None:
                entry.data = found.get(pos)
        for entry in subqueue.ready.bodyless(len(subqueue.ready)):
            if entry.pos in found:
                subqueue.ready.attach_body(entry, found[entry.pos])
        if gone:
            lost = subqueue.ready.remove(gone) + [e for e in subqueue.doomed.values() if e.pos in gone]
            subqueue.doomed = {pos: entry for pos, entry in subqueue.doomed.items() if pos not in gone}
            self._remove(load.kind, subqueue, lost, step)
        self._dead_letter_doomed(load.kind, subqueue, now_ms, step)
        self._serve(load.kind, subqueue, now_ms, step)

    def _settle_with_bodies(
        self,
        command: c.Settle,
        subqueue: Subqueue,
        found: dict[int, bytes],
        gone: set[int],
        now_ms: int,
        step: Step,
    ) -> None:
        """Go on with a settlement that had to wait for bodies. A message whose body the store has lost can't be moved,
        delivered or read: it is removed, lest its partition asks for the body for ever."""
        for lock_id, positions in _by_lock(command.tokens):
            batch = subqueue.locks.find(lock_id, now_ms)
            if batch is None:
                continue
            waiting = [batch.entries[pos] for pos in positions if pos in batch.entries]
            waiting = [entry for entry in waiting if entry.data is None]
            for entry in waiting:
                entry.data = found.get(entry.pos)
            lost = [entry for entry in waiting if entry.pos in gone]
            if lost:
                self._unlock(command.kind, subqueue, batch, [e.pos for e in lost], step, still_covered=False)
                self._remove(command.kind, subqueue, lost, step)
        self._settle(command, now_ms, step)

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
            subqueue = self._subqueues[kind_of(subqueue_of)]
            subqueue.locks.add(LockBatch(lock_id, until_ms, locked))
            subqueue.above.update(entry.pos for entry in locked)


def entry_of(row: EntryRow, data: bytes | None, size_bytes: int) -> Entry:
    """An entry in memory from a stored one."""
    return Entry(
        row.pos, row.body, row.sequence, row.enqueued_ms, row.delivery_count, row.session, row.due_ms, size_bytes, data
    )


def _is_expired(kind: int, entry: Entry, now_ms: int) -> bool:
    """Time to live counts in the active sub-queue only."""
    return entry.expires_ms is not None and entry.expires_ms <= now_ms and kind == SubqueueKind.ACTIVE


def _by_lock(tokens: list[c.LockToken]) -> list[tuple[int, list[int]]]:
    """Group tokens by lock id; a token that is named twice counts once."""
    groups: dict[int, list[int]] = {}
    for lock_id, pos in dict.fromkeys(tokens):
        if lock_id in groups:
            groups[lock_id].append(pos)
        else:
            groups[lock_id] = [pos]
    return list(groups.items())


def _body_load(kind: int, entries: list[Entry], then: c.Settle | None = None) -> c.BodyLoad:
    return c.BodyLoad(kind, [entry.pos for entry in entries], [entry.body for entry in entries], then)
