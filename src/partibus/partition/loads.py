"""What a partition asks its store for: pages ahead of the receivers, bodies that were let go, rows to look at."""

from itertools import accumulate

from partibus.partition.commands import (
    BodyLoad,
    Browse,
    BrowseLoad,
    Inspect,
    Inspected,
    PageLoad,
    Peek,
    PeekLoad,
    Settle,
    SubqueueInfo,
)
from partibus.partition.entry import Entry
from partibus.partition.state import PartitionState
from partibus.partition.step import Step
from partibus.partition.subqueue import Subqueue


def read_ahead(state: PartitionState, kind: int, step: Step) -> None:
    """Ask for the next page when what is ready runs low, and for bodies that stand in the way."""
    limits = state.options.limits
    subqueue = state.subqueues[kind]
    ready = subqueue.ready
    head = ready.head()
    # An entry that came back from above the mark can't be handed out before the pages below it are in.
    blocked = head is not None and head.pos >= subqueue.paged_up_to
    low = 2 * len(ready) < limits.window_entries and 2 * ready.size_bytes < limits.window_bytes
    if not subqueue.loading_page and (low or blocked):
        if subqueue.in_memory:
            if subqueue.tail:
                subqueue.absorb_tail()
        elif subqueue.messages:
            subqueue.loading_page = True
            most = min(limits.page_entries, subqueue.tail_from - subqueue.paged_up_to)
            step.loads.append(PageLoad(kind, subqueue.paged_up_to, subqueue.tail_from, most, limits.page_bytes))
    if subqueue.demands or subqueue.doomed:
        _load_bodies(state, kind, subqueue, step)


def _load_bodies(state: PartitionState, kind: int, subqueue: Subqueue, step: Step) -> None:
    if subqueue.loading_bodies:
        return
    limits = state.options.limits
    head = subqueue.ready.head()
    missing = list(subqueue.doomed.values())
    if head is not None and head.data is None:
        missing += subqueue.ready.bodyless(limits.page_entries)
    if missing:
        subqueue.loading_bodies = True
        sizes = accumulate(entry.size_bytes for entry in missing)
        most = max(1, sum(1 for total in sizes if total <= limits.page_bytes))
        step.loads.append(body_load(kind, missing[: min(most, limits.page_entries)]))


def body_load(kind: int, entries: list[Entry], then: Settle | None = None) -> BodyLoad:
    """Ask for the bodies of entries; ``then`` is the command that waits for them."""
    return BodyLoad(kind, [entry.pos for entry in entries], [entry.body for entry in entries], then)


def peek(state: PartitionState, command: Peek, now_ms: int, step: Step) -> None:
    """The store knows every state; memory only what it needs."""
    size_bytes = state.options.limits.peek_bytes
    step.loads.append(PeekLoad(command.request, command.kind, command.from_sequence, command.count, size_bytes))


def browse(state: PartitionState, command: Browse, now_ms: int, step: Step) -> None:
    """As `peek`, by position."""
    step.loads.append(BrowseLoad(command.request, command.kind, command.from_pos, command.to_pos, command.max_bytes))


def inspect(state: PartitionState, command: Inspect, now_ms: int, step: Step) -> None:
    """Counts and positions, from memory."""
    infos = {
        int(kind): SubqueueInfo(subqueue.messages, subqueue.size_bytes, len(subqueue.locks))
        for kind, subqueue in state.subqueues.items()
    }
    step.replies.append(Inspected(command.request, state.next_sequence, state.next_number, infos))
