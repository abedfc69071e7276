"""The store's SQL, and its connections. Every statement is a file in ``statements/``, read once, called by its name.

A thread that steps through SQLite call by call beside a busy event loop gives up the interpreter lock at every step,
and waits for the switch interval to get it back. So many rows travel in one statement: the single VALUES tuple (or the
single ``IN (?)``) of a file is repeated. Forms exist for powers of two. A shorter list of rows is padded, and ``LIMIT
?`` at the end of a VALUES form says how many rows count. At 1 KB a message that costs 0.1 us of binding and saves a
hand-over per leftover.

SQLite's errors become errors of the store: they name the failed operation, the file, and the next step.
"""

import errno
import os
import re
import sqlite3
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from sqlite3 import Connection, complete_statement
from threading import Lock
from typing import Any, NamedTuple, TypeVar

from partibus.partition.protocol.ports import StoreError, StoreFull

T = TypeVar("T")

FORMAT_VERSION = 6
OLDEST_VERSION = 1
"""The first format that `migration` handles."""

ROWS_MAX = 256
"""The rows of the longest form: 2,048 parameters for entries, far below SQLite's 32,766; and some 350 KB of prepared
statements in a store that has used every form.
"""

_VALUES = re.compile(r"\(VALUES (\([?, ]+\))\)")
_IN_LIST = re.compile(r"IN \(\?\)")


def schema() -> str:
    """Return the script that makes an empty store."""
    return files(__package__).joinpath("ddl", "schema.sql").read_text()


def migration(version: int) -> list[str]:
    """Return the statements that migrate a store from this format to the next, in the caller's transaction."""
    statements = [""]
    for line in files(__package__).joinpath("ddl", f"{version:04}-to-{version + 1:04}.sql").read_text().splitlines():
        statements[-1] += f"{line}\n"
        if complete_statement(statements[-1]):
            statements.append("")
    return statements[:-1]


@cache
def statement(name: str) -> str:
    """Return the text of ``statements/<name>.sql``."""
    return files(__package__).joinpath("statements", f"{name}.sql").read_text()


@cache
def values_form(name: str, rows: int) -> str:
    """Return the statement with the tuple of its ``VALUES`` repeated ``rows`` times."""
    return _VALUES.sub(lambda match: f"(VALUES {', '.join([match[1]] * rows)})", statement(name))


@cache
def in_list_form(name: str, keys: int) -> str:
    """Return the statement with ``keys`` places in its ``IN`` list."""
    return _IN_LIST.sub(f"IN ({', '.join('?' * keys)})", statement(name))


def execute_rows(connection: Connection, name: str, columns: int, rows: Sequence[object] | dict[int, Any]) -> None:
    """Run a VALUES statement over rows in order; do nothing if there are none.

    ``rows``: one flat list of columns, or the further columns of each row by the first one.
    """
    flat: Sequence[object]
    if isinstance(rows, dict):
        flat = []
        for first, others in rows.items():
            flat += (first, *others)
    else:
        flat = rows
    step = ROWS_MAX * columns
    for start in range(0, len(flat), step):
        chunk = [*flat[start : start + step]]
        count = len(chunk) // columns
        size = 1 << (count - 1).bit_length()
        # Zeros, not None: the sqlite3 module binds an int at once but looks up an adapter for None (0.3 us each).
        chunk += (0,) * ((size - count) * columns)
        chunk.append(count)
        connection.execute(values_form(name, size), chunk)


def padded_keys(keys: Sequence[T]) -> list[list[T]]:
    """Split keys into lists as long as a form; pad the last list with its last key."""
    chunks: list[list[T]] = []
    for start in range(0, len(keys), ROWS_MAX):
        chunk = [*keys[start : start + ROWS_MAX]]
        chunk += [chunk[-1]] * ((1 << (len(chunk) - 1).bit_length()) - len(chunk))
        chunks.append(chunk)
    return chunks


