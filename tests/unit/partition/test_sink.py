"""Rows of a sink are stored once, and their ids go when they can't come again (row D5)."""

from __future__ import annotations

import pytest

from partibus.message import Message, pack
from partibus.partition.core.sink import IDS_MAX, TRIM_IDS, TRIM_PAUSE_MS
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import queries as q
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.commands import SINK_ENDS
from partibus.partition.protocol.keys import SubqueueKind, subqueue_key
from partibus.partition.protocol.options import PartitionOptions
from tests.kit.memory import held_bytes
from tests.unit.partition.one_partition import ROW, OnePartition

SINK = 5


def row_id(number: int) -> bytes:
    return number.to_bytes(16)


def message(number: int) -> Message:
    text = str(number).encode()
    return Message(pack(rest=b"\x00\x53\x75\xa0" + bytes([len(text)]) + text), message_id=str(number))


def put(partition: OnePartition, request: int, *numbers: int, sink: int = SINK) -> None:
    ids = [row_id(number) for number in numbers]
    partition.give(c.Enqueue(request, [message(number) for number in numbers], sink=(sink, ids)))


def commit(partition: OnePartition, batch: int, sink: int = SINK) -> None:
    partition.settle_down()  # a batch is committed when its rows are accepted
    partition.give(c.CommitSink(900_000, sink, batch))
    partition.settle_down()
    while (deadline_ms := partition.machine.next_deadline_ms()) is not None:
        partition.now_ms = max(partition.now_ms, deadline_ms)
        partition.give(c.Tick())
        partition.settle_down()
    assert partition.replies.pop(900_000) == r.Done(900_000)


def stored(partition: OnePartition) -> list[int]:
    partition.settle_down()
    rows = partition.store.read(q.Browse(subqueue_key(ROW, SubqueueKind.ACTIVE), 0, 1 << 40, 1 << 30, 1 << 30))
    return [int(row.data[26:]) for row in rows]


def kept(partition: OnePartition, *numbers: int, sink: int = SINK) -> set[int]:
    ids = [row_id(number) for number in numbers]
    return {int.from_bytes(item) for item in partition.store.read(q.SinkIds(ROW, sink, ids))}


def accepted(partition: OnePartition, request: int) -> r.Accepted:
    reply = partition.replies[request]
    assert isinstance(reply, r.Accepted)
    return reply


@pytest.mark.row("D5")
def test_row_that_was_stored_is_dropped_and_counted() -> None:
    partition = OnePartition()
    put(partition, 1, 10, 11)
    partition.settle_down()
    put(partition, 2, 11, 12)
    assert stored(partition) == [10, 11, 12]
    assert [accepted(partition, 1).duplicates, accepted(partition, 2).duplicates] == [0, 1]


@pytest.mark.row("D5")
def test_rows_of_attempts_that_overlap_are_stored_once() -> None:
    """The second comes before anybody knows what became of the first."""
    partition = OnePartition()
    for request in (1, 2, 3):
        put(partition, request, 10, 11, 12)
    assert stored(partition) == [10, 11, 12]
    assert accepted(partition, 3).duplicates == 3


@pytest.mark.row("D5")
def test_id_twice_in_one_command_is_one_row() -> None:
    partition = OnePartition()
    put(partition, 1, 10, 10)
    assert stored(partition) == [10]


@pytest.mark.row("D5")
def test_reply_to_a_repeated_row_waits_until_the_row_is_durable() -> None:
    partition = OnePartition()
    put(partition, 1, 10)
    put(partition, 2, 10)
    while partition.run_load():
        pass
    assert 2 not in partition.replies
    partition.commit()
    assert accepted(partition, 2).duplicates == 1


def test_rows_of_a_lost_commit_are_new() -> None:
    partition = OnePartition()
    put(partition, 1, 10)
    while partition.run_load():
        pass
    partition.crash()
    put(partition, 2, 10)
    assert stored(partition) == [10]
    assert accepted(partition, 2).duplicates == 0


@pytest.mark.row("D5")
def test_rows_are_known_after_a_restart() -> None:
    partition = OnePartition()
    put(partition, 1, 10)
    partition.settle_down()
    partition.crash()
    put(partition, 2, 10, 11)
    assert stored(partition) == [10, 11]


