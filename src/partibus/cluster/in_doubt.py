"""Requests in doubt: their owner was lost before it answered. The next owner tells whether they were executed (D15).

```text
 sent ─▶ owner lost ─▶ hold ─▶ (the store has another owner) ─▶ find_executed ─┬─▶ its answer, as it would have been
                         └─▶ too late, or the same run of the owner is back ─┐  ├─▶ surely not executed
                                                                             └──┴─▶ outcome unknown
```

A settlement that was surely not executed is sent again to that owner, because its lock outlives the first owner. A
sender is told, and sends elsewhere or again. A transaction is refused to its client, which begins it anew.

Each commit that answers requests of another broker stores their numbers. The next owner can open the store only when
the last one can't commit, so it has the truth. It keeps the numbers for a minute; a broker that was not running
meanwhile does not ask.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.runtime.commits import answer_of
from partibus.partition.runtime.dispatcher import OnReply
from partibus.routing.store_access import StoreRoute, memory_of

WAIT_S = 15.0
"""Time to wait for another owner: a take-over takes less (D21), and a client waits longer."""
AGAIN_S = 0.1
"""Time until a store that had no answer is asked again."""
TICK_S = 1.0
STOOD_STILL_S = 10.0
"""The gap between ticks from which on a process counts as stopped. The numbers that it would ask about may have been
deleted.
"""
DISTRUST_S = 60.0
"""The time after such a gap during which it does not ask."""


class Asked(NamedTuple):
    """A request that was not answered."""

    kind: type
    """The kind of its command."""
    on_reply: OnReply
    again: tuple[int, PartitionOptions, c.Command] | None = None
    """The row, options and command of a request that can be sent again."""


class InDoubt:
    """The requests in doubt of one broker. All calls are on the loop.

    ``us`` is this run of this broker, as its peers know it. ``call_later`` takes seconds.
    """

    def __init__(
        self, us: str, call_later: Callable[[float, Callable[[], None]], Any], now_s: Callable[[], float]
    ) -> None:
        self._us = us
        self._call_later = call_later
        self._now_s = now_s
        self._ticked_s = now_s()
        self._distrust_until_s = float("-inf")
        self._closed = False
        self._tick()

    def hold(self, route: StoreRoute, lost: str, requests: Mapping[int, Asked], why: str) -> None:
        """Answer requests that were sent to a store and lost with ``lost``, a run of its owner."""
        waiting = _Waiting(route, lost, dict(requests), why)
        self._look_at_time()
        if self._closed or self._now_s() < self._distrust_until_s:
            waiting.give_up()
            return
        self._call_later(WAIT_S, waiting.give_up)
        route.when_usable(lambda: self._ask(waiting))

    def close(self) -> None:
        """Drop all held requests: this broker stops."""
        self._closed = True

    def _ask(self, waiting: "_Waiting") -> None:
        if not waiting.requests:
            return
        access = waiting.route.access
        memory = memory_of(access)
        if getattr(access, "run", None) == waiting.lost:
            waiting.give_up()  # it may still be at it
        elif memory is None:
            self._again(waiting)
        else:
            memory.find_executed(self._us, list(waiting.requests), lambda known: self._found(waiting, known))

    def _found(self, waiting: "_Waiting", known: Mapping[int, int | None] | None) -> None:
        self._look_at_time()
        if self._now_s() < self._distrust_until_s:
            waiting.give_up()
        elif known is None:
            self._again(waiting)
        else:
            waiting.answer(known)

    def _again(self, waiting: "_Waiting") -> None:
        def ask() -> None:
            waiting.route.when_usable(lambda: self._ask(waiting))

        self._call_later(AGAIN_S, ask)

    def _tick(self) -> None:
        self._look_at_time()
        if not self._closed:
            self._call_later(TICK_S, self._tick)

    def _look_at_time(self) -> None:
        now_s = self._now_s()
        if now_s - self._ticked_s > STOOD_STILL_S:
            self._distrust_until_s = now_s + DISTRUST_S
        self._ticked_s = now_s


class _Waiting:
    """Requests of one lost way to one store."""

    def __init__(self, route: StoreRoute, lost: str, requests: dict[int, Asked], why: str) -> None:
        self.route = route
        self.lost = lost
        self.requests = requests
        """The requests without an answer."""
        self._why = why

    def answer(self, known: Mapping[int, int | None]) -> None:
        requests, self.requests = self.requests, {}
        for number, (kind, on_reply, again) in requests.items():
            if number not in known:
                on_reply(r.Failed(number, None, False, self._why))
            elif (note := known[number]) is not None:
                if again is not None:
                    self._requeue(*again)
                on_reply(answer_of(kind, number, note))
            elif again is not None:
                self.route.hold(*again, on_reply)
            else:
                on_reply(r.Failed(number, False, False, self._why))

    def _requeue(self, row: int, options: PartitionOptions, command: c.Command) -> None:
        """Release messages whose abandon or release was in doubt, for a session that was resumed.

        Its holder has claimed them, not knowing that they went back, and was given the same lock on them again.
        Elsewhere the lock has ended, and the command finds nothing.
        """
        if isinstance(command, c.Settle) and command.outcome in (c.Outcome.ABANDON, c.Outcome.RELEASE):
            self.route.submit(row, options, c.Settle(0, command.kind, c.Outcome.RELEASE, command.tokens))

    def give_up(self) -> None:
        """Answer all held requests with an unknown outcome. Idempotent."""
        self.answer({})
