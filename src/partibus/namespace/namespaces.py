"""The namespaces of a server, by the host names under which clients reach it (rows R9, R10, P6, P8).

The first label of a host name names the namespace: ``acme-01.localhost``, ``acme-01.plant.example`` and
``acme-01.servicebus.windows.net`` lead to ``acme-01``, every other name to the default namespace. Each has entities,
keys and settings of its own. They share stores and brokers.
"""

from collections.abc import Callable, Iterable, Iterator

from partibus.errors import EntityNotFound, InvalidOperation
from partibus.namespace.broker import Broker
from partibus.namespace.catalog import Catalog
from partibus.namespace.changes import Announcer, Change
from partibus.namespace.entity import Entity
from partibus.namespace.names import check_namespace_name, fold_name
from partibus.namespace.namespace import Queue
from partibus.namespace.namespace_options import (
    DEFAULT_ID,
    NamespaceOptions,
    NamespaceRecord,
    check_migration,
    check_namespace_options,
    check_update,
)
from partibus.namespace.policies import first_policies
from partibus.namespace.tiers import Tier

CheckUnits = Callable[[str, NamespaceOptions | None, NamespaceOptions, Iterable[NamespaceOptions]], None]
"""Gets a namespace's name, its old and new options, and the options of all others. Raises ArgumentError."""
MakeBroker = Callable[[NamespaceRecord], Broker]


