"""Copies of SQLite files that are in use: whole, checked, and under their names only then.

The source is read in one read transaction, so the copy is the state at one moment, its last commit; commits go on
meanwhile, and the write-ahead log grows until the copy is done. The copy is made in steps with a pause after each, lest
it takes the disk from the commits. It is written beside its place, checked and synced; whatever ends the process before
leaves a ``.part`` that nobody takes for a copy.

Only the process that owns a store commits to it, but any process of the machine may copy it.
"""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from threading import Event

from partibus.partition.ports import StoreError
from partibus.store.sqlite.connection import PAGE_BYTES, connect
from partibus.store.sqlite.creation import publish, sync_directory, sync_file
from partibus.store.sqlite.failure import refused, store_error
from partibus.store.sqlite.settings import DEFAULTS
from partibus.store.sqlite.sql import statement

STEP_PAGES = 128
"""2 MiB: what a disk writes in the time of a few commits."""
PAUSE_S = 0.002
_CACHE_BYTES = 8 * PAGE_BYTES


class BackupStopped(Exception):
    """Somebody ended it before it was whole."""


def copy_store(source: Path, target: Path, stop: Event) -> int:
    """Copy a store as `copy_database` does. The copy says that it is one, so that it begins a generation when it is
    opened."""
    return copy_database(source, target, stop, statement("update_is_copy"), (1,))


def copy_database(
    source: Path, target: Path, stop: Event, change: str | None = None, values: tuple[int, ...] = ()
) -> int:
    """Copy a database to a name that does not exist yet; blocks. The size of the copy in bytes. ``change``: a
    statement that is run in the copy, with ``values``.

    Raises `StoreError`, and `BackupStopped` soon after ``stop`` is set; then there is no ``target``.
    """
    part = target.with_name(f"{target.name}.part")
    try:
        part.unlink(missing_ok=True)
        _copy(source, part, stop, change, values)
        size_bytes = part.stat().st_size
        sync_file(part)
        publish(part, target)
        sync_directory(target.parent)
    except (sqlite3.Error, OSError) as error:
        raise store_error(error, source, f"copying it to {target}", executed=False) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    return size_bytes


def _copy(source: Path, part: Path, stop: Event, change: str | None, values: tuple[int, ...]) -> None:
    def step_done(status: int, remaining: int, total: int) -> None:
        if stop.wait(PAUSE_S):
            raise BackupStopped

    # Made first, for its owner only: it holds messages, or the names of entities.
    part.touch(mode=0o600, exist_ok=False)
    with (
        closing(connect(source, _CACHE_BYTES, DEFAULTS, mode="ro")) as reading,
        closing(sqlite3.connect(part, isolation_level=None)) as writing,
    ):
        writing.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;")
        # The transaction begins with what it reads first. Without it each commit would make the copy begin again.
        reading.execute("BEGIN")
        reading.execute("SELECT count(*) FROM sqlite_master").fetchall()
        reading.backup(writing, pages=STEP_PAGES, progress=step_done)
        reading.execute("ROLLBACK")
        ((verdict,),) = writing.execute("PRAGMA quick_check(1)").fetchall()
        if verdict != "ok":
            raise refused(source, f"its copy is damaged, and so is it: {verdict}")
        if change is not None:
            writing.execute(change, values)


def copy_changed(source: Path, target: Path, stop: Event, change: str) -> int:
    """Copy a database as `copy_database` does, with ``change`` made to the copy before anything of it is written: what
    the statement removes never is on the disk that the copy is for. The whole database is in memory meanwhile, or in a
    file of SQLite's own that has no name."""
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
            # Unlike a copy of pages this leaves out what rows held that are deleted or changed.
            changing.execute("VACUUM INTO ?", (str(part),))
        size_bytes = part.stat().st_size
        sync_file(part)
        publish(part, target)
        sync_directory(target.parent)
    except (sqlite3.Error, OSError) as error:
        raise store_error(error, source, f"copying it to {target}", executed=False) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    return size_bytes


def check_directory(directory: Path) -> None:
    """Make a directory for copies. Raises `StoreError` unless it is new or empty: copies of different times in one
    directory would belong to nothing."""
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
