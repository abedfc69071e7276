"""Open, close, frames, channels and errors of the connection."""

from __future__ import annotations

import pytest

from partibus.amqp import (
    ACCEPTED,
    AmqpError,
    Closed,
    Connection,
    Limits,
    Opened,
    SessionClosed,
    SessionOpened,
    UsageError,
)
from partibus.amqp.codec.performatives import Begin, Close, End, Flow, Open, SaslOutcome
from partibus.amqp.codec.types import Symbol
from partibus.amqp.errors import DecodeError
from partibus.amqp.frames import AMQP_HEADER, EMPTY_FRAME, SASL_FRAME, frame
from tests.unit.amqp.peers import Joined, Scripted, deliveries, of_type, read_frames, transfer

BEGIN = Begin(next_outgoing_id=0, incoming_window=10, outgoing_window=10)
FLOW = Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1)


def test_peers_learn_what_the_other_stated() -> None:
    joined = Joined(client_limits=Limits(max_frame_size=1024, idle_timeout_ms=0))
    joined.client.open("client", hostname="namespace.example", properties={Symbol("product"): "p"})
    joined.run()
    peer = joined.server.peer
    assert peer is not None
    assert (peer.container_id, peer.hostname, peer.properties) == ("client", "namespace.example", {"product": "p"})
    assert (peer.max_frame_size, peer.idle_time_out) == (1024, None)
    assert joined.server.max_frame_size_out == 1024
    assert joined.client.max_frame_size_out == 1024
    assert joined.client.peer is not None
    assert joined.client.peer.idle_time_out == 240_000
    assert of_type(Opened, joined.client_events)


def test_null_fields_of_open_mean_no_limit() -> None:
    scripted = Scripted()
    scripted.open()
    assert scripted.connection.max_frame_size_out == Limits().max_frame_size


def test_nothing_leaves_before_our_open() -> None:
    scripted = Scripted()
    events = scripted.connection.receive_data(AMQP_HEADER + frame(0, Open(container_id="p")) + frame(1, BEGIN))
    assert [type(event) for event in events] == [Opened, SessionOpened]
    assert scripted.connection.data_to_send() == AMQP_HEADER
    scripted.connection.open("server")
    bodies = scripted.heard_bodies()
    assert [type(body) for body in bodies] == [Open, Begin]
    assert bodies[1].remote_channel == 1


def test_close_of_the_peer_is_answered_once() -> None:
    scripted = Scripted()
    scripted.open()
    error = AmqpError("amqp:connection:forced", "going away")
    assert scripted.say(Close(error)) == [Closed(error, by_peer=True)]
    assert scripted.heard_bodies() == [Close()]
    assert scripted.connection.is_closed
    assert scripted.say(Close()) == []
    assert scripted.heard() == []


def test_our_close_waits_for_the_answer_and_ignores_the_rest() -> None:
    scripted = Scripted()
    scripted.open()
    scripted.begin()
    error = AmqpError("amqp:connection:forced", "stopping")
    scripted.connection.close(error)
    scripted.connection.close()
    assert scripted.heard_bodies() == [Close(error)]
    assert scripted.say(FLOW, BEGIN) == []
    assert not scripted.connection.is_closed
    assert scripted.say(Close()) == [Closed(None, by_peer=False)]
    assert scripted.connection.is_closed


def test_close_before_open_opens_first() -> None:
    scripted = Scripted()
    scripted.connection.receive_data(AMQP_HEADER)
    scripted.say(Open(container_id="peer"))
    scripted.connection.close(AmqpError("amqp:not-found", "no such namespace"))
    assert [type(body) for body in scripted.heard_bodies()] == [Open, Close]
    scripted.connection.open("too late")
    assert scripted.heard() == []


