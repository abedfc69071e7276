"""A sub-queue that forwards, and a partition that messages are forwarded to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from partibus.message import Message, StoredMessage, pack
from partibus.partition.core.events import Event, MarkRaised, Removed
from partibus.partition.core.journal import record
from partibus.partition.core.machine import Partition
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import load_requests as w
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.generations import Generation, History, Series, origin_key, origin_of
from partibus.partition.protocol.keys import POSITION_MAX, SubqueueKind, subqueue_key
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.ports import Snapshot, Writes

ROW = 7
ORIGIN = subqueue_key(3, 0)
PLAIN = PartitionOptions(lock_duration_ms=1_000, reservation_ms=100)
FORWARDS = PartitionOptions(lock_duration_ms=1_000, reservation_ms=100, forwards=1)


def messages(count: int, *, ttl_ms: int | None = None) -> list[Message]:
    return [Message(pack(rest=b"%d" % i, ttl_ms=ttl_ms), ttl_ms=ttl_ms, message_id=str(i)) for i in range(count)]


def filled(options: PartitionOptions, count: int, *, ttl_ms: int | None = None) -> Partition:
    partition = Partition(ROW, options)
    partition.handle(c.Enqueue(1, messages(count, ttl_ms=ttl_ms)), 0)
    return partition


def granted(partition: Partition, command: c.Command, now_ms: int = 0) -> list[r.Granted]:
    return [reply for reply in partition.handle(command, now_ms).replies if isinstance(reply, r.Granted)]


def forward(receiver: int, count: int = 100) -> c.Receive:
    return c.Receive(0, receiver, count, 1 << 20, forward=True)


def positions(grants: Sequence[r.Granted]) -> list[int]:
    return [entry.pos for grant in grants for entry in grant.entries]


def tokens(grants: Sequence[r.Granted]) -> list[c.LockToken]:
    return [(grant.lock_id, entry.pos) for grant in grants for entry in grant.entries]


def written(partition: Partition, events: list[Event]) -> Writes:
    writes = Writes()
    record(ROW, events, writes)
    return writes


def test_what_is_reserved_to_be_forwarded_stays_so_until_it_is() -> None:
    partition = filled(FORWARDS, 3)
    grants = granted(partition, forward(1))
    assert positions(grants) == [1, 2, 3]
    assert partition.next_deadline_ms() is None
    assert granted(partition, c.Tick(), 10**9) == []
    step = partition.handle(c.Forwarded(5, 0, tokens(grants)[:2]), 0)
    assert step.replies == [r.Done(5)]
    assert [type(event) for event in step.events] == [Removed]
    assert partition.state.subqueues[0].messages == 1
    assert partition.handle(c.Forwarded(0, 0, tokens(grants)), 0).replies == []
    assert partition.state.subqueues[0].messages == 0


def test_another_forwarder_gets_what_its_predecessor_had_and_is_the_only_one() -> None:
    partition = filled(FORWARDS, 3)
    first = granted(partition, forward(1))
    second = granted(partition, forward(2))
    assert [(grant.receiver, positions([grant])) for grant in second] == [(2, [1, 2, 3])]
    assert partition.handle(c.Forwarded(5, 0, tokens(first)), 0).events == []
    more = granted(partition, c.Enqueue(1, messages(1)))
    assert [(grant.receiver, positions([grant])) for grant in more] == [(2, [4])]


def test_nothing_is_granted_behind_what_others_hold() -> None:
    partition = filled(PLAIN, 5)
    locked = granted(partition, c.Receive(0, 9, 2, 1 << 20))
    partition.handle(c.CancelReceive(0, 0, 9), 0)
    partition.follow(FORWARDS)
    assert granted(partition, forward(1)) == []
    abandoned = c.Settle(1, 0, c.Outcome.ABANDON, tokens(locked)[:1])
    assert positions(granted(partition, abandoned)) == [1]
    assert granted(partition, forward(1)) == []
    completed = c.Settle(2, 0, c.Outcome.COMPLETE, tokens(locked)[1:])
    assert positions(granted(partition, completed)) == [3, 4, 5]


def test_reservations_of_a_front_end_hold_up_until_they_lapse() -> None:
    partition = filled(PLAIN, 3)
    granted(partition, c.Receive(0, 9, 1, 1 << 20, reserve=True))
    partition.follow(FORWARDS)
    assert granted(partition, forward(1)) == []
    assert positions(granted(partition, c.Tick(), 100)) == [1, 2, 3]


def test_a_series_ends_when_a_receiver_takes_messages_and_the_next_one_has_another_number() -> None:
    partition = filled(PLAIN, 2)
    partition.follow(FORWARDS)

    def series(command: c.Command) -> Series:
        (grant,) = granted(partition, command)
        return Series.unpack(grant.series)

    assert series(forward(1)) == Series(1, 3)  # receivers may have had these two
    assert series(c.Enqueue(2, messages(2))) == Series(1, 3)
    assert loaded_again(partition).state.series == {0: Series(1, 3).pack()}
    assert series(forward(2)) == Series(1, 3)
    partition.handle(c.CancelReceive(0, 0, 2), 0)
    partition.follow(PLAIN)
    assert granted(partition, c.Receive(0, 9, 1, 1 << 20)) == []
    assert series(c.Enqueue(3, messages(1))) == Series()
    assert loaded_again(partition).state.series == {}
    partition = loaded_again(partition)
    partition.follow(FORWARDS)
    partition.handle(forward(4), 0)
    assert series(c.Enqueue(4, messages(1))) == Series(2, 6)


def loaded_again(partition: Partition) -> Partition:
    """Return the partition as it is loaded after all messages have left."""
    marks = dict(partition.state.inbound_marks)
    return Partition(ROW, FORWARDS, Snapshot(*partition.counters, {}, [], [], {}, marks))


def test_a_destination_knows_a_position_by_its_series_and_what_was_there_before_by_the_latest_generation() -> None:
    generations = (Generation(1, 77), Generation(1_000, 88))
    series = Series(3, 50)
    assert origin_of(generations, series, 49) == (generations[1], 50)
    assert origin_of(generations, series, 50) == (generations[0], 1_000)
    assert origin_of(generations, series, 1_000) == (generations[1], POSITION_MAX)
    keys = [origin_key(ORIGIN, generation, Series(number)) for generation in generations for number in range(50)]
    assert len({*keys}) == len(keys)
    assert all(0 <= key < 1 << 63 and key & (1 << 23) - 1 == ORIGIN for key in keys)
    assert Series.unpack(series.pack()) == series


def test_deferred_messages_hold_nothing_up() -> None:
    partition = filled(PLAIN, 2)
    locked = granted(partition, c.Receive(0, 9, 1, 1 << 20))
    partition.handle(c.Settle(1, 0, c.Outcome.DEFER, tokens(locked)), 0)
    partition.follow(FORWARDS)
    assert positions(granted(partition, forward(1))) == [2]


def test_what_waits_to_be_forwarded_does_not_expire_and_does_when_it_no_longer_waits() -> None:
    partition = filled(FORWARDS, 2, ttl_ms=50)
    assert partition.handle(c.Tick(), 60).loads == []
    assert partition.next_deadline_ms() is None
    assert positions(granted(partition, forward(1, 1), 60)) == [1]
    partition.follow(PLAIN)
    assert partition.next_deadline_ms() == 0
    (load,) = partition.handle(c.Tick(), 60).loads
    assert isinstance(load, w.RangeScanLoad)


def test_what_can_not_go_on_is_a_transfer_dead_letter() -> None:
    partition = filled(FORWARDS, 2)
    assert len(list(partition.counts())) == 2  # no row for a sub-queue that nobody has needed
    grants = granted(partition, forward(1))
    step = partition.handle(c.Forwarded(0, 0, tokens(grants), "reason", "description"), 0)
    writes = written(partition, step.events)
    key = subqueue_key(ROW, SubqueueKind.TRANSFER_DEAD_LETTER)
    assert (key, 2) in [(subqueue, count) for subqueue, count, _ in partition.counts()]
    assert len(writes.deleted_entries) == 1
    (dead,) = granted(partition, c.Receive(SubqueueKind.TRANSFER_DEAD_LETTER, 8, 9, 1 << 20))
    assert [entry.sequence for entry in dead.entries] == [1, 2]
    assert b"reason" in StoredMessage(dead.entries[0].data or b"").application_properties


# What comes in -----------------------------------------------------------------------------------------------------


def send(partition: Partition, origin: list[int], now_ms: int = 0) -> list[Event]:
    step = partition.handle(c.Enqueue(1, messages(len(origin)), origin=(ORIGIN, origin)), now_ms)
    assert isinstance(step.replies[0], r.Accepted) or step.loads
    return step.events


def test_each_position_is_stored_once() -> None:
    partition = Partition(ROW, PLAIN)
    events = send(partition, [4, 5, 9])
    assert MarkRaised(ORIGIN, 9) in events
    assert written(partition, events).inbound_marks == {(ROW, ORIGIN): 9}
    assert partition.state.subqueues[0].messages == 3
    assert not any(isinstance(event, MarkRaised) for event in send(partition, [4, 5, 9]))
    send(partition, [5, 9, 12])
    assert partition.state.subqueues[0].messages == 4
    step = partition.handle(c.Enqueue(1, messages(1), origin=(ORIGIN + 1, [2])), 0)
    assert MarkRaised(ORIGIN + 1, 2) in step.events
    assert partition.state.subqueues[0].messages == 5


def test_marks_are_loaded_with_the_partition() -> None:
    snapshot = Snapshot(10, 10, 0, {}, [], [], {}, {ORIGIN: 9})
    partition = Partition(ROW, PLAIN, snapshot)
    send(partition, [8, 9])
    assert partition.state.subqueues[0].messages == 0


@pytest.mark.parametrize(("refusals", "stored"), [(0, 2), (1, 1), (2, 1)])
def test_a_mark_from_before_a_restore_counts_unless_later_messages_were_refused(refusals: int, stored: int) -> None:
    partition = Partition(ROW, PLAIN)
    partition.handle(c.Enqueue(1, messages(2), origin=(ORIGIN, [3, 5]), history=History(1)), 0)
    assert loaded_again(partition).state.inbound_marks == partition.state.inbound_marks
    restored = c.Enqueue(2, messages(2), origin=(ORIGIN + (1 << 23), [4, 6]), history=History(refusals, ORIGIN))
    for duplicates in (2 - stored, 2):
        (accepted,) = partition.handle(restored, 0).replies
        assert isinstance(accepted, r.Accepted)
        assert accepted.duplicates == duplicates
    assert partition.state.subqueues[0].messages == 2 + stored


def test_a_forwarder_hears_of_a_refusal_when_it_is_durable() -> None:
    partition = filled(FORWARDS, 2)
    grants = granted(partition, forward(1))
    assert grants[0].refusals == 0
    step = partition.handle(c.Forwarded(7, 0, tokens(grants)[:1], "reason", "description"), 0)
    told, done = step.replies
    assert isinstance(told, r.Granted)
    assert (told.receiver, told.entries, told.refusals, told.series) == (1, [], 1, grants[0].series)
    assert done == r.Done(7)
    assert loaded_again(partition).state.refusals(0) == 1
    assert granted(partition, c.Enqueue(2, messages(1)))[0].refusals == 1


@pytest.mark.row("K9")
def test_a_repeated_send_is_no_duplicate_of_itself() -> None:
    """The ids of what has come before are passed over with it: those that follow keep their own."""
    partition = Partition(ROW, PartitionOptions(duplicate_window_ms=10_000))
    partition.handle(c.Enqueue(1, messages(2), origin=(ORIGIN, [1, 2])), 0)
    step = partition.handle(c.Enqueue(2, messages(4), origin=(ORIGIN, [1, 2, 3, 4])), 0)
    assert isinstance(step.replies[0], r.Accepted)
    assert partition.state.subqueues[0].messages == 4
    step = partition.handle(c.Enqueue(3, messages(4), origin=(ORIGIN, [5, 6, 7, 8])), 0)
    assert MarkRaised(ORIGIN, 8) in step.events
    assert partition.state.subqueues[0].messages == 4


# Who reads a forwarding sub-queue alone ------------------------------------------------------------------------------


@pytest.mark.parametrize("revoke", [False, True])
def test_nobody_reads_alone_what_goes_on_to_another_entity(revoke: bool) -> None:
    partition = filled(FORWARDS, 3)
    reserved = granted(partition, forward(1))
    step = partition.handle(c.OpenCursor(5, 0, "reader", lease_ms=1_000, revoke=revoke), 0)
    assert step.replies == [r.CursorRefused(5, forwards=True)]
    assert partition.handle(c.Forwarded(6, 0, tokens(reserved)), 0).replies == [r.Done(6)]
    step = partition.handle(c.OpenCursor(7, 0, "reader"), 0)
    assert [type(reply) for reply in step.replies] == [r.CursorOpened], "who only looks is not in the way"


def test_what_is_on_its_way_when_forwarding_ends_is_waited_for_also_by_who_revokes() -> None:
    partition = filled(FORWARDS, 3)
    reserved = granted(partition, forward(1))
    partition.follow(PLAIN)
    ask = c.OpenCursor(5, 0, "reader", lease_ms=1_000, revoke=True)
    (busy,) = partition.handle(ask, 0).replies
    assert isinstance(busy, r.CursorBusy)
    assert busy.locked == 3
    partition.handle(c.Forwarded(0, 0, tokens(reserved)), 0)
    *told, opened = partition.handle(ask, 0).replies
    assert [type(reply) for reply in told] == [r.ReceiveRefused]
    assert isinstance(opened, r.CursorOpened)
    assert partition.state.subqueues[0].messages == 0


@pytest.mark.row("D3")
def test_a_lease_from_before_the_forwarding_holds_and_its_next_run_takes_over() -> None:
    partition = filled(PLAIN, 3)
    partition.handle(c.OpenCursor(5, 0, "reader", lease_ms=1_000), 0)
    partition.follow(FORWARDS)
    assert granted(partition, forward(1)) == []
    for epoch in (1, 0):
        (reply,) = partition.handle(c.OpenCursor(5, 0, "reader", lease_ms=1_000, epoch=epoch), 10).replies
        assert isinstance(reply, r.CursorOpened)
        assert reply.epoch == (epoch or 2)


def test_a_forwarder_that_ends_and_holds_nothing_lets_the_partition_go_cold() -> None:
    partition = filled(FORWARDS, 1)
    grants = granted(partition, forward(1))
    ending, idle = c.CancelReceive(0, 0, 1), []
    for command in (ending, c.Forwarded(5, 0, tokens(grants)), ending):
        partition.handle(command, 0)
        idle.append(partition.state.subqueues[0].is_idle)
    assert idle == [False, False, True]
    granted(partition, forward(2))
    partition.handle(ending, 0)
    assert partition.state.subqueues[0].forwarder == 2, "another one has begun"
