"""The generations of a store's file (`partition.protocol.generations`)."""

from sqlite3 import Connection

from partibus.partition.protocol.generations import FIRST_NUMBER, Generation, LeftOff, left_off
from partibus.store.generations import next_generation
from partibus.store.sqlite.sql import statement


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


def is_copy(connection: Connection) -> bool:
    """Tell whether the file is a backup's copy that has not been opened since."""
    ((found,),) = connection.execute(statement("select_is_copy")).fetchall()
    return bool(found)


def read_left_off(
    connection: Connection, generations: tuple[Generation, ...], partition_row: int
) -> tuple[LeftOff, ...]:
    """Read the numbers that a partition has passed over."""
    if len(generations) == 1:
        return ()
    rows = connection.execute(statement("select_left_off"), (partition_row,)).fetchall()
    return left_off(generations, list(map(LeftOff._make, rows)))
