"""Channels over real sockets: what a peer may do, and what ends the channel."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from partibus.cluster.channel import BATCH_BYTES_MAX, HEAD_BYTES, Channel
from partibus.cluster.handshake import Handshake
from partibus.cluster.ownership import Identity
from partibus.cluster.sockets import connect, listen
from partibus.cluster.wire import Drop, Dropped, WireError, read_answers, read_questions
from partibus.limits import PeerLimits
from tests.unit.cluster.loops import on_loop

SECRET = b"s" * 32
LIMITS = PeerLimits()
REMOTE_BROKER, OWNER = Identity("broker-0", "a1"), Identity("broker-1", "b2")


class DrivenLoop:
    """The running loop, with a clock and timers that a test moves."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.call_soon = loop.call_soon
        self._now_s = loop.time()
        self._timers: list[tuple[float, Timer]] = []

    def time(self) -> float:
        return self._now_s

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        timer = Timer(call)
        self._timers.append((self._now_s + delay_s, timer))
        return timer

    def move(self, seconds: float) -> None:
        """Move the clock, then call what is due, each once."""
        self._now_s += seconds
        due = [timer for at_s, timer in self._timers if at_s <= self._now_s]
        self._timers = [(at_s, timer) for at_s, timer in self._timers if at_s > self._now_s]
        for timer in due:
            timer.run()


class Timer:
    """A call at a later time."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.run = call

    def cancel(self) -> None:
        self.run = lambda: None


class WiredChannel(Channel):
    """A channel whose transport a test uses, and which tells that bytes came."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.wire: Any = transport
        self.heard = asyncio.Event()
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.heard.set()


class End:
    """One end, and what came to it."""

    def __init__(
        self, *, asks: bool, secret: bytes = SECRET, limits: PeerLimits = LIMITS, driven: bool = False
    ) -> None:
        us, expected = (REMOTE_BROKER, OWNER) if asks else (OWNER, None)
        shaking = Handshake(us, secret, us.incarnation.encode() * 16, expected=expected)
        self.clock = DrivenLoop(asyncio.get_running_loop())
        loop: Any = self.clock if driven else asyncio.get_running_loop()
        self.frames: list[Any] = []
        self.opened = asyncio.Event()
        self.arrived = asyncio.Event()
        self.over = asyncio.Event()
        self.whys: list[str] = []
        self.fails: Exception | None = None
        self.read = read_answers if asks else read_questions
        self.channel = WiredChannel(loop, shaking, self._open, self._lost, asks=asks, limits=limits)

    def _open(self, channel: Channel) -> Any:
        self.opened.set()
        return self._receive

    def _receive(self, batch: bytes | memoryview) -> None:
        if self.fails is not None:
            raise self.fails
        self.frames += self.read(batch)
        self.arrived.set()

    def _lost(self, why: str) -> None:
        self.whys.append(why)
        self.over.set()

    async def got(self, count: int) -> list[Any]:
        while len(self.frames) < count:
            self.arrived.clear()
            await self.arrived.wait()
        return self.frames


@asynccontextmanager
async def pair(
    path: Path, secret: bytes = SECRET, limits: PeerLimits = LIMITS, *, driven: bool = False
) -> AsyncIterator[tuple[End, End]]:
    """A remote broker's end and an owner's, connected; ``driven``: with clocks that the test moves."""
    remote_broker = End(asks=True, limits=limits, driven=driven)
    owner = End(asks=False, secret=secret, limits=limits, driven=driven)
    loop = asyncio.get_running_loop()
    server = await listen(path, lambda: owner.channel, loop)
    try:
        await connect(path, lambda: remote_broker.channel, loop)
        yield remote_broker, owner
    finally:
        remote_broker.channel.close("the test is over")
        owner.channel.close("the test is over")
        server.close()


@asynccontextmanager
async def stranger(
    path: Path, limits: PeerLimits = LIMITS
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, End]]:
    """An owner's end and a stranger that writes bytes."""
    owner = End(asks=False, limits=limits)
    server = await listen(path, lambda: owner.channel, asyncio.get_running_loop())
    reader, writer = await asyncio.open_unix_connection(str(path))
    try:
        yield reader, writer, owner
    finally:
        writer.close()
        owner.channel.close("the test is over")
        server.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "broker-1.sock"


@on_loop
async def test_frames_go_both_ways_in_order(path: Path) -> None:
    async with pair(path) as (remote_broker, owner):
        await asyncio.gather(remote_broker.opened.wait(), owner.opened.wait())
        for row in range(1_000):
            remote_broker.channel.outbox.put(Drop(1, row))
            owner.channel.outbox.put(Dropped(1, row))
        assert await owner.got(1_000) == [Drop(1, row) for row in range(1_000)]
        assert await remote_broker.got(1_000) == [Dropped(1, row) for row in range(1_000)]
        assert remote_broker.channel.outbox.left == 1, "one write for all that a turn of the loop brings"
        assert remote_broker.channel.handshake.peer == OWNER


