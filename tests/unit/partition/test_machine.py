"""The behaviour of one partition, fact by fact. `Lockstep` compares every step with the reference model on the way."""

from __future__ import annotations

from typing import TypeVar

import pytest

from partibus.amqp.codec.decoder import decode
from partibus.limits import KIB, PartitionLimits
from partibus.message import Message, StoredMessage, pack
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import load_requests as w
from partibus.partition.protocol import queries as q
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.commands import LockToken, Outcome
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.options import PartitionOptions
from tests.kit.lockstep import ROW, Lockstep
from tests.kit.stores.memory import MemoryStore
from tests.unit.partition.one_partition import OnePartition

ACTIVE, DEAD = SubqueueKind.ACTIVE, SubqueueKind.DEAD_LETTER
SMALL = PartitionLimits(window_entries=4, window_bytes=2_000, page_entries=3, page_bytes=1_000, locked_body_max=50)
R = TypeVar("R")


def start(limits: PartitionLimits = SMALL, **options: int | bool | None) -> Lockstep:
    return Lockstep(MemoryStore(), PartitionOptions(limits=limits, **options))  # type: ignore[arg-type]


def message(text: bytes = b"", ttl_ms: int | None = None) -> Message:
    return Message(pack(rest=b"\x00\x53\x75\xb0" + len(text).to_bytes(4, "big") + text), ttl_ms=ttl_ms)


def send(both: Lockstep, count: int = 1, size_bytes: int = 0, ttl_ms: int | None = None) -> None:
    both.enqueue([message(bytes(size_bytes), ttl_ms) for _ in range(count)])
    both.settle_down()


def replies(both: Lockstep, kind: type[R]) -> list[R]:
    return [reply for reply in both.replies if isinstance(reply, kind)]


def take(both: Lockstep, count: int = 1, kind: int = ACTIVE, *, delete: bool = False) -> list[tuple[LockToken, int]]:
    """(token, sequence) of what a receiver gets within one step or after pages; it waits for nothing then."""
    granted: list[r.Granted] = []
    step = both.step

    def watch(command: w.Input) -> None:
        step(command)
        granted.extend(replies(both, r.Granted))

    both.step = watch  # type: ignore[method-assign]
    both.receive(kind, 99, count, 1 << 30, delete=delete)
    both.settle_down()
    both.cancel(kind, 99)
    both.step = step  # type: ignore[method-assign]
    return [((grant.lock_id, entry.pos), entry.sequence) for grant in granted for entry in grant.entries]


def sequences(taken: list[tuple[LockToken, int]]) -> list[int]:
    return [sequence for _, sequence in taken]


def tokens(taken: list[tuple[LockToken, int]]) -> list[LockToken]:
    return [token for token, _ in taken]


def lost(both: Lockstep) -> list[int]:
    return replies(both, r.Settled)[0].lost


def properties_of(data: bytes) -> object:
    return decode(StoredMessage(data).application_properties, 3)[0]


# -- order and numbers -------------------------------------------------------------------------------------------------


@pytest.mark.row("P18")
def test_sequence_counters_rise_by_one_and_outlive_a_crash() -> None:
    both = start()
    send(both, 3)
    both.crash(commit_survives=True)
    both.enqueue([message()])
    assert replies(both, r.Accepted)[0].first_sequence == 4


def test_sequence_counter_is_not_given_again_after_its_message_is_gone() -> None:
    both = start()
    send(both, 2)
    both.settle(ACTIVE, Outcome.COMPLETE, tokens(take(both, 2)))
    both.settle_down()
    both.crash(commit_survives=True)
    send(both)
    assert sequences(take(both)) == [3]


def test_released_message_returns_to_its_place() -> None:
    both = start()
    send(both, 4)
    first, _second = take(both, 2)
    both.settle(ACTIVE, Outcome.RELEASE, [first[0]])
    assert sequences(take(both, 2)) == [1, 3]


