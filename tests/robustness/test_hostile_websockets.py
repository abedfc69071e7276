"""Clients in websockets that break the rules, do not read, or never say anything: they end only their own connection,
and no buffer grows out of its bounds (the fixture looks)."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from websockets.frames import CloseCode

from partibus.amqp.codec.performatives import Attach, Begin, Close, Open
from partibus.amqp.frames import AMQP_HEADER, SASL_HEADER, frame
from partibus.amqp.section_encoding import encode_data
from partibus.client.messages import OutgoingMessage
from partibus.testing.broker_process import BrokerProcess
from tests.kit.eventually import EVENTUALLY_S
from tests.kit.plain_client import connect
from tests.robustness.raw import MIB, check_serves, transfer
from tests.robustness.websocket import WebsocketPeer


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Serve with TLS, instead of the process of the other files."""
    with BrokerProcess(tmp_path_factory.mktemp("broker"), tls=True) as broker:
        broker.create_queue("alive")
        broker.create_queue("backlog")
        with connect(broker.connection_string, timeout_s=EVENTUALLY_S) as client:
            client.sender("backlog").send([OutgoingMessage(body=bytes(60_000)) for _ in range(2_000)])
        yield broker


@pytest.fixture(params=[False, True], ids=["ws", "wss"])
def tls(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_dialogue_in_frames_of_one_byte(broker: BrokerProcess, tls: bool) -> None:
    with WebsocketPeer(broker, tls=tls) as peer:
        begin = Begin(next_outgoing_id=0, incoming_window=100, outgoing_window=100)
        for byte in AMQP_HEADER + frame(0, Open(container_id="slow")) + frame(0, begin):
            peer.write(bytes([byte]))
        peer.read_until(Begin)


def test_reader_that_never_reads(broker: BrokerProcess, tls: bool) -> None:
    with WebsocketPeer(broker, tls=tls, receive_buffer=4096) as peer:
        peer.open()
        peer.attach("backlog", sending=False)
        peer.credit(1_000_000)
        check_serves(broker)
        # The broker holds a bounded number of bytes for it; the fixture looks at the process.
        assert broker.describe("backlog").messages == 2_000


def test_pings_whose_answers_nobody_reads(broker: BrokerProcess, tls: bool) -> None:
    with WebsocketPeer(broker, tls=tls, receive_buffer=4096) as peer:
        peer.open()
        for _ in range(1_000):
            peer.framed.framing.send_ping(bytes(125))
        pings = b"".join(peer.framed.framing.data_to_send())
        peer.framed.plain.settimeout(1.0)
        taken = 0
        with pytest.raises((TimeoutError, ConnectionError)):  # noqa: PT012
            while taken < 512 * MIB:
                taken += peer.framed.plain.send(memoryview(pings)[taken % len(pings) :])
        # It has stopped reading long before that.
        assert taken < 64 * MIB
        check_serves(broker)


def test_sender_that_ignores_credit(broker: BrokerProcess, tls: bool) -> None:
    """Read it no faster than the stores write, as on TCP."""
    queue = broker.create_queue(f"flooded-{tls}")
    body = encode_data(bytes(60_000))
    with WebsocketPeer(broker, tls=tls) as peer:
        peer.open()
        peer.attach(queue, sending=True)
        peer.read_until(Attach)
        for first in range(0, 1_000, 20):
            peer.write(b"".join(transfer(body, number, settled=True) for number in range(first, first + 20)))
        peer.say(Close())
        peer.read_until(Close)
    assert broker.describe(queue).messages == 1_000


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x81\x84" + bytes(4) + b"AMQP", CloseCode.UNSUPPORTED_DATA),
        (b"\x82\x04AMQP", CloseCode.PROTOCOL_ERROR),
        (b"\x82\xff" + (1 << 40).to_bytes(8), CloseCode.MESSAGE_TOO_BIG),
    ],
    ids=["text", "not masked", "a terabyte"],
)
def test_what_is_no_frame_of_ours(broker: BrokerProcess, tls: bool, data: bytes, code: CloseCode) -> None:
    with WebsocketPeer(broker, tls=tls) as peer:
        peer.open()
        peer.framed.plain.sendall(data)
        assert peer.read_to_the_end() is None
        assert peer.framed.close_code == code


def test_bytes_that_are_no_amqp(broker: BrokerProcess, tls: bool) -> None:
    with WebsocketPeer(broker, tls=tls) as peer:
        peer.write(b"GET / HTTP/1.1\r\n\r\n")
        peer.read_to_the_end()
    with WebsocketPeer(broker, tls=tls) as peer:
        peer.write(SASL_HEADER + b"\xff" * 100)
        peer.read_to_the_end()


def test_connections_that_never_say_anything_hold_up_nobody(broker: BrokerProcess) -> None:
    with ExitStack() as stack:
        for port in ("amqps_port", "https_port"):
            for _ in range(300):
                address = ("127.0.0.1", int(broker.ready[port]))
                stack.enter_context(socket.create_connection(address, timeout=EVENTUALLY_S))
        for _ in range(100):
            stack.enter_context(WebsocketPeer(broker))
        context = ssl.create_default_context(cafile=broker.ca_file)
        plain = stack.enter_context(socket.create_connection(("127.0.0.1", broker.amqps_port), timeout=EVENTUALLY_S))
        stack.enter_context(context.wrap_socket(plain, server_hostname="localhost"))
        check_serves(broker)
        with WebsocketPeer(broker, tls=True) as peer:
            peer.open()
