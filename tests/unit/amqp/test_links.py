"""Attach and detach: who asks, who answers, and what each answer looks like."""

from __future__ import annotations

import pytest

from partibus.amqp import (
    AmqpError,
    Attached,
    CreditChanged,
    Detached,
    Limits,
    Receiver,
    Role,
    Sender,
    SessionClosed,
    Source,
    Target,
    UsageError,
)
from partibus.amqp.codec.performatives import Attach, Detach, End, Flow
from partibus.amqp.codec.types import Described, Symbol, ULong
from partibus.amqp.link import Link
from tests.unit.amqp.peers import Joined, Scripted, of_type

NOT_FOUND = AmqpError("amqp:not-found", "The messaging entity 'q' could not be found.")


def on_session() -> Scripted:
    scripted = Scripted()
    scripted.open()
    scripted.begin()
    return scripted


def answer_to(link: Link, scripted: Scripted) -> Attach:
    (body,) = scripted.heard_bodies()
    assert isinstance(body, Attach)
    assert body.name == link.name
    assert body.role is link.role.value
    return body


def test_peer_receiver_becomes_our_sender_and_is_echoed() -> None:
    """Traps 7, 8, 9 and 16: delivery-count 0, source and target as they came, a max-message-size."""
    scripted = on_session()
    source = Source("amqps://host/q", filter={Symbol("com.microsoft:session-filter"): "session-1"})
    link = scripted.attach_peer_receiver(
        5, source=source, target=Target("receiver-link-1"), snd_settle_mode=1, properties={Symbol("p"): 1}
    )
    assert isinstance(link, Sender)
    assert (link.role, link.name, link.awaits_answer, link.is_open) == (Role.SENDER, "out", True, False)
    assert (link.source, link.target, link.snd_settle_mode) == (source, Target("receiver-link-1"), 1)
    assert link.properties == {"p": 1}
    link.accept(max_message_size=262_144, properties={Symbol("com.microsoft:locked-until-utc"): 5})
    answer = answer_to(link, scripted)
    assert (answer.source, answer.target) == (source, Target("receiver-link-1"))
    assert (answer.snd_settle_mode, answer.rcv_settle_mode) == (1, 0)
    assert answer.initial_delivery_count == 0
    assert answer.max_message_size == 262_144
    assert answer.properties == {"com.microsoft:locked-until-utc": 5}
    assert link.is_open


def test_peer_sender_becomes_our_receiver() -> None:
    """Trap 16; a receiver states no delivery-count."""
    scripted = on_session()
    link = scripted.attach_peer_sender(0, initial_delivery_count=7, max_message_size=0)
    assert isinstance(link, Receiver)
    assert (link.delivery_count, link.remote_max_message_size) == (7, 0)
    link.accept()
    answer = answer_to(link, scripted)
    assert answer.initial_delivery_count is None
    assert answer.max_message_size == Limits().max_message_size
    assert (answer.snd_settle_mode, answer.rcv_settle_mode) == (2, 0)


def test_accept_may_replace_source_and_target() -> None:
    """The session filter comes back with the id that was locked, described if it came described."""
    scripted = on_session()
    name = Symbol("com.microsoft:session-filter")
    link = scripted.attach_peer_receiver(source=Source("q", filter={name: Described(ULong(0x137000000C), None)}))
    assert isinstance(link.source, Source)
    assert link.source.filter is not None
    locked = Source("q", filter={name: Described(ULong(0x137000000C), "session-1")})
    link.accept(source=locked)
    assert answer_to(link, scripted).source == locked
    assert link.source == locked
    other = scripted.attach_peer_receiver(1, "other")
    other.accept(target=Target("elsewhere"))
    assert answer_to(other, scripted).target == Target("elsewhere")


def test_missing_terminus_is_answered_by_an_empty_one() -> None:
    """Trap 8: null would mean refusal."""
    scripted = on_session()
    link = scripted.attach_peer_sender(source=None)
    link.accept()
    answer = answer_to(link, scripted)
    assert (answer.source, answer.target) == (Source(), Target("target"))