def execute_keys(connection: Connection, name: str, keys: Sequence[int]) -> None:
    """Run a statement with an ``IN`` list over keys; do nothing if there are none."""
    if len(keys) == 1:
        connection.execute(in_list_form(name, 1), keys)
        return
    for chunk in padded_keys(keys):
        connection.execute(in_list_form(name, len(chunk)), chunk)


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The numbers of an `OSError` for an exhausted file system, quota or file size."""

BINDING_ERRORS = (sqlite3.Error, OverflowError, ValueError, TypeError)
"""The errors of executing a statement: SQLite's own, and those of values that don't fit a column (a lone surrogate in a
text, an integer of more than 64 bits).
"""

_NEXT_STEP = {
    sqlite3.SQLITE_NOTADB: "it is no SQLite database or its header is damaged; restore the file from a copy",
    sqlite3.SQLITE_CORRUPT: "the file is damaged; stop the broker, keep a copy of it with its -wal, and restore it "
    "from a backup or with 'sqlite3 FILE .recover'",
    sqlite3.SQLITE_READONLY: "make the file and its directory writable for this user, then start again",
    sqlite3.SQLITE_CANTOPEN: "it or a file beside it can't be opened or made; make the directory exist, writable for "
    "this user, with file handles to spare (ulimit -n), then start again",
    sqlite3.SQLITE_PERM: "this user may not use the file; correct its owner or mode, then start again",
    sqlite3.SQLITE_IOERR: "the disk refused; look at the kernel log and the disk's health, then start again",
    sqlite3.SQLITE_BUSY: "another process holds the database's own lock; end that process (a sqlite3 shell, a backup, "
    "a stopped broker), then start again",
}


_CODES = dict.fromkeys(NO_ROOM, sqlite3.SQLITE_FULL) | {errno.EIO: sqlite3.SQLITE_IOERR}
"""SQLite's code for an error of the operating system."""


def is_failed_sync(error: Exception) -> bool:
    """Tell whether the disk may lack something that the cache has (`partibus.durable`)."""
    return getattr(error, "sqlite_errorcode", 0) in (sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC)


def store_error(error: Exception, path: Path, doing: str, *, executed: bool | None) -> StoreError:
    """Return the error to raise in place of what SQLite (or the binding of a value) raised while ``doing``."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if isinstance(error, PermissionError):
        code = sqlite3.SQLITE_READONLY
    elif isinstance(error, OSError):
        code = _CODES.get(error.errno or 0, sqlite3.SQLITE_CANTOPEN)
    if code == sqlite3.SQLITE_FULL:
        return store_full(path, doing)
    next_step = _NEXT_STEP.get(code, "this is not expected: please report it")
    return StoreError(f"{path}: {doing} failed: {error}: {next_step}", executed=executed)


def store_full(path: Path, doing: str) -> StoreFull:
    """Return the error for a full disk or a store at its own size limit."""
    return StoreFull(
        f"{path}: {doing} failed: no room; receive and complete messages, delete entities, or free space on the disk "
        "(completing needs no room)"
    )


def refused(path: Path, reason: str) -> StoreError:
    """Return the error for a refusal by the store itself; nothing was done."""
    return StoreError(f"{path}: {reason}", executed=False)


KIB = 1024
MIB = 1024 * KIB


class StoreSettings(NamedTuple):
    """Bounds and sizes of one store, in bytes unless the name says otherwise."""

    writer_cache_bytes: int = MIB
    """The page cache of the writing connection. SQLite adds the pages that one commit touches."""
    reader_cache_bytes: int = 512 * KIB
    """The page cache of each reading connection. They exist while there is something to read; at most ``readers_idle``
    of them stay open longer.
    """
    readers_idle: int = 1
    checkpoint_bytes: int = 4 * MIB
    """Appended bytes after which the write-ahead log is copied into the database. Smaller values copy hot pages more
    often; larger values lengthen recovery after a crash and need more disk.
    """
    reserved_bytes: int = 4 * MIB
    """Disk space reserved beside each store and released when the disk is full, so that completes still commit. It also
    bounds the new pages that wait in the log, since they need that space first: commits wait for a checkpoint there.
    """
    min_free_bytes: int = 32 * MIB
    """The free space on the file system below which messages are refused. It covers what the logs of all stores have
    yet to copy into their databases, so that checkpoints and completes find room.
    """
    max_bytes: int | None = None
    """The largest size of the database file; None: as large as the disk."""
    busy_timeout_ms: int = 2_000
    """How long a statement waits for a lock of the database file that another process holds (a backup, a shell)."""


DEFAULTS = StoreSettings()


PAGE_BYTES = 16_384
"""Fifteen 1 KB messages to a page (D13)."""

_CACHED_STATEMENTS = 256
"""Statements that the sqlite3 module caches per connection: nine forms for each of some multi-row statements, and the
single ones.
"""


FileIdentity = tuple[int, int]


def identity(path: Path) -> FileIdentity | None:
    """Return which file has that name; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


