"""Transactions byte by byte, as the libraries for .NET and Java speak: what they send, and what they must be answered.

Written by hand after their sources: none of the two runs here. Their peculiarities: .NET sends lists
without their last nulls, asks for batching, and leaves ``last`` out; Java names no capability and repeats ``first``.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from partibus.amqp.codec.performatives import (
    Begin,
    Disposition,
    Open,
    Rejected,
    SaslInit,
    Transfer,
    decode_performative,
)
from partibus.amqp.frames import AMQP_HEADER, HEADER, SASL_FRAME, SASL_HEADER, frame
from partibus.frontends.amqp.peer import Peer
from tests.unit.frontends.conftest import world  # noqa: F401 (a fixture)
from tests.unit.frontends.harness import World, body_of, message
from tests.wire.spelling import spelled

ID_BYTES = 16
FIRST_ID = f"{1:032x}"
"""The ids of a test's broker are counted."""
BEFORE = "02 00 0000 00 53"
"""Data offset, type, channel, and the start of a descriptor."""


class Frames(NamedTuple):
    """The frames of a library. Link handles: 0 coordinator, 1 sender, 2 receiver. ``{id}`` is the transaction's."""

    coordinator: str
    declare: str
    send: str
    settle: str
    commit: str
    roll_back: str


NET = Frames(
    coordinator=f"""({BEFORE} 12 c0 <0a a1 <'ctl'> 43 42 5000 5000  00 53 28 c0 <01 a1 <'here'>>
        00 53 30 c0 <01 a3 <'amqp:local-transactions'>>  40 40 43>)""",
    declare=f"""({BEFORE} 14 c0 <0b 43 43 a0 <00000000> 43 42 42 40 40 40 40 41>  00 53 77  00 53 31 45)""",
    send=f"""({BEFORE} 14 c0 <0b 5201 5201 a0 <01000000> 43 42 42 40 00 53 34 c0 <01 a0 <{{id}}>> 40 40 41>
        00 53 72 c1 <02 a3 <'x-opt-partition-key'> a1 <'k'>>
        00 53 73 c0 <01 a1 <'7'>>  00 53 75 a0 <'new'>)""",
    settle=f"""({BEFORE} 15 c0 <06 41 43 40 42  00 53 34 c0 <02 a0 <{{id}}>  00 53 24 45>  41>)""",
    commit=f"""({BEFORE} 14 c0 <0b 43 5202 a0 <02000000> 43 42 42 40 40 40 40 41>
        00 53 77  00 53 32 c0 <02 a0 <{{id}}> 42>)""",
    roll_back=f"""({BEFORE} 14 c0 <0b 43 5202 a0 <02000000> 43 42 42 40 40 40 40 41>
        00 53 77  00 53 32 c0 <02 a0 <{{id}}> 41>)""",
)

JAVA = Frames(
    coordinator=f"""({BEFORE} 12 c0 <0a a1 <'ctl'> 43 42 5000 5000  00 53 28 c0 <01 a1 <'here'>>
        00 53 30 45  40 42 43>)""",
    declare=f"""({BEFORE} 14 c0 <06 43 43 a0 <'1'> 43 40 42>  00 53 77  00 53 31 45)""",
    send=f"""({BEFORE} 14 c0 <08 5201 5201 a0 <'2'> 43 40 42 40  00 53 34 c0 <01 a0 <{{id}}>>>
        00 53 72 d1 0000001c 00000002 a3 <'x-opt-partition-key'> a1 <'k'>
        00 53 73 c0 <01 a1 <'7'>>  00 53 75 a0 <'new'>)""",
    settle=f"""({BEFORE} 15 c0 <05 41 43 43 42  00 53 34 c0 <02 a0 <{{id}}>  00 53 24 45>>)""",
    commit=f"""({BEFORE} 14 c0 <06 43 5202 a0 <'3'> 43 40 42>  00 53 77  00 53 32 c0 <02 a0 <{{id}}> 42>)""",
    roll_back=f"""({BEFORE} 14 c0 <06 43 5202 a0 <'3'> 43 40 42>  00 53 77  00 53 32 c0 <02 a0 <{{id}}> 41>)""",
)

SENDER = f"""({BEFORE} 12 c0 <0a a1 <'snd'> 5201 42 5000 5000  00 53 28 c0 <01 a1 <'here'>>
    00 53 29 c0 <01 a1 <'q'>>  40 40 43>)"""
RECEIVER = f"""({BEFORE} 12 c0 <07 a1 <'rcv'> 5202 41 5000 5001  00 53 28 c0 <01 a1 <'q'>>
        00 53 29 c0 <01 a1 <'here'>>>)
    ({BEFORE} 13 c0 <07 43 521e 43 521e 5202 43 5201>)"""


