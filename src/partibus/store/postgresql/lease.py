"""Renews a store's lease while no commit does: a commit renews it by itself."""

from collections.abc import Callable
from threading import Event, Thread


class LeaseKeeper:
    """A thread that calls ``renew`` at intervals until it is stopped."""

    def __init__(self, renew: Callable[[], None], interval_ms: float, name: str) -> None:
        """Start the thread. ``renew`` must not raise."""
        self._renew = renew
        self._interval_s = interval_ms / 1_000
        self._stopping = Event()
        self._thread = Thread(target=self._run, name=f"lease of {name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop after the renewal under way. Idempotent."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            self._renew()
