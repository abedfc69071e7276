"""What happened to entries, in the past tense: the record of a step that `journal` turns into rows.

Memory has already changed when an event is seen; a store that fails before the rows are durable makes the partition
forget its memory and load again (D11). There is no replay: the store holds the image, not the history.
"""

from dataclasses import dataclass

from partibus.partition.entry import Entry


@dataclass(slots=True)
class Enqueued:
    """New entries at the end of the active sub-queue, consecutive in position and sequence."""

    entries: list[Entry]


@dataclass(slots=True)
class Locked:
    """One delivery batch went out under one lock. Written lazily: nobody waits for it (D12)."""

    kind: int
    lock_id: int
    until_ms: int
    entries: list[Entry]


@dataclass(slots=True)
class Removed:
    """Entries are finished: completed, received-and-deleted, expired."""

    kind: int
    entries: list[Entry]


@dataclass(slots=True)
class Counted:
    """Entries went back to their place after a delivery that counts."""

    kind: int
    entries: list[Entry]


@dataclass(slots=True)
class LockChanged:
    """Part of a delivery batch went back to its place; the lock covers ``positions`` now."""

    kind: int
    lock_id: int
    until_ms: int
    positions: list[int]


@dataclass(slots=True)
class Unlocked:
    """Nothing of a delivery batch is locked any more."""

    kind: int
    lock_id: int


@dataclass(slots=True)
class Moved:
    """Entries went from one sub-queue to another; pairs of (as it was, as it is)."""

    kind: int
    to_kind: int
    pairs: list[tuple[Entry, Entry]]


Event = Enqueued | Locked | Removed | Counted | LockChanged | Unlocked | Moved
