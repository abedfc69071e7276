"""The generations of a store's schema (`partition.protocol.generations`).

A restored dump has tables with other object ids than the dumped ones. So the recorded place where its tables were made
tells a store that it was restored. A copy of the whole server has the same ids. A server that was promoted, or
recovered to a point in time, begins another timeline, which is recorded with the place. A broker that cannot prove that
no acknowledged commit is missing begins a generation there (ADR 0024).
"""

from collections.abc import Sequence
from typing import Any

import psycopg

from partibus.partition.protocol.generations import Generation
from partibus.store.generations import first_generation, next_generation
from partibus.store.postgresql.connection import Connection
from partibus.store.postgresql.sql import statement


def timeline_of(connection: Connection) -> str:
    """Return the server's timeline, as the names of its log files begin; empty where the server does not tell it."""
    try:
        ((timeline,),) = _rows(connection, "timeline")
    except psycopg.DatabaseError:
        if connection.closed:
            raise
        return ""
    return str(timeline)


def go_by_home(
    connection: Connection, highest_ms: int, timeline: str, *, is_proven: bool, begin: bool
) -> tuple[Generation, ...]:
    """Begin a generation if the store may have gone back in time, in the caller's transaction.

    Returns all generations in the order of their numbers. ``highest_ms``: the time of the last commit. ``timeline``:
    the server's present one. ``is_proven``: the store has every acknowledged commit. ``begin``: it surely has not, or
    that can't be told. Raises `NoNumbersLeft`.
    """
    ((home, place),) = _rows(connection, "home")
    here = f"{place}/{timeline}"
    made, _, before = home.rpartition("/") if home.count("/") > 1 else (home, "", "")
    generations = read_generations(connection)
    was_promoted = bool(before and timeline) and before != timeline
    if not generations:
        generations = (first_generation(),)
        _insert(connection, generations[0], highest_ms)
    elif made != place or begin or (was_promoted and not is_proven):
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
