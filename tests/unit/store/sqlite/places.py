"""Opening stores of a test's directory."""

import os
import resource
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from partibus.store.sqlite import Owner, SQLiteStore, StoreSettings

SETTINGS = StoreSettings(reserved_bytes=65_536, min_free_bytes=0)
US = Owner("broker-1", "run-1")


def open_store(directory: Path, settings: StoreSettings = SETTINGS, owner: Owner = US) -> SQLiteStore:
    """The store ``store-00`` of a directory."""
    return SQLiteStore.open(directory / "store-00.db", store_id="store-00", owner=owner, settings=settings)


def rewrite(path: Path, sql: str) -> None:
    """Change a closed store behind its back."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(sql)


@contextmanager
def connections(trace: Callable[[str], object] | None = None) -> Iterator[list[sqlite3.Connection]]:
    """List the connections to SQLite that this process opens meanwhile. ``trace`` gets their statements."""
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def noted(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        opened.append(connection)
        connection.set_trace_callback(trace)
        return connection

    with patch.object(sqlite3, "connect", noted):
        yield opened


def open_with_writer(directory: Path) -> tuple[SQLiteStore, sqlite3.Connection]:
    """Return the store ``store-00`` of a directory, and the connection that commits to it: the one that stays open."""
    with connections() as opened:
        store = open_store(directory)
    (writer,) = filter(_is_open, opened)
    return store, writer


def _is_open(connection: sqlite3.Connection) -> bool:
    try:
        return connection.total_changes >= 0
    except sqlite3.ProgrammingError:
        return False


@contextmanager
def unprivileged_directory() -> Iterator[Path]:
    """A directory that belongs to this user, where file modes count: root lays its privileges down meanwhile."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        if os.geteuid() != 0:
            yield directory
            return
        nobody = 65_534
        os.chown(directory, nobody, nobody)
        os.seteuid(nobody)
        try:
            yield directory
        finally:
            os.seteuid(0)


@contextmanager
def files_no_larger_than(size_bytes: int) -> Iterator[None]:
    """Writing past this size fails in this process, as on a broken disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
