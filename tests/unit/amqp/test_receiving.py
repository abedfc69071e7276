"""Transfers that arrive: runs, frames of one delivery, credit, windows, settling."""

from __future__ import annotations

from typing import Any

import pytest

from partibus.amqp import (
    ACCEPTED,
    RELEASED,
    AmqpError,
    Closed,
    Deliveries,
    Disposed,
    Drained,
    Limits,
    Modified,
    Receiver,
    Rejected,
    Session,
    SessionClosed,
    TransactionalState,
)
from partibus.amqp.codec.performatives import Disposition, Flow
from tests.unit.amqp.peers import Scripted, deliveries, of_type, transfer


def receive(scripted: Scripted, *frames: bytes) -> list[Any]:
    return list(scripted.connection.receive_data(b"".join(frames)))


def numbered(count: int, first: int = 0, **fields: Any) -> list[bytes]:
    return [transfer(b"%d" % n, delivery_id=n, delivery_tag=b"t%d" % n, **fields) for n in range(first, first + count)]


def test_run_of_transfers_on_a_link_is_one_event() -> None:
    scripted = Scripted()
    link = scripted.with_receiver(credit=10)
    (event,) = receive(scripted, *numbered(4))
    assert isinstance(event, Deliveries)
    assert event.link is link
    assert [(d.delivery_id, d.tag, d.payload) for d in event.deliveries] == [
        (n, b"t%d" % n, b"%d" % n) for n in range(4)
    ]
    assert all((d.link, d.message_format, d.settled, d.state) == (link, 0, False, None) for d in event.deliveries)
    assert link.credit == 6
    assert link.delivery_count == 4


def test_another_link_begins_another_event() -> None:
    scripted = Scripted()
    first = scripted.with_receiver()
    second = scripted.attach_peer_sender(1, "second")
    second.accept()
    events = receive(scripted, *numbered(2), *numbered(2, 2, handle=1), *numbered(1, 4))
    assert [(event.link, len(event.deliveries)) for event in events] == [(first, 2), (second, 2), (first, 1)]


def test_fields_of_a_delivery_are_handed_on() -> None:
    scripted = Scripted()
    scripted.with_receiver()
    state = TransactionalState(txn_id=b"txn")
    (event,) = receive(scripted, transfer(b"", message_format=0x80013700, settled=True, state=state))
    (delivery,) = event.deliveries
    assert (delivery.message_format, delivery.settled, delivery.state) == (0x80013700, True, state)
    assert delivery.payload == b""


def test_sender_may_ignore_credit() -> None:
    """Traps 17 and 26: one client sends whether it has credit or not."""
    scripted = Scripted()
    link = scripted.with_receiver(credit=1)
    assert len(deliveries(receive(scripted, *numbered(5)))) == 5
    assert link.credit == 0
    assert scripted.heard() == []


LATER_FRAMES: list[dict[str, Any]] = [
    {"delivery_id": None, "delivery_tag": None, "message_format": None},
    {"delivery_id": 0, "delivery_tag": b"tag", "message_format": 7},
]


@pytest.mark.parametrize("later", LATER_FRAMES, ids=["omitted", "repeated"])
def test_delivery_in_several_frames_is_put_together(later: dict[str, Any]) -> None:
    scripted = Scripted()
    link = scripted.with_receiver(credit=10)
    assert receive(scripted, transfer(b"one ", more=True, message_format=7)) == []
    assert receive(scripted, transfer(b"two ", more=True, **later)) == []
    (event,) = receive(scripted, transfer(b"three", **later), *numbered(1, 1))
    assert [d.payload for d in event.deliveries] == [b"one two three", b"1"]
    assert event.deliveries[0].message_format == 7
    assert (link.credit, link.delivery_count) == (8, 2)
    assert scripted.connection.partial_bytes == 0


def test_deliveries_of_two_links_may_interleave() -> None:
    scripted = Scripted()
    scripted.with_receiver()
    second = scripted.attach_peer_sender(1, "second")
    second.accept()
    second.grant(5)
    events = receive(
        scripted,
        transfer(b"a", more=True),
        transfer(b"b", handle=1, delivery_id=1, more=True),
        transfer(b"A", delivery_id=None, delivery_tag=None),
        transfer(b"B", handle=1, delivery_id=None, delivery_tag=None),
    )
    assert [d.payload for d in deliveries(events)] == [b"aA", b"bB"]


def test_aborted_delivery_is_forgotten() -> None:
    scripted = Scripted()
    scripted.with_receiver()
    events = receive(scripted, transfer(b"half", more=True), transfer(b"", aborted=True), *numbered(1, 1))
    assert [d.payload for d in deliveries(events)] == [b"1"]
    assert scripted.connection.partial_bytes == 0
    assert deliveries(receive(scripted, transfer(b"all at once", delivery_id=2, aborted=True))) == []
    assert len(deliveries(receive(scripted, *numbered(1, 3)))) == 1