class Conversation:
    """A library's connection: bytes in, frames out."""

    def __init__(self, world: World, frames: Frames) -> None:  # noqa: F811
        self.world = world
        self.frames = frames
        self.peer = Peer(world.namespaces, world.ingress, lambda: None, lambda: False, world.timeline.call_later)
        login = SaslInit(mechanism="PLAIN", initial_response=b"\0root\0root-key")
        begin = Begin(next_outgoing_id=1, incoming_window=5000, outgoing_window=5000)
        self.peer.receive_data(SASL_HEADER + frame(0, login, SASL_FRAME) + AMQP_HEADER)
        self.peer.receive_data(frame(0, Open(container_id="library")) + frame(0, begin))
        self.peer.connection.data_to_send()

    def say(self, text: str, transaction: str = "") -> list[bytes]:
        """The frames that come back."""
        self.peer.receive_data(spelled(text.replace("{id}", transaction)))
        self.world.wait()
        data = self.peer.connection.data_to_send()
        found: list[bytes] = []
        while data:
            size = HEADER.unpack_from(data)[0]
            found.append(data[:size])
            data = data[size:]
        return found

    def answer(self, text: str, transaction: str = "") -> bytes:
        """The one disposition that comes back."""
        (disposition,) = [data for data in self.say(text, transaction) if data[8:11] == b"\x00\x53\x15"]
        return disposition

    def attach(self) -> None:
        """All three links, and one message of 'old' on its way."""
        self.say(self.frames.coordinator)
        self.say(SENDER)
        client = self.world.client()
        client.send(client.sender("q"), message(b"old", message_id="6", partition_key="k"))
        (transfer,) = [data for data in self.say(RECEIVER) if data[8:11] == b"\x00\x53\x14"]
        performative = decode_performative(transfer, HEADER.size, len(transfer))[0]
        assert isinstance(performative, Transfer)
        assert performative.delivery_id == 0

    def left(self) -> list[object]:
        client = self.world.client()
        link = client.receiver("q")
        bodies = [body_of(delivery) for delivery in client.receive(link, 10)]
        link.detach()
        self.world.wait()
        return bodies


@pytest.fixture(params=[NET, JAVA], ids=["net", "java"])
def conversation(world: World, request: pytest.FixtureRequest) -> Conversation:  # noqa: F811
    world.queue("q", EnablePartitioning=True)
    return Conversation(world, request.param)


def test_the_coordinator_link_is_attached_and_gets_credit(conversation: Conversation) -> None:
    attach, flow = conversation.say(conversation.frames.coordinator)
    assert attach == spelled(f"""
        ({BEFORE} 12 c0 <0e  a1 <'ctl'> 43 41 5000 5000
            00 53 28 c0 <0b  a1 <'here'> 40 40 40 40 40 40 40 40 40 40>
            00 53 30 c0 <01  e0 <03 a3
                <'amqp:local-transactions'> <'amqp:multi-txns-per-ssn'> <'amqp:multi-ssns-per-txn'>>>
            40 40 40 80 0000000000001000 40 40 40>)
    """)
    assert flow == spelled(f"""
        ({BEFORE} 13 c0 <0b  52 01 70 00001388 43 70 00001388 43 43 52 64 40 42 42 40>)
    """)


@pytest.mark.row("T1")
def test_a_send_and_a_settlement_are_committed(conversation: Conversation) -> None:
    frames = conversation.frames
    conversation.attach()
    assert conversation.answer(frames.declare) == spelled(f"""
        ({BEFORE} 15 c0 <06  41 70 00000000 70 00000000 41  00 53 33 c0 <01 a0 <{FIRST_ID}>>  40>)
    """)
    assert conversation.answer(frames.send, FIRST_ID) == spelled(f"""
        ({BEFORE} 15 c0 <06  41 70 00000001 70 00000001 41  00 53 34 c0 <02 a0 <{FIRST_ID}> 00 53 24 45>  40>)
    """)
    assert conversation.answer(frames.settle, FIRST_ID) == spelled(f"""
        ({BEFORE} 15 c0 <06  42 70 00000000 70 00000000 41  00 53 34 c0 <02 a0 <{FIRST_ID}> 00 53 24 45>  40>)
    """)
    assert conversation.left() == []
    assert conversation.answer(frames.commit, FIRST_ID) == spelled(f"""
        ({BEFORE} 15 c0 <06  41 70 00000002 70 00000002 41  00 53 24 45  40>)
    """)
    conversation.world.wait(60_000)
    assert conversation.left() == [b"new"]


def test_a_send_and_a_settlement_are_rolled_back(conversation: Conversation) -> None:
    frames = conversation.frames
    conversation.attach()
    conversation.answer(frames.declare)
    conversation.answer(frames.send, FIRST_ID)
    conversation.answer(frames.settle, FIRST_ID)
    assert conversation.answer(frames.roll_back, FIRST_ID) == spelled(f"""
        ({BEFORE} 15 c0 <06  41 70 00000002 70 00000002 41  00 53 24 45  40>)
    """)
    assert conversation.left() == []
    conversation.world.wait(60_000)
    assert conversation.left() == [b"old"]


def test_an_unknown_transaction_is_rejected_with_an_error_of_three_fields(conversation: Conversation) -> None:
    """Trap 3 holds here, too."""
    conversation.attach()
    conversation.answer(conversation.frames.declare)
    disposition = conversation.answer(conversation.frames.send, "ff" * ID_BYTES)
    performative = decode_performative(disposition, HEADER.size, len(disposition))[0]
    assert isinstance(performative, Disposition)
    assert isinstance(performative.state, Rejected)
    assert performative.state.error is not None
    assert performative.state.error.condition == "amqp:transaction:unknown-id"
    start = spelled("00 53 25 c0")
    error = disposition[disposition.index(start) + len(start) + 2 :]
    assert error.startswith(spelled("00 53 1d c0"))
    assert error[5] == 3
