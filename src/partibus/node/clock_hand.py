"""Moves the manual clock: its mover is answered when everything that keeps time by it has followed (D26)."""

import asyncio
from collections.abc import Sequence

from partibus.clock import ManualClock
from partibus.namespace.broker import Broker
from partibus.node.idle import IdleQueues
from partibus.partition.runtime import StoreRuntime

_LOOK_S = 0.001
"""How often to look whether loads and commits have ended. Nobody moves a clock where a millisecond counts."""


class ClockHand:
    """The manual clock of one broker."""

    def __init__(self, clock: ManualClock, broker: Broker, runtimes: Sequence[StoreRuntime], idle: IdleQueues) -> None:
        self._clock = clock
        self._broker = broker
        self._runtimes = runtimes
        self._idle = idle
        self._turn = asyncio.Lock()

    async def advance(self, milliseconds: int) -> int:
        """Move on, run what fell due and make that durable; the new time. Several movers take turns."""
        async with self._turn:
            self._idle.note()  # until now time stood still: what was used, was used now
            now_ms = self._clock.advance(milliseconds)
            for call in self._broker.on_clock_moved:
                call()
            self._idle.check()
            await self._run_out()
            return now_ms

    async def _run_out(self) -> None:
        """What has run may have made more fall due (a scheduled message with a time to live, say): until nothing is."""
        while True:
            for runtime in self._runtimes:
                runtime.run_due()
            while self._catching_up:
                await asyncio.sleep(_LOOK_S)
                for runtime in self._runtimes:
                    runtime.run_due()
            decided = [runtime.decided for runtime in self._runtimes]
            # A store tells only those who wait for a reply.
            while not all(map(StoreRuntime.is_durable, self._runtimes, decided)):  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_S)
            if not self._catching_up:
                return

    @property
    def _catching_up(self) -> bool:
        return self._idle.asking > 0 or any(runtime.catching_up for runtime in self._runtimes)
