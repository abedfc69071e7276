"""The catalog: which entities exist, what they are told to be, and where their partitions live (D1, D19).

A small database, used on every administrative operation and on none that moves a message: a SQLite file in the data
directory, or a schema in PostgreSQL (`partibus.namespace.catalog_database` says what its statements must keep to). Each
change is one transaction, durable when the call returns. Calls block for about one disk sync and come one at a time.

Several brokers may have it open. What one changes the others see when they ask; their memory of it is their own
business (`partibus.namespace.namespace`).

Entity ids and partition rows are given out once, also when the entity is deleted or the process dies. The rows that a
deleted entity leaves in the stores are remembered until somebody says that they are gone (`dropped_partitions`).
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from partibus.errors import (
    ArgumentError,
    EntityExists,
    EntityNotFound,
    InvalidOperation,
    PartibusError,
    QuotaExceeded,
    StoreUnavailable,
    UnusableFile,
)
from partibus.namespace.catalog_database import CatalogDatabase, Row
from partibus.namespace.catalog_file import BUSY_TIMEOUT_S, CatalogFile
from partibus.namespace.entities import QueueDescription, QueueOptions
from partibus.namespace.names import check_entity_name, fold_name
from partibus.namespace.placement import Placement, deal, next_first_store_no
from partibus.namespace.properties import change_refused, immutable_changes, queue_options, queue_properties

_QUEUE = "queue"
_ENTITY_COLUMNS = "entity_id, name, properties, created_ms, updated_ms"
_PLACEMENT_COLUMNS = "partition_no, store_no, partition_row"
_LAST_STORE_NO = """
    SELECT max(store_no) FROM (SELECT store_no FROM placement UNION ALL SELECT store_no FROM dropped_partition) AS used
"""


@dataclass(frozen=True, slots=True)
class CatalogLimits:
    """Bounds of one namespace."""

    entity_max: int = 10_000
    partitioned_max: int = 100
    """Partitioned entities, counted in `entity_max` too (row A12)."""
    partition_row_max: int = (1 << 21) - 1
    """Largest number that the stores' keys have room for."""


@dataclass(frozen=True, slots=True)
class EntityRecord:
    """One entity as the catalog has it."""

    entity_id: int
    description: QueueDescription
    placements: tuple[Placement, ...]
    created_ms: int
    updated_ms: int


