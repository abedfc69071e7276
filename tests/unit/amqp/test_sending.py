"""Transfers that leave: credit, windows, frame sizes, drain, and what the peer says about deliveries."""

from __future__ import annotations

import pytest

from partibus.amqp import (
    ACCEPTED,
    RELEASED,
    AmqpError,
    CreditChanged,
    Disposed,
    Limits,
    Modified,
    Received,
    Rejected,
    Sender,
    TransactionalState,
    UsageError,
    WindowOpened,
)
from partibus.amqp.codec.performatives import Detach, Disposition, End, Flow, Transfer
from partibus.amqp.frames import EMPTY_FRAME, frame
from partibus.amqp.session import ODD_STATE_IDS
from tests.unit.amqp.peers import Frame, Joined, Scripted, deliveries, of_type, transfer


def items(count: int, size: int = 10, first: int = 0) -> list[tuple[bytes, bytes, object]]:
    return [(b"tag%d" % n, bytes((n % 256,)) * size, f"context {n}") for n in range(first, first + count)]


def transfers(scripted: Scripted) -> list[Frame]:
    return [heard for heard in scripted.heard() if isinstance(heard.body, Transfer)]


def test_messages_leave_as_frames_with_all_fields() -> None:
    scripted = Scripted()
    link = scripted.with_sender(credit=5)
    assert link.send_many(items(3)) == 3
    assert (link.credit, link.delivery_count) == (2, 3)
    heard = transfers(scripted)
    assert [frame.body for frame in heard] == [
        Transfer(handle=0, delivery_id=n, delivery_tag=b"tag%d" % n, message_format=0, settled=False) for n in range(3)
    ]
    assert [frame.payload for frame in heard] == [payload for _, payload, _ in items(3)]


def test_payload_in_parts_is_joined() -> None:
    scripted = Scripted()
    link = scripted.with_sender()
    assert link.send_many([(b"t", (b"header", b"", b"body"), None)]) == 1
    assert link.send(b"u", (b"one", b"two"))
    assert [frame.payload for frame in transfers(scripted)] == [b"headerbody", b"onetwo"]


def test_credit_bounds_what_is_taken() -> None:
    """Trap 17: we never send more than was granted."""
    scripted = Scripted()
    link = scripted.with_sender(credit=2)
    assert link.send_many(items(5)) == 2
    assert link.send_many(items(5)) == 0
    assert not link.send(b"t", b"x")
    assert len(transfers(scripted)) == 2


def test_send_hands_on_format_state_and_settlement() -> None:
    scripted = Scripted()
    link = scripted.with_sender()
    state = TransactionalState(txn_id=b"txn")
    assert link.send(b"t", b"x", message_format=0x80013700, settled=True, state=state)
    (frame,) = transfers(scripted)
    assert frame.body == Transfer(
        handle=0, delivery_id=0, delivery_tag=b"t", message_format=0x80013700, settled=True, state=state
    )
    assert link.outbound.unsettled == {}


def test_settled_messages_are_forgotten_at_once() -> None:
    scripted = Scripted()
    link = scripted.with_sender()
    assert link.send_many(items(2), settled=True) == 2
    assert [frame.body.settled for frame in transfers(scripted)] == [True, True]
    assert link.outbound.unsettled == {}


def test_delivery_ids_run_through_the_session() -> None:
    """Trap 20: contiguous per session, not per link."""
    scripted = Scripted()
    first = scripted.with_sender()
    second = scripted.attach_peer_receiver(1, "second")
    second.accept()
    scripted.credit(10, handle=1)
    scripted.heard()
    first.send_many(items(2))
    second.send_many(items(1))
    second.send(b"t", b"x")
    first.send_many(items(1))
    assert [(frame.body.handle, frame.body.delivery_id) for frame in transfers(scripted)] == [
        (0, 0), (0, 1), (1, 2), (1, 3), (0, 4),
    ]  # fmt: skip