def test_attach_may_be_answered_later() -> None:
    scripted = on_session()
    early = scripted.attach_peer_receiver(0, "early")
    late = scripted.attach_peer_receiver(1, "late")
    assert scripted.heard() == []
    late.accept()
    assert answer_to(late, scripted).name == "late"
    early.accept()
    assert answer_to(early, scripted).name == "early"


def test_an_answer_that_comes_when_the_session_has_ended_is_not_sent() -> None:
    """One client closes the connection when it gets one."""
    scripted = on_session()
    accepted, refused = scripted.attach_peer_receiver(0), scripted.attach_peer_receiver(1, name="other")
    scripted.say(End())
    scripted.heard_bodies()
    accepted.accept()
    refused.refuse(NOT_FOUND)
    assert scripted.heard_bodies() == []
    assert not accepted.is_open


def test_credit_that_comes_before_the_answer_holds() -> None:
    scripted = on_session()
    link = scripted.attach_peer_receiver()
    assert scripted.credit(3) == [CreditChanged(link)]
    assert link.send_many([(b"t", b"x", None)]) == 0
    link.accept()
    assert link.credit == 3
    assert link.send_many([(b"t", b"x", None)]) == 1


def test_refused_attach_is_two_frames_back_to_back() -> None:
    scripted = on_session()
    link = scripted.attach_peer_sender()
    link.refuse(NOT_FOUND)
    attach, detach = scripted.heard_bodies()
    assert isinstance(attach, Attach)
    assert (attach.source, attach.target) == (None, None)
    assert attach.initial_delivery_count is None
    assert detach == Detach(handle=attach.handle, closed=True, error=NOT_FOUND)


def test_answer_to_our_detach_is_not_answered() -> None:
    """Trap 1: a second detach for a handle that is free tears the client's connection down."""
    scripted = on_session()
    refused = scripted.attach_peer_sender(0, "refused")
    refused.refuse(NOT_FOUND)
    closed = scripted.attach_peer_receiver(1, "closed")
    closed.accept()
    closed.detach(AmqpError("amqp:link:detach-forced", "idle"))
    scripted.heard()
    for handle, link in ((0, refused), (1, closed)):
        assert scripted.say(Detach(handle=handle, closed=True)) == [Detached(link, None, True, by_peer=False)]
        assert scripted.heard() == []


@pytest.mark.parametrize("closed", [True, False])
def test_detach_of_the_peer_is_answered_once(closed: bool) -> None:
    scripted = on_session()
    link = scripted.attach_peer_sender()
    link.accept()
    scripted.heard()
    assert scripted.say(Detach(handle=0, closed=closed)) == [Detached(link, None, closed, by_peer=True)]
    assert scripted.heard_bodies() == [Detach(handle=0, closed=closed)]
    assert scripted.say(Detach(handle=0, closed=closed)) == []
    assert scripted.heard() == []


def test_detach_before_the_answer_completes_the_attach_first() -> None:
    scripted = on_session()
    link = scripted.attach_peer_receiver()
    assert scripted.say(Detach(handle=0, closed=True)) == [Detached(link, None, True, by_peer=True)]
    attach, detach = scripted.heard_bodies()
    assert isinstance(attach, Attach)
    assert attach.source is None
    assert isinstance(detach, Detach)
    assert not link.awaits_answer


def test_verbs_on_a_link_that_is_gone_do_nothing() -> None:
    scripted = on_session()
    sender, receiver = scripted.attach_peer_receiver(0), scripted.attach_peer_sender(1)
    scripted.say(Detach(handle=0, closed=True), Detach(handle=1, closed=True))
    scripted.heard()
    sender.accept()
    sender.refuse(NOT_FOUND)
    sender.detach()
    sender.drained()
    assert sender.send_many([(b"t", b"x", None)]) == 0
    assert not sender.send(b"t", b"x")
    sender.settle_many([0], None)
    receiver.grant(5)
    receiver.drain()
    receiver.settle_many([])
    assert scripted.heard() == []


def test_accepting_twice_is_a_usage_error() -> None:
    scripted = on_session()
    link = scripted.attach_peer_receiver()
    link.accept()
    with pytest.raises(UsageError, match="link out is open"):
        link.accept()
    with pytest.raises(UsageError, match="link out is open"):
        link.refuse(NOT_FOUND)


