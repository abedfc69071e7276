"""The owner's work for remote brokers, and the messages that return when one is lost."""

from __future__ import annotations

import pytest

from partibus.cluster import wire
from partibus.cluster.forms import to_form
from partibus.cluster.served_store import options_of
from partibus.message import Message, pack
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.commands import Outcome
from partibus.partition.protocol.ports import StoreError
from partibus.units.account import ASK_BYTES
from tests.unit.cluster.far import OPTIONS, ROW, SESSIONS, STORE, FarBroker

ROOM = 1 << 20


def sessioned(broker: FarBroker, *names: str) -> None:
    for request, name in enumerate(names, start=800):
        broker.submit(c.Enqueue(request, [Message(pack(rest=b"body"), session_id=name)]), SESSIONS)
    broker.until(r.Accepted, len(names))


def tokens_of(grant: r.Granted) -> list[c.LockToken]:
    return [(grant.lock_id, entry.pos) for entry in grant.entries]


# -- a guest is gone ---------------------------------------------------------------------------------------------------


def near_receive(broker: FarBroker, count: int = 10) -> r.Granted:
    """Receive as the owner's own client within the time in which no lock or reservation runs out."""
    broker.near.register(7_000, broker.answers.append)
    broker.near.submit(ROW, OPTIONS, c.Receive(0, 7_000, count, ROOM))
    return broker.granted()


def test_reservations_of_a_guest_that_is_gone_are_free_at_once() -> None:
    broker = FarBroker()
    broker.answered(broker.send(4))
    receiver = broker.register()
    broker.submit(c.Receive(0, receiver, 4, ROOM, reserve=True))
    (reserved,) = broker.until(r.Granted)
    assert len(reserved.entries) == 4
    broker.lines[-1].cut()
    broker.run(20)
    began_ms = broker.timeline.now_ms()
    grant = near_receive(broker)
    assert [entry.sequence for entry in grant.entries] == [1, 2, 3, 4]
    assert [entry.delivery_count for entry in grant.entries] == [0] * 4
    assert broker.timeline.now_ms() - began_ms < OPTIONS.reservation_ms


def test_only_what_is_still_reserved_goes_back() -> None:
    broker = FarBroker()
    broker.answered(broker.send(5))
    reserving = broker.register()
    broker.submit(c.Receive(0, reserving, 5, ROOM, reserve=True))
    (reserved,) = broker.until(r.Granted)
    tokens = tokens_of(reserved)
    broker.submit(c.LockReserved(7_002, 0, tokens[:2]))
    broker.submit(c.ReturnReserved(0, tokens[4:]))
    (locked,) = broker.until(r.Locked)
    assert [entry.sequence for entry in locked.entries] == [1, 2]
    broker.lines[-1].cut()
    broker.run(20)
    assert [entry.sequence for entry in near_receive(broker).entries] == [3, 4, 5], "the locks stay"


def test_what_was_locked_for_a_guest_that_is_gone_is_free_at_once() -> None:
    broker = FarBroker()
    broker.answered(broker.send(2))
    reserving = broker.register()
    broker.submit(c.Receive(0, reserving, 2, ROOM, reserve=True))
    (reserved,) = broker.until(r.Granted)
    broker.send(1)  # the answer waits for its commit
    broker.submit(c.LockReserved(7_002, 0, tokens_of(reserved)))
    line = broker.lines[-1]
    (table,) = line.remote_broker.stores.values()
    broker.run_until(lambda: not table.reservations)
    line.remote_broker.lost()
    line.cut()
    broker.run(20)
    began_ms = broker.timeline.now_ms()
    assert [entry.sequence for entry in near_receive(broker).entries] == [1, 2, 3]
    assert broker.timeline.now_ms() - began_ms < OPTIONS.lock_duration_ms