def test_receivers_share_what_is_there() -> None:
    both = start()
    both.receive(ACTIVE, 1, 10, 10_000)
    both.receive(ACTIVE, 2, 10, 10_000)
    both.enqueue([message() for _ in range(4)])
    shares = {reply.receiver: len(reply.entries) for reply in replies(both, r.Granted)}
    assert set(shares) == {1, 2}


def test_receiver_gets_no_more_bytes_than_it_asked_for_but_always_one_message() -> None:
    both = start()
    send(both, 3, size_bytes=100)
    both.receive(ACTIVE, 1, 10, 1)
    (grant,) = replies(both, r.Granted)
    assert (len(grant.entries), grant.ended) == (1, True)


def test_receiver_that_asks_for_nothing_stands_in_nobodys_way() -> None:
    both = start()
    both.receive(ACTIVE, 1, 0, 1_000)
    send(both)
    assert sequences(take(both)) == [1]


def test_a_demand_for_one_grant_waits_for_it_and_ends_with_it() -> None:
    both = start()
    machine, now_ms = both.machine, both.now_ms
    assert machine.handle(c.Receive(ACTIVE, 1, 5, 10_000, once=True), now_ms).replies == []
    replies = machine.handle(c.Enqueue(2, [message(), message()]), now_ms).replies
    (grant,) = [reply for reply in replies if isinstance(reply, r.Granted)]
    assert (len(grant.entries), grant.ended) == (2, True)
    assert not machine.state.subqueues[ACTIVE].demands


def test_cancelled_receiver_gets_nothing_more() -> None:
    both = start()
    both.receive(ACTIVE, 1, 5, 1_000)
    both.cancel(ACTIVE, 1)
    assert replies(both, r.Cancelled)[0].count == 5
    both.enqueue([message()])
    assert replies(both, r.Granted) == []


# -- locks -------------------------------------------------------------------------------------------------------------


@pytest.mark.row("C5")
def test_locked_message_goes_to_nobody_else_until_it_is_settled() -> None:
    both = start()
    send(both, 2)
    (first,) = take(both)
    assert sequences(take(both, 5)) == [2]
    both.settle(ACTIVE, Outcome.COMPLETE, [first[0]])
    assert lost(both) == []
    assert take(both) == []


@pytest.mark.row("A7")
def test_expired_lock_counts_and_makes_its_message_available_again() -> None:
    both = start(lock_duration_ms=1_000)
    send(both)
    (first,) = take(both)
    both.advance(999)
    assert take(both) == []
    both.advance(1)
    both.receive(ACTIVE, 1, 1, 1_000)
    (grant,) = replies(both, r.Granted)
    assert [(entry.sequence, entry.delivery_count) for entry in grant.entries] == [(1, 1)]
    both.settle(ACTIVE, Outcome.COMPLETE, [first[0]])
    assert lost(both) == [0], "the first lock is over"


def test_lock_outlives_a_crash_until_the_same_moment() -> None:
    both = start(lock_duration_ms=1_000)
    send(both)
    (first,) = take(both)
    both.crash(commit_survives=True)
    assert take(both) == []
    assert both.machine.next_deadline_ms() == 1_000
    both.settle(ACTIVE, Outcome.COMPLETE, [first[0]])
    assert lost(both) == []


def test_lock_that_was_not_written_is_gone_after_a_crash_and_counted_for_nothing() -> None:
    both = start()
    send(both)
    both.receive(ACTIVE, 1, 1, 1_000)
    both.crash(commit_survives=False)
    both.receive(ACTIVE, 1, 1, 1_000)
    both.settle_down()
    assert both.model.queues[ACTIVE][0].delivery_count == 0
    both.check_at_rest()


def test_lock_that_was_not_written_never_shares_its_id_with_a_later_one() -> None:
    both = start()
    send(both)
    both.receive(ACTIVE, 1, 1, 1_000)
    ((_, stale),) = both.delivered
    both.crash(commit_survives=False)
    take(both)
    both.settle(ACTIVE, Outcome.COMPLETE, [stale])
    assert lost(both) == [0]


