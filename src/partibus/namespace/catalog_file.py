"""The catalog in a SQLite file: made owner-only, checked before anything in it is used or changed."""

import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from partibus.errors import OutcomeUnknown, StoreUnavailable, UnusableFile
from partibus.namespace.catalog_database import FORMAT_VERSION, Row, schema_steps

FILE_NAME = "catalog.db"
BUSY_TIMEOUT_S = 5.0

_RESTORE = "Restore it from a backup, or start with an empty data directory."
_CHECK_PLACE = "Check that the directory exists, is writable and has room."


class CatalogFile:
    """A `partibus.namespace.catalog_database.CatalogDatabase`. Brokers of one machine may have it open at once."""

    def __init__(self, data_directory: Path, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        """Opens or makes ``catalog.db``. `UnusableFile` when it can't be used. ``busy_timeout_s``: how long a call
        waits while another process is in the middle of a change."""
        self._path = data_directory / FILE_NAME
        self._connection = open_catalog_file(self._path, busy_timeout_s)

    @property
    def name(self) -> str:
        return str(self._path)

    @property
    def in_transaction(self) -> bool:
        try:
            return self._connection.in_transaction
        except sqlite3.ProgrammingError:  # closed
            return False

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> list[Row]:
        try:
            return self._connection.execute(statement, parameters).fetchall()
        except sqlite3.Error as error:
            raise self._unavailable(error) from error

    def execute_many(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        try:
            self._connection.executemany(statement, rows)
        except sqlite3.Error as error:
            raise self._unavailable(error) from error

    def begin(self, *, writing: bool) -> None:
        self.execute("BEGIN IMMEDIATE" if writing else "BEGIN")

    def commit(self) -> None:
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self.rollback()
            if error.sqlite_errorname in ("SQLITE_FULL", "SQLITE_BUSY"):
                raise self._unavailable(error) from error
            raise OutcomeUnknown(
                f"{self._path}: the change may or may not be stored ({error}). Look at the entity, repeat it if needed."
            ) from error

    def rollback(self) -> None:
        with suppress(sqlite3.Error):
            self._connection.execute("ROLLBACK")

    def note(self, change: Mapping[str, object]) -> None:
        """Nothing to do: brokers that share a file have a supervisor, who tells them (ADR 0007)."""

    def close(self) -> None:
        self._connection.close()

    def _unavailable(self, error: sqlite3.Error) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self._path}: the catalog can't be used now ({error}); nothing was changed. Try again."
        )


def open_catalog_file(path: Path, busy_timeout_s: float = BUSY_TIMEOUT_S) -> sqlite3.Connection:
    """A connection to the catalog at ``path``, which is made when it does not exist, and brought to the format of this
    version when it has an older one, after a copy.

    `UnusableFile` when it is corrupt, no catalog, newer than this version or can't be written; it is left as it was.
    """
    _make_owner_only(path)
    try:
        connection = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False)
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
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except FileExistsError:
        return
    except OSError as error:
        raise UnusableFile(str(path), f"can't be made ({error.strerror})", _CHECK_PLACE) from error


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    version = _checked_format(connection, path, tables) if tables else 0
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    if version == FORMAT_VERSION:
        return
    if version:
        _copy(connection, path)
    connection.executescript("\n".join(["BEGIN IMMEDIATE;", *schema_steps("sqlite", version), "COMMIT;"]))


def _copy(connection: sqlite3.Connection, path: Path) -> None:
    """So that the version before can still be gone back to. One that is there already is of an attempt that failed."""
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
