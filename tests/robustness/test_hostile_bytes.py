"""Peers that do not speak AMQP, or speak it wrongly: they harm themselves alone."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from random import Random
from typing import Any

import pytest

from partibus.amqp import Source, Target
from partibus.amqp.codec.performatives import (
    ACCEPTED,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Transfer,
)
from partibus.amqp.frames import AMQP_HEADER, EMPTY_FRAME, HEADER, SASL_FRAME, SASL_HEADER, frame
from partibus.testing.broker_process import BrokerProcess
from tests.robustness.raw import MIB, RawPeer, check_serves, flow, transfer

TOO_MUCH = ("amqp:resource-limit-exceeded", None)


@pytest.mark.parametrize("seed", range(8))
def test_garbage(broker: BrokerProcess, seed: int) -> None:
    """The connection ends, whatever the header was that came before."""
    random = Random(seed)
    start = (b"", AMQP_HEADER, SASL_HEADER, SASL_HEADER + b"\0\0\0\x20\x02\x01\0\0")[seed % 4]
    with RawPeer(broker) as peer:
        peer.write_while_taken(start + random.randbytes(20_000), 40_000)
        peer.read_to_the_end()


def test_garbage_after_a_login(broker: BrokerProcess) -> None:
    for seed in range(20):
        random = Random(seed)
        with RawPeer(broker) as peer:
            peer.open()
            body = random.randbytes(random.randint(1, 2_000))
            peer.write(HEADER.pack(8 + len(body), 2, 0, 0) + body)
            assert isinstance(peer.read_until(Close), Close)


@pytest.mark.parametrize("size", [0, 7, 1 << 20, 0xFFFFFFFF])
def test_a_frame_of_a_wrong_size(broker: BrokerProcess, size: int) -> None:
    with RawPeer(broker) as peer:
        peer.open()
        peer.write(HEADER.pack(size, 2, 0, 0))
        assert peer.read_until(Close).error.condition == "amqp:connection:framing-error"


@pytest.mark.parametrize("performative", [Open, Begin, Attach, Flow, Transfer, Disposition, Detach, End])
def test_nested_values(broker: BrokerProcess, performative: type) -> None:
    """Lists in lists, descriptors of descriptors, arrays of arrays: refused before they cost anything."""
    code = {
        Open: 0x10,
        Begin: 0x11,
        Attach: 0x12,
        Flow: 0x13,
        Transfer: 0x14,
        Disposition: 0x15,
        Detach: 0x16,
        End: 0x17,
    }
    bombs = [
        b"\xd0\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xd0" + (50_000).to_bytes(4) + (0xFFFFFFFF).to_bytes(4) + b"\x40" * 49_996,
        b"\xc0\xfe\xfe" * 20_000,
        b"\x00" * 60_000,
        b"\xf0\x00\x00\xf0\x00\xff\xff\xff\xff\x40" * 100,
        b"\xd0" + (60_000).to_bytes(4) + (1).to_bytes(4) + b"\xd0\x00\x00\xea\x60\x00\x00\x00\x01" * 6_666,
    ]
    for bomb in bombs:
        with RawPeer(broker) as peer:
            peer.open()
            body = bytes((0x00, 0x53, code[performative])) + bomb
            peer.write(HEADER.pack(8 + len(body), 2, 0, 0) + body)
            peer.read_until(Close)


def test_many_tiny_frames(broker: BrokerProcess) -> None:
    with RawPeer(broker) as peer:
        peer.open()
        peer.write(EMPTY_FRAME * 100_000)
        peer.say(Close())
        peer.read_until(Close)


def test_a_peer_that_sends_byte_by_byte(broker: BrokerProcess) -> None:
    with RawPeer(broker) as peer:
        data = AMQP_HEADER + frame(0, Open(container_id="slow")) + frame(0, Close())
        for byte in data:
            peer.write(bytes((byte,)))
        peer.read_until(Close)


def test_connections_that_are_opened_and_dropped(broker: BrokerProcess) -> None:
    for number in range(500):
        with RawPeer(broker) as peer:
            if number % 3 == 1:
                peer.write(SASL_HEADER[: number % 9])
            elif number % 3 == 2:
                peer.open()
                peer.attach("parts", sending=False)
                peer.credit(100)


def test_connections_that_never_speak_are_borne(broker: BrokerProcess) -> None:
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection(("127.0.0.1", broker.port)))
        check_serves(broker)


def test_a_half_closed_connection_ends(broker: BrokerProcess) -> None:
    with RawPeer(broker) as peer:
        peer.open()
        peer.sock.shutdown(socket.SHUT_WR)
        peer.read_to_the_end()


class TestMany:
    """Sessions, links, detaches, handles: bounded by count."""

    def test_sessions(self, broker: BrokerProcess) -> None:
        begin = Begin(next_outgoing_id=0, incoming_window=10, outgoing_window=10)
        with RawPeer(broker) as peer:
            peer.open()
            peer.write_while_taken(b"".join(frame(channel, begin) for channel in range(1, 6_000)), 1 * MIB)
            assert peer.read_to_the_end() in TOO_MUCH

    def test_links_of_one_session_that_may_do_nothing(self, broker: BrokerProcess) -> None:
        """A peer that has shown no claim attaches and never detaches what was refused."""
        with RawPeer(broker) as peer:
            peer.write(AMQP_HEADER)
            peer.say(Open(container_id="raw"), Begin(next_outgoing_id=0, incoming_window=10, outgoing_window=10))
            attach: dict[str, Any] = {"role": True, "source": Source("alive"), "target": Target("x")}
            peer.write_while_taken(
                b"".join(frame(0, Attach(name=str(number), handle=number, **attach)) for number in range(12_000)), 1
            )
            assert peer.read_to_the_end() in TOO_MUCH

    def test_links_of_many_sessions(self, broker: BrokerProcess) -> None:
        with RawPeer(broker) as peer:
            peer.open()
            attach: dict[str, Any] = {"role": True, "source": Source("alive"), "target": Target("x")}
            begin = Begin(next_outgoing_id=0, incoming_window=10, outgoing_window=10)
            data = b"".join(
                frame(channel, begin)
                + b"".join(frame(channel, Attach(name=str(n), handle=n, **attach)) for n in range(200))
                for channel in range(1, 60)
            )
            peer.write_while_taken(data, 1 * MIB)
            assert peer.read_to_the_end() in TOO_MUCH

    def test_attaching_and_detaching(self, broker: BrokerProcess) -> None:
        with RawPeer(broker) as peer:
            peer.open()
            for _ in range(20):
                for handle in range(50):
                    peer.attach("parts", sending=handle % 2 == 0, handle=handle)
                    if handle % 2:
                        peer.credit(10, handle=handle)
                peer.say(*[Detach(handle=handle, closed=True) for handle in range(50)])
            peer.say(Close())
            peer.read_until(Close)

    def test_incomplete_deliveries(self, broker: BrokerProcess) -> None:
        """Empty parts cost nothing; others are bounded in bytes, whatever their size."""
        with RawPeer(broker) as peer:
            peer.open()
            peer.attach("alive", sending=True)
            peer.read_until(Attach)
            peer.write(transfer(b"", 0, more=True) * 200_000)
            for number in range(1, 100):
                peer.attach("alive", sending=True, handle=number)
                peer.read_until(Attach)
            parts = b"".join(transfer(b"xx" * 50, number, handle=number, more=True) for number in range(1, 100))
            peer.write_while_taken(parts, 40 * MIB)
            assert peer.read_to_the_end() in TOO_MUCH


class TestOutOfOrder:
    """Frames that name what is not there."""

    @pytest.mark.parametrize(
        ("data", "ending"),
        [
            (transfer(b"x", 0, handle=7), End),
            (frame(0, flow(handle=7, link_credit=1)), End),
            (frame(9, Disposition(role=True, first=0)), Close),
            (frame(0, Open(container_id="again")), Close),
            (frame(0, Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1)), Close),
            (frame(0, Begin(remote_channel=7, next_outgoing_id=0, incoming_window=1, outgoing_window=1), 0), Close),
            (frame(0, Open(container_id="sasl"), SASL_FRAME), Close),
        ],
        ids=["transfer", "flow", "channel", "open", "begin", "answer", "sasl"],
    )
    def test_the_scope_of_the_error_ends(self, broker: BrokerProcess, data: bytes, ending: type) -> None:
        with RawPeer(broker) as peer:
            peer.open()
            peer.write(data)
            assert peer.read_until(ending).error is not None

    @pytest.mark.parametrize("role", [True, False])
    def test_dispositions_of_what_was_never_delivered(self, broker: BrokerProcess, role: bool) -> None:
        with RawPeer(broker) as peer:
            peer.open()
            for first, last in ((0, None), (5, 2), (0, 0x7FFFFFFF), (0x7FFFFFFF, 0xFFFFFFFF), (0, 0xFFFFFFFF)):
                for settled in (True, False):
                    peer.say(Disposition(role=role, first=first, last=last, settled=settled, state=ACCEPTED))
            peer.say(Close())
            peer.read_until(Close)
