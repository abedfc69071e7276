"""Events become rows; lock rows and ranges can be read back."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from partibus.partition.core.events import (
    Enqueued,
    IdsRemembered,
    LockChanged,
    Locked,
    Moved,
    Removed,
    Rewritten,
    SessionStateSet,
    Unlocked,
    Updated,
)
from partibus.partition.core.journal import LOCK_SPAN_MAX, lock_rows, locked_positions, record, runs
from partibus.partition.protocol.keys import Entry, entry_key, subqueue_key
from partibus.partition.protocol.ports import Writes

ROW = 5
ACTIVE, DEAD = subqueue_key(ROW, 0), subqueue_key(ROW, 1)
positions_lists = st.lists(st.integers(1, 20_000), min_size=1, max_size=60, unique=True).map(sorted)


def entry(pos: int, body: int | None = None) -> Entry:
    return Entry(pos, pos if body is None else body, pos, 9, 2, None, None, 4, b"data")


@given(positions_lists)
def test_lock_rows_cover_their_positions_and_nothing_else(positions: list[int]) -> None:
    rows = lock_rows(77, positions)
    assert [pos for first, _, bitmap in rows for pos in locked_positions(first, bitmap)] == positions
    assert all(len(bitmap) * 8 <= LOCK_SPAN_MAX for _, _, bitmap in rows)
    assert {until_ms for _, until_ms, _ in rows} == {77}


def test_neighbours_are_one_lock_row_up_to_its_span() -> None:
    assert len(lock_rows(1, list(range(10, 10 + LOCK_SPAN_MAX)))) == 1
    assert len(lock_rows(1, list(range(10, 11 + LOCK_SPAN_MAX)))) == 2
    assert lock_rows(1, [10, 10 + LOCK_SPAN_MAX - 1])[0][2][-1] == 0x80


@given(positions_lists)
def test_runs_cover_their_keys_and_nothing_else(keys: list[int]) -> None:
    ranges = runs(keys)
    assert [key for first, last in ranges for key in range(first, last + 1)] == keys
    assert all(before[1] + 1 < after[0] for before, after in pairwise(ranges))


def test_runs_of_nothing_are_none() -> None:
    assert runs([]) == []


def test_locks_are_the_only_rows_that_nobody_waits_for() -> None:
    one = [entry(1)]
    assert not record(ROW, [Locked(0, 3, 100, one)], Writes())
    for event in (
        Enqueued(one), Removed(0, one), Updated(0, one), LockChanged(0, 3, [(100, [1])]), Unlocked(0, 3),
        Moved(0, 1, [(entry(1), entry(8))]),
    ):  # fmt: skip
        assert record(ROW, [event], Writes()), event


def test_lock_given_and_gone_in_one_commit_leaves_no_row() -> None:
    writes = Writes()
    record(ROW, [Locked(0, 3, 100, [entry(1), entry(2)]), LockChanged(0, 3, [(100, [2])]), Unlocked(0, 3)], writes)
    assert writes.lock_batches == {}
    assert set(writes.deleted_locks) == {entry_key(ACTIVE, 3)}


def test_changed_lock_replaces_its_rows() -> None:
    writes = Writes()
    record(
        ROW, [Locked(0, 3, 100, [entry(1), entry(2), entry(3)]), LockChanged(0, 3, [(100, [1]), (250, [3])])], writes
    )
    assert writes.lock_batches == {entry_key(ACTIVE, 3): [(1, 100, b"\x01"), (3, 250, b"\x01")]}


def test_move_keeps_a_body_that_is_not_rewritten() -> None:
    writes = Writes()
    record(ROW, [Moved(0, 1, [(entry(4, body=40), entry(9, body=40))])], writes)
    assert (writes.bodies, writes.deleted_bodies) == ([], [])
    assert writes.entries[:2] == [entry_key(DEAD, 9), 40]
    assert writes.deleted_entries == [(entry_key(ACTIVE, 4),) * 2]


def test_move_replaces_a_body_that_is_rewritten() -> None:
    writes = Writes()
    moved = entry(9, body=99)
    record(ROW, [Rewritten([(40, moved)]), Moved(0, 1, [(entry(4, body=40), moved)])], writes)
    assert writes.bodies == [99, b"data"]
    assert writes.deleted_bodies == [(40, 40)]


def test_operations_and_bytes_are_counted_for_the_bound_of_the_store() -> None:
    writes = Writes()
    record(ROW, [Enqueued([entry(1), entry(2)]), Locked(0, 3, 100, [entry(1)]), Removed(0, [entry(1)])], writes)
    assert (writes.operations, writes.size_bytes) == (4, 8)


def test_update_carries_state_count_time_and_body() -> None:
    writes = Writes()
    changed = Entry(4, 44, 4, 9, 3, None, 700, 4, b"data", 3)
    record(ROW, [Updated(0, [changed])], writes)
    assert writes.entry_updates == [entry_key(ACTIVE, 4), 44, 3, 3, 700]


def test_session_states_and_ids_of_a_partition_are_its_own() -> None:
    writes = Writes()
    record(ROW, [SessionStateSet("s", b"one", 5), SessionStateSet("s", None, 6)], writes)
    record(ROW, [IdsRemembered(0, 7, [b"i" * 16])], writes)
    assert writes.session_states == {(ROW, "s"): (None, 6)}
    assert writes.duplicate_ids == [ROW, 0, b"i" * 16, 7, None]
