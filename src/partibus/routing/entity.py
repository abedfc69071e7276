"""An entity as front ends use it: its partitions, the routes of messages in and out, and its counts."""

from collections.abc import Callable
from typing import Any, NamedTuple

from partibus.partition.protocol.commands import Inspect
from partibus.partition.protocol.host import overloaded_stores
from partibus.partition.protocol.replies import Failed, Inspected
from partibus.routing.elastic import SlotLoad
from partibus.routing.front_end_cache import CallIdle, FrontEndCache
from partibus.routing.partitions import Numbers, PartitionHandle
from partibus.routing.receive import DirectSource, OnFailed, OnGranted, Source
from partibus.routing.session_list import SessionList
from partibus.routing.sessions import SessionDesk
from partibus.routing.slots import SlotMap


class EntityRoute:
    """The partitions of an entity, ordered by id. An entity with one partition is plain."""

    def __init__(
        self,
        name: str,
        partitions: list[PartitionHandle],
        numbers: Numbers,
        first_turn: int,
        *,
        lock_kept: bool = False,
        call_idle: CallIdle | None = None,
        slots: SlotMap | None = None,
        is_elastic: bool = False,
    ) -> None:
        """Build a route; ``lock_kept`` and ``call_idle`` configure the front end's caches.

        ``is_elastic``: the entity may get more partitions, and is treated as partitioned while it has one.
        """
        self.name = name
        self.partitions = partitions
        self.numbers = numbers
        self.slots = slots or SlotMap(len(partitions))
        """The owner of each slot; `follow` replaces it."""
        self._turn = first_turn
        self.sessions = SessionDesk(name, partitions, numbers, first_turn, self.partition_of)
        self.session_list = SessionList(name, partitions, numbers)
        self.grown: list[Callable[[], None]] = []
        """Functions to call after partitions were added: receivers ask those, too."""
        self.on_unknown: Callable[[], None] = lambda: None
        """Reads the entity's partitions from the catalog; replaced by the namespace."""
        self.sessions.catch_up = self.catch_up
        self.is_elastic = is_elastic
        self.load = SlotLoad()
        """The load of slots, as this broker's senders cause it."""
        self.on_sent: Callable[[dict[int, int]], None] | None = None
        """A function that gets the messages by partition of each run with keys, of an elastic queue."""
        self._lock_kept = lock_kept
        """Whether cached messages are locked, as in the service (row P14)."""
        self._call_idle = call_idle
        self._caches: dict[int, FrontEndCache] = {}

    def partition_of(self, key: str) -> int:
        """Return the id of the partition of a key: the only way from a key to a partition."""
        return self.slots.partition_of(key)

    def catch_up(self) -> None:
        """Read the entity's partitions from the catalog: a partition has named one that is not known here."""
        self.on_unknown()

    def partition(self, partition_id: int) -> PartitionHandle | None:
        """Return a partition; None if there is none of that id.

        An id that another broker's partition has named may be new, so `catch_up` looks for it first.
        """
        if partition_id >= len(self.partitions):
            self.catch_up()
        return self.partitions[partition_id] if partition_id < len(self.partitions) else None

    def follow(self, partitions: list[PartitionHandle], slots: SlotMap) -> None:
        """Follow a change of the entity's partitions and of the owners of slots.

        ``partitions`` are those to add, which follow the present ones.
        """
        self.slots = slots
        if not partitions:
            return
        self.partitions += partitions
        self.sessions.resize()
        for cache in self._caches.values():
            cache.grow(partitions)
        for call in list(self.grown):
            call()

    def shrink(self, count: int) -> None:
        """Forget partitions that were removed, which were empty."""
        gone = self.partitions[count:]
        del self.partitions[count:]
        self.sessions.resize()
        for cache in self._caches.values():
            cache.forget(gone)
        if self._turn >= count:
            self._turn = 0

    @property
    def partitioned(self) -> bool:
        """Whether the entity has more than one partition, or may get more."""
        return self.is_elastic or len(self.partitions) > 1

    @property
    def overloaded(self) -> bool:
        """Whether one of the stores has more pending work than its limits allow."""
        return bool(overloaded_stores) and any(partition.overloaded for partition in self.partitions)

    def when_relieved(self, call: Callable[[], None]) -> None:
        """Call once, when an `overloaded` store has recovered; another one may still be overloaded."""
        next(partition for partition in self.partitions if partition.overloaded).when_usable(call)

    def take_used(self) -> bool:
        """Tell whether the entity was used since the last call: a send, receive, peek or settlement."""
        used = False
        for partition in self.partitions:
            used = used or partition.used
            partition.used = False
        return used

    def next_partition(self) -> PartitionHandle:
        """Return the next partition for messages without a key (D8, rows K11, K12).

        The choice is round robin over partitions with an available store, or over all if there is none.
        """
        partitions = self.partitions
        for _ in partitions:
            self._turn = (self._turn + 1) % len(partitions)
            if partitions[self._turn].available:
                break
        return partitions[self._turn]

    def next_owner(self) -> PartitionHandle:
        """Return the next partition that owns slots, as `next_partition` does.

        One without slots may be removed as soon as it is found empty.
        """
        owning = self.slots.owning
        for _ in self.partitions:
            partition = self.next_partition()
            if partition.partition_id in owning:
                return partition
        return self.partitions[min(owning)]

    def give_back(self, kind: int) -> None:
        """Return this front end's cached messages of a sub-queue to the partitions."""
        cache = self._caches.get(kind)
        if cache is not None:
            cache.give_back()

    def source(
        self,
        kind: int,
        *,
        delete: bool,
        on_granted: OnGranted,
        on_failed: OnFailed,
        lock_ms: int = 0,
        once: bool = False,
    ) -> Source:
        """Return a receiver's source of messages of a sub-queue.

        ``lock_ms`` is the length of its locks; 0: the entity's LockDuration. ``once``: the first grant ends the demand.
        Only a plain entity knows both.
        It is the partition itself, or this front end's cache in front of several (D10). ``on_failed`` reports that no
        further messages will come. The cache waits for partitions whose stores are away, so it reports only an
        exclusive reader.
        """
        if not self.partitioned:
            return DirectSource(
                self.name,
                self.partitions[0],
                kind,
                self.numbers,
                delete=delete,
                on_granted=on_granted,
                on_failed=on_failed,
                lock_ms=lock_ms,
                once=once,
            )
        cache = self._caches.get(kind)
        if cache is None:
            cache = self._caches[kind] = FrontEndCache(
                self.name, self.partitions, kind, self.numbers, lock_kept=self._lock_kept, call_idle=self._call_idle
            )
        return cache.source(delete=delete, on_granted=on_granted, on_failed=on_failed)


