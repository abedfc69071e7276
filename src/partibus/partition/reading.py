"""Loads, done: the only place that knows which call of a store answers which load."""

from typing import Any

from partibus.partition import commands as c
from partibus.partition.keys import subqueue_key
from partibus.partition.ports import Store

BROWSE_ENTRIES_MAX = 10_000


def read(store: Store, row: int, load: c.Load) -> Any:
    """Do a load; blocks."""
    match load:
        case c.PageLoad():
            return store.load_page(subqueue_key(row, load.kind), load.from_pos, load.max_entries, load.max_bytes)
        case c.BodyLoad():
            return store.load_bodies(load.bodies)
        case c.PeekLoad():
            return store.peek(subqueue_key(row, load.kind), load.from_sequence, load.max_entries, load.max_bytes)
        case c.BrowseLoad():
            return store.browse(
                subqueue_key(row, load.kind), load.from_pos, load.to_pos, BROWSE_ENTRIES_MAX, load.max_bytes
            )