@pytest.mark.row("D5")
def test_sinks_do_not_know_each_other() -> None:
    partition = OnePartition()
    put(partition, 1, 10)
    put(partition, 2, 10, sink=6)
    put(partition, 3, 10)
    assert stored(partition) == [10, 10]


@pytest.mark.row("D5")
def test_batch_may_be_repeated_until_the_one_behind_it_is_committed() -> None:
    partition = OnePartition()
    put(partition, 1, 10)
    commit(partition, 0)
    put(partition, 2, 10)  # a driver that was lost does not know that it has committed
    commit(partition, 0)
    put(partition, 3, 20)
    assert stored(partition) == [10, 20]


@pytest.mark.row("D5")
def test_row_that_comes_again_is_of_the_later_batch() -> None:
    """A job that brings all of its rows in each run."""
    partition = OnePartition()
    for batch in range(4):
        put(partition, batch + 1, 10, 20 + batch)
        commit(partition, batch)
    assert stored(partition) == [10, 20, 21, 22, 23]
    assert kept(partition, 10, 20, 21, 22, 23) == {10, 23}


def test_commit_that_comes_again_or_late_changes_nothing() -> None:
    partition = OnePartition()
    put(partition, 1, 10)
    commit(partition, 0)
    put(partition, 2, 20)
    commit(partition, 0)
    assert kept(partition, 10, 20) == {10, 20}
    commit(partition, 1)
    commit(partition, 0)
    assert kept(partition, 10, 20) == {20}


def test_commits_are_known_after_a_restart() -> None:
    partition = OnePartition()
    put(partition, 1, 10)
    commit(partition, 3)
    partition.crash()
    put(partition, 2, 20)
    commit(partition, 3)
    assert kept(partition, 10, 20) == {10, 20}
    commit(partition, 4)
    assert kept(partition, 10, 20) == {20}


def test_numbers_of_batches_may_have_gaps() -> None:
    partition = OnePartition()
    for batch in (0, 7, 9):
        put(partition, batch + 1, batch)
        commit(partition, batch)
    assert kept(partition, 0, 7, 9) == {9}


def test_sink_that_ends_leaves_nothing() -> None:
    partition = OnePartition()
    put(partition, 1, 10)
    commit(partition, SINK_ENDS)
    assert kept(partition, 10) == set()
    snapshot = partition.store.read(q.Partition(ROW))
    assert snapshot is not None
    assert not snapshot.sinks


def test_ids_go_in_slices() -> None:
    partition = OnePartition()
    numbers = range(TRIM_IDS + 500)
    put(partition, 1, *numbers)
    partition.settle_down()
    partition.give(c.CommitSink(2, SINK, 0))
    partition.give(c.CommitSink(3, SINK, 1))
    partition.settle_down()
    left = []
    while (deadline_ms := partition.machine.next_deadline_ms()) is not None:
        partition.now_ms = max(partition.now_ms, deadline_ms)
        partition.give(c.Tick())
        partition.settle_down()
        left.append(len(kept(partition, *numbers)))
    assert left == [500, 0]
    assert partition.now_ms == 1_000_000 + TRIM_PAUSE_MS


def test_commands_of_one_line_are_asked_about_together_and_keep_their_order() -> None:
    partition = OnePartition()
    put(partition, 1, 1)
    for request in range(2, 50):
        put(partition, request, request)
    loads = 0
    while partition.run_load():
        loads += 1
    assert loads <= 2
    assert stored(partition) == list(range(1, 50))


def test_memory_keeps_no_ids_when_nothing_waits() -> None:
    partition = OnePartition()
    put(partition, 1, *range(IDS_MAX + 1))  # more than may be remembered of the sink
    partition.settle_down()
    sinks = partition.machine.state.sinks
    assert sinks is not None
    assert sinks.memory_bytes == 0
    assert held_bytes(sinks) < 20_000


def test_full_partition_refuses_and_takes_the_rows_later() -> None:
    partition = OnePartition(PartitionOptions(size_bytes_max=1))
    put(partition, 1, 10)
    put(partition, 2, 11)
    partition.settle_down()
    assert isinstance(partition.replies[2], r.Refused)
    partition.machine.follow(PartitionOptions(size_bytes_max=1_000))
    put(partition, 3, 11)
    assert stored(partition) == [10, 11]


