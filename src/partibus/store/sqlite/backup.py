"""Copies of SQLite files that are in use; a copy gets its name only when it is complete and checked.

The source is read in one read transaction, so the copy is the state of one moment, its last commit. Commits go on
meanwhile, and the write-ahead log grows until the copy is done. The copy is made in steps with a pause after each, so
that it leaves the disk to the commits. It is written beside its place, checked and synced. If the process ends before
that, it leaves a ``.part`` file that no reader takes for a copy.

Only the process that owns a store commits to it, but any process of the machine may copy it.

Read-only access to a copy of a store that no broker serves; it takes no lock.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from types import TracebackType
from typing import Self

from partibus.partition.protocol.keys import POSITION_MAX, subqueue_key
from partibus.partition.protocol.ports import EntryRow, StoreError
from partibus.store.sqlite.creation import publish, sync_directory, sync_file
from partibus.store.sqlite.reader import browse
from partibus.store.sqlite.sql import DEFAULTS, FORMAT_VERSION, PAGE_BYTES, connect, refused, statement, store_error

STEP_PAGES = 128
"""2 MiB: what a disk writes in the time of a few commits."""
PAUSE_S = 0.002
HOLD_S = 0.5
"""The longest time for which a starting backup holds all commits. With 16 stores, of which 1,500 messages a second
committed, 0.2 to 240 ms were measured, in half of the cases less than 7.
"""
_HOLDS = 5
_BETWEEN_HOLDS_S = 0.2
_POLL_S = 0.0005
_CACHE_BYTES = 8 * PAGE_BYTES


class BackupStopped(Exception):
    """The backup was stopped before it was complete."""


class Moment:
    """Read transactions on several stores. Close it, or use it as a context."""

    def __init__(self, sources: Iterable[Path], stop: Event, *, hold: bool = True) -> None:
        """Begin the transactions while no store commits, so that all copies are of one moment; blocks.

        The stores are kept from committing for at most `HOLD_S`. If that is too short each time, or if not ``hold``,
        the transactions begin one after the other. Raises `StoreError`, and `BackupStopped` soon after ``stop`` is set.
        """
        self.is_one = False
        """Whether no store committed between the first transaction and the last."""
        self._reading: dict[Path, sqlite3.Connection] = {}
        self._holding: dict[Path, sqlite3.Connection] = {}
        try:
            for path in sources:
                self._open(path, hold=hold)
            self._begin(stop)
        except BaseException:
            self.close()
            raise
        # Close these while the reading connections are open: the last connection to close would copy the log into the
        # database.
        _close_all(self._holding)

    def take(self, path: Path) -> sqlite3.Connection:
        """Return the transaction of one store; the caller closes it, so that the store's log can start over."""
        return self._reading.pop(path)

    def close(self) -> None:
        """End the remaining transactions. Idempotent."""
        _close_all(self._holding)
        _close_all(self._reading)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, path: Path, *, hold: bool) -> None:
        with _failing(path, "opening it for a copy"):
            self._reading[path] = connect(path, _CACHE_BYTES, DEFAULTS, mode="ro")
            if hold:
                self._holding[path] = connect(path, _CACHE_BYTES, DEFAULTS._replace(busy_timeout_ms=0))

    def _begin(self, stop: Event) -> None:
        for _ in range(_HOLDS if self._holding else 0):
            if self._hold():
                self.is_one = True
                break
            if stop.wait(_BETWEEN_HOLDS_S):
                raise BackupStopped
        for path, connection in self._reading.items():
            with _failing(path, "reading it for a copy"):
                # The transaction begins with its first read.
                connection.execute("BEGIN")
                connection.execute("SELECT count(*) FROM sqlite_master").fetchall()

    def _hold(self) -> bool:
        """Keep all stores from committing. If that takes too long, release them and return False."""
        until_s = monotonic() + HOLD_S
        for path, connection in self._holding.items():
            with _failing(path, "holding it for a copy"):
                while not _begin_immediate(connection):
                    if monotonic() >= until_s:
                        self._let_go()
                        return False
                    sleep(_POLL_S)
        return True

    def _let_go(self) -> None:
        for connection in self._holding.values():
            if connection.in_transaction:
                connection.execute("ROLLBACK")


def copy_store(source: Path, target: Path, stop: Event, moment: Moment | None = None) -> int:
    """Copy a store to a new name, as it is at ``moment``; blocks. Return the size of the copy in bytes.

    The copy is marked as one, so that it begins a generation when it is opened. Raises `StoreError`, and
    `BackupStopped` soon after ``stop`` is set; then there is no ``target``.
    """
    part = target.with_name(f"{target.name}.part")
    try:
        of_its_own = Moment([source], stop, hold=False) if moment is None else nullcontext(moment)
        with _failing(source, f"copying it to {target}"), of_its_own as of:
            part.unlink(missing_ok=True)
            # Readable by its owner only: it holds messages, or the names of entities.
            part.touch(mode=0o600, exist_ok=False)
            with part.open("rb") as file:
                _copy(source, part, stop, of)
                sync_file(file.fileno())
            size_bytes = part.stat().st_size
            publish(part, target)
            sync_directory(target.parent)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    return size_bytes


