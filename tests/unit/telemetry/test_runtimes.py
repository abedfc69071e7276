"""Runtimes report to a recorder also what did not become durable, and what was refused (D28)."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from partibus.limits import StoreLimits
from partibus.message import Message, pack
from partibus.partition.core.meters import Meters
from partibus.partition.protocol import commands as c
from partibus.partition.protocol.notes import COMPLETE, DELIVER, FULL, LOCK_LOST, OPERATIONS, SEND, Note, Refusal
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.ports import Store, StoreError, Writes
from partibus.partition.runtime.store_runtime import StoreRuntime
from tests.kit.simulated_host import SimulatedHost, Timeline
from tests.kit.stores.memory import MemoryDisk, MemoryStore

ROW = 3


class HeartbeatReply:
    """A recorder of one store that keeps what it is told."""

    def __init__(self) -> None:
        self.rows = self.dropped = 0
        self.told: list[tuple[Any, ...]] = []

    def of_store(self) -> HeartbeatReply:
        return self

    def noted(self, row: int, notes: list[Note], now_ms: int, commit: int) -> None:
        for operation, _, entries, _ in notes:
            if entries:
                self.told.append((OPERATIONS[operation], len(entries), commit))

    def refused(self, row: int, refusals: list[Refusal], now_ms: int) -> None:
        for operation, _, outcome, what in refusals:
            self.told.append((OPERATIONS[operation], len(what), {FULL: "full", LOCK_LOST: "lock lost"}[outcome]))

    def committed(self, row: int, commit: int, operations: int, size_bytes: int, seconds: float, now_ms: int) -> None:
        self.told.append(("commit", commit, operations))

    def failed(self) -> None:
        self.told.append(("failed",))

    def take(self) -> list[tuple[Any, ...]]:
        told, self.told = self.told, []
        return told


class FailingStore(MemoryStore):
    fails = False

    def commit(self, writes: Writes) -> None:
        if FailingStore.fails:
            raise StoreError("the disk is gone")
        super().commit(writes)


class Broker:
    """A runtime that is recorded."""

    def __init__(self) -> None:
        FailingStore.fails = False
        self.timeline = Timeline()
        self.heard = HeartbeatReply()
        self.options = PartitionOptions(size_bytes_max=200, lock_duration_ms=1_000)
        disk = MemoryDisk()

        def open_store() -> Store:
            return FailingStore(disk)

        host = SimulatedHost(self.timeline, Random(1))
        self.runtime = StoreRuntime(open_store, host, self.timeline, StoreLimits(), meters=Meters(recorder=self.heard))
        self.runtime.open()
        self.answers: list[Any] = []

    def ask(self, command: c.Command) -> Any:
        self.runtime.submit(ROW, self.options, command, self.answers.append)
        while not self.answers:
            self.timeline.run_next()
        return self.answers.pop()


@pytest.fixture
def broker() -> Iterator[Broker]:
    yield Broker()
    FailingStore.fails = False


def messages(count: int = 1) -> list[Message]:
    return [Message(pack(rest=bytes(100))) for _ in range(count)]


def test_what_is_done_names_its_commit(broker: Broker) -> None:
    broker.ask(c.Enqueue(1, messages(2)))
    assert broker.heard.take() == [(OPERATIONS[SEND], 2, 1), ("commit", 1, 2)]
    broker.runtime.register(9, broker.answers.append)
    grant = broker.ask(c.Receive(0, 9, 2, 1 << 20))
    assert broker.heard.take() == [(OPERATIONS[DELIVER], 2, 2)], "a lock's row is in the next commit"
    tokens = [(grant.lock_id, entry.pos) for entry in grant.entries]
    broker.ask(c.Settle(2, 0, c.Outcome.COMPLETE, tokens))
    told = broker.heard.take()
    assert [one for one in told if one[0] == OPERATIONS[COMPLETE]] == [(OPERATIONS[COMPLETE], 2, 2)]
    broker.ask(c.Settle(3, 0, c.Outcome.COMPLETE, tokens))
    assert broker.heard.take()[-1] == (OPERATIONS[COMPLETE], 2, "lock lost")


def test_a_full_partition_refuses(broker: Broker) -> None:
    broker.ask(c.Enqueue(1, messages(2)))
    broker.heard.take()
    broker.ask(c.Enqueue(2, messages(3)))
    assert broker.heard.take() == [(OPERATIONS[SEND], 3, "full")]


def test_a_commit_that_fails_is_told(broker: Broker) -> None:
    FailingStore.fails = True
    broker.ask(c.Enqueue(1, messages()))
    assert broker.heard.take() == [(OPERATIONS[SEND], 1, 1), ("failed",)]
