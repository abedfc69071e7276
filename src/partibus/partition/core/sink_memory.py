"""The ids of a partition's sinks that memory has, so that the store is not asked about rows that are surely new.

It has all ids of a sink from some batch on: of all, where the store had none when the sink was first used here; else of
those behind the batch that rows came with then. Once earlier ones are forgotten it has all that there are, too.
"""

from collections.abc import Sequence

IDS_MAX = 32_768
"""Of all sinks of a partition: 3 MB. With more the store is asked again, until two more batches are committed."""


ID_BYTES = 110
"""Memory of one: its bytes and its place in a set."""


class _Ids:
    """Of one sink."""

    __slots__ = ("batches", "first", "newest", "oldest")

    def __init__(self, first: int) -> None:
        self.first = first
        """Ids of this batch and later ones are here."""
        self.oldest = 0
        """Ids of earlier batches than this are not in the store."""
        self.newest = 0
        self.batches: dict[int, set[bytes]] = {}


class SinkMemory:
    """Of one partition."""

    __slots__ = ("_count", "_sinks")

    def __init__(self) -> None:
        self._sinks: dict[int, _Ids] = {}
        self._count = 0

    @property
    def size_bytes(self) -> int:
        """Of the ids."""
        return ID_BYTES * self._count

    def has(self, sink: int) -> bool:
        """Something is known of the sink: `begin` was called, and its ids have not all been forgotten since."""
        return sink in self._sinks

    def begin(self, sink: int, first: int) -> None:
        """The store has no ids of that batch of the sink, or later ones. ``first`` 0: it has none at all."""
        self._sinks[sink] = _Ids(first)

    def lacks(self, sink: int, ids: Sequence[bytes]) -> bool:
        """True: the sink has none of them, and they are all different. False says nothing."""
        known = self._sinks.get(sink)
        if known is None or known.oldest < known.first or len(set(ids)) < len(ids):
            return False
        return all(batch.isdisjoint(ids) for batch in known.batches.values())

    def add(self, sink: int, batch: int, ids: Sequence[bytes]) -> None:
        """They are in the store with the next commit, as those of that batch."""
        known = self._sinks.get(sink)
        if known is None:
            return
        known.newest = max(known.newest, batch)
        if batch < known.first:
            return
        kept = known.batches.setdefault(batch, set())
        self._count -= len(kept)
        kept.update(ids)
        self._count += len(kept)
        if self._count > IDS_MAX:
            for other in self._sinks.values():
                if other.batches:
                    other.batches.clear()
                    other.first = other.newest + 1
            self._count = 0

    def forget(self, sink: int, batch: int) -> None:
        """The store has no ids of that batch and earlier ones any more."""
        known = self._sinks.get(sink)
        if known is None:
            return
        known.oldest = max(known.oldest, batch + 1)
        for old in [one for one in known.batches if one <= batch]:
            self._count -= len(known.batches.pop(old))
        if known.newest <= batch:
            del self._sinks[sink]
