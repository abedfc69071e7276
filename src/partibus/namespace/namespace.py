"""The entities of a namespace in memory: what front ends look up on every attach and request.

The catalog is the truth. It is read once at start, and each change goes there first; memory follows when it is durable.
Other brokers change the same catalog and say so: then memory follows what is there (`Namespace.follow`).
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from partibus.clock import Clock
from partibus.errors import EntityNotFound
from partibus.namespace.catalog import Catalog, EntityRecord
from partibus.namespace.config_document import ConfigError, Problem
from partibus.namespace.config_json import Config, DeclaredQueue
from partibus.namespace.durations import UNLIMITED_MS
from partibus.namespace.entities import DEFAULT_OPTIONS, QueueDescription, QueueOptions
from partibus.namespace.names import fold_name
from partibus.namespace.placement import Placement
from partibus.namespace.properties import change_refused, immutable_changes

_KIB = 1024
_MIB = 1024 * _KIB


class Queue:
    """One queue, its options worked out for use: times in ms, sizes in bytes.

    There is one object per queue for as long as the queue exists. An update changes it in place, so a link that holds
    it sees the new options; ``deleted`` says that it is gone.
    """

    __slots__ = (
        "auto_delete_on_idle_ms",
        "batched_operations",
        "can_receive",
        "can_send",
        "created_ms",
        "dead_lettering_on_expiration",
        "default_ttl_ms",
        "deleted",
        "description",
        "duplicate_window_ms",
        "entity_id",
        "lock_duration_ms",
        "max_delivery_count",
        "message_size_max_bytes",
        "name",
        "partition_size_max_bytes",
        "partitioned",
        "partitions",
        "redelivery_delay_max_ms",
        "redelivery_delay_ms",
        "requires_duplicate_detection",
        "requires_session",
        "updated_ms",
    )

    def __init__(self, record: EntityRecord) -> None:
        self.entity_id: int = record.entity_id
        self.name: str = record.description.name
        self.partitions: tuple[Placement, ...] = record.placements
        self.partitioned: bool = record.description.options.partitioned
        self.requires_session: bool = record.description.options.requires_session
        self.requires_duplicate_detection: bool = record.description.options.requires_duplicate_detection
        self.created_ms: int = record.created_ms
        self.deleted = False
        self._follow(record)

    def _follow(self, record: EntityRecord) -> None:
        """Everything that an update may change."""
        options = record.description.options
        self.description: QueueDescription = record.description
        self.updated_ms: int = record.updated_ms
        self.lock_duration_ms: int = options.lock_duration_ms
        self.max_delivery_count: int = options.max_delivery_count
        self.default_ttl_ms: int | None = None if options.default_ttl_ms >= UNLIMITED_MS else options.default_ttl_ms
        """None: no limit."""
        self.dead_lettering_on_expiration: bool = options.dead_lettering_on_expiration
        self.batched_operations: bool = options.batched_operations
        self.message_size_max_bytes: int = options.max_message_size_kb * _KIB
        self.partition_size_max_bytes: int = options.max_size_mb * _MIB
        self.can_send: bool = options.status.can_send
        self.can_receive: bool = options.status.can_receive
        self.duplicate_window_ms: int | None = (
            options.duplicate_detection_window_ms if options.requires_duplicate_detection else None
        )
        """None: duplicates are not detected."""
        self.auto_delete_on_idle_ms: int | None = (
            None if options.auto_delete_on_idle_ms >= UNLIMITED_MS else options.auto_delete_on_idle_ms
        )
        """None: never."""
        self.redelivery_delay_ms: int = options.redelivery_delay_ms
        self.redelivery_delay_max_ms: int = options.redelivery_delay_max_ms

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}, entity {self.entity_id}, {len(self.partitions)} partitions>"


class Applied(NamedTuple):
    """What applying a file came to, in queues."""

    created: int
    updated: int
    unchanged: int


class Followed(NamedTuple):
    """What has become of the queue of a name."""

    gone: Queue | None
    """It was deleted; there may be a new one of that name."""
    changed: Queue | None
    """It has other options."""


class Namespace:
    """Entities by name. Names compare without case.

    Changes may raise what `Catalog` raises; then nothing has changed here either.
    """

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog = catalog
        self._clock = clock
        self._queues = {fold_name(record.description.name): Queue(record) for record in catalog.list_entities()}

    def __len__(self) -> int:
        return len(self._queues)

    def __iter__(self) -> Iterator[Queue]:
        """All queues by folded name."""
        return iter([queue for _, queue in sorted(self._queues.items())])

    @property
    def deleted_on_idle(self) -> list[Queue]:
        """The queues that have an AutoDeleteOnIdle, in any order."""
        return [queue for queue in self._queues.values() if queue.auto_delete_on_idle_ms is not None]

    def queue(self, name: str) -> Queue:
        """EntityNotFound when there is none of that name."""
        queue = self._queues.get(fold_name(name))
        if queue is None:
            raise EntityNotFound(name)
        return queue

    def find(self, name: str) -> Queue | None:
        """The queue of that name, if there is one."""
        return self._queues.get(fold_name(name))

    def create(self, name: str, options: QueueOptions = DEFAULT_OPTIONS, away: frozenset[int] = frozenset()) -> Queue:
        """Makes a queue, durably, in stores whose numbers are not in ``away``. ArgumentError, EntityExists,
        QuotaExceeded; StoreUnavailable when too many are."""
        queue = Queue(self._catalog.create(QueueDescription(name, options), self._clock.now_ms(), away))
        self._queues[fold_name(name)] = queue
        return queue

    def update(self, name: str, options: QueueOptions) -> Queue:
        """Gives a queue other options, all of them. EntityNotFound; InvalidOperation for what can't change.

        Who uses the queue right now is told by `Broker.update_queue`.
        """
        return self.change(name, lambda _: options)

    def change(self, name: str, change: Callable[[QueueOptions], QueueOptions]) -> Queue:
        """Gives a queue the options that ``change`` makes of those in the catalog: who changes others of them at the
        same time, through another broker, is not undone. Raises what `update` and ``change`` raise."""
        queue = self.queue(name)
        with self._catalog.together():
            options = change(self._catalog.get(name).description.options)
            record = self._catalog.update(name, options, self._clock.now_ms())
        if record.entity_id == queue.entity_id:
            queue._follow(record)
            return queue
        self.follow(name)
        return self.queue(name)

    def delete(self, name: str) -> Queue:
        """Takes a queue out. Its rows are still in the stores: see `Catalog.dropped_partitions`. EntityNotFound."""
        queue = self.queue(name)
        self._catalog.delete(name)
        del self._queues[fold_name(name)]
        queue.deleted = True
        return queue

    def follow(self, name: str) -> Followed:
        """Another broker has changed, made or deleted the queue of that name: see what there is now. Idempotent."""
        known = self.find(name)
        try:
            record = self._catalog.get(name)
        except EntityNotFound:
            record = None
        if known is not None and (record is None or record.entity_id != known.entity_id):
            known.deleted = True
            del self._queues[fold_name(name)]
            gone, known = known, None
        else:
            gone = None
        if record is not None and known is None:
            self._queues[fold_name(name)] = Queue(record)
        elif record is not None and known is not None and known.description != record.description:
            known._follow(record)
            return Followed(gone, known)
        return Followed(gone, None)

    def forget_dropped(self, partition_rows: Iterable[int]) -> None:
        """The stores have deleted the rows of these partitions of deleted queues."""
        self._catalog.forget_dropped(partition_rows)

    def apply(self, config: Config) -> Applied:
        """Brings the queues that a file declares to what it says; others stay as they are. Idempotent.

        The file describes a queue whole: a property that it leaves out gets its default, so that the same file gives
        the same queues whatever was before. All changes are durable together. ConfigError when a queue exists with
        another value of a property that can't change.
        """
        new, changed = self._differences(config)
        now_ms = self._clock.now_ms()
        with self._catalog.together():
            created = [self._catalog.create(declared.description, now_ms) for declared in new]
            updated = [self._catalog.update(d.description.name, d.description.options, now_ms) for d in changed]
        for record in created:
            self._queues[fold_name(record.description.name)] = Queue(record)
        for record in updated:
            self.queue(record.description.name)._follow(record)
        return Applied(len(created), len(updated), len(config.queues) - len(created) - len(updated))

    def _differences(self, config: Config) -> tuple[list[DeclaredQueue], list[DeclaredQueue]]:
        """The declared queues that don't exist, and those that exist with other options."""
        new: list[DeclaredQueue] = []
        changed: list[DeclaredQueue] = []
        problems: list[Problem] = []
        for declared in config.queues:
            options = declared.description.options
            queue = self.find(declared.description.name)
            if queue is None:
                new.append(declared)
            elif queue.description.options != options:
                changed.append(declared)
                problems += [
                    Problem(f"{declared.path}.Properties.{change.name}", change_refused(queue.name, change))
                    for change in immutable_changes(queue.description.options, options)
                ]
        if problems:
            raise ConfigError(config.file, problems)
        return new, changed