@on_loop
async def test_socket_is_for_its_owner_only(path: Path) -> None:
    async with pair(path):
        modes = [stat.S_IMODE(os.stat(place).st_mode) for place in (path, path.parent)]
        assert modes == [0o600, 0o700]


@on_loop
async def test_directory_may_lie_deep(tmp_path: Path) -> None:
    async with pair(tmp_path / ("d" * 100) / ("e" * 100) / "broker-1.sock") as (remote_broker, owner):
        await asyncio.gather(remote_broker.opened.wait(), owner.opened.wait())


@on_loop
async def test_large_frames_come_in_pieces(path: Path) -> None:
    async with pair(path) as (remote_broker, owner):
        await remote_broker.opened.wait()
        batches: list[int] = []

        def read(batch: bytes | memoryview) -> list[Any]:
            batches.append(len(batch))
            return [len(batch)]

        owner.read = read
        for size in (5_000_000, 1, 300_000):
            remote_broker.channel.wire.write(size.to_bytes(HEAD_BYTES, "big") + bytes(size))
        await owner.got(3)
        assert batches == [5_000_000, 1, 300_000]


@on_loop
async def test_wrong_secret_ends_both_ends_with_a_reason(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with pair(path, secret=b"x" * 32) as (remote_broker, owner):
            await asyncio.gather(remote_broker.over.wait(), owner.over.wait())
            assert "does not know this namespace's secret" in remote_broker.whys[0]
            assert owner.whys == [f"the peer refuses: {remote_broker.whys[0]}"]
            assert not remote_broker.opened.is_set()
            assert not owner.opened.is_set()
    assert "secret" in caplog.text
    assert "None" not in caplog.text, "who it was to be, or that nobody knows"


@on_loop
async def test_close_sends_what_is_to_be_sent_and_is_told_once(path: Path) -> None:
    async with pair(path) as (remote_broker, owner):
        await asyncio.gather(remote_broker.opened.wait(), owner.opened.wait())
        remote_broker.channel.outbox.put(Drop(1, 2))
        remote_broker.channel.close("enough")
        remote_broker.channel.close("more than enough")
        await owner.over.wait()
        assert owner.frames == [Drop(1, 2)]
        assert (remote_broker.whys, owner.whys) == (["enough"], ["the peer has closed the connection"])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "the peer sends 1195725856 bytes at once, at most 4096 can be"),
        (b"\x00\x00\x00\x03abc", "does not begin as a broker does"),
        (b"\x00\x00\x00\x00", "does not begin as a broker does"),
    ],
)
@on_loop
async def test_stranger_is_sent_away(path: Path, data: bytes, reason: str) -> None:
    async with stranger(path) as (reader, writer, owner):
        writer.write(data)
        await reader.read()
        assert reason in owner.whys[0]


@on_loop
async def test_stranger_who_says_nothing_is_sent_away(path: Path) -> None:
    async with stranger(path, PeerLimits(handshake_s=0.01)) as (reader, _, owner):
        assert await reader.read() == b""
        assert "has not proved itself" in owner.whys[0]


@on_loop
async def test_garbage_ends_the_channel_with_a_reason(path: Path) -> None:
    async with pair(path) as (remote_broker, owner):
        await remote_broker.opened.wait()
        remote_broker.channel.wire.write(b"\x00\x00\x00\x04\x91\x92\x2a\x00")
        await asyncio.gather(remote_broker.over.wait(), owner.over.wait())
        assert owner.whys == [
            "a batch of 4 bytes is not what a broker that asks sends: Invalid value 42 - at `$[0][0]`"
        ]


@on_loop
async def test_length_is_bounded_both_ways(path: Path) -> None:
    async with pair(path) as (remote_broker, owner):
        await remote_broker.opened.wait()
        remote_broker.channel.wire.write((BATCH_BYTES_MAX + 1).to_bytes(4, "big"))
        await owner.over.wait()
        assert f"sends {BATCH_BYTES_MAX + 1} bytes at once, at most {BATCH_BYTES_MAX}" in owner.whys[0]
        remote_broker.whys.clear()
        if not remote_broker.over.is_set():
            remote_broker.channel.outbox.put_encoded(bytes(BATCH_BYTES_MAX + 1))
            await remote_broker.over.wait()


@on_loop
async def test_error_inside_ends_the_channel_and_is_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with pair(path) as (remote_broker, owner):
        await remote_broker.opened.wait()
        owner.fails = KeyError("a mistake of ours")
        remote_broker.channel.outbox.put(Drop(1, 2))
        await owner.over.wait()
        assert owner.whys == ["internal error"]
        assert "a mistake of ours" in caplog.text


