"""Waiting for new messages without receiving them, as range readers do between two reads.

All waiters for one sub-queue share one poll. A poll asks the partitions for their ends, as a list of entities does, and
does not load idle partitions. Polls are quick at first and rarer while no message arrives. All sub-queues together have
a fixed budget of polls a second, whatever the number of waiters. A partition is not asked while its store has no new
commit.
"""

from collections.abc import Callable, Mapping

from partibus.partition.protocol.generations import passed_over
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.replies import Failed, Inspected
from partibus.routing.entity import EntityRoute, inspect_all
from partibus.routing.fault_injections import CallLater, Timer

FIRST_MS = 10.0
"""The pause before the first poll, which follows the one at the start of a request."""
IDLE_MS = 100.0
"""The pause between two polls while no message arrives."""
LOOKS_PER_S = 2_000
"""The number of partitions asked in a second, without those skipped. Each costs about 50 microseconds while it is idle:
a tenth of a core at most.
"""

OnArrived = Callable[[list[Inspected] | Failed], None]


class _Waiter:
    """One waiting request."""

    __slots__ = ("on_arrived", "positions", "timer")

    def __init__(self, positions: Mapping[int, int], on_arrived: OnArrived) -> None:
        self.positions = positions
        self.on_arrived = on_arrived
        self.timer: Timer | None = None


def end_of(inspected: Inspected, kind: int) -> int:
    """Return a position above every one that a sub-queue has assigned."""
    return inspected.end_pos if kind == SubqueueKind.ACTIVE else inspected.end_number


def passed_over_in(inspected: Inspected, kind: int) -> list[tuple[int, int]]:
    """Return the positions below the end that a sub-queue skipped, as ascending (first, end) pairs."""
    return passed_over(inspected.left_off, active=kind == SubqueueKind.ACTIVE)


class Arrivals:
    """The waiters for all entities in one broker."""

    def __init__(self, call_later: CallLater | None) -> None:
        """Build the waiters. Without timers every wait times out at once."""
        self._call_later = call_later
        self._watched: dict[tuple[EntityRoute, int], _Watch] = {}
        self.partitions = 0
        """The number of polled partitions."""

    def wait(
        self, route: EntityRoute, kind: int, positions: Mapping[int, int], timeout_ms: float, on_arrived: OnArrived
    ) -> None:
        """Wait until the end of a partition exceeds its position in ``positions``, or the time is over.

        A partition without a position counts from 0. ``on_arrived`` is called once, with the partitions' counts or with
        a partition's failure.
        """

        def looked(found: list[Inspected]) -> None:
            call_later = self._call_later
            if call_later is None or timeout_ms <= 0 or has_come(found, kind, positions):
                on_arrived(found)
                return
            watch = self._watched.get((route, kind))
            if watch is None:
                watch = self._watched[route, kind] = _Watch(self, route, kind, call_later, found)
                self.partitions += watch.partitions
            watch.add(_Waiter(positions, on_arrived), timeout_ms)

        inspect_all(route, looked, on_arrived)

    def end(self, route: EntityRoute, kind: int) -> None:
        """Stop polling a sub-queue without waiters."""
        watch = self._watched.pop((route, kind), None)
        if watch is not None:
            self.partitions -= watch.partitions


def has_come(found: list[Inspected], kind: int, positions: Mapping[int, int]) -> bool:
    """Tell whether a partition's end exceeds its position; the end of an unused partition is 1."""
    return any(end_of(one, kind) > max(1, positions.get(index, 0)) for index, one in enumerate(found))


class _Watch:
    """The shared poll of one sub-queue, which lives as long as it has waiters."""

    def __init__(
        self, arrivals: Arrivals, route: EntityRoute, kind: int, call_later: CallLater, found: list[Inspected]
    ) -> None:
        self._arrivals = arrivals
        self._route = route
        self._kind = kind
        self._call_later = call_later
        self._found = found
        """The counts at the last poll."""
        self.partitions = len(found)
        """The number of partitions that count in the budget."""
        self._revisions: list[object] = []
        """The revisions of the partitions' stores before that poll."""
        self._waiters: dict[_Waiter, None] = {}
        self._delay_ms = FIRST_MS
        self._timer: Timer | None = None
        """The timer of the next poll; None before the first poll or during one."""

    def add(self, waiter: _Waiter, timeout_ms: float) -> None:
        """Add a waiter."""
        waiter.timer = self._call_later(timeout_ms, lambda: self._answer(waiter, self._found))
        self._delay_ms = FIRST_MS
        self._revisions = []  # the last poll may be newer than the counts that this waiter got
        if not self._waiters:
            self._look_later()
        self._waiters[waiter] = None

    def _look_later(self) -> None:
        self._timer = self._call_later(self._delay_ms, self._look)
        share_ms = 1000 * self._arrivals.partitions / LOOKS_PER_S
        self._delay_ms = max(min(2 * self._delay_ms, IDLE_MS), share_ms)

    def _look(self) -> None:
        self._timer = None
        revisions = [partition.revision() for partition in self._route.partitions]
        if revisions == self._revisions and None not in revisions:
            self._look_later()
            return
        self._revisions = revisions
        inspect_all(self._route, self._looked, self._failed)

    def _looked(self, found: list[Inspected]) -> None:
        self._found = found
        for waiter in list(self._waiters):
            if has_come(found, self._kind, waiter.positions):
                self._answer(waiter, found)
        if self._waiters:
            self._look_later()

    def _failed(self, failed: Failed) -> None:
        for waiter in list(self._waiters):
            self._answer(waiter, failed)

    def _answer(self, waiter: _Waiter, answer: list[Inspected] | Failed) -> None:
        if waiter not in self._waiters:
            return
        del self._waiters[waiter]
        if waiter.timer is not None:
            waiter.timer.cancel()
        if not self._waiters:
            if self._timer is not None:
                self._timer.cancel()
            self._arrivals.end(self._route, self._kind)
        waiter.on_arrived(answer)
