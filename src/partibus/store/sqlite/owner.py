"""Ownership of a store (D19): an operating-system lock on a file beside it, and a row in the store itself.

The lock keeps two processes of one machine apart from the start. The row is the fence: if the lock fails (a network
file system, a deleted lock file), the later opener raises the epoch and the earlier one's next commit is refused.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from sqlite3 import Connection

from partibus.partition.protocol.ports import StoreError, StoreFenced
from partibus.store.generations import Owner as Owner
from partibus.store.sqlite.sql import statement

_OPEN = b"open\n"
"""The end of the text while the store's log is in use."""


class LockFile:
    """An exclusive lock that the system releases when the process ends. The file stays.

    Its text names the holder, and tells whether a holder has ended without closing the store (`is_left_open`).
    """

    def __init__(self, path: Path, holder: str) -> None:
        """Take the lock; ``holder`` is for people. Raises `StoreError` if another process has it."""
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreError(
                f"{path}: can't open the lock file: {error.strerror}; make the directory exist and writable for this "
                "user, then start again",
                executed=False,
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            text = os.pread(self._descriptor, 500, 0).removesuffix(_OPEN).decode(errors="replace").strip()
            text = text or "an unknown process"
            os.close(self._descriptor)
            raise StoreError(
                f"{path}: in use by {text}; stop that process or choose another data directory", executed=False
            ) from error
        self._text = f"process {os.getpid()} ({holder})\n".encode()
        self.is_left_open = os.pread(self._descriptor, 500, 0).endswith(_OPEN)
        """Whether the last holder that marked the store as open has not marked it as closed."""
        self._write(self._text + _OPEN if self.is_left_open else self._text)

    def mark_open(self) -> None:
        """Note that the store's log is in use from now on."""
        self._write(self._text + _OPEN)

    def mark_closed(self) -> None:
        """Note, durably, that all of the log is in the database."""
        self._write(self._text)
        with suppress(OSError):
            os.fsync(self._descriptor)

    def _write(self, text: bytes) -> None:
        # On a full disk the lock still holds; only the text is missing.
        with suppress(OSError):
            os.pwrite(self._descriptor, text, 0)
            os.ftruncate(self._descriptor, len(text))

    def release(self) -> None:
        """Release the lock. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Ownership:
    """The owner row as this process last wrote it. Calls run inside a transaction of the writer."""

    def __init__(self, connection: Connection, owner: Owner, path: Path) -> None:
        """Take the store over: raise the epoch and so fence off the previous owner."""
        self._path = path
        self._incarnation = owner.incarnation
        self.epoch: int
        self.last_commit: int
        """The number of the last commit that is durable. The writer raises it."""
        self.highest_ms: int
        ((self.epoch, self.last_commit, self.highest_ms),) = connection.execute(
            statement("take_ownership"), owner
        ).fetchall()

    def confirm(self, connection: Connection, now_ms: int) -> None:
        """Confirm the ownership, as the first statement of each commit. Raises `StoreFenced` after a take-over.

        ``now_ms``: see `partition.protocol.ports.Writes`.
        """
        touched = connection.execute(
            statement("confirm_ownership"), (self.last_commit + 1, now_ms, self.epoch, self._incarnation)
        ).rowcount
        if touched != 1:
            broker, incarnation, epoch = connection.execute(statement("select_owner")).fetchone()
            raise StoreFenced(
                f"{self._path}: taken over by broker {broker!r}, incarnation {incarnation!r}, epoch {epoch} "
                f"(ours was {self.epoch}); this broker must give up the store and send its clients elsewhere"
            )
