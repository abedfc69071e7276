"""When which partition has something to run out: a heap, and one timer for its head."""

from collections.abc import Callable
from heapq import heappop, heappush

from partibus.partition.host import Host, Timer


class Deadlines:
    """Deadlines in ms of the clock by partition row. ``on_due`` is called when the earliest has come."""

    __slots__ = ("_armed_ms", "_heap", "_host", "_on_due", "_timer")

    def __init__(self, host: Host, on_due: Callable[[], None]) -> None:
        self._host = host
        self._on_due = on_due
        self._heap: list[tuple[int, int]] = []
        self._timer: Timer | None = None
        self._armed_ms = 0

    def add(self, deadline_ms: int, row: int, now_ms: int) -> None:
        """A partition has an earlier deadline than before."""
        heappush(self._heap, (deadline_ms, row))
        self.arm(now_ms)

    def due(self, now_ms: int) -> list[tuple[int, int]]:
        """Take what has come: (deadline, row), earliest first. The timer is off until `arm`: its delay was reckoned
        before the clock may have been moved."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        over = []
        while self._heap and self._heap[0][0] <= now_ms:
            over.append(heappop(self._heap))
        return over

    def is_due(self, now_ms: int) -> bool:
        """The earliest deadline has come."""
        return bool(self._heap) and self._heap[0][0] <= now_ms

    def arm(self, now_ms: int) -> None:
        """See to it that the earliest deadline is noticed."""
        if not self._heap:
            return
        earliest_ms = self._heap[0][0]
        if self._timer is not None:
            if self._armed_ms <= earliest_ms:
                return
            self._timer.cancel()
        self._armed_ms = earliest_ms
        self._timer = self._host.call_later(max(0, earliest_ms - now_ms), self._fire)

    def clear(self) -> None:
        """Forget all."""
        self._heap.clear()

    def _fire(self) -> None:
        self._timer = None
        self._on_due()