@pytest.mark.parametrize(
    ("data", "condition"),
    [
        (b"\x00\x00\x00\x07\x02\x00\x00\x00", "amqp:connection:framing-error"),
        (b"\x00\x00\x00\x08\x01\x00\x00\x00", "amqp:connection:framing-error"),
        (b"\x00\x00\x00\x0c\x04\x00\x00\x00\x00\x00\x00\x00", "amqp:connection:framing-error"),
        (b"\x00\x01\x00\x01\x02\x00\x00\x00", "amqp:connection:framing-error"),
        (frame(0, BEGIN, SASL_FRAME), "amqp:connection:framing-error"),
        (b"\x00\x00\x00\x0a\x02\x00\x00\x00\x41\x41", "amqp:decode-error"),
        (b"\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x99\x45", "amqp:decode-error"),
        (b"\x00\x00\x00\x0a\x02\x00\x00\x00\x00\x53", "amqp:decode-error"),
        (frame(0, ACCEPTED), "amqp:decode-error"),
        (frame(0, SaslOutcome(code=0)), "amqp:decode-error"),
        (frame(0, Open(container_id="again")), "amqp:illegal-state"),
        (frame(7, FLOW), "amqp:not-allowed"),
        (frame(7, End()), "amqp:not-allowed"),
        (
            frame(0, Begin(remote_channel=9, next_outgoing_id=0, incoming_window=0, outgoing_window=0)),
            "amqp:not-allowed",
        ),
    ],
)
def test_broken_rule_closes_the_connection_with_its_reason(data: bytes, condition: str) -> None:
    scripted = Scripted()
    scripted.open()
    (event,) = scripted.connection.receive_data(data + frame(0, BEGIN))
    assert isinstance(event, Closed)
    assert not event.by_peer
    assert event.error is not None
    assert event.error.condition == condition
    assert scripted.heard_bodies() == [Close(event.error)]
    assert scripted.connection.is_closed


def test_first_frame_must_be_open() -> None:
    scripted = Scripted()
    scripted.connection.receive_data(AMQP_HEADER)
    (event,) = scripted.say(BEGIN)
    assert isinstance(event, Closed)
    assert [type(body) for body in scripted.heard_bodies()] == [Open, Close]


def test_frame_size_below_the_least_is_refused() -> None:
    scripted = Scripted()
    (event,) = scripted.connection.receive_data(AMQP_HEADER + frame(0, Open(container_id="p", max_frame_size=511)))
    assert isinstance(event, Closed)
    assert event.error is not None
    assert event.error.condition == "amqp:invalid-field"


def test_sessions_of_a_connection_are_bounded_by_number_not_by_channel() -> None:
    """Trap 26: the channel numbers themselves are the client's business."""
    scripted = Scripted(server=True, limits=Limits(channel_max=1))
    scripted.open()
    scripted.begin(channel=65535)
    scripted.begin(channel=7)
    (event,) = scripted.say(BEGIN, channel=0)
    assert isinstance(event, Closed)
    assert event.error is not None
    assert event.error.condition == "amqp:resource-limit-exceeded"


def test_channel_is_free_again_after_the_session_has_ended() -> None:
    scripted = Scripted(limits=Limits(channel_max=0))
    scripted.open()
    for _ in range(3):
        session = scripted.begin()
        assert session.local_channel == 0
        assert scripted.say(End()) == [SessionClosed(session, None, by_peer=True)]
        assert scripted.heard_bodies() == [End()]


def test_begin_on_a_channel_in_use_closes_the_connection() -> None:
    scripted = Scripted()
    scripted.open()
    scripted.begin()
    (event,) = scripted.say(BEGIN)
    assert isinstance(event, Closed)


def test_client_may_not_begin_more_sessions_than_the_peer_takes() -> None:
    joined = Joined(server_limits=Limits(channel_max=0))
    joined.session()
    with pytest.raises(UsageError, match="1 sessions, its most"):
        joined.client.begin()


def test_begin_needs_an_open_connection() -> None:
    with pytest.raises(UsageError, match="open it before"):
        Connection(server=False).begin()


def test_open_twice_is_a_usage_error() -> None:
    client = Connection(server=False)
    client.open("once")
    with pytest.raises(UsageError, match="open sent"):
        client.open("twice")


def test_bytes_buffered_counts_what_waits() -> None:
    client = Connection(server=False)
    assert client.bytes_buffered == len(AMQP_HEADER)
    client.open("client")
    waiting = client.bytes_buffered
    assert client.data_to_send() == AMQP_HEADER
    client.receive_data(AMQP_HEADER)
    assert len(client.data_to_send()) == waiting - len(AMQP_HEADER)
    assert client.bytes_buffered == 0