class Catalog:
    """Every call may raise StoreUnavailable (nothing was changed) or, rarely, OutcomeUnknown."""

    def __init__(
        self,
        place: Path | CatalogDatabase,
        store_count: int,
        limits: CatalogLimits = CatalogLimits(),
        *,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
    ) -> None:
        """``place``: a data directory, in which ``catalog.db`` is opened or made (``busy_timeout_s``: how long a call
        waits while another process is in the middle of a change), or a database that is open. `UnusableFile` when it
        can't be used, or has partitions in a store past ``store_count``."""
        self._database = CatalogFile(place, busy_timeout_s) if isinstance(place, Path) else place
        self._store_count = store_count
        self._limits = limits
        ((last_store_no,),) = self._database.execute(_LAST_STORE_NO)
        if last_store_no is not None and last_store_no >= store_count:
            self.close()
            raise UnusableFile(
                self._database.name,
                f"places partitions in store {last_store_no}, but there are only {store_count} stores",
                f"Serve with at least {last_store_no + 1} stores.",
            )

    @property
    def store_count(self) -> int:
        """Over how many stores partitions are dealt."""
        return self._store_count

    def close(self) -> None:
        """Idempotent."""
        self._database.close()

    def together(self) -> AbstractContextManager[None]:
        """Changes made inside are durable together at its end, or none is."""
        return self._changing()

    def list_entities(self) -> list[EntityRecord]:
        """All entities in order of their creation."""
        with self._reading():
            placements: dict[int, list[Placement]] = {}
            for entity_id, *place in self._database.execute(
                f"SELECT entity_id, {_PLACEMENT_COLUMNS} FROM placement ORDER BY entity_id, partition_no"
            ):
                placements.setdefault(entity_id, []).append(Placement(*place))
            rows = self._database.execute(f"SELECT {_ENTITY_COLUMNS} FROM entity ORDER BY entity_id")
            return [self._record(row, placements.get(row[0], ())) for row in rows]

    def get(self, name: str) -> EntityRecord:
        """EntityNotFound when there is none of that name."""
        with self._reading():
            record = self._find(name)
        if record is None:
            raise EntityNotFound(name)
        return record

    def create(self, description: QueueDescription, now_ms: int, away: frozenset[int] = frozenset()) -> EntityRecord:
        """Adds an entity and deals its partitions over the stores that are not ``away``.

        ArgumentError for its name or for more partitions than stores, EntityExists, QuotaExceeded; StoreUnavailable
        when too many stores are away (row A2)."""
        check_entity_name(description.name)
        partition_count = description.options.partition_count
        if partition_count > self._store_count:
            raise ArgumentError(
                "EnablePartitioning",
                description.options.partitioned,
                f"false with {self._store_count} stores",
                f"Serve with at least {partition_count} stores, one for each partition.",
            )
        with self._changing():
            if self._find(description.name) is not None:
                raise EntityExists(description.name)
            self._check_quotas(description.options)
            if partition_count > self._store_count - len(away):
                raise StoreUnavailable(
                    f"'{description.name}' can't be made now: it needs {partition_count} messaging stores, and of "
                    f"{self._store_count} stores {len(away)} can't be used. Nothing was made; try again."
                )
            entity_id, placements = self._take_numbers(partition_count, away)
            self._database.execute(
                f"INSERT INTO entity ({_ENTITY_COLUMNS}, folded_name, kind) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    entity_id,
                    description.name,
                    _to_text(description.options),
                    now_ms,
                    now_ms,
                    fold_name(description.name),
                    _QUEUE,
                ),
            )
            self._database.execute_many(
                "INSERT INTO placement VALUES (?, ?, ?, ?)", [(entity_id, *placement) for placement in placements]
            )
            self._database.note(description.name)
        return EntityRecord(entity_id, description, placements, now_ms, now_ms)

    def update(self, name: str, options: QueueOptions, now_ms: int) -> EntityRecord:
        """Gives the entity other options. EntityNotFound; InvalidOperation when one of them can't change (row P9)."""
        with self._changing():
            old = self._find(name)
            if old is None:
                raise EntityNotFound(name)
            for change in immutable_changes(old.description.options, options):
                raise InvalidOperation(change_refused(old.description.name, change))
            self._database.execute(
                "UPDATE entity SET properties = ?, updated_ms = ? WHERE entity_id = ?",
                (_to_text(options), now_ms, old.entity_id),
            )
            self._database.note(old.description.name)
        description = QueueDescription(old.description.name, options)
        return EntityRecord(old.entity_id, description, old.placements, old.created_ms, now_ms)

    def delete(self, name: str) -> EntityRecord:
        """Takes the entity out and remembers its partitions as dropped. EntityNotFound."""
        with self._changing():
            record = self._find(name)
            if record is None:
                raise EntityNotFound(name)
            self._database.execute_many(
                "INSERT INTO dropped_partition VALUES (?, ?)",
                [(placement.partition_row, placement.store_no) for placement in record.placements],
            )
            self._database.execute("DELETE FROM entity WHERE entity_id = ?", (record.entity_id,))
            self._database.note(record.description.name)
        return record

    def dropped_partitions(self) -> list[tuple[int, int]]:
        """(partition row, store number) of deleted entities' partitions whose rows may still be in their stores."""
        with self._reading():
            return [
                (row, store_no)
                for row, store_no in self._database.execute(
                    "SELECT partition_row, store_no FROM dropped_partition ORDER BY partition_row"
                )
            ]

    def forget_dropped(self, partition_rows: Iterable[int]) -> None:
        """Their rows are durably gone from the stores."""
        with self._changing():
            self._database.execute_many(
                "DELETE FROM dropped_partition WHERE partition_row = ?", [(row,) for row in partition_rows]
            )

    def _find(self, name: str) -> EntityRecord | None:
        rows = self._database.execute(f"SELECT {_ENTITY_COLUMNS} FROM entity WHERE folded_name = ?", (fold_name(name),))
        if not rows:
            return None
        row = rows[0]
        placements = self._database.execute(
            f"SELECT {_PLACEMENT_COLUMNS} FROM placement WHERE entity_id = ? ORDER BY partition_no",
            (row[0],),
        )
        return self._record(row, [Placement(*place) for place in placements])

    def _check_quotas(self, options: QueueOptions) -> None:
        ((entity_count,),) = self._database.execute("SELECT count(*) FROM entity")
        if entity_count >= self._limits.entity_max:
            raise QuotaExceeded("The namespace", self._limits.entity_max, "entities", "Delete one that is not needed.")
        if not options.partitioned:
            return
        ((partitioned_count,),) = self._database.execute("SELECT count(*) FROM placement WHERE partition_no = 1")
        if partitioned_count >= self._limits.partitioned_max:
            raise QuotaExceeded(
                "The namespace",
                self._limits.partitioned_max,
                "partitioned entities",
                "Delete one, or create this one with EnablePartitioning false.",
            )

    def _take_numbers(self, partition_count: int, away: frozenset[int]) -> tuple[int, tuple[Placement, ...]]:
        ((entity_id, first_row, first_store_no),) = self._database.execute(
            "SELECT next_entity_id, next_partition_row, next_store_no FROM numbers"
        )
        if first_row + partition_count - 1 > self._limits.partition_row_max:
            raise QuotaExceeded(
                "The namespace",
                self._limits.partition_row_max,
                "partitions made over its life",
                "Move its entities to a new data directory.",
            )
        # The number of stores may have changed since the last entity was placed.
        first_store_no %= self._store_count
        placements = deal(partition_count, self._store_count, first_store_no, first_row, away)
        self._database.execute(
            "UPDATE numbers SET next_entity_id = ?, next_partition_row = ?, next_store_no = ?",
            (
                entity_id + 1,
                first_row + partition_count,
                next_first_store_no(partition_count, self._store_count, first_store_no),
            ),
        )
        return entity_id, placements

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """The catalog of one moment. Inside a change it is that one's."""
        if self._database.in_transaction:
            yield
            return
        self._database.begin(writing=False)
        try:
            yield
        finally:
            self._database.rollback()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One transaction: all of the body or nothing of it. Inside `together` a part of that one."""
        if self._database.in_transaction:
            yield
            return
        self._database.begin(writing=True)
        try:
            yield
        except BaseException:
            self._database.rollback()
            raise
        self._database.commit()

    def _record(self, row: Row, placements: Sequence[Placement]) -> EntityRecord:
        entity_id, name, properties, created_ms, updated_ms = row
        try:
            options = _from_text(properties)
        except (ValueError, TypeError, PartibusError) as error:
            raise self._damaged(name, f"properties that can't be read ({error})") from error
        if len(placements) != options.partition_count:
            raise self._damaged(name, f"{len(placements)} of its {options.partition_count} partitions")
        return EntityRecord(entity_id, QueueDescription(name, options), tuple(placements), created_ms, updated_ms)

    def _damaged(self, name: str, what: str) -> UnusableFile:
        return UnusableFile(self._database.name, f"has the entity '{name}' with {what}", "Restore it from a backup.")


def _to_text(options: QueueOptions) -> str:
    return json.dumps(queue_properties(options))


@lru_cache(maxsize=256)
def _from_text(properties: str) -> QueueOptions:
    """Kept, since most entities share a few sets of options: 10,000 are read in 0.05 s and not in 0.6 s."""
    document = json.loads(properties)
    if not isinstance(document, dict):
        raise TypeError("no JSON object")
    return queue_options(document)
