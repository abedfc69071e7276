"""The exact bytes of what we send. A change here is a change that every client sees.

Written by hand from the standard.
"""

from __future__ import annotations

from partibus.amqp import ACCEPTED, AmqpError, Connection, Limits, Receiver, Rejected, Sender, Source, Target
from partibus.amqp.codec.performatives import Attach, Begin, Detach, Disposition, Flow, Open, SaslInit
from partibus.amqp.frames import AMQP_HEADER, EMPTY_FRAME, SASL_FRAME, SASL_HEADER, frame
from tests.unit.amqp.peers import Scripted, deliveries, transfer
from tests.wire.spelling import spelled

LIMITS = Limits(max_frame_size=65536, channel_max=4999, handle_max=255, idle_timeout_ms=240_000)


def said(scripted: Scripted) -> bytes:
    return scripted.connection.data_to_send()


def opened() -> Scripted:
    scripted = Scripted(limits=LIMITS)
    scripted.open()
    scripted.begin(channel=1)
    return scripted


def receiver() -> tuple[Scripted, Receiver]:
    scripted = opened()
    link = scripted.attach_peer_sender(1, channel=1)
    link.accept()
    said(scripted)
    return scripted, link


def sender() -> tuple[Scripted, Sender]:
    scripted = opened()
    link = scripted.attach_peer_receiver(1, channel=1)
    link.accept()
    scripted.say(
        Flow(next_incoming_id=0, incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=1, link_credit=9),
        channel=1,
    )
    said(scripted)
    return scripted, link


def test_sasl_of_the_server() -> None:
    server = Connection(server=True)
    server.receive_data(SASL_HEADER + frame(0, SaslInit(mechanism="ANONYMOUS"), SASL_FRAME) + AMQP_HEADER)
    assert server.data_to_send() == spelled("""
        'AMQP' 03 01 00 00
        (02 01 0000  00 53 40 c0 <01  e0 <04 a3 <'MSSBCBS'> <'PLAIN'> <'ANONYMOUS'> <'EXTERNAL'>>>)
        (02 01 0000  00 53 44 c0 <02  5000 40>)
        'AMQP' 00 01 00 00
    """)


def test_open() -> None:
    scripted = Scripted(limits=LIMITS)
    scripted.connection.receive_data(AMQP_HEADER)
    scripted.say(Open(container_id="peer"))
    said(scripted)
    scripted.connection.open("server")
    assert said(scripted) == spelled("""
        (02 00 0000  00 53 10 c0 <0a  a1 <'server'> 40 70 00010000 60 1387 70 0003a980 40 40 40 40 40>)
    """)


def test_begin() -> None:
    scripted = Scripted(limits=LIMITS)
    scripted.open()
    scripted.say(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1), channel=1)
    assert said(scripted) == spelled("""
        (02 00 0000  00 53 11 c0 <08  60 0001 43 70 00001388 70 00001388 52 ff 40 40 40>)
    """)


def test_attach_of_a_sender() -> None:
    """Traps 7, 8, 9 and 16."""
    scripted = opened()
    link = scripted.attach_peer_receiver(1, "l", channel=1, source=Source("q"), target=Target("t"), rcv_settle_mode=1)
    link.accept(max_message_size=262_144)
    assert said(scripted) == spelled("""
        (02 00 0000  00 53 12 c0 <0e
            a1 <'l'> 43 42 5002 5001
            00 53 28 c0 <0b  a1 <'q'> 40 40 40 40 40 40 40 40 40 40>
            00 53 29 c0 <07  a1 <'t'> 40 40 40 40 40 40>
            40 40 43 80 0000000000040000 40 40 40>)
    """)


def test_refused_attach() -> None:
    """The pair of frames, the error with its three fields (trap 3)."""
    scripted = opened()
    scripted.attach_peer_sender(1, "l", channel=1).refuse(AmqpError("amqp:not-found", "no q"))
    assert said(scripted) == spelled("""
        (02 00 0000  00 53 12 c0 <0e  a1 <'l'> 43 41 5002 5000 40 40 40 40 40 80 0000000000100000 40 40 40>)
        (02 00 0000  00 53 16 c0 <03  43 41 00 53 1d c0 <03  a3 <'amqp:not-found'> a1 <'no q'> 40>>)
    """)


