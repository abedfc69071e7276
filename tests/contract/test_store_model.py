"""Any sequence of commits: every store answers as the model does, before and after it is opened anew."""

from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partibus.partition.keys import SHARED_BODY, body_key, entry_key, subqueue_key
from partibus.partition.ports import CursorRow, EntryRow, SessionLockRow, Store, StoreError, Writes
from partibus.store.postgresql import PostgreSQLStore
from partibus.store.sqlite import SQLiteStore
from tests.contract.frames import packed, unpack
from tests.contract.model import Model
from tests.contract.stores import memory, postgresql, sqlite

PARTITIONS = (0, 1)
SUBQUEUES = [subqueue_key(partition, kind) for partition in PARTITIONS for kind in (0, 1, 2)]
POSITIONS = st.integers(0, 9)
NUMBERS = st.integers(0, 1 << 40)
STATES = st.integers(0, 3) | st.sampled_from([16, 17, 23])
TIMES = st.integers(0, 4) | NUMBERS
"""Few, so that entries are due together."""
SESSIONS = st.sampled_from(["", "a", "a\x00", "b", "ü", "𝄞"]) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=3
)
"""Few, so that sessions have several entries; and any text."""
BUCKETS = st.integers(0, 3)
IDS = [bytes([number]) * 16 for number in range(6)]


@st.composite
def keys_of_entries(draw: st.DrawFn) -> int:
    return entry_key(draw(st.sampled_from(SUBQUEUES)), draw(POSITIONS))


@st.composite
def keys_of_bodies(draw: st.DrawFn, shared: st.SearchStrategy[int] = st.sampled_from((0, SHARED_BODY))) -> int:  # noqa: B008
    return body_key(draw(st.sampled_from(PARTITIONS)), draw(POSITIONS) | draw(shared))


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
    writes.counters = draw(st.dictionaries(st.sampled_from(PARTITIONS), st.tuples(NUMBERS, NUMBERS, NUMBERS)))
    writes.counts = draw(st.dictionaries(st.sampled_from(SUBQUEUES), pairs, max_size=4))
    bodies = draw(st.dictionaries(keys_of_bodies(), st.binary(max_size=20), max_size=6))
    writes.bodies = [column for row in bodies.items() for column in row]
    for key in draw(st.sets(keys_of_entries(), max_size=6)):
        session = draw(st.none() | SESSIONS)
        sequence = key & 0xFFFF if not key >> 40 & 3 else draw(POSITIONS)
        body = draw(keys_of_bodies())
        state = draw(STATES)
        due_ms = draw(st.none() | TIMES) if state < 16 else None
        writes.entries += [key, body, sequence, draw(NUMBERS), state, 0, session, due_ms]
    for key in draw(st.lists(keys_of_entries(), max_size=4)):
        body = draw(keys_of_bodies())
        state = draw(STATES)
        due_ms = draw(st.none() | TIMES) if state < 16 else None
        writes.entry_updates += [key, body, state, draw(POSITIONS), due_ms]
    session_states = st.tuples(st.none() | st.binary(max_size=9), TIMES)
    names = st.tuples(st.sampled_from(PARTITIONS), SESSIONS)
    writes.session_states = draw(st.dictionaries(names, session_states, max_size=3))
    for row, bucket, message_id in draw(
        st.lists(st.tuples(st.sampled_from(PARTITIONS), BUCKETS, st.sampled_from(IDS)), max_size=6)
    ):
        writes.duplicate_ids += [row, bucket, message_id, draw(NUMBERS)]
    forgotten = st.tuples(st.sampled_from(PARTITIONS), BUCKETS, st.integers(0, 4))
    writes.forgotten_duplicates = draw(st.lists(forgotten, max_size=2))
    writes.deleted_locks = draw(st.lists(keys_of_entries(), max_size=4))
    lock_rows = st.lists(st.tuples(POSITIONS, NUMBERS, st.binary(min_size=1, max_size=2)), max_size=2)
    writes.lock_batches = draw(st.dictionaries(keys_of_entries(), lock_rows, max_size=2))
    writes.deleted_entries = draw(st.lists(ranges(keys_of_entries()), max_size=4))
    writes.deleted_bodies = draw(st.lists(ranges(keys_of_bodies()), max_size=2))
    writes.deleted_shared_bodies = draw(st.lists(keys_of_bodies(st.just(SHARED_BODY)), max_size=4))
    sources = st.tuples(st.sampled_from(PARTITIONS), st.integers(0, 3))
    writes.inbound_marks = draw(st.dictionaries(sources, NUMBERS, max_size=2))
    draw_readers_and_sinks(draw, writes)
    return writes


