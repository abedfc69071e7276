"""The interface of the catalog's database: rows, and transactions one at a time (D19).

There are two: a SQLite file in the data directory (`partibus.namespace.catalog_file`), and a schema in PostgreSQL for
brokers on several machines (`partibus.store.postgresql.catalog`, which the node passes in). Statements are written
once, for both:

- values are given as ``?``, never in the text, and no text has a question mark or a percent sign of its own;
- upserts as ``INSERT ... ON CONFLICT ... DO``, and ``RETURNING`` where the row is wanted;
- names of tables are those of ``ddl/``, integers have up to 63 bits, truth is 0 or 1.

Formats of the tables are steps, applied in order. ``ddl/N.sql`` leads from format N-1 to N; where the two databases
need different statements, ``ddl/N_sqlite.sql`` and ``ddl/N_postgresql.sql`` do.
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
        """The place of the database, for the operator; without a password."""
        ...

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        ...

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> list[Row]:
        """Execute a statement and return its rows. Outside of a transaction it is one by itself."""
        ...

    def execute_many(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Execute a statement for each of the rows."""
        ...

    def begin(self, *, writing: bool) -> None:
        """Begin a transaction.

        A reading one sees the catalog as of one moment. Writing ones run one at a time, so a row that one has read is
        unchanged when it writes.
        """
        ...

    def commit(self) -> None:
        """Durable when it returns. After an error the transaction is over."""
        ...

    def rollback(self) -> None:
        """Roll the transaction back. Raises nothing."""
        ...

    def note(self, change: Mapping[str, object]) -> None:
        """Note a change for the other brokers of this catalog, within a writing transaction.

        The form is that of `partibus.namespace.namespaces.Change`.
        """
        ...

    def close(self) -> None:
        """Close the database. Idempotent."""
        ...


def schema_steps(kind: str, version: int) -> list[str]:
    """Return the scripts that lead from a format to `FORMAT_VERSION`; 0: no tables.

    ``kind``: ``sqlite`` or ``postgresql``. Each script ends with the new version in ``format``.
    """
    ddl = resources.files(__package__).joinpath("ddl")
    scripts = []
    for step in range(version + 1, FORMAT_VERSION + 1):
        special, common = ddl.joinpath(f"{step}_{kind}.sql"), ddl.joinpath(f"{step}.sql")
        script = (special if special.is_file() else common).read_text("utf-8")
        scripts.append(f"{script}\nUPDATE format SET version = {step};")
    return scripts
