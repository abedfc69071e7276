"""Which ids were accepted inside of the window, with memory that is bounded (rows K7, K9)."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partibus.limits import PartitionLimits
from partibus.message import Message, pack
from partibus.partition.core import duplicates
from partibus.partition.core.duplicates import (
    BUCKET_IDS,
    CELLS_MIN,
    CELLS_PER_ID,
    GENERATIONS_PER_WINDOW,
    RECENT_BYTES,
    TRIM_IDS,
    TRIM_PAUSE_MS,
    DuplicateIds,
    id_of,
)
from partibus.partition.core.events import IdsForgotten
from partibus.partition.core.step import Step
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.options import PartitionOptions
from tests.unit.partition.one_partition import OnePartition

WINDOW_MS = 20_000


def name(number: int) -> bytes:
    item = id_of(Message(b"", message_id=str(number)))
    assert item is not None
    return item


def remember(ids: DuplicateIds, now_ms: int, *numbers: int) -> int:
    """Accept the ids with these numbers, which are new; the bucket that they are stored in."""
    ids.drop_oldest()
    _, accepted = ids.accept(map(name, numbers), now_ms)
    assert len(accepted) == len(numbers)
    return ids.bucket_for(len(accepted), now_ms)


@pytest.mark.row("K9")
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 9_000)), max_size=60))
def test_duplicate_is_what_was_accepted_less_than_a_window_ago(sends: list[tuple[int, int]]) -> None:
    ids = DuplicateIds(WINDOW_MS, is_known=True)
    accepted: dict[int, int] = {}
    now_ms = 1_000_000
    for number, later_ms in sends:
        now_ms += later_ms
        expected = number in accepted and now_ms - accepted[number] < WINDOW_MS
        if ids.unknown([name(number)], now_ms):  # the filter may only be wrong in this direction
            ids.answered[name(number)] = accepted.get(number)
        assert ids.accept([name(number)], now_ms) == ([expected], [] if expected else [name(number)])
        ids.answered.clear()
        if not expected:
            accepted[number] = now_ms


def test_filter_never_forgets_an_id_of_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids that have left the list of recent ones, over several growths of the filter."""
    monkeypatch.setattr(duplicates, "RECENT_MAX", 100)
    monkeypatch.setattr(duplicates, "CELLS_PER_ID", 64)
    ids = DuplicateIds(WINDOW_MS, is_known=True)
    now_ms = 7_000_000
    accepted = {}
    random = Random(5)
    for number in range(30_000):
        now_ms += random.randrange(2)
        remember(ids, now_ms, number)
        accepted[number] = now_ms
    ids.drop_oldest()
    inside = [number for number, at_ms in accepted.items() if now_ms - at_ms < WINDOW_MS]
    assert len(inside) > 10_000
    unknown = set(ids.unknown(map(name, inside), now_ms))
    known = {inside[index] for index in ids.known(map(name, inside), now_ms)}
    assert all(name(n) in unknown or n in known for n in inside)


def test_new_ids_seldom_need_the_store() -> None:
    ids = DuplicateIds(WINDOW_MS, is_known=True)
    for start in range(0, 50_000, 500):
        remember(ids, 1_000_000, *range(start, start + 500))
    asked = ids.unknown(map(name, range(1_000_000, 1_010_000)), 1_000_000)
    assert len(asked) < 1_000, f"{len(asked)} of 10,000 new ids"


def test_filter_forgets_what_is_out_of_the_window() -> None:
    ids = DuplicateIds(WINDOW_MS, is_known=True)
    remember(ids, 1_000_000, *range(40_000))
    later_ms = 1_000_000 + WINDOW_MS + WINDOW_MS // GENERATIONS_PER_WINDOW + 1
    assert not ids.unknown(map(name, range(7_000)), later_ms)


def test_memory_is_bounded_whatever_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "CELLS_MAX", 1 << 17)
    ids = DuplicateIds(WINDOW_MS, is_known=True)
    remember(ids, 1_000_000, *range(60_000))
    ids.drop_oldest()
    assert ids.memory_bytes == (1 << 17) + duplicates.RECENT_MAX * duplicates.RECENT_BYTES


