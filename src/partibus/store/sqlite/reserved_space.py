"""Room on the disk: reserved space keeps a store able to commit completes when the disk is full.

A file of fixed size beside the store reserves disk space. When a commit finds no room, the store releases the space.
From then on it refuses commits that bring messages; commits that only free room use the released space. When enough
room is back, the store first rebuilds the reserve and then accepts messages again.

`Room` decides whether a store may take messages, and recovers room. A store is full if the file system has less free
than `StoreSettings.min_free_bytes`, if the file is at `StoreSettings.max_bytes`, or if a commit has failed for lack of
room. A full store refuses commits with bodies before it touches them, so that a reader's completes, which need a little
room in the log, find it. The completes also free room: the store returns freed pages to the file system, and empties
the log after each commit.
"""

import os
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

from partibus.store.sqlite.checkpoint import Checkpoints
from partibus.store.sqlite.sql import NO_ROOM, PAGE_BYTES, StoreSettings


def free_bytes(directory: Path) -> int:
    """Return the bytes that this user may still write to the directory's file system."""
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


class ReservedSpace:
    """The reserved space of one store."""

    def __init__(self, path: Path, size_bytes: int, min_free_bytes: int, free: Callable[[Path], int]) -> None:
        """Prepare the reserve.

        ``path`` is that of the ballast file. With less than ``min_free_bytes`` on the file system the disk counts as
        full. ``free`` measures the file system of a directory.
        """
        self._path = path
        self._size_bytes = size_bytes
        self._min_free_bytes = min_free_bytes
        self._free = free

    @property
    def in_place(self) -> bool:
        """Whether the space is reserved now."""
        try:
            return self._path.stat().st_size >= self._size_bytes
        except FileNotFoundError:
            return self._size_bytes == 0

    def disk_is_full(self) -> bool:
        """Tell whether to refuse messages, before a commit fails."""
        return self._free(self._path.parent) < self._min_free_bytes

    def build(self) -> bool:
        """Reserve the space; return False if the disk is full. Raises `OSError` for any other failure."""
        if self.in_place:
            return not self.disk_is_full()
        if self._free(self._path.parent) < self._min_free_bytes + self._size_bytes:
            return False
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _allocate(descriptor, self._size_bytes)
        except OSError as error:
            os.ftruncate(descriptor, 0)
            if error.errno in NO_ROOM:
                return False
            raise
        finally:
            os.close(descriptor)
        return True

    def give_up(self) -> bool:
        """Release the space to the file system; return False if it was released already."""
        if self._size_bytes == 0 or not self.in_place:
            return False
        self._path.unlink()
        return True


def _allocate(descriptor: int, size_bytes: int) -> None:
    if sys.platform == "darwin":
        # This platform has no posix_fallocate.
        written = 0
        while written < size_bytes:
            written += os.pwrite(descriptor, bytes(size_bytes - written), written)
    else:
        os.posix_fallocate(descriptor, 0, size_bytes)


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
