"""The right to commit (D19)."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from partibus.partition.protocol.ports import StoreError, StoreFenced
from partibus.store.sqlite import Owner
from tests.contract.stores import enqueued, positions
from tests.unit.store.sqlite.places import open_store


def owner_row(directory: Path) -> tuple[str, str, int, int]:
    with closing(sqlite3.connect(directory / "store-00.db")) as connection:
        ((broker, incarnation, epoch, last_commit),) = connection.execute(
            "SELECT broker, incarnation, epoch, last_commit FROM owner"
        )
    return broker, incarnation, epoch, last_commit


def test_each_opening_raises_the_epoch_and_names_its_owner(tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        store = open_store(tmp_path, owner=Owner(f"broker-{epoch}", "run"))
        assert store.epoch == epoch
        assert owner_row(tmp_path) == (f"broker-{epoch}", "run", epoch, 0)
        store.close()


def test_the_number_of_the_last_commit_is_stored_with_it(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for pos in range(1, 6):
        store.commit(enqueued(pos))
        assert owner_row(tmp_path)[3] == store.last_commit == pos
    with pytest.raises(StoreError):
        store.commit(enqueued(5))
    assert owner_row(tmp_path)[3] == store.last_commit == 5
    store.close()
    store = open_store(tmp_path)
    assert store.last_commit == 5
    store.close()


def test_the_earlier_opener_is_fenced_off_when_the_lock_file_fails(tmp_path: Path) -> None:
    first = open_store(tmp_path)
    first.commit(enqueued(1))
    (tmp_path / "store-00.lock").unlink()
    second = open_store(tmp_path, owner=Owner("broker-2", "run-9"))
    assert positions(second) == [1]

    with pytest.raises(StoreFenced, match=r"taken over by broker 'broker-2', incarnation 'run-9', epoch 2") as caught:
        first.commit(enqueued(2))
    assert caught.value.executed is False
    assert "give up the store" in str(caught.value)
    with pytest.raises(StoreError, match="taken over"):
        first.commit(enqueued(3))
    first.close()

    second.commit(enqueued(4))
    assert positions(second) == [1, 4]
    second.close()


def test_the_same_broker_is_fenced_off_by_its_own_later_run(tmp_path: Path) -> None:
    first = open_store(tmp_path, owner=Owner("broker-1", "run-1"))
    (tmp_path / "store-00.lock").unlink()
    second = open_store(tmp_path, owner=Owner("broker-1", "run-1"))
    with pytest.raises(StoreFenced):
        first.commit(enqueued(1))
    first.close()
    assert positions(second) == []
    second.close()


def test_reopen_takes_the_same_file_over_again(tmp_path: Path) -> None:
    first = open_store(tmp_path)
    first.commit(enqueued(1))
    second = first.reopen()
    assert (second.epoch, positions(second)) == (2, [1])
    with pytest.raises(StoreError, match="closed"):
        first.commit(enqueued(2))
    second.close()
