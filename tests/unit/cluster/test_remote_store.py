"""A store of another broker keeps its promises through the hop, and when the line is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from partibus.cluster.channel import BATCH_BYTES, Outbox
from partibus.cluster.remote_store import RemoteBroker
from partibus.limits import PeerLimits
from partibus.message import Message, pack
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.commands import Outcome
from partibus.partition.protocol.host import overloaded_stores
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.ports import StoreError
from tests.unit.cluster.far import OPTIONS, ROW, SESSIONS, STORE, FarBroker
from tests.unit.partition import test_runtime


def messages(count: int = 1, size_bytes: int = 4, session: str | None = None) -> list[Message]:
    return [Message(pack(rest=bytes(size_bytes)), session_id=session) for _ in range(count)]


# -- what a runtime promises -------------------------------------------------------------------------------------------

PROMISES = [
    test_runtime.test_commands_that_come_during_a_commit_share_the_next,
    test_runtime.test_no_answer_before_the_commit,
    test_runtime.test_removal_is_durable_before_receive_and_delete_hands_out,
    test_runtime.test_release_of_a_whole_lock_is_durable_before_its_answer,
    test_runtime.test_answers_of_a_partition_keep_their_order_beside_a_busy_one,
    test_runtime.test_lock_runs_out_by_itself,
    test_runtime.test_deadline_follows_a_clock_that_is_moved_by_hand,
    test_runtime.test_grants_to_a_receiver_that_is_gone_go_to_others,
    test_runtime.test_full_store_says_so,
    test_runtime.test_receivers_are_told_and_the_store_is_opened_again,
    test_runtime.test_closed_store_refuses,
]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_promise_holds_through_the_hop(promise: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_runtime, "Broker", FarBroker)
    promise()


@pytest.mark.parametrize("executed", [False, None])
def test_owner_says_what_is_known_of_a_failed_commit(executed: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_runtime, "Broker", FarBroker)
    test_runtime.test_failed_commit_is_told_with_what_is_known_of_it(executed)


def test_partition_is_dropped_through_the_hop() -> None:
    broker = FarBroker()
    broker.answered(broker.send(2))
    dropped: list[int] = []
    broker.route.drop(ROW, dropped.append)
    broker.rest()
    assert dropped == [ROW]
    assert broker.disk.durable.entries == {}


def test_number_of_one_guest_is_not_that_of_another() -> None:
    broker = FarBroker()
    other = broker.new_route()
    broker.connect(other)
    answers: tuple[list[Any], list[Any]] = ([], [])
    for route, told in zip((broker.route, other), answers, strict=True):
        route.submit(ROW, OPTIONS, c.Enqueue(1, messages()), told.append)
    broker.rest()
    assert [len(told) for told in answers] == [1, 1]
    assert sorted(told[0].first_sequence for told in answers) == [1, 2]
    assert [told[0].request for told in answers] == [1, 1]


# -- the store's condition ---------------------------------------------------------------------------------------------


def test_guest_knows_of_the_failure_before_its_receivers_do_and_of_the_return() -> None:
    broker = FarBroker()
    broker.answered(broker.send())
    seen: list[str | None] = []
    back: list[str | None] = []

    def told(reply: Any) -> None:
        seen.append(broker.route.failure)
        broker.route.when_usable(lambda: back.append(broker.route.failure))

    broker.route.register(901, told)
    broker.submit(c.Receive(1, 901, 5, 1 << 20))
    broker.break_store(StoreError("disk on fire", executed=False))
    broker.send()
    broker.run_until(lambda: seen)
    assert seen == ["disk on fire"]
    assert back == []
    broker.rest()
    assert back == [None]


def test_way_that_is_made_anew_over_the_same_line_knows_what_the_owner_has_said() -> None:
    broker = FarBroker()
    broker.answered(broker.send())
    broker.serving.close(STORE, "handed over")
    broker.answered(broker.send())
    broker.route.lead_nowhere("no owner")
    broker.route.lead_to(broker.lines[-1].remote.store(STORE, broker.route))
    seen = [broker.route.failure]
    broker.serving.open(STORE, broker.near)
    broker.run()
    seen.append(broker.route.failure)
    assert seen == ["handed over", None]


def test_overload_of_the_owner_is_known_to_the_guest_until_it_is_over() -> None:
    broker = FarBroker()
    broker.answered(broker.send())
    relieved: list[bool] = []
    broker.send(test_runtime.LIMITS.queued_operations + 1)
    assert not broker.route.overloaded, "too few bytes to be the guest's own bound"
    broker.run_until(lambda: broker.route.overloaded)
    assert overloaded_stores
    broker.route.when_usable(lambda: relieved.append(broker.route.overloaded))
    assert relieved == []
    broker.rest()
    assert relieved == [False]


def test_who_asks_whether_a_good_store_is_usable_is_told_but_not_at_once() -> None:
    broker = FarBroker()
    told: list[bool] = []
    broker.route.when_usable(lambda: told.append(True))
    assert told == []
    broker.rest()
    assert told == [True]


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_more_than_the_bound_is_held_while_settlements_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = FarBroker(limits=PeerLimits(unanswered_bytes=10_000))
    broker.answered(broker.send())
    broker.receive(900, 1)
    grant = broker.granted()
    seen_bytes = 0
    original = broker.near.submit

    def watch(row: int, options: PartitionOptions, command: c.Command, *rest: Any, **more: Any) -> None:
        nonlocal seen_bytes
        if isinstance(command, c.Enqueue):
            seen_bytes += sum(len(message.data) for message in command.messages)
        original(row, options, command, *rest, **more)

    monkeypatch.setattr(broker.near, "submit", watch)
    requests = [broker.ask(lambda request: c.Enqueue(request, messages(1, 4_000))) for _ in range(10)]
    overloaded = [broker.route.overloaded and bool(overloaded_stores)]
    relieved: list[bool] = []
    broker.route.when_usable(lambda: relieved.append(True))
    settled = broker.settle(Outcome.COMPLETE, grant)
    broker.run_until(lambda: any(isinstance(a, r.Settled) for a in broker.answers))
    assert seen_bytes <= 10_000, "the owner is asked for no more at a time"
    assert broker.answered(settled)
    assert not relieved
    answers = broker.answered(*requests)
    assert [answer.first_sequence for answer in answers] == list(range(2, 12)), "in order"
    broker.rest()
    overloaded.append(broker.route.overloaded)
    assert overloaded == [True, False]
    assert relieved == [True]


def test_what_is_larger_than_the_bound_goes_alone() -> None:
    broker = FarBroker(limits=PeerLimits(unanswered_bytes=1_000))
    requests = [broker.ask(lambda request: c.Enqueue(request, messages(1, 5_000))) for _ in range(3)]
    assert [answer.first_sequence for answer in broker.answered(*requests)] == [1, 2, 3]


def test_partition_is_dropped_behind_what_is_held_for_it() -> None:
    broker = FarBroker(limits=PeerLimits(unanswered_bytes=1_000))
    for _ in range(3):
        broker.ask(lambda request: c.Enqueue(request, messages(1, 5_000)))
    dropped: list[int] = []
    broker.route.drop(ROW, dropped.append)
    broker.rest()
    assert dropped == [ROW]
    assert broker.disk.durable.entries == {}


def test_what_cannot_travel_fails_alone() -> None:
    broker = FarBroker()
    request = broker.ask(lambda request: c.AcceptSession(request, 900, "\ud800"))
    (failed,) = broker.answered(request)
    assert failed.executed is False
    assert "AcceptSession can't be sent to far" in failed.message
    assert broker.answered(broker.send())


# -- the line is lost --------------------------------------------------------------------------------------------------


def test_question_that_never_left_was_not_executed() -> None:
    broker = FarBroker()
    broker.answered(broker.send())
    sent = broker.send()
    broker.turn()
    unsent = broker.send()
    reading = broker.ask(lambda request: c.Peek(request, 0, 0, 10))
    broker.lines[-1].remote.lost("the line was cut")
    answers = {answer.request: answer for answer in broker.answered(sent, unsent, reading)}
    assert answers[sent].executed is None, "it may have arrived"
    assert answers[unsent].executed is False
    assert answers[reading].executed is False
    assert "the line was cut" in answers[sent].message


def test_reading_may_be_asked_again() -> None:
    broker = FarBroker()
    broker.answered(broker.send())
    peeked = broker.ask(lambda request: c.Peek(request, 0, 0, 10))
    broker.turn()
    broker.lines[-1].remote.lost("cut")
    (failed,) = broker.answered(peeked)
    assert failed.executed is False


def test_what_is_held_was_not_executed() -> None:
    broker = FarBroker(limits=PeerLimits(unanswered_bytes=1_000))
    requests = [broker.ask(lambda request: c.Enqueue(request, messages(1, 900))) for _ in range(3)]
    broker.turn()
    broker.lines[-1].remote.lost("cut")
    answers = sorted(broker.answered(*requests), key=lambda answer: answer.request)
    assert [answer.executed for answer in answers] == [None, False, False]


def test_receivers_are_told_once_when_the_way_is_closed_already() -> None:
    broker = FarBroker()
    told: list[tuple[bool, str | None]] = []

    def granted(reply: Any) -> None:
        told.append((reply.executed, broker.route.failure))
        broker.route.register(901, granted)

    broker.route.register(901, granted)
    broker.submit(c.Receive(0, 901, 5, 1 << 20))
    broker.run()
    broker.lines[-1].remote.lost("cut")
    broker.lines[-1].remote.lost("cut again")
    assert told == [(False, "cut")]
    assert broker.lines[-1].remote.receivers == {}


def test_receiver_that_waits_for_the_next_owner_gets_messages_from_it() -> None:
    broker = FarBroker()
    broker.answered(broker.send())
    asks: list[bool] = []

    def granted(reply: Any) -> None:
        broker.answers.append(reply)
        if isinstance(reply, r.Failed):
            broker.route.register(901, granted)
            broker.route.when_usable(lambda: asks.append(True) or broker.submit(c.Receive(0, 901, 5, 1 << 20)))  # type: ignore[func-returns-value]

    broker.route.register(901, granted)
    broker.lines[-1].cut()
    broker.rest()
    assert asks == []
    broker.connect()
    assert [entry.sequence for entry in broker.granted().entries] == [1]
    assert asks == [True]


def test_nothing_is_asked_over_a_lost_line() -> None:
    broker = FarBroker()
    store = broker.route.access
    assert store is not None
    broker.lines[-1].remote.lost("cut")
    answers: list[Any] = []
    store.submit(ROW, OPTIONS, c.Enqueue(77, messages()), answers.append)
    store.register(78, answers.append)
    store.submit(ROW, OPTIONS, c.Receive(0, 78, 1, 100))
    assert [(answer.request, answer.executed, answer.message) for answer in answers] == [
        (77, False, "cut"),
        (78, False, "cut"),
    ]


def test_locks_outlive_the_line_and_are_settled_over_the_next() -> None:
    broker = FarBroker()
    broker.answered(broker.send(3))
    broker.receive(900, 3)
    grant = broker.granted()
    broker.lines[-1].cut()
    broker.run()
    broker.connect()
    (settled,) = broker.answered(broker.settle(Outcome.COMPLETE, grant))
    assert settled.lost == []


# -- the store changes hands while the line stays ----------------------------------------------------------------------


def test_old_owner_still_answers_what_it_was_asked() -> None:
    broker = FarBroker()
    broker.answered(broker.send())
    sent = broker.send()
    broker.turn()
    told: list[Any] = []
    broker.route.register(901, told.append)
    broker.serving.close(STORE, "handed over")
    broker.route.lead_nowhere("handed over")
    assert [reply.executed for reply in told] == [False]
    broker.rest()
    (answer,) = broker.answered(sent)
    assert isinstance(answer, r.Accepted) or answer.executed is False, "asked before or after it was given up"
    assert len(told) == 1
    (refused,) = broker.answered(broker.send())
    assert (refused.executed, refused.message) == (False, "handed over")


def test_what_is_held_for_a_store_that_has_gone_is_refused() -> None:
    broker = FarBroker(limits=PeerLimits(unanswered_bytes=1_000))
    broker.answered(broker.send())
    requests = [broker.ask(lambda request: c.Enqueue(request, messages(1, 900))) for _ in range(3)]
    broker.route.lead_nowhere("handed over")
    broker.rest()
    answers = sorted(broker.answered(*requests), key=lambda answer: answer.request)
    assert isinstance(answers[0], r.Accepted)
    assert [answer.executed for answer in answers[1:]] == [False, False]
    assert len(broker.lines[-1].remote.requests) == 0


def test_session_that_is_accepted_when_nobody_wants_it_any_more_is_free() -> None:
    broker = FarBroker()
    broker.submit(c.Enqueue(980, messages(1, session="s")), SESSIONS)
    broker.until(r.Accepted)
    receiver = broker.register()
    broker.submit(c.AcceptSession(981, receiver, "s"), SESSIONS)
    broker.turn()
    broker.submit(c.CancelAccept(0, 981), SESSIONS)
    broker.route.forget(981)
    broker.rest()
    accepted = broker.taken(r.SessionAccepted)
    for reply in accepted:  # it was on its way: who asked gives it back
        broker.submit(c.ReleaseSession(reply.lock_id), SESSIONS)
    assert broker.lines[-1].remote.requests == {}
    broker.submit(c.AcceptSession(982, broker.register(), "s"), SESSIONS)
    (again,) = broker.until(r.SessionAccepted)
    assert again.request == 982


def test_a_request_whose_frame_breaks_the_channel_is_answered() -> None:
    """The frame fills the batch, so the channel writes it at once, and breaks."""
    broker = FarBroker()

    def lose(batch: bytearray) -> None:
        remote.lost("the peer does not take what it is sent")

    remote = RemoteBroker("far", Outbox(lose, broker.remote_host.call_soon), broker.remote_host.call_soon, PeerLimits())
    broker.route.lead_to(remote.store(STORE, broker.route))
    state = bytes(BATCH_BYTES)
    broker.submit(c.SetSessionState(700, 1, state), SESSIONS)
    broker.turn()
    (answer,) = [answer for answer in broker.answers if getattr(answer, "request", None) == 700]
    assert isinstance(answer, r.Failed)
    assert not remote.requests
