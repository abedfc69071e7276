"""Message groups: receivers without sessions take messages of many groups, each group in order (SQS FIFO queues).

A group is a session of the entity. Receivers here do not lock the session but single messages, for a time that they
choose. One rule keeps the order: a group gives the run of messages from its head that are visible. The first message
in flight ends the run.

```text
 candidate ─▶ probed: its first page is read ─▶ free: its head is visible ─▶ granted: in flight ─┬▶ free again
     ▲                └─▶ empty: closed                 ▲                                        └▶ empty: closed
     └── arrivals, scans of the store                   └── an arrival of which the store has nothing else
```

The locks are those of the sub-queue. They have rows in the store, so they outlive the partition's owner. A group whose
messages are in memory is an open session without a holder. A receiver of that session, over AMQP, closes it first, and
gets the session only while no message of it is in flight.
"""

from collections import deque
from copy import copy
from itertools import islice
from operator import attrgetter
from typing import Final

from partibus.message import Message
from partibus.partition.core.dead_letter import requeue
from partibus.partition.core.duplicates import id_of, note_of
from partibus.partition.core.events import IdsRemembered
from partibus.partition.core.grants import take
from partibus.partition.core.locks import lock
from partibus.partition.core.session_locks import close_group, open_session, scan_ahead
from partibus.partition.core.sessions import OPEN_MAX, Groups, Session, Sessions
from partibus.partition.core.state import PartitionState
from partibus.partition.core.step import Step
from partibus.partition.core.subqueue import NEVER
from partibus.partition.protocol.commands import CancelReceiveGroups, ReceiveGroups
from partibus.partition.protocol.keys import Entry, SubqueueKind
from partibus.partition.protocol.replies import Done, GroupsGranted, pack_attempt

PROBED: Final = 64
"""The number of groups that are free, or on their way to be, ahead of the receivers."""
IN_FLIGHT_MAX: Final = 120_000
"""Messages in flight in one partition, as in the service. At the bound receivers find nothing."""


def receive_groups(state: PartitionState, command: ReceiveGroups, now_ms: int, step: Step) -> None:
    """Take a request for messages; `serve_groups` answers it."""
    _groups_of(state).waiting.append(command)


def cancel_receive_groups(state: PartitionState, command: CancelReceiveGroups, now_ms: int, step: Step) -> None:
    """End a request that waits for messages."""
    groups = _groups_of(state)
    groups.waiting = deque(asked for asked in groups.waiting if asked.request != command.receive)
    step.replies.append(Done(command.request))


def _groups_of(state: PartitionState) -> Groups:
    """Return the message groups, made at their first use."""
    assert state.sessions is not None, "front ends refuse message groups on an entity without sessions"
    if state.sessions.groups is None:
        state.sessions.groups = Groups()
    return state.sessions.groups


def look_after_group(state: PartitionState, session: Session) -> None:
    """Sort a group whose list has changed: it is free, blocked, waits for the store, or is empty and closed."""
    groups, name, ready_list = _groups_of(state), session.name, session.ready_list
    if not ready_list.ready and ready_list.tail and ready_list.in_memory:
        ready_list.absorb_tail()
    head, end_pos = ready_list.ready.head(), groups.barrier(name, NEVER)
    if head is not None and head.data is not None and head.pos < min(end_pos, ready_list.paged_up_to):
        groups.release(session)
    elif head is None and ready_list.in_memory and name not in groups.in_flight:
        close_group(state, session)
    elif ready_list.in_memory or ready_list.paged_up_to > end_pos:  # blocked, or its head needs its body
        if head is not None and head.pos < end_pos:
            groups.probe(name)
        else:
            groups.withdraw(name)
    else:
        groups.probe(name)  # `read_ahead` asks for the page


