"""Sessions: acceptance, renewal, release, expiry and state (rows K3, K4).

`session_resume` continues a session at another owner.

```text
 accept a name ──────────────────────────────▶ held ──▶ released by its holder: granted messages go back uncounted
 accept any ─▶ candidate ─▶ probing ─▶ found ─▶ held ──▶ expired: they go back counted, the holder is told
                  ▲            └─▶ empty: the next candidate
                  └─ arrivals, released sessions, scans of the store
```
"""

from typing import Final

from partibus.partition.core.dead_letter import requeue
from partibus.partition.core.events import SessionLocked, SessionStateSet, SessionUnlocked
from partibus.partition.core.session_resume import holder_of, look_again, resume_session, take_up
from partibus.partition.core.sessions import Session, Sessions
from partibus.partition.core.slot_moves import SlotRules
from partibus.partition.core.state import PartitionState
from partibus.partition.core.step import Step
from partibus.partition.protocol.commands import (
    AcceptSession,
    CancelAccept,
    GetSessionState,
    ListSessions,
    ReleaseSession,
    RenewSession,
    SetSessionState,
)
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.load_requests import SessionListLoad, SessionScan, SessionStateLoad
from partibus.partition.protocol.notes import LOCK_EXPIRED, RELEASE, RENEW
from partibus.partition.protocol.ports import EntryState
from partibus.partition.protocol.replies import (
    CursorHeld,
    Done,
    NoSession,
    ReceiveRefused,
    Refused,
    SessionAccepted,
    SessionElsewhere,
    SessionEnded,
    SessionHeld,
    SessionLost,
    SessionRenewed,
    SessionState,
)

SCAN_BELOW: Final = 64
"""The number of candidates below which the next ones are read ahead of the receivers."""


def accept_session(state: PartitionState, command: AcceptSession, now_ms: int, step: Step) -> None:
    """Lock the named session at once, or have the machine look for one (`offer`)."""
    if command.resumes:
        resume_session(state, command, now_ms, step)
        return
    sessions = _sessions(state)
    if command.session is None:
        sessions.waiting.append(command)
        return
    if sessions.rules is not None and _is_elsewhere(sessions.rules, command, command.session, step):
        return
    session = sessions.held.get(command.session)
    if (until_ms := _in_flight_until(state, command.session)) is not None:
        step.replies.append(SessionHeld(command.request, until_ms))
        return
    if session is not None and session.is_group:
        close_group(state, session)
        session = None
    if session is not None and session.asked is not None:
        # A receiver that names the session goes before one that takes any session.
        _ask_again(sessions, session.asked, step)
    elif session is not None:
        if session.until_ms > now_ms:
            step.replies.append(SessionHeld(command.request, session.until_ms))
            return
        _end(state, session, now_ms, step)
        session = None
    if session is None and command.resident:
        session = open_session(state, command.session, command)
        step.change(session.ready_list)
        return
    if session is None:
        session = open_session(state, command.session, None)
    _grant(state, session, command, now_ms, step)


def _in_flight_until(state: PartitionState, name: str) -> int | None:
    """Return when the last lock on a message of a group ends; None: none is in flight."""
    groups = _sessions(state).groups
    held = None if groups is None else groups.in_flight.get(name)
    if not held:
        return None
    batches = [batch for batch in state.subqueues[SubqueueKind.ACTIVE].locks if not held.isdisjoint(batch.entries)]
    return max((until_ms for batch in batches for until_ms, _ in batch.parts()), default=None)


def close_group(state: PartitionState, session: Session) -> None:
    """Drop the list of a message group: the store has its entries."""
    sessions = _sessions(state)
    assert sessions.groups is not None, "it is a group"
    sessions.groups.withdraw(session.name)
    sessions.close(session)
    sessions.note_changed(session.name)
    subqueue = state.subqueues[SubqueueKind.ACTIVE]
    if subqueue.range_scan is not None:
        subqueue.released.add(session.name)
    if not session.ready_list.is_exhausted:
        sessions.add_candidate(session.name)


