"""The owner of a store, for any kind of store (D19)."""

from typing import NamedTuple


class Owner(NamedTuple):
    """One run of one broker."""

    broker: str
    incarnation: str
    """A unique name of this run: another run of the same broker has another."""
