"""The catalog in a SQLite file: made owner-only, checked before anything in it is used or changed.

Brokers of one machine share it. SQLite before 3.51.3 can lose pages when one connection commits while another begins a
checkpoint of a log that is copied already (https://sqlite.org/wal.html#walresetbug). So a checkpoint follows a commit
of the same broker, which no checkpoint has copied, and brokers make checkpoints one after the other: `_Turn`.

``PRAGMA user_version`` is the number of the last change. A record outside of the file has it, too, so an older copy is
recognized.
"""

import fcntl
import logging
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from partibus.durable import LOG_SUFFIX, rewrite, sync_directory
from partibus.errors import OutcomeUnknown, StoreUnavailable, UnusableFile
from partibus.limits import CATALOG_NUMBERS_SKIPPED
from partibus.namespace.catalog_database import FORMAT_VERSION, Row, schema_steps

log = logging.getLogger(__name__)

FILE_NAME = "catalog.db"
BUSY_TIMEOUT_S = 5.0

CHECKPOINT_BYTES = 1 << 20
"""The log is copied into the file after a commit that finds it as long."""

_RESTORE = "Restore it from a backup, or start with an empty data directory."
_CHECK_PLACE = "Check that the directory exists, is writable and has room."
_CHANGE_MAX = (1 << 31) - 1
"""The greatest number of a change: SQLite has 32 bits for it."""
_SKIP_NUMBERS = """
    UPDATE numbers SET next_entity_id = next_entity_id + ?, next_partition_row = next_partition_row + ?,
        next_namespace_id = next_namespace_id + ?
"""


class ChangeRecord(Protocol):
    """The last stored change of a catalog, recorded outside of it. Any method may raise `OSError`."""

    @property
    def command(self) -> str:
        """The command by which an operator accepts a loss, without the number of the change."""
        ...

    def read(self) -> tuple[int, str | None]:
        """Return the last change, 0 without a record, and why the record can't be read, if so."""
        ...

    def note(self, change: int) -> None:
        """Record a stored change, unless a later one is recorded."""
        ...

    def is_accepted(self, change: int) -> bool:
        """Tell whether an operator has accepted that the catalog goes on from this change."""
        ...

    def go_on_from(self, change: int) -> None:
        """Replace the record after an accepted loss, durably."""
        ...

    def withdraw(self) -> None:
        """Remove an acceptance, so that it covers no later loss."""
        ...

    def close(self) -> None:
        """Sync and close the record. Idempotent."""
        ...


