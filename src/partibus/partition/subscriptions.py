"""How much the subscriptions of one partition of a topic hold: what its quota counts beside its own (row P21).

Asked of the store once, for all of them, when the topic's partition is first used; from then on each subscription that
is in use says what it has.
"""

from collections.abc import Mapping


class Subscriptions:
    """Stored bytes by partition row of the subscription. Who is not in it gets no messages: it was deleted."""

    __slots__ = ("sizes", "total")

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.total = 0

    def begin(self, sizes: Mapping[int, int]) -> None:
        """As the store has it."""
        self.sizes = dict(sizes)
        self.total = sum(self.sizes.values())

    def note(self, row: int, size_bytes: int) -> None:
        """One of them holds so much now."""
        self.total += size_bytes - self.sizes.get(row, 0)
        self.sizes[row] = size_bytes

    def drop(self, row: int) -> None:
        """One was deleted."""
        self.total -= self.sizes.pop(row, 0)
