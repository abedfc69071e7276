"""The settings of SQLite stores; one value object for all stores of a broker."""

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