@pytest.mark.row("D5")
def test_entity_that_detects_duplicates_knows_rows_by_both_names() -> None:
    partition = OnePartition(PartitionOptions(duplicate_window_ms=20_000))
    for request in (1, 2):
        put(partition, request, 10, 11)
    put(partition, 3, 11, 12)
    partition.settle_down()
    partition.give(c.Enqueue(4, [message(12), message(13)]))
    assert stored(partition) == [10, 11, 12, 13]
    partition.now_ms += 100_000  # out of the window, and still known as a row
    put(partition, 5, 10, 14)
    assert stored(partition) == [10, 11, 12, 13, 14]
    assert accepted(partition, 5).duplicates == 1


@pytest.mark.row("D5")
def test_dropped_row_is_no_new_id_of_the_window() -> None:
    partition = OnePartition(PartitionOptions(duplicate_window_ms=20_000))
    put(partition, 1, 10)
    partition.settle_down()
    partition.now_ms += 100_000
    put(partition, 2, 10, 11)
    partition.settle_down()
    partition.give(c.Enqueue(3, [message(10)]))
    assert stored(partition) == [10, 11, 10]


@pytest.mark.row("D5")
def test_ascending_rows_are_dropped_up_to_the_mark_and_counted() -> None:
    partition = OnePartition()
    partition.give(c.Enqueue(1, [message(1), message(2)], origin=(-9, [1, 2])))
    partition.give(c.Enqueue(2, [message(2), message(3)], origin=(-9, [2, 3])))
    assert stored(partition) == [1, 2, 3]
    assert accepted(partition, 2).duplicates == 1


# What memory has ----------------------------------------------------------------------------------------------------


@pytest.mark.row("D5")
def test_store_is_asked_about_the_first_rows_of_a_sink_and_those_that_come_again() -> None:
    partition = OnePartition()
    put(partition, 1, 10, 11)
    assert partition.run_load(), "nothing is known of the sink yet"
    put(partition, 2, 12, 13)
    assert not partition.run_load(), "surely new"
    put(partition, 3, 13, 14)
    partition.commit()
    assert partition.run_load(), "13 is stored, or was to be"
    assert stored(partition) == [10, 11, 12, 13, 14]
    assert [accepted(partition, request).duplicates for request in (1, 2, 3)] == [0, 0, 1]
    assert kept(partition, *range(10, 15)) == {10, 11, 12, 13, 14}


@pytest.mark.row("D5")
def test_store_is_asked_after_a_restart_until_two_batches_are_committed() -> None:
    partition = OnePartition()
    put(partition, 1, 10)
    commit(partition, 0)
    put(partition, 2, 20)
    partition.settle_down()
    partition.crash()
    put(partition, 3, 20, 21)
    commit(partition, 1)
    assert accepted(partition, 3).duplicates == 1
    put(partition, 4, 30)
    assert partition.run_load(), "20 may come again"
    commit(partition, 2)
    put(partition, 5, 40)
    assert not partition.run_load()
    put(partition, 6, 30)
    assert stored(partition) == [10, 20, 21, 30, 40]


@pytest.mark.row("D5")
def test_rows_that_memory_has_no_room_for_are_stored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partibus.partition.core.sink.IDS_MAX", 4)
    partition = OnePartition()
    for request in range(6):
        put(partition, request, 2 * request, 2 * request + 1)
    partition.settle_down()
    put(partition, 6, *range(12))
    assert stored(partition) == [*range(12)]
    assert accepted(partition, 6).duplicates == 12
    commit(partition, 0)
    put(partition, 7, 20)
    commit(partition, 1)
    put(partition, 8, 30)
    assert not partition.run_load(), "all that the store has left came with the last batch"
    put(partition, 9, 20, 30)
    assert stored(partition) == [*range(12), 20, 30]


@pytest.mark.row("D5")
def test_run_knows_the_last_complete_run_and_incomplete_ones_since_the_one_before() -> None:
    partition = OnePartition()
    put(partition, 1, 10)
    commit(partition, 100)
    put(partition, 2, 30)  # a run that fails
    partition.settle_down()
    put(partition, 3, 20)
    commit(partition, 200)
    put(partition, 4, 10, 20, 30)
    assert sorted(stored(partition)) == [10, 10, 20, 30]
    assert accepted(partition, 4).duplicates == 2