def draw_readers_and_sinks(draw: st.DrawFn, writes: Writes) -> None:
    for subqueue, name in draw(st.sets(st.tuples(st.sampled_from(SUBQUEUES), SESSIONS), max_size=2)):
        columns = draw(st.none() | st.tuples(*[NUMBERS] * 8))
        writes.cursors[subqueue, name] = None if columns is None else CursorRow(subqueue, name, *columns)
    counts = st.tuples(NUMBERS, NUMBERS)
    writes.retained = draw(st.dictionaries(st.sampled_from(SUBQUEUES), counts, max_size=2))
    for key in draw(st.sets(keys_of_entries(), max_size=4)):
        writes.fates += [key, draw(POSITIONS), draw(NUMBERS), draw(POSITIONS), draw(NUMBERS), draw(POSITIONS)]
    writes.forgotten_fates = draw(st.lists(ranges(keys_of_entries()), max_size=2))
    sinks = st.tuples(st.sampled_from(PARTITIONS), st.sampled_from((-1, 7)))
    for place, row_id, batch in draw(st.lists(st.tuples(sinks, st.sampled_from(IDS), BUCKETS), max_size=6)):
        writes.sink_ids += [*place, row_id, batch]
    writes.sink_batches = draw(st.dictionaries(sinks, NUMBERS, max_size=2))
    for place, batch, most in draw(st.lists(st.tuples(sinks, BUCKETS, st.integers(0, 4)), max_size=2)):
        writes.forgotten_sink_ids.append((*place, batch, most))
    for row, session in draw(st.sets(st.tuples(st.sampled_from(PARTITIONS), SESSIONS), max_size=2)):
        lock = draw(st.none() | st.builds(SessionLockRow, st.just(session), NUMBERS, NUMBERS, SESSIONS))
        writes.session_locks[row, session] = lock


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
    assert store.load_sizes([*PARTITIONS, 9]) == model.sizes()
    filled = model.filled()
    assert store.load_counts(99) == filled
    assert list(store.load_counts(2)) == sorted(filled)[:2]
    assert_ids_are_as_in(model, store)
    numbers = [number | flag for flag in (0, SHARED_BODY) for number in range(12)]
    wanted = [body_key(partition, number) for partition in PARTITIONS for number in numbers]
    assert store.load_bodies(wanted) == [model.bodies.get(key) for key in wanted]
    for subqueue in SUBQUEUES:
        assert_ranges_are_as_in(model, store, subqueue, max_entries, max_bytes)
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
            for session in {row.session for row in rows} - {None}:
                of_it = [row for row in active if row.session == session]
                assert store.load_page(subqueue, start, *bounds, session) == bounded(of_it, *bounds)
                of_it = [row for row in following if row.session == session]
                assert store.peek(subqueue, start, *bounds, session) == bounded(of_it, *bounds)
            found = store.load_sequences(subqueue, range(start, start + 3))
            assert sorted(found) == sorted(row for row in rows if start <= row.sequence < start + 3)
        for state in range(4):
            for until_ms in (0, 3, 1 << 50):
                due = [row for row in model.due(subqueue, state) if row.due_ms is not None and row.due_ms <= until_ms]
                most = len(bounded(due, *bounds))
                assert store.load_due(subqueue, state, until_ms, *bounds) == model.due_rows(
                    subqueue, state, until_ms, most
                )
        assert_sessions_are_as_in(model, store, subqueue)


