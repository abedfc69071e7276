"""Removes the messages of deleted entities in slices, between commits.

Dropping a partition of two million messages in its own commit would hold the store up for eight seconds and put two
gigabytes into the log (measured). So the commit that drops it only notes it, the store hides it at once, and a thread
removes the rows. Partition rows are never used again, so what is left meanwhile can't be mistaken for anything else.
"""

from collections.abc import Callable, Iterable
from threading import Event, Lock, Thread

from partibus.partition.protocol.ports import StoreError

SLICE_ROWS = 500
"""Entries, and as many bodies, in one transaction: some 3 ms."""

_PAUSE_S = 0.005
"""Between slices, so that commits have the store for most of the time."""


class Sweeper:
    """The dropped partitions of one store. The thread lives as long as there are any."""

    def __init__(self, sweep_slice: Callable[[int], bool], dropped: Iterable[int]) -> None:
        """``sweep_slice`` removes a slice of a partition in a transaction of its own; True when nothing is left."""
        self._sweep_slice = sweep_slice
        self._dropped = set(dropped)
        self._stopping = Event()
        self._lock = Lock()
        self._thread: Thread | None = None
        self.last_error: Exception | None = None
        """Of the latest slice, or of the start of the thread. The rows stay hidden; the next drop or opening goes on
        with them."""
        if self._dropped:
            self._start()

    @property
    def hides_any(self) -> bool:
        """There are partitions that are as good as gone."""
        return bool(self._dropped)

    def hides(self, partition_row: int) -> bool:
        """Whether rows of this partition are as good as gone."""
        return partition_row in self._dropped

    def dropped(self, partition_rows: Iterable[int]) -> None:
        """A commit has dropped these."""
        with self._lock:
            self._dropped.update(partition_rows)
            self._start()

    def wait(self) -> None:
        """Until nothing is left to remove, or removing has failed. The caller does not hold the commit lock."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def stop(self) -> None:
        """After the slice under way. What is left is removed when the store is opened again."""
        self._stopping.set()
        self.wait()

    def _start(self) -> None:
        if self._thread is None and not self._stopping.is_set():
            self._thread = thread = Thread(target=self._run, name="sweep of dropped partitions")
            try:
                thread.start()
            except RuntimeError as error:  # the process has too many threads
                self._thread = None
                self.last_error = error

    def _run(self) -> None:
        while not self._stopping.wait(_PAUSE_S):
            with self._lock:
                if not self._dropped:
                    self._thread = None
                    return
                partition_row = next(iter(self._dropped))
            try:
                done = self._sweep_slice(partition_row)
            except StoreError as error:
                # The store is unusable now, or the disk full.
                self.last_error = error
                self._thread = None
                return
            if done:
                with self._lock:
                    self._dropped.discard(partition_row)
