"""Ownership of a store (D19): an operating-system lock on a file beside it, and a row in the store itself.

The lock keeps two processes of one machine apart from the start. The row is the fence: if the lock fails (a network
file system, a deleted lock file), the later opener raises the epoch and the earlier one's next commit is refused.

The owner also decides whether the store begins a generation (`partition.protocol.generations`). A copy of a store's
file has numbers of the past. `partibus backup` marks its copies. Other copies (`cp`, `rsync`) are known by the file
itself: the store holds the identity of the file that it was last opened in, and a copy is another file. `cp` over the
existing file keeps its identity. So the lock file notes the last commit, and the time at which the file was written
last; a copy ends earlier, or was written later. The time of the inode's last change would tell more copies, but it also
changes with each ``chown``, as containers run it at each start. A snapshot of the whole file system is the same file
again and can't be told.
"""

import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path
from sqlite3 import Connection
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from partibus.partition.protocol.generations import FIRST_NUMBER, Generation, LeftOff, left_off
from partibus.partition.protocol.ports import StoreError, StoreFenced
from partibus.store.generations import Owner as Owner
from partibus.store.generations import next_generation
from partibus.store.sqlite.sql import statement

_OPEN = b"open\n"
"""The end of the text while the store's log is in use."""
_NOTE = re.compile(rb"^epoch (\d{1,18}), commit (\d{1,18}), written (\d{1,20})\n", re.MULTILINE)


class Note(NamedTuple):
    """The state of a store at a moment, as its lock file notes it."""

    epoch: int
    commit: int
    written_ns: int = 0
    """The time at which the file of a closed store was written last; 0: the store was not closed."""

    def is_before(self, path: Path) -> bool:
        """Tell whether the file has been written since it was closed."""
        return 0 < self.written_ns < path.stat().st_mtime_ns

    def __bytes__(self) -> bytes:
        return b"epoch %d, commit %d, written %d\n" % self


_NO_NOTE = Note(0, 0)
"""The note of a lock file without one: another version wrote it, or it is new."""


