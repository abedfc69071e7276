"""Short histories that once went wrong, found by the property tests and shrunk; `Lockstep` checks every step."""

from __future__ import annotations

from typing import Any

from partibus.limits import PartitionLimits
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import load_requests as w
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.options import PartitionOptions
from tests.kit.lockstep import Lockstep
from tests.kit.stores.memory import MemoryStore

SMALL = PartitionLimits(
    window_entries=4,
    window_bytes=200,
    session_window_entries=3,
    session_window_bytes=150,
    page_entries=3,
    page_bytes=100,
    locked_body_max=0,
)


def queue(**options: Any) -> Lockstep:
    return Lockstep(MemoryStore(), PartitionOptions(lock_duration_ms=50, max_delivery_count=3, limits=SMALL, **options))


def accept(both: Lockstep, session: str | None) -> int:
    """The lock id under which a session is held."""
    before = len(both.sessions)
    both.ask(c.AcceptSession(0, both.new_request(), session))
    both.settle_down()
    assert len(both.sessions) == before + 1, "accepted"
    return both.sessions[-1]


def test_a_session_renewed_in_the_millisecond_of_its_acceptance_ends_once() -> None:
    both = queue(requires_session=True)
    lock_id = accept(both, "")
    both.ask(c.RenewSession(0, lock_id))
    both.advance(60)
    assert [reply.lock_id for reply in both.replies if isinstance(reply, r.SessionEnded)] == [lock_id]
    both.check_at_rest()


def test_used_up_messages_of_a_session_bring_no_pages_into_the_queue_itself() -> None:
    both = queue(requires_session=True)
    lock_id = accept(both, "a")
    both.enqueue([both.message(session_id="a")])
    for delivery in range(3):
        both.receive_in_session(lock_id, 1, 0)
        both.settle_down()
        assert len(both.delivered) == delivery + 1
        if delivery < 2:
            both.settle(0, c.Outcome.ABANDON, [both.delivered[-1][1]])
    both.advance(60)
    both.check_at_rest()
    assert not both.model.queues[0]
    assert len(both.model.queues[1]) == 1


def test_who_asks_for_a_message_before_it_is_deferred_has_it_alone() -> None:
    both = queue()
    both.enqueue([both.message()])
    both.receive(0, 1, 1, 0)
    both.ask(c.ReceiveDeferred(0, 0, [1]))
    both.settle(0, c.Outcome.DEFER, [both.delivered[0][1]])
    both.ask(c.ReceiveDeferred(0, 0, [1]))
    both.check_at_rest()
    assert len(both.delivered) == 2, "once as an active message, once by its number"


def test_a_used_up_message_that_waits_for_its_body_is_not_offered_with_its_session() -> None:
    both = queue(requires_session=True)
    both.enqueue([both.message(session_id="a") for _ in range(2)])
    for _ in range(3):
        lock_id = accept(both, "a")
        both.receive_in_session(lock_id, 1, 0)
        both.settle_down()
        both.advance(60)
    both.ask(c.AcceptSession(0, both.new_request(), None))
    both.check_at_rest()
    both.receive_in_session(both.sessions[-1], 5, 10_000)
    both.check_at_rest()
    assert [item.sequence for item in both.model.queues[1]] == [1]
    assert [token[1] for _, token in both.delivered] == [1, 1, 1, 2]


def test_a_deferred_message_is_not_handed_out_after_its_time_to_live() -> None:
    for dead_letter in (False, True):
        both = queue(dead_letter_on_expiration=dead_letter)
        both.enqueue([both.message(ttl_ms=10), both.message()])
        both.receive(0, 1, 2, 10_000)
        both.settle(0, c.Outcome.DEFER, [token for _, token in both.delivered])
        both.advance(20)
        both.ask(c.ReceiveDeferred(0, 0, [1, 2]))
        both.settle_down()
        assert [reply.sequences for reply in both.replies if isinstance(reply, r.NotFound)] == [[1]]
        both.ask(c.ReceiveDeferred(0, 0, [2]))
        both.check_at_rest()
        assert [token[1] for _, token in both.delivered] == [1, 2, 2]
        assert [item.sequence for item in both.model.queues[1]] == ([1] if dead_letter else [])


