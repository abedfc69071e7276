"""One SQLite file as a messaging store.

Layout: ``ddl/0001.sql``, keys as in `partibus.partition.keys`. Beside ``store-00.db`` lie SQLite's ``-wal`` and
``-shm``, ``store-00.lock`` (`owner`) and ``store-00.ballast`` (`ballast`).

Sync points: each commit syncs the write-ahead log before `commit` returns; a checkpoint syncs log and database. So a
returned commit survives the loss of power, a commit under way is there whole or not at all, and nothing else is lost.

Threads: commits exclude each other; reads go through connections of their own and see the last commit.
"""

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Self

from partibus.partition.ports import EntryRow, Snapshot, StoreError, StoreFenced, StoreFull, Writes
from partibus.store.sqlite import creation, reader
from partibus.store.sqlite.ballast import Ballast, free_bytes
from partibus.store.sqlite.checkpoint import Checkpoints, checkpoint, estimate_appended_bytes
from partibus.store.sqlite.connection import connect_reader, connect_writer
from partibus.store.sqlite.failure import store_error, store_full
from partibus.store.sqlite.owner import LockFile, Owner, Ownership
from partibus.store.sqlite.room import Room
from partibus.store.sqlite.settings import DEFAULTS, StoreSettings
from partibus.store.sqlite.sql import FORMAT_VERSION, statement
from partibus.store.sqlite.writer import apply_writes

_BINDING_ERRORS = (sqlite3.Error, OverflowError, ValueError, TypeError)
"""What executing a statement raises: SQLite's own, and those of values that don't fit a column (a lone surrogate in a
text, an integer of more than 64 bits)."""


