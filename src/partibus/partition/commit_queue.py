"""Group commit for one store, without IO (D11).

Rows of every partition in the store gather in the *pending* commit, which has a number. When the last commit has ended
the runtime takes the pending one. Whatever must wait for rows waits at the gate with the number of their commit, and
passes in the order in which it came, also what only read: it may have seen what is not durable yet.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from partibus.partition.ports import Writes

Waiter = tuple[int, Callable[[Any], None], Any]
"""Commit number, what to call when it is durable, and with which value."""


class CommitQueue:
    """The pending commit, the one under way, and the gate."""

    __slots__ = ("_gate", "durable", "number", "pending", "under_way", "urgent")

    def __init__(self) -> None:
        self.pending = Writes()
        self.number = 1
        """Of the pending commit."""
        self.durable = 0
        """The last commit that is durable."""
        self.under_way: Writes | None = None
        self.urgent = False
        """Somebody waits for the pending commit."""
        self._gate: deque[Waiter] = deque()

    def __len__(self) -> int:
        """How many wait at the gate."""
        return len(self._gate)

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
        self._gate.append((number, call, value))

    def take(self) -> Writes:
        """Begin the pending commit; rows gather in the next one."""
        assert self.under_way is None, "one commit at a time"
        writes = self.under_way = self.pending
        self.pending = Writes()
        self.number += 1
        self.urgent = False
        return writes

    def end(self) -> list[Waiter]:
        """The commit under way is durable: who may pass now."""
        assert self.under_way is not None, "a commit was under way"
        self.under_way = None
        self.durable = self.number - 1
        gate = self._gate
        passing = []
        # Numbers mostly ascend; one that came late with a low number passes with its neighbours, later but never early.
        while gate and gate[0][0] <= self.durable:
            passing.append(gate.popleft())
        return passing

    def fail(self) -> tuple[list[Waiter], list[Waiter]]:
        """Give up everything that is not durable: (who waited for the commit under way, who for the pending one)."""
        attempted = self.number - 1
        touched = [waiter for waiter in self._gate if waiter[0] <= attempted]
        untouched = [waiter for waiter in self._gate if waiter[0] > attempted]
        self._gate.clear()
        self.pending = Writes()
        self.under_way = None
        self.urgent = False
        self.number += 1
        self.durable = self.number - 1
        return touched, untouched
