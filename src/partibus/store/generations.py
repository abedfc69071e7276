"""The owner of a store (D19), and new generations (`partition.protocol.generations`)."""

import secrets
from collections.abc import Callable
from typing import NamedTuple

from partibus.partition.protocol.generations import FIRST_NUMBER, ID_BITS, Generation
from partibus.partition.protocol.keys import NUMBERS_END

Draw = Callable[[int], int]
"""A function that draws a number below the given one."""

GAP = 1 << 30
"""The least number of sequence numbers skipped when a generation begins: more than a partition can have given out since
the copy. At 1,000 messages a second in one partition they last for 12 days.
"""
LEAST_LEFT = 1 << 33
"""The least number of sequence numbers in a new generation."""


class NoNumbersLeft(ValueError):
    """The store can't begin another generation."""


def first_generation() -> Generation:
    """Draw the first generation of a new store."""
    return Generation(FIRST_NUMBER, _draw_id(secrets.randbelow))


def next_generation(highest: int, above: int = 0, draw: Draw = secrets.randbelow) -> Generation:
    """Draw a generation above all known numbers. Raises `NoNumbersLeft`.

    ``highest`` is the highest counter of any partition of the store; ``above`` is a number that is known to have been
    given out elsewhere. The gap is random as well: two restores of one copy are unlikely to give out the same numbers
    to readers that know nothing of generations.
    """
    first = max(highest, above + 1, FIRST_NUMBER) + GAP + draw(GAP)
    if first > NUMBERS_END - LEAST_LEFT:
        raise NoNumbersLeft(
            f"a new generation would begin with number {first}, and partitions have numbers up to {NUMBERS_END}; move "
            "its messages to new entities (partibus restore reads them from a backup), and serve without it"
        )
    return Generation(first, _draw_id(draw))


def _draw_id(draw: Draw) -> int:
    """Draw a unique generation id; never 0."""
    return 1 + draw((1 << ID_BITS) - 1)


class Owner(NamedTuple):
    """One run of one broker."""

    broker: str
    incarnation: str
    """A unique name of this run: another run of the same broker has another."""
