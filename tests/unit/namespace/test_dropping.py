"""Partitions of deleted entities: their rows are deleted when their stores can be used, whatever comes in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from partibus.namespace.changes import DroppedPartition
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.replies import Failed
from partibus.routing.partitions import Numbers, PartitionHandle
from tests.unit.routing.test_faulty_route import FakeStore

ROW = 7


class Store(FakeStore):
    """Drops when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.dropping: list[Callable[[Any], None]] = []

    def drop(self, row: int, on_dropped: Callable[[Any], None]) -> None:
        assert row == ROW
        self.dropping.append(on_dropped)

    def fail(self) -> None:
        self.failure = "the disk is sick"
        self.dropping.clear()
        receivers, self.receivers = self.receivers, {}
        for receiver, on_granted in receivers.items():
            on_granted(Failed(receiver, None, full=False, message="the disk is sick"))

    def recover(self) -> None:
        self.failure = None
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            call()


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def gone(store: Store) -> list[int]:
    gone: list[int] = []
    handle = PartitionHandle(0, ROW, store, PartitionOptions(), batched=False)
    DroppedPartition(handle, Numbers(), gone.append).start()
    return gone


def test_its_end_is_told_once_and_leaves_nothing_behind(store: Store, gone: list[int]) -> None:
    (dropped,) = store.dropping
    assert gone == []
    dropped(ROW)
    assert gone == [ROW]
    assert store.receivers == {}


@pytest.mark.row("A2")
def test_a_store_that_fails_in_between_is_asked_again(store: Store, gone: list[int]) -> None:
    for _ in range(2):
        store.fail()
        assert store.dropping == []
        store.recover()
    (dropped,) = store.dropping
    dropped(ROW)
    assert (gone, store.receivers, store.waiting) == ([ROW], {}, [])


@pytest.mark.row("A2")
def test_a_store_that_is_away_is_asked_when_it_is_back(store: Store) -> None:
    store.failure = "not there yet"
    gone: list[int] = []
    handle = PartitionHandle(0, ROW, store, PartitionOptions(), batched=False)
    DroppedPartition(handle, Numbers(), gone.append).start()
    assert store.dropping == []
    store.recover()
    store.dropping[0](ROW)
    assert gone == [ROW]