class LockFile:
    """An exclusive lock that the system releases when the process ends. The file stays.

    Its text names the holder, notes the state of the store, and tells whether a holder has ended without closing the
    store (`is_left_open`).
    """

    def __init__(self, path: Path, holder: str) -> None:
        """Take the lock; ``holder`` is for people. Raises `StoreError` if another process has it."""
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreError(
                f"{path}: can't open the lock file: {error.strerror}; make the directory exist and writable for this "
                "user, then start again",
                executed=False,
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            text = os.pread(self._descriptor, 500, 0).decode(errors="replace").partition("\n")[0]
            text = text or "an unknown process"
            os.close(self._descriptor)
            raise StoreError(
                f"{path}: in use by {text}; stop that process or choose another data directory", executed=False
            ) from error
        self._text = f"process {os.getpid()} ({holder})\n".encode()
        former = os.pread(self._descriptor, 500, 0)
        self.is_left_open = former.endswith(_OPEN)
        """Whether the last holder that marked the store as open has not marked it as closed."""
        found = _NOTE.search(former)
        self.note = Note(*map(int, found.groups())) if found else _NO_NOTE
        """The last note of the former holders."""
        self._write(self.note, _OPEN if self.is_left_open else b"")

    def mark_open(self, note: Note) -> None:
        """Note that the store's log is in use from now on."""
        self._write(note, _OPEN)

    def mark_closed(self, note: Note) -> None:
        """Note, durably, that all of the log is in the database."""
        self._write(note, b"")
        with suppress(OSError):
            os.fsync(self._descriptor)

    def _write(self, note: Note, end: bytes) -> None:
        text = self._text + (b"" if note is _NO_NOTE else bytes(note)) + end
        # On a full disk the lock still holds; only the text is missing.
        with suppress(OSError):
            os.pwrite(self._descriptor, text, 0)
            os.ftruncate(self._descriptor, len(text))

    def release(self) -> None:
        """Release the lock. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Ownership:
    """The owner row as this process last wrote it. Calls run inside a transaction of the writer."""

    def __init__(self, connection: Connection, owner: Owner, path: Path) -> None:
        """Take the store over: raise the epoch and so fence off the previous owner."""
        self._path = path
        self._incarnation = owner.incarnation
        self.epoch: int
        """The number of take-overs, this one included."""
        self.last_commit: int
        """The number of the last commit that is durable. The writer raises it."""
        self.highest_ms: int
        ((self.epoch, self.last_commit, self.highest_ms),) = connection.execute(
            statement("take_ownership"), owner
        ).fetchall()

    def confirm(self, connection: Connection, now_ms: int) -> None:
        """Confirm the ownership, as the first statement of each commit. Raises `StoreFenced` after a take-over.

        ``now_ms``: see `partition.protocol.ports.Writes`.
        """
        touched = connection.execute(
            statement("confirm_ownership"), (self.last_commit + 1, now_ms, self.epoch, self._incarnation)
        ).rowcount
        if touched != 1:
            broker, incarnation, epoch = connection.execute(statement("select_owner")).fetchone()
            raise StoreFenced(
                f"{self._path}: taken over by broker {broker!r}, incarnation {incarnation!r}, epoch {epoch} "
                f"(ours was {self.epoch}); this broker must give up the store and send its clients elsewhere"
            )


_GET_INODE_GENERATION = 0x80087601
"""The request `FS_IOC_GETVERSION` of Linux: a random number that an inode gets with each use."""
_INODE_GENERATION = Struct("@l")
MOVES_MAX = 32
"""The number of generations after which another file begins no further one: there are file systems that number
their files anew whenever they are mounted, and a store has room for some 160 generations."""


def read_generations(connection: Connection) -> tuple[Generation, ...]:
    """Read the generations in the order of their numbers."""
    return tuple(map(Generation._make, connection.execute(statement("select_generations")).fetchall()))


def begin_generation(connection: Connection, above: int, from_ms: int) -> Generation:
    """Begin a generation, in the caller's transaction, and clear the file's mark of a copy. Raises `NoNumbersLeft`.

    ``from_ms`` is the time of the last commit before.
    """
    ((highest,),) = connection.execute(statement("select_highest_counter")).fetchall()
    before = read_generations(connection)[-1]
    generation = next_generation(max(highest or FIRST_NUMBER, before.first), above)
    connection.execute(statement("insert_left_off"), (generation.first,))
    connection.execute(statement("raise_counters"), (generation.first,))
    connection.execute(statement("insert_generation"), (*generation, from_ms))
    connection.execute(statement("update_is_copy"), (0,))
    return generation


def is_copy(connection: Connection, descriptor: int, *, is_written: bool) -> bool:
    """Tell whether the file is a copy that has not been opened since, and record the file's identity.

    ``descriptor`` is of the file. ``is_written``: the file has been written since it was closed. The caller has begun a
    transaction.
    """
    ((marked,),) = connection.execute(statement("select_is_copy")).fetchall()
    ((known,),) = connection.execute("PRAGMA application_id").fetchall()
    file = file_identity(descriptor)
    if known != file:
        connection.execute(f"PRAGMA application_id = {file}")
    moved = (is_written or known not in (0, file)) and len(read_generations(connection)) <= MOVES_MAX
    return bool(marked) or moved


def file_identity(descriptor: int) -> int:
    """Return 31 bits that tell an open file from all others of its file system, also from former ones; never 0."""
    try:
        version = fcntl.ioctl(descriptor, _GET_INODE_GENERATION, bytes(_INODE_GENERATION.size))
    except OSError:  # the file system has none
        version = b""
    # The device is left out: its number may change when the machine restarts.
    return crc32(b"%d/" % os.fstat(descriptor).st_ino + version) >> 1 | 1


def read_left_off(
    connection: Connection, generations: tuple[Generation, ...], partition_row: int
) -> tuple[LeftOff, ...]:
    """Read the numbers that a partition has passed over."""
    if len(generations) == 1:
        return ()
    rows = connection.execute(statement("select_left_off"), (partition_row,)).fetchall()
    return left_off(generations, list(map(LeftOff._make, rows)))
