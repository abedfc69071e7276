"""Any sequence of commits: every store answers as the model does, before and after it is opened anew."""

from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partibus.partition.keys import body_key, entry_key, subqueue_key
from partibus.partition.ports import EntryRow, Store, StoreError, Writes
from tests.contract.model import Model
from tests.contract.stores import memory, sqlite

PARTITIONS = (0, 1)
SUBQUEUES = [subqueue_key(partition, kind) for partition in PARTITIONS for kind in (0, 1, 2)]
POSITIONS = st.integers(0, 9)
NUMBERS = st.integers(0, 1 << 40)


@st.composite
def keys_of_entries(draw: st.DrawFn) -> int:
    return entry_key(draw(st.sampled_from(SUBQUEUES)), draw(POSITIONS))


@st.composite
def keys_of_bodies(draw: st.DrawFn) -> int:
    return body_key(draw(st.sampled_from(PARTITIONS)), draw(POSITIONS))


def ranges(keys: st.SearchStrategy[int]) -> st.SearchStrategy[tuple[int, int]]:
    """Mostly short; any two keys now and then."""
    return st.one_of(
        keys.map(lambda key: (key, key)),
        st.tuples(keys, st.integers(0, 4)).map(lambda pair: (pair[0], pair[0] + pair[1])),
        st.tuples(keys, keys),
    )


@st.composite
def commits(draw: st.DrawFn) -> Writes:
    writes = Writes()
    pairs = st.tuples(NUMBERS, NUMBERS)
    writes.counters = draw(st.dictionaries(st.sampled_from(PARTITIONS), pairs))
    writes.counts = draw(st.dictionaries(st.sampled_from(SUBQUEUES), pairs, max_size=4))
    bodies = draw(st.dictionaries(keys_of_bodies(), st.binary(max_size=20), max_size=6))
    writes.bodies = [column for row in bodies.items() for column in row]
    for key in draw(st.sets(keys_of_entries(), max_size=6)):
        session = draw(st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=4))
        sequence = key & 0xFFFF if not key >> 40 & 3 else draw(POSITIONS)
        body = body_key(key >> 42, draw(POSITIONS))
        due_ms = draw(st.none() | NUMBERS)
        writes.entries += [key, body, sequence, draw(NUMBERS), draw(st.integers(0, 2)), 0, session, due_ms]
    for key in draw(st.lists(keys_of_entries(), max_size=4)):
        writes.entry_updates += [key, draw(st.integers(0, 2)), draw(POSITIONS), draw(st.none() | NUMBERS)]
    writes.deleted_locks = draw(st.lists(keys_of_entries(), max_size=4))
    lock_rows = st.lists(st.tuples(POSITIONS, NUMBERS, st.binary(min_size=1, max_size=2)), max_size=2)
    writes.lock_batches = draw(st.dictionaries(keys_of_entries(), lock_rows, max_size=2))
    writes.deleted_entries = draw(st.lists(ranges(keys_of_entries()), max_size=4))
    writes.deleted_bodies = draw(st.lists(ranges(keys_of_bodies()), max_size=2))
    return writes


@st.composite
def histories(draw: st.DrawFn) -> list[Writes]:
    """Commits; the last may drop partitions, whose rows are never used again."""
    history = draw(st.lists(commits(), max_size=5))
    if history:
        history[-1].dropped_partitions = draw(st.lists(st.sampled_from(PARTITIONS), max_size=2))
    return history


def bounded(rows: list[EntryRow], max_entries: int, max_bytes: int) -> list[EntryRow]:
    """As many as both bounds allow, one at least."""
    fitting = [count for count in range(len(rows) + 1) if sum(len(row.data) for row in rows[:count]) <= max_bytes]
    return rows[: min(max_entries, max(1, fitting[-1]))]


def assert_answers_as(model: Model, store: Store, max_entries: int, max_bytes: int) -> None:
    bounds = (max_entries, max_bytes)
    for partition in PARTITIONS:
        assert store.load_partition(partition) == model.snapshot(partition)
    wanted = [body_key(partition, number) for partition in PARTITIONS for number in range(12)]
    assert store.load_bodies(wanted) == [model.bodies.get(key) for key in wanted]
    for subqueue in SUBQUEUES:
        rows = model.rows(subqueue)
        by_sequence = rows if not subqueue & 3 else sorted(rows, key=lambda row: (row.sequence, row.pos))
        assert store.browse(subqueue, 0, 1 << 40, 99, 9_999) == rows
        for start in (0, 4):
            active = [row for row in rows if row.pos >= start and row.state == 0]
            assert store.load_page(subqueue, start, *bounds) == bounded(active, *bounds)
            following = [row for row in by_sequence if row.sequence >= start]
            assert store.peek(subqueue, start, *bounds) == bounded(following, *bounds)
            inside = [row for row in rows if start <= row.pos < start + 3]
            assert store.browse(subqueue, start, start + 3, *bounds) == bounded(inside, *bounds)


@pytest.mark.parametrize("place", [memory, sqlite])
@given(history=histories(), bounds=st.tuples(st.integers(1, 6), st.integers(0, 60)))
@settings(max_examples=60, deadline=None)
def test_a_store_answers_as_the_model(place: Any, history: list[Writes], bounds: tuple[int, int]) -> None:
    with TemporaryDirectory() as directory:
        open_store = place(Path(directory))
        store = open_store()
        model = Model()
        for writes in history:
            after = deepcopy(model)
            try:
                after.commit(writes)
            except KeyError:
                with pytest.raises(StoreError) as caught:
                    store.commit(writes)
                assert caught.value.executed is False
            else:
                store.commit(writes)
                model = after
            assert_answers_as(model, store, *bounds)
        store.close()
        store = open_store()
        assert_answers_as(model, store, *bounds)
        store.close()