@pytest.mark.parametrize("size", [0, 1, 470, 480, 490, 512, 1000, 10_000])
@pytest.mark.parametrize("one_by_one", [True, False])
def test_large_message_is_cut_at_the_frame_size_of_the_peer(size: int, one_by_one: bool) -> None:
    scripted = Scripted()
    link = scripted.with_sender(max_frame_size=512)
    payload = bytes(range(256)) * (size // 256 + 1)
    payload = payload[:size]
    if one_by_one:
        link.send(b"tag", payload, "context")
    else:
        assert link.send_many([(b"tag", payload, "context"), (b"next", b"", None)]) == 2
    data = scripted.connection.data_to_send()
    sizes = []
    while data:
        sizes.append(int.from_bytes(data[:4]))
        link.session.output.write(data[: sizes[-1]])
        data = data[sizes[-1] :]
    assert max(sizes) <= 512
    heard = transfers(scripted)
    if not one_by_one:
        assert heard.pop().body.delivery_id == 1
    assert b"".join(frame.payload for frame in heard) == payload
    assert [frame.body.more for frame in heard] == [True] * (len(heard) - 1) + [False]
    assert heard[0].body.delivery_id == 0
    assert all(frame.body.delivery_id is None and frame.body.delivery_tag is None for frame in heard[1:])
    assert len(heard) <= size // 440 + 1
    assert scripted.connection.output.size == 0


@pytest.mark.parametrize("frame_bytes", [512, 1 << 20])
def test_large_message_is_not_copied_before_it_is_written(frame_bytes: int) -> None:
    scripted = Scripted()
    link = scripted.with_sender(max_frame_size=frame_bytes)
    scripted.heard()
    large = bytes(range(256)) * 256
    assert link.send_many([(b"tag", (b"head", memoryview(large)[100:]), "context")]) == 1
    shared = [part for part in link.session.output.parts if isinstance(part, memoryview) and part.obj is large]
    assert sum(map(len, shared)) == len(large) - 100
    payload = b"".join([bytes(heard.payload) for heard in transfers(scripted)])
    assert payload == b"head" + large[100:]


def test_window_of_the_peer_counts_frames() -> None:
    """Trap 20: one client throws beyond 2048 frames."""
    scripted = Scripted()
    link = scripted.with_sender(credit=100, incoming_window=3, max_frame_size=512)
    assert link.send_many(items(2)) == 2
    assert link.send_many([(b"big", bytes(1000), None), *items(2, first=5)]) == 3
    assert [(frame.body.delivery_id, frame.body.more) for frame in transfers(scripted)] == [
        (0, False), (1, False), (2, True),
    ]  # fmt: skip
    assert link.outbound.bytes_waiting == 1020
    scripted.credit(100, next_incoming_id=3, incoming_window=3)
    assert [(f.body.delivery_id, f.body.more) for f in transfers(scripted)] == [(None, True), (None, False), (3, False)]
    scripted.credit(100, next_incoming_id=3, incoming_window=4)
    assert [frame.body.delivery_id for frame in transfers(scripted)] == [4]
    assert link.outbound.bytes_waiting == 0


def test_frames_on_the_way_count_against_the_window() -> None:
    scripted = Scripted()
    link = scripted.with_sender()
    link.send_many(items(10))
    scripted.credit(100, next_incoming_id=4, incoming_window=8, delivery_count=4)
    assert link.outbound.window == 2
    scripted.credit(100, next_incoming_id=None, incoming_window=8)
    assert link.outbound.window == 0
    scripted.credit(100, next_incoming_id=10, incoming_window=4_294_967_295)
    assert link.outbound.window == 4_294_967_295


def test_what_waits_is_bounded_and_the_owner_learns_when_it_has_left() -> None:
    scripted = Scripted(limits=Limits(pending_bytes_max=25))
    link = scripted.with_sender(incoming_window=0)
    assert link.send_many(items(10)) == 3
    assert link.credit == 97
    assert link.send_many(items(10)) == 0
    events = scripted.credit(97, incoming_window=2)
    assert of_type(WindowOpened, events) == []
    events = scripted.credit(97, next_incoming_id=2, incoming_window=2, delivery_count=2)
    assert events == [WindowOpened(link.session), CreditChanged(link)]
    assert len(transfers(scripted)) == 3
    assert of_type(WindowOpened, scripted.credit(90, next_incoming_id=3)) == []


def test_order_holds_while_something_waits() -> None:
    scripted = Scripted()
    link = scripted.with_sender(incoming_window=1)
    link.send_many(items(3))
    link.outbound.window = 1
    link.send_many(items(2, first=3))
    assert [frame.body.delivery_tag for frame in transfers(scripted)] == [b"tag0", b"tag1"]


def test_tag_has_at_most_32_bytes() -> None:
    scripted = Scripted()
    link = scripted.with_sender()
    assert link.send(bytes(32), b"x")
    with pytest.raises(UsageError, match="at most 32 bytes, not 33"):
        link.send(bytes(33), b"x")
    with pytest.raises(UsageError, match="at most 32 bytes, not 33"):
        link.send_many([(b"ok", b"x", None), (bytes(33), b"x", None)])
    assert [frame.body.delivery_id for frame in transfers(scripted)] == [0, 1]


def test_ids_stay_contiguous_when_a_link_leaves_while_its_deliveries_wait() -> None:
    """Trap 20."""
    scripted = Scripted()
    first = scripted.with_sender(incoming_window=1)
    second = scripted.attach_peer_receiver(1, "second")
    second.accept()
    scripted.credit(10, handle=1, incoming_window=1)
    scripted.heard()
    first.send_many(items(3))
    second.send_many(items(2))
    scripted.say(Detach(handle=0, closed=True))
    assert second.outbound.bytes_waiting == 20
    scripted.credit(10, handle=1, next_incoming_id=1)
    assert [(f.body.handle, f.body.delivery_id) for f in transfers(scripted)] == [(0, 0), (1, 1), (1, 2)]


# -- flow and drain ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delivery_count", "link_credit", "credit"),
    [(3, 10, 10), (1, 10, 8), (None, 10, 7), (0, 2, 0), (9, 10, 10), (2**32 - 1, 10, 6)],
)
def test_credit_counts_from_what_the_peer_has_seen(delivery_count: int | None, link_credit: int, credit: int) -> None:
    """A null count is 0; a count ahead of ours is a miscount, and the credit is meant from now on."""
    scripted = Scripted()
    link = scripted.with_sender()
    link.send_many(items(3))
    assert scripted.credit(link_credit, delivery_count=delivery_count) == [CreditChanged(link)]
    assert link.credit == credit


