"""Moves the manual clock: its mover is answered when everything that keeps time by it has followed (D26)."""

import asyncio
from collections.abc import Callable, Collection, Iterable

from partibus.clock import ManualClock
from partibus.node.idle import IdleQueues
from partibus.partition.runtime.store_runtime import StoreRuntime

_LOOK_S = 0.001
"""The interval of checks whether loads and commits have ended. A test that moves a clock does not depend on a
millisecond.
"""


class ClockHand:
    """The manual clock of one broker. Of several, the supervisor moves the clocks of all: `move_to`, `run_out`."""

    def __init__(
        self,
        clock: ManualClock,
        on_moved: Callable[[], None],
        runtimes: Callable[[], Collection[StoreRuntime]],
        idle: IdleQueues,
    ) -> None:
        """Move a clock.

        ``on_moved`` runs due work outside of the stores. ``runtimes``: the stores that the broker owns at the moment.
        """
        self._clock = clock
        self._on_moved = on_moved
        self._owned = runtimes
        self._idle = idle
        self._turn = asyncio.Lock()

    async def advance(self, milliseconds: int) -> int:
        """Move the clock on, run due work, make it durable and return the new time. Calls run one after the other."""
        async with self._turn:
            self._idle.note()  # until now time stood still: what was used, was used now
            now_ms = self._clock.advance(milliseconds)
            self._on_moved()
            self._idle.check()
            await self.run_out()
            return now_ms

    async def move_to(self, now_ms: int, used_elsewhere: Iterable[int] | None) -> None:
        """Move the clock to a time and run due work.

        ``used_elsewhere`` are the ids of queues that were used through any broker until now, where this one deletes
        idle queues.
        """
        if used_elsewhere is not None:
            self._idle.note(used_elsewhere)
        self._clock.advance(max(now_ms - self._clock.now_ms(), 0))
        self._on_moved()
        if used_elsewhere is not None:
            self._idle.check()
        await self.run_out()

    async def run_out(self) -> None:
        """Run due work until there is none: it may cause more, such as a scheduled message with a time to live."""
        while True:
            self._run_due()
            while self._catching_up:
                await asyncio.sleep(_LOOK_S)
                self._run_due()
            decided = [(runtime, runtime.decided) for runtime in self._owned()]
            # A store reports its commits only to those that wait for a reply.
            while not all(runtime.is_durable(commit) for runtime, commit in decided):  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_S)
            if not self._catching_up:
                return

    @property
    def _catching_up(self) -> bool:
        return self._idle.asking > 0 or any(runtime.catching_up for runtime in self._owned())

    def _run_due(self) -> None:
        for runtime in self._owned():
            runtime.run_due()
