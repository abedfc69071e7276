"""What the catalog needs of a database: rows, and transactions that come one at a time (D19).

There are two: a SQLite file in the data directory (`partibus.namespace.catalog_file`), and a schema in PostgreSQL for
brokers on several machines (`partibus.store.postgresql.catalog`, which the node hands in). Statements are written once,
for both:

- values are given as ``?``, never in the text, and no text has a question mark or a percent sign of its own;
- upserts as ``INSERT ... ON CONFLICT ... DO``, and ``RETURNING`` where the row is wanted;
- names of tables are those of ``ddl/``, integers have up to 63 bits, truth is 0 or 1.

Formats of the tables are steps, applied in order: ``ddl/N.sql`` holds what leads from format N-1 to N, or
``ddl/N_sqlite.sql`` and ``ddl/N_postgresql.sql`` where the two can't be said alike.
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any, Protocol

FORMAT_VERSION = 4
"""The format that this version writes; older ones are led to it when they are opened, newer ones refused."""

Row = tuple[Any, ...]


OF_NAMESPACE = "entity_id IN (SELECT entity_id FROM entity WHERE namespace_id = ?)"
"""A condition of statements."""


class CatalogDatabase(Protocol):
    """Calls block: for a disk sync, or for the way to a server and back, and for a bounded time at most.

    Any call may raise `StoreUnavailable`, and `commit` also `OutcomeUnknown`.
    """

    @property
    def name(self) -> str:
        """For people; holds no password."""
        ...

    @property
    def in_transaction(self) -> bool: ...

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> list[Row]:
        """The rows that it yields, if any. Outside of a transaction it is one by itself."""
        ...

    def execute_many(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Once for each of the rows."""
        ...

    def begin(self, *, writing: bool) -> None:
        """A transaction. One that reads sees the catalog of one moment; those that write come one at a time, so that
        what one has read is still so when it writes."""
        ...

    def commit(self) -> None:
        """Durable when it returns. After an error the transaction is over."""
        ...

    def rollback(self) -> None:
        """Never raises."""
        ...

    def note(self, change: Mapping[str, object]) -> None:
        """In a transaction that writes: what who else serves this catalog must look at again, as
        `partibus.namespace.namespaces.Change` says."""
        ...

    def close(self) -> None:
        """Idempotent."""
        ...


def schema_steps(kind: str, version: int) -> list[str]:
    """The scripts that lead from a format, 0 for nothing at all, to `FORMAT_VERSION`. ``kind``: ``sqlite`` or
    ``postgresql``. Each of them ends with the new version in ``format``."""
    ddl = resources.files(__package__).joinpath("ddl")
    scripts = []
    for step in range(version + 1, FORMAT_VERSION + 1):
        special, common = ddl.joinpath(f"{step}_{kind}.sql"), ddl.joinpath(f"{step}.sql")
        script = (special if special.is_file() else common).read_text("utf-8")
        scripts.append(f"{script}\nUPDATE format SET version = {step};")
    return scripts
