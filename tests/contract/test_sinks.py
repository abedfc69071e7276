"""The contract of stores for sinks, which may send stored rows again, and for the rows that go with a partition."""

from hashlib import blake2b

import pytest

from partibus.partition.protocol import queries as q
from partibus.partition.protocol.keys import POSITION_MAX, entry_key, subqueue_key
from partibus.partition.protocol.ports import CursorRow, SessionLockRow, Store, Writes
from partibus.store.postgresql import PostgreSQLStore
from partibus.store.sqlite import SQLiteStore
from tests.contract.stores import PARTITION, QUEUE, Opener, enqueue, enqueued

SINK = 77
IDS = [blake2b(b"%d" % number, digest_size=16).digest() for number in range(1_000)]


def stored(batch: int, *ids: bytes, sink: int = SINK, partition: int = PARTITION) -> Writes:
    """A commit that notes ids of a batch."""
    writes = Writes()
    for row_id in ids:
        writes.sink_ids += [partition, sink, row_id, batch]
    return writes


def forget(store: Store, batch: int, most: int, sink: int = SINK) -> None:
    writes = Writes()
    writes.forgotten_sink_ids.append((PARTITION, sink, batch, most))
    store.commit(writes)


def test_ids_are_found_by_partition_and_sink(open_store: Opener) -> None:
    store = open_store()
    store.commit(stored(1, *IDS[:600]))
    store.commit(stored(-5, IDS[700], sink=-(1 << 63)))
    store.commit(stored((1 << 63) - 1, IDS[701], sink=(1 << 63) - 1))
    store.commit(stored(1, IDS[702], partition=PARTITION + 1))
    store.close()
    store = open_store()
    assert store.read(q.SinkIds(PARTITION, SINK, IDS)) == {*IDS[:600]}
    assert store.read(q.SinkIds(PARTITION, SINK, [IDS[5], IDS[5], IDS[999]])) == {IDS[5]}
    assert store.read(q.SinkIds(PARTITION, SINK, [])) == set()
    assert store.read(q.SinkIds(PARTITION, -(1 << 63), IDS)) == {IDS[700]}
    assert store.read(q.SinkIds(PARTITION, (1 << 63) - 1, IDS)) == {IDS[701]}
    assert store.read(q.SinkIds(PARTITION + 1, SINK, IDS)) == {IDS[702]}
    assert store.read(q.SinkIdCount(PARTITION, SINK, 0)) == 0
    assert store.read(q.SinkIdCount(PARTITION, SINK, 1)) == 600
    assert store.read(q.SinkIdCount(PARTITION, (1 << 63) - 1, (1 << 63) - 1)) == 1


def test_new_ids_are_kept_as_all_others(store: Store) -> None:
    """Written before those that may be there, which move them to a later batch."""
    store.commit(stored(1, *IDS[:10]))
    writes = stored(3, IDS[0], IDS[300])
    writes.new_sink_ids.append((PARTITION, SINK, 2, IDS[10:610]))
    writes.new_sink_ids.append((PARTITION + 1, -SINK, 2, IDS[:1]))
    store.commit(writes)
    assert store.read(q.SinkIds(PARTITION, SINK, IDS)) == {*IDS[:610]}
    assert [store.read(q.SinkIdCount(PARTITION, SINK, batch)) for batch in (1, 2, 3)] == [9, 608, 610]
    assert store.read(q.SinkIds(PARTITION + 1, -SINK, IDS)) == {IDS[0]}
    forget(store, 2, 10_000)
    assert store.read(q.SinkIds(PARTITION, SINK, IDS)) == {IDS[0], IDS[300]}


@pytest.mark.parametrize("batch", [1, 2, 9])
def test_an_id_that_is_there_gets_the_new_batch(store: Store, batch: int) -> None:
    store.commit(stored(2, *IDS[:10]))
    store.commit(stored(3, *IDS[10:20]))
    store.commit(stored(batch, IDS[0], IDS[10], IDS[20]))
    expected = (
        dict.fromkeys(IDS[:10], 2) | dict.fromkeys(IDS[10:20], 3) | dict.fromkeys((IDS[0], IDS[10], IDS[20]), batch)
    )
    for upto in range(11):
        assert store.read(q.SinkIdCount(PARTITION, SINK, upto)) == sum(of <= upto for of in expected.values())
    forget(store, 2, 99)
    assert store.read(q.SinkIds(PARTITION, SINK, IDS)) == {row_id for row_id, of in expected.items() if of > 2}


def test_of_an_id_that_comes_twice_in_a_commit_the_last_batch_counts(store: Store) -> None:
    writes = stored(5, IDS[0])
    writes.sink_ids += stored(4, IDS[0]).sink_ids
    store.commit(writes)
    assert [store.read(q.SinkIdCount(PARTITION, SINK, batch)) for batch in (3, 4, 5)] == [0, 1, 1]


