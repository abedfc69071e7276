"""The environment of a runtime: an event loop, threads for blocking jobs, and timers.

`partibus.node.host` is the one in production, `tests.kit.simulated_host` one that a seed drives.
"""

from collections.abc import Callable
from typing import Any, Protocol


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
