"""Answers of a partition machine, held against the reference model: a part of `tests.kit.lockstep`."""

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from partibus.partition.core.exclusive import PAUSE_MS
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.keys import Entry, SubqueueKind
from tests.kit.cursor_lockstep import KINDS
from tests.kit.cursor_model import CursorState
from tests.kit.invariants import i08_no_lock_ends_early, i16_state_is_the_last_written
from tests.kit.model import LOCKED, PENDING_DEAD_LETTER, READY, RESERVED, SCHEDULED, Item

if TYPE_CHECKING:
    from tests.kit.lockstep import Lockstep

NEVER = 1 << 60
"""Number of a commit that does not come."""


@dataclass(slots=True)
class Pending:
    """A request that is not answered yet, and what was true at some moment since it was made: the machine may answer
    as of any of them."""

    command: Any
    unavailable: set[int] = field(default_factory=set)
    """Numbers that named no deferred message that was to be had."""
    reader: tuple[CursorState, int] | None = None
    """The exclusive reader, with its lease."""
    none_free: bool = False
    """Whether no session was to be had."""
    states: set[bytes | None] = field(default_factory=set)
    purged: int = 0


@dataclass(slots=True)
class Demand:
    """How a receiver wants what it waits for."""

    delete: bool
    reserve: bool
    session: int