def test_after_a_restart_the_store_is_asked_until_every_id_was_seen() -> None:
    ids = DuplicateIds(WINDOW_MS, is_known=False)
    assert ids.unknown([name(1), None, name(2)], 50_000) == [name(1), name(2)]
    ids.take_scanned([(44_000, name(1), 45_000)], 50_000)
    ids.is_known = True
    assert ids.unknown([name(1), None, name(2)], 50_000) == [name(1)]


def send(partition: OnePartition, *numbers: int) -> None:
    data = pack(rest=b"body")
    partition.give(c.Enqueue(1, [Message(data, message_id=str(number)) for number in numbers]))


def stored(partition: OnePartition) -> int:
    return partition.machine.state.subqueues[SubqueueKind.ACTIVE].messages


def follow(partition: OnePartition, window_ms: int) -> None:
    partition.options = replace(partition.options, duplicate_window_ms=window_ms)
    partition.machine.follow(partition.options)


@pytest.mark.row("K9")
@pytest.mark.parametrize("slices", [1, 3, 7])
def test_a_window_that_changes_during_the_scan_loses_no_id(slices: int) -> None:
    options = PartitionOptions(duplicate_window_ms=WINDOW_MS, limits=PartitionLimits(scan_ids=100))
    partition = OnePartition(options)
    send(partition, *range(1_000))
    partition.settle_down()
    partition.load()
    send(partition, 1_000)
    while not partition.run_load():
        partition.commit()
    for _ in range(slices):
        partition.run_load()
    follow(partition, 2 * WINDOW_MS)
    partition.settle_down()
    assert stored(partition) == 1_001
    send(partition, *range(1_001))
    partition.settle_down()
    assert stored(partition) == 1_001


@pytest.mark.row("K9")
def test_ids_of_a_longer_window_are_found_after_a_restart() -> None:
    """A bucket of the longer window is older than the shorter window when the partition is loaded again."""
    partition = OnePartition(PartitionOptions(duplicate_window_ms=80 * WINDOW_MS))
    send(partition, 0)
    partition.now_ms += 9 * WINDOW_MS
    send(partition, *range(1, 10))
    partition.settle_down()
    partition.now_ms += 10
    follow(partition, WINDOW_MS)
    partition.load()
    send(partition, 1, 2)
    partition.settle_down()
    send(partition, *range(3, 10))
    partition.settle_down()
    partition.now_ms += WINDOW_MS // 2
    partition.give(c.Tick())
    send(partition, *range(1, 10))
    partition.settle_down()
    assert stored(partition) == 10


def test_ids_are_counted_once_however_often_the_window_changes() -> None:
    """The filter would grow for twice as many ids."""
    partition = OnePartition(PartitionOptions(duplicate_window_ms=WINDOW_MS))
    count = CELLS_MIN // CELLS_PER_ID * 3 // 4
    send(partition, *range(count))
    for window_ms in (2 * WINDOW_MS, WINDOW_MS, 2 * WINDOW_MS):
        partition.settle_down()
        follow(partition, window_ms)
        send(partition, 1)
    partition.settle_down()
    assert stored(partition) == count
    assert partition.machine.state.duplicates is not None
    assert partition.machine.state.duplicates.memory_bytes == CELLS_MIN + count * RECENT_BYTES


def test_ids_out_of_the_window_are_removed_in_slices() -> None:
    ids = DuplicateIds(WINDOW_MS, is_known=True)
    remember(ids, 1_000_000, *range(2 * TRIM_IDS + 1))
    due_ms = ids.next_deadline_ms()
    assert due_ms is not None
    assert due_ms >= 1_000_000 + WINDOW_MS
    asked = 0
    while (due_ms := ids.next_deadline_ms()) is not None:
        step = Step()
        ids.trim(due_ms, step, 5_000)
        asked += sum(event.most for event in step.events if isinstance(event, IdsForgotten))
    assert asked == 3 * TRIM_IDS


def test_the_key_is_part_of_the_identity() -> None:
    plain = Message(b"", message_id="1")
    keyed = Message(b"", message_id="1", partition_key="k")
    session = Message(b"", message_id="1", session_id="k", partition_key="k")
    assert len({id_of(plain), id_of(keyed)}) == 2
    assert id_of(keyed) == id_of(session)
    assert id_of(Message(b"", message_id="b", partition_key="a")) != id_of(Message(b"", message_id="ab"))
    assert id_of(Message(b"")) is None