def test_handles_of_the_client_are_its_own_business() -> None:
    """Trap 26: handle-max is advertised, not policed; ours start at 0."""
    scripted = on_session()
    link = scripted.attach_peer_sender(4_294_967_295)
    link.accept()
    assert answer_to(link, scripted).handle == 0


def test_links_of_a_connection_are_bounded() -> None:
    scripted = Scripted(limits=Limits(links_max=1))
    scripted.open()
    scripted.begin()
    first = scripted.attach_peer_sender(0, "first")
    assert scripted.say(Attach(name="second", handle=1, role=False, source=Source(), target=Target())) == []
    attach, detach = scripted.heard_bodies()
    assert isinstance(attach, Attach)
    assert isinstance(detach, Detach)
    assert detach.error is not None
    assert detach.error.condition == "amqp:resource-limit-exceeded"
    assert first.awaits_answer


def test_handle_in_use_ends_the_session_only() -> None:
    scripted = on_session()
    other = scripted.begin(channel=1)
    scripted.attach_peer_sender(0, "first")
    (event,) = scripted.say(Attach(name="second", handle=0, role=False))
    assert isinstance(event, SessionClosed)
    assert event.error is not None
    assert event.error.condition == "amqp:session:handle-in-use"
    assert scripted.heard_bodies() == [End(event.error)]
    assert scripted.say(Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1)) == []
    assert scripted.say(End()) == []
    assert scripted.heard() == []
    assert scripted.connection.sessions == [other]


def test_session_that_ends_takes_its_links_along() -> None:
    scripted = on_session()
    link = scripted.attach_peer_sender()
    link.accept()
    scripted.heard()
    error = AmqpError("amqp:internal-error", "stopping")
    link.session.end(error)
    link.session.end()
    assert scripted.heard_bodies() == [End(error)]
    link.grant(5)
    assert scripted.heard() == []
    assert scripted.say(Attach(name="late", handle=9, role=True)) == []
    (event,) = scripted.say(End())
    assert event == SessionClosed(link.session, None, by_peer=False)
    assert scripted.heard() == []


def test_client_attaches_and_learns_the_answer() -> None:
    joined = Joined()
    sender, receiver = joined.client_sends(credit=10)
    assert of_type(Attached, joined.client_events) == [Attached(sender)]
    assert sender.remote_max_message_size == Limits().max_message_size
    assert (sender.credit, receiver.credit) == (10, 10)
    assert not sender.awaits_answer


@pytest.mark.parametrize("role", list(Role))
def test_client_learns_the_reason_of_a_refusal(role: Role) -> None:
    joined = Joined()
    session = joined.session()
    attach = session.attach_sender if role is Role.SENDER else session.attach_receiver
    link = attach("link", source=Source("a"), target=Target("b"))
    (request,) = of_type(Attached, joined.server.receive_data(joined.client.data_to_send()))
    request.link.refuse(NOT_FOUND)
    joined.run()
    assert of_type(Attached, joined.client_events) == []
    assert of_type(Detached, joined.client_events) == [Detached(link, NOT_FOUND, True, by_peer=True)]
    assert of_type(Detached, joined.server_events) == [Detached(request.link, None, True, by_peer=False)]


def test_client_may_detach_before_the_answer_is_here() -> None:
    joined = Joined()
    link = joined.session().attach_sender("link", source=Source("a"), target=Target("b"))
    link.detach()
    joined.run()
    assert of_type(Attached, joined.client_events) == []
    assert of_type(Detached, joined.client_events) == [Detached(link, None, True, by_peer=False)]
    assert link.session.links == []
    assert of_type(SessionClosed, joined.client_events) == []


def test_handle_is_used_again_after_detach() -> None:
    joined = Joined()
    session = joined.session()
    for name in ("one", "two"):
        link = session.attach_sender(name, source=Source("a"), target=Target("b"))
        joined.run()
        assert link.handle == 0
        link.detach()
        joined.run()
    assert joined.server.sessions[0].links == []
