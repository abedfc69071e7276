"""Group commit for one store, without IO (D11).

Rows of every partition in the store gather in the *pending* commit, which has a number. When the last commit has ended,
the runtime takes the pending one. A reply waits for the commit of the rows that it depends on. A reply that only read
waits too, because it may have seen rows that are not durable yet. Waiters of one commit are released in the order in
which they came, and before any later reply that need not wait.

The next commit starts at once, or is held for a moment (rows C13, C14). A commit costs the same sync and the same
statements whether it carries one message or a hundred. A client that waits for each answer gains nothing from a longer
wait, so its write starts the next commit at once. Only where the last commit has answered more such clients does the
next one wait for their next requests, some rounds of the loop, if that has been of use before. A client with more
requests under way gains from waiting: its writes, if the entity has batched store access, are held while the store is
idle. Rows without a waiter (message locks, unconfirmed completions) travel with whatever commit comes next.
"""

from collections.abc import Callable
from typing import Any

from partibus.limits import StoreLimits
from partibus.partition.protocol.host import Host, Timer
from partibus.partition.protocol.ports import Writes

SKIPS_MAX = 15
"""The most commits that do not wait for rows, after commits whose wait brought none."""

Waiter = tuple[Callable[[Any], None], Any]
"""A callback for when a commit is durable, and its argument."""


class CommitQueue:
    """The pending commit, the one under way, and the gate of each."""

    __slots__ = (
        "_for_pending",
        "_for_under_way",
        "durable",
        "expected",
        "held",
        "is_pending",
        "number",
        "pending",
        "under_way",
    )

    def __init__(self) -> None:
        self.pending = Writes()
        self.is_pending = False
        """Whether the pending commit has something to write: set by the one who adds it."""
        self.number = 1
        """The number of the pending commit."""
        self.durable = 0
        """The last commit that is durable."""
        self.under_way: Writes | None = None
        self.expected = 0
        """The operations that the pending commit gets if every client that the last one has answered asks again."""
        self.held: set[int] = set()
        """Rows of topics that hold the pending commit until the rest of a large publish is in it."""
        self._for_pending: list[Waiter] = []
        self._for_under_way: list[Waiter] = []

    def __len__(self) -> int:
        """Return the number of waiting replies."""
        return len(self._for_pending) + len(self._for_under_way)

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
        self.wait_all(number, [(call, value)])

    def wait_all(self, number: int, waiters: list[Waiter]) -> None:
        """Have several calls made, in this order, when commit ``number`` is durable."""
        assert number > self.durable, "nothing to wait for"
        (self._for_pending if number == self.number else self._for_under_way).extend(waiters)

    def take(self) -> Writes:
        """Begin the pending commit; rows gather in the next one."""
        assert self.under_way is None, "one commit at a time"
        writes = self.under_way = self.pending
        self.pending = Writes()
        self.is_pending = False
        self._for_under_way, self._for_pending = self._for_pending, []
        self.number += 1
        return writes

    def end(self) -> list[Waiter]:
        """End the commit under way, which is durable, and return its waiters."""
        assert self.under_way is not None, "a commit was under way"
        self.expected = self.under_way.operations + self.pending.operations
        self.under_way = None
        self.durable = self.number - 1
        passing, self._for_under_way = self._for_under_way, []
        return passing

    def fail(self) -> tuple[list[Waiter], list[Waiter]]:
        """Give up all rows that are not durable.

        Returns the waiters of the commit under way and those of the pending one.
        """
        self.pending = Writes()
        self.is_pending = False
        touched, self._for_under_way = self._for_under_way, []
        untouched, self._for_pending = self._for_pending, []
        self.held.clear()
        self.under_way = None
        self.number += 1
        self.durable = self.number - 1
        return touched, untouched


class CommitSchedule:
    """Decides when the next commit of a store begins."""

    __slots__ = (
        "_delay_ms",
        "_first",
        "_gathered",
        "_host",
        "_hurried",
        "_limits",
        "_queue",
        "_quiet",
        "_skipped_max",
        "_skips",
        "_soon",
        "_start",
        "_timer",
        "_waited_for",
    )

    def __init__(self, host: Host, limits: StoreLimits, queue: CommitQueue, start: Callable[[], None]) -> None:
        """``start`` begins the pending commit, if there is anything in it."""
        self._host = host
        self._queue = queue
        self._start = start
        self._limits = limits
        self._first = 0
        """Operations that were pending when the commit began to wait."""
        self._gathered = 0
        """Operations that were pending a round ago."""
        self._quiet = 0
        """Rounds since then that have added nothing."""
        self._skips = 0
        """The number of commits that do not wait for further rows."""
        self._skipped_max = 0
        self._waited_for = False
        """Whether a client waits for the pending commit."""
        self._hurried = False
        """Whether one of them gains nothing from a longer wait."""
        self._timer: Timer | None = None
        self._delay_ms = 0.0
        self._soon = False

    def plan(self, *, waited_for: bool = False, holdable: bool = True) -> None:
        """Start the pending commit now or in time, unless it is held, or another one is under way.

        ``waited_for``: a client gets an answer when what was added to it is durable. ``holdable``: that client has
        batched store access and more requests under way.
        """
        if waited_for:
            self._waited_for = True
            if not holdable:
                self._hurried = True
        if self._queue.under_way is not None or self._queue.held or self._soon:
            return
        delay_ms = self.delay_ms
        if self._timer is not None:
            if self._delay_ms <= delay_ms:
                return
            self._timer.cancel()
            self._timer = None
        if delay_ms:
            self._delay_ms = delay_ms
            self._timer = self._host.call_later(delay_ms, self._start)
        else:
            self._soon = True
            self._gathered, self._quiet = 0, 0
            self._host.call_soon(self._gather)

    @property
    def delay_ms(self) -> float:
        """How long the pending commit may wait; 0: not at all."""
        limits, operations = self._limits, self._queue.pending.operations
        if not self._waited_for:
            return limits.lazy_ms if operations < limits.lazy_operations else 0
        if self._hurried or operations >= limits.hold_operations:
            return 0
        return limits.hold_ms

    def _gather(self) -> None:
        """Start the commit once it has as many rows as can be expected, or some rounds of the loop have added none.

        Eight clients that wait for each answer so share one commit instead of two. That halves the switches between
        the loop and the writer thread, which cost more than the commit itself.
        """
        queue, limits = self._queue, self._limits
        gathers_more = False
        try:
            operations = queue.pending.operations
            self._quiet = 0 if operations != self._gathered else self._quiet + 1
            if not self._gathered:
                self._first = operations
            elif not self._quiet:
                self._skipped_max = 0  # waiting was of use
            self._gathered = operations
            if operations < min(queue.expected, limits.hold_operations):
                if self._skips:
                    self._skips -= 1
                elif self._quiet < limits.gather_rounds:
                    gathers_more = True
                elif operations == self._first:
                    # The clients ask again later than that, or not at all: do not wait for them for some commits.
                    self._skips = self._skipped_max = min(2 * self._skipped_max + 1, SKIPS_MAX)
        finally:  # after an unexpected error, too: without this commit no later one would begin
            if gathers_more:
                self._host.call_soon(self._gather)
            else:
                self._soon = False
                self._start()

    def not_begun(self) -> None:
        """Note that no commit has begun, though it was time: `plan` is called again when one can."""
        self._soon = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def begun(self) -> None:
        """Note that the pending commit is under way, or was given up: the next one is empty."""
        self._waited_for = self._hurried = self._soon = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
