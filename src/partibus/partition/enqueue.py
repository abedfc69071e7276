"""Messages in."""

from partibus.partition.commands import Accepted, Enqueue, Refused
from partibus.partition.entry import Entry
from partibus.partition.events import Enqueued
from partibus.partition.keys import SubqueueKind, body_key
from partibus.partition.state import PartitionState
from partibus.partition.step import Step


def enqueue(state: PartitionState, command: Enqueue, now_ms: int, step: Step) -> None:
    """Give the messages their sequence counters and put them at the end of the active sub-queue."""
    limit = state.options.size_bytes_max
    if limit is not None and state.size_bytes >= limit:
        step.replies.append(Refused(command.request, state.size_bytes, limit))
        return
    first = sequence = state.next_sequence
    base = body_key(state.row, 0)
    default_ttl = state.options.default_ttl_ms
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
    state.next_sequence = sequence
    step.replies.append(Accepted(command.request, first))
    if entries:
        step.events.append(Enqueued(entries))
        state.arrive(SubqueueKind.ACTIVE, entries, total, step)
