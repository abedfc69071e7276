"""What a runtime lives on: a loop, threads that do what blocks, and a way to be called later.

`partibus.node.host` is the one in production, `partibus.testing.simulated_host` the one that a seed decides.
"""

from collections.abc import Callable
from typing import Any, Protocol


class Timer(Protocol):
    """What `Host.call_later` gives."""

    def cancel(self) -> None:
        """Idempotent."""
        ...


class Host(Protocol):
    """The loop and the threads that a runtime lives on."""

    def write(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run a blocking job off the loop; ``done`` gets its result, or the exception it raised, on the loop."""
        ...

    def read(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Like `write`, beside it."""
        ...

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call when what is being handled now has been."""
        ...

    def call_later(self, delay_ms: float, call: Callable[[], None]) -> Timer:
        """Call after a time."""
        ...