def test_recovered_lock_that_ends_leaves_its_message_in_its_place() -> None:
    both = start(lock_duration_ms=1_000)
    send(both, 8)
    taken = take(both, 5)
    both.settle(ACTIVE, Outcome.RELEASE, tokens(taken[:3]))
    both.settle_down()
    both.crash(commit_survives=True)
    both.settle(ACTIVE, Outcome.RELEASE, tokens(taken[4:]))
    assert sequences(take(both, 9)) == [1, 2, 3, 5, 6, 7, 8], "5 waits for the pages below it"


def test_token_named_twice_counts_once() -> None:
    both = start(max_delivery_count=5)
    send(both)
    ((token, _),) = take(both)
    both.settle(ACTIVE, Outcome.ABANDON, [token, token])
    assert lost(both) == []
    assert both.model.queues[ACTIVE][0].delivery_count == 1


def test_forged_token_settles_nothing() -> None:
    both = start()
    send(both)
    ((token, _),) = take(both)
    both.settle(ACTIVE, Outcome.COMPLETE, [(token[0], 99), (77, token[1]), (0, 0)])
    assert lost(both) == [0, 1, 2]
    assert both.model.held(ACTIVE, "locked")


# -- receive-and-delete, reservations ----------------------------------------------------------------------------------


@pytest.mark.row("C6")
def test_receive_and_delete_takes_one_request_and_no_lock() -> None:
    both = start()
    send(both, 2)
    both.receive(ACTIVE, 1, 2, 1_000, delete=True)
    (grant,) = replies(both, r.Granted)
    assert (grant.lock_id, len(grant.entries)) == (0, 2)
    both.check_at_rest()
    both.crash(commit_survives=True)
    assert take(both) == []


def test_lapsed_reservation_is_not_counted_and_cannot_be_locked() -> None:
    both = start(reservation_ms=100)
    send(both)
    both.receive(ACTIVE, 1, 1, 1_000, reserve=True)
    ((_, token),) = both.reserved
    both.advance(100)
    both.lock_reserved(ACTIVE, [token])
    (locked,) = replies(both, r.Locked)
    assert locked.entries == []
    both.receive(ACTIVE, 3, 1, 1_000)
    assert replies(both, r.Granted)[0].entries[0].delivery_count == 0


@pytest.mark.parametrize("ticks", [True, False])
def test_a_receiver_that_lets_a_reservation_lapse_loses_its_later_ones(ticks: bool) -> None:
    both = start(reservation_ms=100)
    send(both)
    both.receive(ACTIVE, 1, 2, 1_000, reserve=True)
    both.now_ms += 60
    send(both)
    both.receive(ACTIVE, 2, 1, 1_000, reserve=True)
    send(both)
    (_, early), (_, late), (_, other) = both.reserved
    if ticks:
        both.advance(40)
    else:
        both.now_ms += 40  # the owner has not run in time
    for token, messages in ((late, 0), (other, 1), (early, 0)):
        both.lock_reserved(ACTIVE, [token])
        (locked,) = replies(both, r.Locked)
        assert len(locked.entries) == messages
    both.receive(ACTIVE, 3, 9, 1_000)
    assert [entry.sequence for entry in replies(both, r.Granted)[0].entries] == [1, 2], "in order, as before"


def test_a_receiver_that_returns_a_reservation_loses_those_that_are_on_their_way() -> None:
    both = start()
    send(both)
    both.receive(ACTIVE, 1, 9, 1_000, reserve=True)
    send(both)  # the front end returns the first message before it has heard of this one
    (_, early), (_, late) = both.reserved
    both.return_reserved(ACTIVE, [early])
    (again,) = replies(both, r.Granted)
    assert [entry.sequence for entry in again.entries] == [1, 2], "it still waits for seven"
    both.lock_reserved(ACTIVE, [late])
    assert replies(both, r.Locked)[0].entries == []


