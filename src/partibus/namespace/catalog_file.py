"""Opening the catalog's SQLite file: made owner-only, checked before anything in it is used or changed."""

import os
import sqlite3
from importlib import resources
from pathlib import Path

from partibus.errors import UnusableFile

FORMAT_VERSION = 1
BUSY_TIMEOUT_S = 5.0

_RESTORE = "Restore it from a backup, or start with an empty data directory."
_CHECK_PLACE = "Check that the directory exists, is writable and has room."


def open_catalog_file(path: Path, busy_timeout_s: float = BUSY_TIMEOUT_S) -> sqlite3.Connection:
    """A connection to the catalog at ``path``, which is made when it does not exist.

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
    if tables:
        _check_format(connection, path, tables)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    if not tables:
        schema = resources.files(__package__).joinpath("ddl/1_catalog.sql").read_text("utf-8")
        connection.executescript(f"BEGIN IMMEDIATE;\n{schema}\nCOMMIT;")


def _check_format(connection: sqlite3.Connection, path: Path, tables: set[str]) -> None:
    row = connection.execute("SELECT version FROM format").fetchone() if {"format", "numbers"} <= tables else None
    if row is None:
        raise UnusableFile(str(path), "is a database, but no catalog of partibus", "Use another data directory.")
    (version,) = row
    if version > FORMAT_VERSION:
        raise UnusableFile(
            str(path),
            f"has format {version}, and this version reads up to format {FORMAT_VERSION}",
            "Use the newer version of partibus that wrote it.",
        )
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise UnusableFile(str(path), f"is corrupt ({verdict})", _RESTORE)