class CatalogFile:
    """A `partibus.namespace.catalog_database.CatalogDatabase`. Brokers of one machine may have it open at once."""

    def __init__(
        self, data_directory: Path, busy_timeout_s: float = BUSY_TIMEOUT_S, record: ChangeRecord | None = None
    ) -> None:
        """Open or make ``catalog.db``. Raises `UnusableFile` when it can't be used.

        ``busy_timeout_s``: how long a call waits while another process makes a change; opening waits `BUSY_TIMEOUT_S`.
        ``record``: refuse a file that lacks changes of this record, and keep the record.
        """
        self._path = data_directory / FILE_NAME
        self._busy_timeout_s = busy_timeout_s
        self._turn = _Turn(self._path)
        self._failed_sync = False
        self._record = record
        self._latest = 0
        """The last change that is known to be stored."""
        self._rows_before = 0
        """The rows that the connection had changed when the open transaction began."""
        self._open()

    def _open(self) -> None:
        self._descriptor = -1
        # Before the file is read: another broker may make a change meanwhile.
        known, damage = self._recorded()
        self._connection = open_catalog_file(self._path)
        try:
            self._descriptor = os.open(self._path, os.O_RDWR)
            if self._log_bytes() > 0:
                self._rewrite()
        except (sqlite3.Error, OSError) as error:
            self._failed_sync = True
            self.close()
            raise UnusableFile(str(self._path), f"can't be used ({error})", _CHECK_PLACE) from error
        try:
            self._compare(known, damage)
            self._set_busy_timeout(self._busy_timeout_s)
        except BaseException:
            self.close()
            raise

    def _set_busy_timeout(self, seconds: float) -> None:
        self._connection.execute(f"PRAGMA busy_timeout = {round(seconds * 1_000)}")

    def _recorded(self) -> tuple[int, str | None]:
        """Return the last recorded change, and why the record can't be read, if so. Raises `UnusableFile`."""
        if self._record is None:
            return 0, None
        try:
            return self._record.read()
        except OSError as error:
            raise _record_unusable(self._path, error) from error

    def _compare(self, known: int, damage: str | None) -> None:
        """Compare the file with the record. Raises `UnusableFile` if the file lacks changes.

        An older copy would give the numbers of the entities that it lacks, and so the rows of their messages, to
        others. If an operator accepts the loss, the catalog skips numbers.
        """
        record = self._record
        if record is None:
            return
        version = self._version()
        try:
            if damage is None and version >= known:
                record.withdraw()
                record.note(version)
                self._latest = version
                return
            if not record.is_accepted(version):
                problem = f"is an older copy, which ends with change {version}, while change {known} was stored"
                if damage is not None:
                    problem = f"may lack changes: {damage}, so the last change is unknown"
                raise UnusableFile(
                    str(self._path),
                    problem,
                    "Put back the catalog that has all changes, or accept the loss: "
                    f"{record.command} --last-commit {version}",
                )
            self._latest = self._skip_numbers(max(known, version) + CATALOG_NUMBERS_SKIPPED)
            record.go_on_from(self._latest)
        except OSError as error:
            raise _record_unusable(self._path, error) from error

    def _skip_numbers(self, version: int) -> int:
        """Give out no number that a lost change may have given out; return the number of this change."""
        try:
            self.execute("BEGIN IMMEDIATE")
            self.execute(_SKIP_NUMBERS, (CATALOG_NUMBERS_SKIPPED,) * 3)
            self.execute(f"PRAGMA user_version = {version}")
            self.execute("COMMIT")
        except StoreUnavailable as error:
            self.rollback()
            raise UnusableFile(str(self._path), f"can't be changed ({error})", _CHECK_PLACE) from error
        return version

    def _version(self) -> int:
        """Return the number of the last change, in a transaction as of that transaction. Raises StoreUnavailable."""
        ((version,),) = self.execute("PRAGMA user_version")
        return int(version)

    @property
    def name(self) -> str:
        """The path of the file."""
        return str(self._path)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        try:
            return self._connection.in_transaction
        except sqlite3.ProgrammingError:  # closed
            return False

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> list[Row]:
        """Execute a statement and return its rows."""
        try:
            return self._connection.execute(statement, parameters).fetchall()
        except sqlite3.Error as error:
            raise self._unavailable(error) from error

    def execute_many(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Execute a statement for each of the rows."""
        try:
            self._connection.executemany(statement, rows)
        except sqlite3.Error as error:
            raise self._unavailable(error) from error

    def begin(self, *, writing: bool) -> None:
        """Begin a transaction; after a failed sync, write the file anew first.

        Raises StoreUnavailable, also if the file lacks changes that were stored.
        """
        if self._failed_sync:
            self._open_anew()
        self.execute("BEGIN IMMEDIATE" if writing else "BEGIN")
        try:
            version = self._version()
            if version < self._latest:
                raise StoreUnavailable(
                    f"{self._path}: the catalog is an older copy, which ends with change {version}, but must have "
                    f"change {self._latest}, which was stored; nothing was changed. Put back a newer copy, or restart "
                    "this broker, which names the command to go on with this one."
                )
            self._learn(version)
        except BaseException:
            # A later change would take an open transaction for its outer one, and never commit.
            self.rollback()
            raise
        self._rows_before = self._connection.total_changes

    def commit(self) -> None:
        """Commit the transaction durably.

        Raises `StoreUnavailable` when it was not stored, and `OutcomeUnknown` when that is not known.
        """
        try:
            ((version,),) = self._connection.execute("PRAGMA user_version").fetchall()
            is_due = self._log_bytes() >= CHECKPOINT_BYTES
            if self._connection.total_changes > self._rows_before or is_due:
                version = min(version + 1, _CHANGE_MAX)
                self._connection.execute(f"PRAGMA user_version = {version}")
            if is_due and self._turn.take_now():
                self._commit_and_copy()
            else:
                self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self.rollback()
            self._failed_sync = self._failed_sync or _is_failed_sync(error)
            if error.sqlite_errorname in ("SQLITE_FULL", "SQLITE_BUSY"):
                raise self._unavailable(error) from error
            raise OutcomeUnknown(
                f"{self._path}: the change may or may not be stored ({error}). Look at the entity, repeat it if needed."
            ) from error
        self._learn(version)

    def _learn(self, version: int) -> None:
        """Remember the last stored change, also for the next run."""
        if version == self._latest or self._record is None:
            return
        self._latest = version
        try:
            self._record.note(version)
        except OSError as error:
            log.warning("%s: change %d can't be recorded: %s", self._path, version, error)

    def rollback(self) -> None:
        """Roll the transaction back; without one, do nothing."""
        with suppress(sqlite3.Error):
            self._connection.execute("ROLLBACK")

    def note(self, change: Mapping[str, object]) -> None:
        """Do nothing: brokers that share a file have a supervisor, which tells them (ADR 0007)."""

    def close(self) -> None:
        """Idempotent."""
        with ExitStack() as closing:
            closing.callback(self._turn.close)
            if self._record is not None:
                closing.callback(self._close_record, self._record)
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                closing.callback(os.close, descriptor)
            if self._failed_sync:
                # SQLite makes a checkpoint when the last connection is closed, and one that only reads can't.
                with suppress(sqlite3.Error):
                    reader = sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True)
                    closing.callback(reader.close)
                    reader.execute("SELECT version FROM format").fetchall()
            self._connection.close()

    def _close_record(self, record: ChangeRecord) -> None:
        try:
            record.close()
        except OSError as error:
            log.warning("%s: change %d can't be synced to its record: %s", self._path, self._latest, error)

    def _rewrite(self) -> None:
        """Rewrite on disk the pages of the log. Raises `sqlite3.Error`, `OSError`."""
        connection = self._connection
        self._set_busy_timeout(BUSY_TIMEOUT_S)
        with self._turn.taken():
            connection.execute("BEGIN IMMEDIATE")
            try:
                rewrite(self._path, self._descriptor)
            finally:
                connection.execute("ROLLBACK")
        self._set_busy_timeout(self._busy_timeout_s)

    def _open_anew(self) -> None:
        """Write again all pages that a failed sync may have kept from the disk (`partibus.durable`).

        Raises `StoreUnavailable`.
        """
        self.close()
        try:
            self._open()
        except UnusableFile as error:
            raise StoreUnavailable(f"{error} Nothing was changed. Try again.") from error
        self._failed_sync = False

    def _commit_and_copy(self) -> None:
        """Commit and copy the log into the file. The caller has the turn, so no other broker copies meanwhile.

        The number of the change, which the caller has raised, surely adds to the log.
        """
        try:
            self._connection.execute("COMMIT")
            try:
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            except sqlite3.Error as error:
                # The change is stored; the log stays as it is until the next one.
                self._failed_sync = _is_failed_sync(error)
        finally:
            self._turn.give_up()

    def _log_bytes(self) -> int:
        try:
            return self._path.with_name(self._path.name + LOG_SUFFIX).stat().st_size
        except OSError:
            return 0

    def _unavailable(self, error: sqlite3.Error) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self._path}: the catalog can't be used now ({error}); nothing was changed. Try again."
        )


class _Turn:
    """The right to make a checkpoint, which one broker of the machine has at a time."""

    def __init__(self, catalog: Path) -> None:
        """Name the lock file, without opening it."""
        self._path = catalog.with_suffix(".lock")
        self._descriptor = -1

    def take_now(self) -> bool:
        """Take the turn, unless another broker has it or the lock can't be used: the next commit tries again."""
        try:
            self._lock(fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def give_up(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for the turn, a few milliseconds, and give it up at the end."""
        self._lock(fcntl.LOCK_EX)
        try:
            yield
        finally:
            self.give_up()

    def _lock(self, how: int) -> None:
        if self._descriptor < 0:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._descriptor, how)

    def close(self) -> None:
        """Close the file. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _record_unusable(path: Path, error: OSError) -> UnusableFile:
    return UnusableFile(
        str(path), f"has a record of its last change that can't be used ({error})", "Give it to the broker's user."
    )


def _is_failed_sync(error: sqlite3.Error) -> bool:
    return error.sqlite_errorcode in (sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC)


def open_catalog_file(path: Path) -> sqlite3.Connection:
    """Open the catalog at ``path``, which is made when it does not exist.

    An older format is migrated to this version's after a copy. Raises `UnusableFile` when the file is corrupt, no
    catalog, newer than this version or not writable; it is left as it was.
    """
    _make_owner_only(path)
    try:
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise UnusableFile(str(path), f"can't be opened ({error})", _CHECK_PLACE) from error
    try:
        _prepare(connection, path)
    except sqlite3.Error as error:
        connection.close()
        damaged = error.sqlite_errorname in ("SQLITE_NOTADB", "SQLITE_CORRUPT")
        reason = f"is corrupt ({error})" if damaged else f"can't be used ({error})"
        raise UnusableFile(str(path), reason, _RESTORE if damaged else _CHECK_PLACE) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _make_owner_only(path: Path) -> None:
    """SQLite gives the files that it puts beside a database the mode of the database."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        sync_directory(path.parent)
    except FileExistsError:
        return
    except OSError as error:
        raise UnusableFile(str(path), f"can't be made ({error.strerror})", _CHECK_PLACE) from error


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    version = _checked_format(connection, path, tables) if tables else 0
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("PRAGMA foreign_keys = ON")
    if version == FORMAT_VERSION:
        return
    if version:
        _copy(connection, path)
    connection.executescript("\n".join(["BEGIN IMMEDIATE;", *schema_steps("sqlite", version), "COMMIT;"]))


def _copy(connection: sqlite3.Connection, path: Path) -> None:
    """Copy the catalog so that a downgrade stays possible. An existing copy comes from a failed attempt."""
    copy = path.with_name(f"{path.name}.before-format-{FORMAT_VERSION}.copy")
    copy.unlink(missing_ok=True)
    _make_owner_only(copy)
    connection.execute("VACUUM INTO ?", (str(copy),))


def _checked_format(connection: sqlite3.Connection, path: Path, tables: set[str]) -> int:
    row = connection.execute("SELECT version FROM format").fetchone() if {"format", "numbers"} <= tables else None
    if row is None:
        raise UnusableFile(str(path), "is a database, but no catalog of partibus", "Use another data directory.")
    version: int = row[0]
    if version > FORMAT_VERSION:
        raise UnusableFile(
            str(path),
            f"has format {version}, and this version reads up to format {FORMAT_VERSION}",
            "Use the newer version of partibus that wrote it.",
        )
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise UnusableFile(str(path), f"is corrupt ({verdict})", _RESTORE)
    return version
