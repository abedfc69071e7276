"""Whether a store may take messages, and how it gets room back.

Full means: the file system has less free than `StoreSettings.min_free_bytes`, the file is at `StoreSettings.max_bytes`,
or a commit has failed for lack of room. A full store refuses commits with bodies before it touches them, so that a
reader's completes, which need a little room in the log, find it. They also give room back: pages freed in the file are
returned to the file system, and the log is emptied after each commit.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path

from partibus.store.sqlite.ballast import Ballast
from partibus.store.sqlite.checkpoint import Checkpoints
from partibus.store.sqlite.connection import PAGE_BYTES
from partibus.store.sqlite.settings import StoreSettings

_PAGES_RETURNED_AT_ONCE = 64
"""Each is a page moved through the log: 1 MiB, what the ballast has left."""


class Room:
    """The room of one store. Calls are made by whoever holds the commit lock."""

    def __init__(
        self, path: Path, settings: StoreSettings, free: Callable[[Path], int], checkpoints: Checkpoints
    ) -> None:
        """Build the ballast of the store at ``path``, or find it full; ``free`` measures the file system of a
        directory. Raises `OSError` when the directory can't be written."""
        self._checkpoints = checkpoints
        self._ballast = Ballast(path.with_suffix(".ballast"), settings.ballast_bytes, settings.min_free_bytes, free)
        self._max_pages = None if settings.max_bytes is None else settings.max_bytes // PAGE_BYTES
        self._look_every_bytes = max(PAGE_BYTES, settings.min_free_bytes // 16)
        self._unlooked_bytes = 0
        self.is_full = not self._ballast.build()

    def admits(self, connection: sqlite3.Connection, size_bytes: int) -> bool:
        """Whether a commit that brings messages may be tried. Looks at the disk now and then, not at each commit."""
        if self.is_full:
            return self.look_again(connection)
        self._unlooked_bytes += size_bytes
        if self._unlooked_bytes >= self._look_every_bytes:
            self._unlooked_bytes = 0
            self.is_full = self._ballast.disk_is_full()
        return not self.is_full

    def look_again(self, connection: sqlite3.Connection) -> bool:
        """Leave the full state if there is room again."""
        try:
            self.is_full = self._file_is_full(connection) or not self._ballast.build()
        except (OSError, sqlite3.Error):
            # Whatever keeps the file from being asked or the ballast from being written would fail a commit as well.
            self.is_full = True
        return not self.is_full

    def ran_out(self, connection: sqlite3.Connection) -> bool:
        """A commit found no room. True if giving up the ballast has made some."""
        self.is_full = True
        gave_up = self._ballast.give_up()
        self._checkpoints.run_now(connection)
        return gave_up

    def make_room(self, connection: sqlite3.Connection) -> None:
        """After a commit to a full store: return free pages to the file system and let the log start over."""
        if self._ballast.disk_is_full():
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
