"""Cursors of one partition: what stays readable for them, and who reads alone (D14). Each history runs in lock-step
with the reference model, which checks every step and, at rest, every row."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from partibus.limits import PartitionLimits
from partibus.partition.core.cursors import CURSORS_MAX
from partibus.partition.core.events import Cleared
from partibus.partition.core.journal import record
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import queries as q
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.commands import Outcome
from partibus.partition.protocol.keys import SHARED_BODY, SubqueueKind, body_key, subqueue_key
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.ports import FINISHED, Disposition, Store, Writes
from tests.contract.stores import PLACES
from tests.kit.cursor_model import Shown, unpack
from tests.kit.lockstep import ROW, Lockstep

ACTIVE, DEAD_LETTER = SubqueueKind.ACTIVE, SubqueueKind.DEAD_LETTER
SMALL = PartitionLimits(window_entries=4, page_entries=3)
ENOUGH = 1 << 20


opened_stores: list[Store] = []
"""Where the histories of the test that runs are written."""


@pytest.fixture(params=["memory", "sqlite"], autouse=True)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened_stores.append(PLACES[request.param](tmp_path)())
    yield opened_stores[-1]
    opened_stores.pop().close()


def lockstep(**options: object) -> Lockstep:
    return Lockstep(opened_stores[-1], PartitionOptions(limits=SMALL, **options))  # type: ignore[arg-type]


def ask(both: Lockstep, command: object) -> list[r.Reply]:
    """All that is answered until nothing is left to do."""
    replies: list[r.Reply] = []
    step = both.step

    def noting(taken: object) -> None:
        step(taken)  # type: ignore[arg-type]
        replies.extend(both.replies)

    both.step = noting  # type: ignore[method-assign,assignment]
    try:
        both.ask(command)
        both.settle_down()
    finally:
        both.step = step  # type: ignore[method-assign]
    return replies


def open_cursor(both: Lockstep, name: str = "spark", kind: int = ACTIVE, **more: object) -> r.CursorOpened:
    (reply,) = ask(both, c.OpenCursor(0, kind, name, **more))  # type: ignore[arg-type]
    assert isinstance(reply, r.CursorOpened)
    return reply


def send(both: Lockstep, count: int, **keys: object) -> None:
    both.enqueue([both.message(10, **keys) for _ in range(count)])  # type: ignore[arg-type]
    both.settle_down()


def take_out(both: Lockstep, count: int, outcome: Outcome = Outcome.COMPLETE, **more: object) -> None:
    both.receive(ACTIVE, 1, count, 1 << 20)
    both.settle_down()
    tokens = [token for _, token in both.delivered[-count:]]
    ask(both, c.Settle(0, ACTIVE, outcome, tokens, **more))  # type: ignore[arg-type]


def readable(both: Lockstep, kind: int = ACTIVE) -> list[Shown]:
    """Return readable messages with the finished ones, from the store."""
    frame = both.store.read(q.Range(subqueue_key(ROW, kind), 0, 1 << 40, 1 << 20, 1 << 30, finished=True))
    return unpack(frame.count, frame.data)


def sequences(shown: list[Shown]) -> list[int]:
    return [one.sequence for one in shown]


def advance(both: Lockstep, position: int, name: str = "spark", **more: object) -> r.Reply:
    return ask(both, c.AdvanceCursor(0, ACTIVE, name, position, **more))[-1]  # type: ignore[arg-type]


# What stays readable ------------------------------------------------------------------------------------------------


@pytest.mark.row("D2")
def test_what_was_completed_stays_readable_until_the_cursor_has_passed_it() -> None:
    both = lockstep()
    open_cursor(both)
    send(both, 6)
    take_out(both, 4)
    assert [one.state - FINISHED for one in readable(both) if one.is_finished] == [Disposition.COMPLETED] * 4
    both.crash(commit_survives=True)
    advance(both, 3)
    assert sequences(readable(both)) == [3, 4, 5, 6]
    both.crash(commit_survives=True)
    advance(both, 100)
    both.check_at_rest()
    assert sequences(readable(both)) == [5, 6], "what waits is nobody's to take away"


def test_the_lowest_of_several_cursors_counts() -> None:
    both = lockstep()
    open_cursor(both, "a")
    open_cursor(both, "b")
    send(both, 3)
    take_out(both, 3)
    advance(both, 4, "a")
    assert sequences(readable(both)) == [1, 2, 3]
    ask(both, c.CloseCursor(0, ACTIVE, "b", drop=True))
    assert readable(both) == []
    both.check_at_rest()


def test_a_cursor_that_comes_later_finds_what_another_one_keeps() -> None:
    both = lockstep()
    open_cursor(both, "a")
    send(both, 4)
    take_out(both, 2)
    advance(both, 2, "a")
    assert open_cursor(both, "b").position == 0
    assert open_cursor(both, "c", start=c.LATEST).position == 5
    take_out(both, 2)
    advance(both, 5, "a")
    assert sequences(readable(both)) == [2, 3, 4]
    both.check_at_rest()


def test_what_is_scheduled_is_not_kept_at_its_first_place() -> None:
    both = lockstep()
    open_cursor(both)
    send(both, 2, scheduled_ms=50)
    ask(both, c.CancelScheduled(0, ACTIVE, [1]))
    both.advance(60)
    both.settle_down()
    take_out(both, 1)
    assert [(one.sequence, one.is_finished) for one in readable(both)] == [(3, True)]
    both.check_at_rest()


def test_a_dead_letter_without_a_reason_has_a_body_of_its_own() -> None:
    both = lockstep()
    open_cursor(both)
    send(both, 1)
    take_out(both, 1, Outcome.DEAD_LETTER)
    before = readable(both)[0].data
    assert readable(both, DEAD_LETTER)[0].data == before
    advance(both, 2)
    assert readable(both) == []
    both.crash(commit_survives=True)
    both.check_at_rest()
    assert readable(both, DEAD_LETTER)[0].data == before, "the body of the old place has gone alone"


def test_a_dead_letter_stays_as_it_was_in_its_old_place() -> None:
    both = lockstep()
    open_cursor(both)
    send(both, 2)
    take_out(both, 2, Outcome.DEAD_LETTER, reason="bad", properties={"p": 1})
    both.check_at_rest()
    assert readable(both)[0].data == both.model.queues[DEAD_LETTER][0].sent
    assert readable(both, DEAD_LETTER)[0].data == both.model.queues[DEAD_LETTER][0].data


def test_a_message_that_comes_and_goes_within_one_commit_stays_readable() -> None:
    both = lockstep()
    open_cursor(both)
    both.receive(ACTIVE, 1, 1, 1000, delete=True)
    both.enqueue([both.message(10)])
    both.settle_down()
    assert [one.state - FINISHED for one in readable(both)] == [Disposition.RECEIVED_AND_DELETED]
    both.check_at_rest()


def test_what_is_rewritten_and_completed_is_kept_as_it_was_last() -> None:
    both = lockstep()
    open_cursor(both)
    send(both, 1)
    take_out(both, 1, Outcome.ABANDON, properties={"p": 1})
    take_out(both, 1)
    both.check_at_rest()
    assert b"\xa1\x01p" in readable(both)[0].data


def test_counts_pages_and_quotas_do_not_know_what_is_finished() -> None:
    both = lockstep(size_bytes_max=200)
    open_cursor(both)
    for _ in range(4):
        send(both, 3)
        take_out(both, 3)
    (inspected,) = ask(both, c.Inspect(0))
    assert isinstance(inspected, r.Inspected)
    assert inspected.subqueues[ACTIVE].messages == 0
    assert inspected.retained[ACTIVE][0] == 12
    assert [cursor.name for cursor in inspected.cursors] == ["spark"]
    request = both.peek(ACTIVE, 1, 10)
    both.settle_down()
    assert both.rows.pop(request) == []
    both.crash(commit_survives=True)
    both.receive(ACTIVE, 1, 5, 1000)
    both.check_at_rest()


def test_past_the_bound_the_oldest_go_and_the_cursor_is_told() -> None:
    both = lockstep()
    send(both, 1)
    size = len(readable(both)[0].data)
    open_cursor(both, bound_bytes=3 * size)
    open_cursor(both, "small", bound_bytes=size)
    send(both, 9)
    take_out(both, 5)
    assert sequences([one for one in readable(both) if one.is_finished]) == [3, 4, 5], "the larger bound holds"
    both.crash(commit_survives=True)
    for name in ("spark", "small"):
        reply = ask(both, c.ReadRange(0, ACTIVE, 0, 100, 1000, finished=True, cursor=name))[-1]
        assert isinstance(reply, r.RangeRead)
        assert reply.complete_from == 3
    both.check_at_rest()


def test_nothing_is_kept_for_a_cursor_that_asks_for_no_bytes() -> None:
    both = lockstep()
    opened = open_cursor(both, bound_bytes=0)
    send(both, 2)
    take_out(both, 2)
    assert readable(both) == []
    assert open_cursor(both, bound_bytes=0).complete_from == opened.complete_from == 0
    both.check_at_rest()


def test_what_the_janitor_left_undone_at_a_crash_is_done_later() -> None:
    both = lockstep()
    open_cursor(both)
    send(both, 5)
    take_out(both, 5)
    both.ask(c.CloseCursor(0, ACTIVE, "spark", drop=True))
    both.begin_commit()
    both.end_commit()
    both.crash(commit_survives=True)
    both.receive(ACTIVE, 1, 1, 100)
    both.check_at_rest()
    assert readable(both) == []


def test_a_body_that_other_subscriptions_have_goes_with_the_last_of_them() -> None:
    writes = Writes()
    shared = [body_key(ROW, SHARED_BODY | number) for number in (5, 6)]
    record(ROW, [Cleared(ACTIVE, [1, 2], shared)], writes)
    assert (writes.deleted_shared_bodies, writes.deleted_bodies) == (shared, [])


def test_a_sub_queue_has_so_many_cursors_and_no_more() -> None:
    both = lockstep()
    for number in range(CURSORS_MAX):
        open_cursor(both, str(number), start=c.LATEST)
    refusals = both.machine.handle(c.OpenCursor(9, ACTIVE, "one more", lease_ms=10), 0).replies
    assert refusals == [r.CursorRefused(9, forwards=False)]
    open_cursor(both, "7", lease_ms=10)
    open_cursor(both, "one more", DEAD_LETTER)
    ask(both, c.CloseCursor(0, ACTIVE, "8", drop=True))
    open_cursor(both, "one more")
    both.crash(commit_survives=True)
    both.check_at_rest()


# The log of fates ---------------------------------------------------------------------------------------------------


@pytest.mark.row("D6")
def test_every_fate_is_logged_once_and_forgotten_when_it_was_read() -> None:
    both = lockstep(max_delivery_count=1)
    send(both, 1)
    opened = open_cursor(both, dispositions=True)
    send(both, 6)
    send(both, 1, ttl_ms=20)
    take_out(both, 2)
    take_out(both, 1, Outcome.DEAD_LETTER, reason="bad")
    take_out(both, 1, Outcome.ABANDON)
    both.receive(ACTIVE, 2, 1, 1000, delete=True)
    ask(both, c.Purge(0, ACTIVE, 1, both.now_ms + 1))
    both.advance(30)
    both.settle_down()
    reply = ask(both, c.ReadDispositions(0, ACTIVE, "spark", opened.disposition_position, 100))[-1]
    assert isinstance(reply, r.DispositionsRead)
    assert [(row.sequence, row.disposition) for row in reply.rows] == [
        (1, Disposition.COMPLETED),
        (2, Disposition.COMPLETED),
        (3, Disposition.DEAD_LETTERED),
        (4, Disposition.DEAD_LETTERED),
        (5, Disposition.RECEIVED_AND_DELETED),
        (6, Disposition.PURGED),
        (8, Disposition.EXPIRED),
    ]
    advance(both, 0, disposition_position=reply.rows[3].number)
    both.crash(commit_survives=True)
    again = ask(both, c.ReadDispositions(0, ACTIVE, "spark", 0, 100))[-1]
    assert isinstance(again, r.DispositionsRead)
    assert again.rows == reply.rows[3:]
    both.check_at_rest()


def test_who_did_not_ask_for_fates_is_told() -> None:
    both = lockstep()
    open_cursor(both)
    for name in ("spark", "unknown"):
        (reply,) = ask(both, c.ReadDispositions(0, ACTIVE, name, 0, 10))
        assert isinstance(reply, r.CursorLost)
        assert name in reply.reason


# Who reads alone ----------------------------------------------------------------------------------------------------


def read_alone(both: Lockstep, name: str = "spark") -> int:
    """Read to the end; where that is."""
    both.read_on(ACTIVE, name, 1 << 20)
    both.settle_down()
    return both.model.cursors[ACTIVE].by_name[name].read_to


@pytest.mark.row("D3")
def test_a_commit_completes_what_was_read_and_receivers_are_refused_until_the_lease_ends() -> None:
    both = lockstep()
    send(both, 10)
    both.receive(ACTIVE, 5, 100, 1)  # waits for more
    both.settle_down()
    ask(both, c.Settle(0, ACTIVE, Outcome.RELEASE, [token for _, token in both.delivered]))
    both.receive(ACTIVE, 5, 100, 1 << 20, reserve=True)
    both.settle_down()
    opened = ask(both, c.OpenCursor(0, ACTIVE, "spark", lease_ms=1000, revoke=True))[-1]
    assert isinstance(opened, r.CursorOpened)
    both.receive(ACTIVE, 6, 1, 1000)
    assert both.replies == [r.ReceiveRefused(6, ACTIVE, "spark", 1000)]
    send(both, 2)
    assert read_alone(both) == 13
    send(both, 1)
    reply = advance(both, 13, epoch=opened.epoch)
    assert isinstance(reply, r.CursorOpened)
    assert reply.position == 13
    assert sequences(readable(both)) == [13]
    both.advance(1000)
    both.receive(ACTIVE, 6, 5, 1000)
    both.check_at_rest()
    assert len(both.delivered) >= 1
    assert isinstance(advance(both, 14, epoch=opened.epoch), r.CursorLost)


@pytest.mark.row("D10")
def test_an_exclusive_reader_can_complete_some_and_leave_the_others() -> None:
    both = lockstep()
    send(both, 10)
    opened = ask(both, c.OpenCursor(0, ACTIVE, "spark", lease_ms=1000, bound_bytes=0))[-1]
    assert isinstance(opened, r.CursorOpened)
    read_alone(both)
    reply = advance(both, 0, epoch=opened.epoch, only=[2, 3, 9, 40])
    assert isinstance(reply, r.CursorOpened)
    assert reply.position == 0
    assert sequences(readable(both)) == [1, 4, 5, 6, 7, 8, 10]
    assert isinstance(advance(both, 0, epoch=opened.epoch, only=[2, 3, 4]), r.CursorOpened)
    assert sequences(readable(both)) == [1, 5, 6, 7, 8, 10]
    both.advance(1000)
    assert isinstance(advance(both, 0, epoch=opened.epoch, only=[5]), r.CursorLost)
    assert isinstance(advance(both, 0, only=[5]), r.CursorLost)
    both.receive(ACTIVE, 6, 20, 1 << 20)
    both.settle_down()
    both.check_at_rest()
    assert len(both.delivered) == 6


def test_without_revoking_locks_are_waited_for_and_nothing_more_is_handed_out() -> None:
    both = lockstep(lock_duration_ms=5_000)
    send(both, 3)
    both.receive(ACTIVE, 1, 1, 1000)
    both.settle_down()
    (busy,) = ask(both, c.OpenCursor(0, ACTIVE, "spark", lease_ms=60_000))
    assert isinstance(busy, r.CursorBusy)
    assert (busy.locked, busy.until_ms) == (1, 5_000)
    both.receive(ACTIVE, 2, 1, 1000)
    assert both.replies == []
    ask(both, c.Settle(0, ACTIVE, Outcome.COMPLETE, [token for _, token in both.delivered]))
    opened = ask(both, c.OpenCursor(0, ACTIVE, "spark", lease_ms=60_000))
    assert isinstance(opened[0], r.ReceiveRefused), "who waited is told"
    assert isinstance(opened[-1], r.CursorOpened)
    both.check_at_rest()


def test_who_asked_and_went_away_stops_receivers_for_a_while_only() -> None:
    both = lockstep(lock_duration_ms=60_000)
    send(both, 3)
    both.receive(ACTIVE, 1, 1, 1000)
    ask(both, c.OpenCursor(0, ACTIVE, "spark", lease_ms=1000))
    both.receive(ACTIVE, 2, 1, 1000)
    both.settle_down()
    assert len(both.delivered) == 1
    both.advance(10_000)
    both.check_at_rest()
    assert len(both.delivered) == 2


@pytest.mark.row("D3")
def test_what_was_away_when_its_place_was_passed_comes_again_at_the_end() -> None:
    both = lockstep()
    send(both, 3)
    take_out(both, 2, Outcome.ABANDON, delay_ms=500)
    opened = open_cursor(both, lease_ms=400)
    read_alone(both)
    advance(both, 4, epoch=opened.epoch)
    assert sequences(readable(both)) == [1, 2]
    both.advance(450)  # the lease is over before they are back
    both.advance(100)
    both.settle_down()
    assert sequences(readable(both)) == [4, 5]
    opened = open_cursor(both, lease_ms=400)
    assert read_alone(both) == 6
    advance(both, 6, epoch=opened.epoch)
    both.check_at_rest()
    assert readable(both) == []


def test_the_end_of_a_range_waits_until_it_is_durable() -> None:
    both = lockstep()
    opened = open_cursor(both, lease_ms=1000)
    both.enqueue([both.message()])
    both.read_on(ACTIVE, "spark", 1000)
    assert both.runnable() == []
    both.settle_down()
    assert isinstance(advance(both, 2, epoch=opened.epoch), r.CursorOpened)
    both.check_at_rest()


def test_rows_that_a_sweep_read_before_the_grant_are_read_again() -> None:
    both = lockstep()
    send(both, 2, ttl_ms=100)
    both.receive(ACTIVE, 1, 1, 1000)
    both.settle_down()
    both.advance(100)
    both.begin_commit()
    both.end_commit()
    both.run_load(both.runnable()[0])  # the sweep has read both
    token = both.delivered[0][1]
    both.ask(c.Settle(0, ACTIVE, Outcome.COMPLETE, [token]))
    both.ask(c.OpenCursor(0, ACTIVE, "spark", lease_ms=1000))
    both.check_at_rest()
    assert readable(both)[1:] == []


def test_what_expires_under_a_lock_that_is_revoked_is_noticed() -> None:
    both = lockstep(lock_duration_ms=10_000)
    send(both, 1, ttl_ms=100)
    both.receive(ACTIVE, 1, 1, 1000)
    both.settle_down()
    both.advance(100)  # the sweep leaves out what is locked
    both.settle_down()
    ask(both, c.OpenCursor(0, ACTIVE, "spark", bound_bytes=0, lease_ms=1000, revoke=True))
    both.check_at_rest()
    assert readable(both) == []


def test_sessions_end_when_they_are_revoked_and_are_had_again_afterwards() -> None:
    both = lockstep(requires_session=True)
    send(both, 3, session_id="a")
    ask(both, c.AcceptSession(0, 9, "a"))
    both.receive_in_session(both.sessions[-1], 2, 1000)
    both.settle_down()
    (busy,) = ask(both, c.OpenCursor(0, ACTIVE, "spark", lease_ms=1000))
    assert isinstance(busy, r.CursorBusy)
    told = ask(both, c.OpenCursor(0, ACTIVE, "spark", lease_ms=1000, revoke=True))
    assert [type(reply) for reply in told] == [r.ReceiveRefused, r.SessionEnded, r.CursorOpened]
    (held,) = ask(both, c.AcceptSession(0, 10, "a"))
    assert isinstance(held, r.CursorHeld)
    read_alone(both)
    advance(both, 3, epoch=1)
    ask(both, c.CloseCursor(0, ACTIVE, "spark", 1))
    ask(both, c.AcceptSession(0, 11, None))
    both.receive_in_session(both.sessions[-1], 5, 1000)
    both.check_at_rest()
    assert both.delivered[-1][1][1] == 3


def test_a_lease_outlives_its_owner_and_its_reader_goes_on() -> None:
    both = lockstep()
    send(both, 5)
    opened = open_cursor(both, lease_ms=1000)
    both.crash(commit_survives=True)
    both.receive(ACTIVE, 1, 1, 1000)
    assert isinstance(both.replies[0], r.ReceiveRefused)
    both.crash(commit_survives=True)
    renewed = open_cursor(both, lease_ms=2000, epoch=opened.epoch)
    assert (renewed.epoch, renewed.until_ms) == (1, 2000)
    read_alone(both)
    advance(both, 6, epoch=1)
    both.check_at_rest()
    assert readable(both) == []


def test_one_reads_alone_and_its_own_next_run_takes_over() -> None:
    both = lockstep()
    send(both, 2)
    open_cursor(both, lease_ms=1000)
    (held,) = ask(both, c.OpenCursor(0, ACTIVE, "other", lease_ms=1000, revoke=True))
    assert held == r.CursorHeld(held.request, "spark", 1000)  # type: ignore[union-attr]
    assert open_cursor(both, lease_ms=1000).epoch == 2
    assert isinstance(advance(both, 2, epoch=1), r.CursorLost)
    assert isinstance(advance(both, 2), r.CursorLost)
    assert isinstance(ask(both, c.CloseCursor(0, ACTIVE, "spark", 1))[0], r.CursorLost)
    assert sequences(readable(both)) == [1, 2]
    open_cursor(both, "browses")  # beside it one may look
    both.check_at_rest()


# Without cursors ----------------------------------------------------------------------------------------------------


def test_without_a_cursor_nothing_is_written_for_one() -> None:
    both = lockstep()
    written: list[Writes] = []
    commit = both.store.commit

    def noting(writes: Writes) -> None:
        written.append(writes)
        commit(writes)

    both.store.commit = noting  # type: ignore[method-assign]
    send(both, 6)
    take_out(both, 2)
    take_out(both, 1, Outcome.DEAD_LETTER)
    take_out(both, 1, Outcome.ABANDON, delay_ms=10)
    both.receive(ACTIVE, 2, 1, 1000, delete=True)
    both.advance(20)
    both.check_at_rest()
    assert len(written) > 5
    for writes in written:
        for name in ("cursors", "retained", "dispositions", "forgotten_dispositions"):
            assert not getattr(writes, name), name
        assert all(state < FINISHED for state in writes.entry_updates[2::5] if state is not None)
