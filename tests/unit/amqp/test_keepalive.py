"""Idle time-outs; the clock is the test."""

from __future__ import annotations

import pytest

from partibus.amqp import Closed, Limits
from partibus.amqp.codec.performatives import Close
from partibus.amqp.frames import EMPTY_FRAME
from partibus.amqp.keepalive import KeepAlive
from tests.unit.amqp.peers import Scripted


@pytest.mark.parametrize(
    ("ours_ms", "theirs_ms", "interval_s"),
    [
        (240_000, None, 15),
        (240_000, 60_000, 15),
        (240_000, 30_000, 7.5),
        (2_000, None, 0.5),
        (0, 120_000, 15),
        (0, 1, 0.25),
    ],
)
def test_two_ticks_fit_into_half_of_each_time_out(ours_ms: int, theirs_ms: int | None, interval_s: float) -> None:
    scripted = Scripted(limits=Limits(idle_timeout_ms=ours_ms))
    scripted.open(idle_time_out=theirs_ms)
    assert scripted.connection.tick_interval == interval_s


def test_silent_connection_gets_an_empty_frame() -> None:
    """Trap 15: without them clients reconnect."""
    scripted = Scripted()
    scripted.open()
    connection = scripted.connection
    assert connection.tick(0) == []
    assert connection.data_to_send() == b""
    connection.tick(15)
    assert connection.data_to_send() == EMPTY_FRAME
    assert EMPTY_FRAME.hex() == "0000000802000000"


def test_gap_between_two_frames_is_at_most_thirty_seconds() -> None:
    scripted = Scripted(limits=Limits(idle_timeout_ms=0))
    scripted.open()
    sent_at = 0.0
    for tick in range(1, 100):
        scripted.connection.tick(tick * scripted.connection.tick_interval)
        if scripted.connection.data_to_send():
            now = tick * scripted.connection.tick_interval
            assert now - sent_at <= 30
            sent_at = now
    assert sent_at > 1000


def test_busy_connection_needs_no_empty_frames() -> None:
    scripted = Scripted()
    link = scripted.with_sender()
    for tick in range(5):
        link.send(bytes((tick,)), b"x")
        assert scripted.heard()
        scripted.connection.tick(tick * 15.0)
        assert scripted.connection.data_to_send() == b""


def test_nothing_is_added_to_frames_that_wait() -> None:
    scripted = Scripted()
    link = scripted.with_sender()
    scripted.connection.tick(0)
    scripted.connection.tick(15)
    scripted.connection.data_to_send()
    link.send(b"t", b"x")
    scripted.connection.tick(30)
    assert len(scripted.heard()) == 1


def test_no_empty_frame_before_our_open() -> None:
    scripted = Scripted()
    scripted.connection.tick(0)
    scripted.connection.tick(100)
    assert scripted.connection.data_to_send() == b""


def test_silent_peer_is_closed_after_the_time_out_and_not_before() -> None:
    scripted = Scripted(limits=Limits(idle_timeout_ms=60_000))
    scripted.open()
    connection = scripted.connection
    for now in (0, 15, 30, 45, 59.9):
        assert connection.tick(now) == []
    connection.receive_data(EMPTY_FRAME)
    for now in (61, 75, 90, 105, 120.9):
        assert connection.tick(now) == []
    scripted.heard()
    (event,) = connection.tick(121)
    assert isinstance(event, Closed)
    assert event.error is not None
    assert "60000 milliseconds" in str(event.error)
    assert scripted.heard_bodies() == [Close(event.error)]
    assert connection.tick(500) == []


def test_time_out_of_zero_means_never() -> None:
    keep_alive = KeepAlive(0)
    assert not keep_alive.peer_is_lost(0)
    assert not keep_alive.peer_is_lost(1e9)
