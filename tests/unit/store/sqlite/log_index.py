"""SQLite's shared memory about a log (https://sqlite.org/walformat.html), for tests of checkpoints."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class LogIndex:
    """The shared memory of one database."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @property
    def frames(self) -> int:
        """Frames of the log that belong to commits."""
        return self._number(16)

    @property
    def copied(self) -> int:
        """Frames that checkpoints have copied."""
        return self._number(96)

    @property
    def may_start_over(self) -> bool:
        """Whether the next commit may let the log start over: all of it has been copied."""
        return 0 < self.frames == self.copied

    def _number(self, at: int) -> int:
        (number,) = struct.unpack("=I", os.pread(self._descriptor, 4, at))
        return int(number)


@contextmanager
def log_index(database: Path) -> Iterator[LogIndex]:
    """The shared memory of a database. Leave it after the database was closed: to close a file ends the locks that the
    process has on it."""
    descriptor = os.open(database.with_name(f"{database.name}-shm"), os.O_RDONLY)
    try:
        yield LogIndex(descriptor)
    finally:
        os.close(descriptor)
