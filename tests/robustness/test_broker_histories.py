"""Histories of clients of several brokers under loss: the rules that they are held against, and one short run."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from partibus.client.errors import Busy, ConnectionLost, LockLost, SendFailed, TimedOut
from tests.kit.chaos import QUEUES, UNAVAILABLE_MAX_MS, Stage, run, without_epochs
from tests.kit.history import History, Kind, Operation, Outcome, outcome_of, read_history
from tests.kit.history_rules import check, forgotten_locks
from tests.kit.nemesis import Nemesis
from tests.kit.plain_client import Link
from tests.plugins.soak import SLOWNESS

if TYPE_CHECKING:
    from pathlib import Path

UNKEYED, KEYED, SESSIONS = QUEUES
BOTH_ORDERED = pytest.mark.parametrize("queue", [KEYED, SESSIONS])
EVERY_QUEUE = pytest.mark.parametrize("queue", QUEUES)
LOCK_MS = 5_000


def broken(*history: Operation) -> list[str]:
    return [violation.rule for violation in check(history, QUEUES, UNAVAILABLE_MAX_MS, LOCK_MS)]


def send(at_ms: int, body: str = "m", queue: str = UNKEYED, outcome: Outcome = Outcome.OK) -> Operation:
    return Operation(
        kind=Kind.SEND, began_ms=at_ms, ended_ms=at_ms + 5, outcome=outcome, queue=queue, body=body, key="k"
    )


def deliver(
    at_ms: int, token: str = "1", body: str = "m", queue: str = UNKEYED, *, sequence: int = 1, delivery_count: int = 0
) -> Operation:
    return Operation(
        kind=Kind.DELIVER,
        began_ms=at_ms - 5,
        ended_ms=at_ms,
        queue=queue,
        body=body,
        key="k",
        sequence=sequence,
        delivery_count=delivery_count,
        until_ms=at_ms + LOCK_MS,
        token=token,
    )


def settle(delivery: Operation, at_ms: int, action: str = "complete", outcome: Outcome = Outcome.OK) -> Operation:
    return replace(
        delivery, kind=Kind.SETTLE, began_ms=at_ms, ended_ms=at_ms + 5, action=action, outcome=outcome, until_ms=0
    )


def left(body: str = "m", queue: str = UNKEYED, sequence: int = 1) -> Operation:
    return Operation(kind=Kind.LEFT, began_ms=99_000, ended_ms=99_000, queue=queue, body=body, sequence=sequence)


def loss(began_ms: int, ended_ms: int) -> Operation:
    return Operation(kind=Kind.LOSS, began_ms=began_ms, ended_ms=ended_ms)


def load(began_ms: int, ended_ms: int, kind: Kind = Kind.LOAD) -> Operation:
    return Operation(kind=kind, began_ms=began_ms, ended_ms=ended_ms)


@EVERY_QUEUE
def test_a_message_that_is_completed_or_left_is_not_lost(queue: str) -> None:
    first, second = deliver(20, "1", "m", queue), deliver(30, "2", "n", queue, sequence=2)
    history = [send(0, "m", queue), send(5, "n", queue), send(10, "o", queue), first, second]
    ends = [settle(first, 40), settle(second, 40, outcome=Outcome.UNKNOWN), left("o", queue, 3)]
    assert broken(*history, *ends) == []
    assert broken(*history, *ends[1:]) == ["lost"]
    assert broken(*history, *ends[:2]) == ["lost"]
    assert broken(*history, ends[0], ends[2]) == ["lost"]


def test_a_refused_complete_does_not_explain_where_a_message_is() -> None:
    delivery = deliver(20)
    assert broken(send(0), delivery, settle(delivery, 30, outcome=Outcome.FAIL)) == ["lost"]
    assert broken(send(0), delivery, settle(delivery, 30, "abandon")) == ["lost"]


def test_a_send_of_unknown_outcome_may_be_stored_once_or_not() -> None:
    unknown = send(0, outcome=Outcome.UNKNOWN)
    assert broken(unknown) == []
    assert broken(unknown, left()) == []
    assert broken(unknown, left(), left(sequence=2)) == ["stored twice"]


def test_a_refused_send_is_not_stored() -> None:
    refused = send(0, outcome=Outcome.FAIL)
    assert broken(refused) == []
    assert broken(refused, left()) == ["refused but stored"]


@EVERY_QUEUE
def test_nothing_comes_after_its_complete_was_acknowledged(queue: str) -> None:
    first = deliver(20, "1", "m", queue)
    done = settle(first, 30)
    again = deliver(20 + LOCK_MS + 200, "2", "m", queue, delivery_count=1)
    assert broken(send(0, "m", queue), first, done) == []
    assert broken(send(0, "m", queue), first, done, again) == ["delivered after complete"]
    assert broken(send(0, "m", queue), first, done, left("m", queue)) == ["delivered after complete"]
    late = replace(again, until_ms=again.ended_ms - 1)
    assert broken(send(0, "m", queue), first, done, late) == [], "it was under way since before"
    held = replace(deliver(1_000, "2", "m", queue, delivery_count=1), until_ms=10 + LOCK_MS)
    late_done = settle(first, 800)
    assert "delivered after complete" not in broken(send(0, "m", queue), first, late_done, held), "locked before it"


@pytest.mark.parametrize("queue", [UNKEYED, KEYED])
def test_a_message_under_lock_is_not_given_to_another(queue: str) -> None:
    first, second = deliver(20, "1", "m", queue), deliver(1_000, "2", "m", queue)
    start, end = send(0, "m", queue), left("m", queue)
    assert broken(start, first, second, end) == ["second live lock"]
    assert broken(start, first, settle(first, 500, outcome=Outcome.UNKNOWN), second, end) == ["second live lock"]
    assert broken(start, first, settle(first, 500, "abandon", Outcome.FAIL), second, end) == ["second live lock"]
    assert broken(start, first, settle(first, 500, "abandon"), second, end) == []
    assert broken(start, first, deliver(20 + LOCK_MS, "2", "m", queue, delivery_count=1), end) == []


def test_a_lock_may_be_forgotten_with_a_broker_unless_it_was_surely_stored() -> None:
    first, second = deliver(20, "1"), deliver(1_000, "2")
    beside = deliver(20, "3", "n", sequence=2)
    history = [send(0), first, second, left()]
    assert broken(*history, loss(400, 500)) == []
    assert forgotten_locks([*history, loss(400, 500)], QUEUES) == 1
    assert forgotten_locks(history, QUEUES) == 0
    assert broken(*history, loss(1_100, 1_200)) == ["second live lock"]
    stored = settle(beside, 100)
    assert broken(*history, beside, stored, loss(400, 500)) == ["second live lock"]
    assert broken(*history, beside, replace(stored, ended_ms=450), loss(400, 500)) == []
    elsewhere = [replace(one, sequence=2 + (1 << 48)) for one in (beside, stored)]
    assert broken(*history, *elsewhere, loss(400, 500)) == []


@pytest.mark.parametrize("queue", [UNKEYED, KEYED])
def test_only_a_later_owner_may_have_forgotten_a_lock(queue: str) -> None:
    """Judge by the times at which owners handed messages out: the one without a lease is late at its client."""
    start, gone, end = send(0, "m", queue), loss(400, 500), left("m", queue)
    first = replace(deliver(20, "1", "m", queue), epoch=3, sent_ms=15)
    later = replace(deliver(1_000, "2", "m", queue), epoch=4, sent_ms=995)
    assert broken(start, first, gone, later, end) == []
    assert broken(start, first, gone, replace(later, epoch=3), end) == ["second live lock"]
    assert broken(start, first, gone, replace(later, epoch=2), end) == ["second live lock"]
    slow = replace(first, ended_ms=1_200, until_ms=2_000)
    assert broken(start, later, gone, slow, end) == [], "it was handed out in time, and was under way"
    woken = replace(slow, sent_ms=1_150)
    assert broken(start, later, gone, woken, end) == ["second live lock"]
    done = settle(later, 1_050)
    assert "delivered after complete" not in broken(start, later, done, slow)
    assert "delivered after complete" in broken(start, later, done, woken)


def test_a_run_whose_owners_noted_too_little_is_reported() -> None:
    assert without_epochs(91, 100) == []
    assert [one.rule for one in without_epochs(90, 100)] == ["not noted"]
    assert [one.rule for one in without_epochs(0, 0)] == ["not noted"], "nothing was delivered"


@EVERY_QUEUE
def test_a_number_is_given_out_once(queue: str) -> None:
    first, other = deliver(20, "1", "m", queue), deliver(2_000, "2", "n", queue)
    both = [send(0, "m", queue), first, settle(first, 30), send(1_990, "n", queue), other, settle(other, 2_010)]
    assert "reissued" in broken(*both)
    assert broken(*both[:4], replace(other, sequence=2), replace(both[5], sequence=2)) == []


@EVERY_QUEUE
def test_an_old_lock_settles_nothing(queue: str) -> None:
    first, second = deliver(20, "1", "m", queue), deliver(1_000, "2", "m", queue)
    history = [send(0, "m", queue), first, loss(400, 500), second]
    assert broken(*history, settle(second, 1_100)) == []
    assert broken(*history, settle(first, 1_100, outcome=Outcome.FAIL), settle(second, 1_200)) == []
    assert broken(*history, settle(first, 1_100)) == ["settled by an old lock"]
    assert broken(history[0], first, settle(first, first.until_ms + 50)) == []
    assert broken(history[0], first, settle(first, first.until_ms + 150)) == ["settled by an old lock"]


@BOTH_ORDERED
def test_messages_of_a_key_come_first_in_the_order_in_which_they_were_sent(queue: str) -> None:
    sent = [send(0, "a", queue), send(10, "b", queue)]
    came = [deliver(20, "1", "a", queue), deliver(30, "2", "b", queue, sequence=2)]
    ends = [settle(one, 50) for one in came]
    assert broken(*sent, *came, *ends) == []
    assert broken(*sent, *reversed(came), *ends) == ["out of order"]
    other = replace(sent[1], key="other")
    assert broken(sent[0], other, *reversed(came), *ends) == []
    at_once = replace(sent[1], began_ms=0)
    assert broken(sent[0], at_once, *reversed(came), *ends) == []


def test_a_delivery_that_got_lost_counts_for_order_in_a_session_only() -> None:
    for queue, expected in ((KEYED, []), (SESSIONS, ["out of order"])):
        came = [deliver(20, "2", "b", queue, sequence=2), deliver(30, "1", "a", queue, delivery_count=1)]
        ends = [settle(one, 50) for one in came]
        assert broken(send(0, "a", queue), send(10, "b", queue), *came, *ends) == expected


def test_a_delivery_that_was_lost_with_an_earlier_connection_says_nothing_about_order() -> None:
    lost = Operation(kind=Kind.LOST, began_ms=15, ended_ms=15, queue=KEYED, body="a", sent_ms=15)
    for queue, since_ms, expected in (
        (KEYED, 18, []),
        (KEYED, 12, ["out of order"]),
        (KEYED, 0, ["out of order"]),
        (SESSIONS, 18, ["out of order"]),
    ):
        came = [deliver(20, "2", "b", queue, sequence=2), deliver(30, "1", "a", queue)]
        ends = [settle(one, 50) for one in came]
        sent = [send(0, "a", queue), send(10, "b", queue)]
        assert (
            broken(*sent, *(replace(one, since_ms=since_ms) for one in came), *ends, replace(lost, queue=queue))
            == expected
        )


def test_sends_without_a_key_are_accepted_while_there_are_brokers() -> None:
    half = UNAVAILABLE_MAX_MS // 2
    accepted = [send(half, "a"), send(2 * half, "b", outcome=Outcome.FAIL), send(3 * half - 1_000, "c")]
    ends = [left("a"), left("c", sequence=2)]
    assert broken(load(0, 4 * half), *accepted, *ends) == []
    assert broken(load(0, 4 * half), accepted[1], accepted[2], ends[1]) == ["unavailable"]
    assert broken(load(0, 4 * half), accepted[1], accepted[2], ends[1], load(0, half, Kind.OUTAGE)) == []
    assert broken(load(0, 4 * half), *[replace(one, queue=KEYED) for one in (*accepted, *ends)]) == ["unavailable"]


def test_what_an_error_says_about_its_operation() -> None:
    link = Link()
    assert outcome_of(SendFailed([(0, Busy("busy"))], 1), link) is Outcome.FAIL
    assert outcome_of(SendFailed([(0, TimedOut("who knows"))], 1), link) is Outcome.UNKNOWN
    assert outcome_of(ConnectionLost("gone"), link) is Outcome.UNKNOWN
    assert outcome_of(LockLost("lost"), link) is Outcome.FAIL
    link.error = LockLost("the session's lock is lost")
    assert outcome_of(LockLost("lost"), link) is Outcome.UNKNOWN, "the settlement may have been done before"


def test_a_history_is_read_as_it_was_written(tmp_path: Path) -> None:
    history = History()
    history.add(send(0), deliver(20), loss(1, 2))
    history.write(tmp_path / "history.jsonl")
    assert read_history(tmp_path / "history.jsonl") == history.operations


def sends_to_all(nemesis: Nemesis) -> str:
    """Enough for something to be seen."""
    for queue in QUEUES:
        nemesis.wait_for_sends(queue, 20)
    return "waited for sends"


@pytest.mark.row("A7")
def test_every_rule_holds_while_brokers_are_killed_and_stopped(tmp_path: Path) -> None:
    deeds = [Nemesis.kill_one, Nemesis.inject_fault, Nemesis.stop_for_good, sends_to_all]
    stage = Stage(unavailable_max_ms=3 * UNAVAILABLE_MAX_MS, slowness=SLOWNESS)  # other tests run beside
    verdict = run(7, 0, tmp_path, deeds, stage)
    assert not verdict.violations, str(verdict)
    operations = verdict.history.operations
    assert len(verdict.deeds) == 4, verdict.deeds
    assert sum(one.kind is Kind.LOSS for one in operations) >= 2
    # The rules see what they are to see in what really came, when it is forged.
    completed = next(one for one in operations if one.action == "complete" and one.outcome is Outcome.OK)
    assert broken(*(one for one in operations if one.action != "complete" or one.body != completed.body)) == ["lost"]
    again = next(
        one
        for one in operations
        if one.kind is Kind.DELIVER
        # Messages of several queues may have equal tokens.
        and (one.queue, one.sequence, one.token) == (completed.queue, completed.sequence, completed.token)
    )
    late_ms = completed.ended_ms + 1
    again = replace(
        again, sent_ms=late_ms, ended_ms=late_ms, until_ms=late_ms + LOCK_MS, token="another", delivery_count=1
    )
    assert "delivered after complete" in broken(*operations, again)
    for queue in (KEYED, SESSIONS):
        assert "out of order" in broken(*_swapped(operations, queue))


def _swapped(operations: list[Operation], queue: str) -> list[Operation]:
    """Exchange the bodies of the first two messages of a key, where they were delivered and settled."""
    sent = [one for one in operations if one.kind is Kind.SEND and one.queue == queue and one.outcome is Outcome.OK]
    sent.sort(key=lambda one: (one.key, one.began_ms))
    clean = {one.body for one in operations if one.kind is Kind.DELIVER and one.delivery_count == 0}
    first, second = next(
        (a.body, b.body) for a, b in pairwise(sent) if a.key == b.key and a.body in clean and b.body in clean
    )
    other = {first: second, second: first}
    return [
        replace(one, body=other.get(one.body, one.body)) if one.kind in (Kind.DELIVER, Kind.SETTLE) else one
        for one in operations
    ]