def test_ids_are_forgotten_in_slices_the_first_batches_first(store: Store) -> None:
    for batch in (1, 2, 3):
        store.commit(stored(batch, *IDS[100 * batch : 100 * batch + 100]))
    store.commit(stored(1, *IDS[:50], sink=SINK + 1))
    forget(store, 2, 0)
    assert store.read(q.SinkIdCount(PARTITION, SINK, 2)) == 200
    forget(store, 2, 70)
    assert [store.read(q.SinkIdCount(PARTITION, SINK, batch)) for batch in (1, 2, 3)] == [30, 130, 230]
    forget(store, 2, 70)
    assert [store.read(q.SinkIdCount(PARTITION, SINK, batch)) for batch in (1, 2, 3)] == [0, 60, 160]
    assert store.read(q.SinkIds(PARTITION, SINK, IDS[100:200])) == set()
    forget(store, 2, 60)
    forget(store, 2, 60)
    assert store.read(q.SinkIds(PARTITION, SINK, IDS)) == {*IDS[300:400]}
    assert store.read(q.SinkIdCount(PARTITION, SINK + 1, 1)) == 50


def test_what_comes_with_a_commit_is_forgotten_by_it(store: Store) -> None:
    writes = stored(1, *IDS[:9])
    writes.forgotten_sink_ids.append((PARTITION, SINK, 1, 100))
    store.commit(writes)
    assert store.read(q.SinkIds(PARTITION, SINK, IDS)) == set()


def test_the_batch_that_a_sink_committed_last(open_store: Opener) -> None:
    store = open_store()
    for batch in (1, 2):
        writes = enqueued(batch)
        enqueue(writes, batch, subqueue=subqueue_key(PARTITION + 1, 0))
        writes.sink_batches = {(PARTITION, SINK): batch, (PARTITION, -SINK): -batch, (PARTITION + 1, SINK): 9}
        store.commit(writes)
    store.close()
    snapshot = open_store().read(q.Partition(PARTITION))
    assert snapshot is not None
    assert snapshot.sinks == {SINK: 2, -SINK: -2}


def test_everything_goes_with_a_partition(open_store: Opener) -> None:
    store = open_store()
    subqueues = {row: subqueue_key(row, 1) for row in (PARTITION - 1, PARTITION, PARTITION + 1)}
    for row, subqueue in subqueues.items():
        writes = enqueue(Writes(), 1, subqueue=subqueue)
        writes.cursors[subqueue, "a"] = CursorRow(subqueue, "a", 0, 0, 0, 1, 2, 3, 4, 5)
        writes.retained[subqueue] = (1, 1)
        for number in (*range(700), POSITION_MAX):
            writes.dispositions += [entry_key(subqueue, number), 1, 1, 0, 1, 1]
        for sink in (SINK, -SINK):
            writes.sink_ids += stored(1, *IDS[:600], sink=sink, partition=row).sink_ids
        writes.sink_batches[row, SINK] = 1
        writes.session_locks[row, "s"] = SessionLockRow("s", 1, 2, "run")
        store.commit(writes)
    before = {row: store.read(q.Partition(row)) for row in subqueues}
    writes = Writes()
    writes.dropped_partitions.append(PARTITION)
    store.commit(writes)
    for swept in (False, True):
        if swept:
            wait_until_swept(store)
            store.close()
            store = open_store()
        for row, subqueue in subqueues.items():
            left = row != PARTITION
            assert store.read(q.Partition(row)) == (before[row] if left else None)
            assert len(store.read(q.Dispositions(subqueue, 0, 9_999))) == 701 * left
            assert store.read(q.SinkIdCount(row, SINK, 9)) == store.read(q.SinkIdCount(row, -SINK, 9)) == 600 * left
            assert len(store.read(q.SinkIds(row, SINK, IDS))) == 600 * left
            assert store.read(q.Range(subqueue, 0, 9, 9, 99, finished=True))[:2] == (1 * left, 9)
            assert len(store.read(q.Scan(subqueue, 0, 9, 9))) == 1 * left
    # The row is never used again; were it, nothing of before would be there.
    store.commit(enqueued(1))
    snapshot = store.read(q.Partition(PARTITION))
    assert snapshot is not None
    assert (snapshot.cursors, snapshot.retained, snapshot.sinks, snapshot.session_locks) == ((), {}, {}, ())
    assert [row.pos for row in store.read(q.Page(QUEUE, 0, 9, 99))] == [1]


def wait_until_swept(store: Store) -> None:
    inner = getattr(store, "inner", store)
    if isinstance(inner, SQLiteStore | PostgreSQLStore):
        inner.wait_until_swept()
