"""The reference model of a partition: what `partition.core.machine` must amount to, in the most obvious code.

No paging, no rows, no bytes let go, no loads, no efficiency: every message is in one list per sub-queue, in order of
position. Where the machine may choose (how many messages one grant has, which session is next, when an expired or due
message is noticed) the model is told what it chose and raises `AssertionError` if that was not allowed: one of the
promises of `tests.kit.invariants` where it is one of those.

A sequence counter is unique in a partition and survives dead-lettering; a scheduled message gets a new one when it is
activated. So a message is known by its *name*: the first number that it was given.
"""

from bisect import insort
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from operator import attrgetter

from partibus.message import Message, as_scheduled, with_application_properties
from partibus.partition.protocol.commands import Enqueue, LockToken, Outcome, Settle
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.options import PartitionOptions
from tests.kit import invariants as i
from tests.kit.cursor_model import CursorModel

READY, RESERVED, LOCKED, PENDING_DEAD_LETTER = "ready", "reserved", "locked", "doomed"
DEFERRED, SCHEDULED, DELAYED = "deferred", "scheduled", "delayed"
ACTIVE, DEAD_LETTER = SubqueueKind.ACTIVE, SubqueueKind.DEAD_LETTER

Reason = tuple[str | None, str | None]


@dataclass(slots=True)
class Item:
    """One message."""

    name: int
    sequence: int
    pos: int
    sent: bytes
    """The stored form as it came."""
    data: bytes
    """The stored form as it is."""
    session: str | None
    ttl_ms: int | None
    enqueued_ms: int
    expires_ms: int | None
    state: str = READY
    due_ms: int | None = None
    """When a scheduled or delayed message becomes ready."""
    delivery_count: int = 0
    deferred: bool = False
    """Has been deferred: only to be had by its number, also when its lock ends."""
    delivered: bool = False
    hold: int = 0
    """Lock id, reservation id, or lock id of the session that it was handed out under."""
    until_ms: int = 0
    receiver: int = 0
    """The receiver that has reserved the message."""
    changes: dict[str, object] = field(default_factory=dict)
    """Application properties that were set since it came."""
    before: bytes | None = None
    """The stored form before a receiver dead-lettered it."""
    reason: Reason | None = None
    """Why a doomed message goes to the dead-letter sub-queue, once its move is due."""


@dataclass(slots=True)
class SessionLock:
    """A session that is held."""

    session: str
    receiver: int
    until_ms: int