def test_large_body_stays_with_the_reservation_that_is_locked() -> None:
    both = start()
    send(both, 1, size_bytes=500)
    both.receive(ACTIVE, 1, 1, 1_000, reserve=True)
    (cached,) = replies(both, r.Granted)[0].entries
    both.lock_reserved(ACTIVE, [both.reserved[0][1]])
    assert cached.data is not None


@pytest.mark.row("C20")
def test_time_to_live_is_checked_when_a_cached_message_is_handed_out() -> None:
    both = start(dead_letter_on_expiration=True)
    send(both, 1, ttl_ms=50)
    both.receive(ACTIVE, 1, 1, 1_000, reserve=True)
    both.advance(50)
    both.lock_reserved(ACTIVE, [both.reserved[0][1]])
    assert replies(both, r.Locked)[-1].entries == []
    assert len(both.model.queues[DEAD]) == 1


# -- dead-letter sub-queue, time to live -------------------------------------------------------------------------------


def test_dead_lettered_message_carries_reason_and_description_and_keeps_the_rest() -> None:
    both = start()
    both.enqueue([message(b"body")])
    ((token, _),) = take(both)
    both.ask(c.Settle(0, ACTIVE, Outcome.DEAD_LETTER, [token], "Broken", "no such customer"))
    both.settle_down()
    (item,) = both.model.queues[DEAD]
    assert properties_of(item.data) == {
        "DeadLetterReason": "Broken", "DeadLetterErrorDescription": "no such customer",
    }  # fmt: skip
    assert StoredMessage(item.data).rest == StoredMessage(message(b"body").data).rest
    both.check_at_rest()


@pytest.mark.parametrize("size_bytes", [0, 500])
def test_delivered_too_often_goes_to_the_dead_letter_subqueue(size_bytes: int) -> None:
    both = start(max_delivery_count=2)
    send(both, 1, size_bytes)
    for _ in range(2):
        both.settle(ACTIVE, Outcome.ABANDON, tokens(take(both)))
        both.settle_down()
    assert both.model.queues[ACTIVE] == []
    (item,) = both.model.queues[DEAD]
    assert properties_of(item.data) == {
        "DeadLetterReason": "MaxDeliveryCountExceeded",
        "DeadLetterErrorDescription": "Message could not be consumed after 2 delivery attempts.",
    }


def test_count_that_was_stored_before_the_move_is_not_delivered_after_a_crash() -> None:
    both = start(max_delivery_count=1)
    send(both, 1, size_bytes=500)
    taken = take(both)
    both.settle(ACTIVE, Outcome.ABANDON, tokens(taken))
    both.begin_commit()
    both.crash(commit_survives=True)
    assert take(both) == []
    assert len(both.model.queues[DEAD]) == 1


def test_dead_lettering_again_moves_to_the_end_with_the_new_reason() -> None:
    both = start()
    send(both, 2)
    both.settle(ACTIVE, Outcome.DEAD_LETTER, tokens(take(both, 2)), "first")
    both.settle_down()
    both.settle(DEAD, Outcome.DEAD_LETTER, tokens(take(both, 1, DEAD)), "second")
    both.settle_down()
    assert sequences(take(both, 2, DEAD)) == [2, 1]
    reasons = [properties_of(item.data) for item in both.model.queues[DEAD]]
    assert reasons == [{"DeadLetterReason": "first"}, {"DeadLetterReason": "second"}]


def test_dead_letter_subqueue_has_no_limit_of_deliveries_and_no_time_to_live() -> None:
    both = start(PartitionLimits(), max_delivery_count=1, dead_letter_on_expiration=True)
    send(both, 1, ttl_ms=10)
    both.advance(10)
    assert take(both) == []
    for _ in range(3):
        both.receive(DEAD, 5, 1, 1_000)
        (grant,) = replies(both, r.Granted)
        assert grant.entries[0].delivery_count == 0
        both.settle(DEAD, Outcome.ABANDON, [(grant.lock_id, grant.entries[0].pos)])


