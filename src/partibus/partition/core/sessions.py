"""The sessions of a partition in memory: held ones, and names of some that could be (row K4).

The store knows which sessions have messages; there may be millions. Memory has the held ones, each with its own ready
list, and a bounded list of *candidates*: sessions that got messages or lost their holder lately, and results of scans
of the store. A candidate may have no messages any longer, so its first page is read before a receiver gets it
(*probing*).

With one broker a session's lock is in memory only: its holder is a link to this process and ends with it. Where several
brokers share the stores, a row names the holder's broker (D21). A session whose row is found when a partition is loaded
is *away*: its holder has messages of it, which this owner does not know. That lasts until the holder comes and names
them, its broker has ended, or the lock expires.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable

from partibus.limits import PartitionLimits
from partibus.partition.core.deadlines import DeadlineHeap
from partibus.partition.core.lock_table import LockBatch
from partibus.partition.core.ready_list import ReadyList
from partibus.partition.core.slot_moves import SlotRules
from partibus.partition.core.step import Step
from partibus.partition.protocol.commands import AcceptSession, ReceiveGroups, Settle, Transact
from partibus.partition.protocol.keys import Entry, SubqueueKind
from partibus.partition.protocol.ports import SessionLockRow

CANDIDATES_MAX = 4_096
"""Candidates from arrivals and releases; a scan adds up to one page."""
CHANGED_MAX = 4_096
OPEN_MAX = 4_096
"""Message groups that arrivals open in memory."""
SESSION_BYTES = 3_000
"""Memory of a session that is held, without its window."""
NAME_BYTES = 200

AWAY_MS = 20_000
"""How long the holder of an away session has to come: longer than it tries to. The grant may be news to the holder, if
the owner was lost before it could answer.
"""


class ReadyListAway(ReadyList):
    """The ready list of an away session: no page is read, no entry waits, and arrivals stay in the store."""

    __slots__ = ("passed_over",)

    def __init__(self, row: SessionLockRow, end_pos: int) -> None:
        super().__init__(
            int(SubqueueKind.ACTIVE), end_pos=end_pos, is_empty=False, session=row.session, holder=row.lock_id
        )
        self.loading_page = True
        self.passed_over = False
        """Whether a deadline has passed that can't be handled now."""

    def arrive(self, entries: list[Entry], size_bytes: int, *, window_entries: int, window_bytes: int) -> None:
        """Leave new entries in the store."""

    def waiting(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return no entries: none waits."""
        self.passed_over = True
        return []


def join(ready_list: ReadyList, entries: list[Entry], limits: PartitionLimits, step: Step) -> None:
    """Add new entries of a session to its ready list."""
    size_bytes = entries[0].size_bytes if len(entries) == 1 else sum([entry.size_bytes for entry in entries])
    ready_list.arrive(
        entries, size_bytes, window_entries=limits.session_window_entries, window_bytes=limits.session_window_bytes
    )
    step.changed[ready_list] = None


class Session:
    """A session that is held, or about to be."""

    __slots__ = (
        "asked",
        "away_until_ms",
        "holder",
        "is_group",
        "lock_id",
        "locks",
        "name",
        "ready_list",
        "receiver",
        "state",
        "state_known",
        "until_ms",
    )

    def __init__(
        self,
        name: str,
        lock_id: int,
        end_pos: int,
        asked: AcceptSession | None,
        *,
        edited: bool = False,
        is_empty: bool = False,
    ) -> None:
        """Make a session; ``is_empty``: the store has no message of it."""
        self.name = name
        self.lock_id = lock_id
        self.ready_list = ReadyList(
            int(SubqueueKind.ACTIVE), end_pos=end_pos, is_empty=is_empty, session=name, holder=lock_id, edited=edited
        )
        self.locks = LockBatch(lock_id, 0, ())
        """The locks of its messages, in the ready list's table while there are any. They end with the session's."""
        self.asked = asked
        """The request that gets the session if it has messages; None once it is held."""
        self.receiver = 0
        self.is_group = False
        """Whether it is a message group in memory, which has no holder."""
        self.holder = ""
        """The run of the holder's broker, where the lock is stored."""
        self.until_ms = 0
        self.away_until_ms = 0
        """The time at which the session is free if its holder has not come back; 0: the holder is here."""
        self.state: bytes | None = None
        self.state_known = False

    @classmethod
    def away(cls, row: SessionLockRow, end_pos: int) -> "Session":
        """Return a session as the store knows it."""
        session = cls(row.session, row.lock_id, end_pos, None)
        session.ready_list = ReadyListAway(row, end_pos)
        session.holder = row.holder
        session.hold_until(row.until_ms)
        return session

    @property
    def is_away(self) -> bool:
        """Its holder has not come to this owner yet."""
        return type(self.ready_list) is ReadyListAway

    def hand_out(self, entries: list[Entry]) -> None:
        """Give entries to the holder, under the session's lock."""
        held = self.locks.entries
        if not held:
            self.ready_list.locks.batches[self.lock_id] = self.locks
        for entry in entries:
            held[entry.pos] = entry

    def hold_until(self, until_ms: int) -> None:
        """Set the deadline of the lock of the session and of all its messages."""
        self.until_ms = self.locks.until_ms = until_ms


class Groups:
    """The message groups that receivers without sessions use (`partibus.partition.core.groups`)."""

    __slots__ = ("free", "in_flight", "probed", "total", "turns", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[ReceiveGroups] = deque()
        self.free: OrderedDict[str, Session | None] = OrderedDict()
        """Open groups whose head is visible, in the order in which they are served; None for a group that is probed.

        A probed group keeps its place: pages come from the store in any order.
        """
        self.probed: set[str] = set()
        """Open groups that wait for rows or bodies from the store."""
        self.in_flight: dict[str, set[int]] = {}
        """The positions of messages in flight, by group."""
        self.total = 0
        """The number of messages in flight."""
        self.turns = 0
        """Groups served since candidates were last opened: as many candidates have their turn, too."""

    @property
    def ready(self) -> int:
        """The number of groups that can be served."""
        return len(self.free) - len(self.probed)

    @property
    def next_is_probed(self) -> bool:
        """Whether the group whose turn it is waits for the store."""
        return bool(self.probed) and next(iter(self.free.values())) is None

    def probe(self, name: str) -> None:
        """Note that a group waits for the store; a new one goes behind the others."""
        self.probed.add(name)
        self.free[name] = None

    def release(self, session: "Session") -> None:
        """Note that a group's head is visible; a group that was not among the free and probed ones goes behind them."""
        self.probed.discard(session.name)
        self.free[session.name] = session

    def withdraw(self, name: str) -> None:
        """Take a group out of the free and probed ones."""
        self.probed.discard(name)
        self.free.pop(name, None)

    def barrier(self, name: str, end_pos: int) -> int:
        """Return the position at which the run of a group ends, at most ``end_pos``."""
        held = self.in_flight.get(name)
        return end_pos if held is None else min(end_pos, *held)

    def hand_out(self, name: str, entries: Iterable[Entry]) -> None:
        """Note that messages of a group are in flight."""
        for entry in entries:
            self.in_flight.setdefault(name, set()).add(entry.pos)
            self.total += 1

    def take_back(self, entries: Iterable[Entry]) -> dict[str, None]:
        """Note that messages are no longer in flight; return the groups of those that were."""
        in_flight = self.in_flight
        names: dict[str, None] = {}
        for entry in entries:
            name = entry.session or ""
            held = in_flight.get(name)
            if held is None or entry.pos not in held:
                continue
            held.discard(entry.pos)
            self.total -= 1
            if not held:
                del in_flight[name]
            names[name] = None
        return names


class Sessions:
    """Held sessions, candidates, and requests for one."""

    __slots__ = (
        "_changed",
        "_deadlines",
        "_drained_by",
        "_draining",
        "_receivers",
        "by_lock",
        "candidates",
        "ended_bytes",
        "groups",
        "held",
        "last_group",
        "may_have_more",
        "overflowed",
        "resuming",
        "rules",
        "scanned_to",
        "scanning",
        "taken",
        "waiting",
    )

    def __init__(self, *, may_have_more: bool) -> None:
        self.held: dict[str, Session] = {}
        """Held and probed sessions by name."""
        self.by_lock: dict[int, Session] = {}
        self._receivers: dict[int, Session] = {}
        self._deadlines = DeadlineHeap()
        """The ends of locks by lock id."""
        self.candidates: OrderedDict[str, None] = OrderedDict()
        """Sessions with messages and no holder, in the order in which they became candidates."""
        self.waiting: deque[AcceptSession] = deque()
        self.may_have_more = may_have_more
        """The store may have sessions with messages that are neither held nor candidates."""
        self.scanning = False
        self.scanned_to: str | None = None
        self.taken = 0
        """Candidates taken since the last scan was asked for."""
        self.overflowed = False
        """A name was left out since the scan that goes on began at the first one."""
        self._changed: set[str] = set()
        self._draining: set[str] = set()
        self._drained_by = 0
        self.last_group = 0
        """The number of the group that an arrival opened last. They are negative, as no lock id is."""
        self.ended_bytes = 0
        """Counted as windows of sessions that have ended since the partition looked."""
        self.groups: Groups | None = None
        """The message groups; None: no receiver without a session has come."""
        self.rules: SlotRules | None = None
        """The slots that have moved here or away (ADR 0026); None: none has."""
        self.resuming: dict[int, list[Settle | Transact]] = {}
        """Lock ids of sessions that are away, or of whose messages the rows are being read -> settlements that wait."""

    def restore(self, rows: Iterable[SessionLockRow], end_pos: int) -> None:
        """Sessions that were held when the last owner was lost, or gave the partition up."""
        for row in rows:
            session = Session.away(row, end_pos)
            self.open(session)
            self.hold(session, row.until_ms)
            self.resuming[row.lock_id] = []

    def await_holders(self, now_ms: int) -> None:
        """Start the time in which holders of away sessions must come: the partition was loaded now."""
        for lock_id in self.resuming:
            session = self.by_lock[lock_id]
            session.away_until_ms = now_ms + AWAY_MS
            self._deadlines.set(lock_id, min(session.until_ms, session.away_until_ms))

    def must_wait(self, command: Settle | Transact) -> bool:
        """Keep a settlement that came before the holder's messages are known; return whether it was kept."""
        parts = command.commands if isinstance(command, Transact) else (command,)
        for part in parts:
            if isinstance(part, Settle):
                for lock_id, _ in part.tokens:
                    if lock_id in self.resuming:
                        self.resuming[lock_id].append(command)
                        return True
        return False

    def find(self, lock_id: int, now_ms: int) -> Session | None:
        """Return the session held under a lock id, while the lock holds."""
        session = self.by_lock.get(lock_id)
        return session if session is not None and session.until_ms > now_ms else None

    def ready_list_for(self, receiver: int) -> ReadyList | None:
        """Return the ready list that a receiver takes from."""
        session = self._receivers.get(receiver)
        return None if session is None else session.ready_list

    def arrive(self, entries: list[Entry], limits: PartitionLimits, step: Step) -> None:
        """Add new entries to the ready lists of held sessions; for others, keep only the name.

        Entries whose receiver waits may not need the list (`partition.core.grants.grant_awaited`).
        """
        groups: dict[str, list[Entry]] = {}
        for entry in entries:
            name = entry.session or ""
            if name in groups:
                groups[name].append(entry)
            else:
                groups[name] = [entry]
        free: list[str] = []
        for name, group in groups.items():
            session = self.held.get(name)
            if session is None and self.groups is not None and self._has_nothing_stored(name):
                session = self._open_group(name, group[0].pos)
            if session is None:
                free.append(name)
            elif session.ready_list.demands:
                step.awaited.append((session.ready_list, group))
            else:
                join(session.ready_list, group, limits, step)
        self.add_candidates(free)

    def _has_nothing_stored(self, name: str) -> bool:
        """Tell whether a group surely has no messages but the arriving ones, so that its list needs no page."""
        groups = self.groups
        return (
            groups is not None
            and not (self.may_have_more or self.overflowed or self.scanning)
            and name not in self.candidates
            and name not in groups.in_flight
            and len(self.held) < OPEN_MAX
            and (self.rules is None or self.rules.lets_pass(name))
        )

    def _open_group(self, name: str, end_pos: int) -> Session:
        """Open a group whose first message is about to arrive."""
        self.last_group -= 1
        session = Session(name, self.last_group, end_pos, None, is_empty=True)
        session.is_group = True
        self.open(session)
        return session

    def is_in_flight(self, name: str | None, pos: int) -> bool:
        """Tell whether a receiver of message groups has the message."""
        return self.groups is not None and pos in self.groups.in_flight.get(name or "", ())

    def take_back(self, entries: Iterable[Entry], step: Step) -> None:
        """Note that messages of groups are no longer in flight: their groups may be free."""
        if self.groups is None:
            return
        for name in self.groups.take_back(entries):
            session = self.held.get(name)
            if session is not None:
                step.change(session.ready_list)
            else:
                self.note_changed(name)
                self.add_candidate(name)

    def add_candidate(self, name: str) -> None:
        """Note a session without a holder that may have messages, unless it is held back for another partition."""
        self.add_candidates((name,))

    def add_candidates(self, names: Iterable[str]) -> None:
        """Note several sessions, each as `add_candidate` does."""
        candidates = self.candidates
        for name in names:
            if self.rules is not None and not self.rules.lets_pass(name):
                continue
            if len(candidates) < CANDIDATES_MAX:
                candidates[name] = None
            elif name not in candidates:
                self.may_have_more = self.overflowed = True

    def scan_anew(self) -> None:
        """Have a scan of all sessions in the store follow, also after one that goes on: it has passed some."""
        self.may_have_more = True
        self.overflowed = self.overflowed or self.scanning or self.scanned_to is not None

    def add_scanned(self, names: list[str]) -> None:
        """Put sessions that a scan found in front of the arrivals, which are younger."""
        for name in reversed(names):
            if name not in self.held and (self.rules is None or self.rules.lets_pass(name)):
                self.candidates[name] = None
                self.candidates.move_to_end(name, last=False)

    # -- what a new holder must not read before it is written -------------------------------------------------------

    def note_changed(self, name: str) -> None:
        """Note that entries of a session without a holder were changed, perhaps not durably yet."""
        if len(self._changed) < CHANGED_MAX:
            self._changed.add(name)

    def is_changed(self, name: str) -> bool:
        """Tell whether the first page of the session's next holder has to wait for earlier rows.

        Above a number of changed sessions this holds for all, until one page has waited.
        """
        changed, draining = self._changed, self._draining
        return name in changed or name in draining or max(len(changed), len(draining)) >= CHANGED_MAX

    def begin_drain(self, lock_id: int) -> None:
        """Note a page that waits for all rows written until now."""
        if not self._drained_by:
            self._draining, self._changed = self._changed, set()
            self._drained_by = lock_id

    def end_drain(self, lock_id: int) -> None:
        """End the wait that `begin_drain` noted: the page came."""
        if self._drained_by == lock_id:
            self._draining.clear()
            self._drained_by = 0

    # -- candidates --------------------------------------------------------------------------------------------------

    def next_candidate(self) -> str | None:
        """Take the name of a session without a holder."""
        while self.candidates:
            name, _ = self.candidates.popitem(last=False)
            self.taken += 1
            if name not in self.held:
                return name
        return None

    def next_session(self) -> str | None:
        """Take the name of a session without a holder, of which no message is in flight."""
        if self.groups is None:
            return self.next_candidate()
        found, passed_over = None, []
        while found is None and (name := self.next_candidate()) is not None:
            if name in self.groups.in_flight:
                passed_over.append(name)
            else:
                found = name
        self.candidates.update(dict.fromkeys(passed_over))
        return found

    def open(self, session: Session) -> None:
        """Add the ready list of a session."""
        self.held[session.name] = session
        self.by_lock[session.lock_id] = session

    def grant(self, session: Session, asked: AcceptSession, until_ms: int) -> None:
        """Give a session to a request, until then."""
        session.asked = None
        session.receiver = asked.receiver
        self._receivers[asked.receiver] = session
        self.hold(session, until_ms)

    def follow(self, session: Session, receiver: int) -> None:
        """Note that another receiver holds the session."""
        if self._receivers.get(session.receiver) is session:
            del self._receivers[session.receiver]
        session.receiver = receiver
        self._receivers[receiver] = session
        self._deadlines.set(session.lock_id, session.until_ms)

    def away(self) -> list[tuple[int, str]]:
        """Return (lock id, run of the holder's broker) of the sessions whose holder is away."""
        sessions = [self.by_lock[lock_id] for lock_id in self.resuming]
        return [(session.lock_id, session.holder) for session in sessions if session.is_away]

    def hold(self, session: Session, until_ms: int) -> None:
        """Set the end of a session's lock."""
        session.hold_until(until_ms)
        self._deadlines.set(session.lock_id, until_ms)

    def close(self, session: Session) -> None:
        """Remove a session without a holder."""
        del self.held[session.name]
        del self.by_lock[session.lock_id]
        self._deadlines.discard(session.lock_id)
        self.ended_bytes += max(0, session.ready_list.weighed)
        session.ready_list.weighed = -1
        if self._receivers.get(session.receiver) is session:
            del self._receivers[session.receiver]

    @property
    def is_idle(self) -> bool:
        """Whether all sessions are free, and no receiver asks for one."""
        gate = None if self.rules is None else self.rules.gate
        is_gated = gate is not None and (gate.asker is not None or bool(gate.accepts))
        is_waited = bool(self.waiting) or (self.groups is not None and bool(self.groups.waiting))
        is_held = any(not session.is_group for session in self.held.values())
        return not (is_held or is_waited or self.resuming or self.scanning or is_gated)

    @property
    def memory_bytes(self) -> int:
        """The memory of sessions beside their windows."""
        return SESSION_BYTES * len(self.held) + NAME_BYTES * (len(self.candidates) + len(self._changed))

    def next_deadline_ms(self) -> int | None:
        """Return when the first lock ends."""
        return self._deadlines.earliest_ms()

    def expired(self, now_ms: int) -> list[Session]:
        """Return the sessions whose lock has ended."""
        return [self.by_lock[lock_id] for _, lock_id in self._deadlines.take_due(now_ms)]
