"""Whose a store is, whatever kind of store it is (D19)."""

from typing import NamedTuple


class Owner(NamedTuple):
    """One run of one broker."""

    broker: str
    incarnation: str
    """Never used again: another run of the same broker has another."""