@dataclass
class Model:
    """One partition."""

    options: PartitionOptions
    next_sequence: int = 1
    queues: dict[int, list[Item]] = field(default_factory=lambda: {ACTIVE: [], DEAD_LETTER: []})
    sessions: dict[int, SessionLock] = field(default_factory=dict)
    """Session locks by lock id."""
    states: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    """Session -> its state, and when that was set."""
    ids: dict[tuple[str | None, str], int] = field(default_factory=dict)
    """(session id or partition key, message id) -> when it was last accepted."""
    faded: set[tuple[str | None, str]] = field(default_factory=set)
    """Ids that had left the window before it became longer. The store may have removed them, or not yet."""
    accepted: list[int] = field(default_factory=list)
    """Names of all that was ever accepted."""
    dispositions: dict[int, str] = field(default_factory=dict)
    """Name -> why the message has left."""
    overtaking: bool = False
    """Messages were reserved: who gives them back lets others pass."""
    cursors: dict[int, CursorModel] = field(default_factory=lambda: {ACTIVE: CursorModel(), DEAD_LETTER: CursorModel()})
    highest: dict[str | None, int] = field(default_factory=dict)
    """Session -> number of its last first delivery."""

    # -- in ----------------------------------------------------------------------------------------------------------

    def take_numbers(self, count: int) -> int:
        """Sequence counters for later; the first of them."""
        first = self.next_sequence
        self.next_sequence += count
        return first

    def enqueue(
        self, messages: list[Message], kept: Mapping[int, bytes], now_ms: int, first_sequence: int | None = None
    ) -> int:
        """Store messages; the sequence counter of the first. ``kept`` is what was stored, by number: a duplicate
        takes a number and is dropped. ``first_sequence`` was taken before; it goes to messages that have to wait for
        their time, one that is active at once gets its place at the end."""
        first = self.take_numbers(len(messages)) if first_sequence is None else first_sequence
        for name, message in enumerate(messages, first):
            self.accepted.append(name)
            waits = message.scheduled_ms is not None and message.scheduled_ms > now_ms
            number = name if waits or first_sequence is None else self.next_sequence
            data = as_scheduled(message.data) if waits else message.data
            dropped = kept.get(number) != data
            self._remember_id(name, message, now_ms, dropped=dropped)
            if dropped:
                self.dispositions[name] = "dropped as a duplicate"
                continue
            self.next_sequence = max(self.next_sequence, number + 1)
            item = Item(name, number, number, data, data, message.session_id, message.ttl_ms, now_ms, None)
            if waits:
                item.state, item.due_ms = SCHEDULED, message.scheduled_ms
            else:
                item.expires_ms = self._expiry(item)
            insort(self.queues[ACTIVE], item, key=attrgetter("pos"))
        return first

    def _remember_id(self, name: int, message: Message, now_ms: int, *, dropped: bool) -> None:
        window_ms = self.options.duplicate_window_ms
        if window_ms is None or message.message_id is None:
            assert not dropped, f"message {name} was dropped, and has no id to tell it by"
            return
        key = (message.session_id if message.session_id is not None else message.partition_key, message.message_id)
        if key not in self.faded or (dropped and now_ms - self.ids[key] >= window_ms):
            i.i17_duplicates_exactly_inside_the_window(name, self.ids.get(key), now_ms, window_ms, dropped=dropped)
        if not dropped:
            self.ids[key] = now_ms
            self.faded.discard(key)

    def lengthen_window(self, window_ms: int, now_ms: int) -> None:
        """Note the ids that have left the window, which is about to become longer."""
        self.faded |= {key for key, accepted_ms in self.ids.items() if now_ms - accepted_ms >= window_ms}

    def _expiry(self, item: Item) -> int | None:
        ttls = [ttl for ttl in (item.ttl_ms, self.options.default_ttl_ms) if ttl is not None]
        return item.enqueued_ms + min(ttls) if ttls else None

    @property
    def size_bytes(self) -> int:
        """The bytes of all messages and session states."""
        messages = sum(len(item.data) for queue in self.queues.values() for item in queue)
        return messages + sum(len(state) for state, _ in self.states.values())

    @property
    def is_full(self) -> bool:
        """Sends are refused."""
        return self.options.size_bytes_max is not None and self.size_bytes >= self.options.size_bytes_max

    # -- out ---------------------------------------------------------------------------------------------------------

    def ready(self, kind: int, session: str | None = None) -> list[Item]:
        """Return the messages that may be granted, in order; of one session where there are sessions."""
        sessions = kind == ACTIVE and self.options.requires_session
        return [item for item in self.queues[kind] if item.state == READY and (not sessions or item.session == session)]

    def held(self, kind: int, state: str) -> list[Item]:
        """Return the messages in a state."""
        return [item for item in self.queues[kind] if item.state == state]

    def grant(
        self,
        kind: int,
        sequences: list[int],
        hold: int,
        until_ms: int,
        now_ms: int,
        state: str,
        session: int = 0,
        receiver: int = 0,
    ) -> list[Item]:
        """Messages were handed out: must be the first that are ready, and not expired. READY: removed as well.
        ``session`` is the lock id of the session that the receiver named."""
        holder = self.sessions[session] if session else None
        assert (holder is not None) == (kind == ACTIVE and self.options.requires_session)
        for sequence in sequences:
            item = self.find(kind, sequence)
            i.i04_one_live_lock(item.name, item.until_ms if item.state == LOCKED else None, now_ms)
            i.i10_deferred_only_by_number(item.name, [item.name] if item.deferred else [])
            i.i11_scheduled_never_early(
                item.name, item.due_ms if item.state == SCHEDULED else None, now_ms, self.dispositions
            )
        items = self.ready(kind, holder.session if holder is not None else None)[: len(sequences)]
        assert [item.sequence for item in items] == sequences, f"handed out {sequences}, first in line are {items}"
        self._hand_out(kind, items, hold, until_ms, now_ms, state)
        for item in items:
            item.receiver = receiver
        return items

    def lock_reserved(
        self, kind: int, tokens: list[LockToken], hold: int, until_ms: int, now_ms: int, state: str
    ) -> list[Item]:
        """Reservations become locks; the ones that lapsed or expired are left out."""
        self._end_lapsed(kind, now_ms)
        found = self._find(kind, RESERVED, tokens, now_ms)
        items = [item for item in found if not self.is_expired(kind, item, now_ms)]
        self._hand_out(kind, items, hold, until_ms, now_ms, state)
        return items

    def return_reserved(self, kind: int, tokens: list[LockToken], now_ms: int) -> None:
        """Reservations are given up."""
        self._end_lapsed(kind, now_ms)
        returned = self._find(kind, RESERVED, tokens, now_ms)
        for item in returned:
            item.state = READY
        self._end_later(kind, returned)

    def is_to_be_had_by_number(self, kind: int, sequence: int, session: int = 0) -> bool:
        """A deferred message without a lock, of the session that the asker holds."""
        holder = self.sessions[session].session if session else None
        return any(
            item.sequence == sequence and item.state == DEFERRED and (not session or item.session == holder)
            for item in self.queues[kind]
        )

    def grant_deferred(
        self, kind: int, sequences: list[int], hold: int, until_ms: int, now_ms: int, state: str, session: int = 0
    ) -> list[Item]:
        """Deferred messages were handed out to who named them."""
        for sequence in sequences:
            assert self.is_to_be_had_by_number(kind, sequence, session), f"no deferred message {sequence}"
        items = [self.find(kind, sequence) for sequence in sequences]
        self._hand_out(kind, items, hold, until_ms, now_ms, state)
        return items

    def _hand_out(self, kind: int, items: list[Item], hold: int, until_ms: int, now_ms: int, state: str) -> None:
        for item in items:
            # A reservation was good when it was made.
            limit = self.options.max_delivery_count if kind == ACTIVE and item.state != RESERVED else None
            if limit is not None and item.deferred:
                limit += 1  # the deferral counts, and the message can be received once more
            assert not self.is_expired(kind, item, now_ms), f"handed out after its time to live: {item}"
            i.i05_never_after_complete(item.name, self.dispositions)
            i.i07_delivery_count_never_falls(item.name, item.delivery_count, item.delivery_count, limit)
            if state == RESERVED:
                self.overtaking = True
            elif not (self.overtaking or item.delivered or item.deferred) and kind == ACTIVE:
                line = item.session if self.options.requires_session else None
                i.i12_first_deliveries_in_order(item.name, item.sequence, self.highest.get(line, 0))
                self.highest[line] = item.sequence
            item.delivered = item.delivered or state != RESERVED
            item.state, item.hold, item.until_ms = state, hold, until_ms
            if state == READY:
                self.remove(kind, item, "received and deleted")

    # -- settled -----------------------------------------------------------------------------------------------------

    def settle(self, command: Settle, now_ms: int) -> list[int]:
        """Apply an outcome; the indexes of tokens whose lock had ended."""
        items = self._find(command.kind, LOCKED, command.tokens, now_ms)
        known = {(item.hold, item.pos) for item in items}
        for item in items:
            self._settle(command, item, now_ms)
        return [index for index, token in enumerate(command.tokens) if token not in known]

    def _settle(self, command: Settle, item: Item, now_ms: int) -> None:
        kind = command.kind
        i.i09_expired_lock_cannot_settle(f"message {item.name}", item.until_ms, now_ms)
        if command.outcome is Outcome.COMPLETE:
            self.remove(kind, item, "completed")
            return
        if command.outcome is Outcome.DEAD_LETTER:
            item.before = item.data
        if command.properties:
            self._change(item, command.properties)
        if command.outcome is Outcome.DEAD_LETTER:
            item.state, item.reason = PENDING_DEAD_LETTER, (command.reason, command.description)
        elif command.outcome is Outcome.DEFER:
            item.state, item.deferred = DEFERRED, True
            item.delivery_count += kind == ACTIVE
        elif command.outcome is Outcome.RELEASE:
            self._give_back(kind, item, counted=False)
        else:
            self._give_back(kind, item, counted=True)
            if item.state == READY and (delay_ms := self.delay_ms(command, item)):
                item.state, item.due_ms = DELAYED, now_ms + delay_ms

    def delay_ms(self, command: Settle, item: Item) -> int:
        """How long an abandoned message stays away: as the receiver says, else as the entity says."""
        options = self.options
        if command.delay_ms or options.requires_session or command.kind != ACTIVE:
            return command.delay_ms
        doubled = options.redelivery_delay_ms << (item.delivery_count - 1)
        return min(doubled, max(options.redelivery_delay_ms, options.redelivery_delay_max_ms))

    def renew(self, kind: int, tokens: list[LockToken], now_ms: int) -> list[int]:
        """Lock messages for longer, all or none: the indexes of tokens whose lock had ended."""
        items = self._find(kind, LOCKED, tokens, now_ms)
        known = {(item.hold, item.pos) for item in items}
        lost = [index for index, token in enumerate(tokens) if token not in known]
        if not lost:
            for item in items:
                item.until_ms = now_ms + self.options.lock_duration_ms
        return lost

    def is_scheduled(self, sequence: int) -> bool:
        """A message that can be cancelled."""
        return any(item.sequence == sequence for item in self.held(ACTIVE, SCHEDULED))

    def cancel(self, sequences: list[int]) -> list[int]:
        """Remove scheduled messages, all or none; the numbers that name none."""
        unknown = [sequence for sequence in sequences if not self.is_scheduled(sequence)]
        if not unknown:
            for sequence in dict.fromkeys(sequences):
                self.remove(ACTIVE, self.find(ACTIVE, sequence), "cancelled")
        return unknown

    def purge(self, kind: int, sequence: int, enqueued_before_ms: int, session: str | None) -> None:
        """A message was removed by a batch delete."""
        item = self.find(kind, sequence)
        assert item.state == READY, f"purged while {item.state}: {item}"
        assert item.enqueued_ms < enqueued_before_ms, f"purged, and came later than {enqueued_before_ms}: {item}"
        assert session is None or item.session == session, f"purged, and not of session {session!r}: {item}"
        self.remove(kind, item, "purged")

    def transact(self, commands: list[Enqueue | Settle], kept: Mapping[int, bytes], now_ms: int) -> None:
        """Do all of it."""
        for command in commands:
            if isinstance(command, Enqueue):
                self.enqueue(command.messages, kept, now_ms, command.first_sequence)
            else:
                self.settle(command, now_ms)

    def cannot_transact(self, commands: list[Enqueue | Settle], now_ms: int) -> int | None:
        """The index of the command because of which nothing can be done."""
        twin = deepcopy(self)
        for index, command in enumerate(commands):
            if isinstance(command, Enqueue):
                if self.is_full:  # of the moment before
                    return index
            elif twin.settle(command, now_ms):
                return index
        return None

    # -- time --------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Locks and reservations that are over go back, the locks counted."""
        for kind, queue in self.queues.items():
            self._end_lapsed(kind, now_ms)
            for item in list(queue):
                if item.state == LOCKED and item.until_ms <= now_ms and item.hold not in self.sessions:
                    self._give_back(kind, item, counted=True)

    def _end_lapsed(self, kind: int, now_ms: int) -> None:
        lapsed = [item for item in self.held(kind, RESERVED) if item.until_ms <= now_ms]
        for item in lapsed:
            item.state = READY
        self._end_later(kind, lapsed)

    def _end_later(self, kind: int, ended: list[Item]) -> None:
        """A receiver that loses a reservation loses its later ones, too."""
        for item in self.held(kind, RESERVED):
            if any(item.receiver == other.receiver and item.hold > other.hold for other in ended):
                item.state = READY

    def activate(self, sequence: int, new_sequence: int, now_ms: int) -> Item:
        """A scheduled message has become a new one at the end."""
        item = self.find(ACTIVE, sequence)
        assert item.state == SCHEDULED, f"activated and not scheduled: {item}"
        i.i11_scheduled_never_early(item.name, item.due_ms, now_ms, self.dispositions)
        i.i13_numbers_rise(f"message {item.name}", new_sequence, self.next_sequence - 1)
        self.next_sequence = new_sequence + 1
        self.queues[ACTIVE].remove(item)
        self.queues[ACTIVE].append(item)
        item.state, item.due_ms, item.enqueued_ms = READY, None, now_ms
        item.sequence = item.pos = new_sequence
        item.expires_ms = self._expiry(item)
        return item

    def move_to_end(self, kind: int, sequence: int, new_sequence: int, new_pos: int, now_ms: int) -> Item:
        """A delayed message is back, and got a new place."""
        item = self.find(kind, sequence)
        assert item.pos < self.cursors[kind].passed_to, f"lost its place for nobody: {item}"
        self._return(kind, item, now_ms)
        if kind == ACTIVE:
            assert new_sequence == self.next_sequence
            self.next_sequence += 1
        item.sequence, item.pos = new_sequence, new_pos
        self.queues[kind].remove(item)
        self.queues[kind].append(item)
        return item

    def return_delayed(self, kind: int, sequence: int, now_ms: int) -> None:
        """A delayed message is back at its place."""
        item = self.find(kind, sequence)
        assert item.pos >= self.cursors[kind].passed_to, f"a cursor that completes has passed it: {item}"
        self._return(kind, item, now_ms)

    def _return(self, kind: int, item: Item, now_ms: int) -> None:
        assert item.state == DELAYED, f"came back and was not delayed: {item}"
        assert item.due_ms is not None
        assert item.due_ms <= now_ms, f"came back early: {item}"
        item.state, item.due_ms = READY, None
        if kind == ACTIVE:
            item.expires_ms = self._expiry(item)  # by the entity as it is now

    def expire(self, kind: int, sequence: int, now_ms: int) -> None:
        """An expired message was noticed and dropped."""
        item = self.find(kind, sequence)
        assert item.state in (READY, RESERVED, DEFERRED, DELAYED), f"dropped while {item.state}: {item}"
        assert self.is_expired(kind, item, now_ms), f"dropped before its time: {item}"
        assert not self.options.dead_letter_on_expiration, f"dropped, not dead-lettered: {item}"
        self.remove(kind, item, "expired")

    def dead_letter(self, kind: int, sequence: int, pos: int, data: bytes, now_ms: int) -> Item:
        """A message went to the end of the dead-letter sub-queue; with ``data``, which says why."""
        item = self.find(kind, sequence)
        reasons: list[Reason] = [] if item.reason is None else [item.reason]
        if item.state == PENDING_DEAD_LETTER or (
            item.state in (READY, DEFERRED) and self.exceeds_max_deliveries(kind, item)
        ):
            reasons.append(self._max_deliveries_reason())  # as the entity is now: it may have been updated
        if item.state in (READY, RESERVED, DEFERRED, DELAYED) and self.is_expired(kind, item, now_ms):
            assert self.options.dead_letter_on_expiration or reasons, f"dead-lettered, not dropped: {item}"
            reasons.append(("TTLExpiredException", "The message expired and was dead lettered."))
        assert reasons, f"dead-lettered for no reason: {item}"
        names = ("DeadLetterReason", "DeadLetterErrorDescription")
        changes: dict[str, object] = {}
        for reason in reasons:
            changes = {name: text for name, text in zip(names, reason, strict=True) if text is not None}
            if data == (with_application_properties(item.data, changes) if changes else item.data):
                break
        self.cursors[kind].leave(item.pos, item.sequence, item.before or item.data)
        item.before = None
        if changes:
            self._change(item, changes)
        self.queues[kind].remove(item)
        item.state, item.pos, item.reason = READY, pos, None
        insort(self.queues[DEAD_LETTER], item, key=attrgetter("pos"))
        item.expires_ms = item.due_ms = None
        item.deferred = False
        return item

    # -- cursors -----------------------------------------------------------------------------------------------------

    def is_congested(self, kind: int) -> bool:
        """Tell whether a receiver has a message or a session for which an exclusive reader has to wait."""
        sessions = kind == ACTIVE and bool(self.sessions)
        return sessions or any(item.state in (LOCKED, PENDING_DEAD_LETTER) for item in self.queues[kind])

    def take(self, kind: int) -> None:
        """Let one reader read alone: all other locks end. Sessions have ended before."""
        for item in self.queues[kind]:
            assert item.state != PENDING_DEAD_LETTER, f"is on its way to the dead letters: {item}"
            if item.state in (LOCKED, RESERVED):
                item.state = DEFERRED if item.deferred else READY

    def consume(self, kind: int, sequence: int, chosen: Sequence[int]) -> None:
        """The commit of who reads alone has completed a message: one of the ``chosen`` ones, if there are any."""
        item = self.find(kind, sequence)
        reader = self.cursors[kind].alone
        assert reader is not None, f"nobody reads alone: {item}"
        assert item.state == READY, f"completed while {item.state}: {item}"
        assert item.pos in reader.shown, f"completed, and its reader was never shown it: {item}"
        if chosen:
            assert item.pos in chosen, f"completed, and it was not chosen: {item}"
        else:
            assert reader.readable_from <= item.pos < reader.position, f"completed outside of what was passed: {item}"
        self.remove(kind, item, "consumed")

    # -- sessions ----------------------------------------------------------------------------------------------------

    def holder(self, session: str, now_ms: int) -> SessionLock | None:
        """Return the holder whose lock on the session has not ended."""
        found = [lock for lock in self.sessions.values() if lock.session == session and lock.until_ms > now_ms]
        return found[0] if found else None

    def free_sessions(self, now_ms: int) -> set[str | None]:
        """Return the sessions without a holder that surely have messages to grant."""
        return {
            item.session
            for item in self.queues[ACTIVE]
            if item.state == READY
            and not self.is_spent(ACTIVE, item, now_ms)
            and item.session is not None
            and self.holder(item.session, now_ms) is None
        }

    def accept(self, session: str, lock_id: int, receiver: int, until_ms: int, now_ms: int, *, named: bool) -> None:
        """A session was given to a receiver."""
        holder = self.holder(session, now_ms)
        i.i15_one_holder_per_session(session, holder.until_ms if holder is not None else None, now_ms)
        assert until_ms == now_ms + self.options.lock_duration_ms
        if not named:
            assert any(item.session == session for item in self.queues[ACTIVE]), f"session {session!r} has no messages"
        self.sessions[lock_id] = SessionLock(session, receiver, until_ms)

    def is_held(self, lock_id: int, now_ms: int) -> bool:
        """The session's lock has not ended."""
        return lock_id in self.sessions and self.sessions[lock_id].until_ms > now_ms

    def renew_session(self, lock_id: int, now_ms: int) -> int:
        """Hold a session for longer; until when."""
        until_ms = self.sessions[lock_id].until_ms = now_ms + self.options.lock_duration_ms
        for item in self.held(ACTIVE, LOCKED):
            if item.hold == lock_id:
                item.until_ms = until_ms
        return until_ms

    def end_session(self, lock_id: int, *, counted: bool) -> None:
        """End the hold of a session and release its messages."""
        del self.sessions[lock_id]
        for item in self.held(ACTIVE, LOCKED):
            if item.hold == lock_id:
                self._give_back(ACTIVE, item, counted=counted)

    def set_state(self, lock_id: int, state: bytes | None, now_ms: int) -> None:
        """The holder has set the session's state."""
        session = self.sessions[lock_id].session
        if state is None:
            self.states.pop(session, None)
        else:
            self.states[session] = (state, now_ms)

    def state_of(self, session: str) -> bytes | None:
        """Return the state that was set last."""
        return self.states[session][0] if session in self.states else None

    def list_sessions(self, updated_after_ms: int | None) -> list[str]:
        """Sessions with a state or active messages, in order of their bytes."""
        if updated_after_ms is not None:
            found = {session for session, (_, at) in self.states.items() if at > updated_after_ms}
        else:
            found = {*self.states} | {
                item.session
                for item in self.queues[ACTIVE]
                if item.session is not None and not item.deferred and item.state not in (SCHEDULED, DELAYED)
            }
        return sorted(found, key=str.encode)

    # -- shared ------------------------------------------------------------------------------------------------------

    def forget_memory(self) -> None:
        """A crash: what is kept in memory only is gone."""
        for queue in self.queues.values():
            for item in queue:
                if item.state in (RESERVED, PENDING_DEAD_LETTER):  # a used-up message is found again by its count
                    item.state, item.reason = READY, None
        for lock_id in list(self.sessions):
            self.end_session(lock_id, counted=False)

    def find(self, kind: int, sequence: int) -> Item:
        """The message, which must be there."""
        found = [item for item in self.queues[kind] if item.sequence == sequence]
        assert found, f"no message {sequence} in sub-queue {kind}"
        return found[0]

    def remove(self, kind: int, item: Item, why: str) -> None:
        """A message is gone for good."""
        self.queues[kind].remove(item)
        if item.state != SCHEDULED:
            self.cursors[kind].leave(item.pos, item.sequence, item.data)
        self.dispositions[item.name] = why

    def is_expired(self, kind: int, item: Item, now_ms: int) -> bool:
        """Time to live counts in the active sub-queue only."""
        return kind == ACTIVE and item.expires_ms is not None and item.expires_ms <= now_ms

    def exceeds_max_deliveries(self, kind: int, item: Item) -> bool:
        """Return whether it was delivered as often as the entity allows, which counts in the active sub-queue only."""
        return kind == ACTIVE and item.delivery_count >= self.options.max_delivery_count

    def is_spent(self, kind: int, item: Item, now_ms: int) -> bool:
        """Return whether no receiver may get it from here on."""
        return self.is_expired(kind, item, now_ms) or self.exceeds_max_deliveries(kind, item)

    def _find(self, kind: int, state: str, tokens: list[LockToken], now_ms: int) -> list[Item]:
        by_token = {(item.hold, item.pos): item for item in self.held(kind, state) if item.until_ms > now_ms}
        return [by_token[token] for token in dict.fromkeys(tokens) if token in by_token]

    def _change(self, item: Item, changes: dict[str, object]) -> None:
        item.data = with_application_properties(item.data, changes)
        item.changes = item.changes | changes

    def _give_back(self, kind: int, item: Item, *, counted: bool) -> None:
        item.state = DEFERRED if item.deferred else READY
        item.delivery_count += counted and kind == ACTIVE
        if self.exceeds_max_deliveries(kind, item):
            item.state, item.reason = PENDING_DEAD_LETTER, self._max_deliveries_reason()

    def _max_deliveries_reason(self) -> Reason:
        text = f"Message could not be consumed after {self.options.max_delivery_count} delivery attempts."
        return "MaxDeliveryCountExceeded", text
