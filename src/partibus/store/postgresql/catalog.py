"""A catalog in a schema of its own: a `partibus.namespace.catalog_database` over one connection.

Calls come from the event loop, so none may hang. A statement has two seconds, and a call during an outage of the server
fails at once. A thread reconnects. An outage stops administration but no message (D19).
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from threading import Event, Lock, Thread
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from partibus.errors import OutcomeUnknown, StoreUnavailable, UnusableFile
from partibus.limits import CATALOG_NUMBERS_SKIPPED
from partibus.store.acknowledged import Acknowledged, AcknowledgedCommits
from partibus.store.postgresql.connection import OLDEST_SERVER, Address, TimedConnection, end
from partibus.store.postgresql.sql import next_step

log = logging.getLogger(__name__)

SCHEMA_DEFAULT = "partibus_catalog"
CONNECT_TIMEOUT_S = 2
"""The shortest timeout of libpq."""
RETRY_S = 0.5

_SESSION = """
    SET search_path = {schema};
    SET client_min_messages = warning;
    SET lock_timeout = 1000;
    SET statement_timeout = 1500;
    SET idle_in_transaction_session_timeout = 3000;
    SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off';
"""
"""A holder of the catalog's lock that falls silent loses it after 3 s."""

_BEGIN_WRITING = "BEGIN ISOLATION LEVEL READ COMMITTED; SELECT version FROM version FOR UPDATE"
_BEGIN_READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT version FROM version"
_NOTE = """
    WITH next AS (UPDATE version SET version = version + 1 RETURNING version)
    INSERT INTO change SELECT version, %s::text FROM next
    RETURNING version
"""
_SKIP_NUMBERS = """
    UPDATE numbers SET next_entity_id = next_entity_id + %(skipped)s,
        next_partition_row = next_partition_row + %(skipped)s, next_namespace_id = next_namespace_id + %(skipped)s
"""
_SKIP_CHANGES = """
    WITH gone AS (DELETE FROM change), next AS (UPDATE version SET version = %(version)s RETURNING version)
    INSERT INTO change SELECT version, '{}' FROM next
"""
"""A statement that forgets the changes; without them every broker reads the whole catalog."""
_NOTIFY = "SELECT pg_notify(current_schema(), '')"
_TABLES = "SELECT array_agg(tablename::text) FROM pg_tables WHERE schemaname = current_schema()"
_LOCK_FOR_MAKING = "SELECT pg_advisory_xact_lock(hashtextextended('partibus ' || %s, 0))"

SchemaSteps = Callable[[int], Sequence[str]]
"""A function that returns the scripts from a format, 0 for an empty schema, to the current one."""


def connect_catalog(address: Address, application: str) -> TimedConnection:
    """Connect to a catalog's schema, which may not exist yet. Raises `psycopg.Error`, `UnusableFile`."""
    connection = TimedConnection.connect(
        address.conninfo,
        autocommit=True,
        application_name=application,
        connect_timeout=address.connect_timeout_s or CONNECT_TIMEOUT_S,
        tcp_user_timeout=2_000,
        keepalives_idle=2,
        keepalives_interval=1,
        keepalives_count=2,
        client_encoding="UTF8",
    )
    try:
        if connection.info.server_version < OLDEST_SERVER:
            raise UnusableFile(
                address.name,
                f"runs PostgreSQL {connection.info.server_version // 10_000}",
                f"partibus needs {OLDEST_SERVER // 10_000} or newer; upgrade the server.",
            )
        connection.execute(sql.SQL(_SESSION).format(schema=sql.Identifier(address.schema)))
    except BaseException:
        end(connection)
        raise
    return connection


def unusable(address: Address, error: psycopg.Error) -> UnusableFile:
    """Return the error of a failed start: the reason and the next step."""
    return UnusableFile(
        address.name, f"the catalog can't be used ({' '.join(str(error).split())})", f"{next_step(error)}."
    )


def prepare_catalog(address: Address, format_version: int, steps: SchemaSteps) -> None:
    """Make the catalog's tables, or migrate older ones to the format of this version, one broker at a time.

    Raises `UnusableFile` (not reachable, not allowed, another's schema, a newer format), leaving the catalog as it was.
    """
    try:
        connection = connect_catalog(address, "partibus prepares the catalog")
        try:
            _prepare(connection, address, format_version, steps)
        finally:
            end(connection)
    except psycopg.Error as error:
        raise unusable(address, error) from error


