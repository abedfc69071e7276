"""Reserved space: keeps a store able to commit completes when the disk is full.

A file of fixed size beside the store reserves disk space. When a commit finds no room, the store releases the space.
From then on it refuses commits that bring messages; commits that only free room use the released space. When enough
room is back, the store first rebuilds the reserve and then accepts messages again.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from partibus.store.sqlite.failure import NO_ROOM


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