@on_loop
async def test_error_of_the_peer_is_not_logged_as_ours(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with pair(path) as (remote_broker, owner):
        await remote_broker.opened.wait()
        owner.fails = WireError("nonsense")
        remote_broker.channel.outbox.put(Drop(1, 2))
        await owner.over.wait()
        assert owner.whys == ["nonsense"]
        assert "Traceback" not in caplog.text


# -- a peer that does not read, or says nothing ------------------------------------------------------------------------


@on_loop
async def test_who_does_not_take_answers_is_asked_no_more_and_then_lost(path: Path) -> None:
    limits = PeerLimits(unsent_reading_bytes=100_000, unsent_bytes_max=3_000_000)
    async with pair(path, limits=limits) as (remote_broker, owner):
        await asyncio.gather(remote_broker.opened.wait(), owner.opened.wait())
        remote_broker.channel.wire.pause_reading()
        while owner.channel.wire.is_reading():
            send(owner, 100_000)
        remote_broker.channel.outbox.put(Drop(1, 2))
        remote_broker.channel.outbox.flush()
        while not owner.over.is_set():
            send(owner, 100_000)
        assert "the peer does not take what it is sent" in owner.whys[0]
        assert owner.frames == [], "its questions stay where they are"


@on_loop
async def test_answers_that_are_taken_again_let_questions_in_again(path: Path) -> None:
    async with pair(path, limits=PeerLimits(unsent_reading_bytes=100_000)) as (remote_broker, owner):
        await asyncio.gather(remote_broker.opened.wait(), owner.opened.wait())
        remote_broker.read = lambda batch: []
        remote_broker.channel.wire.pause_reading()
        while owner.channel.wire.is_reading():
            send(owner, 100_000)
        remote_broker.channel.outbox.put(Drop(1, 2))
        remote_broker.channel.wire.resume_reading()
        assert await owner.got(1) == [Drop(1, 2)]


@on_loop
async def test_quiet_peers_beat_and_stay(path: Path) -> None:
    async with pair(path, driven=True) as ends:
        await asyncio.gather(*[end.opened.wait() for end in ends])
        for _ in range(int(3 * LIMITS.silence_s / LIMITS.heartbeat_s)):
            for end in ends:
                end.channel.heard.clear()
                end.clock.move(LIMITS.heartbeat_s)
            await asyncio.gather(*[end.channel.heard.wait() for end in ends])
        assert [end.whys for end in ends] == [[], []]


@on_loop
async def test_silent_peer_is_lost(path: Path) -> None:
    async with pair(path, driven=True) as (remote_broker, owner):
        await asyncio.gather(remote_broker.opened.wait(), owner.opened.wait())
        for _ in range(int(LIMITS.silence_s / LIMITS.heartbeat_s)):
            owner.clock.move(LIMITS.heartbeat_s)
            assert not owner.over.is_set()
        owner.clock.move(LIMITS.heartbeat_s)
        assert owner.whys == ["the peer has said nothing for 5 seconds"]
        await remote_broker.over.wait()


@on_loop
async def test_broker_that_stood_still_does_not_blame_the_peer(path: Path) -> None:
    async with pair(path, driven=True) as (remote_broker, owner):
        await asyncio.gather(remote_broker.opened.wait(), owner.opened.wait())
        owner.clock.move(60)
        for _ in range(int(LIMITS.silence_s / LIMITS.heartbeat_s)):
            owner.clock.move(LIMITS.heartbeat_s)
        assert not owner.over.is_set()
        owner.clock.move(LIMITS.heartbeat_s)
        assert owner.over.is_set()


def send(end: End, size_bytes: int) -> None:
    """Write a batch of zeros at once."""
    end.channel.outbox.put_encoded(bytes(size_bytes))
    end.channel.outbox.flush()


@on_loop
async def test_a_peer_that_reads_slowly_is_not_silent(path: Path) -> None:
    """While this end does not read, since the peer has much to take, it hears no heartbeat."""
    limits = PeerLimits(unsent_reading_bytes=100_000)
    beats = int(2 * limits.silence_s / limits.heartbeat_s)
    async with pair(path, limits=limits, driven=True) as (remote_broker, owner):
        await asyncio.gather(remote_broker.opened.wait(), owner.opened.wait())
        remote_broker.read = lambda batch: []
        theirs, ours = remote_broker.channel.wire, owner.channel.wire
        theirs.pause_reading()
        send(owner, 40_000_000)
        for _ in range(beats):
            left = ours.get_write_buffer_size()
            while ours.get_write_buffer_size() == left:
                remote_broker.channel.heard.clear()
                theirs.resume_reading()
                await remote_broker.channel.heard.wait()
                theirs.pause_reading()
            assert not ours.is_reading()
            owner.clock.move(limits.heartbeat_s)
        assert owner.whys == []
        for _ in range(beats):
            owner.clock.move(limits.heartbeat_s)
        assert owner.whys == ["the peer has said nothing for 5 seconds"]
