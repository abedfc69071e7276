"""The one connection that commits to a store, and what is known about its last commit."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TypeVar

from partibus.durable import rewrite
from partibus.partition.protocol.generations import Generation
from partibus.partition.protocol.ports import LOCK_MS_MAX, StoreFenced
from partibus.store.generations import NoNumbersLeft
from partibus.store.sqlite import generations
from partibus.store.sqlite.connection import connect_reader, connect_writer
from partibus.store.sqlite.failure import BINDING_ERRORS, is_failed_sync, refused, store_error
from partibus.store.sqlite.owner import Owner, Ownership
from partibus.store.sqlite.settings import StoreSettings
from partibus.store.sqlite.sql import FORMAT_VERSION, OLDEST_VERSION, statement

T = TypeVar("T")

LOOK_S = 1.0
"""How often a commit looks whether the file is still in its place: a call of the system each time would cost each
commit a hand-over of the interpreter lock."""


class Writer:
    """Used by one thread at a time: whoever holds the commit lock."""

    def __init__(self, path: Path, store_id: str, settings: StoreSettings) -> None:
        """Open the file and see that it is the store that it should be. Raises `sqlite3.Error`, `StoreError`."""
        self._path = path
        self._settings = settings
        self._descriptor = os.open(path, os.O_RDWR)
        """For `rewrite`; closed after all connections."""
        try:
            self.connection = connect_writer(path, settings)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._file = _identity(path)
        self._next_look_s = 0.0
        self._ownership: Ownership | None = None
        self._in_doubt = False
        self.dropped_partitions: list[int] = []
        """At the time of the take-over: what `sweep` has still to remove."""
        self.format_version = 0
        """Of the file as it was found; an older one must be migrated before `take_over`."""
        self.generations: tuple[Generation, ...] = ()
        """The generations that the store has gone through; there since `take_over`."""
        self.refusal: str | None = None
        """Why nothing may be committed any more: fenced off, a commit whose outcome nobody knows, a failed sync."""
        try:
            self._check_identity(store_id)
            self._rewrite()
        except BaseException:
            self.close(keep_log=True)
            raise

    @property
    def ownership(self) -> Ownership:
        """The owner row; there since `take_over`."""
        assert self._ownership is not None, "taken over"
        return self._ownership

    def take_over(self, owner: Owner) -> None:
        """Make this run of this broker the owner. Raises `sqlite3.Error`; then the owner is who it was."""
        with self._transaction():
            self._ownership = Ownership(self.connection, owner, self._path)
            if generations.is_copy(self.connection):
                self._begin_generation(0, self.connection)
            self.generations = generations.read_generations(self.connection)
            self.dropped_partitions = [
                row for (row,) in self.connection.execute(statement("select_dropped_partitions")).fetchall()
            ]

    def set_time(self, now_ms: int) -> None:
        """See `partition.protocol.ports.Store.set_time`. Raises `StoreError`."""

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
            return generations.begin_generation(connection, above, self.ownership.highest_ms)
        except NoNumbersLeft as error:
            raise refused(self._path, str(error)) from error

    def transact(self, change: Callable[[sqlite3.Connection], T], now_ms: int = 0) -> T:
        """Commit what ``change`` does, unless the store has another owner or its file is gone. ``now_ms``: see
        `partition.protocol.ports.Writes`. Raises `StoreError`."""
        self._look_for_file()
        try:
            with self._transaction():
                self.ownership.confirm(self.connection, now_ms)
                result = change(self.connection)
        except StoreFenced as error:
            self.refusal = str(error)
            raise
        except BINDING_ERRORS as error:
            failed = store_error(error, self._path, "a commit", executed=None if self._in_doubt else False)
            if self._in_doubt or is_failed_sync(error):
                self.refusal = str(failed)
            raise failed from error
        self.ownership.committed()
        return result

    def close(self, *, keep_log: bool) -> None:
        """Close the connection. SQLite makes a checkpoint when the last one of a file is closed. ``keep_log``: keep it
        from that, since after a failed sync it would take for written what is not (`partibus.durable`)."""
        with ExitStack() as closing:
            closing.callback(os.close, self._descriptor)
            if keep_log:
                with suppress(sqlite3.Error):
                    # It can't have the lock that a checkpoint at the end needs, and lets nobody else have it.
                    reader = connect_reader(self._path, self._settings)
                    closing.callback(reader.close)
                    reader.execute(statement("select_meta")).fetchall()
            self.connection.close()

    def _rewrite(self) -> None:
        """Bring to the disk what the log says, before anything is built on it. Raises `sqlite3.Error`, `OSError`."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            rewrite(self._path, self._descriptor)
        finally:
            self.connection.execute("ROLLBACK")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit at the end, roll back on any error. `_in_doubt` says afterwards whether nobody knows which."""
        self._in_doubt = False
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._in_doubt = True
            self.connection.execute("COMMIT")
            self._in_doubt = False
        except BaseException as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
                # The log's last frame, which makes a commit of those before it, was not written whole.
                self._in_doubt = False
            if self.connection.in_transaction:
                with suppress(sqlite3.Error):
                    self.connection.execute("ROLLBACK")
            raise

    def _look_for_file(self) -> None:
        """A file that was deleted or replaced takes commits all the same, and they are gone with the last handle."""
        now_s = monotonic()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_S
        if _identity(self._path) != self._file:
            error = refused(
                self._path,
                "was deleted, moved or replaced while it is in use; put the file back with its -wal, or restore it "
                "from a backup",
            )
            self.refusal = str(error)
            raise error

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


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file has that name; None when there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
