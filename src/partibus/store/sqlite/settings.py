"""What can be set about SQLite stores; one value object for all stores of a broker."""

from typing import NamedTuple

KIB = 1024
MIB = 1024 * KIB


class StoreSettings(NamedTuple):
    """Bounds and sizes of one store, in bytes unless the name says otherwise."""

    writer_cache_bytes: int = MIB
    """Page cache of the writing connection. SQLite adds what one commit touches."""
    reader_cache_bytes: int = 512 * KIB
    """Page cache of each reading connection; they exist while there is something to read, at most ``readers_idle`` of
    them longer."""
    readers_idle: int = 1
    checkpoint_bytes: int = 4 * MIB
    """The write-ahead log is copied into the database each time about so much has been appended. Less copies hot pages
    more often, more lengthens recovery after a crash and needs more disk."""
    ballast_bytes: int = 4 * MIB
    """Disk space held back beside each store and given up when the disk is full, so that completes still commit. Also
    bounds the new pages that wait in the log, since they need that space first: commits wait for a checkpoint there."""
    min_free_bytes: int = 32 * MIB
    """With less free on the file system, messages are refused. Covers what the logs of all stores have yet to copy into
    their databases, so that checkpoints and completes find room."""
    max_bytes: int | None = None
    """Bound on the size of the database file; None: as large as the disk."""
    busy_timeout_ms: int = 2_000
    """How long a statement waits for a lock of the database file that another process holds (a backup, a shell)."""


DEFAULTS = StoreSettings()
