"""The state after each planned fault, with and without a crash."""

from collections.abc import Callable
from pathlib import Path

import pytest

from partibus.partition.protocol import queries as q
from partibus.partition.protocol.ports import Store, StoreError, Writes
from tests.contract.stores import QUEUE, enqueued, positions, sqlite
from tests.kit.stores.faulty import Faults, FaultSource, FaultyStore
from tests.kit.stores.memory import MemoryDisk, MemoryStore


def in_memory(_directory: Path) -> Store:
    return MemoryStore()


def in_a_file(directory: Path) -> Store:
    return sqlite(directory)()


BOTH = pytest.mark.parametrize("open_inner", [in_memory, in_a_file])
UNKNOWN = None


def failing(inner: Store, **faults: float) -> FaultyStore:
    return FaultyStore(inner, FaultSource(seed=3, faults=Faults(**faults)))  # type: ignore[arg-type]


@BOTH
@pytest.mark.parametrize(
    ("fault", "executed", "stored"),
    [("refused", False, []), ("forgotten", UNKNOWN, []), ("torn", UNKNOWN, []), ("unanswered", UNKNOWN, [1, 2])],
)
def test_a_fault_tells_the_truth_about_its_commit(
    tmp_path: Path, open_inner: Callable[[Path], Store], fault: str, executed: bool | None, stored: list[int]
) -> None:
    inner = open_inner(tmp_path)
    with pytest.raises(StoreError, match="planned fault") as caught:
        failing(inner, **{fault: 1.0}).commit(enqueued(1, 2))
    assert caught.value.executed is executed
    assert inner.name in str(caught.value)
    assert positions(inner) == stored
    again = failing(inner).reopen()
    assert positions(again) == stored
    again.close()


def test_an_unsynced_commit_is_seen_until_the_crash() -> None:
    store = failing(MemoryStore())
    store.commit(enqueued(1))
    with pytest.raises(StoreError) as caught:
        failing(store.inner, unsynced=1.0).commit(enqueued(2))
    assert caught.value.executed is UNKNOWN
    assert positions(store) == [1, 2]
    assert positions(store.reopen()) == [1, 2]

    store = store.reopen()
    store.crash()
    store = store.reopen()
    assert positions(store) == [1]
    store.commit(enqueued(3))
    assert positions(store) == [1, 3]


def test_a_later_commit_syncs_what_was_not() -> None:
    store = failing(MemoryStore())
    with pytest.raises(StoreError):
        failing(store.inner, unsynced=1.0).commit(enqueued(1))
    store.commit(enqueued(2))
    store.crash()
    assert positions(store.reopen()) == [1, 2]


def test_a_torn_commit_is_on_the_disk_in_part_and_discarded_by_recovery() -> None:
    disk = MemoryDisk()

    def torn_columns() -> int:
        return 0 if disk.torn_tail is None else len(disk.torn_tail.entries)

    store = failing(MemoryStore(disk), torn=1.0)
    with pytest.raises(StoreError):
        store.commit(enqueued(*range(50)))
    assert 0 < torn_columns() < len(enqueued(*range(50)).entries)
    store.crash()
    again = store.reopen()
    assert torn_columns() == 0
    assert positions(again) == []


@BOTH
def test_a_crash_keeps_every_commit_that_returned(tmp_path: Path, open_inner: Callable[[Path], Store]) -> None:
    store = failing(open_inner(tmp_path))
    store.commit(enqueued(1))
    store.commit(enqueued(2))
    store.crash()
    with pytest.raises(StoreError, match="open it again"):
        store.commit(enqueued(3))
    again = store.reopen()
    assert positions(again) == [1, 2]
    again.close()


def test_loads_fail_too() -> None:
    store = failing(MemoryStore(), load_fails=1.0)
    loads: list[Callable[[], object]] = [
        lambda: store.read(q.Partition(5)),
        lambda: store.read(q.Page(QUEUE, 0, 1, 1)),
        lambda: store.read(q.Bodies([1])),
        lambda: store.read(q.Peek(QUEUE, 0, 1, 1)),
        lambda: store.read(q.Browse(QUEUE, 0, 1, 1, 1)),
    ]
    for load in loads:
        with pytest.raises(StoreError, match="refused a read"):
            load()
    store.commit(Writes())


def test_a_seed_repeats_its_story_and_chances_are_kept() -> None:
    def story(seed: int) -> tuple[list[str], dict[str, int], list[int]]:
        delays: list[int] = []
        faults = Faults(refused=0.2, forgotten=0.1, unanswered=0.1, unsynced=0.1, torn=0.1, delayed=0.5)
        source = FaultSource(seed, faults, delays.append)
        store = FaultyStore(MemoryStore(), source)
        outcomes = []
        for pos in range(500):
            try:
                store.commit(enqueued(pos))
                outcomes.append("done")
            except StoreError as error:
                outcomes.append(str(error))
        return outcomes, source.happened, delays

    outcomes, happened, delays = story(1)
    assert (outcomes, happened, delays) == story(1)
    assert outcomes != story(2)[0]
    assert set(happened) == {"refused", "forgotten", "unanswered", "unsynced", "torn", "delayed"}
    assert 150 < outcomes.count("done") < 250
    assert len(delays) == happened["delayed"]
    assert 1 <= min(delays) <= max(delays) <= Faults().delay_ms_max


def test_a_store_that_cant_be_reopened_says_so() -> None:
    class Bare(MemoryStore):
        reopen = None  # type: ignore[assignment]

    with pytest.raises(TypeError, match="Bare"):
        failing(Bare()).reopen()
