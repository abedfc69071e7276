"""Promises of the store in memory beyond the contract."""

import pytest

from partibus.partition.protocol.ports import StoreError, StoreFenced
from tests.contract.stores import enqueued, positions
from tests.kit.stores.memory import MemoryDisk, MemoryStore


def test_a_disk_outlives_its_store() -> None:
    disk = MemoryDisk()
    store = MemoryStore(disk)
    store.commit(enqueued(1))
    store.close()
    assert positions(MemoryStore(disk)) == [1]
    assert positions(MemoryStore()) == []


def test_the_later_opener_fences_the_earlier_one_off() -> None:
    disk = MemoryDisk()
    first = MemoryStore(disk, "shared")
    first.commit(enqueued(1))
    second = first.reopen()
    third = MemoryStore(disk)
    with pytest.raises(StoreFenced, match="shared: opened again with epoch 3, ours was 2"):
        second.commit(enqueued(2))
    third.commit(enqueued(3))
    assert positions(third) == [1, 3]


def test_a_crash_closes_the_store() -> None:
    store = MemoryStore()
    store.commit(enqueued(1))
    store.crash()
    with pytest.raises(StoreError, match="open it again"):
        positions(store)
    assert positions(store.reopen()) == [1]


def test_a_refused_unsynced_commit_leaves_no_trace() -> None:
    store = MemoryStore()
    store.commit(enqueued(1))
    with pytest.raises(StoreError, match="body key"):
        store.commit_unsynced(enqueued(2, 1))
    assert positions(store) == [1]
    store.crash()
    assert positions(store.reopen()) == [1]
