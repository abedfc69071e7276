"""Makes store files, and migrates those of an older format (D13).

A new file appears under its name complete and synced, or not at all. A migration first makes a copy, which stays beside
the file. An interrupted migration leaves either the old format, to be migrated at the next start, or the new one: the
copy gets its name when it is complete and synced, and the change is one transaction. An existing copy is replaced: the
file is what counts, and an older partibus may have gone on with it after the copy was made.
"""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from partibus import durable
from partibus.partition.protocol.ports import StoreError
from partibus.store.generations import first_generation
from partibus.store.sqlite.checkpoint import checkpoint
from partibus.store.sqlite.sql import (
    FORMAT_VERSION,
    MIB,
    NO_ROOM,
    PAGE_BYTES,
    StoreSettings,
    connect,
    connect_reader,
    migration,
    refused,
    schema,
    statement,
    store_error,
)


def empty_store() -> bytes:
    """Return the content of a store without an id.

    `prepare` makes any number of stores of it, so the schema runs once for all of them.
    """
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.executescript(
            f"PRAGMA page_size = {PAGE_BYTES}; PRAGMA auto_vacuum = INCREMENTAL; BEGIN; {schema()}"
        )
        connection.execute(statement("insert_owner"))
        connection.execute("COMMIT")
        return connection.serialize()


def prepare(path: Path, store_id: str, created_ms: int, empty: bytes) -> Path:
    """Write a new store beside ``path`` and sync it; the caller renames it. Raises `sqlite3.Error`, `OSError`.

    ``empty`` is the result of `empty_store`.
    """
    unborn = path.with_name(f"{path.name}.new")
    for left in ("", "-wal", "-shm"):
        # A process that was killed here left these: SQLite would treat a log as later than the content of the file.
        unborn.with_name(f"{unborn.name}{left}").unlink(missing_ok=True)
    unborn.touch(mode=0o600)  # SQLite gives the files that it puts beside a database the mode of the database
    with unborn.open("r+b") as file:
        file.write(empty)
        file.flush()
        with closing(sqlite3.connect(unborn, isolation_level=None)) as connection:
            # The file has no readers before it is complete, so it needs no journal and no sync until the end.
            connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;")
            connection.execute(statement("insert_meta"), (FORMAT_VERSION, store_id, created_ms))
            connection.execute(statement("insert_generation"), (*first_generation(), created_ms))
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
        sync_file(file.fileno())
    return unborn


def publish(unborn: Path, path: Path) -> None:
    """Give a prepared store its name. Durable after `sync_directory`."""
    unborn.rename(path)


def sync_directory(directory: Path) -> None:
    """Make new names in a directory durable. Raises `OSError`."""
    durable.sync_directory(directory)


def sync_file(descriptor: int) -> None:
    """Make what was written to a file durable. Raises `OSError`.

    Open the descriptor before the file is written to: a page that could not be written is surely reported only to
    descriptors that were open then.
    """
    os.fsync(descriptor)


_ENTRY_BYTES = 160
"""The room that an entry may need beside the copy: its row and index entry, in the log and then in the file."""


def copy_path(path: Path) -> Path:
    """Return the path of a store's pre-migration copy; no store has this name."""
    return path.with_name(f"{path.stem}.before-format-{FORMAT_VERSION}.copy")


def migrate(path: Path, version: int, settings: StoreSettings, free: Callable[[Path], int]) -> None:
    """Migrate a file of format ``version`` to `FORMAT_VERSION`. The caller holds the store's lock.

    ``free`` measures the room on the file system of a directory. Raises `StoreError`; then the file is unchanged.
    """
    # Sorting for an index goes through a file: a store may need that much memory only this once.
    pragmas = "PRAGMA synchronous = FULL; PRAGMA temp_store = FILE;"
    try:
        with closing(connect(path, settings.writer_cache_bytes, settings, pragmas=pragmas)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                _check_room(connection, path, version, free)
                _copy(path, settings)
                for following in range(version, FORMAT_VERSION):
                    for change in migration(following):
                        connection.execute(change)
                connection.execute(statement("update_format"), (FORMAT_VERSION,))
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            with suppress(sqlite3.Error):
                # Not needed for durability: without it the log would stay as large as all indexes until much has been
                # committed.
                checkpoint(connection, "TRUNCATE")
    except (sqlite3.Error, OSError) as error:
        if _is_lack_of_room(error):
            raise _no_room(path, version, "more than there is") from error
        doing = f"the migration from format version {version} to {FORMAT_VERSION}"
        raise store_error(error, path, doing, executed=False) from error


def _check_room(connection: sqlite3.Connection, path: Path, version: int, free: Callable[[Path], int]) -> None:
    ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
    ((page_bytes,),) = connection.execute("PRAGMA page_size").fetchall()
    ((entries,),) = connection.execute(statement("count_entries")).fetchall()
    needed, there = pages * page_bytes + entries * _ENTRY_BYTES + MIB, free(path.parent)
    if there < needed:
        raise _no_room(path, version, f"{-(-needed // MIB)} MiB, of which {there // MIB} MiB are there")


def _copy(path: Path, settings: StoreSettings) -> None:
    """Copy the store by SQLite's own backup, which includes the content of the log."""
    kept = copy_path(path)
    unborn = kept.with_name(f"{kept.name}.new")
    unborn.unlink(missing_ok=True)
    try:
        unborn.touch(mode=0o600, exist_ok=False)
        with unborn.open("rb") as file:
            with closing(connect_reader(path, settings)) as source, closing(sqlite3.connect(unborn)) as target:
                target.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;")
                source.backup(target)
            sync_file(file.fileno())
    except BaseException:
        with suppress(OSError):
            unborn.unlink(missing_ok=True)
        raise
    publish(unborn, kept)
    sync_directory(path.parent)


def _is_lack_of_room(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno in NO_ROOM
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL


def _no_room(path: Path, version: int, how_much: str) -> StoreError:
    return refused(
        path,
        f"has format version {version}; to bring it to {FORMAT_VERSION}, a copy of it is kept as "
        f"{copy_path(path).name}, and this takes {how_much}; free space on the disk, then start again: nothing has "
        "changed",
    )
