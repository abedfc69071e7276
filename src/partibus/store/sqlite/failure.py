"""Converts SQLite's errors to errors of the store: what failed, which file, what to do next."""

import errno
import sqlite3
from pathlib import Path

from partibus.partition.protocol.ports import StoreError, StoreFull

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