def test_empty_frames_say_nothing() -> None:
    scripted = Scripted()
    scripted.open()
    assert scripted.connection.receive_data(EMPTY_FRAME * 3) == []
    assert scripted.heard() == []


def test_extended_frame_header_is_passed_over() -> None:
    scripted = Scripted()
    scripted.open()
    plain = frame(0, BEGIN)
    extended = (len(plain) + 4).to_bytes(4) + b"\x03" + plain[5:8] + b"\xff" * 4 + plain[8:]
    assert of_type(SessionOpened, scripted.connection.receive_data(extended))


def test_owner_has_a_slot_of_its_own() -> None:
    scripted = Scripted()
    link = scripted.with_sender()
    for thing in (scripted.connection, link.session, link):
        assert thing.user is None
        thing.user = "mine"
    assert scripted.connection.sessions == [link.session]
    assert link.session.links == [link]


def test_incomplete_frame_is_kept_but_no_more_than_one() -> None:
    scripted = Scripted(limits=Limits(max_frame_size=600))
    scripted.open()
    data = b"\x00\x00\x02\x58\x02\x00\x00\x00" + bytes(591)
    assert scripted.connection.receive_data(data) == []
    assert of_type(Closed, scripted.connection.receive_data(b"\x00"))
    with pytest.raises(DecodeError):
        read_frames(data + b"\x00")


def test_frames_behind_the_first_few_wait_for_the_next_call() -> None:
    scripted = Scripted(limits=Limits(performatives_at_once=2))
    scripted.open()
    begins = b"".join(frame(channel, BEGIN) for channel in range(5))
    opened = []
    for data in (begins + frame(5, BEGIN)[:-1], b"", b"", frame(5, BEGIN)[-1:]):
        events = scripted.connection.receive_data(data)
        opened.append((len(of_type(SessionOpened, events)), scripted.connection.more_to_read))
    assert opened == [(2, True), (2, True), (1, False), (1, False)]


def test_frames_of_any_kind_take_turns() -> None:
    scripted = Scripted(limits=Limits(frames_at_once=4))
    link = scripted.with_receiver()
    sent = b"".join(transfer(delivery_id=n) for n in range(10))
    found = [deliveries(scripted.connection.receive_data(sent + EMPTY_FRAME[:-1]))]
    while scripted.connection.more_to_read:
        found.append(deliveries(scripted.connection.receive_data(b"")))
    assert [len(each) for each in found] == [4, 4, 2]
    assert all(delivery.link is link for each in found for delivery in each)
    assert scripted.connection.receive_data(EMPTY_FRAME[-1:]) == []


@pytest.mark.parametrize("cut", [1, 7, 8, 9, 20])
def test_a_frame_in_two_reads_counts_like_any_other(cut: int) -> None:
    scripted = Scripted(limits=Limits(performatives_at_once=2))
    scripted.open()
    begins = b"".join(frame(channel, BEGIN) for channel in range(4))
    opened = []
    for data in (begins[:cut], begins[cut:], b""):
        events = scripted.connection.receive_data(data)
        opened.append(
            (len(of_type(SessionOpened, events)), scripted.connection.more_to_read, scripted.connection.ends_unread)
        )
    assert opened == [(0, False, False), (2, True, True), (2, False, False)]


def test_a_frame_in_two_reads_may_be_the_only_one_of_a_call() -> None:
    scripted = Scripted(limits=Limits(performatives_at_once=1, frames_at_once=1))
    scripted.open()
    begins = b"".join(frame(channel, BEGIN) for channel in range(2))
    found = [scripted.connection.receive_data(data) for data in (begins[:9], begins[9:], b"")]
    assert [len(of_type(SessionOpened, events)) for events in found] == [0, 1, 1]


def test_nothing_is_read_behind_a_close_in_two_reads() -> None:
    scripted = Scripted()
    scripted.open()
    data = frame(0, Close()) + frame(0, BEGIN)
    assert scripted.connection.receive_data(data[:9]) == []
    (closed,) = scripted.connection.receive_data(data[9:])
    assert isinstance(closed, Closed)
