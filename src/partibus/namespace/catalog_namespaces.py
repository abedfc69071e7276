"""Rows of namespaces in the catalog. The default one is there without a row, until it is changed."""

import json

from partibus.errors import EntityExists, EntityNotFound, PartibusError, UnusableFile
from partibus.namespace.catalog_database import CatalogDatabase, Row
from partibus.namespace.names import fold_name
from partibus.namespace.namespace_options import (
    DEFAULT_ID,
    DEFAULT_NAME,
    NamespaceOptions,
    NamespaceRecord,
    options_from_plain,
    options_to_plain,
)

_COLUMNS = "namespace_id, name, options, created_ms, updated_ms"
DEFAULT_RECORD = NamespaceRecord(DEFAULT_ID, DEFAULT_NAME, NamespaceOptions(), 0, 0)


class NamespaceTable:
    """Calls are parts of the catalog's transactions."""

    def __init__(self, database: CatalogDatabase) -> None:
        self._database = database

    def all(self) -> list[NamespaceRecord]:
        """Return the namespaces in order of creation, the default one first."""
        rows = self._database.execute(f"SELECT {_COLUMNS} FROM namespace ORDER BY namespace_id")
        records = [self._record(row) for row in rows]
        return records if records and records[0].namespace_id == DEFAULT_ID else [DEFAULT_RECORD, *records]

    def existing(self, name: str) -> NamespaceRecord:
        """EntityNotFound when there is none of that name."""
        found = self.find(name)
        if found is None:
            raise EntityNotFound(f"namespace {name}")
        return found

    def numbered(self, namespace_id: int) -> NamespaceRecord:
        """Return a namespace by number. Raises `EntityNotFound` when it was deleted."""
        rows = self._database.execute(f"SELECT {_COLUMNS} FROM namespace WHERE namespace_id = ?", (namespace_id,))
        if rows:
            return self._record(rows[0])
        if namespace_id == DEFAULT_ID:
            return DEFAULT_RECORD
        raise EntityNotFound(f"namespace {namespace_id}")

    def find(self, name: str) -> NamespaceRecord | None:
        """Return the namespace of that name, if there is one."""
        statement = f"SELECT {_COLUMNS} FROM namespace WHERE folded_name = ?"
        rows = self._database.execute(statement, (fold_name(name),))
        if not rows and fold_name(name) == DEFAULT_NAME:
            return DEFAULT_RECORD
        return self._record(rows[0]) if rows else None

    def create(self, name: str, options: NamespaceOptions, now_ms: int) -> NamespaceRecord:
        """EntityExists."""
        if self.find(name) is not None:
            raise EntityExists(f"namespace {name}")
        ((namespace_id,),) = self._database.execute("SELECT next_namespace_id FROM numbers")
        self._database.execute("UPDATE numbers SET next_namespace_id = ?", (namespace_id + 1,))
        record = NamespaceRecord(namespace_id, name, options, now_ms, now_ms)
        self._put(record)
        return record

    def update(self, old: NamespaceRecord, options: NamespaceOptions, now_ms: int) -> NamespaceRecord:
        """Other options."""
        new = NamespaceRecord(old.namespace_id, old.name, options, old.created_ms, max(now_ms, old.updated_ms + 1))
        self._database.execute("DELETE FROM namespace WHERE namespace_id = ?", (old.namespace_id,))
        self._put(new)
        return new

    def remove(self, namespace_id: int) -> None:
        """Delete a namespace whose entities and policies were deleted before."""
        self._database.execute("DELETE FROM namespace WHERE namespace_id = ?", (namespace_id,))

    def _put(self, record: NamespaceRecord) -> None:
        self._database.execute(
            f"INSERT INTO namespace ({_COLUMNS}, folded_name) VALUES (?, ?, ?, ?, ?, ?)",
            (
                record.namespace_id,
                record.name,
                json.dumps(options_to_plain(record.options)),
                record.created_ms,
                record.updated_ms,
                fold_name(record.name),
            ),
        )

    def _record(self, row: Row) -> NamespaceRecord:
        namespace_id, name, options, created_ms, updated_ms = row
        try:
            return NamespaceRecord(namespace_id, name, options_from_plain(json.loads(options)), created_ms, updated_ms)
        except (ValueError, PartibusError) as error:
            raise UnusableFile(
                self._database.name,
                f"has the namespace '{name}' with options that can't be read ({error})",
                "Restore it from a backup.",
            ) from error