def serve_groups(state: PartitionState, now_ms: int, step: Step) -> None:
    """Answer waiting requests from free groups, and open further groups. Lists that change need another look."""
    sessions = state.sessions
    if sessions is None or sessions.groups is None or state.closed & 1:
        return
    groups = sessions.groups
    while groups.waiting and not step.changed:
        asked = groups.waiting[0]
        room = IN_FLIGHT_MAX - groups.total
        if room <= 0:
            _answer_the_impatient(groups, step)
            return
        _probe(state, sessions, groups, step)
        scan_ahead(state, sessions, step)
        if not groups.ready or (groups.probed and (groups.ready < asked.count or groups.next_is_probed)):
            if not groups.probed and not sessions.scanning:
                _answer_the_impatient(groups, step)
            return
        entries = _gather(state, groups, asked, min(asked.count, room), now_ms, step)
        if entries:
            groups.waiting.popleft()
            subqueue = state.subqueues[SubqueueKind.ACTIVE]
            in_order = sorted(entries, key=attrgetter("pos"))
            lock_id, until_ms = lock(state, subqueue, in_order, now_ms, step, max(1, asked.lock_ms))
            if asked.attempt is not None and asked.lock_ms > 0:
                _remember_attempt(state, asked.attempt, lock_id, entries, now_ms, step)
            if asked.lock_ms <= 0:
                entries = [copy(entry) for entry in entries]  # as delivered: their count rises now
                batch = subqueue.locks.find(lock_id)
                assert batch is not None, "locked above"
                state.unlock(subqueue, batch, [entry.pos for entry in in_order], step, still_covered=True)
                requeue(state, SubqueueKind.ACTIVE, in_order, now_ms, step, counted=True)
            step.replies.append(GroupsGranted(asked.request, lock_id, until_ms, entries))


def _remember_attempt(
    state: PartitionState, attempt: str, lock_id: int, entries: list[Entry], now_ms: int, step: Step
) -> None:
    """Note what a request got, so that it can be repeated; durable with the locks."""
    duplicates = state.duplicates
    item = id_of(Message(b"", message_id=attempt))
    if duplicates is None or item is None:
        return
    note = note_of(lock_id, pack_attempt(now_ms, [entry.pos for entry in entries]))
    duplicates.remember(item, note, now_ms)
    step.events.append(IdsRemembered(duplicates.bucket_for(1, now_ms), now_ms, [item], [note]))


def _answer_the_impatient(groups: Groups, step: Step) -> None:
    """Answer the requests that do not wait with no messages."""
    for asked in groups.waiting:
        if not asked.wait:
            step.replies.append(GroupsGranted(asked.request, 0, 0, []))
    groups.waiting = deque(asked for asked in groups.waiting if asked.wait)


def _probe(state: PartitionState, sessions: Sessions, groups: Groups, step: Step) -> None:
    """Open groups that may have messages.

    Above `PROBED` one is opened for each group that was served: groups that arrivals open, or that have many messages,
    would keep the others waiting.
    """
    while len(groups.free) < PROBED or (groups.turns > 0 and len(sessions.held) < OPEN_MAX):
        name = sessions.next_candidate()
        if name is None:
            groups.turns = 0
            break
        groups.turns = max(0, groups.turns - 1)
        session = open_session(state, name, None)
        session.is_group = True
        groups.probe(name)
        step.change(session.ready_list)


def _gather(
    state: PartitionState, groups: Groups, asked: ReceiveGroups, count: int, now_ms: int, step: Step
) -> list[Entry]:
    """Take messages from the group that has waited longest, then from the next ones."""
    entries: list[Entry] = []
    budget = asked.max_bytes
    # Each group that is served has a message; those that wait for the store keep their places.
    for name, session in list(islice(groups.free.items(), count + len(groups.probed))):
        if len(entries) >= count:
            break
        if session is None:
            continue
        ready_list = session.ready_list
        head = ready_list.ready.head()
        if entries and head is not None and head.size_bytes > budget:
            break
        del groups.free[name]
        end_pos = groups.barrier(name, ready_list.paged_up_to)
        taken = take(state, ready_list, count - len(entries), budget, end_pos, now_ms, step)
        groups.hand_out(name, taken)
        groups.turns += 1
        entries += taken
        budget -= sum([entry.size_bytes for entry in taken])
        step.change(ready_list)
    return entries