def _is_elsewhere(rules: SlotRules, command: AcceptSession, name: str, step: Step) -> bool:
    """Tell whether a named session can't be locked here now: it has moved away, or its former partition may have it."""
    given = rules.given.get(rules.slot_of(name))
    if given is not None:
        if not command.resident:
            step.replies.append(SessionElsewhere(command.request, given.target, resident=False))
        return not command.resident
    if rules.holds(name):
        rules.gate.ask_for(name, command)
        return True
    return False


def _ask_again(sessions: Sessions, asked: AcceptSession, step: Step) -> None:
    """Have a request wait again whose probed session another receiver gets, or which has no messages."""
    if asked.session is None:
        sessions.waiting.appendleft(asked)
    else:
        step.replies.append(NoSession(asked.request))


def end_idle_session(state: PartitionState, session: Session, now_ms: int, step: Step) -> bool:
    """End a session without messages that is to move; return False if it has some, or may have."""
    ready_list = session.ready_list
    if session.asked is not None or session.is_away or not ready_list.is_exhausted:
        return False
    if session.is_group:
        close_group(state, session)
        return True
    _close(state, session, now_ms, step)
    step.replies.append(SessionEnded(session.receiver, session.lock_id))
    return True


def cancel_accept(state: PartitionState, command: CancelAccept, now_ms: int, step: Step) -> None:
    """Cancel a pending request for a session."""
    sessions = _sessions(state)
    for asked in sessions.waiting:
        if asked.request == command.accept:
            sessions.waiting.remove(asked)
            break
    else:
        if sessions.rules is not None:
            sessions.rules.gate.cancel(command.accept)
        for session in list(sessions.held.values()):
            if session.asked is not None and session.asked.request == command.accept:
                _close(state, session, now_ms, step)
                break
    step.replies.append(Done(command.request))


def renew_session(state: PartitionState, command: RenewSession, now_ms: int, step: Step) -> None:
    """Hold it for another LockDuration, and its messages with it."""
    session = _sessions(state).find(command.session, now_ms)
    if session is None:
        step.replies.append(SessionLost(command.request))
        return
    until_ms = now_ms + state.options.lock_duration_ms
    _sessions(state).hold(session, until_ms)
    step.notes.append((RENEW, SubqueueKind.ACTIVE, session.ready_list.held, None))
    _note(session, step, is_renewed=True)
    step.replies.append(SessionRenewed(command.request, until_ms))


def release_session(state: PartitionState, command: ReleaseSession, now_ms: int, step: Step) -> None:
    """Release a session whose holder has ended."""
    session = _sessions(state).by_lock.get(command.session)
    if session is not None:
        step.notes.append((RELEASE, SubqueueKind.ACTIVE, session.ready_list.held, None))
        _close(state, session, now_ms, step)


def expire_sessions(state: PartitionState, now_ms: int, step: Step) -> None:
    """Locks of sessions that have run out."""
    for session in _sessions(state).expired(now_ms):
        _end(state, session, now_ms, step)


def get_session_state(state: PartitionState, command: GetSessionState, now_ms: int, step: Step) -> None:
    """Reply with a session's state from memory, or from the store the first time."""
    session = _sessions(state).find(command.session, now_ms)
    if session is None:
        step.replies.append(SessionLost(command.request))
    elif session.state_known:
        step.replies.append(SessionState(command.request, session.state))
    else:
        step.loads.append(SessionStateLoad(command, session.name))


def set_session_state(state: PartitionState, command: SetSessionState, now_ms: int, step: Step) -> None:
    """Set a session's state after the old one was read: the counted sizes are those of stored states."""
    session = _sessions(state).find(command.session, now_ms)
    if session is None:
        step.replies.append(SessionLost(command.request))
        return
    if not session.state_known:
        step.loads.append(SessionStateLoad(command, session.name))
        return
    more = len(command.state or b"") - len(session.state or b"")
    limit = state.options.size_bytes_max
    if limit is not None and more > 0 and state.size_bytes >= limit:
        step.replies.append(Refused(command.request, state.size_bytes, limit))
        return
    session.state = command.state
    state.session_state_bytes += more
    step.events.append(SessionStateSet(session.name, command.state, now_ms))
    step.replies.append(Done(command.request))


