"""The promises of a broker, checked from outside: by sends, replies and deliveries.

Each check raises `BrokenPromise` at the moment of the breach; most are those of `tests.kit.invariants`. The
oracle looks at the disk only to learn what is durable, never at the broker's memory. An unknown outcome (of a request
without an answer) excuses all that it could explain, and nothing else.
"""

from collections import Counter
from dataclasses import dataclass, field

from partibus.message import DeliveryEncoder, Message, StoredMessage, is_durable
from partibus.partition.protocol.keys import Entry, SubqueueKind, entry_key, subqueue_key
from partibus.partition.protocol.options import PartitionOptions
from tests.kit import invariants as i
from tests.kit.invariants import BrokenPromise, name_in
from tests.kit.session_oracle import SessionOracle
from tests.kit.stores.memory import MemoryDisk


@dataclass(slots=True)
class Sent:
    """A message, as its sender knows it."""

    row: int
    message: Message
    asked_ms: int
    answered_ms: int | None = None
    stored: bool | None = None
    """True accepted, False surely not stored, None not known (yet)."""
    edited: bool = False
    """Application properties may have been set."""


@dataclass(slots=True)
class Held:
    """A lock that a consumer was given."""

    lock_id: int
    granted_ms: int
    until_ms: int
    in_memory: bool
    """The lock of a session: gone when the broker's memory is."""


@dataclass(slots=True)
class Transaction:
    """The operations that a client asked for in one transaction."""

    sends: list[int]
    completes: dict[int, int]
    """Name -> how often it had been delivered when the transaction was sent."""
    done: bool | None = None


