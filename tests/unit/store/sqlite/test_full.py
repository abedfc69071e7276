"""A full disk: messages are refused, completes still commit, and room that comes back is used."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from partibus.partition.protocol import queries as q
from partibus.partition.protocol.keys import body_key, entry_key
from partibus.partition.protocol.ports import EntryState, StoreFull, Writes
from partibus.store.sqlite import SQLiteStore, StoreSettings
from tests.contract.stores import PARTITION, QUEUE, complete, enqueued, positions
from tests.unit.store.sqlite.places import SETTINGS, US, open_store

MIB = 1 << 20
LARGE = bytes(100_000)


def refuses(store: SQLiteStore) -> bool:
    """Whether the store says that it takes no messages now."""
    return not store.has_room


@dataclass
class Disk:
    """A file system of which a test says how much is free."""

    free: int

    def __call__(self, _directory: Path) -> int:
        return self.free


def open_on(disk: Disk, directory: Path) -> SQLiteStore:
    """A store that counts less than 1 MiB as full, and holds 64 KiB back."""
    settings = StoreSettings(reserved_bytes=65_536, min_free_bytes=MIB)
    return SQLiteStore.open(directory / "store-00.db", store_id="store-00", owner=US, settings=settings, free=disk)


def fill(store: SQLiteStore, first: int = 0) -> int:
    """Enqueue until the store is full; how many it took."""
    for taken in range(10_000):
        try:
            store.commit(enqueued(first + taken, data=LARGE))
        except StoreFull:
            return taken
    raise AssertionError("never full")


def test_a_file_at_its_bound_refuses_messages_and_keeps_those_it_has(tmp_path: Path) -> None:
    store = open_store(tmp_path, SETTINGS._replace(max_bytes=2 * MIB))
    taken = fill(store)
    assert 10 <= taken <= 20
    assert positions(store) == list(range(taken))
    assert refuses(store)
    assert store.read(q.Page(QUEUE, 0, 1, MIB))[0].data == LARGE
    store.close()
    store = open_store(tmp_path, SETTINGS._replace(max_bytes=2 * MIB))
    assert positions(store) == list(range(taken))
    store.close()


def test_everything_but_messages_goes_on_in_a_full_file_and_room_that_is_made_is_used(tmp_path: Path) -> None:
    store = open_store(tmp_path, SETTINGS._replace(max_bytes=2 * MIB))
    taken = fill(store)
    writes = Writes()
    writes.entry_updates += [entry_key(QUEUE, 1), body_key(PARTITION, 1), int(EntryState.DEFERRED), 1, None]
    writes.lock_batches[entry_key(QUEUE, 1)] = [(0, 99, b"\x01")]
    store.commit(writes)
    for pos in range(taken // 2):
        store.commit(complete(Writes(), pos, pos))
    assert not refuses(store)
    store.commit(enqueued(10_001, data=LARGE))
    assert positions(store) == [*range(taken // 2, taken), 10_001]
    store.close()


def test_states_of_sessions_are_refused_as_messages_are_but_can_be_cleared(tmp_path: Path) -> None:
    store = open_store(tmp_path, SETTINGS._replace(max_bytes=2 * MIB))
    kept = Writes()
    kept.session_states[PARTITION, "kept"] = (b"state", 1)
    store.commit(kept)
    fill(store)
    writes = Writes()
    writes.session_states[PARTITION, "new"] = (LARGE, 1)
    with pytest.raises(StoreFull):
        store.commit(writes)
    assert store.read(q.SessionState(PARTITION, "new")) is None
    cleared = Writes()
    cleared.session_states[PARTITION, "kept"] = (None, 2)
    store.commit(cleared)
    assert store.read(q.SessionState(PARTITION, "kept")) is None
    store.close()


def test_a_commit_that_is_refused_for_its_messages_does_nothing_else_either(tmp_path: Path) -> None:
    store = open_store(tmp_path, SETTINGS._replace(max_bytes=2 * MIB))
    taken = fill(store)
    with pytest.raises(StoreFull, match="no room; receive and complete messages") as caught:
        store.commit(complete(enqueued(20_000, data=LARGE), 0, 3))
    assert caught.value.executed is False
    assert str(tmp_path / "store-00.db") in str(caught.value)
    assert positions(store) == list(range(taken))
    store.close()


def test_messages_are_refused_before_the_disk_is_full(tmp_path: Path) -> None:
    disk = Disk(free=100 * MIB)
    store = open_on(disk, tmp_path)
    store.commit(enqueued(0))
    disk.free = MIB - 1
    assert fill(store, 100) < 3, "the disk is looked at every 64 KiB"
    assert refuses(store)
    found = positions(store)
    store.commit(complete(Writes(), 0, 0))
    assert positions(store) == found[1:]
    store.close()


def test_messages_are_taken_again_when_the_disk_has_room(tmp_path: Path) -> None:
    disk = Disk(free=MIB - 1)
    store = open_on(disk, tmp_path)
    assert refuses(store)
    with pytest.raises(StoreFull):
        store.commit(enqueued(1))
    disk.free = 100 * MIB
    assert not refuses(store)
    assert (tmp_path / "store-00.ballast").stat().st_size == 65_536
    store.commit(enqueued(1))
    assert positions(store) == [1]
    store.close()


def test_the_ballast_is_not_rebuilt_before_there_is_room_for_more_than_it(tmp_path: Path) -> None:
    disk = Disk(free=MIB + 65_535)
    store = open_on(disk, tmp_path)
    assert refuses(store)
    assert not (tmp_path / "store-00.ballast").exists()
    disk.free += 1
    assert not refuses(store)
    store.close()


def test_a_full_store_is_still_full_when_it_is_opened_again(tmp_path: Path) -> None:
    disk = Disk(free=100 * MIB)
    store = open_on(disk, tmp_path)
    store.commit(enqueued(0, data=LARGE))
    disk.free = 0
    assert fill(store, 1) < 3
    store.close()
    assert refuses(store), "asked of a closed store, too"
    store = store.reopen()
    assert refuses(store)
    with pytest.raises(StoreFull):
        store.commit(enqueued(50))
    store.close()


def test_completes_return_space_to_the_file_system(tmp_path: Path) -> None:
    disk = Disk(free=100 * MIB)
    store = open_on(disk, tmp_path)
    for pos in range(40):
        store.commit(enqueued(pos, data=LARGE))
    disk.free = 0
    taken = fill(store, 100)
    for pos in range(40):
        store.commit(complete(Writes(), pos, pos))
    assert positions(store) == list(range(100, 100 + taken))
    assert (tmp_path / "store-00.db").stat().st_size < MIB
    store.close()


def test_a_store_without_ballast(tmp_path: Path) -> None:
    settings = StoreSettings(reserved_bytes=0, min_free_bytes=0, max_bytes=2 * MIB)
    store = open_store(tmp_path, settings)
    taken = fill(store)
    store.commit(complete(Writes(), 0, taken - 1))
    store.commit(enqueued(5_000, data=LARGE))
    assert positions(store) == [5_000]
    assert not (tmp_path / "store-00.ballast").exists()
    store.close()
