"""What clients have asked for, in sums of a second: enough to say later what it would have cost (row D9).

A sum is of one namespace, entity, client and kind of operation. It is there whatever the policy is, if somebody keeps
it: without, `partibus.throttling.throttle.Throttle.uses` is None, and whoever has something to count looks at that.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from partibus.clock import Clock
from partibus.throttling.counters import Operation

SUM_MS: Final = 1_000
"""Aligned with the clock, as periods of credits are."""
SUMS_MAX: Final = 5_000
"""So many sums of one namespace in one second tell of clients; past that they are of nobody by name."""
CLIENT_MAX: Final = 64
"""Characters of a client's name that are kept."""
OTHERS: Final = "(others)"


class Use(NamedTuple):
    """One sum."""

    namespace: str
    entity: str
    """Empty: it was about the namespace."""
    client: str
    operation: Operation
    requests: int
    units: int
    """Messages; of `Operation.FILTER` messages times rules; of `Operation.MANAGEMENT` requests."""


Keep = Callable[[int, list[Use]], None]
"""Gets the sums of the second that begins at those ms."""


class CallLater(Protocol):
    """Has something called after so many ms."""

    def __call__(self, delay_ms: float, call: Callable[[], None], /) -> object: ...


class Uses:
    """Of one namespace at one broker."""

    __slots__ = ("_call_later", "_clock", "_ends_ms", "_keep", "_namespace", "_sums")

    def __init__(self, namespace: str, clock: Clock, keep: Keep, call_later: CallLater) -> None:
        self._namespace = namespace
        self._clock = clock
        self._keep = keep
        self._call_later = call_later
        self._sums: dict[tuple[str, str, Operation], list[int]] = {}
        self._ends_ms = 0

    def add(self, entity: str, client: str, operation: Operation, requests: int, units: int) -> None:
        """So many requests about an entity were for so many units."""
        now_ms = self._clock.now_ms()
        if now_ms >= self._ends_ms:
            self.flush()
            self._ends_ms = (now_ms // SUM_MS + 1) * SUM_MS
            self._call_later(SUM_MS, self._flush_old)
        key = (entity, client, operation)
        found = self._sums.get(key)
        if found is None:
            if len(self._sums) >= SUMS_MAX:
                key = (entity, OTHERS, operation)
            found = self._sums.setdefault(key, [0, 0])
        found[0] += requests
        found[1] += units

    def flush(self) -> None:
        """Hand over what there is."""
        sums, self._sums = self._sums, {}
        if sums:
            uses = [Use(self._namespace, *key, *counts) for key, counts in sums.items()]
            self._keep(self._ends_ms - SUM_MS, uses)

    def _flush_old(self) -> None:
        if self._clock.now_ms() >= self._ends_ms:
            self.flush()


def client_name(container_id: str | None) -> str:
    """As it is kept."""
    return (container_id or "")[:CLIENT_MAX]
