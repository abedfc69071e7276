"""The senders beside whatever else the run does."""

from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from types import TracebackType

from partibus.demo.errors import DemoError
from partibus.demo.replay import Sent, replay
from partibus.demo.steps import POLL_SECONDS, Step, Steps
from partibus.demo.topology import TOPIC


class Sending:
    """Begins when its context is entered; leaving it waits for the senders, or after an error stops them."""

    def __init__(self, connection: str, rows: int, senders: int, steps: Steps) -> None:
        self._connection = connection
        self._rows = rows
        self._senders = senders
        self._steps = steps
        self._sent = 0
        self._is_given_up = False
        self._stack = ExitStack()
        self._running: Future[Sent] | None = None

    def __enter__(self) -> "Sending":
        pool = self._stack.enter_context(ThreadPoolExecutor(1))
        self._running = pool.submit(self._send)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_given_up = error is not None
        self._stack.close()

    def wait_for(self, count: int) -> None:
        """Until the broker has accepted so many, or the senders have ended."""
        assert self._running is not None, "waited for before it began"
        while self._sent < count and wait([self._running], timeout=POLL_SECONDS).not_done:
            pass

    def result(self) -> Sent:
        """Wait for the end. Raises `DemoError` when a sender failed."""
        assert self._running is not None, "asked before it began"
        return self._running.result()

    def _send(self) -> Sent:
        with self._steps.step("send", total=self._rows, messages=self._rows) as step:
            return replay(self._connection, TOPIC, self._rows, self._senders, lambda count: self._accepted(step, count))

    def _accepted(self, step: Step, count: int) -> None:
        if self._is_given_up:
            # That ends the senders.
            raise DemoError("nobody waits for the senders any more")
        self._sent += count
        step.advance(count)
