"""Copies a store's write-ahead log into its database, beside the writer.

A commit only appends to the log. The log starts over once all of it has been copied and no reader uses it. Copying
takes as long as the disk needs, so it runs on a thread of its own. Commits go on meanwhile, so a second, short pass
with commits held back copies what they have added. Without it the log would never end under steady load.

SQLite before 3.51.3 can lose pages when a commit lets the log start over while a checkpoint begins
(https://sqlite.org/wal.html#walresetbug). The log starts over only when all of it has been copied, so this order of
checkpoints keeps the two apart:

- At most one checkpoint of a store is under way, and only `Checkpoints` begins any.
- The first pass, beside commits, begins after a commit that no checkpoint has copied: the log can't start over before
  the pass has copied that.
- Every other checkpoint excludes commits.

Readers, also those of other processes, begin no checkpoint. Another program that commits to a store, or runs ``PRAGMA
wal_checkpoint`` there, breaks the order.
"""

import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Lock, Thread

from partibus.partition.protocol.ports import DUPLICATE_COLUMNS, ENTRY_COLUMNS, SINK_ID_COLUMNS, Writes
from partibus.store.sqlite.sql import KIB, PAGE_BYTES, StoreSettings, connect, is_failed_sync

log = logging.getLogger(__name__)

_PAGES_PER_COMMIT = 5
"""Owner, counters, counts, an entry page and its parent: the pages that a commit of one message appends beside the
message.
"""

_BYTES_PER_COLUMN = 8

_BYTES_PER_NAME = 2 * KIB
"""A session's name or a message's id has a place anywhere in its index, so each may append a page of its own: 6 KB a
message were measured in commits of 200, 20 KB in commits of 20. The estimate is lower, since a log that is copied later
is copied in fewer writes: the same pages are in it repeatedly.
"""

_SESSION_COLUMN = 6
"""The column of an entry in `Writes`."""

_PAGES_OF_CACHE = 8 * PAGE_BYTES


class Checkpoints:
    """The checkpoints of one store: starts one when enough has been appended.

    The thread lives as long as the checkpoint.
    """

    def __init__(
        self, path: Path, settings: StoreSettings, commit_lock: Lock, sync_failed: Callable[[sqlite3.Error], None]
    ) -> None:
        """Prepare the checkpoints of the store at ``path``.

        A committer holds ``commit_lock``. ``sync_failed`` is called when the store may not be used further; opening it
        again rewrites what the disk may lack.
        """
        self._path = path
        self._settings = settings
        self._commit_lock = commit_lock
        self._sync_failed = sync_failed
        self._appended_bytes = 0
        """Bytes appended since the last complete copy of the log."""
        self.thread: Thread | None = None
        """The thread of the checkpoint under way; None while there is none."""
        self._stopped = False
        """Whether a sync has failed. Another checkpoint would treat the pages that this one copied as written."""
        self.last_error: Exception | None = None
        """The error of the latest checkpoint, or of the start of its thread. The log loses nothing; it grows until a
        checkpoint succeeds.
        """

    def after_commit(self, appended_bytes: int) -> None:
        """Start a checkpoint if enough has been appended.

        The caller holds the commit lock and has committed since the last checkpoint.
        """
        self._appended_bytes += appended_bytes
        if self._appended_bytes >= self._settings.checkpoint_bytes and self.thread is None and not self._stopped:
            self.thread = thread = Thread(target=self._run, name=f"checkpoint {self._path.name}")
            try:
                thread.start()
            except RuntimeError as error:
                # The process has too many threads. The commit is durable; the next commit tries again.
                self.thread = None
                self.failed(error)

    def run_now(self, connection: sqlite3.Connection) -> None:
        """Copy as much of the log as possible without waiting, unless the thread is about to.

        The caller holds the commit lock. The finished commit stays, whatever happens here.
        """
        if self.thread is not None or self._stopped:
            return
        try:
            checkpoint(connection)
        except sqlite3.Error as error:
            self.failed(error)
        else:
            self._appended_bytes = 0

    def is_behind(self, connection: sqlite3.Connection) -> bool:
        """Tell whether the log holds more new pages than the reserved space could take.

        On a full disk such pages would stay in the log, and a log that can't start over takes no completes. The caller
        holds the commit lock, and releases it to wait.
        """
        if self.thread is None or self._appended_bytes <= self._settings.reserved_bytes:
            return False
        try:
            ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
            return bool(pages * PAGE_BYTES - self._path.stat().st_size > self._settings.reserved_bytes)
        except (sqlite3.Error, OSError):
            # The commit that follows meets the same trouble and reports it.
            return False

    def wait(self) -> None:
        """Wait until a checkpoint under way has ended. The caller does not hold the commit lock."""
        thread = self.thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        try:
            with closing(connect(self._path, _PAGES_OF_CACHE, self._settings)) as connection:
                checkpoint(connection)
                with self._commit_lock:
                    checkpoint(connection)
                    self._appended_bytes = 0
            self._worked()
        except Exception as error:  # noqa: BLE001 (the thread has no caller)
            self.failed(error)
        finally:
            self.thread = None

    def failed(self, error: Exception) -> None:
        """Note the error of a checkpoint, or of another change that has no caller. Log it unless it is the last one."""
        if self.last_error is None or str(self.last_error) != str(error):
            log.warning(
                "%s: a checkpoint failed (%s). No message is lost, and the log grows until a checkpoint succeeds. Look "
                "at the room and the health of the disk",
                self._path,
                error,
            )
        self.last_error = error
        if isinstance(error, sqlite3.Error) and is_failed_sync(error):
            self._stopped = True
            self._sync_failed(error)

    def _worked(self) -> None:
        if self.last_error is not None:
            self.last_error = None
            log.info("%s: checkpoints succeed again", self._path)


def estimate_appended_bytes(writes: Writes) -> int:
    """Estimate how many bytes a commit appends to the log: SQLite does not report it."""
    sessions = writes.entries[_SESSION_COLUMN::ENTRY_COLUMNS]
    names = (
        len(sessions)
        - sessions.count(None)
        + len(writes.duplicate_ids) // DUPLICATE_COLUMNS
        + len(writes.sink_ids) // SINK_ID_COLUMNS
        + len(writes.session_locks)
    )
    for *_, ids in writes.new_sink_ids:
        names += len(ids)
    size_bytes = _PAGES_PER_COMMIT * PAGE_BYTES + _BYTES_PER_NAME * names
    size_bytes += sum(map(len, writes.bodies[1::2]))  # type: ignore[arg-type]  # every second column is the message
    size_bytes += _BYTES_PER_COLUMN * (len(writes.entries) + len(writes.dispositions))
    for state, _ in writes.session_states.values():
        size_bytes += len(state or b"")
    for first, last in writes.deleted_bodies:
        size_bytes += KIB * (last - first + 1)
    return size_bytes


def checkpoint(connection: sqlite3.Connection, mode: str = "PASSIVE") -> bool:
    """Copy what can be copied without waiting (``PASSIVE``), or copy all and empty the log (``TRUNCATE``).

    Return whether the database has all of the log now. A reader may keep some of it back; SQLite raises nothing then.
    """
    ((busy, frames, copied),) = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
    return bool(not busy or copied == frames >= 0)
