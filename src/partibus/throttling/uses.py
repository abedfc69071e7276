"""Sums per second of what clients asked for, enough to compute its price later (row D9).

A sum is of one namespace, entity, client and kind of operation. It is kept under every policy, if a consumer exists:
without one `partibus.throttling.throttle.Throttle.uses` is None, and callers check that.

`Counters` are of one namespace's credits in one broker, for metrics and tests: one number per kind of operation,
whatever names clients use.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from partibus.clock import Clock


class Operation(IntEnum):
    """Operations that cost credits. The values are indexes into the lists of `Counters`."""

    SEND = 0
    """A message sent or scheduled."""
    FILTER = 1
    """A rule evaluated on a message to a topic."""
    RECEIVE = 2
    """A message delivered."""
    PEEK = 3
    """A message peeked at."""
    MANAGEMENT = 4
    """A request about entities, rules or policies."""


OPERATIONS = tuple(operation.name.lower() for operation in Operation)
"""Their names as labels."""


class Counters:
    """Counters since this broker knows the namespace. They only rise."""

    __slots__ = ("throttled", "used", "would_throttle")

    def __init__(self) -> None:
        self.used = [0] * len(OPERATIONS)
        """Credits used, by `Operation`. Under the policy observe they include requests that would have been refused."""
        self.throttled = [0] * len(OPERATIONS)
        """Refused requests, and receivers made to wait for the next period, by `Operation`.

        A send to a topic counts as `Operation.SEND`.
        """
        self.would_throttle = [0] * len(OPERATIONS)
        """Requests served under the policy observe that enforce would have refused."""


SUM_MS: Final = 1_000
"""Length of a sum; aligned with the clock, as periods are."""
SUMS_MAX: Final = 5_000
"""The most sums of one namespace per second that name their client; later ones name none."""
CLIENT_MAX: Final = 64
"""Characters of a client's name that are kept."""
OTHERS: Final = "(others)"


class Use(NamedTuple):
    """One sum."""

    namespace: str
    entity: str
    """The path of the entity; empty for requests about the namespace."""
    client: str
    operation: Operation
    requests: int
    units: int
    """Messages; for `Operation.FILTER` messages times rules; for `Operation.MANAGEMENT` requests."""


Keep = Callable[[int, list[Use]], None]
"""Gets the sums of the second that begins at that time in ms."""


class CallLater(Protocol):
    """Schedules a call after so many ms."""

    def __call__(self, delay_ms: float, call: Callable[[], None], /) -> object:
        """Schedule ``call``."""
        ...


class Uses:
    """The sums of one namespace in one broker."""

    __slots__ = ("_call_later", "_clock", "_ends_ms", "_keep", "_namespace", "_sums")

    def __init__(self, namespace: str, clock: Clock, keep: Keep, call_later: CallLater) -> None:
        self._namespace = namespace
        self._clock = clock
        self._keep = keep
        self._call_later = call_later
        self._sums: dict[tuple[str, str, Operation], list[int]] = {}
        self._ends_ms = 0

    def add(self, entity: str, client: str, operation: Operation, requests: int, units: int) -> None:
        """Add requests about an entity."""
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
        """Hand over the sums."""
        sums, self._sums = self._sums, {}
        if sums:
            uses = [Use(self._namespace, *key, *counts) for key, counts in sums.items()]
            self._keep(self._ends_ms - SUM_MS, uses)

    def _flush_old(self) -> None:
        if self._clock.now_ms() >= self._ends_ms:
            self.flush()


def client_name(container_id: str | None) -> str:
    """Normalize a container id for usage records."""
    return (container_id or "")[:CLIENT_MAX]