@dataclass
class Oracle:
    """Knows every message by its name."""

    disk: MemoryDisk
    ordered: set[int]
    """Partition rows whose first deliveries come in order: no front end caches their messages."""
    lock_written_ms: float
    """A lock that is older than this is surely in the store."""
    options: dict[int, PartitionOptions]
    """Options by partition row."""
    sent: dict[int, Sent] = field(default_factory=dict)
    delivered: Counter[int] = field(default_factory=Counter)
    dispositions: dict[int, str] = field(default_factory=dict)
    """Completed and told so, received and deleted, cancelled: never seen again."""
    maybe_gone: set[int] = field(default_factory=set)
    """The outcome of what would have removed them is not known."""
    lost_young: set[int] = field(default_factory=set)
    """Express messages that were younger than their loss bound when memory was lost."""
    abandoned: Counter[int] = field(default_factory=Counter)
    """Abandons that were confirmed."""
    deferred: dict[tuple[int, int], int] = field(default_factory=dict)
    """(name, sub-queue) -> sequence, of those that have certainly been deferred there."""
    maybe_deferred: dict[tuple[int, int], int] = field(default_factory=dict)
    locks: dict[int, Held] = field(default_factory=dict)
    highest: dict[tuple[int, str | None], int] = field(default_factory=dict)
    """(partition row, session) -> highest sequence of a first delivery."""
    given: Counter[tuple[int, bool]] = field(default_factory=Counter)
    """(partition row, whether it is of express messages) -> highest sequence that a sender was told."""
    numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    """(partition row, sequence) -> name."""
    lost_budget: Counter[int] = field(default_factory=Counter)
    """Partition row -> how many messages could be removed without a client knowing which: purged, or received and
    deleted when everything stopped."""
    removals: Counter[int] = field(default_factory=Counter)
    """The number of attempts to complete them."""
    transactions: list[Transaction] = field(default_factory=list)
    sessions: SessionOracle = field(default_factory=SessionOracle)
    by_number: int = 0
    """Deferred messages that were handed out."""
    windows_ms: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Partition row -> shortest and longest window of duplicate detection, where it changes."""
    lost: set[int] = field(default_factory=set)
    """The messages that were acknowledged and are gone at the end, never seen, and rightly so: `lost_young`."""
    dropped: set[int] = field(default_factory=set)
    """The messages that were acknowledged and are gone at the end, and rightly so: duplicates, or expired."""

    # -- sending -----------------------------------------------------------------------------------------------------

    def asked(self, name: int, row: int, message: Message, now_ms: int) -> None:
        """A sender sends."""
        self.sent[name] = Sent(row, message, now_ms)

    def accepted(self, names: list[int], row: int, first_sequence: int | None, now_ms: int) -> None:
        """A sender was told that its messages are stored; without their numbers where a transaction stored them."""
        if first_sequence is not None:
            if self._durable_end(row) < first_sequence + len(names):
                raise BrokenPromise(f"messages {names} were acknowledged before they were durable")
            line = (row, self._is_express(names))
            i.i13_numbers_rise(f"message {names[0]}", first_sequence, self.given[line])
            self.given[line] = first_sequence + len(names) - 1
            for number, name in enumerate(names, first_sequence):
                self._number(name, row, number)
        for name in names:
            self.sent[name].stored, self.sent[name].answered_ms = True, now_ms

    def refused(self, names: list[int], executed: bool | None) -> None:
        """A sender was told that they are not stored, or that the outcome is unknown."""
        for name in names:
            self.sent[name].stored = executed

    def cancelled(self, name: int) -> None:
        """A sender was told that its scheduled message is cancelled."""
        if self.delivered[name]:
            raise BrokenPromise(f"message {name} was cancelled after it had been delivered")
        self.dispositions[name] = "cancelled"

    def not_cancelled(self, name: int, now_ms: int) -> None:
        """A sender was told that there is no such scheduled message."""
        due_ms = self.sent[name].message.scheduled_ms
        assert due_ms is not None
        if due_ms > now_ms and name not in self.maybe_gone:
            raise BrokenPromise(f"message {name} is scheduled for {due_ms} and could not be found")

    # -- receiving ---------------------------------------------------------------------------------------------------

    def granted(
        self,
        row: int,
        kind: int,
        entries: list[Entry],
        lock_id: int,
        until_ms: int,
        now_ms: int,
        *,
        delete: bool,
        by_number: bool = False,
        session: bool = False,
    ) -> None:
        """A consumer got messages."""
        for entry in entries:
            name = name_of(entry)
            self._check_delivery(name, row, kind, entry, until_ms, now_ms, by_number=by_number)
            self.delivered[name] += 1
            self.by_number += by_number
            if delete:
                if self._on_disk(row, kind, entry.pos):
                    raise BrokenPromise(f"message {name} was handed out before its removal was durable")
                self.dispositions[name] = "received and deleted"
            else:
                if not session:
                    self._check_time_to_live(name, row, kind, entry, until_ms)
                self.locks[name] = Held(lock_id, now_ms, until_ms, session)

    def _check_delivery(
        self, name: int, row: int, kind: int, entry: Entry, until_ms: int, now_ms: int, *, by_number: bool
    ) -> None:
        known = self.sent.get(name)
        i.i02_nothing_that_was_not_sent(name, [name] if known is not None and known.stored is not False else [])
        assert known is not None
        assert entry.data is not None, "a delivery has its body"
        if known.edited or kind == SubqueueKind.DEAD_LETTER:
            i.i03_sections_are_untouched(name, _unedited(known.message.data), _unedited(entry.data), {})
        else:
            i.i03_sections_are_untouched(name, known.message.data, entry.data, {})
        if self._durable_end(row) <= entry.sequence:
            raise BrokenPromise(f"message {name} was delivered before it was durable")
        self._number(name, row, entry.sequence)
        i.i14_number_names_its_partition(name, DeliveryEncoder(row).sequence_number(entry.sequence), known.row)
        i.i05_never_after_complete(name, self.dispositions)
        i.i06_deleted_at_most_once(name, 1 + (self.dispositions.get(name) == "received and deleted"))
        # A grant that left after its lock had ended shows what has become of the message since.
        limited = kind == SubqueueKind.ACTIVE and not 0 < until_ms <= now_ms
        # The deferral counts, and the message can be received once more.
        limit = self.options[row].max_delivery_count + by_number if limited else None
        i.i07_delivery_count_never_falls(name, entry.delivery_count, self.abandoned[name], limit)
        held = self.locks.get(name)
        i.i04_one_live_lock(name, None if held is None else held.until_ms, now_ms)
        if not by_number:
            i.i10_deferred_only_by_number(name, [name] if (name, kind) in self.deferred else [])
        i.i11_scheduled_never_early(name, known.message.scheduled_ms, now_ms, ())
        first = kind == SubqueueKind.ACTIVE and entry.delivery_count == 0 and not self.delivered[name]
        if first and row in self.ordered and not by_number:
            line = (row, entry.session)
            i.i12_first_deliveries_in_order(name, entry.sequence, self.highest.get(line, 0))
            self.highest[line] = entry.sequence

    def _check_time_to_live(self, name: int, row: int, kind: int, entry: Entry, until_ms: int) -> None:
        """Row C20. The moment of the hand-out is known by the end of the lock."""
        ttl_ms = self._ttl_ms(name)
        handed_out_ms = until_ms - self.options[row].lock_duration_ms
        if kind == SubqueueKind.ACTIVE and ttl_ms is not None and entry.enqueued_ms + ttl_ms <= handed_out_ms:
            raise BrokenPromise(f"message {name} was handed out at {handed_out_ms}, after its time to live")

    def _number(self, name: int, row: int, sequence: int) -> None:
        other = self.numbers.setdefault((row, sequence), name)
        if other != name:
            raise BrokenPromise(f"number {sequence} of partition {row} is that of message {other} and of {name}")

    # -- settling ----------------------------------------------------------------------------------------------------

    def holds(self, name: int, lock_id: int) -> int | None:
        """Return the end of a consumer's lock that must not be lost; None when it may be."""
        held = self.locks.get(name)
        return held.until_ms if held is not None and held.lock_id == lock_id else None

    def unlocked(self, names: list[int], lock_id: int) -> None:
        """A consumer settles: from here on the lock counts no more."""
        for name in names:
            if (held := self.locks.get(name)) is not None and held.lock_id == lock_id:
                del self.locks[name]

    def renewed(self, row: int, lock_id: int, names: list[int] | None, until_ms: int) -> None:
        """A consumer was told that locks hold longer: of messages, or of all messages of a session."""
        for name, held in self.locks.items():
            if held.lock_id == lock_id and self.sent[name].row == row and (names is None or name in names):
                held.until_ms = until_ms

    def session_over(self, row: int, lock_id: int) -> None:
        """The locks of a session's messages are over with the session's."""
        self.locks = {
            name: held
            for name, held in self.locks.items()
            if not (held.in_memory and held.lock_id == lock_id and self.sent[name].row == row)
        }

    def completed(self, row: int, kind: int, name: int, pos: int) -> None:
        """A consumer was told that its message is finished."""
        if self._on_disk(row, kind, pos):
            raise BrokenPromise(f"message {name} was confirmed as completed before its removal was durable")
        self.dispositions[name] = "completed"

    def memory_lost(self, now_ms: int) -> None:
        """The process or the store failed: the latest locks may be gone, older ones must not be."""
        latest_ms = now_ms - self.lock_written_ms
        self.locks = {
            name: held for name, held in self.locks.items() if held.granted_ms <= latest_ms and not held.in_memory
        }
        self.sessions.memory_lost()

    def _is_express(self, names: list[int]) -> bool:
        """They were acknowledged from memory, before others perhaps that wait for their commit."""
        messages = [self.sent[name].message for name in names]
        forced = any(is_durable(message.data) or message.scheduled_ms is not None for message in messages)
        return self.options[self.sent[names[0]].row].express_ms > 0 and not forced

    def _is_young(self, known: Sent, now_ms: int) -> bool:
        """Perhaps only memory had it (D18)."""
        since_ms = known.asked_ms if known.answered_ms is None else known.answered_ms
        if now_ms - since_ms >= self.options[known.row].express_ms or known.message.scheduled_ms is not None:
            return False
        return not is_durable(known.message.data)

    def express_lost(self, now_ms: int) -> None:
        """Note that express messages younger than their bound may be gone, with their locks."""
        promised = {name for transaction in self.transactions for name in transaction.sends}
        young = {name for name, known in self.sent.items() if self._is_young(known, now_ms)} - promised
        self.lost_young |= young
        for name in young:
            self.locks.pop(name, None)

    # -- the end -----------------------------------------------------------------------------------------------------

    def check_rest(self, found: list[int], now_ms: int) -> None:
        """The end: ``found`` was still stored."""
        for name in set(found):
            known = self.sent.get(name)
            i.i02_nothing_that_was_not_sent(name, [name] if known is not None and known.stored is not False else [])
        accepted = {name for name, known in self.sent.items() if known.stored}
        seen = {*found, *(name for name, times in self.delivered.items() if times)}
        excused = self.maybe_gone | self.lost_young | self._expired(now_ms) | self._possible_duplicates(seen)
        missing = accepted.difference(found, self.dispositions, excused)
        self.dropped = (accepted & excused).difference(found, self.dispositions, self.maybe_gone, self.lost_young)
        self.lost = (accepted & self.lost_young).difference(seen, self.dispositions)
        budgets = {row for row in self.options if self.lost_budget[row]}
        i.i01_everything_is_accounted_for(
            accepted, self.dispositions, found, excused | {name for name in missing if self.sent[name].row in budgets}
        )
        for row, missed in Counter(self.sent[name].row for name in missing).items():
            if missed > self.lost_budget[row]:
                raise BrokenPromise(f"{missed} messages of partition {row} are gone, {self.lost_budget[row]} could be")
        self._check_no_duplicate_was_kept(seen)
        for transaction in self.transactions:
            self._check_transaction(transaction, {*found})

    def tally(self) -> Counter[str]:
        """How much of what has happened, once the end was checked."""
        happened = Counter(self.dispositions.values())
        happened["deliveries"] = sum(self.delivered.values())
        happened["deferred"] = len(self.deferred)
        happened["by number"] = self.by_number
        for name in self.dropped:
            happened["expired" if self.sent[name].message.message_id is None else "duplicates dropped"] += 1
        happened["lost young"] = len(self.lost)
        happened["sessions accepted"] = self.sessions.accepted_times
        happened["states read"] = self.sessions.read_times
        happened["transactions done"] = sum(transaction.done is True for transaction in self.transactions)
        happened["transactions refused"] = sum(transaction.done is False for transaction in self.transactions)
        return happened

    def _expired(self, now_ms: int) -> set[int]:
        """Messages that may have been dropped when their time was over."""
        gone = set()
        for name, known in self.sent.items():
            ttl_ms = self._ttl_ms(name)
            if ttl_ms is not None and not self.options[known.row].dead_letter_on_expiration:
                begins_ms = max(known.asked_ms, known.message.scheduled_ms or 0)
                if begins_ms + ttl_ms <= now_ms:
                    gone.add(name)
        return gone

    def _ttl_ms(self, name: int) -> int | None:
        known = self.sent[name]
        ttls = [ttl for ttl in (known.message.ttl_ms, self.options[known.row].default_ttl_ms) if ttl is not None]
        return min(ttls, default=None)

    def _same_id(self) -> dict[tuple[int, str | None, str], list[int]]:
        """Names that an entity with duplicate detection could take for one message."""
        groups: dict[tuple[int, str | None, str], list[int]] = {}
        for name, known in self.sent.items():
            if known.message.message_id is not None and known.stored is not False:
                groups.setdefault((known.row, known.message.key, known.message.message_id), []).append(name)
        return groups

    def _windows_ms(self, row: int) -> tuple[int, int]:
        window_ms = self.options[row].duplicate_window_ms
        assert window_ms is not None, "it detects duplicates"
        return self.windows_ms.get(row, (window_ms, window_ms))

    def _possible_duplicates(self, seen: set[int]) -> set[int]:
        """Messages that may rightly have been dropped: another with their id may have been accepted in the window."""
        dropped = set()
        for (row, _, _), names in self._same_id().items():
            _, window_ms = self._windows_ms(row)
            for name in names:
                mine = self.sent[name]
                for other in names:
                    theirs = self.sent[other]
                    latest_ms = theirs.answered_ms
                    if (
                        other != name
                        and name not in seen
                        and (mine.answered_ms is None or theirs.asked_ms <= mine.answered_ms)
                        and (latest_ms is None or mine.asked_ms - latest_ms < window_ms)
                    ):
                        dropped.add(name)
        return dropped

    def _check_no_duplicate_was_kept(self, seen: set[int]) -> None:
        for (row, _, _), names in self._same_id().items():
            window_ms, _ = self._windows_ms(row)
            kept = [name for name in names if name in seen and self.sent[name].answered_ms is not None]
            for first in kept:
                first_ms = self.sent[first].answered_ms
                for name in kept:
                    answered_ms = self.sent[name].answered_ms
                    assert first_ms is not None
                    assert answered_ms is not None
                    if self.sent[name].asked_ms > first_ms:
                        # The longest that can have passed in between must be long enough.
                        earliest_ms = self.sent[first].asked_ms
                        i.i17_duplicates_exactly_inside_the_window(
                            name, earliest_ms, answered_ms, window_ms, dropped=False
                        )

    def _check_transaction(self, transaction: Transaction, found: set[int]) -> None:
        sends = [bool(self.delivered[name]) or name in found for name in transaction.sends]
        completes = [
            self.delivered[name] == times and name not in found
            for name, times in transaction.completes.items()
            if name not in self.lost_young and (transaction.done or self.removals[name] == 1)
        ]
        i.i18_whole_or_not_at_all(transaction, sends + completes)
        if transaction.done is not None and not {*sends, *completes} <= {transaction.done}:
            raise BrokenPromise(f"{transaction} was not what its client was told")

    def _durable_end(self, row: int) -> int:
        return self.disk.durable.partitions.get(row, (0, 0, 0))[0]

    def _on_disk(self, row: int, kind: int, pos: int) -> bool:
        return entry_key(subqueue_key(row, kind), pos) in self.disk.durable.entries


def name_of(entry: Entry) -> int:
    """The name in a message's body."""
    assert entry.data is not None, "a delivery has its body"
    return name_in(entry.data)


def _unedited(data: bytes) -> bytes:
    """A stored form without application properties."""
    stored = StoredMessage(data)
    stored.application_properties = b""
    return stored.pack()