def test_settled_on_any_frame_settles_the_delivery() -> None:
    scripted = Scripted()
    link = scripted.with_receiver()
    events = receive(scripted, transfer(b"a", more=True), transfer(b"b", settled=True))
    (delivery,) = deliveries(events)
    assert delivery.settled
    link.settle_many([delivery])
    assert scripted.heard() == []


@pytest.mark.parametrize("frames", [1, 3])
def test_oversize_delivery_is_rejected_and_the_link_lives_on(frames: int) -> None:
    scripted = Scripted()
    scripted.open()
    scripted.begin()
    link = scripted.attach_peer_sender()
    link.accept(max_message_size=1000)
    scripted.heard()
    last = frames - 1
    events = [receive(scripted, transfer(bytes(600 if last else 1001), more=n < last)) for n in range(frames)]
    assert events == [[]] * last + [[Deliveries(link, [])]]
    assert scripted.connection.partial_bytes == 0
    (body,) = scripted.heard_bodies()
    assert isinstance(body, Disposition)
    assert (body.role, body.first, body.last, body.settled) == (True, 0, 0, True)
    assert isinstance(body.state, Rejected)
    assert body.state.error is not None
    assert body.state.error.condition == "amqp:link:message-size-exceeded"
    assert "1000 bytes" in str(body.state.error)
    assert len(deliveries(receive(scripted, transfer(bytes(1000), delivery_id=1)))) == 1


def test_oversize_delivery_that_came_settled_vanishes() -> None:
    scripted = Scripted()
    link = scripted.with_receiver()
    link.taken_bytes_max = 10
    assert deliveries(receive(scripted, transfer(bytes(11), settled=True))) == []
    assert scripted.heard() == []


def test_incomplete_deliveries_are_bounded_over_all_links() -> None:
    scripted = Scripted(limits=Limits(partial_bytes_max=1000, max_message_size=1000))
    scripted.with_receiver()
    second = scripted.attach_peer_sender(1, "second")
    second.accept()
    assert receive(scripted, transfer(bytes(600), more=True)) == []
    (event,) = receive(scripted, transfer(bytes(600), handle=1, delivery_id=1, more=True))
    assert isinstance(event, Closed)
    assert event.error is not None
    assert event.error.condition == "amqp:resource-limit-exceeded"
    assert scripted.connection.partial_bytes == 0


def test_bytes_of_a_link_that_goes_away_half_way_are_given_back() -> None:
    scripted = Scripted()
    link = scripted.with_receiver()
    receive(scripted, transfer(bytes(600), more=True))
    assert scripted.connection.partial_bytes == 600
    link.detach()
    assert scripted.connection.partial_bytes == 0
    assert receive(scripted, transfer(bytes(600), delivery_id=None, delivery_tag=None), *numbered(2, 1)) == []


@pytest.mark.parametrize(
    ("frames", "condition"),
    [
        ([transfer(handle=9)], "amqp:session:unattached-handle"),
        ([transfer(delivery_id=None)], "amqp:invalid-field"),
        ([transfer(delivery_tag=None)], "amqp:invalid-field"),
        ([transfer(delivery_tag=None, more=True)], "amqp:invalid-field"),
        ([transfer(more=True), transfer(delivery_id=1)], "amqp:invalid-field"),
    ],
)
def test_broken_rule_ends_the_session_only(frames: list[bytes], condition: str) -> None:
    scripted = Scripted()
    link = scripted.with_receiver()
    (event,) = receive(scripted, *frames, *numbered(3, 5))
    assert isinstance(event, SessionClosed)
    assert (event.session, event.by_peer) == (link.session, False)
    assert event.error is not None
    assert event.error.condition == condition
    assert not scripted.connection.is_closed


def test_transfer_on_our_sender_or_before_the_answer_ends_the_session() -> None:
    for accept in (True, False):
        scripted = Scripted()
        scripted.open()
        scripted.begin()
        link = scripted.attach_peer_receiver() if accept else scripted.attach_peer_sender()
        if accept:
            link.accept()
        assert of_type(SessionClosed, receive(scripted, transfer()))


# -- settling ----------------------------------------------------------------------------------------------


def settled(scripted: Scripted, link: Receiver, ids: list[int], state: Any = ACCEPTED) -> list[tuple[int, int]]:
    """Settle these deliveries; returns the ranges that went out."""
    chosen = [link.inbound.unsettled[number] for number in ids if number in link.inbound.unsettled]
    link.settle_many(chosen, state)
    bodies = scripted.heard_bodies()
    assert all(isinstance(body, Disposition) and body.role and body.settled for body in bodies)
    assert all(body.state == state for body in bodies)
    return [(body.first, body.last) for body in bodies]


