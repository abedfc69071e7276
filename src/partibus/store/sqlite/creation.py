"""Makes an empty store file. It appears under its name complete and synced, or not at all."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from partibus import durable
from partibus.store.generations import first_generation
from partibus.store.sqlite.connection import PAGE_BYTES
from partibus.store.sqlite.sql import FORMAT_VERSION, schema, statement


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
