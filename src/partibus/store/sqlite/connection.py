"""Connections to one store file, and the settings of all SQLite stores of a broker."""

import sqlite3
from pathlib import Path
from typing import NamedTuple

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


def connect(
    path: Path, cache_bytes: int, settings: StoreSettings, *, pragmas: str = "", mode: str = "rw"
) -> sqlite3.Connection:
    """Open an existing file, for use by one thread at a time, not always the same. Raises `sqlite3.Error`."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=settings.busy_timeout_ms / 1000,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=_CACHED_STATEMENTS,
    )
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