@pytest.mark.parametrize(
    ("ids", "ranges"),
    [
        ([0], [(0, 0)]),
        ([0, 1, 2, 3], [(0, 3)]),
        ([0, 1, 3, 4, 6], [(0, 1), (3, 4), (6, 6)]),
        ([3, 2, 1], [(3, 3), (2, 2), (1, 1)]),
        ([], []),
    ],
)
@pytest.mark.parametrize("state", [ACCEPTED, RELEASED, Rejected(AmqpError("amqp:not-allowed", "x"))])
def test_contiguous_deliveries_are_settled_in_one_frame(
    ids: list[int], ranges: list[tuple[int, int]], state: Any
) -> None:
    scripted = Scripted()
    link = scripted.with_receiver()
    receive(scripted, *numbered(8))
    assert settled(scripted, link, ids, state) == ranges


def test_range_goes_across_the_wrap() -> None:
    scripted = Scripted()
    link = scripted.with_receiver()
    ids = [2**32 - 2, 2**32 - 1, 0, 1]
    events = receive(scripted, *(transfer(delivery_id=n) for n in ids))
    link.settle_many(deliveries(events))
    (body,) = scripted.heard_bodies()
    assert (body.first, body.last) == (2**32 - 2, 1)


def test_settling_again_says_nothing() -> None:
    scripted = Scripted()
    link = scripted.with_receiver()
    arrived = deliveries(receive(scripted, *numbered(2)))
    link.settle_many(arrived)
    scripted.heard()
    link.settle_many(arrived, Modified(True))
    assert scripted.heard() == []


def test_settling_after_the_link_or_session_has_gone_says_nothing() -> None:
    scripted = Scripted()
    link = scripted.with_receiver()
    arrived = deliveries(receive(scripted, *numbered(2)))
    link.detach()
    scripted.heard()
    link.settle_many(arrived)
    assert scripted.heard() == []
    link.session.end()
    scripted.heard()
    link.settle_many(arrived)
    assert scripted.heard() == []


def test_settling_second_waits_for_the_sender() -> None:
    scripted = Scripted()
    link = scripted.with_receiver()
    arrived = deliveries(receive(scripted, *numbered(3)))
    link.settle_many(arrived, ACCEPTED, settled=False)
    (body,) = scripted.heard_bodies()
    assert (body.first, body.last, body.settled) == (0, 2, False)
    (event,) = scripted.say(Disposition(role=False, first=0, last=1, settled=True, state=ACCEPTED))
    assert event == Disposed(link, list(arrived[:2]), [0, 1], ACCEPTED, True)
    assert list(link.inbound.unsettled) == [2]


def test_disposition_for_what_we_do_not_hold_is_passed_over() -> None:
    scripted = Scripted()
    link = scripted.with_receiver()
    receive(scripted, *numbered(2))
    assert scripted.say(Disposition(role=False, first=5, settled=True)) == []
    (event,) = scripted.say(Disposition(role=False, first=1, last=9, settled=False, state=RELEASED))
    assert isinstance(event, Disposed)
    assert event.delivery_ids == [1]
    assert sorted(link.inbound.unsettled) == [0, 1]


def test_run_goes_on_after_a_delivery_in_several_frames() -> None:
    scripted = Scripted()
    scripted.with_receiver()
    frames = [*numbered(1), transfer(b"a", delivery_id=1, more=True), transfer(b"b", delivery_id=1), *numbered(1, 2)]
    (event,) = receive(scripted, *frames)
    assert [d.payload for d in event.deliveries] == [b"0", b"ab", b"2"]


# -- flow --------------------------------------------------------------------------------------------------


def test_grant_states_credit_and_window() -> None:
    """Trap 19: next-incoming-id is in every flow."""
    scripted = Scripted()
    scripted.open()
    scripted.begin(next_outgoing_id=41)
    link = scripted.attach_peer_sender(initial_delivery_count=2**32 - 1)
    link.accept()
    receive(scripted, transfer())
    scripted.heard()
    link.grant(10)
    link.grant(10)
    (flow,) = scripted.heard_bodies()
    assert flow == Flow(
        next_incoming_id=42,
        incoming_window=5000,
        next_outgoing_id=0,
        outgoing_window=5000,
        handle=0,
        delivery_count=0,
        link_credit=10,
    )
    link.grant(3)
    assert [body.link_credit for body in scripted.heard_bodies()] == [3]


def test_window_is_opened_again_when_half_of_it_is_used() -> None:
    """Trap 19 again: also the flow that belongs to no link has next-incoming-id."""
    scripted = Scripted(limits=Limits(incoming_window=10))
    scripted.with_receiver()
    receive(scripted, *numbered(4))
    assert scripted.heard() == []
    receive(scripted, *numbered(1, 4))
    (flow,) = scripted.heard_bodies()
    assert (flow.handle, flow.next_incoming_id, flow.incoming_window) == (None, 5, 10)


