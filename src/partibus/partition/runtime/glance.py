"""Counts of partitions that nobody uses, read without beginning to use them.

A list of ten thousand entities asks every partition for its counts. Would that load them all, their state stayed for as
long as the broker runs. So a partition that is not in use answers through one that lives as long as the answer takes.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from partibus.clock import Clock
from partibus.partition.core.machine import Partition
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import load_requests as w
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.ports import Store
from partibus.partition.runtime.reading import read
from partibus.partition.runtime.tenure import Tenure

AT_ONCE = 64
"""Partitions in one turn of a reader: some 10 ms, so that who wants messages meanwhile waits for no more."""


class Glance(NamedTuple):
    """One partition that is asked."""

    row: int
    options: PartitionOptions
    command: c.Inspect
    subscriptions: Sequence[int]
    """Rows of a topic's subscriptions: its size is theirs, too."""


class Glances:
    """The partitions of one store that are to be looked at, some at a time."""

    __slots__ = ("_asked", "_clock", "_looking", "_seen", "_tenure")

    def __init__(
        self, tenure: Tenure, clock: Clock, seen: Callable[[Sequence[tuple[Glance, r.Inspected]]], None]
    ) -> None:
        """``seen`` gets what some of them hold, in the order in which they were asked."""
        self._tenure = tenure
        self._clock = clock
        self._seen = seen
        self._asked: list[Glance] = []
        self._looking = False

    def add(self, glance: Glance) -> None:
        """Look at one more; the store is open."""
        self._asked.append(glance)
        if not self._looking:
            self._look()

    def clear(self) -> None:
        """The store is lost: who asked is told by who takes the answers."""
        self._asked.clear()
        self._looking = False

    def _look(self) -> None:
        asked, self._asked = self._asked[:AT_ONCE], self._asked[AT_ONCE:]
        self._looking = bool(asked)
        if not asked:
            return
        generation, now_ms = self._tenure.generation, self._clock.now_ms()

        def seen(inspected: list[r.Inspected]) -> None:
            self._seen(list(zip(asked, inspected, strict=True)))
            if generation == self._tenure.generation:
                self._look()

        self._tenure.read(lambda store: look(store, asked, now_ms), seen)


def look(store: Store, asked: Sequence[Glance], now_ms: int) -> list[r.Inspected]:
    """What the partitions hold as of the last commit, in the order in which they are asked. Blocks; changes nothing.
    Raises `StoreError`."""
    return [_look(store, one, now_ms) for one in asked]


def _look(store: Store, asked: Glance, now_ms: int) -> r.Inspected:
    partition = Partition(asked.row, asked.options, store.load_partition(asked.row))
    if asked.subscriptions and partition.state.subscriptions is not None:
        partition.state.subscriptions.begin(store.load_sizes(asked.subscriptions))
    step = partition.handle(asked.command, now_ms)
    for load in step.loads:
        if isinstance(load, w.ScheduledCount):
            step = partition.handle(w.Loaded(load, read(store, asked.row, load)), now_ms)
    (inspected,) = (reply for reply in step.replies if isinstance(reply, r.Inspected))
    return inspected
