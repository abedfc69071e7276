"""Decides whether a store may take messages, and recovers room.

A store is full if the file system has less free than `StoreSettings.min_free_bytes`, if the file is at
`StoreSettings.max_bytes`, or if a commit has failed for lack of room. A full store refuses commits with bodies before
it touches them, so that a reader's completes, which need a little room in the log, find it. The completes also free
room: the store returns freed pages to the file system, and empties the log after each commit.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path

from partibus.store.sqlite.checkpoint import Checkpoints
from partibus.store.sqlite.connection import PAGE_BYTES
from partibus.store.sqlite.reserved_space import ReservedSpace
from partibus.store.sqlite.settings import StoreSettings

_PAGES_RETURNED_AT_ONCE = 64
"""Each page moves through the log: 1 MiB, which the reserved space covers."""


class Room:
    """The room of one store. The caller holds the commit lock."""

    def __init__(
        self, path: Path, settings: StoreSettings, free: Callable[[Path], int], checkpoints: Checkpoints
    ) -> None:
        """Reserve the space of the store at ``path``, or find the disk full.

        ``free`` measures the file system of a directory. Raises `OSError` if the directory can't be written.
        """
        self._checkpoints = checkpoints
        self._reserved_space = ReservedSpace(
            path.with_suffix(".ballast"), settings.reserved_bytes, settings.min_free_bytes, free
        )
        self._max_pages = None if settings.max_bytes is None else settings.max_bytes // PAGE_BYTES
        self._look_every_bytes = max(PAGE_BYTES, settings.min_free_bytes // 16)
        self._unlooked_bytes = 0
        self.is_full = not self._reserved_space.build()

    def admits(self, connection: sqlite3.Connection, size_bytes: int) -> bool:
        """Tell whether a commit that brings messages may be tried. Checks the disk at intervals, not at each commit."""
        if self.is_full:
            return self.look_again(connection)
        self._unlooked_bytes += size_bytes
        if self._unlooked_bytes >= self._look_every_bytes:
            self._unlooked_bytes = 0
            self.is_full = self._reserved_space.disk_is_full()
        return not self.is_full

    def look_again(self, connection: sqlite3.Connection) -> bool:
        """Leave the full state if there is room again."""
        try:
            self.is_full = self._file_is_full(connection) or not self._reserved_space.build()
        except (OSError, sqlite3.Error):
            # An error that prevents checking the file or writing the reserve would fail a commit as well.
            self.is_full = True
        return not self.is_full

    def ran_out(self, connection: sqlite3.Connection) -> bool:
        """Handle a commit that found no room; return True if releasing the reserved space has made some."""
        self.is_full = True
        gave_up = self._reserved_space.give_up()
        self._checkpoints.run_now(connection)
        return gave_up

    def make_room(self, connection: sqlite3.Connection) -> None:
        """Return free pages to the file system and let the log start over, after a commit to a full store."""
        if self._reserved_space.disk_is_full():
            try:
                # As a script: each step returns one page, and `execute` takes only the first step of it.
                connection.executescript(f"PRAGMA incremental_vacuum({_PAGES_RETURNED_AT_ONCE})")
            except sqlite3.Error as error:
                self._checkpoints.failed(error)
        self._checkpoints.run_now(connection)

    def _file_is_full(self, connection: sqlite3.Connection) -> bool:
        if self._max_pages is None:
            return False
        ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
        ((free_pages,),) = connection.execute("PRAGMA freelist_count").fetchall()
        needed = min(_PAGES_RETURNED_AT_ONCE, self._max_pages // 8)
        return bool(self._max_pages - pages + free_pages < needed)
