"""Locks by delivery batch, and their deadlines in order."""

from __future__ import annotations

from collections.abc import Iterator

from partibus.partition.core.lock_table import LockBatch, LockTable
from partibus.partition.protocol.keys import Entry
from tests.kit.memory import held_bytes

FEW_BYTES = 20_000
"""More than a hundred deadlines take, and much less than twenty thousand would."""


def batch(lock_id: int, until_ms: int, *positions: int) -> LockBatch:
    return LockBatch(lock_id, until_ms, [Entry(pos, pos, pos, 0, 0, None, None, 1, b"x") for pos in positions])


def test_lock_ends_at_its_deadline_and_not_before() -> None:
    table = LockTable()
    table.add(batch(1, 100, 5))
    found = table.find(1)
    assert found is not None
    assert found.held([5, 6], 99) == [5]
    assert found.held([5], 100) == []
    assert table.expired(99) == []
    assert [b.lock_id for b in table.expired(100)] == [1]


def test_unknown_lock_is_not_found() -> None:
    assert LockTable().find(7) is None


def test_only_locks_that_hold_are_counted() -> None:
    """A partition that is only looked at in its store has no ticks, which would remove the others."""
    table = LockTable()
    table.add(batch(1, 100, 5))
    table.add(batch(2, 200, 6, 7, 8))
    renewed = table.find(2)
    assert renewed is not None
    table.renew(renewed, [7], 300)
    assert [table.held(now_ms) for now_ms in (99, 100, 199, 200, 300)] == [4, 3, 3, 1, 0]
    assert len(table) == 4


def test_batch_goes_with_its_last_position() -> None:
    table = LockTable()
    table.add(batch(1, 100, 5, 6))
    assert not table.unlock(1, [5])
    assert len(table) == 1
    assert table.unlock(1, [6])
    assert len(table) == 0
    assert table.find(1) is None


def test_settled_batches_leave_no_deadline_behind() -> None:
    table = LockTable()
    table.add(batch(1, 100, 5))
    table.add(batch(2, 300, 6))
    table.add(batch(3, 200, 7))
    assert table.deadlines.earliest_ms() == 100
    table.unlock(1, [5])
    assert table.deadlines.earliest_ms() == 200
    table.unlock(3, [7])
    table.unlock(2, [6])
    assert table.deadlines.earliest_ms() is None


def test_expired_batches_come_earliest_first() -> None:
    table = LockTable()
    for lock_id, until_ms in ((1, 30), (2, 10), (3, 20), (4, 99)):
        table.add(batch(lock_id, until_ms, lock_id))
    assert [b.lock_id for b in table.expired(50)] == [2, 3, 1]


def test_renewal_of_one_message_leaves_the_others_their_deadline() -> None:
    table = LockTable()
    table.add(batch(1, 100, 5, 6, 7))
    found = table.find(1)
    assert found is not None
    table.renew(found, [6], 150)
    assert found.held([5, 6, 7], 100) == [6]
    assert found.parts() == [(100, [5, 7]), (150, [6])]
    (over,) = table.expired(100)
    assert [e.pos for e in over.over(100)] == [5, 7]
    table.unlock(1, [5, 7])
    assert table.deadlines.earliest_ms() == 150
    assert [b.lock_id for b in table.expired(150)] == [1]


def test_renewed_again_and_again_ends_at_the_last_deadline() -> None:
    table = LockTable()
    table.add(batch(1, 100, 5))
    found = table.find(1)
    assert found is not None
    for until_ms in (120, 140, 160):
        table.renew(found, [5], until_ms)
    assert [e.pos for b in table.expired(159) for e in b.over(159)] == []
    assert table.deadlines.earliest_ms() == 160
    assert [e.pos for b in table.expired(160) for e in b.over(160)] == [5]


def test_settled_renewal_is_forgotten() -> None:
    table = LockTable()
    table.add(batch(1, 100, 5, 6))
    found = table.find(1)
    assert found is not None
    table.renew(found, [5], 200)
    assert not table.unlock(1, [5])
    assert found.parts() == [(100, [6])]


def test_one_lock_that_is_held_for_long_keeps_no_deadline_of_those_that_ended() -> None:
    table = LockTable()
    table.add(batch(0, 1_000, 0))
    before = held_bytes(table)
    for lock_id in range(1, 20_001):
        table.add(batch(lock_id, 2_000 + lock_id, lock_id))
        table.unlock(lock_id, [lock_id])
    assert held_bytes(table) < before + FEW_BYTES
    assert [b.lock_id for b in table.expired(1_000)] == [0]


def test_one_lock_that_is_renewed_again_and_again_has_few_deadlines() -> None:
    table = LockTable()
    table.add(batch(0, 1_000, 0))
    table.add(batch(1, 2_000, 1, 2))
    single, pair = table.find(0), table.find(1)
    assert single is not None
    assert pair is not None
    before = held_bytes(table)
    for until_ms in range(3_000, 23_000):
        table.renew(single, [0], until_ms)
        table.renew(pair, [1], until_ms)
    assert held_bytes(table) < before + FEW_BYTES
    assert table.deadlines.earliest_ms() == 2_000


def test_a_renewal_for_a_shorter_time_ends_in_time() -> None:
    """The lock duration of the entity has become shorter."""
    table = LockTable()
    table.add(batch(1, 5_000, 5, 6))
    found = table.find(1)
    assert found is not None
    table.renew(found, [5], 100)
    assert table.deadlines.earliest_ms() == 100
    assert [e.pos for b in table.expired(100) for e in b.over(100)] == [5]


class Walked(dict[int, Entry]):
    """The entries of a batch, which count how often all of them are looked at."""

    walks = 0

    def __iter__(self) -> Iterator[int]:
        Walked.walks += 1
        return super().__iter__()


def test_the_batches_of_positions_are_found_without_a_look_at_all_locks() -> None:
    table = LockTable()
    batches = {lock_id: batch(lock_id, 100, 2 * lock_id, 2 * lock_id + 1) for lock_id in range(1_000)}
    for one in batches.values():
        one.entries = Walked(one.entries)
        table.add(one)
    assert table.holders([]) == {}
    assert table.holders([7, 2_000]) == {7: batches[3]}
    table.unlock(3, [7])
    table.unlock(4, [8, 9])
    table.add(batch(1_000, 100, 8))
    walks = Walked.walks
    found = table.holders([6, 7, 8, 9, 10])
    assert {pos: one.lock_id for pos, one in found.items()} == {6: 3, 8: 1_000, 10: 5}
    assert Walked.walks == walks