def check_changes(address: Address, record: AcknowledgedCommits) -> None:
    """Compare a prepared catalog with the last change that this machine knows, before it is read.

    A catalog that went back in time would give the numbers of lost entities, and so the rows of their messages, to
    others. If an operator accepts the loss, the catalog skips numbers, and every broker reads all of it. Raises
    `UnusableFile`.
    """
    try:
        connection = connect_catalog(address, "partibus compares the catalog")
        try:
            with connection.transaction():
                version = _compare(connection, address, record)
        finally:
            end(connection)
        if version is not None:
            record.go_on_from(Acknowledged(version, 0, 0))
    except psycopg.Error as error:
        raise unusable(address, error) from error
    except OSError as error:
        raise UnusableFile(
            str(record.path), f"can't be written ({error})", "See that the disk has room and is writable."
        ) from error


def _compare(connection: TimedConnection, address: Address, record: AcknowledgedCommits) -> int | None:
    """Compare, in the caller's transaction; return the version with which changes go on after an accepted loss."""
    row = connection.execute("SELECT version FROM version FOR UPDATE").fetchone()
    version = 0 if row is None else int(row[0])
    known = 0 if record.last is None else record.last.last_commit
    if record.damage is not None:
        problem = f"may lack changes: {record.damage}, so the last change is unknown"
    elif version < known:
        problem = f"is an older copy, which ends with change {version}, while change {known} was stored"
    else:
        record.withdraw()
        if version > known or record.last is None:
            record.note(Acknowledged(version, 0, 0))
        record.sync()
        return None
    if not record.is_accepted(version):
        raise UnusableFile(
            address.name,
            problem,
            f"Bring the server back that has all changes, or accept the loss: {record.command} --last-commit {version}",
        )
    # Other machines may know later changes than this one: they are behind the next one, too.
    connection.execute(_SKIP_NUMBERS.encode(), {"skipped": CATALOG_NUMBERS_SKIPPED})
    next_version = max(known, version) + CATALOG_NUMBERS_SKIPPED
    connection.execute(_SKIP_CHANGES.encode(), {"version": next_version})
    connection.execute(_NOTIFY.encode())
    return next_version


