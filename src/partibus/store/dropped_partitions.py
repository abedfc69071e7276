"""Removes the messages of deleted entities in slices, between commits.

Dropping a partition of two million messages in its own commit would block the store for eight seconds and put two
gigabytes into the log (measured). So the commit that drops it only notes it, the store hides it at once, and a thread
removes the rows. Partition rows are never reused, so the remaining rows can't be mistaken for others.
"""

import logging
from collections.abc import Callable, Iterable
from threading import Event, Lock, Thread
from typing import Any, TypeVar, cast

from partibus.partition.protocol import queries as q
from partibus.partition.protocol.keys import KIND_BITS, POSITION_BITS
from partibus.partition.protocol.ports import Query

log = logging.getLogger(__name__)

T = TypeVar("T")

SLICE_ROWS = 500
"""Entries, and as many bodies, in one transaction: some 3 ms."""

_PAUSE_S = 0.005
"""The pause between slices, so that commits have the store for most of the time."""
RETRY_S = 1.0
"""The pause after a slice that failed: the disk is full, or another program holds the file's lock."""
_LOOK_S = 0.02


class PartitionRemover:
    """The dropped partitions of one store. The thread runs while there are any."""

    def __init__(self, store: str, remove_slice: Callable[[int], bool], dropped: Iterable[int]) -> None:
        """Prepare to remove the ``dropped`` partitions of the store with this name.

        ``remove_slice`` removes a slice of a partition in its own transaction; it returns True when no row is left.
        """
        self._store = store
        self._remove_slice = remove_slice
        self.hidden = frozenset(dropped)
        """The partitions whose rows are still being removed. Each change makes another set: a reader keeps the one from
        before its query, since the last rows may go while it reads.
        """
        self._stopping = Event()
        self._lock = Lock()
        self._thread: Thread | None = None
        self.last_error: Exception | None = None
        """The error of the latest slice, or of the start of the thread. The rows stay hidden. The thread tries again;
        without one the next drop or opening does.
        """
        self._told = ""
        """The error that was logged last; "" after a slice that worked."""
        if self.hidden:
            self._start()

    def dropped(self, partition_rows: Iterable[int]) -> None:
        """Hide partitions that a commit has dropped, and start to remove them."""
        with self._lock:
            self.hidden = self.hidden.union(partition_rows)
            self._start()

    def wait(self) -> None:
        """Wait until no row is left to remove, or removing has failed. The caller does not hold the commit lock."""
        thread = self._thread
        while thread is not None and thread.is_alive() and self.last_error is None:
            thread.join(_LOOK_S)

    def stop(self) -> None:
        """Stop after the current slice. The remaining rows are removed when the store is opened again."""
        self._stopping.set()
        thread = self._thread
        if thread is not None:
            thread.join()

    def _start(self) -> None:
        if self._thread is None and not self._stopping.is_set():
            # A daemon: each slice is a transaction of its own, so the process may end between two.
            self._thread = thread = Thread(target=self._run, name="sweep of dropped partitions", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the process has too many threads
                self._thread = None
                self.last_error = error
                self._tell()

    def _tell(self) -> None:
        """Log the error of the latest slice, or its end, once."""
        text = "" if self.last_error is None else str(self.last_error)
        if text and text != self._told:
            log.warning(
                "%s: the messages of deleted entities can't be removed now (%s). They are hidden, but take room on the "
                "disk; the broker tries again",
                self._store,
                text,
            )
        elif self._told and not text:
            log.info("%s: the messages of deleted entities are being removed again", self._store)
        self._told = text

    def _run(self) -> None:
        pause_s = _PAUSE_S
        while not self._stopping.wait(pause_s):
            self._tell()  # after the pause: a store that is being closed refuses the last slice
            with self._lock:
                if not self.hidden:
                    self._thread = None
                    return
                partition_row = next(iter(self.hidden))
            pause_s = _PAUSE_S
            try:
                done = self._remove_slice(partition_row)
            except Exception as error:  # noqa: BLE001 (the thread has no caller, and rows left behind take room)
                self.last_error = error
                pause_s = RETRY_S
                continue
            self.last_error = None
            if done:
                with self._lock:
                    self.hidden -= {partition_row}


def without_hidden(hidden: frozenset[int], query: Query[T], found: T) -> T:
    """Return the answer to a query about all partitions, without the hidden ones."""
    answer: Any = found
    if isinstance(query, q.CursorPartitions):
        answer = [row for row in answer if row not in hidden]
    elif isinstance(query, q.Counts | q.TimedSubqueues):
        answer = {key: value for key, value in answer.items() if key >> KIND_BITS not in hidden}
    elif isinstance(query, q.Bodies):
        rows = (key >> (KIND_BITS + POSITION_BITS) for key in query.keys)
        answer = [None if row in hidden else body for row, body in zip(rows, answer, strict=True)]
    return cast(T, answer)
