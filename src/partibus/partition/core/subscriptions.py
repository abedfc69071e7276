"""The sizes of the subscriptions in one partition of a topic, which its quota counts beside its own (row P21).

The store is asked once, for all of them, when the topic's partition is first used. From then on each subscription in
use reports its own size.
"""

from collections.abc import Mapping
from typing import Protocol


class Topic(Protocol):
    """The partition of a topic in use."""

    @property
    def has_plans(self) -> bool:
        """Commands wait in it for which subscriptions were loaded: these have to stay in use."""
        ...


class Subscriptions:
    """Stored bytes by partition row of the subscription. A row that is missing was deleted, and gets no messages."""

    __slots__ = ("sizes", "topic", "total")

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.total = 0
        self.topic: Topic | None = None
        """The topic's partition, while it is in use."""

    def begin(self, sizes: Mapping[int, int]) -> None:
        """Take the sizes that the store has."""
        self.sizes = dict(sizes)
        self.total = sum(self.sizes.values())

    def note(self, row: int, size_bytes: int) -> None:
        """Note the present size of a subscription."""
        self.total += size_bytes - self.sizes.get(row, 0)
        self.sizes[row] = size_bytes

    def drop(self, row: int) -> None:
        """Drop a deleted subscription."""
        self.total -= self.sizes.pop(row, 0)
