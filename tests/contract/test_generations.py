"""Generations of a store: drawn when it goes back in time, with numbers above all that were given out."""

import pytest

from partibus.partition.protocol import queries as q
from partibus.partition.protocol.generations import FIRST_NUMBER, LeftOff
from partibus.partition.protocol.keys import NUMBERS_END
from partibus.partition.protocol.ports import Snapshot, Store, StoreError, Writes
from partibus.store.generations import GAP
from tests.contract.stores import PARTITION, Opener, enqueued, positions

OTHER = PARTITION + 1


def counters(store: Store, row: int) -> tuple[int, int]:
    snapshot = store.read(q.Partition(row))
    assert snapshot is not None
    return snapshot.next_sequence, snapshot.next_number


def test_a_new_store_is_in_its_first_generation(open_store: Opener) -> None:
    store = open_store()
    (generation,) = store.generations
    assert generation.first == FIRST_NUMBER
    store.close()
    assert list(open_store().generations) == [generation]


def test_a_generation_begins_above_all_counters_and_stays(open_store: Opener) -> None:
    store = open_store()
    writes = enqueued(1, 2, 3)
    writes.counters[PARTITION] = (4, 70, 5)
    writes.counters[OTHER] = (GAP, 1, 0)
    store.commit(writes)
    (before,) = store.generations
    began = store.begin_generation()
    assert began.first > 2 * GAP
    assert began.id not in (0, before.id)
    assert counters(store, PARTITION) == counters(store, OTHER) == (began.first, began.first)
    store.close()
    store = open_store()
    assert list(store.generations) == [before, began]
    snapshot = store.read(q.Partition(PARTITION))
    assert snapshot is not None
    assert snapshot.session_state_bytes == 5
    assert snapshot.left_off == (LeftOff(4, 70, began.first),)
    assert positions(store) == [1, 2, 3]


def test_a_partition_that_was_never_written_begins_there_too(store: Store) -> None:
    first = [store.begin_generation().first, store.begin_generation().first]
    left_off = (LeftOff(FIRST_NUMBER, FIRST_NUMBER, first[0]), LeftOff(first[0], first[0], first[1]))
    assert first[0] + GAP <= first[1]
    assert store.read(q.Partition(PARTITION)) == Snapshot(first[1], first[1], 0, {}, [], [], {}, {}, left_off=left_off)


def test_a_generation_begins_above_what_is_known_from_elsewhere(store: Store) -> None:
    store.commit(enqueued(1))
    above = 5 * GAP
    assert above < store.begin_generation(above).first
    assert counters(store, PARTITION)[0] > above


def test_without_numbers_for_a_generation_the_store_is_as_it_was(store: Store) -> None:
    store.commit(enqueued(1))
    before = list(store.generations), store.read(q.Partition(PARTITION))
    with pytest.raises(StoreError, match=r"a new generation would begin with number .* move its messages") as refusal:
        store.begin_generation(NUMBERS_END - 8 * GAP)
    assert refusal.value.executed is False
    assert (list(store.generations), store.read(q.Partition(PARTITION))) == before
    store.commit(enqueued(2))
    assert positions(store) == [1, 2]


def test_a_dropped_partition_takes_its_rows_with_it(store: Store) -> None:
    store.commit(enqueued(1))
    store.begin_generation()
    writes = Writes()
    writes.dropped_partitions.append(PARTITION)
    store.commit(writes)
    assert positions(store) == []
    (row,) = store.generations[1:]
    if (snapshot := store.read(q.Partition(PARTITION))) is not None:  # hidden until it is swept, or never written
        assert snapshot.left_off == (LeftOff(FIRST_NUMBER, FIRST_NUMBER, row.first),)
