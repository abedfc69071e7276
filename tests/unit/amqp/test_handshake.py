"""Protocol headers and SASL."""

from __future__ import annotations

import pytest

from partibus.amqp import AmqpError, Anonymous, Closed, Connection, Event, Limits, Opened, Plain, PlainLogin, UsageError
from partibus.amqp.codec.composite import symbols
from partibus.amqp.codec.performatives import Open, SaslInit, SaslMechanisms, SaslOutcome
from partibus.amqp.codec.types import Array
from partibus.amqp.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER, frame
from tests.unit.amqp.peers import Joined, of_type, read_frames

OPEN = frame(0, Open(container_id="client"))


def init(mechanism: str, response: bytes | None = None) -> bytes:
    return frame(0, SaslInit(mechanism=mechanism, initial_response=response), SASL_FRAME)


def closed_with(events: list[Event]) -> AmqpError:
    (event,) = of_type(Closed, events)
    assert not event.by_peer
    assert event.error is not None
    return event.error


@pytest.mark.parametrize("mechanism", ["ANONYMOUS", "MSSBCBS"])
@pytest.mark.parametrize("response", [None, b"", b"\x00RootManageSharedAccessKey"])
def test_anonymous_client_is_let_in_at_once(mechanism: str, response: bytes | None) -> None:
    server = Connection(server=True)
    server.receive_data(SASL_HEADER)
    said = server.data_to_send()
    assert said.startswith(SASL_HEADER)
    (offer,) = read_frames(said)
    assert offer.kind == SASL_FRAME
    assert isinstance(offer.body, SaslMechanisms)
    assert symbols(offer.body.sasl_server_mechanisms) == ["MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL"]
    server.receive_data(init(mechanism, response))
    (outcome,) = read_frames(server.data_to_send())
    assert outcome.body == SaslOutcome(code=0)


def test_client_may_send_everything_before_our_first_byte() -> None:
    server = Connection(server=True)
    events = server.receive_data(SASL_HEADER + init("ANONYMOUS") + AMQP_HEADER + OPEN)
    assert [type(event) for event in events] == [Opened]
    server.open("server")
    said = server.data_to_send()
    assert [type(heard.body) for heard in read_frames(said)] == [SaslMechanisms, SaslOutcome, Open]
    assert said.count(AMQP_HEADER) == 1


def test_client_without_sasl_is_anonymous() -> None:
    server = Connection(server=True)
    events = server.receive_data(AMQP_HEADER + OPEN)
    assert of_type(Opened, events)
    assert server.data_to_send() == AMQP_HEADER


def test_plain_login_waits_for_the_verdict_and_keeps_what_was_sent_ahead() -> None:
    server = Connection(server=True)
    login = server.receive_data(SASL_HEADER + init("PLAIN", b"authz\0na\xc3\xafve\0se\x20cret") + AMQP_HEADER)
    assert login == [PlainLogin("na\u00efve", "se cret")]
    assert server.receive_data(OPEN) == []
    assert SaslOutcome(code=0) not in [heard.body for heard in read_frames(server.data_to_send())]
    assert [type(event) for event in server.answer_login(True)] == [Opened]
    assert [heard.body for heard in read_frames(server.data_to_send())] == [SaslOutcome(code=0)]


def test_refused_login_gets_the_outcome_and_ends() -> None:
    server = Connection(server=True)
    server.receive_data(SASL_HEADER + init("PLAIN", b"\0name\0wrong"))
    server.data_to_send()
    assert closed_with(server.answer_login(False)).condition == "amqp:unauthorized-access"
    (outcome,) = read_frames(server.data_to_send())
    assert outcome.body == SaslOutcome(code=1)
    assert server.is_closed


@pytest.mark.parametrize("response", [None, b"", b"name\0password", b"\0\0\0\0", b"\0\xff\0x"])
def test_malformed_plain_response_ends_the_connection(response: bytes | None) -> None:
    server = Connection(server=True)
    events = server.receive_data(SASL_HEADER + init("PLAIN", response))
    assert closed_with(events).condition == "amqp:decode-error"


@pytest.mark.parametrize("mechanism", ["EXTERNAL", "SCRAM-SHA-256"])
def test_other_mechanisms_fail(mechanism: str) -> None:
    server = Connection(server=True)
    events = server.receive_data(SASL_HEADER + init(mechanism))
    assert mechanism in str(closed_with(events))
    assert read_frames(server.data_to_send())[-1].body == SaslOutcome(code=1)


