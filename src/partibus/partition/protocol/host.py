"""The environment of a runtime: an event loop, threads for blocking jobs, and timers.

`partibus.node.host` is the one in production, `tests.kit.simulated_host` one that a seed drives.

`overloaded_stores` have more pending work than their limits allow (D24). A store joins when its queue passes the
limits, and leaves when it has caught up. Back-pressure is asked for after every read of a client, and there is nearly
always none: while the set is empty no store needs to be asked.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol


class Timer(Protocol):
    """A timer of `Host.call_later`."""

    def cancel(self) -> None:
        """Cancel the call. Idempotent."""
        ...


class Host(Protocol):
    """The event loop and the threads of a runtime."""

    def write(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run a blocking job off the loop; ``done`` gets its result, or the exception it raised, on the loop."""
        ...

    def read(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run a blocking read as `write` does, beside writes."""
        ...

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call after the current event has been handled."""
        ...

    def call_later(self, delay_ms: float, call: Callable[[], None]) -> Timer:
        """Call after a delay."""
        ...


overloaded_stores: Final[set[object]] = set()
"""The overloaded routes to stores in this process. A member may have caught up already; none is missing."""