class Namespaces:
    """The namespaces that one broker process serves."""

    def __init__(
        self,
        default: Broker,
        catalog: Catalog | None = None,
        make: MakeBroker | None = None,
        announcer: Announcer | None = None,
    ) -> None:
        """Serve the namespaces of a catalog.

        ``make`` serves one of them; without it there is only the default namespace.
        """
        self.default = default
        self._catalog = catalog
        self._make = make
        self._announcer = announcer or Announcer()
        self._queues_by_row = default.namespace.queues_by_row
        self._by_name: dict[str, Broker] = {}
        self._by_id: dict[int, Broker] = {}
        self.on_clock_moved: list[Callable[[], None]] = []
        """Callbacks after the clock was moved by hand (D26), to run what is due. The loop's timers were set for the
        time before.
        """
        self.on_deleted: list[Callable[[Broker], None]] = []
        """Called with a deleted namespace, whose clients must go."""
        self.on_changed: list[Callable[[Broker], None]] = []
        """Called with a namespace that is new or has other options."""
        self.on_followed: list[Callable[[Queue | None], None]] = []
        """Called with an entity that another broker has made or changed; None: there may be any number."""
        self.check_units: CheckUnits = lambda name, old, new, others: None
        """Refuses units that no broker has free; replaced by the process that runs the brokers."""
        self._put(default)
        self._follow_catalog()

    # -- what there is -----------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Broker]:
        """Iterate in order of creation, the default namespace first."""
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    def of_host(self, host: str | None) -> Broker:
        """Return the namespace of a host name, with or without a port."""
        if len(self._by_id) == 1 or not host:
            return self.default
        return self._by_name.get(fold_name(host.partition(".")[0].partition(":")[0])) or self.default

    def named(self, name: str) -> Broker:
        """Return the namespace of that name. Raises EntityNotFound."""
        broker = self._by_name.get(fold_name(name))
        if broker is None:
            raise EntityNotFound(f"namespace {name}")
        return broker

    def numbered(self, namespace_id: int) -> Broker | None:
        """Return the namespace of that number in the catalog, or None."""
        return self._by_id.get(namespace_id)

    def queues(self) -> Iterator[Queue]:
        """Iterate over the entities of all namespaces."""
        return (queue for broker in self for queue in broker.namespace)

    def queue_of(self, partition_row: int) -> Queue | None:
        """Return the entity of a partition, or None when it was deleted."""
        return self._queues_by_row.get(partition_row)

    def broker_of(self, queue: Queue) -> Broker:
        """Return the namespace of an entity that is not deleted."""
        return self._by_id[queue.namespace_id]

    def entity_of(self, queue: Queue) -> Entity:
        """Return the entity with its route."""
        return self.broker_of(queue).entity_of(queue)

    def in_use(self, queue: Queue) -> Entity | None:
        """Return the entity if it was used since the start, or None."""
        broker = self._by_id.get(queue.namespace_id)
        return None if broker is None else broker.in_use(queue)

    def clock_moved(self) -> None:
        """React to a clock that was moved by hand, or went forward by itself: earlier delays are too long."""
        for call in self.on_clock_moved:
            call()
        for broker in self:
            broker.throttle.look()

    def wake_partitions(self, partition_rows: list[int]) -> None:
        """Load unused partitions in which something is due."""
        for row in partition_rows:
            queue = self.queue_of(row)
            if queue is not None:
                self.entity_of(queue).route.partitions[queue.index_of(row)].wake()

    # -- changes -----------------------------------------------------------------------------------------------------

    def create(self, name: str, options: NamespaceOptions) -> Broker:
        """Create a namespace, with a policy of all rights and new keys. Raises `ArgumentError`, `EntityExists`."""
        check_namespace_name(name)
        check_namespace_options(options)
        now_ms = self.default.clock.now_ms()
        with self._known.together():
            self._check_units(name, None, options)
            self._known.create_namespace(name, options, now_ms, first_policies(now_ms))
        self._changed()
        return self.named(name)

    def update(self, name: str, change: Callable[[NamespaceOptions], NamespaceOptions]) -> Broker:
        """Give a namespace the options that ``change`` makes of those in the catalog.

        Raises `EntityNotFound`, and what ``change`` and `check_update` raise.
        """

        def checked(old: NamespaceOptions) -> NamespaceOptions:
            new = change(old)
            check_update(old, new)
            self._check_units(name, old, new)
            return new

        return self._change(name, checked)

    def migrate(self, name: str, change: Callable[[NamespaceOptions], NamespaceOptions]) -> Broker:
        """Make a premium namespace of a standard one, while it is in use (rows P10, R10).

        Its entities stay as they are, with their messages, locks, sessions and cursors; new ones are as in any premium
        namespace. Raises what `update` does, by `check_migration`.
        """

        def checked(old: NamespaceOptions) -> NamespaceOptions:
            new = change(old)
            check_migration(old, new)
            self._check_units(name, old, new)
            return new

        return self._change(name, checked)

    def delete(self, name: str) -> None:
        """Delete a namespace with everything in it.

        Raises `EntityNotFound`, and `InvalidOperation` for the default namespace.
        """
        if fold_name(name) == fold_name(self.default.namespace.name):
            raise InvalidOperation(f"'{name}' is the default namespace, which stays. Delete its entities instead.")
        record = self._known.delete_namespace(name)
        broker = self._by_id.get(record.namespace_id)
        gone = dict(self._changed())
        # Links detach first, everywhere: the commands that they send at their end would load partitions again.
        if broker is not None:
            self.when_followed(lambda: broker.drop(gone.get(record.namespace_id, [])))

    def when_followed(self, call: Callable[[], None]) -> None:
        """Call when every broker follows the last change (`Announcer`)."""
        self._announcer.when_followed(call)

    def follow(self, change: Change) -> None:
        """Follow a change that another broker announced. Idempotent.

        Raises `StoreUnavailable` when the catalog can't be read; then try again.
        """
        if "namespaces" in change:
            self._follow_catalog()
        if "rehearsals" in change:
            self.default.follow({"rehearsals": change["rehearsals"]})
        if "entity" in change:
            number = change.get("namespace", DEFAULT_ID)
            if number not in self._by_id:
                self._follow_catalog()
            broker = self._by_id.get(number)
            if broker is not None:
                broker.follow(change)
                queue = broker.namespace.find(change["entity"])
                if queue is not None:
                    self._tell_followed(queue)

    def follow_all(self) -> None:
        """Follow the whole catalog, since announcements may have been missed."""
        self._follow_catalog()
        for number, broker in list(self._by_id.items()):
            records = self._known.of(number).list_entities()
            # The empty path stands for the namespace itself.
            for path in ("", *sorted(broker.namespace.unlike(records))):
                broker.follow({"entity": path})
        self._tell_followed(None)

    # -- inside ------------------------------------------------------------------------------------------------------

    @property
    def _known(self) -> Catalog:
        if self._catalog is None:
            raise InvalidOperation("This server has one namespace only.")
        return self._catalog

    def _tell_followed(self, queue: Queue | None) -> None:
        for tell in self.on_followed:
            tell(queue)

    def _check_units(self, name: str, old: NamespaceOptions | None, new: NamespaceOptions) -> None:
        """Check units against the catalog, in the transaction that changes it: other brokers may assign units."""
        if new.tier is Tier.PREMIUM:
            records = self._known.list_namespaces()
            others = [record.options for record in records if fold_name(record.name) != fold_name(name)]
            self.check_units(name, old, new, others)

    def _change(self, name: str, checked: Callable[[NamespaceOptions], NamespaceOptions]) -> Broker:
        self._known.update_namespace(name, checked, self.default.clock.now_ms())
        self._changed()
        return self.named(name)

    def _changed(self) -> list[tuple[int, list[Queue]]]:
        """Follow the catalog as `_follow_catalog` does, and announce the change."""
        gone = self._follow_catalog()
        self._announcer.spread({"namespaces": True})
        return gone

    def _follow_catalog(self) -> list[tuple[int, list[Queue]]]:
        """Follow the catalog; returns the numbers of deleted namespaces with their entities."""
        gone: list[tuple[int, list[Queue]]] = []
        if self._catalog is None or self._make is None:
            return gone
        records = {record.namespace_id: record for record in self._catalog.list_namespaces()}
        for number, broker in list(self._by_id.items()):
            if number not in records:
                del self._by_id[number], self._by_name[fold_name(broker.namespace.name)]
                gone.append((number, broker.end()))
                for tell in self.on_deleted:
                    tell(broker)
        for number, record in records.items():
            known = self._by_id.get(number)
            if known is None:
                self._put(self._make(record))
            elif known.namespace.record != record:
                known.namespace.record = record
                known.throttle.change(record.options.credits)
                for tell in self.on_changed:
                    tell(known)
        return gone

    def _put(self, broker: Broker) -> None:
        record = broker.namespace.record
        self._by_name[fold_name(record.name)] = self._by_id[record.namespace_id] = broker
        broker.access.answers_to = lambda host: self.of_host(host) is broker
        for tell in self.on_changed:
            tell(broker)
