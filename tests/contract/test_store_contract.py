"""The contract of messaging stores, checked for each of them; see `partition.protocol.ports.Store`."""

from threading import Event, Thread

import pytest

from partibus.partition.protocol import queries as q
from partibus.partition.protocol.keys import (
    PARTITION_ROW_MAX,
    POSITION_MAX,
    REWRITTEN_BODY,
    SubqueueKind,
    body_key,
    entry_key,
    subqueue_key,
)
from partibus.partition.protocol.ports import (
    EntryRow,
    EntryState,
    LockBatchRow,
    Snapshot,
    Store,
    StoreError,
    SubqueueCounts,
    Writes,
)
from tests.contract.stores import (
    DEAD_LETTERS,
    PARTITION,
    QUEUE,
    Opener,
    complete,
    enqueue,
    enqueued,
    positions,
)

# -- what time it was --------------------------------------------------------------------------------------------------


def test_the_latest_time_of_a_commit_is_remembered(open_store: Opener) -> None:
    store = open_store()
    assert store.highest_ms == 0
    for pos, now_ms in enumerate((1_700_000_000_000, 1_700_000_000_900, 1_600_000_000_000, 0)):
        writes = enqueued(pos)
        writes.now_ms = now_ms
        store.commit(writes)
    store.close()
    store = open_store()
    assert store.highest_ms == 1_700_000_000_900
    store.commit(complete(Writes(), 0, 3))
    store.close()
    assert open_store().highest_ms == 1_700_000_000_900


# -- what was written is there ----------------------------------------------------------------------------------------


def test_every_column_of_an_entry_comes_back(store: Store) -> None:
    writes = enqueue(
        Writes(), 7, b"\x00body\xff", sequence=9, enqueued_ms=123, delivery_count=4, session="s", due_ms=456
    )
    store.commit(writes)
    expected = EntryRow(7, body_key(PARTITION, 9), 9, 123, EntryState.ACTIVE, 4, "s", 456, b"\x00body\xff")
    assert store.read(q.Page(QUEUE, 0, 10, 1_000)) == [expected]
    assert store.read(q.Browse(QUEUE, 7, 8, 10, 1_000)) == [expected]


@pytest.mark.parametrize("session", [None, "", "\x00", "a\x00b", '","', "ü€𝄞", "'; DROP TABLE entry", "x" * 128])
def test_a_session_is_any_text_and_none_is_not_the_empty_one(store: Store, session: str | None) -> None:
    store.commit(enqueue(Writes(), 1, session=session))
    assert [row.session for row in store.read(q.Page(QUEUE, 0, 10, 1_000))] == [session]


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x00\x00a\x00", bytes(range(256)) * 300, b"\xc3\x28"])
def test_a_body_is_any_bytes(store: Store, data: bytes) -> None:
    store.commit(enqueue(enqueue(enqueue(Writes(), 1, b"before"), 2, data), 3, b"after"))
    assert [row.data for row in store.read(q.Page(QUEUE, 0, 10, 1_000_000))] == [b"before", data, b"after"]
    keys = [body_key(PARTITION, number) for number in (3, 2, 1)]
    assert store.read(q.Bodies(keys)) == [b"after", data, b"before"]


def test_an_empty_store_answers_everything_with_nothing(store: Store) -> None:
    assert store.read(q.Partition(PARTITION)) is None
    assert store.read(q.Page(QUEUE, 0, 10, 1_000)) == []
    assert store.read(q.Peek(QUEUE, 0, 10, 1_000)) == []
    assert store.read(q.Peek(DEAD_LETTERS, 0, 10, 1_000)) == []
    assert store.read(q.Browse(QUEUE, 0, POSITION_MAX, 10, 1_000)) == []
    assert store.read(q.Bodies([])) == []
    assert store.read(q.Bodies([body_key(PARTITION, 1)])) == [None]


def test_an_empty_commit_changes_nothing(store: Store) -> None:
    store.commit(enqueued(1))
    store.commit(Writes())
    assert positions(store) == [1]


