"""Brokers that serve one catalog, in this process: what one announces the others follow when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from partibus.clock import ManualClock
from partibus.limits import Limits
from partibus.namespace.access import AccessPolicies, Right, SasPolicy
from partibus.namespace.broker import Broker
from partibus.namespace.changes import Announcer, Change
from partibus.namespace.namespace import Namespace, Queue, QueuesByRow, TopicsByRow
from partibus.namespace.namespace_options import NamespaceRecord
from partibus.namespace.namespaces import Namespaces
from partibus.namespace.placement import Placement
from partibus.node.options import partition_options
from partibus.partition.protocol.commands import Tick
from partibus.routing.partitions import Numbers, PartitionHandle
from tests.unit.namespace.catalogs import open_catalog
from tests.unit.routing.test_faulty_route import FakeStore

STORES = 16
NOW_MS = 1_700_000_000_000
ROOT = SasPolicy("RootManageSharedAccessKey", Right.MANAGE, "the-operators-key", "")


class Store(FakeStore):
    """The store of all partitions of one broker."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped: list[int] = []
        self.woken: list[int] = []

    def drop(self, row: int, on_dropped: Callable[[Any], None]) -> None:
        self.dropped.append(row)
        on_dropped(row)

    def submit(self, row: int, options: Any, command: Any, *more: Any, **how: Any) -> None:
        if isinstance(command, Tick):
            self.woken.append(row)


class Cluster:
    """All brokers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock(NOW_MS)
        self.members: list[Member] = []

    def join(self) -> Member:
        """One more, which reads the catalog now."""
        self.members.append(Member(self))
        return self.members[-1]

    def announce(self, source: Member, change: Change, followed: Callable[[], None]) -> None:
        for member in self.members:
            if member is not source:
                member.heard.append(change)
        source.waiting.append(followed)

    def carry(self) -> None:
        """Everything that was announced arrives."""
        for member in self.members:
            heard, member.heard = member.heard, []
            for change in heard:
                member.namespaces.follow(change)
        for member in self.members:
            waiting, member.waiting = member.waiting, []
            for call in waiting:
                call()

    def lose(self) -> None:
        """Nothing that was announced arrives, and nobody says so."""
        for member in self.members:
            member.heard.clear()
            member.waiting.clear()


class Member:
    """One broker."""

    def __init__(self, cluster: Cluster) -> None:
        self.clock = cluster.clock
        self.heard: list[Change] = []
        self.waiting: list[Callable[[], None]] = []
        self.store = Store()
        self.catalog = open_catalog(cluster.folder, STORES)
        self._numbers = Numbers()
        self._announcer = Announcer(lambda change, followed: cluster.announce(self, change, followed))
        self._topics: TopicsByRow = {}
        self._queues: QueuesByRow = {}
        default = self._serve(self.catalog.list_namespaces()[0], AccessPolicies([ROOT]))
        self.namespaces = Namespaces(
            default, self.catalog, lambda record: self._serve(record, AccessPolicies(())), self._announcer
        )

    def _serve(self, record: NamespaceRecord, access: AccessPolicies) -> Broker:
        namespace = Namespace(self.catalog.of(record.namespace_id), self.clock, record, self._topics, self._queues)
        return Broker(namespace, access, self.clock, self._numbers, Limits(), self._handle, self._announcer)

    def _handle(self, queue: Queue, place: Placement) -> PartitionHandle:
        options = partition_options(queue, Limits())
        return PartitionHandle(place.partition_no, place.partition_row, self.store, options, batched=False)

    def names(self) -> list[str]:
        """Return the names of the namespaces."""
        return [broker.namespace.name for broker in self.namespaces]
