"""Ctrl-C while a stream runs: heard between two calls of Spark.

As an exception it would come in the midst of one, which breaks the connection to Java, and PySpark would end the jobs
that run at that moment, the micro-batch among them.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interruption() -> Iterator[Callable[[], bool]]:
    """Answers whether Ctrl-C was pressed since. Who presses it again, or outside of this, gets the exception as ever.
    In other threads than the main one, which get no signals, it never was."""
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set
        return
    # None: of a handler that was not set from Python, and can't be from there.
    before = signal.getsignal(signal.SIGINT) or signal.SIG_DFL

    def note(_number: int, _frame: FrameType | None) -> None:
        pressed.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)
