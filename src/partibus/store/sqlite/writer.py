"""The one connection that commits to a store, and the state of its last commit."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TypeVar

from partibus.durable import LOG_SUFFIX, rewrite
from partibus.partition.protocol.generations import Generation
from partibus.partition.protocol.ports import LOCK_MS_MAX, StoreFenced
from partibus.store.generations import NoNumbersLeft
from partibus.store.sqlite.owner import Note, Owner, Ownership, begin_generation, is_copy, read_generations
from partibus.store.sqlite.sql import (
    BINDING_ERRORS,
    FORMAT_VERSION,
    OLDEST_VERSION,
    StoreSettings,
    close_descriptor,
    connect_reader,
    connect_writer,
    identity,
    is_failed_sync,
    refused,
    statement,
    store_error,
)

T = TypeVar("T")

LOOK_S = 1.0
"""How often a commit checks that the file is still in place: a system call at each commit would cost each a hand-over
of the interpreter lock.
"""


class Writer:
    """The writing connection, used by one thread at a time: the holder of the commit lock."""

    def __init__(self, path: Path, store_id: str, settings: StoreSettings) -> None:
        """Open the file and check that it is the right store. Raises `sqlite3.Error`, `StoreError`."""
        self._path = path
        self._settings = settings
        self._descriptor = os.open(path, os.O_RDWR)
        """A descriptor for `rewrite`; closed after all connections of this process."""
        try:
            self.connection = connect_writer(path, settings)
        except BaseException:
            close_descriptor(self._descriptor)
            raise
        self._file = identity(path)
        self._log = path.with_name(path.name + LOG_SUFFIX)
        self._log_file: tuple[int, int] | None = None
        """The log's file; None until `take_over`, which makes one."""
        self._next_look_s = 0.0
        self._ownership: Ownership | None = None
        self._in_doubt = False
        self.dropped_partitions: list[int] = []
        """The dropped partitions at the take-over, which `sweep` has still to remove."""
        self.format_version = 0
        """The format of the file as it was found; an older one must be migrated before `take_over`."""
        self.generations: tuple[Generation, ...] = ()
        """The generations of the store; set by `take_over`."""
        self.refusal: str | None = None
        """Why commits are refused: fenced off, a commit in doubt, or a failed sync. None: they are not."""
        try:
            self._check_identity(store_id)
            self._rewrite()
        except BaseException:
            self.close(keep_log=True)
            raise

    @property
    def ownership(self) -> Ownership:
        """The owner row; set by `take_over`."""
        assert self._ownership is not None, "taken over"
        return self._ownership

    def take_over(self, owner: Owner, note: Note, *, lacks_commits: bool = False, is_written: bool = False) -> None:
        """Make this run of this broker the owner. Raises `sqlite3.Error`; then the owner is unchanged.

        ``note``: a file that ends before it lacks commits. ``lacks_commits``: later commits than the last one of the
        file may have been acknowledged. ``is_written``: the file has been written since it was closed.
        """
        self._in_transaction(partial(self._take_over, owner, note, lacks_commits, is_written))
        self._log_file = identity(self._log)

    def _take_over(
        self, owner: Owner, note: Note, lacks_commits: bool, is_written: bool, connection: sqlite3.Connection
    ) -> None:
        self._ownership = ownership = Ownership(connection, owner, self._path)
        lacks_commits |= (ownership.epoch - 1, ownership.last_commit) < (note.epoch, note.commit)
        if is_copy(connection, self._descriptor, is_written=is_written) or lacks_commits:
            self._begin_generation(0, connection)
        self.generations = read_generations(connection)
        self.dropped_partitions = [
            row for (row,) in connection.execute(statement("select_dropped_partitions")).fetchall()
        ]

    def mark_copy(self) -> None:
        """Have the next owner begin a generation. Raises `sqlite3.Error`. The caller holds the store's lock."""
        self._in_transaction(lambda connection: connection.execute(statement("update_is_copy"), (1,)))

    def set_time(self, now_ms: int) -> None:
        """Turn `highest_ms` back to ``now_ms``, durably, and cut locks and leases accordingly.

        Raises `StoreError`.
        """

        def change(connection: sqlite3.Connection) -> None:
            connection.execute(statement("update_highest_ms"), (now_ms,))
            for name in ("cut_lock_batches", "cut_session_locks", "cut_leases"):
                connection.execute(statement(name), (now_ms + LOCK_MS_MAX,))

        self.transact(change)
        self.ownership.highest_ms = now_ms

    def begin_generation(self, above: int) -> Generation:
        """Begin a generation; see `partition.protocol.ports.Store.begin_generation`. Raises `StoreError`."""
        generation = self.transact(partial(self._begin_generation, above))
        self.generations += (generation,)
        return generation

    def _begin_generation(self, above: int, connection: sqlite3.Connection) -> Generation:
        try:
            return begin_generation(connection, above, self.ownership.highest_ms)
        except NoNumbersLeft as error:
            raise refused(self._path, str(error)) from error

    def transact(self, change: Callable[[sqlite3.Connection], T], now_ms: int = 0) -> T:
        """Commit what ``change`` does, unless the store has another owner or its file is gone. Raises `StoreError`.

        ``now_ms``: see `partition.protocol.ports.Writes`.
        """
        now_s = monotonic()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + LOOK_S
            self._look_for_file()
        ownership = self._ownership
        assert ownership is not None, "taken over"
        try:
            return self._in_transaction(change, ownership, now_ms)
        except StoreFenced as error:
            self.refusal = str(error)
            raise
        except BINDING_ERRORS as error:
            failed = store_error(error, self._path, "a commit", executed=None if self._in_doubt else False)
            if self._in_doubt or is_failed_sync(error):
                self.refusal = str(failed)
            raise failed from error

    def close(self, *, keep_log: bool) -> None:
        """Close the connection. SQLite makes a checkpoint when the last connection to a file closes.

        ``keep_log`` prevents that checkpoint: after a failed sync it would treat pages as written that are not
        (`partibus.durable`).
        """
        with ExitStack() as closing:
            closing.callback(close_descriptor, self._descriptor)
            if keep_log:
                with suppress(sqlite3.Error):
                    # This connection can't take the lock that a final checkpoint needs, and keeps others from taking
                    # it.
                    reader = connect_reader(self._path, self._settings)
                    closing.callback(reader.close)
                    reader.execute(statement("select_meta")).fetchall()
            self.connection.close()

    def _rewrite(self) -> None:
        """Write the log's content to the disk before any commit builds on it. Raises `sqlite3.Error`, `OSError`."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            rewrite(self._path, self._descriptor)
        finally:
            self.connection.execute("ROLLBACK")

    def _in_transaction(
        self, change: Callable[[sqlite3.Connection], T], ownership: Ownership | None = None, now_ms: int = 0
    ) -> T:
        """Commit what ``change`` does, as the owner if there is one already, or roll back on any error.

        `_in_doubt` tells afterwards whether the outcome is unknown.
        """
        self._in_doubt = False
        connection = self.connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            if ownership is not None:
                ownership.confirm(connection, now_ms)
            result = change(connection)
            self._in_doubt = True
            connection.execute("COMMIT")
            self._in_doubt = False
            if ownership is not None:
                ownership.last_commit += 1
            return result
        except BaseException as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
                # The log's last frame, which commits those before it, was not written completely.
                self._in_doubt = False
            if self.connection.in_transaction:
                with suppress(sqlite3.Error):
                    self.connection.execute("ROLLBACK")
            raise

    def _look_for_file(self) -> None:
        """Check that the file and its log are in place.

        A deleted or replaced file still takes commits, and they vanish with the last handle.
        """
        if identity(self._path) != self._file:
            error = refused(
                self._path,
                "was deleted, moved or replaced while it is in use; put the file back with its -wal, or restore it "
                "from a backup",
            )
            self.refusal = str(error)
            raise error
        if identity(self._log) != self._log_file:
            lost = refused(self._log, f"was deleted, moved or replaced while it is in use; {self._save_log()}")
            self.refusal = str(lost)
            raise lost

    def _save_log(self) -> str:
        """Copy a log without a name into the database, and say what became of it."""
        try:
            ((busy, frames, copied),) = self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error as error:
            return f"its commits could not be copied into the database ({error}), and end with this process"
        if busy and copied < frames:
            return f"{frames - copied} of its {frames} pages could not be copied into the database: a reader holds them"
        return "its commits are in the database, and the broker opens the store anew"

    def _check_identity(self, expected_id: str) -> None:
        try:
            rows = self.connection.execute(statement("select_meta")).fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                raise
            rows = []
        if len(rows) != 1:
            raise refused(self._path, "is no store of partibus; move it away, or choose another data directory")
        ((version, store_id),) = rows
        if not OLDEST_VERSION <= version <= FORMAT_VERSION:
            raise refused(
                self._path,
                f"has format version {version}, this partibus knows {OLDEST_VERSION} to {FORMAT_VERSION}; install a "
                "version of partibus that knows it, or restore a copy made before the upgrade",
            )
        if store_id != expected_id:
            raise refused(self._path, f"is store {store_id!r}, not {expected_id!r}; give the file its own name back")
        self.format_version = version