def _copy(source: Path, part: Path, stop: Event, moment: Moment) -> None:
    def step_done(status: int, remaining: int, total: int) -> None:
        if stop.wait(PAUSE_S):
            raise BackupStopped

    with (
        closing(moment.take(source)) as reading,
        closing(sqlite3.connect(part, isolation_level=None)) as writing,
    ):
        writing.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;")
        # Copy in a transaction. Without it each commit would restart the copy.
        reading.backup(writing, pages=STEP_PAGES, progress=step_done)
        reading.execute("ROLLBACK")
        ((verdict,),) = writing.execute("PRAGMA quick_check(1)").fetchall()
        if verdict != "ok":
            raise refused(source, f"its copy is damaged, and so is it: {verdict}")
        writing.execute(statement("update_is_copy"), (1,))


@contextmanager
def _failing(source: Path, doing: str) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise store_error(error, source, doing, executed=False) from error


def _begin_immediate(connection: sqlite3.Connection) -> bool:
    """Keep others from committing; return False while a commit is under way."""
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
            raise
        return False
    return True


def _close_all(connections: dict[Path, sqlite3.Connection]) -> None:
    """Close connections, which ends their transactions."""
    for connection in connections.values():
        connection.close()
    connections.clear()


def copy_changed(source: Path, target: Path, stop: Event, change: str) -> int:
    """Copy a database as `copy_store` does a store, applying the statement ``change`` before anything is written.

    So rows that the statement removes never reach the target's disk. The whole database is in memory meanwhile, or in
    an unnamed temporary file of SQLite.
    """
    part = target.with_name(f"{target.name}.part")

    def step_done(status: int, remaining: int, total: int) -> None:
        if stop.wait(PAUSE_S):
            raise BackupStopped

    try:
        part.unlink(missing_ok=True)
        with (
            closing(connect(source, _CACHE_BYTES, DEFAULTS, pragmas="PRAGMA query_only = ON;")) as reading,
            closing(sqlite3.connect("", isolation_level=None)) as changing,
        ):
            reading.execute("BEGIN")
            reading.execute("SELECT count(*) FROM sqlite_master").fetchall()
            reading.backup(changing, pages=STEP_PAGES, progress=step_done)
            reading.execute("ROLLBACK")
            changing.execute(change)
            ((verdict,),) = changing.execute("PRAGMA quick_check(1)").fetchall()
            if verdict != "ok":
                raise refused(source, f"its copy is damaged, and so is it: {verdict}")
            part.touch(mode=0o600, exist_ok=False)
            with part.open("rb") as file:
                # Unlike a copy of pages, VACUUM leaves out the content of deleted or changed rows.
                changing.execute("VACUUM INTO ?", (str(part),))
                sync_file(file.fileno())
        size_bytes = part.stat().st_size
        publish(part, target)
        sync_directory(target.parent)
    except (sqlite3.Error, OSError) as error:
        raise store_error(error, source, f"copying it to {target}", executed=False) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    return size_bytes


def check_directory(directory: Path) -> None:
    """Make a directory for copies. Raises `StoreError` unless it is new or empty.

    Copies of different times in one directory would not fit together.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise StoreError(
                f"{directory}: is not empty; choose a directory that is, or one that does not exist", executed=False
            )
    except OSError as error:
        raise StoreError(
            f"{directory}: can't be used: {error.strerror}; choose a directory that this user can write to",
            executed=False,
        ) from error


PAGE_ENTRIES = 500
PAGE_BYTES_MAX = 4 << 20


class StoreCopy:
    """A file that `partibus.store.sqlite.backup` has made. Close it, or use it as a context."""

    def __init__(self, path: Path) -> None:
        """Open the copy. Raises `StoreError` if it can't be read or has another format than this version writes."""
        self._path = path
        try:
            uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
            self._connection = sqlite3.connect(uri, uri=True, isolation_level=None)
            try:
                rows = self._connection.execute(statement("select_meta")).fetchall()
            except BaseException:
                self._connection.close()
                raise
        except sqlite3.Error as error:
            raise store_error(error, path, "reading the copy", executed=False) from error
        ((version, _),) = rows
        if version != FORMAT_VERSION:
            self._connection.close()
            raise refused(
                path,
                f"has format version {version}, and only {FORMAT_VERSION} is read from copies; serve a copy of the "
                "backup once, which brings it to that, and make a backup of it",
            )

    def pages(self, partition_row: int, kind: int, from_pos: int) -> Iterator[list[EntryRow]]:
        """Yield the entries of one sub-queue in any state, in pages, from a position on. Raises `StoreError`."""
        subqueue = subqueue_key(partition_row, kind)
        while True:
            try:
                rows = browse(self._connection, subqueue, from_pos, POSITION_MAX + 1, PAGE_ENTRIES, PAGE_BYTES_MAX)
            except sqlite3.Error as error:
                raise store_error(error, self._path, "reading the copy", executed=False) from error
            if not rows:
                return
            yield rows
            from_pos = rows[-1].pos + 1

    def close(self) -> None:
        """Close the copy. Idempotent."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