def test_buckets_end_with_their_time_or_their_number_of_ids() -> None:
    ids = DuplicateIds(WINDOW_MS, is_known=True)
    first = remember(ids, 1_000_000, 1)
    assert remember(ids, 1_000_001, 2) == first
    assert remember(ids, 1_000_000 + WINDOW_MS // GENERATIONS_PER_WINDOW, 3) > first
    second = remember(ids, 1_010_000, *range(10, 10 + BUCKET_IDS))
    assert remember(ids, 1_010_000, 4) > second, "in the same millisecond, too"


def test_duplicate_in_one_batch_is_dropped() -> None:
    ids = DuplicateIds(WINDOW_MS, is_known=True)
    assert ids.accept([name(1), None, name(1), name(2)], 5) == ([False, False, True, False], [name(1), name(2)])


def test_an_id_that_the_store_did_not_know_is_known_once_it_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of the store stay while commands wait, and the id has left the last ones meanwhile."""
    monkeypatch.setattr(duplicates, "RECENT_MAX", 10)
    ids = DuplicateIds(WINDOW_MS, is_known=False)
    ids.take_answers([name(0)], {})
    remember(ids, 1_000, 0)
    remember(ids, 1_000, *range(1, 20))
    ids.drop_oldest()
    assert ids.accept([name(0)], 2_000) == ([True], [])


@pytest.mark.parametrize("reloads", ["before", "after", "both"])
@pytest.mark.parametrize("count", [1, 2 * TRIM_IDS])
def test_ids_that_a_purge_forgot_stay_forgotten_after_a_restart(reloads: str, count: int) -> None:
    partition = OnePartition(PartitionOptions(duplicate_window_ms=WINDOW_MS))
    send(partition, *range(count))
    partition.settle_down()
    if reloads != "after":
        partition.load()
    partition.give(c.PurgeAll(2, SubqueueKind.ACTIVE))
    send(partition, count)
    partition.settle_down()
    may_go_cold = partition.machine.may_go_cold
    for _ in range(5):
        partition.now_ms += TRIM_PAUSE_MS
        partition.give(c.Tick())
        partition.settle_down()
    assert (may_go_cold, partition.machine.may_go_cold) == (False, True)
    if reloads != "before":
        partition.load()
    send(partition, *range(count + 1))
    partition.settle_down()
    assert stored(partition) == count + 1


@pytest.mark.parametrize("is_known", [False, True])
def test_an_id_that_the_store_is_asked_for_as_a_purge_comes_is_forgotten(is_known: bool) -> None:
    partition = OnePartition(PartitionOptions(duplicate_window_ms=WINDOW_MS))
    send(partition, 1)
    partition.settle_down()
    partition.load()
    if is_known:
        send(partition, 2)
        partition.settle_down()
    send(partition, 1)
    assert partition.machine.state.duplicates.loading  # type: ignore[union-attr]
    partition.give(c.PurgeAll(2, SubqueueKind.ACTIVE))
    send(partition, 1, 3)
    partition.settle_down()
    assert stored(partition) == 2
    send(partition, 1, 3)
    partition.settle_down()
    assert stored(partition) == 2


def test_a_part_of_a_transaction_that_fills_memory_forgets_no_id_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "RECENT_MAX", 10)
    partition = OnePartition(PartitionOptions(duplicate_window_ms=WINDOW_MS))
    send(partition, *range(10))
    partition.settle_down()
    sends = [c.Enqueue(0, [Message(pack(rest=b"body"), message_id=str(number))]) for number in (10, 0)]
    partition.give(c.Transact(2, [*sends]))
    partition.settle_down()
    assert isinstance(partition.replies[2], r.Transacted)
    assert stored(partition) == 11


def test_ids_of_commands_that_follow_each_other_leave_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "RECENT_MAX", 10)
    partition = OnePartition(PartitionOptions(duplicate_window_ms=WINDOW_MS))
    for start in range(0, 60, 3):
        send(partition, start, start + 1, start + 2)
        assert len(partition.machine.state.duplicates._recent) <= 10 + 3  # type: ignore[union-attr]
    partition.settle_down()
    send(partition, 0)
    partition.settle_down()
    assert stored(partition) == 60