@pytest.mark.parametrize(
    ("hello", "answer"),
    [
        (b"GET / HTTP/1.1\r\n", SASL_HEADER),
        (b"\x16\x03\x01\x02\x00", SASL_HEADER),
        (b"AMQP\x00\x00\x09\x01", SASL_HEADER),
        (b"AMQP\x02\x01\x00\x00", SASL_HEADER),
        (b"G", SASL_HEADER),
    ],
)
def test_unknown_header_is_answered_with_a_supported_one(hello: bytes, answer: bytes) -> None:
    server = Connection(server=True)
    assert closed_with(server.receive_data(hello)).condition == "amqp:connection:framing-error"
    assert server.data_to_send() == answer
    assert server.is_closed
    assert server.receive_data(b"more") == []


def test_sasl_twice_is_refused() -> None:
    server = Connection(server=True)
    events = server.receive_data(SASL_HEADER + init("ANONYMOUS") + SASL_HEADER)
    assert closed_with(events).condition == "amqp:connection:framing-error"


@pytest.mark.parametrize(
    "data",
    [
        frame(0, SaslOutcome(code=0), SASL_FRAME),
        OPEN,
        b"\x00\x00\x00\x08\x02\x01\x00\x00",
        b"\x7f\xff\xff\xff\x02\x01\x00\x00",
        b"\x00\x00\x00\x0c\x02\x01\x00\x00\x00\x53\x41\x40",
    ],
)
def test_anything_else_than_init_ends_the_connection(data: bytes) -> None:
    server = Connection(server=True)
    closed_with(server.receive_data(SASL_HEADER + data))


def test_bytes_ahead_of_a_verdict_are_bounded() -> None:
    server = Connection(server=True, limits=Limits(max_frame_size=512))
    server.receive_data(SASL_HEADER + init("PLAIN", b"\0n\0p"))
    assert server.receive_data(bytes(512)) == []
    assert "before the login was answered" in str(closed_with(server.receive_data(b"x")))


def test_verdict_out_of_place_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no login waits"):
        Connection(server=True).answer_login(True)
    with pytest.raises(UsageError, match="a client has no login"):
        Connection(server=False).answer_login(True)
    with pytest.raises(UsageError, match="belongs to a client"):
        Connection(server=True, login=Anonymous())


@pytest.mark.parametrize("login", [None, Anonymous()])
def test_client_gets_through_without_a_password(login: Anonymous | None) -> None:
    client = Connection(server=False, login=login)
    client.open("client")
    assert client.data_to_send() == (SASL_HEADER if login else AMQP_HEADER)
    joined = Joined(login=login)
    joined.session()
    assert joined.client.peer is not None
    assert joined.client.peer.container_id == "server"


@pytest.mark.parametrize("accepted", [True, False])
def test_client_logs_in_with_name_and_password(accepted: bool) -> None:
    client, server = Connection(server=False, login=Plain("name", "secret")), Connection(server=True)
    client.open("client")
    assert client.data_to_send() == SASL_HEADER
    server.receive_data(SASL_HEADER)
    client.receive_data(server.data_to_send())
    assert server.receive_data(client.data_to_send()) == [PlainLogin("name", "secret")]
    server.answer_login(accepted)
    events = client.receive_data(server.data_to_send())
    if accepted:
        assert events == []
        server.receive_data(client.data_to_send())
        client.receive_data(server.data_to_send())
        assert of_type(Opened, server.receive_data(client.data_to_send()))
    else:
        assert closed_with(events).condition == "amqp:unauthorized-access"


def test_client_says_which_mechanism_is_missing() -> None:
    client = Connection(server=False, login=Plain("name", "secret"))
    offer = frame(0, SaslMechanisms(sasl_server_mechanisms=Array.of_symbols(["GSSAPI"])), SASL_FRAME)
    error = closed_with(client.receive_data(SASL_HEADER + offer))
    assert str(error) == "amqp:not-implemented: the server offers GSSAPI, not PLAIN"


def test_client_refuses_frames_out_of_turn() -> None:
    client = Connection(server=False, login=Anonymous())
    error = closed_with(client.receive_data(SASL_HEADER + frame(0, SaslOutcome(code=0), SASL_FRAME)))
    assert "SaslOutcome came; we expect sasl-mechanisms" in str(error)


def test_client_refuses_a_server_that_answers_with_another_header() -> None:
    client = Connection(server=False, login=Anonymous())
    assert closed_with(client.receive_data(AMQP_HEADER)).condition == "amqp:connection:framing-error"
