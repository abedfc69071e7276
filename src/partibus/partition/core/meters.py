"""Counters of partitions and commits, for `docs/metrics.md`. They only rise while the process lives.

A partition adds to its `Tally` once per batch, when the result is known. Operations that a failing commit takes back
stay counted: a client that repeats them is counted twice.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Final

from partibus.partition.core.express import Room
from partibus.partition.core.residency import Residency
from partibus.partition.protocol.notes import Recorder
from partibus.partition.protocol.ports import Store, Writes

COMMIT_BUCKETS_S: Final = (0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds of the histogram of commits: a sync of a good disk is a third of the first, a busy one's near 0.01."""

TALLIED: Final = (
    "received", "delivered", "completed", "abandoned", "deferred", "dead_lettered", "expired", "locks_expired",
    "forwarded", "never_written",
)  # fmt: skip
"""The message counters of a `Tally`."""
COMMITTED: Final = ("commits", "operations", "waited_s")
"""The commit counters of a `Tally`."""
PARTITION_NUMBERS: Final = ("partition", "received", "delivered", "messages", "dead_letters", "bytes")
"""The numbers reported for each partition of a partitioned entity, in this order."""


class Tally:
    """Messages of one partition since the process began, and the commits that had rows of it."""

    __slots__ = (*TALLIED, *COMMITTED, "since_s")

    def __init__(self) -> None:
        self.received = 0
        """Messages stored, scheduled ones included; at a topic, messages published, with or without a subscription."""
        self.delivered = 0
        """Deliveries, repeated ones included."""
        self.completed = 0
        """Messages completed by their receivers, or deleted as they were received."""
        self.abandoned = 0
        self.deferred = 0
        self.dead_lettered = 0
        """Messages moved to the dead-letter or the transfer dead-letter sub-queue, for any reason."""
        self.expired = 0
        """Their time to live was over; dead-lettered or dropped."""
        self.locks_expired = 0
        """Messages that went back because no receiver settled them in time."""
        self.forwarded = 0
        """Went on to another entity."""
        self.never_written = 0
        """Express messages that the store was spared: they left before they were old (row C23)."""
        self.commits = 0
        """Commits that were begun with rows of it."""
        self.operations = 0
        """The messages that those commits enqueued, locked, settled or moved."""
        self.waited_s = 0.0
        """The time from the first row to the begin of the commit: the wait for company, and for the commit before."""
        self.since_s = 0.0
        """When the first row was made that is in no commit yet."""

    def values(self) -> tuple[int, ...]:
        """Return the figures in the order of `TALLIED`."""
        return tuple([getattr(self, name) for name in TALLIED])


class CommitMeter:
    """Commits of one store, by the runtime that makes them."""

    __slots__ = ("_elapsed_s", "buckets", "commits", "failures", "operations", "seconds", "size_bytes", "waited_s")

    def __init__(self, elapsed_s: Callable[[], float]) -> None:
        self._elapsed_s = elapsed_s
        self.commits = 0
        """The number of durable commits."""
        self.failures = 0
        self.operations = 0
        """Operations of those commits: messages enqueued, locked, settled or moved."""
        self.size_bytes = 0
        """Bytes of messages and session states in those commits."""
        self.seconds = 0.0
        self.waited_s = 0.0
        """The time from the first row of a commit to its begin, of all commits that were begun."""
        self.buckets = [0] * (len(COMMIT_BUCKETS_S) + 1)
        """How many took at most so long (`COMMIT_BUCKETS_S`) and longer than the bound before; the last, longer."""

    def timed(self, store: Store, writes: Writes) -> float:
        """Make a commit; return how long it took. On the writer's thread."""
        begun_s = self._elapsed_s()
        store.commit(writes)
        return self._elapsed_s() - begun_s

    def committed(self, operations: int, size_bytes: int, seconds: float) -> None:
        """Count a durable commit."""
        self.commits += 1
        self.operations += operations
        self.size_bytes += size_bytes
        self.seconds += seconds
        self.buckets[bisect_left(COMMIT_BUCKETS_S, seconds)] += 1


class Meters:
    """All that is counted in one process: entities keep their counts when a store comes, fails or goes."""

    def __init__(self, elapsed_s: Callable[[], float] = float, recorder: Recorder | None = None) -> None:
        """Make counters at zero.

        ``elapsed_s``: seconds since some moment; without it, all commits take no time. ``recorder``: records operations
        on single messages, if telemetry is on.
        """
        self.elapsed_s = elapsed_s
        self.recorder = recorder
        self.express = Room()
        """The bound of the express messages in memory, of all stores."""
        self.residency = Residency()
        """The bound of the memory of partitions in use, of all stores."""
        self.tallies: dict[int, Tally] = {}
        """Meters by partition row, of the partitions that are or were in use here and are not deleted."""

    def begun(self, meter: CommitMeter, rows: Iterable[int]) -> None:
        """Note that a commit with rows of these partitions begins (rows C13, C14)."""
        tallies, now_s = self.tallies, self.elapsed_s()
        longest_s = 0.0
        for row in rows:
            tally = tallies.get(row)
            if tally is not None:
                waited_s = now_s - tally.since_s
                tally.commits += 1
                tally.waited_s += waited_s
                longest_s = max(longest_s, waited_s)
        meter.waited_s += longest_s

    def tally_of(self, row: int) -> Tally:
        """Return the tally of a row: the same object each time."""
        tally = self.tallies.get(row)
        if tally is None:
            tally = self.tallies[row] = Tally()
        return tally