def test_flow() -> None:
    """Trap 19."""
    scripted, link = receiver()
    link.grant(1000)
    assert said(scripted) == spelled("""
        (02 00 0000  00 53 13 c0 <0b  43 70 00001388 43 70 00001388 43 43 70 000003e8 40 42 42 40>)
    """)


def test_drained() -> None:
    """Trap 18."""
    scripted, link = sender()
    link.drained()
    assert said(scripted) == spelled("""
        (02 00 0000  00 53 13 c0 <0b  43 70 00001388 43 70 00001388 43 52 09 43 40 41 42 40>)
    """)


def test_transfer() -> None:
    scripted, link = sender()
    link.send_many([(b"0123456789abcdef", b"payload", None)])
    link.send_many([(b"1", b"", None)], settled=True)
    assert said(scripted) == spelled("""
        (02 00 0000  00 53 14 c0 <0b  43 70 00000000 a0 <'0123456789abcdef'> 43 42 40 40 40 40 40 40>  'payload')
        (02 00 0000  00 53 14 c0 <0b  43 70 00000001 a0 <'1'> 43 41 40 40 40 40 40 40>)
    """)


def test_disposition_of_the_receiver() -> None:
    scripted, link = receiver()
    scripted.connection.receive_data(b"".join(transfer(channel=1, handle=1, delivery_id=n) for n in (300, 301, 302)))
    events = scripted.connection.receive_data(transfer(channel=1, handle=1, delivery_id=303))
    last = deliveries(events)[0]
    link.settle_many([link.inbound.unsettled[n] for n in (300, 301)])
    link.settle_many([last], Rejected(AmqpError("amqp:not-allowed")))
    assert said(scripted) == spelled("""
        (02 00 0000  00 53 15 c0 <06  41 70 0000012c 70 0000012d 41 00 53 24 45 40>)
        (02 00 0000  00 53 15 c0 <06  41 70 0000012f 70 0000012f 41
            00 53 25 c0 <01  00 53 1d c0 <03  a3 <'amqp:not-allowed'> 40 40>>  40>)
    """)


def test_disposition_of_the_sender() -> None:
    scripted, link = sender()
    link.send_many([(b"1", b"", None)])
    said(scripted)
    scripted.say(Disposition(role=True, first=0, settled=False, state=ACCEPTED), channel=1)
    link.settle_many([0], ACCEPTED)
    assert said(scripted) == spelled("""
        (02 00 0000  00 53 15 c0 <06  42 70 00000000 70 00000000 41 00 53 24 45 40>)
    """)


def test_detach_end_and_close() -> None:
    scripted, link = receiver()
    scripted.say(Detach(handle=1, closed=True), channel=1)
    link.session.end()
    scripted.connection.close(AmqpError("amqp:connection:forced", "bye"))
    assert said(scripted) == spelled("""
        (02 00 0000  00 53 16 c0 <03  43 41 40>)
        (02 00 0000  00 53 17 c0 <01  40>)
        (02 00 0000  00 53 18 c0 <01  00 53 1d c0 <03  a3 <'amqp:connection:forced'> a1 <'bye'> 40>>)
    """)


def test_empty_frame() -> None:
    """Trap 15."""
    scripted = opened()
    scripted.connection.tick(0)
    said(scripted)
    scripted.connection.tick(15)
    assert said(scripted) == EMPTY_FRAME == spelled("(02 00 0000)")


def test_attach_frame_of_a_client() -> None:
    attach = frame(0, Attach(name="l", handle=0, role=True))
    assert attach == spelled("""
        (02 00 0000  00 53 12 c0 <0e  a1 <'l'> 43 41 5002 5000 40 40 40 40 40 40 40 40 40>)
    """)
