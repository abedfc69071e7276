"""One partition over a store in memory, with commits and loads made when a test says so, as `StoreRuntime` makes them:
a load sees all that was written before it was asked for, and a reply leaves when what it saw is durable."""

from __future__ import annotations

from collections import deque

from partibus.partition.core.journal import record
from partibus.partition.core.machine import Partition
from partibus.partition.protocol import load_requests as w
from partibus.partition.protocol import queries as q
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.ports import Writes
from partibus.partition.runtime.queries import read
from tests.kit.stores.memory import MemoryStore

ROW = 7


class OnePartition:
    """Replies by request: only those that have left."""

    def __init__(self, options: PartitionOptions | None = None) -> None:
        self.options = options or PartitionOptions()
        self.store = MemoryStore()
        self.now_ms = 1_000_000
        self.replies: dict[int, r.Reply] = {}
        self.load()

    def load(self) -> None:
        """Load what is durable; what waited is lost."""
        self.machine = Partition(ROW, self.options, self.store.read(q.Partition(ROW)), self.store.epoch)
        self._pending = Writes()
        self._commit = 1
        self._durable = 0
        self.loads: deque[tuple[int, w.Load]] = deque()
        """Loads that were asked for, each with the commit that it has to see."""
        self._waiting: deque[tuple[int, r.Reply]] = deque()

    def give(self, command: w.Input) -> None:
        """Have a command handled."""
        step = self.machine.handle(command, self.now_ms)
        if step.events:
            record(ROW, step.events, self._pending)
            self._pending.counters[ROW] = self.machine.counters
            for subqueue, messages, size_bytes in self.machine.counts():
                self._pending.counts[subqueue] = (messages, size_bytes)
        needed = self._commit if self._pending.counters else self._commit - 1
        self.loads.extend((needed, load) for load in step.loads)
        self._waiting.extend((needed, reply) for reply in step.replies)
        self._let_go()

    def commit(self) -> None:
        """Make durable what is pending."""
        self.store.commit(self._pending)
        self._pending = Writes()
        self._durable = self._commit
        self._commit += 1
        self._let_go()

    def run_load(self) -> bool:
        """Do one load, if one may be done."""
        if not self.loads or self.loads[0][0] > self._durable:
            return False
        _, load = self.loads.popleft()
        self.give(w.Loaded(load, read(self.store, ROW, load)))
        return True

    def settle_down(self) -> None:
        """Run until nothing is under way."""
        while True:
            while self.run_load():
                pass
            if not self._pending.counters and not self.loads:
                return
            self.commit()

    def crash(self) -> None:
        """State that is not durable is lost."""
        self.store = self.store.reopen()
        self.load()

    def _let_go(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._durable:
            _, reply = self._waiting.popleft()
            self.replies[getattr(reply, "request", 0)] = reply
