"""The generations of a store's schema (`partition.protocol.generations`).

A restored dump has tables with other object ids than the dumped ones. So the recorded place where its tables were made
tells a store that it was restored. A copy of the whole server has the same ids; its last commit then shows a broker
that remembers a later one that the copy went back in time.
"""

from collections.abc import Sequence
from typing import Any

from partibus.partition.protocol.generations import Generation
from partibus.store.generations import first_generation, next_generation
from partibus.store.postgresql.connection import Connection
from partibus.store.postgresql.sql import statement


def go_by_home(connection: Connection, highest_ms: int) -> tuple[Generation, ...]:
    """Begin a generation if the tables were restored from a dump, in the caller's transaction.

    Returns all generations in the order of their numbers. ``highest_ms``: the time of the last commit. Raises
    `NoNumbersLeft`.
    """
    ((home, here),) = _rows(connection, "home")
    generations = read_generations(connection)
    if not generations:
        generations = (first_generation(),)
        _insert(connection, generations[0], highest_ms)
    elif home != here:
        generations += (begin_generation(connection, 0, highest_ms),)
    if home != here:
        connection.execute(statement("update_home"), {"home": here})
    return generations


def begin_generation(connection: Connection, above: int, from_ms: int) -> Generation:
    """Begin a generation, in the caller's transaction. Raises `NoNumbersLeft`.

    ``from_ms`` is the time of the last commit before.
    """
    ((highest,),) = _rows(connection, "highest_counter")
    generation = next_generation(max(highest, read_generations(connection)[-1].first), above)
    connection.execute(statement("insert_left_off"), {"first": generation.first})
    connection.execute(statement("raise_counters"), {"first": generation.first})
    _insert(connection, generation, from_ms)
    return generation


def read_generations(connection: Connection) -> tuple[Generation, ...]:
    """Read the generations in the order of their numbers."""
    return tuple(map(Generation._make, _rows(connection, "generations")))


def _insert(connection: Connection, generation: Generation, from_ms: int) -> None:
    connection.execute(statement("insert_generation"), generation._asdict() | {"from_ms": from_ms})


def _rows(connection: Connection, name: str) -> Sequence[tuple[Any, ...]]:
    return connection.execute(statement(name)).fetchall()