def state_loaded(state: PartitionState, load: SessionStateLoad, found: bytes | None, now_ms: int, step: Step) -> None:
    """Go on with what waited for a session's state."""
    command = load.command
    session = _sessions(state).find(command.session, now_ms)
    if session is not None and not session.state_known:
        session.state, session.state_known = found, True
    if isinstance(command, GetSessionState):
        get_session_state(state, command, now_ms, step)
    else:
        set_session_state(state, command, now_ms, step)


def list_sessions(state: PartitionState, command: ListSessions, now_ms: int, step: Step) -> None:
    """Ask the store, which knows all sessions."""
    step.loads.append(SessionListLoad(command))


def offer(state: PartitionState, step: Step) -> bool:
    """Give candidates to requests for any session; return whether a ready list was opened that must be served."""
    sessions = _sessions(state)
    opened = False
    if sessions.waiting and sessions.groups is not None:
        groups = sessions.groups
        free = [one for one in groups.free.values() if one is not None and one.name not in groups.in_flight]
        for session in free[: len(sessions.waiting)]:
            close_group(state, session)
    while sessions.waiting and (name := sessions.next_session()) is not None:
        session = open_session(state, name, sessions.waiting.popleft())
        step.change(session.ready_list)
        opened = True
    scan_ahead(state, sessions, step)
    if sessions.waiting and not sessions.scanning:
        for asked in [asked for asked in sessions.waiting if not asked.wait]:
            sessions.waiting.remove(asked)
            step.replies.append(NoSession(asked.request))
    return opened


def scan_ahead(state: PartitionState, sessions: Sessions, step: Step) -> None:
    """Ask for the next sessions in the store while few candidates are left, or arrivals have had half of the turns.

    A scan only when no candidate is left would never come while new sessions arrive as fast as they are served.
    """
    if sessions.scanning or not sessions.may_have_more:
        return
    most = state.options.limits.scan_sessions
    if sessions.waiting or len(sessions.candidates) < SCAN_BELOW or sessions.taken >= 2 * most:
        sessions.scanning = True
        sessions.taken = 0
        step.loads.append(SessionScan(sessions.scanned_to, most))


def scanned(state: PartitionState, names: list[str]) -> None:
    """Take the result of a scan for sessions.

    At the end of a scan, every session that it named is a candidate, has been probed, or was held and becomes a
    candidate when it is released. There are no others, unless names had to be left out meanwhile.
    """
    sessions = _sessions(state)
    sessions.scanning = False
    if names:
        sessions.add_scanned(names)
        sessions.scanned_to = names[-1]
        return
    sessions.scanned_to = None
    sessions.may_have_more, sessions.overflowed = sessions.overflowed, False


def look_after_probe(state: PartitionState, session: Session, asked: AcceptSession, now_ms: int, step: Step) -> None:
    """Grant a probed session to its asker as soon as it has a message; close it when it has none."""
    ready_list = session.ready_list
    if ready_list.ready or ready_list.tail:
        _grant(state, session, asked, now_ms, step)
    elif ready_list.in_memory:
        sessions = _sessions(state)
        sessions.close(session)
        _ask_again(sessions, asked, step)


def stop_probing(state: PartitionState, step: Step) -> None:
    """Let the askers of probed sessions wait again."""
    sessions = _sessions(state)
    for session in [session for session in sessions.held.values() if session.asked is not None]:
        assert session.asked is not None, "probed"
        _ask_again(sessions, session.asked, step)
        sessions.close(session)
        sessions.add_candidate(session.name)


