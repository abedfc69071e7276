"""An entity as front ends use it: its partitions and how messages get in and out."""

from collections.abc import Callable

from partibus.routing.front_end_cache import CallIdle, FrontEndCache
from partibus.routing.partitions import Numbers, PartitionHandle
from partibus.routing.receive import DirectSource, OnFailed, OnGranted, Source
from partibus.routing.session_list import SessionList
from partibus.routing.sessions import SessionDesk


class EntityRoute:
    """Partitions in the order of their ids; one makes the entity plain."""

    def __init__(
        self,
        name: str,
        partitions: list[PartitionHandle],
        numbers: Numbers,
        first_turn: int,
        *,
        lock_kept: bool = False,
        call_idle: CallIdle | None = None,
    ) -> None:
        """``lock_kept`` and ``call_idle`` are for the front end's caches."""
        self.name = name
        self.partitions = partitions
        self.numbers = numbers
        self._turn = first_turn
        self.sessions = SessionDesk(name, partitions, numbers, first_turn)
        self.session_list = SessionList(name, partitions, numbers)
        self._lock_kept = lock_kept
        """Cached messages are locked, as the service does it (row P14)."""
        self._call_idle = call_idle
        self._caches: dict[int, FrontEndCache] = {}

    @property
    def partitioned(self) -> bool:
        return len(self.partitions) > 1

    @property
    def overloaded(self) -> bool:
        """One of the stores has more to do than its limits allow."""
        return any(partition.overloaded for partition in self.partitions)

    def when_relieved(self, call: Callable[[], None]) -> None:
        """Call once, when a store that is `overloaded` no longer is; another one still may be."""
        next(partition for partition in self.partitions if partition.overloaded).when_usable(call)

    def take_used(self) -> bool:
        """Anything was sent, received, peeked or settled since this was asked last."""
        used = False
        for partition in self.partitions:
            used = used or partition.used
            partition.used = False
        return used

    def next_partition(self) -> PartitionHandle:
        """The partition whose turn it is for messages without a key (D8, rows K11, K12): round robin over those whose
        store can be used; any when none can."""
        partitions = self.partitions
        for _ in partitions:
            self._turn = (self._turn + 1) % len(partitions)
            if partitions[self._turn].available:
                break
        return partitions[self._turn]

    def give_back(self, kind: int) -> None:
        """Return to the partitions what this front end's cache keeps of a sub-queue."""
        cache = self._caches.get(kind)
        if cache is not None:
            cache.give_back()

    def source(self, kind: int, *, delete: bool, on_granted: OnGranted, on_failed: OnFailed) -> Source:
        """Where a receiver gets messages of a sub-queue: the partition itself, or this front end's cache in front of
        several (D10). ``on_failed`` tells that nothing will come any more. Of several partitions whose stores are away
        one is always left to wait for: there it tells of an exclusive reader only."""
        if not self.partitioned:
            return DirectSource(
                self.name,
                self.partitions[0],
                kind,
                self.numbers,
                delete=delete,
                on_granted=on_granted,
                on_failed=on_failed,
            )
        cache = self._caches.get(kind)
        if cache is None:
            cache = self._caches[kind] = FrontEndCache(
                self.name, self.partitions, kind, self.numbers, lock_kept=self._lock_kept, call_idle=self._call_idle
            )
        return cache.source(delete=delete, on_granted=on_granted, on_failed=on_failed)
