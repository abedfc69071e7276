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


RATE_MAX_PER_S: Final = 1_000_000_000
CLIENTS_MAX: Final = 1_000_000
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
    """Return the class of a rate in messages per second. Raises ValueError for a rate that no entity has."""
    return _level(RATES, check_number("rate_per_s", per_s, 0, RATE_MAX_PER_S))


def client_class(clients: int) -> Level:
    """Return the class of a number of senders or receivers. Raises ValueError for a number that no entity has."""
    return _level(CLIENTS, check_count("the number of clients", clients, 0, CLIENTS_MAX))


def check_number(name: str, value: float, least: float, most: float, next_step: str = "") -> float:
    """Return a number in its range. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        then = f"; {next_step}" if next_step else ""
        raise ValueError(f"{name} is {value!r}, it must be {least:,} to {most:,}{then}")
    return value


def check_count(name: str, value: int, least: int, most: int, next_step: str = "") -> int:
    """Return a whole number in its range. Raises ValueError."""
    if not isinstance(value, int):
        raise ValueError(f"{name} is {value!r}, it must be a whole number, {least:,} to {most:,}")
    check_number(name, value, least, most, next_step)
    return value


def _level(bands: Sequence[Band], value: float) -> Level:
    for band in bands:
        if band.least <= value < band.below:
            return band.level
    raise AssertionError("the bands cover all numbers")