def test_flow_without_credit_changes_no_credit() -> None:
    scripted = Scripted()
    link = scripted.with_sender(credit=5)
    assert scripted.say(Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1, handle=0)) == []
    assert link.credit == 5


def test_drain_is_answered_with_the_credit_used_up() -> None:
    """Trap 18."""
    scripted = Scripted()
    link = scripted.with_sender(credit=10)
    assert scripted.credit(10, drain=True) == [CreditChanged(link)]
    assert link.drain_requested
    link.send_many(items(2))
    link.drained()
    *sent, flow = scripted.heard_bodies()
    assert len(sent) == 2
    assert isinstance(flow, Flow)
    assert (flow.handle, flow.drain, flow.link_credit, flow.delivery_count) == (0, True, 0, 10)
    assert flow.next_incoming_id == 0
    assert (link.credit, link.drain_requested) == (0, False)
    scripted.credit(5, delivery_count=10)
    assert (link.credit, link.drain_requested) == (5, False)


def test_drain_without_credit_is_answered_too() -> None:
    scripted = Scripted()
    link = scripted.with_sender(credit=10)
    scripted.credit(0, drain=True)
    assert link.send_many(items(1)) == 0
    link.drained()
    (flow,) = scripted.heard_bodies()
    assert (flow.drain, flow.link_credit, flow.delivery_count) == (True, 0, 0)


def test_drain_is_answered_after_what_waits_for_the_window() -> None:
    scripted = Scripted()
    link = scripted.with_sender(credit=10, incoming_window=1)
    scripted.credit(10, drain=True, incoming_window=1)
    link.send_many(items(3))
    link.drained()
    link.drained()
    assert [type(body) for body in scripted.heard_bodies()] == [Transfer]
    scripted.say(Flow(next_incoming_id=1, incoming_window=10, next_outgoing_id=0, outgoing_window=1))
    bodies = scripted.heard_bodies()
    assert [type(body) for body in bodies] == [Transfer, Transfer, Flow]
    assert (bodies[-1].drain, bodies[-1].link_credit, bodies[-1].delivery_count) == (True, 0, 10)


def test_link_that_leaves_while_its_drain_waits_is_not_drained() -> None:
    scripted = Scripted()
    link = scripted.with_sender(credit=10, incoming_window=0)
    link.send_many(items(1))
    link.drained()
    scripted.say(Detach(handle=0, closed=True))
    scripted.heard()
    scripted.say(Flow(next_incoming_id=0, incoming_window=10, next_outgoing_id=0, outgoing_window=1))
    assert scripted.heard() == []


def test_two_engines_drain() -> None:
    joined = Joined()
    sender, receiver = joined.server_sends(credit=10)
    sender.send_many(items(3))
    receiver.drain()
    joined.run()
    assert sender.drain_requested
    sender.drained()
    joined.run()
    assert len(deliveries(joined.client_events)) == 3
    assert (sender.credit, receiver.credit) == (0, 0)
    assert sender.delivery_count == receiver.delivery_count == 10


# -- outcomes ----------------------------------------------------------------------------------------------


def sent(count: int = 6) -> tuple[Scripted, Sender]:
    scripted = Scripted()
    link = scripted.with_sender()
    link.send_many(items(count))
    scripted.heard()
    return scripted, link


def contexts(*numbers: int) -> list[object]:
    return [f"context {n}" for n in numbers]


