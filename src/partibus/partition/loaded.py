"""What a load brought."""

from typing import Any

from partibus.partition.commands import BodyLoad, Loaded, PageLoad, Rows
from partibus.partition.dead_letter import dead_letter_doomed
from partibus.partition.ports import EntryRow
from partibus.partition.settlement import settle_with_bodies
from partibus.partition.state import PartitionState, entry_of
from partibus.partition.step import Step


def loaded(state: PartitionState, command: Loaded, now_ms: int, step: Step) -> None:
    """Take it in, or answer who asked."""
    load = command.load
    rows: list[Any] = list(command.rows)
    if isinstance(load, PageLoad):
        _page_loaded(state, load, rows, step)
    elif isinstance(load, BodyLoad):
        _bodies_loaded(state, load, rows, now_ms, step)
    else:
        step.replies.append(Rows(load.request, rows))


def _page_loaded(state: PartitionState, load: PageLoad, rows: list[EntryRow], step: Step) -> None:
    subqueue = state.subqueues[load.kind]
    subqueue.loading_page = False
    entries = [entry_of(row, row.data, len(row.data)) for row in rows]
    subqueue.page_in(entries, rows[-1].pos + 1 if rows else load.end_pos)
    step.change(load.kind)


def _bodies_loaded(state: PartitionState, load: BodyLoad, bodies: list[bytes | None], now_ms: int, step: Step) -> None:
    found = {pos: data for pos, data in zip(load.positions, bodies, strict=True) if data is not None}
    if load.then is not None:
        settle_with_bodies(state, load, found, now_ms, step)
        return
    subqueue = state.subqueues[load.kind]
    subqueue.loading_bodies = False
    for pos, entry in subqueue.doomed.items():
        if entry.data is None:
            entry.data = found.get(pos)
    for entry in subqueue.ready.bodyless(len(subqueue.ready)):
        if entry.pos in found:
            subqueue.ready.attach_body(entry, found[entry.pos])
    gone = set(load.positions).difference(found)
    if gone:  # the store has lost these bodies: see `settle_with_bodies`
        lost = subqueue.ready.remove(gone) + [entry for pos, entry in subqueue.doomed.items() if pos in gone]
        subqueue.doomed = {pos: entry for pos, entry in subqueue.doomed.items() if pos not in gone}
        state.remove(load.kind, lost, step)
    dead_letter_doomed(state, load.kind, step)
    step.change(load.kind)
