"""The cursors of one sub-queue in memory, and the bounds of the entries kept for them (D14).

```text
 positions   0 ........... keep_from ................................. end
              a leaving      a leaving entry stays readable as a *finished*
              entry is       entry, until the lowest cursor has passed it
              deleted
```

``cleared_to`` is the janitor's: below it no finished entry is left, except in the range that is being read for it. Only
a sub-queue that has a cursor, or finished entries of one, has this object: elsewhere a message that leaves costs one
comparison.
"""

from collections.abc import Mapping, Sequence

from partibus.partition.protocol.keys import kind_of
from partibus.partition.protocol.ports import CursorRow, SubqueueCounts

NOWHERE = 1 << 62
"""A value above every position and number."""
CURSORS_MAX = 100
"""The most cursors of a sub-queue. Each takes memory wherever its partition is in use, and each move of one looks at
all.
"""


class Cursor:
    """One named reader; the attributes are those of `partition.protocol.ports.CursorRow`."""

    __slots__ = (
        "bound_bytes",
        "complete_from",
        "created_ms",
        "disposition_position",
        "epoch",
        "moved_ms",
        "name",
        "position",
        "until_ms",
    )

    def __init__(self, name: str, position: int, now_ms: int) -> None:
        self.name = name
        self.position = position
        self.disposition_position = -1
        self.complete_from = 0
        self.bound_bytes = 0
        self.created_ms = now_ms
        self.moved_ms = now_ms
        self.epoch = 0
        self.until_ms = 0

    @classmethod
    def restored(cls, row: CursorRow) -> "Cursor":
        """Return the cursor of a row."""
        cursor = cls(row.name, row.position, row.created_ms)
        for name in cls.__slots__:
            setattr(cursor, name, getattr(row, name))
        return cursor

    def row(self, subqueue: int) -> CursorRow:
        """Return the cursor's row now; ``subqueue``: the key."""
        return CursorRow(
            subqueue, self.name, self.position, self.disposition_position, self.complete_from, self.bound_bytes,
            self.created_ms, self.moved_ms, self.epoch, self.until_ms,
        )  # fmt: skip


class Cursors:
    """The cursors of one sub-queue."""

    __slots__ = (
        "bound_bytes",
        "by_name",
        "cleared_to",
        "clearing",
        "dispositions_forgotten_to",
        "dispositions_from",
        "exclusive",
        "keep_from",
        "passed_to",
        "paused_by",
        "paused_until_ms",
        "retained",
        "retained_bytes",
        "unbegun",
    )

    def __init__(self, retained: SubqueueCounts | None = None) -> None:
        self.by_name: dict[str, Cursor] = {}
        self.exclusive: Cursor | None = None
        """The one whose lease holds."""
        self.paused_until_ms = 0
        """The time until which receivers get no message, because a cursor wants to read exclusively; 0: no pause."""
        self.paused_by = ""
        """The name of that cursor."""
        self.retained = retained.messages if retained else 0
        """Finished entries that are there."""
        self.retained_bytes = retained.size_bytes if retained else 0
        self.keep_from = NOWHERE
        """The position from which on entries that leave stay readable."""
        self.dispositions_from = NOWHERE
        """The number from which on lines of the log of dispositions are kept; without a reader, no line is written."""
        self.bound_bytes = 0
        """The most bytes of finished entries."""
        self.passed_to = 0
        """The position below which a cursor that completes would never read an entry that becomes active again. Such an
        entry gets a new place at the end.
        """
        self.cleared_to = 0
        self.dispositions_forgotten_to = 0
        """The number below which the log has no line left, as far as is known."""
        self.clearing = False
        """Rows are being read for the janitor."""
        self.unbegun = True
        """Whether the janitor has yet to look for work that an earlier owner left."""

    def refresh(self) -> None:
        """Recompute the bounds after a cursor was opened, moved or closed."""
        keep_from = dispositions_from = NOWHERE
        bound_bytes = passed_to = 0
        for cursor in self.by_name.values():
            if cursor.bound_bytes:  # else nothing is kept for it
                keep_from = min(keep_from, cursor.position)
                bound_bytes = max(bound_bytes, cursor.bound_bytes)
            if cursor.disposition_position >= 0:
                dispositions_from = min(dispositions_from, cursor.disposition_position)
            if cursor.epoch:
                passed_to = max(passed_to, cursor.position)
        self.keep_from, self.dispositions_from = keep_from, dispositions_from
        self.bound_bytes, self.passed_to = bound_bytes, passed_to
        self.dispositions_forgotten_to = min(self.dispositions_forgotten_to, dispositions_from)

    @property
    def excess_bytes(self) -> int:
        """The bytes that are kept beyond the bound; negative below it."""
        return self.retained_bytes - self.bound_bytes

    @property
    def is_idle(self) -> bool:
        """Whether there is neither a cursor nor anything left of one."""
        return not (self.by_name or self.retained or self.clearing or self.paused_until_ms or self.unbegun)

    def next_deadline_ms(self) -> int | None:
        """Return when a lease or pause ends, or the janitor has to begin."""
        if self.unbegun:
            return 0
        if self.exclusive is not None:
            return self.exclusive.until_ms
        return self.paused_until_ms or None


def restored_cursors(rows: Sequence[CursorRow], retained: Mapping[int, SubqueueCounts]) -> dict[int, Cursors]:
    """Return the cursors of a snapshot, by kind of sub-queue."""
    found = {kind_of(subqueue): Cursors(counts) for subqueue, counts in retained.items() if counts.messages}
    for row in rows:
        kind = kind_of(row.subqueue)
        cursors = found.setdefault(kind, Cursors())
        cursor = cursors.by_name[row.name] = Cursor.restored(row)
        if cursor.until_ms:
            cursors.exclusive = cursor
    for cursors in found.values():
        cursors.refresh()
    return found