@pytest.mark.parametrize("last", [2, None])
def test_disposition_brings_the_contexts_back(last: int | None) -> None:
    """Trap 27: a null last equals first."""
    scripted, link = sent()
    ids = [2]
    (event,) = scripted.say(Disposition(role=True, first=2, last=last, settled=True, state=ACCEPTED))
    assert event == Disposed(link, contexts(*ids), ids, ACCEPTED, True)
    assert isinstance(event, Disposed)
    assert event.state is ACCEPTED
    assert sorted(link.outbound.unsettled) == [0, 1, 3, 4, 5]


def test_equal_dispositions_are_one_event() -> None:
    scripted, link = sent()
    say = [
        Disposition(role=True, first=0, settled=True, state=ACCEPTED),
        Disposition(role=True, first=1, last=2, settled=True, state=ACCEPTED),
        Disposition(role=True, first=3, settled=False, state=ACCEPTED),
        Disposition(role=True, first=4, settled=True, state=Modified(True)),
        Disposition(role=True, first=5, settled=True, state=Modified(True)),
    ]
    assert scripted.say(*say) == [
        Disposed(link, contexts(0, 1, 2), [0, 1, 2], ACCEPTED, True),
        Disposed(link, contexts(3), [3], ACCEPTED, False),
        Disposed(link, contexts(4, 5), [4, 5], Modified(True), True),
    ]


def test_range_over_two_links_is_told_apart() -> None:
    scripted, first = sent(2)
    second = scripted.attach_peer_receiver(1, "second")
    second.accept()
    scripted.credit(10, handle=1)
    second.send_many(items(2, first=2))
    (one, two) = scripted.say(Disposition(role=True, first=0, last=3, settled=True, state=RELEASED))
    assert one == Disposed(first, contexts(0, 1), [0, 1], RELEASED, True)
    assert two == Disposed(second, contexts(2, 3), [2, 3], RELEASED, True)


@pytest.mark.parametrize(("first", "last"), [(4, 2**31), (0, 2**31 - 1), (2**32 - 5, 100)])
def test_huge_range_costs_no_more_than_what_is_unsettled(first: int, last: int) -> None:
    scripted, _link = sent()
    events = scripted.say(Disposition(role=True, first=first, last=last, settled=True, state=ACCEPTED))
    expected = list(range(first if first < 6 else 0, 6))
    assert [number for event in of_type(Disposed, events) for number in event.delivery_ids] == expected


def test_unknown_and_backward_ranges_are_passed_over() -> None:
    scripted, _link = sent()
    for first, last in ((6, 6), (100, 200), (3, 2), (2**32 - 1, 2**32 - 1)):
        assert scripted.say(Disposition(role=True, first=first, last=last, settled=True, state=ACCEPTED)) == []


def test_unsettled_disposition_is_answered_in_ranges() -> None:
    scripted, link = sent()
    (event,) = scripted.say(Disposition(role=True, first=0, last=5, settled=False, state=ACCEPTED))
    assert isinstance(event, Disposed)
    assert not event.settled
    error = Rejected(AmqpError("com.microsoft:message-lock-lost", "gone"))
    link.settle_many([0, 1, 2, 4], ACCEPTED)
    link.settle_many([3, 5], error)
    link.settle_many([0, 3], ACCEPTED)
    answers = scripted.heard_bodies()
    assert answers == [
        Disposition(role=False, first=0, last=2, settled=True, state=ACCEPTED),
        Disposition(role=False, first=4, last=4, settled=True, state=ACCEPTED),
        Disposition(role=False, first=3, last=3, settled=True, state=error),
        Disposition(role=False, first=5, last=5, settled=True, state=error),
    ]
    assert link.outbound.unsettled == {}


def test_retained_delivery_may_be_disposed_again() -> None:
    scripted, link = sent(1)
    disposition = Disposition(role=True, first=0, last=0, settled=False, state=ACCEPTED)
    busy = Rejected(AmqpError("com.microsoft:server-busy", "later"))
    for state, retain in ((busy, True), (ACCEPTED, False)):
        assert scripted.say(disposition) == [Disposed(link, contexts(0), [0], ACCEPTED, False)]
        link.settle_many([0], state, retain=retain)
        (answer,) = scripted.heard_bodies()
        assert (answer.state, answer.settled) == (state, True)
    assert scripted.say(disposition) == []


def test_deliveries_of_a_link_that_is_gone_are_forgotten() -> None:
    scripted, link = sent()
    scripted.say(Detach(handle=0, closed=True))
    scripted.heard()
    assert link.outbound.unsettled == {}
    assert scripted.say(Disposition(role=True, first=0, last=5, settled=False, state=ACCEPTED)) == []
    link.settle_many([0], ACCEPTED)
    assert scripted.heard() == []


