"""A sink as a job uses it: tasks that send their rows again, late copies, commits that a lost driver repeats, and a
store that forgets what was not durable. Each row is stored once, whatever happens (row D5)."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from partibus.partition.core.sink import NEVER_COMMITTED
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import queries as q
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.options import PartitionOptions
from tests.unit.partition.one_partition import ROW, OnePartition
from tests.unit.partition.test_sink import SINK, message, row_id, stored

pytestmark = pytest.mark.timeout(420)
TIMES = int(os.environ.get("PARTIBUS_PROPERTY_EXAMPLES", "1"))
ROWS_OF_BATCH = 6


class SinkMachine(RuleBasedStateMachine):
    """Batch b has the rows 10 b, 10 b + 1, ... The job goes on to the next one when all of them were accepted and the
    commit was answered; it may send any of them any number of times before, and, when its driver was lost, those of the
    batch that it has committed last."""

    @initialize(window_ms=st.sampled_from([None, None, 50]))
    def begin(self, window_ms: int | None) -> None:
        self.partition = OnePartition(PartitionOptions(duplicate_window_ms=window_ms))
        self.batch = 0
        self.accepted: set[int] = set()
        """Rows of the batch whose acceptance was answered."""
        self.ever: set[int] = set()
        self.requests = 0
        self.sent: dict[int, list[int]] = {}
        self.committing: int | None = None

    # -- the job -----------------------------------------------------------------------------------------------------

    @rule(rows=st.lists(st.integers(0, ROWS_OF_BATCH - 1), min_size=1, max_size=4, unique=True))
    def send(self, rows: list[int]) -> None:
        self._send([10 * self.batch + row for row in rows])

    @precondition(lambda self: self.batch > 0)
    @rule(rows=st.lists(st.integers(0, ROWS_OF_BATCH - 1), min_size=1, max_size=4, unique=True))
    def repeat_the_batch_before(self, rows: list[int]) -> None:
        self._send([10 * (self.batch - 1) + row for row in rows])

    def _send(self, rows: list[int]) -> None:
        self.requests += 1
        self.sent[self.requests] = rows
        self.partition.give(
            c.Enqueue(self.requests, [message(row) for row in rows], sink=(SINK, [row_id(row) for row in rows]))
        )
        self._hear()

    @precondition(lambda self: len(self.accepted) == ROWS_OF_BATCH and self.committing is None)
    @rule()
    def commit_batch(self) -> None:
        self.requests += 1
        self.committing = self.requests
        self.partition.give(c.CommitSink(self.requests, SINK, self.batch))
        self._hear()

    @precondition(lambda self: self.batch > 0)
    @rule(back=st.integers(1, 3))
    def repeat_a_commit(self, back: int) -> None:
        self.partition.give(c.CommitSink(0, SINK, self.batch - back))

    def _hear(self) -> None:
        replies, self.partition.replies = self.partition.replies, {}
        for request, reply in replies.items():
            if isinstance(reply, r.Accepted):
                rows = self.sent.pop(request)
                self.ever.update(rows)
                self.accepted.update(row for row in rows if row // 10 == self.batch)
            elif isinstance(reply, r.Done) and request == self.committing:
                # Rows still under way are of abandoned tasks; those end before the next batch but one.
                self.committing = None
                self.batch += 1
                self.accepted = set()

    # -- the partition -----------------------------------------------------------------------------------------------

    @rule()
    def make_durable(self) -> None:
        self.partition.commit()
        self._hear()

    @rule()
    def load(self) -> None:
        self.partition.run_load()
        self._hear()

    @rule()
    def settle_down(self) -> None:
        self.partition.settle_down()
        self._hear()

    @rule()
    def finish_the_batch(self) -> None:
        """All of it goes well, and what can be forgotten is."""
        if self.committing is None:
            self._send([10 * self.batch + row for row in range(ROWS_OF_BATCH)])
            self.settle_down()
            self.commit_batch()
        self.settle_down()
        for _ in range(3):
            self.time_passes(20)
            self.settle_down()

    @rule(ms=st.sampled_from([1, 20, 200]))
    def time_passes(self, ms: int) -> None:
        self.partition.now_ms += ms
        self.partition.give(c.Tick())
        self._hear()

    @rule()
    def crash(self) -> None:
        self.partition.crash()
        self.sent.clear()
        self.committing = None  # and is asked for again

    # -- what holds --------------------------------------------------------------------------------------------------

    @invariant()
    def stored_once(self) -> None:
        rows = self.partition.store.read(q.Partition(ROW))
        if rows is not None:
            assert rows.sinks.get(SINK, NEVER_COMMITTED) <= self.batch

    def teardown(self) -> None:
        if not hasattr(self, "partition"):
            return
        found = Counter(stored(self.partition))
        self._hear()
        assert set(found.values()) <= {1}, f"stored more than once: {found}"
        assert self.ever <= found.keys(), "a row that was accepted is not there"


settled: Any = settings(max_examples=30 * TIMES, stateful_step_count=40, deadline=None)
TestSink = pytest.mark.row("D5")(SinkMachine.TestCase)
TestSink.settings = settled