class _OpenFiles:
    """The numbers of this process's connections, by database file, and its own descriptors of such files.

    SQLite's locks belong to the process, and end when it closes any descriptor of the file. Connections that a load has
    kept open would go on without them, and so would later connections, which share them. Another process could then
    delete the log in use.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._connections: dict[FileIdentity, int] = {}
        self._unneeded: dict[FileIdentity, list[int]] = {}

    def opened(self, file: FileIdentity) -> None:
        """Count a connection."""
        with self._lock:
            self._connections[file] = self._connections.get(file, 0) + 1

    def closed(self, file: FileIdentity) -> None:
        """Count a connection down; after the last one close the descriptors that wait for this."""
        with self._lock:
            self._connections[file] -= 1
            if not self._connections[file]:
                del self._connections[file]
                for descriptor in self._unneeded.pop(file, ()):
                    os.close(descriptor)

    def close_descriptor(self, descriptor: int) -> None:
        """Close a descriptor now, or after the last connection to its file."""
        found = os.fstat(descriptor)
        file = found.st_dev, found.st_ino
        with self._lock:
            if file in self._connections:
                self._unneeded.setdefault(file, []).append(descriptor)
            else:
                os.close(descriptor)


_OPEN_FILES = _OpenFiles()
close_descriptor = _OPEN_FILES.close_descriptor


class _Connection(sqlite3.Connection):
    """A connection that is counted until it is closed."""

    file: FileIdentity | None = None

    def close(self) -> None:
        """Close the connection. Idempotent."""
        super().close()
        file, self.file = self.file, None
        if file is not None:
            _OPEN_FILES.closed(file)


def connect(
    path: Path, cache_bytes: int, settings: StoreSettings, *, pragmas: str = "", mode: str = "rw"
) -> sqlite3.Connection:
    """Open an existing file, for use by one thread at a time, not always the same. Raises `sqlite3.Error`."""
    file = identity(path)
    if file is not None:
        _OPEN_FILES.opened(file)
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=settings.busy_timeout_ms / 1000,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_CACHED_STATEMENTS,
            factory=_Connection,
        )
    except BaseException:
        if file is not None:
            _OPEN_FILES.closed(file)
        raise
    connection.file = file
    try:
        connection.executescript(
            f"PRAGMA cache_size = -{max(1, cache_bytes // 1024)};PRAGMA temp_store = MEMORY;" + pragmas
        )
    except BaseException:
        connection.close()
        raise
    return connection


def connect_writer(path: Path, settings: StoreSettings) -> sqlite3.Connection:
    """Open the connection that commits. It syncs each commit; `checkpoint` makes the checkpoints."""
    # Some builds overwrite deleted rows with zeros by default, which turns each delete into a write of its page.
    # journal_size_limit: SQLite truncates a log that grew during a long read when the log starts over.
    connection = connect(
        path,
        settings.writer_cache_bytes,
        settings,
        pragmas="PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0; PRAGMA secure_delete = OFF;"
        f"PRAGMA journal_size_limit = {4 * settings.checkpoint_bytes};",
    )
    if settings.max_bytes is not None:
        connection.execute(f"PRAGMA max_page_count = {max(1, settings.max_bytes // PAGE_BYTES)}")
    return connection


def connect_reader(path: Path, settings: StoreSettings) -> sqlite3.Connection:
    """Open a connection that only reads. It makes no checkpoint when it is closed: that takes a lock for writing."""
    return connect(path, settings.reader_cache_bytes, settings, mode="ro")