class SQLiteStore:
    """A `partibus.partition.ports.Store` in one file. Made by `open`."""

    def __init__(
        self, path: Path, store_id: str, owner: Owner, settings: StoreSettings, free: Callable[[Path], int]
    ) -> None:
        """Open an existing file and take it over; see `open`."""
        self._path = path
        self._store_id = store_id
        self._owner = owner
        self._settings = settings
        self._free = free
        self._commit_lock = Lock()
        self._refusal: str | None = None
        """Why nothing works any more: closed, fenced, or a commit whose outcome nobody knows."""
        self._closed = False
        self._in_doubt = False
        self._idle_readers: list[sqlite3.Connection] = []
        self._lock_file = LockFile(path.with_suffix(".lock"), f"broker {owner.broker}, incarnation {owner.incarnation}")
        try:
            if not os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
                # SQLite would open it for reading and leave files beside it that are read-only as well.
                raise PermissionError(errno.EACCES, "the file is read-only for this user")
            self._writer = connect_writer(path, settings)
            try:
                self._check_identity()
                ballast = Ballast(path.with_suffix(".ballast"), settings.ballast_bytes, settings.min_free_bytes, free)
                self._room = Room(ballast, settings)
                self._ownership = self._take_over()
            except BaseException:
                self._writer.close()
                raise
        except BaseException as error:
            self._lock_file.release()
            if isinstance(error, (sqlite3.Error, OSError)):
                raise store_error(error, path, "opening the store", executed=False) from error
            raise
        self._checkpoints = Checkpoints(path, settings, self._commit_lock)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        store_id: str,
        owner: Owner,
        created_ms: int = 0,
        settings: StoreSettings = DEFAULTS,
        free: Callable[[Path], int] = free_bytes,
    ) -> Self:
        """Open the store and take it over, after making an empty one if the file does not exist.

        ``created_ms`` is noted in a new file; ``free`` measures the room on the file system of a directory. Raises
        `StoreError` (in use by another process, not writable, damaged, of a newer format, another store's file, no
        room), leaving the file as it was.
        """
        if not path.exists():
            try:
                creation.publish(creation.prepare(path, store_id, created_ms), path)
                creation.sync_directory(path.parent)
            except (sqlite3.Error, OSError) as error:
                raise store_error(error, path, "making the store", executed=False) from error
        return cls(path, store_id, owner, settings, free)

    def reopen(self) -> Self:
        """Close and open anew: what the owner does after a failed commit. Raises as `open`."""
        self.close()
        return type(self)(self._path, self._store_id, self._owner, self._settings, self._free)

    @property
    def name(self) -> str:
        """The path."""
        return str(self._path)

    @property
    def epoch(self) -> int:
        """How often the store has been taken over, this time included (D19)."""
        return self._ownership.epoch

    @property
    def last_commit(self) -> int:
        """Number of the last commit that is surely durable."""
        return self._ownership.last_commit

    @property
    def has_room(self) -> bool:
        """False while commits with bodies are refused for lack of room."""
        if self._room.is_full and self._commit_lock.acquire(blocking=False):
            try:
                self._room.look_again(self._writer)
            finally:
                self._commit_lock.release()
        return not self._room.is_full

    def commit(self, writes: Writes) -> None:
        """Make all rows durable, or none. A key that exists already is an error of the caller: nothing is stored."""
        with self._commit_lock:
            behind = self._refusal is None and self._checkpoints.is_behind(self._writer)
        if behind:
            self._checkpoints.wait()
        with self._commit_lock:
            self._check_usable()
            appended_bytes = estimate_appended_bytes(writes)
            brings_messages = bool(writes.bodies)
            if brings_messages and not self._room.admits(self._writer, appended_bytes):
                raise store_full(self._path, "a commit")
            try:
                self._transact(writes)
            except StoreFull:
                gave_up = self._room.ran_out(self._writer)
                if brings_messages or not gave_up:
                    raise
                self._transact(writes)
            if self._room.is_full:
                self._room.make_room(self._writer)
            self._checkpoints.after_commit(appended_bytes)

    def load_partition(self, partition_row: int) -> Snapshot | None:
        """See the port."""
        with self._reader() as connection:
            return reader.read_partition(connection, partition_row)

    def load_page(self, subqueue: int, from_pos: int, max_entries: int, max_bytes: int) -> list[EntryRow]:
        """See the port."""
        with self._reader() as connection:
            return reader.read_page(connection, subqueue, from_pos, max_entries, max_bytes)

    def load_bodies(self, keys: Sequence[int]) -> list[bytes | None]:
        """See the port."""
        with self._reader() as connection:
            return reader.read_bodies(connection, keys)

    def peek(self, subqueue: int, from_sequence: int, max_entries: int, max_bytes: int) -> list[EntryRow]:
        """See the port."""
        with self._reader() as connection:
            return reader.read_from_sequence(connection, subqueue, from_sequence, max_entries, max_bytes)

    def browse(self, subqueue: int, from_pos: int, to_pos: int, max_entries: int, max_bytes: int) -> list[EntryRow]:
        """See the port."""
        with self._reader() as connection:
            return reader.read_range(connection, subqueue, from_pos, to_pos, max_entries, max_bytes)

    def close(self) -> None:
        """Idempotent. Waits for a commit and a checkpoint under way; reads under way end by themselves."""
        with self._commit_lock:
            if self._closed:
                return
            self._closed = True
            in_order, self._refusal = self._refusal is None, self._refusal or "closed"
        self._checkpoints.wait()
        with self._commit_lock:
            while self._idle_readers:
                self._idle_readers.pop().close()
            if in_order:
                with suppress(sqlite3.Error):
                    # Not needed for durability; leaves one file behind and nothing to recover at the next start.
                    checkpoint(self._writer, "TRUNCATE")
            self._writer.close()
            self._lock_file.release()

    def _check_identity(self) -> None:
        try:
            ((version, store_id),) = self._writer.execute(statement("select_meta")).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            raise self._refused("is no store of partibus; move it away, or choose another data directory") from error
        if version != FORMAT_VERSION:
            raise self._refused(
                f"has format version {version}, this partibus knows {FORMAT_VERSION}; install a version of partibus "
                "that knows it, or restore a copy made before the upgrade"
            )
        if store_id != self._store_id:
            raise self._refused(f"is store {store_id!r}, not {self._store_id!r}; give the file its own name back")

    def _take_over(self) -> Ownership:
        try:
            return self._write_owner()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_FULL or not self._room.ran_out(self._writer):
                raise
            return self._write_owner()

    def _write_owner(self) -> Ownership:
        with self._transaction():
            return Ownership(self._writer, self._owner, self._path)

    def _transact(self, writes: Writes) -> None:
        try:
            with self._transaction():
                self._ownership.confirm(self._writer)
                apply_writes(self._writer, writes)
        except StoreFenced as error:
            self._refusal = str(error)
            raise
        except _BINDING_ERRORS as error:
            failed = store_error(error, self._path, "a commit", executed=None if self._in_doubt else False)
            if self._in_doubt:
                self._refusal = str(failed)
            raise failed from error
        self._ownership.committed()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit at the end, roll back on any error. `_in_doubt` says afterwards that nobody knows which."""
        self._in_doubt = False
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._in_doubt = True
            self._writer.execute("COMMIT")
            self._in_doubt = False
        except BaseException as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
                # The log's last frame, which makes a commit of the ones before it, was not written whole.
                self._in_doubt = False
            if self._writer.in_transaction:
                with suppress(sqlite3.Error):
                    self._writer.execute("ROLLBACK")
            raise

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        """A connection for one load; kept for the next one unless the load failed or the store was closed."""
        self._check_usable()
        try:
            try:
                connection = self._idle_readers.pop()
            except IndexError:
                connection = connect_reader(self._path, self._settings)
            try:
                yield connection
            except BaseException:
                connection.close()
                raise
        except _BINDING_ERRORS as error:
            raise store_error(error, self._path, "a load", executed=False) from error
        if self._refusal is not None or len(self._idle_readers) >= self._settings.readers_idle:
            connection.close()
        else:
            self._idle_readers.append(connection)

    def _check_usable(self) -> None:
        if self._refusal is not None:
            raise StoreError(f"{self._path}: not in use any more ({self._refusal}); open it anew", executed=False)

    def _refused(self, reason: str) -> StoreError:
        return StoreError(f"{self._path}: {reason}", executed=False)