def test_memory_of_a_guest_does_not_grow_with_what_it_has_taken() -> None:
    broker = FarBroker()
    reserving = broker.register()
    for _ in range(5):
        broker.answered(broker.send(3))
        broker.submit(c.Receive(0, reserving, 3, ROOM, reserve=True))
        (reserved,) = broker.until(r.Granted)
        broker.submit(c.LockReserved(7_002, 0, tokens_of(reserved)))
        (locked,) = broker.until(r.Locked)
        broker.answered(broker.settle(Outcome.COMPLETE, locked))
    (table,) = broker.lines[-1].remote_broker.stores.values()
    assert table.reservations == {}
    assert broker.lines[-1].remote.requests == {}


def test_receivers_of_a_guest_that_is_gone_get_nothing_more() -> None:
    broker = FarBroker()
    receiver = broker.register()
    broker.submit(c.Receive(0, receiver, 100, ROOM, delete=True))
    broker.run()
    broker.lines[-1].cut()
    broker.run(20)
    broker.near.submit(ROW, OPTIONS, c.Enqueue(7_001, [Message(pack())]))
    broker.run()
    assert len(broker.disk.durable.entries) == 1, "nothing is deleted for nobody"
    assert [entry.sequence for entry in near_receive(broker).entries] == [1]


@pytest.mark.row("K4")
def test_sessions_of_a_guest_that_is_gone_are_free_at_once() -> None:
    broker = FarBroker()
    sessioned(broker, "a", "b")
    holder = broker.register()
    broker.submit(c.AcceptSession(700, holder, "a"), SESSIONS)
    (held,) = broker.until(r.SessionAccepted)
    broker.submit(c.Receive(0, holder, 5, ROOM, session=held.lock_id), SESSIONS)
    broker.until(r.Granted)
    broker.near.submit(ROW, SESSIONS, c.AcceptSession(7_001, 7_000, "a"), broker.answers.append)
    broker.run(5)
    assert broker.taken(r.SessionHeld)
    broker.lines[-1].cut()
    broker.run(20)
    broker.near.submit(ROW, SESSIONS, c.AcceptSession(7_002, 7_000, "a"), broker.answers.append)
    (again,) = broker.until(r.SessionAccepted)
    broker.near.register(7_000, broker.answers.append)
    broker.near.submit(ROW, SESSIONS, c.Receive(0, 7_000, 5, ROOM, session=again.lock_id))
    (grant,) = broker.until(r.Granted)
    assert [entry.delivery_count for entry in grant.entries] == [0], "nobody has failed with it"


def test_guest_that_is_gone_waits_for_no_session() -> None:
    broker = FarBroker()
    broker.submit(c.AcceptSession(700, broker.register(), None), SESSIONS)
    broker.run()
    broker.lines[-1].cut()
    broker.run(20)
    broker.near.submit(ROW, SESSIONS, c.Enqueue(7_001, [Message(pack(), session_id="late")]))
    broker.near.submit(ROW, SESSIONS, c.AcceptSession(7_002, 7_000, None), broker.answers.append)
    (accepted,) = broker.until(r.SessionAccepted)
    assert (accepted.request, accepted.session) == (7_002, "late")


def test_session_that_was_released_or_has_ended_is_not_released_again() -> None:
    broker = FarBroker()
    sessioned(broker, "a", "b")
    first, second = broker.register(), broker.register()
    broker.submit(c.AcceptSession(700, first, "a"), SESSIONS)
    broker.submit(c.AcceptSession(701, second, "b"), SESSIONS)
    one, two = broker.until(r.SessionAccepted, 2)
    broker.submit(c.ReleaseSession(one.lock_id), SESSIONS)
    broker.submit(c.Receive(0, second, 5, ROOM, session=two.lock_id), SESSIONS)
    broker.until(r.Granted)
    (ended,) = broker.until(r.SessionEnded)
    assert (ended.receiver, ended.lock_id) == (second, two.lock_id)
    (table,) = broker.lines[-1].remote_broker.stores.values()
    assert table.sessions == {}
    assert table.accepting == {}


@pytest.mark.parametrize("reserve", [False, True])
def test_grant_that_waits_for_a_commit_when_its_guest_goes_is_free_again(reserve: bool) -> None:
    broker = FarBroker()
    broker.submit(c.Receive(0, broker.register(), 1, ROOM, reserve=reserve))
    broker.run()
    broker.near.submit(ROW, OPTIONS, c.Enqueue(7_001, [Message(pack())]))
    broker.lines[-1].remote_broker.lost()
    broker.run(60)
    (entry,) = near_receive(broker).entries
    assert entry.delivery_count == 0
    assert broker.timeline.now_ms() < 1_000 + OPTIONS.lock_duration_ms, "long before the lock would have run out"


