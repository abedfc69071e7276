"""Connections beside those of another namespace: what waits for a turn, how much, and that nothing of it is lost."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from partibus.amqp import Plain
from partibus.amqp.codec.performatives import Begin
from partibus.amqp.frames import EMPTY_FRAME, frame
from partibus.frontends.amqp.peer import PERFORMATIVES_AT_ONCE
from partibus.frontends.amqp.server import WAITING_BYTES_MAX
from partibus.units.account import Account
from partibus.units.fair_scheduler import PIECE_BYTES
from tests.unit.frontends.test_server import Connected

BEGIN = frame(1, Begin(next_outgoing_id=0, incoming_window=100, outgoing_window=100))


@pytest.fixture
def connected(tmp_path: Path) -> Connected:
    return opened(tmp_path)


def opened(folder: Path, login: Plain | None = None) -> Connected:
    """Open; another namespace has sent something a moment ago."""
    connected = Connected(folder, count(1_000_000_000_000, 1_000).__next__)
    connected.open(login)
    connected.scheduler.begin(Account())
    return connected


def begins(channels: int) -> bytes:
    """Encode begins of so many sessions."""
    begin = Begin(next_outgoing_id=0, incoming_window=100, outgoing_window=100)
    return b"".join(frame(1 + channel, begin) for channel in range(channels))


def test_nothing_is_decoded_before_its_turn(connected: Connected) -> None:
    connected.protocol.data_received(BEGIN)
    assert len(connected.sessions) == 1
    connected.loop.run()
    assert len(connected.sessions) == 2


def test_what_waits_is_done_in_pieces_and_in_order(connected: Connected) -> None:
    data = begins(50)
    for byte in range(0, len(data), 7):
        connected.protocol.data_received(data[byte : byte + 7])
    connected.loop.run()
    assert len(connected.sessions) == 51
    assert len(data) < PIECE_BYTES


@pytest.mark.parametrize(("claimed", "bytes_max"), [(True, WAITING_BYTES_MAX), (False, 32_000)])
def test_a_connection_that_waits_is_not_read_from_when_enough_of_it_is_here(
    tmp_path: Path, *, claimed: bool, bytes_max: int
) -> None:
    connected = opened(tmp_path, Plain("root", "root-key") if claimed else None)
    enough = EMPTY_FRAME * (bytes_max // len(EMPTY_FRAME))
    connected.protocol.data_received(enough[: bytes_max // 2])
    reading = [connected.transport.reading]
    connected.protocol.data_received(enough[: bytes_max // 2])
    reading.append(connected.transport.reading)
    held_bytes = connected.protocol.held_bytes
    connected.loop.run()
    assert [*reading, connected.transport.reading] == [True, False, True]
    assert connected.protocol.held_bytes < bytes_max <= held_bytes


def test_what_came_before_the_end_of_a_connection_is_done(connected: Connected) -> None:
    connected.protocol.data_received(BEGIN)
    connected.protocol.connection_lost(None)
    assert len(connected.sessions) == 2
    connected.loop.run()
    assert len(connected.sessions) == 2


def test_much_that_came_before_the_end_of_a_connection_is_done_in_turns(connected: Connected) -> None:
    """All of it, and the connection ends behind it."""
    lost: list[int] = []
    connected.protocol.peer.on_lost = lambda: lost.append(len(connected.sessions))  # type: ignore[method-assign]
    much = EMPTY_FRAME * (2 * PIECE_BYTES // len(EMPTY_FRAME))
    connected.protocol.data_received(much + begins(3))
    connected.protocol.connection_lost(None)
    connected.protocol.read_piece()
    assert len(connected.sessions) == 1
    assert not lost
    connected.loop.run()
    assert lost == [4]
    assert not connected.protocol.read_piece()
    assert not connected.server.protocols


def test_what_is_done_at_the_end_of_a_connection_is_charged_to_the_namespace(connected: Connected) -> None:
    connected.protocol.data_received(BEGIN)
    account = connected.protocol.account
    account.busy_ns = account.moved = 0
    connected.protocol.connection_lost(None)
    assert account.busy_ns > 0
    assert account.moved > len(BEGIN)


def test_many_attaches_take_several_turns(connected: Connected) -> None:
    channels = 3 * PERFORMATIVES_AT_ONCE
    data = begins(channels)
    assert len(data) < PIECE_BYTES, "all in one piece"
    connected.protocol.data_received(data)
    assert len(connected.sessions) == 1
    connected.protocol.read_piece()
    assert len(connected.sessions) == 1 + PERFORMATIVES_AT_ONCE
    connected.loop.run()
    assert len(connected.sessions) == 1 + channels


def test_time_and_bytes_are_charged_to_the_namespace(connected: Connected) -> None:
    account = connected.protocol.account
    account.busy_ns = account.moved = 0
    connected.protocol.data_received(BEGIN)
    assert account.busy_ns == 0
    connected.loop.run()
    assert account.busy_ns > 0
    assert account.moved > len(BEGIN)
