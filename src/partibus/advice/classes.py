"""The classes of rates and of numbers of clients by which the guidance selects a scenario (row C27)."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple


class Level(StrEnum):
    """A class of a rate or of a number of clients."""

    SMALL = "small"
    MEDIUM = "medium"
    HIGH = "high"
    """The class of a rate."""
    LARGE = "large"
    """The class of a number of clients."""


class Band(NamedTuple):
    """One class and its bounds."""

    level: Level
    least: float
    """The smallest value of the class."""
    below: float
    """The smallest value above the class."""


RATES: Final = (
    Band(Level.SMALL, 0, 1),
    Band(Level.MEDIUM, 1, 100),
    Band(Level.HIGH, 100, float("inf")),
)
"""Messages per second of one entity."""
CLIENTS: Final = (
    Band(Level.SMALL, 0, 6),
    Band(Level.MEDIUM, 6, 21),
    Band(Level.LARGE, 21, float("inf")),
)
"""Senders or receivers of one entity: at most 5, more than 5 and at most 20, more than 20."""


def rate_class(per_s: float) -> Level:
    """Return the class of a rate in messages per second. Raises ValueError for a negative rate."""
    return _level(RATES, per_s, "a rate in messages per second")


def client_class(clients: int) -> Level:
    """Return the class of a number of senders or receivers. Raises ValueError for a negative number."""
    return _level(CLIENTS, clients, "a number of clients")


def _level(bands: Sequence[Band], value: float, what: str) -> Level:
    for band in bands:
        if band.least <= value < band.below:
            return band.level
    raise ValueError(f"{what} is {value}, it can't be below 0")