def test_a_deferred_message_that_was_used_up_before_a_crash_is_dead_lettered_when_it_is_asked_for() -> None:
    both = queue()
    both.enqueue([both.message()])
    both.receive(0, 1, 1, 0)
    both.settle(0, c.Outcome.DEFER, [both.delivered[-1][1]])
    for _ in range(3):
        both.settle_down()
        both.ask(c.ReceiveDeferred(0, 0, [1]))
        both.settle_down()
        both.settle(0, c.Outcome.ABANDON, [both.delivered[-1][1]])
    both.begin_commit()
    both.crash(commit_survives=True)
    both.ask(c.ReceiveDeferred(0, 0, [1]))
    both.check_at_rest()
    assert not both.model.queues[0]
    assert [item.sequence for item in both.model.queues[1]] == [1]


def test_a_sweep_that_has_read_a_used_up_message_of_a_session_passes_it_over() -> None:
    both = queue(requires_session=True)
    lock_id = accept(both, "a")
    both.update(max_delivery_count=1)
    both.enqueue([both.message(session_id="a", ttl_ms=30)])
    both.settle_down()
    both.receive_in_session(lock_id, 1, 0)
    both.settle_down()
    both.advance(60)
    both.begin_commit()
    both.end_commit()
    while both.runnable():
        both.run_load(0)
    by_age = sorted(range(len(both.answers)), key=lambda index: isinstance(both.answers[index].load, w.RangeScanLoad))
    for answer in [both.answers[index] for index in by_age]:
        both.answer(both.answers.index(answer))
    both.check_at_rest()
    assert [item.sequence for item in both.model.queues[1]] == [1]


def test_a_sweep_does_not_bring_back_the_properties_that_it_has_read() -> None:
    for again in (False, True):
        both = queue(dead_letter_on_expiration=True)
        both.update(lock_duration_ms=1_000)
        both.enqueue([both.message(ttl_ms=30)])
        both.receive(0, 1, 1, 0)
        both.settle_down()
        both.begin_commit()
        both.advance(40)
        both.end_commit()
        (index,) = [index for index in both.runnable() if isinstance(both.loads[index][1], w.RangeScanLoad)]
        both.run_load(index)
        range_scan = both.answers[0]
        both.settle(0, c.Outcome.ABANDON, [both.delivered[-1][1]], properties={"p": 1})
        while both.runnable():
            both.run_load(0)
        for answer in [answer for answer in both.answers if answer is not range_scan]:
            both.answer(both.answers.index(answer))
        if again:
            ready = both.machine.state.subqueues[0].ready
            entry = ready.head()
            assert entry is not None
            assert len(ready) == 1
            entry.data = None  # as after another delivery
            ready.size_bytes = 0
        both.answer(both.answers.index(range_scan))
        both.check_at_rest()
        (item,) = both.model.queues[1]
        assert item.changes["p"] == 1


def test_a_session_whose_first_page_has_run_out_meanwhile_keeps_nobody_waiting() -> None:
    both = queue(requires_session=True)
    both.enqueue([both.message(session_id="b", ttl_ms=30), both.message(session_id="a")])
    both.settle_down()
    both.ask(c.AcceptSession(0, both.new_request(), None))
    both.run_load(both.runnable()[0])
    page = both.answers[0]
    both.advance(60)
    while both.runnable():
        both.run_load(0)
    for answer in [answer for answer in both.answers if answer is not page]:
        both.answer(both.answers.index(answer))
    both.check_at_rest()
    assert [lock.session for lock in both.model.sessions.values()] == ["a"]