class AnswerLockstep:
    """Replies of the machine, applied to the model or refused as not allowed."""

    def __init__(self, both: "Lockstep") -> None:
        self._both = both

    def answered(self, reply: Any, kept: dict[int, bytes]) -> None:
        """Do in the model what the machine says it has done."""
        both, model, now_ms = self._both, self._both.model, self._both.now_ms
        if isinstance(reply, r.ReceiveRefused):
            both.demands.pop((reply.kind, reply.receiver), None)
            return
        if isinstance(reply, r.SessionEnded) and any(isinstance(other, r.ReceiveRefused) for other in both.replies):
            model.end_session(reply.lock_id, counted=False)  # revoked
            both.forget_demands_of(reply.lock_id)
            return
        if isinstance(reply, r.SessionEnded):
            lock = model.sessions[reply.lock_id]
            i08_no_lock_ends_early(f"session {lock.session!r}", lock.until_ms, now_ms)
            assert lock.receiver == reply.receiver
            model.end_session(reply.lock_id, counted=True)
            both.forget_demands_of(reply.lock_id)
            return
        if isinstance(reply, r.Purged):
            return  # counted when the events have been seen
        self.note_excuses()
        asked = both.requests.pop(reply.request)
        command = asked.command
        match command, reply:
            case c.Enqueue(), r.Accepted():
                assert not model.is_full, "accepted although it is full"
                assert reply.first_sequence == model.enqueue(command.messages, kept, now_ms, command.first_sequence)
            case c.Enqueue(), r.Refused():
                assert model.is_full, f"refused as full: {reply}"
            case c.TakeNumbers(), r.Accepted():
                assert reply.first_sequence == model.take_numbers(command.count)
                both.taken.append((reply.first_sequence, command.count))
            case c.CancelReceive(), r.Cancelled():
                both.demands.pop((command.kind, command.receiver), None)
            case c.Settle(), r.Settled():
                lost = model.settle(command, now_ms)
                assert sorted(reply.lost) == lost, f"lost {reply.lost}, the model says {lost}"
            case c.RenewLocks(), r.LocksRenewed():
                assert model.renew(command.kind, command.tokens, now_ms) == []
                assert reply.until_ms == [now_ms + both.options.lock_duration_ms] * len(command.tokens)
            case c.RenewLocks(), r.Settled():
                lost = model.renew(command.kind, command.tokens, now_ms)
                assert sorted(reply.lost) == lost, f"lost {reply.lost}, the model says {lost}"
                assert lost, "not renewed although every token is held"
            case c.ReceiveDeferred(), r.NotFound():
                assert set(reply.sequences) & asked.unavailable, f"{reply.sequences} were to be had all the time"
            case c.CancelScheduled(), r.Done():
                assert model.cancel(command.sequences) == []
            case c.CancelScheduled(), r.NotFound():
                assert reply.sequences
                assert not any(map(model.is_scheduled, reply.sequences)), f"{reply.sequences} can be cancelled"
            case c.AcceptSession(), r.SessionAccepted():
                self._session_accepted(command, reply)
            case c.AcceptSession(), r.SessionHeld():
                assert command.session is not None
                holder = model.holder(command.session, now_ms)
                assert holder is not None, f"session {command.session!r} is held by nobody"
                assert holder.until_ms == reply.until_ms
            case c.AcceptSession(), r.NoSession():
                assert asked.none_free, f"no session, although {model.free_sessions(now_ms)} are free"
                assert not command.wait
                assert command.session is None
            case c.CancelAccept(), r.Done():
                both.requests.pop(command.accept, None)
            case c.RenewSession(), r.SessionRenewed():
                assert model.is_held(command.session, now_ms)
                assert reply.until_ms == model.renew_session(command.session, now_ms)
            case c.GetSessionState(), r.SessionState():
                i16_state_is_the_last_written(f"of lock {command.session}", reply.state, asked.states)
            case c.SetSessionState(), r.Done():
                assert model.is_held(command.session, now_ms)
                model.set_state(command.session, command.state, now_ms)
            case c.SetSessionState(), r.Refused():
                assert model.is_full, f"refused as full: {reply}"
            case (
                (c.RenewSession() | c.GetSessionState() | c.SetSessionState() | c.ReceiveDeferred()),
                r.SessionLost(),
            ):
                assert not model.is_held(command.session, now_ms), f"{command} says lost, and the session is held"
            case c.Transact(), r.Transacted():
                refused = model.cannot_transact(command.commands, now_ms)
                assert refused is None, f"done, although command {refused} can't be: {command}"
                model.transact(command.commands, kept, now_ms)
            case c.Transact(), r.TransactionRefused():
                refused = model.cannot_transact(command.commands, now_ms)
                assert refused == reply.index, f"refused because of {reply.index}, the model says {refused}: {command}"
            case c.ListSessions(), r.Sessions():
                both.names[reply.request] = reply.sessions
            case c.Inspect(), r.Inspected():
                for kind in KINDS:
                    queue, info = model.queues[kind], reply.subqueues[kind]
                    assert (info.messages, info.size_bytes) == (len(queue), sum(len(item.data) for item in queue))
                    assert info.locked == len(model.held(kind, LOCKED))
                assert reply.end_pos == model.next_sequence
                assert reply.has_scheduled or not model.held(SubqueueKind.ACTIVE, SCHEDULED)
            case c.Peek(), r.Rows():
                both.rows[reply.request] = reply.rows
            case ((c.OpenCursor() | c.AdvanceCursor()), r.CursorOpened()):
                both.readers.opened(command, reply)
            case c.OpenCursor(), r.CursorHeld():
                alone = model.cursors[command.kind].alone
                assert alone is not None, f"nobody reads alone: {reply}"
                assert model.cursors[command.kind].by_name[reply.name] is alone
                assert (reply.name == command.name, reply.until_ms) == (False, alone.until_ms)
            case ((c.AcceptSession() | c.ReceiveDeferred() | c.Purge()), r.CursorHeld()):
                asked_of = SubqueueKind.ACTIVE if isinstance(command, c.AcceptSession) else command.kind
                asking = any(isinstance(other, r.CursorOpened) for other in both.replies)
                assert asking or both.is_closed(asked_of), f"refused, and nobody reads alone: {command}"
            case c.OpenCursor(), r.CursorBusy():
                assert model.is_congested(command.kind), f"nothing is locked: {reply}"
                pending_dead_letters = model.held(command.kind, PENDING_DEAD_LETTER)
                assert pending_dead_letters or not command.revoke, f"nothing is to be waited for: {reply}"
                assert reply.locked > 0
                both.paused_ms[command.kind] = now_ms + PAUSE_MS
                for item in model.held(command.kind, RESERVED):
                    item.state = READY
            case c.CloseCursor(), r.Done():
                both.readers.closed(command)
            case (
                (c.OpenCursor() | c.AdvanceCursor() | c.CloseCursor() | c.ReadRange() | c.ReadDispositions()),
                r.CursorLost(),
            ):
                both.readers.check_lost(command)
            case c.ReadDispositions(), r.DispositionsRead():
                log = [row for row in model.cursors[command.kind].log if row.number >= command.from_number]
                assert (
                    reply.rows == log[: len(reply.rows)]
                    or log[0].number < model.cursors[command.kind].dispositions_from
                )
            case c.ReadRange(), r.RangeRead():
                both.readers.range_read(command, asked.reader, reply)
            case _:
                raise AssertionError(f"{command} was answered with {reply}")

    def _session_accepted(self, command: c.AcceptSession, reply: r.SessionAccepted) -> None:
        both = self._both
        named = command.session is not None
        assert not named or reply.session == command.session
        self._new_lock_id(reply.lock_id)
        both.lock_ids[reply.lock_id] = NEVER  # its holder is a link to this process
        both.model.accept(reply.session, reply.lock_id, command.receiver, reply.until_ms, both.now_ms, named=named)
        both.sessions.append(reply.lock_id)

    def locked(self, reply: r.Locked) -> None:
        """Reserved messages were handed out."""
        both = self._both
        command = both.requests.pop(reply.request).command
        state = READY if command.delete else LOCKED
        items = both.model.lock_reserved(reply.kind, command.tokens, reply.lock_id, reply.until_ms, both.now_ms, state)
        by_sequence = {item.sequence: item for item in items}
        sequences = [entry.sequence for entry in reply.entries]
        assert sorted(sequences) == sorted(by_sequence)
        items = [by_sequence[sequence] for sequence in sequences]
        self._handed_out(reply.kind, reply.entries, items, reply.lock_id, state)

    def granted(self, reply: r.Granted) -> None:
        """A receiver was given messages."""
        both = self._both
        sequences = [entry.sequence for entry in reply.entries]
        demand = both.demands[reply.kind, reply.receiver]
        state = RESERVED if demand.reserve else READY if demand.delete else LOCKED
        if demand.session:
            assert demand.delete or reply.lock_id == demand.session
            assert demand.delete or reply.until_ms == both.model.sessions[demand.session].until_ms
        elif state == LOCKED:
            self._new_lock_id(reply.lock_id)
        elif state == RESERVED:
            assert reply.lock_id > both.last_reservation, f"reservation {reply.lock_id} was given before"
            both.last_reservation = reply.lock_id
        items = both.model.grant(
            reply.kind, sequences, reply.lock_id, reply.until_ms, both.now_ms, state, demand.session, reply.receiver
        )
        if reply.ended:
            del both.demands[reply.kind, reply.receiver]
        self._handed_out(reply.kind, reply.entries, items, reply.lock_id, state)

    def deferred(self, reply: r.DeferredGranted) -> None:
        """Deferred messages were given to who named them."""
        both = self._both
        command = both.requests.pop(reply.request).command
        assert [entry.sequence for entry in reply.entries] == command.sequences
        state = READY if command.delete else LOCKED
        if command.session and state == LOCKED:
            assert reply.lock_id == command.session
            assert reply.until_ms == both.model.sessions[command.session].until_ms
        elif state == LOCKED:
            self._new_lock_id(reply.lock_id)
        items = both.model.grant_deferred(
            command.kind, command.sequences, reply.lock_id, reply.until_ms, both.now_ms, state, command.session
        )
        self._handed_out(command.kind, reply.entries, items, reply.lock_id, state)

    def _handed_out(self, kind: int, entries: list[Entry], items: list[Item], lock_id: int, state: str) -> None:
        both = self._both
        for entry, item in zip(entries, items, strict=True):
            assert (entry.data, entry.delivery_count, entry.enqueued_ms, entry.pos) == (
                item.data, item.delivery_count, item.enqueued_ms, item.pos,
            )  # fmt: skip
            token = (kind, (lock_id, entry.pos))
            if state == LOCKED:
                both.delivered.append(token)
            elif state == RESERVED:
                both.reserved.append(token)

    def _new_lock_id(self, lock_id: int) -> None:
        both = self._both
        assert lock_id not in both.lock_ids, f"lock id {lock_id} was given before"
        both.lock_ids[lock_id] = both.slot.waited

    def note_excuses(self) -> None:
        """Return the replies that the machine may give to waiting requests."""
        both = self._both
        model = both.model
        accepts = [asked for asked in both.requests.values() if isinstance(asked.command, c.AcceptSession)]
        any_session = sum(asked.command.session is None for asked in accepts)
        asked_for = Counter(
            (asked.command.kind, sequence)
            for asked in both.requests.values()
            if isinstance(asked.command, c.ReceiveDeferred)
            for sequence in asked.command.sequences
        )
        for asked in both.requests.values():
            command = asked.command
            if isinstance(command, c.ReceiveDeferred):
                session = command.session if command.session in model.sessions else 0
                asked.unavailable.update(
                    sequence
                    for sequence in command.sequences
                    if asked_for[command.kind, sequence] > 1
                    or not model.is_to_be_had_by_number(command.kind, sequence, session)
                    or model.is_spent(command.kind, model.find(command.kind, sequence), both.now_ms)
                )
            elif isinstance(command, c.AcceptSession):
                # One that others wait for is as good as theirs.
                asked.none_free |= len(model.free_sessions(both.now_ms)) < any_session
            elif isinstance(command, c.GetSessionState) and command.session in model.sessions:
                asked.states.add(model.state_of(model.sessions[command.session].session))