def test_session_that_waits_for_a_commit_when_its_guest_goes_is_free_again() -> None:
    broker = FarBroker()
    broker.submit(c.AcceptSession(700, broker.register(), None), SESSIONS)
    broker.run()
    broker.near.submit(ROW, SESSIONS, c.Enqueue(7_001, [Message(pack(), session_id="late")]))
    broker.lines[-1].remote_broker.lost()
    broker.run(60)
    broker.near.submit(ROW, SESSIONS, c.AcceptSession(7_002, 7_000, "late"), broker.answers.append)
    assert broker.until(r.SessionAccepted)
    assert broker.timeline.now_ms() < 1_000 + SESSIONS.lock_duration_ms


def test_grant_to_a_receiver_that_left_while_it_waited_for_a_commit_is_free_again() -> None:
    broker = FarBroker()
    receiver = broker.register()
    broker.submit(c.Receive(0, receiver, 1, ROOM))
    broker.run()
    broker.near.submit(ROW, OPTIONS, c.Enqueue(7_001, [Message(pack())]))
    remote_broker = broker.lines[-1].remote_broker
    remote_broker.receive([wire.Unregister(STORE, receiver)])
    broker.run(60)
    assert broker.taken(r.Granted) == []
    assert [entry.delivery_count for entry in near_receive(broker).entries] == [0]


def test_grant_that_crosses_the_leaving_of_its_receiver_reaches_it() -> None:
    broker = FarBroker()
    receiver = broker.register()
    broker.submit(c.Receive(0, receiver, 1, ROOM))
    broker.run()
    broker.near.submit(ROW, OPTIONS, c.Enqueue(7_001, [Message(pack())]))
    remote_broker, remote = broker.lines[-1].remote_broker, broker.lines[-1].remote
    broker.run_until(lambda: remote_broker.outbox.left)
    broker.route.unregister(receiver)
    broker.submit(c.CancelReceive(0, 0, receiver))
    (grant,) = broker.until(r.Granted)
    assert grant.receiver == receiver, "who has left gives back what still comes"
    broker.run()
    assert remote.leaving == {}


# -- a store comes and goes --------------------------------------------------------------------------------------------


def test_store_that_is_not_here_refuses_and_its_coming_is_told() -> None:
    broker = FarBroker()
    broker.serving.stores.clear()
    back: list[str | None] = []
    told: list[r.Failed] = []
    broker.route.register(901, told.append)
    broker.submit(c.Receive(0, 901, 1, ROOM))
    (failed,) = broker.answered(broker.send())
    assert failed.executed is False
    assert "another broker" in failed.message
    assert [reply.executed for reply in told] == [False]
    assert broker.route.failure == failed.message
    broker.route.when_usable(lambda: back.append(broker.route.failure))
    broker.run()
    assert back == []
    broker.serving.open(STORE, broker.near)
    broker.run()
    assert back == [None]
    assert isinstance(broker.answered(broker.send())[0], r.Accepted)


def test_receivers_at_a_store_that_is_given_up_are_told_and_requests_answered() -> None:
    broker = FarBroker()
    broker.answered(broker.send())
    told: list[object] = []
    broker.route.register(901, told.append)
    broker.submit(c.Receive(1, 901, 1, ROOM))
    sent = broker.send()
    broker.run(4)
    broker.serving.close(STORE, "handed over")
    broker.run()
    assert [(reply.request, reply.message) for reply in told if isinstance(reply, r.Failed)] == [(901, "handed over")]
    assert len(told) == 1
    assert broker.answered(sent)
    assert broker.route.failure == "handed over"