def test_held_window_runs_dry_until_it_is_released() -> None:
    scripted = Scripted(limits=Limits(incoming_window=10))
    link = scripted.with_receiver()
    session = link.session
    assert isinstance(session, Session)
    session.hold_window()
    receive(scripted, *numbered(9))
    assert scripted.heard() == []
    link.grant(50)
    (flow,) = scripted.heard_bodies()
    assert (flow.incoming_window, flow.link_credit) == (1, 50)
    assert len(deliveries(receive(scripted, *numbered(3, 9)))) == 3
    session.release_window()
    (flow,) = scripted.heard_bodies()
    assert (flow.next_incoming_id, flow.incoming_window) == (12, 10)


def test_too_many_unsettled_deliveries_hold_the_window() -> None:
    scripted = Scripted(limits=Limits(incoming_window=10, max_unsettled=8))
    link = scripted.with_receiver()
    arrived = deliveries(receive(scripted, *numbered(8)))
    assert [flow.next_incoming_id for flow in scripted.heard_bodies()] == [5]
    arrived += deliveries(receive(scripted, *numbered(7, 8)))
    assert scripted.heard() == []
    link.settle_many(arrived)
    disposition, flow = scripted.heard_bodies()
    assert isinstance(disposition, Disposition)
    assert (flow.next_incoming_id, flow.incoming_window) == (15, 10)


def test_flows_of_a_sender_are_ignored() -> None:
    """Trap 17: one client sends them with made-up numbers."""
    scripted = Scripted()
    link = scripted.with_receiver(credit=10)
    assert scripted.credit(10_000, delivery_count=77) == []
    assert (link.credit, link.delivery_count) == (10, 0)


def test_echo_is_answered_with_the_state() -> None:
    scripted = Scripted()
    scripted.with_receiver(credit=10)
    flow = Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1, echo=True)
    assert scripted.say(flow) == []
    (answer,) = scripted.heard_bodies()
    assert (answer.handle, answer.next_incoming_id, answer.echo) == (None, 0, False)
    scripted.say(Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1, echo=True, handle=0))
    (answer,) = scripted.heard_bodies()
    assert (answer.handle, answer.link_credit) == (0, 10)


def test_flow_for_an_unknown_handle_ends_the_session() -> None:
    scripted = Scripted()
    scripted.with_receiver()
    assert of_type(SessionClosed, scripted.credit(1, handle=9))


def test_flow_for_a_link_that_we_have_detached_is_ignored() -> None:
    scripted = Scripted()
    link = scripted.with_receiver(credit=10)
    link.detach()
    scripted.heard()
    assert scripted.credit(5, echo=True) == []
    assert scripted.heard() == []


def test_drain_ends_when_the_sender_has_used_the_credit_up() -> None:
    scripted = Scripted()
    link = scripted.with_receiver(credit=10)
    link.drain()
    (flow,) = scripted.heard_bodies()
    assert (flow.drain, flow.link_credit) == (True, 10)
    assert of_type(Drained, scripted.credit(8, delivery_count=2)) == []
    receive(scripted, *numbered(2))
    assert scripted.credit(0, delivery_count=10, drain=True) == [Drained(link)]
    assert (link.credit, link.delivery_count) == (0, 10)
    link.grant(5)
    assert [flow.link_credit for flow in scripted.heard_bodies()] == [5]


def test_drain_may_lower_the_credit_at_once() -> None:
    scripted = Scripted()
    link = scripted.with_receiver(credit=10)
    link.drain(0)
    (flow,) = scripted.heard_bodies()
    assert (flow.drain, flow.link_credit) == (True, 0)


def test_empty_parts_of_a_delivery_cost_nothing() -> None:
    scripted = Scripted()
    link = scripted.with_receiver()
    for _ in range(100):
        scripted.connection.receive_data(transfer(b"", more=True))
    assert link.partial is not None
    assert link.partial.chunks == []
    (delivery,) = deliveries(scripted.connection.receive_data(transfer(b"payload")))
    assert delivery.payload == b"payload"


def test_unreported_deliveries_let_the_owner_look_at_the_credit_once_in_a_run() -> None:
    scripted = Scripted()
    link = scripted.with_receiver()
    link.grant(10)
    link.taken_bytes_max = 10
    nothing = [Deliveries(link, [])]
    assert receive(scripted, transfer(b"half", more=True)) == []
    assert receive(scripted, transfer(b"", aborted=True)) == nothing
    assert receive(scripted, *[transfer(bytes(11), delivery_id=number) for number in (1, 2)]) == nothing
    (run,) = receive(scripted, transfer(bytes(11), delivery_id=3), transfer(b"one", delivery_id=4))
    assert [delivery.delivery_id for delivery in run.deliveries] == [4]
    assert link.credit == 5