class CatalogSchema:
    """A `partibus.namespace.catalog_database.CatalogDatabase` in a PostgreSQL schema."""

    def __init__(self, address: Address, application: str, record: AcknowledgedCommits | None = None) -> None:
        """Connect to a catalog that `prepare_catalog` has checked. Raises `UnusableFile`.

        ``record`` keeps the last known change, as `check_changes` has left it.
        """
        self._address = address
        self._record = record
        self._application = application
        self._lock = Lock()
        self._closed = Event()
        self._connection: TimedConnection | None = None
        self._why = ""
        self._connecting = False
        self._latest = 0 if record is None or record.last is None else record.last.last_commit
        """The version of the last change that is known to be stored."""
        self._noted = 0
        """The version of the last change in the open transaction."""
        try:
            self._connection = connect_catalog(address, application)
        except psycopg.Error as error:
            raise unusable(address, error) from error

    @property
    def name(self) -> str:
        """The URL of the catalog without its password."""
        return self._address.name

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open on the connection."""
        connection = self._connection
        if connection is None or connection.closed:
            return False
        return connection.info.transaction_status is not TransactionStatus.IDLE

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows. Raises StoreUnavailable."""
        return self._run(_translated(statement), parameters)

    def execute_many(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Run a statement for each of ``rows``. Raises StoreUnavailable."""
        connection = self._connected()
        try:
            with connection.cursor() as cursor:
                cursor.executemany(_translated(statement), list(rows))
        except psycopg.Error as error:
            raise self._failed(connection, error) from error

    def begin(self, *, writing: bool) -> None:
        """Begin a transaction. Raises StoreUnavailable, also if the catalog lacks changes that were stored.

        Such a catalog went back in time: it lacks entities that brokers still serve, and would give their rows to
        others.
        """
        connection = self._connected()
        try:
            cursor = connection.execute((_BEGIN_WRITING if writing else _BEGIN_READING).encode())
            cursor.nextset()
            row = cursor.fetchone()
        except psycopg.Error as error:
            failed = self._failed(connection, error)
            self.rollback()  # it has begun, if another change held the version for too long
            raise failed from error
        version = -1 if row is None else int(row[0])
        if version < self._latest:
            self.rollback()
            raise StoreUnavailable(
                f"{self.name}: the catalog is an older copy, which ends with change {version}, but must have change "
                f"{self._latest}, which was stored; nothing was changed. Restore a newer copy, or restart this broker, "
                "which names the command to go on with this one."
            )
        self._noted = version
        self._learn(version)

    def commit(self) -> None:
        """Commit the transaction. Raises StoreUnavailable; OutcomeUnknown if the server did not answer."""
        connection = self._connected()
        try:
            connection.execute("COMMIT")
        except psycopg.Error as error:
            refused = self._failed(connection, error)
            if not connection.closed:
                raise refused from error
            raise OutcomeUnknown(
                f"{self.name}: the change may or may not be stored ({error}). Look at the entity, repeat it if needed."
            ) from error
        self._learn(self._noted)

    def _learn(self, version: int) -> None:
        """Remember the last stored change, also for the next run."""
        if version == self._latest:
            return
        self._latest = version
        if self._record is not None:
            try:
                self._record.note(Acknowledged(version, 0, 0))
            except OSError as error:
                log.warning("%s: change %d of the catalog can't be recorded: %s", self._record.path, version, error)

    def rollback(self) -> None:
        """Roll back the open transaction, if any."""
        if self.in_transaction:
            with suppress(StoreUnavailable):
                self._run("ROLLBACK")

    def note(self, change: Mapping[str, object]) -> None:
        """Note a change in the open transaction and notify the other brokers of it."""
        ((self._noted,),) = self._run(_NOTE, (json.dumps(change),))
        self._run(_NOTIFY)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        with self._lock:
            self._closed.set()
            connection, self._connection = self._connection, None
        if connection is not None:
            end(connection)
        if self._record is not None:
            with suppress(OSError):
                self._record.sync()
            self._record.close()

    def _run(self, statement: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        connection = self._connected()
        try:
            cursor = connection.execute(statement.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            raise self._failed(connection, error) from error

    def _connected(self) -> TimedConnection:
        connection = self._connection
        if connection is None:
            self._begin_connecting()
            why = "it is closed" if self._closed.is_set() else self._why
            raise StoreUnavailable(
                f"{self.name}: the catalog can't be reached now ({why}); nothing was changed. Try again."
            )
        return connection

    def _failed(self, connection: TimedConnection, error: psycopg.Error) -> StoreUnavailable:
        why = " ".join(str(error).split())
        # A statement without an answer leaves the connection in the middle of it:
        if connection.closed or connection.info.transaction_status is TransactionStatus.ACTIVE:
            end(connection)
            self._lose(connection, why)
        return StoreUnavailable(f"{self.name}: the catalog can't be used now ({why}); nothing was changed. Try again.")

    def _lose(self, connection: TimedConnection, why: str) -> None:
        with self._lock:
            if self._connection is connection:
                self._connection = None
            self._why = why
        self._begin_connecting()

    def _begin_connecting(self) -> None:
        """Start the thread that reconnects, unless it runs."""
        with self._lock:
            if self._connecting or self._connection is not None or self._closed.is_set():
                return
            self._connecting = True
        try:
            Thread(target=self._reconnect, name="partibus-catalog", daemon=True).start()
        except RuntimeError as error:  # the process has too many threads; the next statement tries again
            with self._lock:
                self._connecting = False
                self._why = str(error)

    def _reconnect(self) -> None:
        while not self._closed.is_set():
            try:
                connection = connect_catalog(self._address, self._application)
            except (psycopg.Error, UnusableFile) as error:
                self._why = " ".join(str(error).split())
                self._closed.wait(RETRY_S)
                continue
            with self._lock:
                self._connecting = False
                if not self._closed.is_set():
                    self._connection = connection
                    return
            end(connection)


@lru_cache(maxsize=256)
def _translated(statement: str) -> str:
    assert "%" not in statement, "statements of the catalog are portable"
    return statement.replace("?", "%s")


def _prepare(connection: TimedConnection, address: Address, format_version: int, steps: SchemaSteps) -> None:
    with connection.transaction():
        connection.execute(_LOCK_FOR_MAKING, (address.schema,))
        row = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (address.schema,)).fetchone()
        if row is None:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(address.schema)))
        version = _version(connection, address)
        if version > format_version:
            raise UnusableFile(
                address.name,
                f"has format {version}, and this version reads up to format {format_version}",
                "Use the newer version of partibus that wrote it.",
            )
        for script in steps(version):
            connection.execute(script.encode())


def _version(connection: TimedConnection, address: Address) -> int:
    """Return the version of the catalog's format; 0 if there is no catalog."""
    row = connection.execute(_TABLES).fetchone()
    tables = set(row[0] or ()) if row else set()
    if not tables:
        return 0
    found = connection.execute("SELECT version FROM format").fetchone() if {"format", "numbers"} <= tables else None
    if found is None:
        raise UnusableFile(
            address.name,
            f"schema {address.schema!r} has tables, but is no catalog of partibus",
            "Choose another one (?schema=NAME).",
        )
    return int(found[0])