def revoke_sessions(state: PartitionState, cursor: str, until_ms: int, now_ms: int, step: Step) -> None:
    """End sessions because a cursor has the lease until then, and tell waiting askers."""
    sessions = _sessions(state)
    stop_probing(state, step)
    for asked in sessions.waiting:
        step.replies.append(CursorHeld(asked.request, cursor, until_ms))
    sessions.waiting.clear()
    if sessions.groups is not None:
        for receive in sessions.groups.waiting:
            step.replies.append(CursorHeld(receive.request, cursor, until_ms))
        sessions.groups.waiting.clear()
    for session in list(sessions.held.values()):
        if session.is_group:
            close_group(state, session)
            continue
        step.replies.append(ReceiveRefused(session.receiver, SubqueueKind.ACTIVE, cursor, until_ms))
        _close(state, session, now_ms, step)
        step.replies.append(SessionEnded(session.receiver, session.lock_id))


def _sessions(state: PartitionState) -> Sessions:
    assert state.sessions is not None, "front ends refuse sessions on an entity without"
    return state.sessions


def open_session(state: PartitionState, name: str, asked: AcceptSession | None) -> Session:
    """Open a session that is asked for, and read its first page, unless the sub-queue has no message at all."""
    subqueue = state.subqueues[SubqueueKind.ACTIVE]
    is_empty = not (subqueue.messages or subqueue.pending_dead_letters)
    edited = _sessions(state).is_changed(name)
    session = Session(name, state.take_number(), subqueue.end_pos, asked, edited=edited, is_empty=is_empty)
    # A pending dead letter without its body is still active in the store.
    session.ready_list.above.update(
        pos for pos, entry in subqueue.pending_dead_letters.items() if entry.session == name
    )
    groups = _sessions(state).groups
    if groups is not None:
        session.ready_list.above.update(groups.in_flight.get(name, ()))
    _sessions(state).open(session)
    return session


def _grant(state: PartitionState, session: Session, asked: AcceptSession, now_ms: int, step: Step) -> None:
    until_ms = now_ms + state.options.lock_duration_ms
    _sessions(state).grant(session, asked, until_ms)
    session.holder = holder_of(state, asked)
    _note(session, step, is_renewed=False)
    is_stored = bool(session.holder)
    step.replies.append(SessionAccepted(asked.request, session.name, session.lock_id, until_ms, is_stored))
    step.change(session.ready_list)


def _end(state: PartitionState, session: Session, now_ms: int, step: Step) -> None:
    """End a session whose lock has expired."""
    entries = session.ready_list.held
    _close(state, session, now_ms, step)
    state.tally.locks_expired += len(entries)
    step.notes.append((LOCK_EXPIRED, SubqueueKind.ACTIVE, entries, None))
    requeue(state, SubqueueKind.ACTIVE, entries, now_ms, step, counted=True)
    step.replies.append(SessionEnded(session.receiver, session.lock_id))


def _note(session: Session, step: Step, *, is_renewed: bool) -> None:
    """Store who holds a session, for the next owner, where several brokers share the stores (D21).

    If the row is lost with its owner before it was durable, the holder loses its session, so no reply waits for it. The
    reply to a renewal does wait, because the holder relies on the time in it.
    """
    if session.holder:
        step.events.append(
            SessionLocked(session.name, session.lock_id, session.until_ms, session.holder, is_renewed=is_renewed)
        )


def _close(state: PartitionState, session: Session, now_ms: int, step: Step) -> None:
    """Drop a session's ready list: the store has its entries, and the next holder reads them there."""
    sessions = _sessions(state)
    sessions.close(session)
    sessions.note_changed(session.name)
    subqueue = state.subqueues[SubqueueKind.ACTIVE]
    if subqueue.range_scan is not None:
        subqueue.released.add(session.name)
    for batch in session.ready_list.locks:
        for entry in batch.entries.values():
            if entry.state == EntryState.DEFERRED:
                subqueue.claimed.discard(entry.sequence)
            elif entry.due_ms is not None:
                subqueue.note_due(EntryState.ACTIVE, entry.due_ms)
    if not session.ready_list.is_exhausted:
        sessions.add_candidate(session.name)
    look_again(state, session, now_ms)
    if session.holder:
        step.events.append(SessionUnlocked(session.name))
    if session.lock_id in sessions.resuming:
        take_up(state, session, now_ms, step)