@pytest.mark.row("C20")
@pytest.mark.parametrize("dead_letter", [False, True])
def test_expired_message_is_not_delivered(dead_letter: bool) -> None:
    both = start(dead_letter_on_expiration=dead_letter)
    send(both, 2, ttl_ms=10)
    send(both, 1)
    both.advance(10)
    assert sequences(take(both, 5)) == [3]
    assert len(both.model.queues[DEAD]) == 2 * dead_letter


def test_smaller_time_to_live_of_message_and_entity_counts() -> None:
    both = start(default_ttl_ms=100)
    both.enqueue([message(), message(ttl_ms=50), message(ttl_ms=500)])
    assert [item.expires_ms for item in both.model.queues[ACTIVE]] == [100, 50, 100]
    both.check_at_rest()


# -- memory and pages --------------------------------------------------------------------------------------------------


def test_backlog_takes_no_more_memory_than_two_windows() -> None:
    both = start()
    for _ in range(30):
        send(both, 3)
    subqueue = both.machine.state.subqueues[ACTIVE]
    batch = 3
    assert len(subqueue.ready) + len(subqueue.tail) < 2 * SMALL.window_entries + batch
    assert sequences(take(both, 90)) == list(range(1, 91))


def test_page_does_not_resurrect_what_is_completed_but_not_committed() -> None:
    both = start()
    send(both, 12)
    taken = take(both, 4)
    both.settle(ACTIVE, Outcome.COMPLETE, tokens(taken))
    both.receive(ACTIVE, 1, 8, 10_000)
    while both.runnable():
        both.run_load(both.runnable()[0])
    while both.answers:
        both.answer(0)
    assert both.under_way is None
    assert both.pending.deleted_entries, "the removal is still to be committed"
    assert [item.sequence for item in both.model.queues[ACTIVE]] == list(range(5, 13))


def test_large_body_is_let_go_and_read_again_before_the_next_delivery() -> None:
    both = start()
    send(both, 1, size_bytes=500)
    taken = take(both)
    (locked,) = [entry for batch in both.machine.state.subqueues[ACTIVE].locks for entry in batch.entries.values()]
    assert locked.data is None
    both.settle(ACTIVE, Outcome.RELEASE, tokens(taken))
    both.receive(ACTIVE, 1, 1, 1_000)
    assert replies(both, r.Granted) == []
    both.settle_down()
    (grant,) = replies(both, r.Granted)
    assert len(grant.entries[0].data or b"") > 500


def test_bodies_are_read_again_within_the_bound_of_a_page() -> None:
    both = start()
    for _ in range(6):
        send(both, 1, size_bytes=400)
    both.receive(ACTIVE, 1, 6, 10_000)
    both.settle_down()
    both.settle(ACTIVE, Outcome.RELEASE, [token for _, token in both.delivered])
    both.receive(ACTIVE, 1, 6, 10_000)
    (load,) = [load for _, load in both.loads if isinstance(load, w.BodyLoad)]
    assert load.positions == [1, 2], "1,000 bytes a page"
    both.check_at_rest()


@pytest.mark.parametrize("outcome", [Outcome.RELEASE, Outcome.DEAD_LETTER])
def test_message_whose_body_the_store_has_lost_harms_nobody_else(outcome: Outcome) -> None:
    both = start()
    send(both, 2, size_bytes=500)
    taken = take(both)
    store = both.store
    assert isinstance(store, MemoryStore)
    store.disk.durable.bodies.pop(both.machine.state.subqueues[ACTIVE].locks.find(taken[0][0][0]).entries[1].body)  # type: ignore[union-attr]
    machine, now_ms = both.machine, both.now_ms
    work: list[w.Input] = [
        c.Settle(1, ACTIVE, outcome, tokens(taken)), c.Receive(ACTIVE, 1, 5, 10_000),
    ]  # fmt: skip
    granted: list[int] = []
    for _ in range(20):
        if not work:
            break
        step = machine.handle(work.pop(0), now_ms)
        granted += [e.sequence for reply in step.replies if isinstance(reply, r.Granted) for e in reply.entries]
        for load in step.loads:
            assert isinstance(load, w.BodyLoad | w.PageLoad)
            if isinstance(load, w.BodyLoad):
                work.append(w.Loaded(load, store.read(q.Bodies(load.bodies))))
    assert work == [], "it asks for the body for ever"
    assert granted == [2]
    assert machine.state.subqueues[ACTIVE].messages == 1


