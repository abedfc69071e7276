"""Keeps a store able to commit completes when the disk is full.

A file of fixed size beside the store holds disk space back. When a commit finds no room, the space is given up, commits
that bring messages are refused from then on, and those that only free room go on in what the ballast left. When enough
room is back, the ballast is rebuilt first and messages are taken again.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from partibus.store.sqlite.failure import NO_ROOM


def free_bytes(directory: Path) -> int:
    """Space that this user may still fill on the directory's file system."""
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


class Ballast:
    """The space held back for one store."""

    def __init__(self, path: Path, size_bytes: int, min_free_bytes: int, free: Callable[[Path], int]) -> None:
        """``path``: of the ballast file; ``min_free_bytes``: less on the file system counts as full; ``free``: measures
        the file system of a directory."""
        self._path = path
        self._size_bytes = size_bytes
        self._min_free_bytes = min_free_bytes
        self._free = free

    @property
    def in_place(self) -> bool:
        """Whether the space is held back now."""
        try:
            return self._path.stat().st_size >= self._size_bytes
        except FileNotFoundError:
            return self._size_bytes == 0

    def disk_is_full(self) -> bool:
        """Whether it is time to refuse messages, before a commit fails."""
        return self._free(self._path.parent) < self._min_free_bytes

    def build(self) -> bool:
        """Hold the space back; False when the disk is full. Raises `OSError` for anything else that stops it."""
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
        """Return the space to the file system; False when it was gone already."""
        if self._size_bytes == 0 or not self.in_place:
            return False
        self._path.unlink()
        return True


def _allocate(descriptor: int, size_bytes: int) -> None:
    if sys.platform == "darwin":
        # No posix_fallocate there.
        written = 0
        while written < size_bytes:
            written += os.pwrite(descriptor, bytes(size_bytes - written), written)
    else:
        os.posix_fallocate(descriptor, 0, size_bytes)