def assert_ranges_are_as_in(model: Model, store: Store, subqueue: int, max_entries: int, max_bytes: int) -> None:
    for finished in (False, True):
        readable = [row for row in model.readable(subqueue) if row.state != 2 and (finished or row.state < 16)]
        for from_pos, to_pos in ((0, 1 << 40), (4, 7)):
            inside = [packed(row) for row in readable if from_pos <= row.pos < to_pos]
            while from_pos < to_pos:
                frame = store.read_range(subqueue, from_pos, to_pos, max_entries, max_bytes, finished=finished)
                entries = unpack(frame)
                assert len(entries) <= max_entries
                assert len(entries) <= 1 or sum(entry.size for entry in entries) <= max_bytes
                assert entries == inside[: len(entries)]
                assert frame.next_pos == to_pos or frame.next_pos == entries[-1].pos + 1
                inside = inside[len(entries) :]
                from_pos = frame.next_pos
            assert inside == []
    scanned = model.scanned(subqueue)
    assert store.scan(subqueue, 0, 1 << 40, 99) == scanned
    assert store.scan(subqueue, 4, 8, 2) == [row for row in scanned if 4 <= row[0].pos < 8][:2]
    log = model.log(subqueue)
    assert store.load_fates(subqueue, 0, 99) == log
    assert store.load_fates(subqueue, 3, 2) == [line for line in log if line.number >= 3][:2]


def assert_sessions_are_as_in(model: Model, store: Store, subqueue: int) -> None:
    def in_order(sessions: set[str]) -> list[str]:
        return sorted(sessions, key=str.encode)

    waiting = in_order(model.sessions(subqueue))
    assert store.scan_sessions(subqueue, None, 99) == waiting
    for after in ("", "a", "b", "\x7f"):
        behind = [session for session in waiting if session.encode() > after.encode()]
        assert store.scan_sessions(subqueue, after, 2) == behind[:2]
    row = subqueue >> 2
    named = in_order(model.sessions(subqueue) | model.updated(row, -1))
    assert store.list_sessions(subqueue, 0, 99, None) == named
    assert store.list_sessions(subqueue, 1, 2, None) == named[1:3]
    for after_ms in (0, 2):
        updated = in_order(model.updated(row, after_ms))
        assert store.list_sessions(subqueue, 0, 99, after_ms) == updated
        assert store.list_sessions(subqueue, 1, 2, after_ms) == updated[1:3]
    for session in {*named, "never seen"}:
        state = model.states.get((row, session))
        assert store.load_session_state(row, session) == (state and state[0])


def assert_ids_are_as_in(model: Model, store: Store) -> None:
    for partition in PARTITIONS:
        for first_bucket in (0, 2):
            expected = model.accepted(partition, first_bucket, IDS[1:])
            assert store.find_duplicates(partition, first_bucket, IDS[1:]) == expected
        ids = sorted((bucket, *key, ms) for (row, bucket, *key), ms in model.ids.items() if row == partition)
        assert store.scan_duplicates(partition, (-1, b""), 99) == ids
        for sink in (-1, 7):
            batches = {key[2]: batch for key, batch in model.sink_ids.items() if key[:2] == (partition, sink)}
            assert store.find_sink_ids(partition, sink, IDS[1:]) == batches.keys() & {*IDS[1:]}
            for last in (0, 2, 3):
                assert store.count_sink_ids(partition, sink, last) == sum(batch <= last for batch in batches.values())
        after = (1, IDS[2])
        assert store.scan_duplicates(partition, after, 3) == [row for row in ids if row[:2] > after][:3]


HISTORIES = {"history": histories(), "bounds": st.tuples(st.integers(1, 6), st.integers(0, 60))}


@pytest.mark.parametrize("place", [memory, sqlite])
@given(**HISTORIES)
@settings(max_examples=60, deadline=None)
def test_a_store_answers_as_the_model(place: Any, history: list[Writes], bounds: tuple[int, int]) -> None:
    assert_history_is_kept(place, history, bounds)


@given(**HISTORIES)
@settings(max_examples=25, deadline=None)
def test_a_store_in_a_server_answers_as_the_model(history: list[Writes], bounds: tuple[int, int]) -> None:
    """Fewer, since each example makes a schema and opens it twice."""
    assert_history_is_kept(postgresql, history, bounds)


def assert_history_is_kept(place: Any, history: list[Writes], bounds: tuple[int, int]) -> None:
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
                if writes.dropped_partitions and isinstance(store, SQLiteStore | PostgreSQLStore):
                    store.wait_until_swept()  # of what a dropped partition names elsewhere nothing is hidden at once
            assert_answers_as(model, store, *bounds)
        store.close()
        store = open_store()
        assert_answers_as(model, store, *bounds)
        store.close()
