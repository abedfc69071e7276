"""Group commit for one store, without IO (D11).

Rows of every partition in the store gather in the *pending* commit, which has a number. When the last commit has ended
the runtime takes the pending one. Whatever must wait for rows waits at the gate of their commit, also what only read:
it may have seen what is not durable yet. What waits for the same commit passes in the order in which it came, and all
of it before anything that comes later and need not wait.
"""

from collections.abc import Callable
from typing import Any

from partibus.partition.protocol.ports import Writes

Waiter = tuple[Callable[[Any], None], Any]
"""What to call when a commit is durable, and with which value."""


class CommitQueue:
    """The pending commit, the one under way, and the gate of each."""

    __slots__ = ("_for_pending", "_for_under_way", "durable", "number", "pending", "under_way")

    def __init__(self) -> None:
        self.pending = Writes()
        self.number = 1
        """Of the pending commit."""
        self.durable = 0
        """The last commit that is durable."""
        self.under_way: Writes | None = None
        self._for_pending: list[Waiter] = []
        self._for_under_way: list[Waiter] = []

    def __len__(self) -> int:
        """How many wait."""
        return len(self._for_pending) + len(self._for_under_way)

    @property
    def is_pending(self) -> bool:
        """There is something in the pending commit."""
        return bool(self.pending.counters or self.pending.dropped_partitions)

    @property
    def operations(self) -> int:
        """Operations that are not durable yet (D24)."""
        return self.pending.operations + (self.under_way.operations if self.under_way else 0)

    @property
    def size_bytes(self) -> int:
        """Bytes that are not durable yet (D24)."""
        return self.pending.size_bytes + (self.under_way.size_bytes if self.under_way else 0)

    def wait(self, number: int, call: Callable[[Any], None], value: Any) -> None:
        """Have ``call(value)`` made when commit ``number`` is durable, which must not be so already."""
        assert number > self.durable, "nothing to wait for"
        (self._for_pending if number == self.number else self._for_under_way).append((call, value))

    def take(self) -> Writes:
        """Begin the pending commit; rows gather in the next one."""
        assert self.under_way is None, "one commit at a time"
        writes = self.under_way = self.pending
        self.pending = Writes()
        self._for_under_way, self._for_pending = self._for_pending, []
        self.number += 1
        return writes

    def end(self) -> list[Waiter]:
        """The commit under way is durable: who may pass now."""
        assert self.under_way is not None, "a commit was under way"
        self.under_way = None
        self.durable = self.number - 1
        passing, self._for_under_way = self._for_under_way, []
        return passing

    def fail(self) -> tuple[list[Waiter], list[Waiter]]:
        """Give up everything that is not durable: (who waited for the commit under way, who for the pending one)."""
        touched, self._for_under_way = self._for_under_way, []
        untouched, self._for_pending = self._for_pending, []
        self.pending = Writes()
        self.under_way = None
        self.number += 1
        self.durable = self.number - 1
        return touched, untouched