def test_session_that_is_found_when_its_store_is_given_up_is_refused() -> None:
    broker = FarBroker()
    broker.submit(c.AcceptSession(700, broker.register(), None), SESSIONS)
    broker.run()
    broker.serving.close(STORE, "handed over")
    broker.near.submit(ROW, SESSIONS, c.Enqueue(7_001, [Message(pack(), session_id="late")]))
    (failed,) = [a for a in broker.until(r.Failed, 2) if a.request == 700]
    assert failed.executed is False
    broker.near.submit(ROW, SESSIONS, c.AcceptSession(7_002, 7_000, "late"), broker.answers.append)
    assert broker.until(r.SessionAccepted)


def test_failure_of_the_store_voids_what_a_guest_keeps() -> None:
    broker = FarBroker()
    broker.answered(broker.send(2))
    receiver = broker.register()
    broker.submit(c.Receive(0, receiver, 2, ROOM, reserve=True))
    broker.until(r.Granted)
    broker.break_store(StoreError("disk on fire", executed=False))
    broker.send()
    broker.run_until(lambda: any(isinstance(a, r.Failed) and a.request == receiver for a in broker.answers))
    (table,) = broker.lines[-1].remote_broker.stores.values()
    assert table.reservations == {}
    broker.rest()
    broker.lines[-1].cut()
    broker.run()
    assert [entry.sequence for entry in near_receive(broker).entries] == [1, 2]


# -- what guests say ---------------------------------------------------------------------------------------------------


def test_question_of_a_receiver_that_has_failed_is_passed_over() -> None:
    broker = FarBroker()
    broker.answered(broker.send())
    remote_broker = broker.lines[-1].remote_broker
    options = wire.encode_options(OPTIONS)
    remote_broker.receive([wire.Ask(STORE, ROW, options, False, False, to_form(c.Receive(0, 55, 1, ROOM)))])
    broker.run()
    assert broker.taken(r.Granted) == []
    assert [entry.sequence for entry in near_receive(broker).entries] == [1]


def test_options_that_are_none_end_the_channel() -> None:
    broker = FarBroker()
    with pytest.raises(wire.WireError, match="7 bytes are not the options of a partition"):
        broker.lines[-1].remote_broker.receive([wire.Ask(STORE, ROW, b"nothing", False, False, to_form(c.Tick()))])


def test_equal_options_are_one_object() -> None:
    assert options_of(wire.encode_options(OPTIONS)) is options_of(wire.encode_options(OPTIONS))


# -- whose work it is --------------------------------------------------------------------------------------------------


def test_what_guests_ask_for_is_noted_by_partition_and_size() -> None:
    broker = FarBroker()
    broker.answered(broker.send(4))
    sent = broker.serving.asked.take()
    assert list(sent) == [ROW]
    assert sent[ROW] > ASK_BYTES
    receiver = broker.register()
    broker.submit(c.Receive(0, receiver, 4, ROOM))
    (granted,) = broker.until(r.Granted)
    each_bytes = granted.entries[0].size_bytes
    assert broker.serving.asked.take() == {ROW: 2 * ASK_BYTES + 4 * each_bytes}
    broker.near.submit(ROW, OPTIONS, c.Settle(0, 0, Outcome.COMPLETE, tokens_of(granted)))
    broker.run()
    assert broker.serving.asked.take() == {}, "what the owner does for its own clients is noted elsewhere"


@pytest.mark.parametrize("granted", [False, True])
def test_a_receive_of_groups_is_answered_when_its_store_is_given_up(granted: bool) -> None:
    """The receive waits for a message, or for the commit of the locks that it got."""
    broker = FarBroker()
    if granted:
        broker.near.submit(ROW, SESSIONS, c.Enqueue(7_001, [Message(pack(), session_id="g")]))
        broker.run()
    decided = broker.near.decided
    broker.submit(c.ReceiveGroups(700, 1, ROOM, 30_000, wait=True), SESSIONS)
    if granted:
        broker.run_until(lambda: broker.near.decided > decided)
    else:
        broker.run()
    broker.serving.close(STORE, "handed over")
    broker.near.close(lambda: None)
    broker.run()
    (answer,) = [answer for answer in broker.answers if getattr(answer, "request", None) == 700]
    assert isinstance(answer, r.GroupsGranted if granted else r.Failed)
    assert not broker.lines[-1].remote.requests