@pytest.mark.parametrize("rows", [1, 2, 3, 100, 255, 256, 257, 700])
def test_commits_of_any_size_are_stored_whole_and_in_order(store: Store, rows: int) -> None:
    store.commit(enqueued(*range(rows)))
    assert positions(store) == list(range(rows))
    keys = [body_key(PARTITION, number) for number in range(rows)]
    assert store.read(q.Bodies(keys)) == [b"hello"] * rows


def test_keys_at_their_extremes(store: Store) -> None:
    for partition in (0, PARTITION_ROW_MAX):
        for kind in SubqueueKind:
            subqueue = subqueue_key(partition, kind)
            writes = Writes()
            writes.counters[partition] = (1 << 48, 1, 1 << 50)
            writes.counts[subqueue] = (2, 1 << 50)
            body = body_key(partition, kind | REWRITTEN_BODY)
            writes.bodies += [body, b"x"]
            for pos in (0, POSITION_MAX):
                writes.entries += [entry_key(subqueue, pos), body, pos, 0, 0, 0, None, (1 << 62)]
            writes.lock_batches[entry_key(subqueue, POSITION_MAX)] = [(POSITION_MAX, 1, b"\xff\xff")]
            store.commit(writes)
            assert positions(store, subqueue) == [0, POSITION_MAX]
            assert [row.pos for row in store.read(q.Page(subqueue, POSITION_MAX, 9, 99))] == [POSITION_MAX]
            assert [row.pos for row in store.read(q.Peek(subqueue, POSITION_MAX, 9, 99))] == [POSITION_MAX]
            assert store.read(q.Page(subqueue, POSITION_MAX + 1, 9, 99)) == []
            assert store.read(q.Peek(subqueue, POSITION_MAX + 1, 9, 99)) == []
            assert store.read(q.Browse(subqueue, POSITION_MAX + 1, POSITION_MAX + 5, 9, 99)) == []
        snapshot = store.read(q.Partition(partition))
        assert snapshot is not None
        assert [(key, row.pos) for key, row, _ in snapshot.locked_entries] == [
            (subqueue_key(partition, kind), POSITION_MAX) for kind in SubqueueKind
        ]
        assert len(snapshot.counts) == len(SubqueueKind)


# -- the order inside a commit -----------------------------------------------------------------------------------------


def test_a_row_inserted_and_deleted_in_one_commit_is_gone(store: Store) -> None:
    store.commit(complete(enqueued(1, 2, 3), 2, 2))
    assert positions(store) == [1, 3]
    assert store.read(q.Bodies([body_key(PARTITION, 2)])) == [None]


def test_an_entry_inserted_and_updated_in_one_commit_has_the_update(store: Store) -> None:
    writes = enqueued(1)
    writes.entry_updates += [entry_key(QUEUE, 1), body_key(PARTITION, 1), int(EntryState.DEFERRED), 3, 99]
    store.commit(writes)
    (row,) = store.read(q.Browse(QUEUE, 0, 10, 10, 1_000))
    assert (row.state, row.delivery_count, row.due_ms) == (EntryState.DEFERRED, 3, 99)


def test_the_last_of_several_updates_holds_and_an_entry_that_is_gone_is_passed_over(store: Store) -> None:
    store.commit(enqueued(1, 2))
    writes = Writes()
    for delivery_count in (1, 2, 3):
        writes.entry_updates += [entry_key(QUEUE, 1), body_key(PARTITION, 1), 0, delivery_count, None]
    writes.entry_updates += [entry_key(QUEUE, 77), body_key(PARTITION, 77), 0, 9, None]
    store.commit(writes)
    assert [(row.pos, row.delivery_count) for row in store.read(q.Browse(QUEUE, 0, 99, 10, 1_000))] == [(1, 3), (2, 0)]


def test_an_update_keeps_what_it_does_not_name(store: Store) -> None:
    store.commit(enqueue(Writes(), 1, b"data", session="s", enqueued_ms=5, due_ms=6))
    writes = Writes()
    writes.entry_updates += [entry_key(QUEUE, 1), body_key(PARTITION, 1), 0, 1, None]
    store.commit(writes)
    assert store.read(q.Page(QUEUE, 0, 1, 99)) == [EntryRow(1, body_key(PARTITION, 1), 1, 5, 0, 1, "s", None, b"data")]


