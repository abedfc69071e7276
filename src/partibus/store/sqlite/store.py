"""One SQLite file as a messaging store.

Layout: ``ddl/0006.sql``, keys as in `partition.protocol.keys`. Beside ``store-00.db`` are SQLite's ``-wal`` and
``-shm``, ``store-00.lock`` (`owner`) and ``store-00.ballast`` (`reserved_space`).

Sync points: each commit syncs the write-ahead log before `commit` returns; a checkpoint syncs log and database. So a
returned commit survives the loss of power, a commit under way is stored as a whole or not at all, and nothing else is
lost.

Threads: commits exclude each other; reads use connections of their own and see the last commit.
"""

import errno
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Self, TypeVar

from msgspec.structs import astuple

from partibus.durable import LOG_SUFFIX
from partibus.partition.protocol import queries as q
from partibus.partition.protocol.generations import Generation
from partibus.partition.protocol.ports import BODY_COLUMNS, Query, StoreFull, Writes
from partibus.store.dropped_partitions import SLICE_ROWS, PartitionRemover, without_hidden
from partibus.store.sqlite import apply, creation, ranges, reader, sessions
from partibus.store.sqlite.apply import (
    SMALL_OPERATIONS,
    apply_in_turn,
    apply_writes,
    remove_partition_rows,
    sets_session_state,
)
from partibus.store.sqlite.checkpoint import Checkpoints, checkpoint, estimate_appended_bytes
from partibus.store.sqlite.owner import LockFile, Note, Owner
from partibus.store.sqlite.reserved_space import Room, free_bytes
from partibus.store.sqlite.sql import (
    BINDING_ERRORS,
    DEFAULTS,
    FORMAT_VERSION,
    KIB,
    StoreSettings,
    connect_reader,
    refused,
    store_error,
    store_full,
)
from partibus.store.sqlite.writer import Writer

log = logging.getLogger(__name__)


