"""The orders in which entries are read, as sorted lists: part of `tables`."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from partibus.partition.protocol.keys import POSITION_BITS, POSITION_MAX, SHARED_BODY, entry_key
from partibus.partition.protocol.ports import EntryState

EMPTY: Mapping[Any, Any] = MappingProxyType({})


class StoredEntry(NamedTuple):
    """The columns of an entry beside its key."""

    body: int
    sequence: int
    enqueued_ms: int
    state: int
    delivery_count: int
    session: str | None
    due_ms: int | None


class EntryIndex:
    """Keys of all entries by sub-queue, by session and by due time, and the reference counts of shared bodies."""

    def __init__(
        self,
        keys: Mapping[int, list[int]] = EMPTY,
        session_keys: Mapping[int, dict[str, list[int]]] = EMPTY,
        due: Mapping[tuple[int, int], list[tuple[int, int]]] = EMPTY,
        names: Mapping[int, int] = EMPTY,
    ) -> None:
        """Begin an empty index, or a copy of one with these containers."""
        self._keys = {subqueue: list(known) for subqueue, known in keys.items()}
        """Sub-queue key -> its entry keys. Enqueues append at the right edge."""
        self._session_keys = {
            subqueue: {session: list(known) for session, known in sessions.items()}
            for subqueue, sessions in session_keys.items()
        }
        """Sub-queue key -> session -> entry keys."""
        self._due = {state: list(known) for state, known in due.items()}
        """(sub-queue key, state) -> (due ms, entry key)."""
        self._names = dict(names)
        """Key of a shared body -> number of entries that reference it."""

    def copy(self) -> Self:
        """Copy the containers; keys are immutable."""
        return type(self)(self._keys, self._session_keys, self._due, self._names)

    def add(self, key: int, entry: StoredEntry) -> None:
        """Add a new entry."""
        subqueue = key >> POSITION_BITS
        _insert(self._keys.setdefault(subqueue, []), key)
        if entry.session is not None:
            _insert(self._session_keys.setdefault(subqueue, {}).setdefault(entry.session, []), key)
        self.add_due(key, entry)
        self.name(entry.body)

    def name(self, body: int) -> None:
        """Count one more reference to a body."""
        if body & SHARED_BODY:
            self._names[body] = self._names.get(body, 0) + 1

    def unname(self, body: int) -> None:
        """Count one reference to a body less."""
        if body & SHARED_BODY:
            self._names[body] -= 1
            if not self._names[body]:
                del self._names[body]

    def is_named(self, body: int) -> bool:
        """Tell whether an entry references that shared body."""
        return body in self._names

    def add_due(self, key: int, entry: StoredEntry) -> None:
        """Add an entry to the order of its state and due time."""
        if entry.due_ms is not None:
            insort(self._due.setdefault((key >> POSITION_BITS, entry.state), []), (entry.due_ms, key))

    def remove_due(self, key: int, entry: StoredEntry) -> None:
        """Remove an entry from the order of its state and due time."""
        if entry.due_ms is not None:
            due = self._due[key >> POSITION_BITS, entry.state]
            del due[bisect_left(due, (entry.due_ms, key))]
            if not due:
                del self._due[key >> POSITION_BITS, entry.state]

    def remove(self, key: int, entry: StoredEntry) -> None:
        """Remove an entry from all orders but that of its sub-queue, which `remove_range` updates."""
        if entry.session is not None:
            sessions = self._session_keys[key >> POSITION_BITS]
            keys = sessions[entry.session]
            del keys[bisect_left(keys, key)]
            if not keys:
                del sessions[entry.session]
        self.remove_due(key, entry)
        self.unname(entry.body)

    def remove_range(self, first: int, last: int) -> list[int]:
        """Remove the keys from ``first`` to ``last`` from the order of keys, and return them.

        The range may span sub-queues.
        """
        removed: list[int] = []
        for subqueue in [key for key in self._keys if first >> POSITION_BITS <= key <= last >> POSITION_BITS]:
            keys = self._keys[subqueue]
            gone = slice(bisect_left(keys, first), bisect_right(keys, last))
            removed += keys[gone]
            del keys[gone]
            if not keys:
                del self._keys[subqueue]
        return removed

    def in_range(self, subqueue: int, from_pos: int, to_pos: int, session: str | None = None) -> Iterator[int]:
        """Yield the keys of positions ``from_pos <= pos < to_pos``, of one session if it is given."""
        if from_pos > POSITION_MAX or to_pos <= 0:
            return iter(())
        keys = self.all_of(subqueue, session)
        first = bisect_left(keys, entry_key(subqueue, max(0, from_pos)))
        last = bisect_right(keys, entry_key(subqueue, min(to_pos - 1, POSITION_MAX)))
        return (keys[index] for index in range(first, last))

    def all_of(self, subqueue: int, session: str | None = None) -> list[int]:
        """Return the keys of a sub-queue, of one session if it is given. The caller must not change them."""
        if session is None:
            return self._keys.get(subqueue, [])
        return self._session_keys.get(subqueue, {}).get(session, [])

    def sessions(self, subqueue: int) -> dict[str, list[int]]:
        """Return the sessions with entries in any state, with their keys. The caller must not change them."""
        return self._session_keys.get(subqueue, {})

    def due(self, subqueue: int, state: int) -> list[tuple[int, int]]:
        """Return (due ms, key) of the entries that have a due time. The caller must not change them."""
        return self._due.get((subqueue, state), [])

    def due_states(self, partition_subqueues: range) -> Iterator[tuple[int, int]]:
        """Yield the (sub-queue, state) pairs with entries that have a due time."""
        return ((key, state) for key in partition_subqueues for state in EntryState if (key, state) in self._due)


def _insert(keys: list[int], key: int) -> None:
    if not keys or key > keys[-1]:
        keys.append(key)
    else:
        insort(keys, key)