def test_many_updates_in_one_commit(store: Store) -> None:
    store.commit(enqueued(*range(300)))
    writes = Writes()
    for pos in range(0, 300, 2):
        writes.entry_updates += [entry_key(QUEUE, pos), body_key(PARTITION, pos), int(EntryState.SCHEDULED), pos, pos]
    store.commit(writes)
    rows = store.read(q.Browse(QUEUE, 0, 300, 300, 1 << 20))
    assert [(row.state, row.delivery_count) for row in rows] == [
        (EntryState.ACTIVE, 0) if pos % 2 else (EntryState.SCHEDULED, pos) for pos in range(300)
    ]


def test_locks_are_deleted_before_those_of_the_same_commit_are_written(store: Store) -> None:
    store.commit(enqueued(1, 2))
    lock = entry_key(QUEUE, 1)
    first = Writes()
    first.lock_batches[lock] = [(1, 100, b"\x01"), (2, 100, b"\x01")]
    store.commit(first)
    second = Writes()
    second.deleted_locks.append(lock)
    second.lock_batches[lock] = [(2, 200, b"\x01")]
    store.commit(second)
    assert _snapshot(store).lock_batches == [LockBatchRow(QUEUE, 1, 2, 200, b"\x01")]


def test_counters_and_counts_are_replaced(store: Store) -> None:
    for round_number in (1, 2):
        writes = Writes()
        writes.counters.update({row: (round_number, 10 * row, 7 * row) for row in range(40)})
        writes.counts.update({subqueue_key(row, 0): (round_number, row) for row in range(40)})
        store.commit(writes)
    for row in range(40):
        assert store.read(q.Partition(row)) == Snapshot(
            2, 10 * row, 7 * row, {subqueue_key(row, 0): SubqueueCounts(2, row)}, [], [], {}, {}
        )


# -- deleting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 18, 300])
def test_a_range_is_deleted_with_both_ends_and_no_more(store: Store, length: int) -> None:
    store.commit(enqueued(*range(400)))
    store.commit(complete(Writes(), 50, 50 + length - 1))
    left = [*range(50), *range(50 + length, 400)]
    assert positions(store) == left
    found = store.read(q.Bodies([body_key(PARTITION, number) for number in range(400)]))
    assert [number for number, data in enumerate(found) if data is not None] == left


def test_scattered_deletes(store: Store) -> None:
    store.commit(enqueued(*range(1_000)))
    writes = Writes()
    for pos in range(0, 1_000, 3):
        complete(writes, pos, pos)
    store.commit(writes)
    assert positions(store) == [pos for pos in range(1_000) if pos % 3]


def test_deleting_what_is_not_there_is_no_error(store: Store) -> None:
    store.commit(enqueued(5))
    writes = complete(complete(Writes(), 0, 4), 6, POSITION_MAX)
    writes.deleted_locks.append(entry_key(QUEUE, 9))
    writes.dropped_partitions.append(PARTITION + 1)
    store.commit(writes)
    assert positions(store) == [5]


def test_a_dropped_partition_leaves_nothing_and_takes_nothing_of_its_neighbours(store: Store) -> None:
    rows = (PARTITION - 1, PARTITION, PARTITION + 1)
    for row in rows:
        for kind in SubqueueKind:
            subqueue = subqueue_key(row, kind)
            writes = Writes()
            writes.counts[subqueue] = (2, 10)
            for pos in (0, POSITION_MAX):
                enqueue(writes, pos, subqueue=subqueue, sequence=pos - kind if pos else kind)
            writes.lock_batches[entry_key(subqueue, POSITION_MAX)] = [(0, 1, b"\x01")]
            store.commit(writes)
    neighbours = [store.read(q.Partition(row)) for row in (PARTITION - 1, PARTITION + 1)]
    dropping = enqueued(9)
    dropping.dropped_partitions.append(PARTITION)
    store.commit(dropping)
    assert store.read(q.Partition(PARTITION)) is None
    assert [positions(store, subqueue_key(PARTITION, kind)) for kind in SubqueueKind] == [[]] * len(SubqueueKind)
    keys = [body_key(PARTITION, pos) for pos in (0, POSITION_MAX, 9)]
    assert store.read(q.Bodies(keys)) == [None, None, None]
    assert [store.read(q.Partition(row)) for row in (PARTITION - 1, PARTITION + 1)] == neighbours
    for row in (PARTITION - 1, PARTITION + 1):
        assert positions(store, subqueue_key(row, 2)) == [0, POSITION_MAX]