class Readers:
    """A pool that provides a connection per load. Safe to use from any thread."""

    def __init__(self, path: Path, settings: StoreSettings) -> None:
        self._path = path
        self._settings = settings
        self._idle: list[sqlite3.Connection] = []
        self._closed = False

    @contextmanager
    def reader(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection for one load; keep it for the next unless the load failed. Raises `StoreError`."""
        try:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = connect_reader(self._path, self._settings)
            try:
                yield connection
            except BaseException:
                connection.close()
                raise
        except BINDING_ERRORS as error:
            raise store_error(error, self._path, "a load", executed=False) from error
        if len(self._idle) >= self._settings.readers_idle:
            connection.close()
        else:
            self._idle.append(connection)
        if self._closed:  # looked at last: it may have been closed meanwhile
            self._drop_idle()

    def close(self) -> None:
        """Close the idle connections. Idempotent. A load under way closes its own connection at its end."""
        self._closed = True
        self._drop_idle()

    def _drop_idle(self) -> None:
        with suppress(IndexError):  # a load may take the last one between a look and a pop
            while True:
                self._idle.pop().close()


T = TypeVar("T")


class SQLiteStore:
    """A `partition.protocol.ports.Store` in one file. Made by `open`."""

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
        self._closed = False
        self.is_held = True
        """True: the lock file excludes others while this process lives.

        If the lock fails, the owner row keeps them from committing.
        """
        self._failed_sync: str | None = None
        self._readers = Readers(path, settings)
        self.checkpoints = Checkpoints(path, settings, self._commit_lock, self._sync_failed)
        self._lock_file = LockFile(path.with_suffix(".lock"), f"broker {owner.broker}, incarnation {owner.incarnation}")
        with ExitStack() as opening:
            opening.callback(self._lock_file.release)
            try:
                self._writer = self._open_writer(self._misses_log(), self._lock_file.note.is_before(path))
            except (sqlite3.Error, OSError) as error:
                raise store_error(error, path, "opening the store", executed=False) from error
            opening.callback(self._writer.close, keep_log=True)
            self._remover = PartitionRemover(self.name, self._remove_slice, self._writer.dropped_partitions)
            self._lock_file.mark_open(self._note())
            opening.pop_all()

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
        room), leaving the file as it was. Migrates a file of an older format, after making a copy.
        """
        if not path.exists():
            try:
                creation.publish(creation.prepare(path, store_id, created_ms, creation.empty_store()), path)
                creation.sync_directory(path.parent)
            except (sqlite3.Error, OSError) as error:
                raise store_error(error, path, "making the store", executed=False) from error
        return cls(path, store_id, owner, settings, free)

    def reopen(self) -> Self:
        """Close and reopen the store, as its owner does after a failed commit. Raises as `open`."""
        self.close()
        return type(self)(self._path, self._store_id, self._owner, self._settings, self._free)

    @property
    def name(self) -> str:
        """The path."""
        return str(self._path)

    @property
    def epoch(self) -> int:
        """The number of take-overs of the store, this one included (D19)."""
        return self._writer.ownership.epoch

    @property
    def last_commit(self) -> int:
        """The number of the last commit that is surely durable."""
        return self._writer.ownership.last_commit

    @property
    def highest_ms(self) -> int:
        """The latest owner time of all commits before the store was opened (D26)."""
        return self._writer.ownership.highest_ms

    @property
    def has_room(self) -> bool:
        """Whether commits with bodies are taken; False for lack of room.

        Does not wait: during a commit or the end of a checkpoint it is the answer of the commit before.
        """
        if self._room.is_full and self._commit_lock.acquire(blocking=False):
            try:
                self._room.look_again(self._writer.connection)
            finally:
                self._commit_lock.release()
        return not self._room.is_full

    @property
    def durability(self) -> str:
        """The place of a finished commit: this machine's disk."""
        return "1 copy"

    @property
    def generations(self) -> tuple[Generation, ...]:
        """The generations of the store in order, at least one."""
        return self._writer.generations

    def set_time(self, now_ms: int) -> None:
        """Turn `highest_ms` back to ``now_ms``, durably, and cut locks and leases accordingly."""
        with self._committing():
            self._writer.set_time(now_ms)

    def begin_generation(self, above: int = 0) -> Generation:
        """Begin a generation, durably, with numbers above all that were given out and above ``above``."""
        with self._committing():
            return self._writer.begin_generation(above)

    def commit(self, writes: Writes) -> None:
        """Make all rows durable, or none. A key that exists already is an error of the caller: nothing is stored."""
        if self.checkpoints.thread is not None:
            self._await_checkpoint()
        with self._commit_lock:
            if self._closed or self._failed_sync is not None or self._writer.refusal is not None:
                self._check_usable()
            appended_bytes = estimate_appended_bytes(writes)
            brings_data = len(writes.bodies) > BODY_COLUMNS * writes.replacing_bodies or (
                bool(writes.session_states) and sets_session_state(writes)
            )
            if brings_data and not self._room.admits(self._writer.connection, appended_bytes):
                raise store_full(self._path, "a commit")
            change = partial(apply_writes if writes.operations <= SMALL_OPERATIONS else apply_in_turn, writes)
            try:
                self._writer.transact(change, writes.now_ms)
            except StoreFull:
                gave_up = self._room.ran_out(self._writer.connection)
                if brings_data or not gave_up:
                    raise
                self._writer.transact(change, writes.now_ms)
            if writes.dropped_partitions:
                self._remover.dropped(writes.dropped_partitions)
            self.checkpoints.after_commit(appended_bytes)
            if self._room.is_full:
                self._make_room()

    def read(self, query: Query[T]) -> T:
        """Answer a query as of the last commit. Raises `StoreError`."""
        self._check_usable()
        hidden = self._remover.hidden
        if query.row in hidden:
            return query.nothing()
        with self._readers.reader() as connection:
            found: T = _READS[type(query)](connection, *astuple(query))
        return without_hidden(hidden, query, found) if hidden else found

    def wait_until_swept(self) -> None:
        """Wait until the rows of dropped partitions are deleted from the file as well (they are hidden at once)."""
        self._remover.wait()

    def close(self) -> None:
        """Release the connections and the lock file, even if an earlier step raises. Idempotent.

        Waits for a commit and a checkpoint under way; reads under way end by themselves.
        """
        with self._commit_lock:
            if self._closed:
                return
            self._closed = True
        with ExitStack() as closing:  # the last of these first
            closing.callback(self._lock_file.release)
            closing.callback(self._close_writer)
            closing.callback(self._readers.close)
            closing.callback(self.checkpoints.wait)
            closing.callback(self._remover.stop)

    def _close_writer(self) -> None:
        with self._commit_lock:
            keep_log = self._writer.refusal is not None or self._failed_sync is not None
            if not keep_log:
                try:
                    # Not needed for durability: leaves one file and nothing to recover at the next start.
                    keep_log = not checkpoint(self._writer.connection, "TRUNCATE")
                    if not keep_log:
                        self._lock_file.mark_closed(self._note(self._path.stat().st_mtime_ns))
                except (sqlite3.Error, OSError):
                    keep_log = True
            self._writer.close(keep_log=keep_log)

    def _note(self, written_ns: int = 0) -> Note:
        return Note(self.epoch, self.last_commit, written_ns)

    def _misses_log(self) -> bool:
        """Tell, and log, whether the log is gone of a store that its last owner could not close."""
        if not self._lock_file.is_left_open or self._path.with_name(self._path.name + LOG_SUFFIX).exists():
            return False
        log.error(
            "%s: its last owner did not close it, and its log (%s) is missing: the latest commits may be lost. If you "
            "have the log, put it back before the start. The store begins a generation: no number is given out twice",
            self._path,
            LOG_SUFFIX,
        )
        return True

    def _open_writer(self, lacks_commits: bool, is_written: bool) -> Writer:
        if not os.access(self._path, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
            # SQLite would open it for reading, and leave read-only files beside it.
            raise PermissionError(errno.EACCES, "the file is read-only for this user")
        writer = Writer(self._path, self._store_id, self._settings)
        take_over = partial(
            writer.take_over, self._owner, self._lock_file.note, lacks_commits=lacks_commits, is_written=is_written
        )
        try:
            if writer.format_version < FORMAT_VERSION:
                creation.migrate(self._path, writer.format_version, self._settings, self._free)
            self._room = Room(self._path, self._settings, self._free, self.checkpoints)
            try:
                take_over()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_FULL or not self._room.ran_out(writer.connection):
                    raise
                take_over()
            # The log or the file is new. SQLite syncs the directory too, but ignores the error.
            creation.sync_directory(self._path.parent)
        except BaseException:
            writer.close(keep_log=True)
            raise
        return writer

    @contextmanager
    def _committing(self) -> Iterator[None]:
        """Hold the commit lock of a usable store whose log is not too far ahead of its database."""
        if self.checkpoints.thread is not None:
            self._await_checkpoint()
        with self._commit_lock:
            self._check_usable()
            yield

    def _await_checkpoint(self) -> None:
        """Wait for the checkpoint under way if the log is too far ahead of the database."""
        with self._commit_lock:
            self._check_usable()
            behind = self.checkpoints.is_behind(self._writer.connection)
        if behind:
            self.checkpoints.wait()

    def _sync_failed(self, error: sqlite3.Error) -> None:
        """Note that a checkpoint's sync failed, on any thread: the store refuses the next commit and load."""
        self._failed_sync = str(store_error(error, self._path, "a checkpoint's sync", executed=False))

    def _make_room(self) -> None:
        self._room.make_room(self._writer.connection)
        self._room.look_again(self._writer.connection)

    def _remove_slice(self, partition_row: int) -> bool:
        with self._committing():
            done = self._writer.transact(partial(remove_partition_rows, partition_row, SLICE_ROWS))
            self.checkpoints.after_commit(2 * SLICE_ROWS * KIB)
            if self._room.is_full:
                self._make_room()
            return done

    def _check_usable(self) -> None:
        refusal = "closed" if self._closed else self._writer.refusal or self._failed_sync
        if refusal is not None:
            raise refused(self._path, f"not usable ({refusal}); open it again")


_READS: Mapping[type[Query[Any]], Callable[..., Any]] = {
    q.Partition: reader.read_partition,
    q.Sizes: reader.read_sizes,
    q.Counts: reader.read_filled,
    q.TimedSubqueues: reader.read_timed_subqueues,
    q.CursorPartitions: reader.read_cursor_partitions,
    q.Page: reader.read_page,
    q.Due: reader.read_due,
    q.DueCount: reader.count_due,
    q.BySequence: reader.read_sequences,
    q.SessionsBehind: sessions.scan_sessions,
    q.AbsentSessions: sessions.absent_sessions,
    q.SessionList: sessions.list_sessions,
    q.SessionState: sessions.session_state,
    q.Duplicates: apply.find_duplicates,
    q.DuplicatesBehind: apply.scan_duplicates,
    q.Executed: reader.read_executed,
    q.Bodies: reader.read_bodies,
    q.Peek: reader.read_from_sequence,
    q.Browse: reader.browse,
    q.Range: ranges.read_range,
    q.Scan: ranges.scan,
    q.Dispositions: ranges.read_dispositions,
    q.SinkIds: apply.find_sink_ids,
    q.SinkIdCount: apply.count_sink_ids,
}
