"""When the pending commit starts (D11, rows C13, C14).

A commit costs the same sync and the same statements whether it carries one message or a hundred. A client that waits
for each answer gains nothing from company, so its write starts the next commit at once. A client that has more requests
under way does: its writes, if the entity has batched store access, are held for a moment while the store is idle. Rows
that nobody waits for (message locks, completions that need no confirmation) travel with whatever commit comes next.
"""

from partibus.limits import StoreLimits
from partibus.partition.runtime.commit_queue import CommitQueue


class CommitPacing:
    """How long the pending commit may wait, in ms."""

    __slots__ = ("_hurried", "_limits", "_waited_for")

    def __init__(self, limits: StoreLimits) -> None:
        self._limits = limits
        self._waited_for = False
        self._hurried = False

    def add(self, *, waited_for: bool, holdable: bool) -> None:
        """Rows were added to the pending commit. ``waited_for``: somebody gets an answer when they are durable;
        ``holdable``: who waits has batched store access and more under way."""
        if waited_for:
            self._waited_for = True
            if not holdable:
                self._hurried = True

    def delay_ms(self, queue: CommitQueue) -> float:
        """0: start at once."""
        if not self._waited_for:
            return self._limits.lazy_ms if queue.pending.operations < self._limits.lazy_operations else 0
        if self._hurried or queue.pending.operations >= self._limits.hold_operations:
            return 0
        return self._limits.hold_ms

    def begun(self) -> None:
        """The pending commit has started; the next one is empty."""
        self._waited_for = False
        self._hurried = False