# -- loads and their bounds --------------------------------------------------------------------------------------------


def test_a_page_begins_at_its_position_and_stops_at_its_number_of_entries(store: Store) -> None:
    store.commit(enqueued(*range(0, 40, 2)))
    assert [row.pos for row in store.read(q.Page(QUEUE, 5, 3, 1_000))] == [6, 8, 10]
    assert [row.pos for row in store.read(q.Page(QUEUE, 36, 99, 1_000))] == [36, 38]


def test_a_page_stops_before_its_bytes_are_passed_but_has_one_entry(store: Store) -> None:
    writes = Writes()
    for pos, size in enumerate((40, 40, 20, 1, 500)):
        enqueue(writes, pos, bytes(size))
    store.commit(writes)
    for query in (q.Page, q.Peek):
        assert [row.pos for row in store.read(query(QUEUE, 0, 99, 100))] == [0, 1, 2]
        assert [row.pos for row in store.read(query(QUEUE, 0, 99, 99))] == [0, 1]
        assert [row.pos for row in store.read(query(QUEUE, 0, 99, 0))] == [0]
        assert [row.pos for row in store.read(query(QUEUE, 3, 99, 10))] == [3]
        assert [row.pos for row in store.read(query(QUEUE, 4, 99, 10))] == [4]
    assert [row.pos for row in store.read(q.Browse(QUEUE, 0, 5, 99, 100))] == [0, 1, 2]
    assert [row.pos for row in store.read(q.Browse(QUEUE, 4, 5, 99, 10))] == [4]


def test_a_page_has_active_entries_only_a_browse_and_a_peek_have_all(store: Store) -> None:
    writes = Writes()
    for pos in range(9):
        enqueue(writes, pos, state=EntryState(pos % 3))
    store.commit(writes)
    assert [row.pos for row in store.read(q.Page(QUEUE, 1, 99, 1_000))] == [3, 6]
    assert [row.pos for row in store.read(q.Page(QUEUE, 0, 2, 1_000))] == [0, 3]
    assert [row.pos for row in store.read(q.Browse(QUEUE, 1, 8, 99, 1_000))] == list(range(1, 8))
    assert [row.pos for row in store.read(q.Peek(QUEUE, 4, 3, 1_000))] == [4, 5, 6]


def test_a_load_keeps_to_its_subqueue(store: Store) -> None:
    for subqueue in (QUEUE, DEAD_LETTERS, subqueue_key(PARTITION + 1, 0)):
        store.commit(enqueue(Writes(), subqueue, subqueue=subqueue, sequence=1_000 + subqueue))
    for subqueue in (QUEUE, DEAD_LETTERS, subqueue_key(PARTITION + 1, 0)):
        assert positions(store, subqueue) == [subqueue]
        assert [row.pos for row in store.read(q.Page(subqueue, 0, 99, 1_000))] == [subqueue]
        assert [row.pos for row in store.read(q.Peek(subqueue, 0, 99, 1_000))] == [subqueue]


@pytest.mark.parametrize("subqueue", [QUEUE, DEAD_LETTERS])
def test_bounds_that_nobody_has_checked_are_no_error(store: Store, subqueue: int) -> None:
    store.commit(enqueued(0, 1, 2, subqueue=subqueue))
    for huge in (1 << 63, 1 << 64, 1 << 200):
        assert store.read(q.Page(subqueue, huge, 9, 99)) == []
        assert store.read(q.Peek(subqueue, huge, 9, 99)) == []
        assert store.read(q.Browse(subqueue, huge, huge + 5, 9, 99)) == []
        assert [row.pos for row in store.read(q.Browse(subqueue, -huge, huge, 9, 99))] == [0, 1, 2]
    assert [row.pos for row in store.read(q.Page(subqueue, -1, 9, 99))] == [0, 1, 2]
    assert [row.pos for row in store.read(q.Peek(subqueue, -1, 9, 99))] == [0, 1, 2]
    for none in (0, -1):
        assert store.read(q.Page(subqueue, 0, none, 99)) == []
        assert store.read(q.Peek(subqueue, 0, none, 99)) == []
        assert store.read(q.Browse(subqueue, 0, 9, none, 99)) == []


