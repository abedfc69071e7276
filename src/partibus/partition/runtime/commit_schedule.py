"""Starts commits in time: `CommitPacing` says how long the pending one may wait, this holds the timer."""

from collections.abc import Callable

from partibus.limits import StoreLimits
from partibus.partition.protocol.host import Host, Timer
from partibus.partition.runtime.commit_queue import CommitQueue
from partibus.partition.runtime.pacing import CommitPacing


class CommitSchedule:
    """When the next commit of a store begins."""

    __slots__ = ("_delay_ms", "_host", "_pacing", "_queue", "_soon", "_start", "_timer")

    def __init__(self, host: Host, limits: StoreLimits, queue: CommitQueue, start: Callable[[], None]) -> None:
        """``start`` begins the pending commit, if there is anything in it."""
        self._host = host
        self._queue = queue
        self._start = start
        self._pacing = CommitPacing(limits)
        self._timer: Timer | None = None
        self._delay_ms = 0.0
        self._soon = False

    def add(self, *, waited_for: bool, holdable: bool) -> None:
        """Rows were added to the pending commit, as `CommitPacing.add` says: have it start in time."""
        self._pacing.add(waited_for=waited_for, holdable=holdable)
        self.plan()

    def plan(self) -> None:
        """Start the pending commit now or see to it that it starts in time; not while another is under way."""
        if self._queue.under_way is not None or self._soon:
            return
        delay_ms = self._pacing.delay_ms(self._queue)
        if self._timer is not None:
            if self._delay_ms <= delay_ms:
                return
            self._cancel()
        if delay_ms:
            self._delay_ms = delay_ms
            self._timer = self._host.call_later(delay_ms, self._start)
        else:
            self._soon = True
            self._host.call_soon(self._start)

    def started(self) -> None:
        """``start`` was called, by this or by somebody who could not wait."""
        self._soon = False
        self._cancel()

    def begun(self) -> None:
        """The pending commit is under way, or given up: the next one is empty."""
        self._pacing.begun()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
