"""The namespaces of a server, by the host names under which clients reach it (rows R9, R10, P6, P8).

A host name leads to the namespace that its first label names: ``acme.localhost``, ``acme.plant.example`` and
``acme.servicebus.windows.net`` to ``acme``; every other one to the default namespace. Each has entities, keys and
settings of its own. Stores and brokers they share.
"""

from collections.abc import Callable, Iterable, Iterator

from partibus.errors import EntityNotFound, InvalidOperation
from partibus.namespace.announcing import Announcer, Change
from partibus.namespace.broker import Broker
from partibus.namespace.catalog import Catalog
from partibus.namespace.entity import Entity
from partibus.namespace.names import check_namespace_name, fold_name
from partibus.namespace.namespace import Queue
from partibus.namespace.namespace_options import DEFAULT_ID, NamespaceOptions, NamespaceRecord
from partibus.namespace.policies import first_policies
from partibus.namespace.tiers import Tier, check_migration, check_namespace_options, check_update

CheckUnits = Callable[[str, NamespaceOptions | None, NamespaceOptions, Iterable[NamespaceOptions]], None]
"""Gets a namespace's name, its options before and those that it shall have, and those of all others. Raises
ArgumentError."""
MakeBroker = Callable[[NamespaceRecord], Broker]


class Namespaces:
    """What one broker process serves."""

    def __init__(
        self,
        default: Broker,
        catalog: Catalog | None = None,
        make: MakeBroker | None = None,
        announcer: Announcer | None = None,
    ) -> None:
        """``make`` serves another namespace of the catalog. Without it there is only the default one."""
        self.default = default
        self._catalog = catalog
        self._make = make
        self._announcer = announcer or Announcer()
        self._queues_by_row = default.namespace.queues_by_row
        self._by_name: dict[str, Broker] = {}
        self._by_id: dict[int, Broker] = {}
        self.on_clock_moved: list[Callable[[], None]] = []
        """Called when the clock was moved by hand (D26): run what has fallen due by it. Timers that the loop has were
        set for the time that was."""
        self.on_deleted: list[Callable[[Broker], None]] = []
        """Called with a namespace that is gone: its clients have nothing here any more."""
        self.on_changed: list[Callable[[Broker], None]] = []
        """Called with a namespace that is new or has other options."""
        self.check_units: CheckUnits = lambda name, old, new, others: None
        """Refuses units that no broker has free; whoever runs the brokers knows how many there are."""
        self._put(default)
        self._follow_catalog()

    # -- what there is -----------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Broker]:
        """In order of creation, the default one first."""
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    def of_host(self, host: str | None) -> Broker:
        """The namespace that a client means who calls the server by this name, a port behind it or not."""
        if len(self._by_id) == 1 or not host:
            return self.default
        return self._by_name.get(fold_name(host.partition(".")[0].partition(":")[0])) or self.default

    def named(self, name: str) -> Broker:
        """EntityNotFound when there is none of that name."""
        broker = self._by_name.get(fold_name(name))
        if broker is None:
            raise EntityNotFound(f"namespace {name}")
        return broker

    def numbered(self, namespace_id: int) -> Broker | None:
        """As the catalog knows it."""
        return self._by_id.get(namespace_id)

    def queues(self) -> Iterator[Queue]:
        """The entities of all."""
        return (queue for broker in self for queue in broker.namespace)

    def queue_of(self, partition_row: int) -> Queue | None:
        """The entity that a partition is of, if it is not deleted."""
        return self._queues_by_row.get(partition_row)

    def broker_of(self, queue: Queue) -> Broker:
        """The namespace of an entity that is not deleted."""
        return self._by_id[queue.namespace_id]

    def entity_of(self, queue: Queue) -> Entity:
        """The entity with its route."""
        return self.broker_of(queue).entity_of(queue)

    def in_use(self, queue: Queue) -> Entity | None:
        """The entity, if anybody has asked for it since the start."""
        broker = self._by_id.get(queue.namespace_id)
        return None if broker is None else broker.in_use(queue)

    def clock_moved(self) -> None:
        """The clock was moved by hand, or has gone forward by itself: delays that were reckoned before are too long."""
        for call in self.on_clock_moved:
            call()
        for broker in self:
            broker.throttle.look()

    def wake_partitions(self, partition_rows: list[int]) -> None:
        """Have partitions loaded that nobody may use: something falls due in them."""
        for row in partition_rows:
            queue = self.queue_of(row)
            if queue is not None:
                self.entity_of(queue).route.partitions[queue.index_of(row)].wake()

    # -- changes -----------------------------------------------------------------------------------------------------

    def create(self, name: str, options: NamespaceOptions) -> Broker:
        """Make a namespace, with a policy of all rights and new keys. `ArgumentError`, `EntityExists`."""
        check_namespace_name(name)
        check_namespace_options(options)
        now_ms = self.default.clock.now_ms()
        with self._known.together():
            self._check_units(name, None, options)
            self._known.create_namespace(name, options, now_ms, first_policies(now_ms))
        self._changed()
        return self.named(name)

    def update(self, name: str, change: Callable[[NamespaceOptions], NamespaceOptions]) -> Broker:
        """Give a namespace the options that ``change`` makes of those in the catalog. `EntityNotFound`, and what
        ``change`` and `check_update` raise."""

        def checked(old: NamespaceOptions) -> NamespaceOptions:
            new = change(old)
            check_update(old, new)
            self._check_units(name, old, new)
            return new

        return self._change(name, checked)

    def migrate(self, name: str, change: Callable[[NamespaceOptions], NamespaceOptions]) -> Broker:
        """Make a premium namespace of a standard one, while it is in use (rows P10, R10). Its entities stay as they
        are, with their messages, locks, sessions and cursors; those that are made from now on are as in any premium
        namespace. Raises what `update` does, by `check_migration`."""

        def checked(old: NamespaceOptions) -> NamespaceOptions:
            new = change(old)
            check_migration(old, new)
            self._check_units(name, old, new)
            return new

        return self._change(name, checked)

    def delete(self, name: str) -> None:
        """Take a namespace out, with all that is in it. `EntityNotFound`; `InvalidOperation` for the default one."""
        if fold_name(name) == fold_name(self.default.namespace.name):
            raise InvalidOperation(f"'{name}' is the default namespace, which stays. Delete its entities instead.")
        record = self._known.delete_namespace(name)
        broker = self._by_id.get(record.namespace_id)
        gone = dict(self._changed())
        # Who uses it lets go first, everywhere: what links say when they end would bring partitions to life again.
        if broker is not None:
            self.when_followed(lambda: broker.drop(gone.get(record.namespace_id, [])))

    def when_followed(self, call: Callable[[], None]) -> None:
        """See `Announcer`."""
        self._announcer.when_followed(call)

    def follow(self, change: Change) -> None:
        """Go by what another broker has announced. Idempotent. Raises `StoreUnavailable` when the catalog can't be
        read; then try again."""
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

    def follow_all(self) -> None:
        """Changes may have been missed: go by the whole catalog."""
        self._follow_catalog()
        for number, broker in list(self._by_id.items()):
            records = self._known.of(number).list_entities()
            # The empty one stands for the namespace itself.
            for path in ("", *sorted(broker.namespace.unlike(records))):
                broker.follow({"entity": path})

    # -- inside ------------------------------------------------------------------------------------------------------

    @property
    def _known(self) -> Catalog:
        if self._catalog is None:
            raise InvalidOperation("This server has one namespace only.")
        return self._catalog

    def _check_units(self, name: str, old: NamespaceOptions | None, new: NamespaceOptions) -> None:
        """Against what the catalog has, in the transaction that changes it: another broker may be giving units away."""
        if new.tier is Tier.PREMIUM:
            records = self._known.list_namespaces()
            others = [record.options for record in records if fold_name(record.name) != fold_name(name)]
            self.check_units(name, old, new, others)

    def _change(self, name: str, checked: Callable[[NamespaceOptions], NamespaceOptions]) -> Broker:
        self._known.update_namespace(name, checked, self.default.clock.now_ms())
        self._changed()
        return self.named(name)

    def _changed(self) -> list[tuple[int, list[Queue]]]:
        """As `_follow_catalog`, and have others follow."""
        gone = self._follow_catalog()
        self._announcer.spread({"namespaces": True})
        return gone

    def _follow_catalog(self) -> list[tuple[int, list[Queue]]]:
        """The numbers of namespaces that are gone, with what was in them."""
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
