"""A session goes on at another owner of its partition (D21).

```text
 loaded ─▶ away ──▶ its holder comes and names its messages ──▶ their rows are read ──▶ held as before
             ├─▶ the lock expires: the holder was not asked, so no delivery is counted
             └─▶ the holder's broker has ended: released at once
```

Only the holder knows which messages it has; no row tells. So the owner asks it. Messages that were sent and did not
arrive are not among them, and are sent again. A message that the holder has settled may be settled already, if the last
owner was lost before it answered: then its row is deleted, or is not active. Settlements wait until the rows are read;
other commands do not.
"""

from partibus.partition.core.dead_letter import requeue
from partibus.partition.core.enqueue import screen
from partibus.partition.core.ready_list import ReadyList
from partibus.partition.core.sessions import ReadyListAway, Session
from partibus.partition.core.settlement import settle, transact
from partibus.partition.core.state import PartitionState, entry_of
from partibus.partition.core.step import Step
from partibus.partition.protocol.commands import AcceptSession, Settle, Transact
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.load_requests import SessionResume
from partibus.partition.protocol.ports import EntryRow, EntryState
from partibus.partition.protocol.replies import SessionAccepted, SessionLost

ROWS_MAX = 128
"""Read at a time: bodies come with them, which may be large."""


def resume_session(state: PartitionState, command: AcceptSession, now_ms: int, step: Step) -> None:
    """Let a holder go on with a session that it has held at another owner, or lost the route to."""
    sessions = state.sessions
    assert sessions is not None, "front ends refuse sessions on an entity without"
    session = sessions.by_lock.get(command.resumes)
    is_his = session is not None and session.name == command.session and session.holder == holder_of(state, command)
    if session is None or not is_his or session.until_ms <= now_ms:
        step.replies.append(SessionLost(command.request))
    elif session.is_away:
        _come_back(state, session, command, now_ms, step)
    elif session.lock_id in sessions.resuming:
        step.replies.append(SessionLost(command.request))  # he has come before, and went again meanwhile
    else:
        _come_again(state, session, command, now_ms, step)


def holder_of(state: PartitionState, command: AcceptSession) -> str:
    """Return the run of the broker that a receiver is connected to; empty with a single broker."""
    return command.holder or state.run


def resumed(state: PartitionState, load: SessionResume, rows: list[EntryRow], now_ms: int, step: Step) -> None:
    """Take some rows of the holder's messages."""
    sessions = state.sessions
    assert sessions is not None, "a resume needs a partition with sessions"
    command = load.command
    session = sessions.by_lock.get(command.resumes)
    if session is None:
        step.replies.append(SessionLost(command.request))
        return
    entries = [
        entry_of(row, None, len(row.data))
        for row in rows
        if row.state == EntryState.ACTIVE and row.session == session.name
    ]
    if entries:
        session.hand_out(sorted(entries, key=lambda entry: entry.pos))
    rest = command.held[command.held.index(load.sequences[-1]) + 1 :]
    if rest:
        step.loads.append(SessionResume(command, rest[:ROWS_MAX]))
    else:
        _accept(state, session, command, step)
        take_up(state, session, now_ms, step)


def look_again(state: PartitionState, session: Session, now_ms: int) -> None:
    """Handle the deadlines that passed while a session was away."""
    if isinstance(session.ready_list, ReadyListAway) and session.ready_list.passed_over:
        state.subqueues[SubqueueKind.ACTIVE].note_due(EntryState.ACTIVE, now_ms)


def take_up(state: PartitionState, session: Session, now_ms: int, step: Step) -> None:
    """Handle the commands that waited until the holder's messages were known, or its session had ended."""
    assert state.sessions is not None, "there is one"
    for waiting in state.sessions.resuming.pop(session.lock_id, ()):
        if isinstance(waiting, Settle):
            settle(state, waiting, now_ms, step)
        else:
            _transact(state, waiting, now_ms, step)


def _transact(state: PartitionState, command: Transact, now_ms: int, step: Step) -> None:
    if state.duplicates is None:
        transact(state, command, now_ms, step)
    else:
        screen(state, command, now_ms, step)


def _come_back(state: PartitionState, session: Session, command: AcceptSession, now_ms: int, step: Step) -> None:
    sessions = state.sessions
    assert sessions is not None, "there is one"
    subqueue = state.subqueues[SubqueueKind.ACTIVE]
    look_again(state, session, now_ms)
    deferred = session.ready_list.locks
    session.ready_list = ReadyList(
        int(SubqueueKind.ACTIVE),
        end_pos=subqueue.end_pos,
        is_empty=False,
        session=session.name,
        holder=session.lock_id,
        edited=sessions.is_changed(session.name),
    )
    session.ready_list.locks = deferred  # asked for by number since the partition was loaded
    session.ready_list.above.update(command.held)
    session.ready_list.above.update(
        pos for pos, entry in subqueue.pending_dead_letters.items() if entry.session == session.name
    )
    session.away_until_ms = 0
    sessions.follow(session, command.receiver)
    if command.held:
        step.loads.append(SessionResume(command, command.held[:ROWS_MAX]))
    else:
        _accept(state, session, command, step)
        take_up(state, session, now_ms, step)


def _come_again(state: PartitionState, session: Session, command: AcceptSession, now_ms: int, step: Step) -> None:
    """Resume a session after the way to this owner was cut: grants that did not arrive are sent again."""
    assert state.sessions is not None, "there is one"
    ready_list = session.ready_list
    ready_list.demands.clear()
    batch = ready_list.locks.find(session.lock_id)
    if batch is not None:
        held = set(command.held)
        missed = [e for e in batch.entries.values() if e.pos not in held and e.state == EntryState.ACTIVE]
        if missed:
            state.unlock(ready_list, batch, [entry.pos for entry in missed], step, still_covered=False)
            requeue(state, SubqueueKind.ACTIVE, missed, now_ms, step, counted=False)
    state.sessions.follow(session, command.receiver)
    _accept(state, session, command, step)


def _accept(state: PartitionState, session: Session, command: AcceptSession, step: Step) -> None:
    step.replies.append(
        SessionAccepted(command.request, session.name, session.lock_id, session.until_ms, is_stored=True)
    )
    step.change(session.ready_list)