def test_a_browse_ends_before_its_end(store: Store) -> None:
    store.commit(enqueued(*range(10)))
    assert [row.pos for row in store.read(q.Browse(QUEUE, 3, 6, 99, 1_000))] == [3, 4, 5]
    assert [row.pos for row in store.read(q.Browse(QUEUE, 3, 6, 2, 1_000))] == [3, 4]
    assert store.read(q.Browse(QUEUE, 3, 3, 99, 1_000)) == []
    assert store.read(q.Browse(QUEUE, 6, 3, 99, 1_000)) == []


def test_peek_outside_the_active_subqueue_goes_by_sequence_not_by_position(store: Store) -> None:
    writes = Writes()
    for pos, sequence in enumerate((900, 20, 700, 40, 500)):
        enqueue(writes, pos, b"12345", subqueue=DEAD_LETTERS, sequence=sequence)
    store.commit(writes)
    assert [row.sequence for row in store.read(q.Peek(DEAD_LETTERS, 0, 99, 1_000))] == [20, 40, 500, 700, 900]
    assert [row.sequence for row in store.read(q.Peek(DEAD_LETTERS, 41, 2, 1_000))] == [500, 700]
    assert [row.sequence for row in store.read(q.Peek(DEAD_LETTERS, 41, 99, 10))] == [500, 700]
    assert [row.sequence for row in store.read(q.Peek(DEAD_LETTERS, 700, 99, 1))] == [700]
    assert store.read(q.Peek(DEAD_LETTERS, 1 << 60, 99, 10)) == []
    assert [row.pos for row in store.read(q.Page(DEAD_LETTERS, 0, 99, 1_000))] == [0, 1, 2, 3, 4]


def test_bodies_come_in_the_order_asked_also_twice(store: Store) -> None:
    writes = Writes()
    for pos in range(600):
        enqueue(writes, pos, b"%d" % pos)
    store.commit(writes)
    wanted = [599, 3, 10_000, 3, *range(598, -1, -1)]
    found = store.read(q.Bodies([body_key(PARTITION, number) for number in wanted]))
    assert found == [None if number == 10_000 else b"%d" % number for number in wanted]


def test_a_snapshot_has_counters_counts_locks_and_the_locked_entries_without_data(store: Store) -> None:
    writes = enqueued(*range(20), data=b"x" * 30)
    writes.counters[PARTITION] = (20, 4, 9)
    writes.counts[QUEUE] = (20, 600)
    writes.counts[DEAD_LETTERS] = (1, 7)
    enqueue(writes, 2, b"dead in", subqueue=DEAD_LETTERS, sequence=100)
    writes.lock_batches[entry_key(QUEUE, 8)] = [(3, 111, b"\x05"), (12, 222, b"\x01\x01")]
    writes.lock_batches[entry_key(QUEUE, 9)] = [(5, 333, b"\x81")]
    writes.lock_batches[entry_key(DEAD_LETTERS, 1)] = [(0, 444, b"\xff")]
    store.commit(writes)
    store.commit(complete(Writes(), 12, 12))

    snapshot = _snapshot(store)
    assert snapshot.counts == {QUEUE: SubqueueCounts(20, 600), DEAD_LETTERS: SubqueueCounts(1, 7)}
    assert (snapshot.next_sequence, snapshot.next_number, snapshot.session_state_bytes) == (20, 4, 9)
    assert snapshot.lock_batches == [
        LockBatchRow(QUEUE, 8, 3, 111, b"\x05"),
        LockBatchRow(QUEUE, 8, 12, 222, b"\x01\x01"),
        LockBatchRow(QUEUE, 9, 5, 333, b"\x81"),
        LockBatchRow(DEAD_LETTERS, 1, 0, 444, b"\xff"),
    ]
    assert [(subqueue, row.pos, size) for subqueue, row, size in snapshot.locked_entries] == [
        (QUEUE, 3, 30),
        (QUEUE, 5, 30),
        (DEAD_LETTERS, 2, 7),
    ]
    assert {row.data for _, row, _ in snapshot.locked_entries} == {b""}


