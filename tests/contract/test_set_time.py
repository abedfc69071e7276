"""A store whose time was written by a wrong clock goes on with another one."""

from __future__ import annotations

from partibus.partition.protocol import queries as q
from partibus.partition.protocol.keys import entry_key
from partibus.partition.protocol.ports import LOCK_MS_MAX, CursorRow, SessionLockRow
from tests.contract.stores import PARTITION, QUEUE, Opener, enqueued, positions

WRONG_MS = 1_700_600_000_000
RIGHT_MS = 1_700_000_000_000


def test_the_time_of_a_store_is_turned_back_and_locks_end_soon(open_store: Opener) -> None:
    store = open_store()
    writes = enqueued(1, 2, 3)
    writes.now_ms = WRONG_MS
    soon_ms = RIGHT_MS + 1_000
    writes.lock_batches[entry_key(QUEUE, 1)] = [(1, soon_ms, b"\x01"), (2, WRONG_MS, b"\x01")]
    for session, until_ms in (("soon", soon_ms), ("wrong", WRONG_MS)):
        writes.session_locks[PARTITION, session] = SessionLockRow(session, 7, until_ms, "run-1")
    for name, until_ms in (("free", 0), ("wrong", WRONG_MS)):
        writes.cursors[QUEUE, name] = CursorRow(QUEUE, name, 1, -1, 1, 0, 5, 5, 1, until_ms)
    store.commit(writes)
    store.close()
    store = open_store()
    assert store.highest_ms == WRONG_MS
    store.set_time(RIGHT_MS)
    assert store.highest_ms == RIGHT_MS
    store.close()
    store = open_store()
    assert store.highest_ms == RIGHT_MS
    snapshot = store.read(q.Partition(PARTITION))
    assert snapshot is not None
    end_ms = RIGHT_MS + LOCK_MS_MAX
    assert [(row.first_pos, row.until_ms) for row in snapshot.lock_batches] == [(1, soon_ms), (2, end_ms)]
    assert [(row.session, row.until_ms) for row in snapshot.session_locks] == [("soon", soon_ms), ("wrong", end_ms)]
    assert [(row.name, row.until_ms) for row in snapshot.cursors] == [("free", 0), ("wrong", end_ms)]
    assert positions(store) == [1, 2, 3]
    later = enqueued(4)
    later.now_ms = RIGHT_MS + 5
    store.commit(later)
    store.close()
    assert open_store().highest_ms == RIGHT_MS + 5
