"""Reads partitions of one store, and what they ask for later, and makes their machines."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from partibus.partition.core.express import Pool
from partibus.partition.core.machine import Partition
from partibus.partition.core.meters import Meters
from partibus.partition.core.residency import Cold
from partibus.partition.protocol import load_requests as w
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.ports import Snapshot, Store
from partibus.partition.runtime.reading import read
from partibus.partition.runtime.slot import Slot
from partibus.partition.runtime.tenure import Tenure
from partibus.partition.runtime.topic import Topics


class Loading:
    """Of one store. What was read for a partition that is not in use any more is given up."""

    __slots__ = ("_express", "_meters", "_slots", "_tenure", "_topics", "topics")

    def __init__(
        self, tenure: Tenure, slots: Mapping[int, Slot], topics: Topics, meters: Meters, express: Pool
    ) -> None:
        """``slots``: the partitions in use, by row."""
        self._tenure = tenure
        self._slots = slots
        self._topics = topics
        self._meters = meters
        self._express = express
        self.topics: set[Slot] = set()
        """Topics that are being loaded: what their subscriptions hold must not be forgotten meanwhile."""

    def subscriptions_of(self, row: int, options: PartitionOptions) -> Sequence[int]:
        """The rows of its subscriptions, if it is a topic's."""
        return self._topics.subscriptions_of(row) if options.topic else ()

    def load(
        self, slot: Slot, run: str, loaded: Callable[[Slot, Partition], None], cold: Callable[[int], Cold]
    ) -> None:
        """Read what a partition begins with, and make its machine. ``run``: of this broker. ``cold``: gives what is
        left of it in memory."""
        row, subscriptions = slot.row, self.subscriptions_of(slot.row, slot.options)
        store = self._tenure.store
        assert store is not None, "open"
        epoch = store.epoch

        def ask(store: Store) -> tuple[Snapshot | None, Mapping[int, int]]:
            return store.load_partition(row), store.load_sizes(subscriptions) if subscriptions else {}

        def found(answer: tuple[Snapshot | None, Mapping[int, int]]) -> None:
            snapshot, sizes = answer
            self.topics.discard(slot)
            machine = slot.machine = Partition(row, slot.options, snapshot, epoch, cold(row))
            state = machine.state
            state.tally = self._meters.tally_of(row)
            state.pool = self._express
            state.run = run
            if slot.options.topic:
                self._topics.loaded(slot, dict.fromkeys(subscriptions, 0) | dict(sizes), self._slots)
            loaded(slot, machine)

        if slot.options.topic:
            self.topics.add(slot)
        self._tenure.read(
            ask,
            found,
            wanted=lambda: self._slots.get(row) is slot,
            given_up=lambda: self.topics.discard(slot),
        )

    def read(self, slot: Slot, load: w.Load, found: Callable[[w.Loaded], None], given_up: Callable[[], None]) -> None:
        """Read what a machine asks for. ``given_up`` is called instead of ``found`` when nobody can use it any more."""
        row = slot.row

        def answered(answer: Any) -> None:
            found(w.Loaded(load, answer))

        self._tenure.read(
            lambda store: read(store, row, load),
            answered,
            wanted=lambda: self._slots.get(row) is slot,
            given_up=given_up,
        )