# -- all or nothing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 300])
def test_a_commit_that_inserts_a_key_twice_stores_nothing_at_all(store: Store, rows: int) -> None:
    store.commit(enqueued(rows))
    before = _snapshot(store)
    writes = enqueued(*range(rows + 1))
    writes.counters[PARTITION] = (999, 999, 999)
    writes.counts[QUEUE] = (999, 999)
    writes.entry_updates += [entry_key(QUEUE, rows), body_key(PARTITION, rows), 1, 1, 1]
    with pytest.raises(StoreError, match="failed") as caught:
        store.commit(writes)
    assert caught.value.executed is False
    assert store.name in str(caught.value)
    assert positions(store) == [rows]
    assert _snapshot(store) == before


def test_committed_rows_survive_a_new_opening(open_store: Opener) -> None:
    first = open_store()
    writes = enqueued(*range(300))
    writes.counters[PARTITION] = (300, 2, 0)
    writes.counts[QUEUE] = (300, 1_500)
    writes.lock_batches[entry_key(QUEUE, 1)] = [(0, 5, b"\x03")]
    first.commit(writes)
    before = _snapshot(first)
    first.close()
    second = open_store()
    assert _snapshot(second) == before
    assert positions(second) == list(range(300))
    second.commit(enqueued(300))
    assert positions(second) == list(range(301))


def test_close_may_be_called_again_and_a_closed_store_refuses(store: Store) -> None:
    store.commit(enqueued(1))
    store.close()
    store.close()
    with pytest.raises(StoreError, match="open it again") as caught:
        store.commit(enqueued(2))
    assert caught.value.executed is False
    with pytest.raises(StoreError, match="open it again"):
        store.read(q.Page(QUEUE, 0, 1, 1))


def test_reads_go_on_during_commits_and_see_whole_commits_only(store: Store) -> None:
    batch = 20
    store.commit(enqueued(*range(batch)))
    done = Event()
    torn: list[list[int]] = []
    errors: list[StoreError] = []

    def read() -> None:
        try:
            while not done.is_set():
                seen = positions(store)
                if len(seen) % batch or seen != list(range(seen[0], seen[0] + len(seen))):
                    torn.append(seen)
        except StoreError as error:
            errors.append(error)

    readers = [Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for commit in range(1, 40):
        # One batch comes and one goes, so every whole state is one run of 20 positions.
        writes = enqueued(*range(commit * batch, (commit + 1) * batch))
        store.commit(complete(writes, (commit - 1) * batch, commit * batch - 1))
    done.set()
    for reader in readers:
        reader.join()
    assert errors == []
    assert torn == []


def _snapshot(store: Store) -> Snapshot:
    snapshot = store.read(q.Partition(PARTITION))
    assert snapshot is not None
    return snapshot


# -- requests of other brokers -----------------------------------------------------------------------------------------


def test_which_requests_were_executed(store: Store) -> None:
    for at_ms, executed in ((100, {"a": [1, 10, 2, 11], "b": [1, 12]}), (200, {"a": [(1 << 47) + 1, 1 << 47]})):
        writes = Writes()
        writes.counters[1] = (2, 1, 0)
        writes.executed = executed
        writes.executed_ms = at_ms
        store.commit(writes)
    assert store.read(q.Executed("a")) == {1: 10, 2: 11, (1 << 47) + 1: 1 << 47}
    assert store.read(q.Executed("b")) == {1: 12}
    assert store.read(q.Executed("c")) == {}
    writes = Writes()
    writes.counters[1] = (2, 1, 0)
    writes.forgotten_executed_ms = 200
    writes.executed = {"b": [3, 4]}
    writes.executed_ms = 150
    store.commit(writes)
    assert store.read(q.Executed("a")) == {(1 << 47) + 1: 1 << 47}
    assert store.read(q.Executed("b")) == {3: 4}, "what comes with the same commit stays"
