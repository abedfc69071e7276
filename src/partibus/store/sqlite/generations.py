"""The generations of a store's file (`partition.protocol.generations`).

A copy of a store's file has numbers of the past. `partibus backup` marks its copies. Other copies (`cp`, `rsync`) are
known by the file itself: the store holds the identity of the file that it was last opened in, and a copy is another
file. A snapshot of the whole file system is the same file again and can't be told.
"""

import fcntl
import os
from sqlite3 import Connection
from struct import Struct
from zlib import crc32

from partibus.partition.protocol.generations import FIRST_NUMBER, Generation, LeftOff, left_off
from partibus.store.generations import next_generation
from partibus.store.sqlite.sql import statement

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


def is_copy(connection: Connection, descriptor: int) -> bool:
    """Tell whether the file is a copy that has not been opened since, and record the file's identity.

    ``descriptor`` is of the file. The caller has begun a transaction.
    """
    ((marked,),) = connection.execute(statement("select_is_copy")).fetchall()
    ((known,),) = connection.execute("PRAGMA application_id").fetchall()
    file = file_identity(descriptor)
    if known != file:
        connection.execute(f"PRAGMA application_id = {file}")
    moved = known not in (0, file) and len(read_generations(connection)) <= MOVES_MAX
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