def test_full_partition_refuses_and_stores_nothing() -> None:
    both = start(size_bytes_max=100)
    send(both, 1, size_bytes=200)
    both.ask(c.Enqueue(0, [message()]))
    (refused,) = both.replies
    assert isinstance(refused, r.Refused)
    assert (refused.size_bytes_max, refused.size_bytes > 200) == (100, True)


# -- peek --------------------------------------------------------------------------------------------------------------


@pytest.mark.row("A8")
def test_peek_asks_the_store_for_256_kb_at_most() -> None:
    both = start(limits=PartitionLimits())
    send(both, 3, size_bytes=100 * KIB)
    request = both.peek(ACTIVE, 0, 10)
    ((_, load),) = both.loads
    assert isinstance(load, w.PeekLoad)
    assert load.max_bytes == 256 * KIB
    both.settle_down()
    assert [row.sequence for row in both.rows[request]] == [1, 2]


def test_peek_answers_what_there_is_and_changes_nothing() -> None:
    both = start()
    send(both, 3)
    take(both)
    request = both.peek(ACTIVE, 0, 10)
    both.settle_down()
    assert [row.sequence for row in both.rows[request]] == [1, 2, 3], "locked ones too"
    assert sequences(take(both, 5)) == [2, 3]


def test_peek_goes_on_from_a_number_until_nothing_is_left() -> None:
    both = start()
    send(both, 5)
    seen: list[int] = []
    while True:
        request = both.peek(ACTIVE, seen[-1] + 1 if seen else 0, 2)
        both.settle_down()
        if not (rows := both.rows[request]):
            break
        seen += [row.sequence for row in rows]
    assert seen == [1, 2, 3, 4, 5]


def test_inspect_tells_counts_and_ends() -> None:
    both = start()
    send(both, 3)
    take(both)
    both.ask(c.Inspect(0))
    (info,) = replies(both, r.Inspected)
    assert info.end_pos == 4
    assert (info.subqueues[ACTIVE].messages, info.subqueues[ACTIVE].locked) == (3, 1)
    assert info.subqueues[DEAD].messages == 0
    assert both.store.read(q.Partition(ROW)) is not None


@pytest.mark.parametrize("end", ["lapse", "return"])
def test_a_message_whose_time_ends_while_it_is_reserved_is_dead_lettered(end: str) -> None:
    """The scan of due messages passes it, and no receiver asks afterwards."""
    queue = OnePartition(PartitionOptions(dead_letter_on_expiration=True))
    queue.give(c.Enqueue(1, [Message(pack(rest=b"b"), ttl_ms=3_000)]))
    queue.settle_down()
    queue.give(c.Receive(0, 5, 10, 1 << 20, reserve=True))
    queue.settle_down()
    granted = queue.replies[0]
    assert isinstance(granted, r.Granted)
    queue.give(c.CancelReceive(0, 0, 5))
    queue.now_ms += 3_000
    queue.give(c.Tick())
    queue.settle_down()
    if end == "return":
        queue.give(c.ReturnReserved(0, [(granted.lock_id, granted.entries[0].pos)]))
    queue.now_ms += 60_000
    for _ in range(2):
        queue.give(c.Tick())
        queue.settle_down()
    subqueues = queue.machine.state.subqueues
    assert (subqueues[0].messages, subqueues[1].messages) == (0, 1)