def test_two_engines_settle_second() -> None:
    joined = Joined()
    sender, receiver = joined.server_sends()
    sender.send_many(items(3))
    joined.run()
    receiver.settle_many(deliveries(joined.client_events), ACCEPTED, settled=False)
    joined.run()
    (asked,) = of_type(Disposed, joined.server_events)
    assert (asked.contexts, asked.settled) == (contexts(0, 1, 2), False)
    sender.settle_many(asked.delivery_ids, ACCEPTED)
    joined.run()
    (answered,) = of_type(Disposed, joined.client_events)
    assert answered.contexts == list(deliveries(joined.client_events))
    assert (answered.state, answered.settled) == (ACCEPTED, True)


def test_session_ids_of_the_client_are_its_own_business() -> None:
    """Trap 26: one client counts deliveries where it should count frames."""
    scripted = Scripted()
    link = scripted.with_sender()
    for next_outgoing_id in (7, 2**32 - 1, 0):
        scripted.credit(10, next_outgoing_id=next_outgoing_id)
    assert link.is_open
    assert scripted.connection.receive_data(EMPTY_FRAME) == []


def test_sending_on_an_ended_session_is_not_taken() -> None:
    scripted, link = sent()
    scripted.say(End())
    scripted.heard()
    scripted.begin()
    assert link.send_many(items(1)) == 0
    link.settle_many([0], ACCEPTED)
    assert scripted.heard() == []


def test_an_outcome_counts_once_however_often_it_is_stated() -> None:
    """Report an outcome once: each costs the owner a command, and a frame of 30 bytes can state thousands."""
    scripted = Scripted()
    link = scripted.with_sender()
    link.send_many(items(5))
    everything = Disposition(role=True, first=0, last=0x7FFFFFFF, settled=False, state=Modified(True))
    assert scripted.say(everything) == [Disposed(link, contexts(0, 1, 2, 3, 4), [0, 1, 2, 3, 4], Modified(True), False)]
    for again in (everything, Disposition(role=True, first=3, settled=False, state=ACCEPTED)):
        assert scripted.say(again) == []
    assert link.settle_many([1], RELEASED, retain=True) == 0
    assert scripted.say(everything) == [Disposed(link, contexts(1), [1], Modified(True), False)]
    assert link.settle_many([0, 1], RELEASED) == 2
    assert scripted.say(Disposition(role=True, first=2, settled=True)) == [Disposed(link, contexts(2), [2], None, True)]
    assert scripted.say(Disposition(role=True, first=0, last=9, settled=True)) == [
        Disposed(link, contexts(3, 4), [3, 4], None, True)
    ]
    assert link.settle_many([0, 1, 2, 3, 4], RELEASED) == 0


def test_deliveries_with_a_stated_outcome_go_with_their_link() -> None:
    scripted = Scripted()
    link = scripted.with_sender()
    link.send_many(items(3))
    scripted.say(Disposition(role=True, first=1, settled=False, state=ACCEPTED))
    outbound = link.outbound
    assert sorted(map(str, outbound.unsettled_of(link))) == contexts(0, 1, 2)
    scripted.say(Detach(handle=0, closed=True))
    assert not outbound.unsettled
    assert not outbound.stated


@pytest.mark.parametrize("role", [True, False])
def test_dispositions_that_look_at_many_deliveries_take_turns(role: bool) -> None:
    scripted = Scripted(limits=Limits(ids_at_once=25 + 2 * ODD_STATE_IDS))
    if role:
        link = scripted.with_sender()
        link.send_many(items(10))
    else:
        receiver = scripted.with_receiver()
        scripted.connection.receive_data(b"".join(transfer(delivery_id=n) for n in range(10)))
        assert len(receiver.inbound.unsettled) == 10
    begun = Received(section_number=1, section_offset=2)
    one = frame(0, Disposition(role=role, first=0, last=0x7FFFFFFF, settled=False, state=begun))
    turns = [scripted.connection.receive_data(one * 7)]
    while scripted.connection.more_to_read:
        turns.append(scripted.connection.receive_data(b""))
    assert [sum(len(event.delivery_ids) for event in of_type(Disposed, events)) for events in turns] == [30, 30, 10]


def test_a_disposition_without_state_says_nothing() -> None:
    scripted = Scripted()
    link = scripted.with_sender()
    link.send_many(items(3))
    assert scripted.say(Disposition(role=True, first=0, last=2, settled=False)) == []
    assert len(link.outbound.unsettled) == 3
