"""Waiting for new messages without receiving any: what readers by range do between two reads.

Who waits for the same sub-queue is looked for together: each look asks the partitions for their ends, as a list of
entities does, and loads nothing that nobody uses. Looks come quickly at first and more rarely while nothing happens;
all sub-queues together get so many looks a second, whoever waits. Nobody is asked while nothing was stored.
"""

from collections.abc import Callable, Mapping

from partibus.partition.protocol.generations import passed_over
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.replies import Failed, Inspected
from partibus.routing.detour import CallLater, Timer
from partibus.routing.entity import EntityRoute
from partibus.routing.inspect import inspect_all

FIRST_MS = 10.0
"""Until the first look, which comes at once after the one that a request begins with."""
IDLE_MS = 100.0
"""Between two looks, while nothing comes."""
LOOKS_PER_S = 2_000
"""Partitions that are asked in a second, if not passed over: some 50 microseconds each where nobody uses them, a tenth
of a core at most."""

OnArrived = Callable[[list[Inspected] | Failed], None]


class _Waiter:
    """One request."""

    __slots__ = ("on_arrived", "positions", "timer")

    def __init__(self, positions: Mapping[int, int], on_arrived: OnArrived) -> None:
        self.positions = positions
        self.on_arrived = on_arrived
        self.timer: Timer | None = None


def end_of(inspected: Inspected, kind: int) -> int:
    """Above every position that was given in a sub-queue so far."""
    return inspected.end_pos if kind == SubqueueKind.ACTIVE else inspected.end_number


def passed_over_in(inspected: Inspected, kind: int) -> list[tuple[int, int]]:
    """Positions below the end that a sub-queue passed over, as (first, end) pairs that ascend."""
    return passed_over(inspected.left_off, active=kind == SubqueueKind.ACTIVE)


class Arrivals:
    """Of all entities, as one broker sees them."""

    def __init__(self, call_later: CallLater | None) -> None:
        """Without timers nobody waits: the time is over at once."""
        self._call_later = call_later
        self._watched: dict[tuple[EntityRoute, int], _Watch] = {}
        self.partitions = 0
        """That are looked at."""

    def wait(
        self, route: EntityRoute, kind: int, positions: Mapping[int, int], timeout_ms: float, on_arrived: OnArrived
    ) -> None:
        """Call once: with what the partitions hold, as soon as the end of one is above its position here (0 where it
        has none) or the time is over; or with why a partition can't say."""

        def looked(found: list[Inspected]) -> None:
            call_later = self._call_later
            if call_later is None or timeout_ms <= 0 or has_come(found, kind, positions):
                on_arrived(found)
                return
            watch = self._watched.get((route, kind))
            if watch is None:
                watch = self._watched[route, kind] = _Watch(self, route, kind, call_later, found)
                self.partitions += len(route.partitions)
            watch.add(_Waiter(positions, on_arrived), timeout_ms)

        inspect_all(route, looked, on_arrived)

    def end(self, route: EntityRoute, kind: int) -> None:
        """Nobody waits there any more."""
        if self._watched.pop((route, kind), None) is not None:
            self.partitions -= len(route.partitions)


def has_come(found: list[Inspected], kind: int, positions: Mapping[int, int]) -> bool:
    """One of the partitions has more than that. Where nothing ever came the end is 1."""
    return any(end_of(one, kind) > max(1, positions.get(index, 0)) for index, one in enumerate(found))


class _Watch:
    """Of one sub-queue, as long as anybody waits."""

    def __init__(
        self, arrivals: Arrivals, route: EntityRoute, kind: int, call_later: CallLater, found: list[Inspected]
    ) -> None:
        self._arrivals = arrivals
        self._route = route
        self._kind = kind
        self._call_later = call_later
        self._found = found
        """At the last look."""
        self._revisions: list[object] = []
        """Of the partitions' stores before that look."""
        self._waiters: dict[_Waiter, None] = {}
        self._delay_ms = FIRST_MS
        self._timer: Timer | None = None
        """None: not begun, or a look is under way."""

    def add(self, waiter: _Waiter, timeout_ms: float) -> None:
        """One more."""
        waiter.timer = self._call_later(timeout_ms, lambda: self._answer(waiter, self._found))
        self._delay_ms = FIRST_MS
        self._revisions = []  # what the last look has found may be newer than what this one was told
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