class Inspection(NamedTuple):
    """The answers of an entity's partitions, by partition index."""

    found: dict[int, Inspected]
    failed: dict[int, Failed]
    """The partitions whose stores are unavailable (row A4), so that ``found`` is incomplete."""


def inspect_each(
    route: EntityRoute, on_inspected: Callable[[Inspection], None], *, count_scheduled: bool = False
) -> None:
    """Ask every partition for its counts; the callback runs once, when each has answered or failed.

    ``count_scheduled`` includes the number of scheduled messages.
    """
    inspection = Inspection({}, {})
    missing = len(route.partitions)

    def collect(index: int) -> Callable[[Any], None]:
        def answered(reply: Any) -> None:
            nonlocal missing
            if isinstance(reply, Failed):
                inspection.failed[index] = reply
            else:
                inspection.found[index] = reply
            missing -= 1
            if not missing:
                on_inspected(inspection)

        return answered

    for index, partition in enumerate(route.partitions):
        partition.submit(Inspect(route.numbers.next(), count_scheduled), collect(index))


def inspect_all(
    route: EntityRoute, on_inspected: Callable[[list[Inspected]], None], on_failed: Callable[[Failed], None]
) -> None:
    """Ask every partition for its counts, all or none.

    Exactly one callback runs, once: ``on_inspected`` with the answers in the order of the partitions, or ``on_failed``
    with one of the failures.
    """

    def inspected(inspection: Inspection) -> None:
        if inspection.failed:
            on_failed(next(iter(inspection.failed.values())))
        else:
            on_inspected([inspection.found[index] for index in sorted(inspection.found)])

    inspect_each(route, inspected)
