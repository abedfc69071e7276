"""Brokers in one process that reach each other's stores over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from partibus.clock import SystemClock
from partibus.cluster import peers
from partibus.cluster.channel import Channel
from partibus.cluster.handshake import load_secret
from partibus.cluster.ownership import Identity
from partibus.cluster.peers import AddressOf, PeerChannels
from partibus.cluster.serving import Serving
from partibus.cluster.sockets import Address, TcpAddress, bound_tcp, connect, listen, listen_tls
from partibus.errors import UnusableFile
from partibus.limits import PeerLimits
from partibus.message import Message, pack
from partibus.node.host import AsyncioHost
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.ports import Store
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.routing.entity import EntityRoute
from partibus.routing.partitions import Numbers, PartitionHandle
from partibus.routing.send import send
from partibus.routing.store_access import StoreRoute
from tests.kit.stores.memory import MemoryDisk, MemoryStore
from tests.unit.cluster.loops import eventually, on_loop

OPTIONS = PartitionOptions()
STORES = 2
SECRET = b"s" * 32


class Line(asyncio.Protocol):
    """A connection on which a broker answers; it can break, and lose what it brings."""

    def __init__(self, channel: Channel) -> None:
        self.loses = False
        self.lost_bytes = 0
        self._channel = channel

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._channel.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self.loses:
            self.lost_bytes += len(data)
        else:
            self._channel.data_received(data)

    def pause_writing(self) -> None:
        self._channel.pause_writing()

    def resume_writing(self) -> None:
        self._channel.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._channel.connection_lost(error)

    def cut(self) -> None:
        self._transport.abort()


class Broker:
    """Stores, channels and routes, without a supervisor."""

    def __init__(
        self,
        name: str,
        directory: Path,
        incarnation: str = "1",
        *,
        address_of: AddressOf | None = None,
        limits: PeerLimits | None = None,
    ) -> None:
        self.identity = Identity(name, incarnation)
        self.directory = directory
        self.loop = asyncio.get_running_loop()
        self.host = AsyncioHost(self.loop)
        self.serving = Serving()
        self.runtimes: dict[int, StoreRuntime] = {}
        self.disks: dict[int, MemoryDisk] = {}
        self.routes = [StoreRoute(f"store-{number:02}", self.host.call_soon) for number in range(STORES)]
        self.peers = PeerChannels(self.identity, SECRET, address_of or self.address_of, self.serving, self.loop, limits)
        self.lines: list[Line] = []
        self.numbers = Numbers()
        self.server: asyncio.Server | None = None

    def address_of(self, owner: Identity) -> Address:
        return self.directory / f"{owner.broker}.sock"

    async def start(self) -> None:
        path = self.address_of(self.identity)
        assert isinstance(path, Path)
        self.server = await listen(path, self.answer, self.loop)

    def answer(self) -> Line:
        self.lines.append(Line(self.peers.make_answering()))
        return self.lines[-1]

    def own(self, number: int, disk: MemoryDisk | None = None) -> None:
        disk = self.disks[number] = disk or MemoryDisk()

        def open_store() -> Store:
            return MemoryStore(disk)

        runtime = self.runtimes[number] = StoreRuntime(open_store, self.host, SystemClock())
        runtime.executed.asker_of = self.serving.asker_of
        runtime.open()
        self.serving.open(number, runtime)
        self.routes[number].lead_to(runtime)

    async def ask(self, number: int, make: Callable[[int], c.Command], row: int = 1) -> Any:
        answer: asyncio.Future[Any] = self.loop.create_future()
        self.routes[number].submit(row, OPTIONS, make(self.numbers.next()), answer.set_result)
        return await answer

    async def send(self, number: int) -> Any:
        return await self.ask(number, lambda request: c.Enqueue(request, [Message(pack(rest=b"body"))]))

    async def reached(self, number: int) -> None:
        back = asyncio.Event()
        route = self.routes[number]
        while route.failure is not None:
            back.clear()
            route.when_usable(back.set)
            await back.wait()

    def drop_remote_brokers(self) -> None:
        """Cut the channels on which this broker answers."""
        lines, self.lines = self.lines, []
        for line in lines:
            line.cut()

    def hear_nothing(self) -> None:
        """Lose the requests of other brokers."""
        for line in self.lines:
            line.loses = True

    @property
    def has_missed_something(self) -> bool:
        return any(line.lost_bytes for line in self.lines)

    async def stop(self) -> None:
        if self.server is not None:
            self.server.close()
        self.peers.close()
        for runtime in self.runtimes.values():
            closed = asyncio.Event()
            runtime.close(closed.set)
            await closed.wait()
        self.host.stop()


@contextlib.asynccontextmanager
async def brokers(directory: Path, *names: str) -> AsyncIterator[list[Broker]]:
    made = [Broker(name, directory) for name in names]
    try:
        for broker in made:
            await broker.start()
        yield made
    finally:
        for broker in made:
            await broker.stop()


@on_loop
async def test_store_of_another_broker_is_reached(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a", "b") as (a, b):
        b.own(1)
        a.peers.lead(a.routes[1], b.identity, 1)
        refused = await a.send(1)
        assert (refused.executed, refused.message) == (False, "store-01 is b's, which is not reached yet")
        await a.reached(1)
        assert (await a.send(1)).first_sequence == 1
        assert (await b.send(1)).first_sequence == 2, "its own requests have numbers of their own"
        assert (await a.send(1)).first_sequence == 3


async def lost_unanswered(a: Broker, b: Broker, *, stored: bool) -> asyncio.Future[Any]:
    """``a`` has sent to a store of ``b``, which is gone before it has answered."""
    runtime = b.runtimes.pop(1)
    for channel in b.peers.answering:
        channel.outbox.close()
    if not stored:
        b.hear_nothing()
    answer = asyncio.ensure_future(a.send(1))
    await eventually(lambda: runtime.commits == 1 if stored else b.has_missed_something)
    assert b.server is not None
    b.server.close()
    closed = asyncio.Event()
    runtime.close(closed.set)
    await closed.wait()
    b.drop_remote_brokers()
    await eventually(lambda: a.routes[1].failure is not None)
    assert not answer.done()
    return answer


@pytest.mark.parametrize("taker", ["another", "the one that asks"])
@pytest.mark.parametrize("stored", [True, False])
@on_loop
async def test_the_next_owner_knows_what_the_lost_one_has_stored(tmp_path: Path, stored: bool, taker: str) -> None:
    async with brokers(tmp_path, "a", "b", "d") as (a, b, d):
        b.own(1)
        a.peers.lead(a.routes[1], b.identity, 1)
        await a.reached(1)
        answer = await lost_unanswered(a, b, stored=stored)
        if taker == "another":
            d.own(1, b.disks[1])
            a.peers.lead(a.routes[1], d.identity, 1)
        else:
            a.own(1, b.disks[1])
        reply = await answer
        if stored:
            assert isinstance(reply, r.Accepted)
            assert reply.first_sequence == 1
        else:
            assert isinstance(reply, r.Failed)
            assert reply.executed is False
        await a.reached(1)
        assert (await a.send(1)).first_sequence == 1 + stored


@on_loop
async def test_the_same_run_of_an_owner_may_still_be_at_it(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a", "b") as (a, b):
        b.own(1)
        a.peers.lead(a.routes[1], b.identity, 1)
        await a.reached(1)
        b.hear_nothing()
        answer = asyncio.ensure_future(a.send(1))
        await eventually(lambda: b.has_missed_something)
        b.drop_remote_brokers()
        reply = await answer
        assert (type(reply), reply.executed) == (r.Failed, None)


@on_loop
async def test_what_another_broker_measures(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a", "b", "c") as (a, b, c_):
        for owner, number in ((b, 0), (c_, 1)):
            owner.own(number)
            a.peers.lead(a.routes[number], owner.identity, number)
            await a.reached(number)
        b.serving.measure = lambda brokers, answer: answer(b"b of %d" % brokers)
        asked = []
        c_.serving.measure = lambda brokers, answer: asked.append(answer)
        measuring = asyncio.ensure_future(a.peers.measure(3))
        await eventually(lambda: bool(asked))
        c_.drop_remote_brokers()
        assert await measuring == {"b": b"b of 3"}, "who is lost before it answers is left out"
        asked[0](b"too late")


@on_loop
async def test_partitions_on_two_brokers_are_one_queue(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a", "b") as (a, b):
        a.own(0)
        b.own(1)
        a.peers.lead(a.routes[1], b.identity, 1)
        await a.reached(1)
        handles = [PartitionHandle(i, i + 1, a.routes[i], OPTIONS, batched=True) for i in range(STORES)]
        queue = EntityRoute("q", handles, a.numbers, 0)
        for number in range(20):
            sent: asyncio.Future[Any] = a.loop.create_future()
            message = Message(pack(rest=bytes([number])), partition_key=str(number))
            send(queue, [[message]], sent.set_result)
            assert await sent is None
        got: list[bytes] = []
        full = asyncio.Event()

        def granted(partition: PartitionHandle, grant: r.Granted) -> None:
            got.extend(entry.data[-1:] for entry in grant.entries if entry.data)
            tokens = [(grant.lock_id, entry.pos) for entry in grant.entries]
            partition.submit(c.Settle(0, 0, c.Outcome.COMPLETE, tokens))
            if len(got) == 20:
                full.set()

        source = queue.source(0, delete=False, on_granted=granted, on_failed=lambda error: None)
        source.ask(20, 1 << 20)
        await full.wait()
        assert sorted(got) == [bytes([number]) for number in range(20)]
        assert len(b.disks[1].durable.entries) < 20


@on_loop
async def test_channel_that_breaks_is_made_anew_and_receivers_go_on(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a", "b") as (a, b):
        b.own(1)
        a.peers.lead(a.routes[1], b.identity, 1)
        await a.reached(1)
        queue = EntityRoute(
            "q", [PartitionHandle(i, i + 1, a.routes[1], OPTIONS, batched=True) for i in range(2)], a.numbers, 0
        )
        got: list[int] = []
        came = asyncio.Event()

        def granted(partition: PartitionHandle, grant: r.Granted) -> None:
            got.extend(entry.sequence for entry in grant.entries)
            came.set()

        queue.source(0, delete=True, on_granted=granted, on_failed=lambda error: None).ask(100, 1 << 20)
        for number in range(3):
            b.drop_remote_brokers()
            await eventually(lambda: a.routes[1].failure is not None)
            await a.reached(1)
            came.clear()
            await b.send(1)
            await came.wait()
            assert len(got) == number + 1


@on_loop
async def test_another_run_of_the_owner_is_not_taken_for_it(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a") as (a,):
        old, new = Identity("b", "1"), Broker("b", tmp_path, "2")
        await new.start()
        new.own(1)
        a.peers.lead(a.routes[1], old, 1)
        await eventually(lambda: "started again" in (a.routes[1].failure or ""))
        a.peers.keep({new.identity})
        a.peers.lead(a.routes[1], new.identity, 1)
        await a.reached(1)
        assert (await a.send(1)).first_sequence == 1
        await new.stop()


@on_loop
async def test_owner_that_starts_late_is_reached_then(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a") as (a,):
        late = Broker("b", tmp_path)
        a.peers.lead(a.routes[1], late.identity, 1)
        assert a.routes[1].failure is not None
        await late.start()
        late.own(1)
        await a.reached(1)
        assert (await a.send(1)).first_sequence == 1
        await late.stop()


@on_loop
async def test_store_that_this_broker_takes_itself_is_not_led_away_again(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a", "b") as (a, b):
        b.own(0)
        b.own(1)
        a.peers.lead(a.routes[0], b.identity, 0)
        a.peers.lead(a.routes[1], b.identity, 1)
        await a.reached(1)
        a.own(1)
        b.drop_remote_brokers()
        await eventually(lambda: a.routes[0].failure is not None)
        await a.reached(0)
        assert a.routes[1].access is a.runtimes[1]


@on_loop
async def test_owner_that_has_nothing_more_still_answers_what_it_was_asked(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a", "b") as (a, b):
        b.own(1)
        a.peers.lead(a.routes[1], b.identity, 1)
        await a.reached(1)
        answers = [asyncio.ensure_future(a.send(1)) for _ in range(20)]
        await asyncio.sleep(0)
        a.peers.keep(set())
        assert [isinstance(answer, r.Accepted) for answer in await asyncio.gather(*answers)] == [True] * 20
        await eventually(lambda: not b.peers.answering)
        assert a.peers.asking == {}


@on_loop
async def test_handed_over_store_is_reached_at_its_next_owner(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a", "b", "d") as (a, b, d):
        b.own(1)
        a.peers.lead(a.routes[1], b.identity, 1)
        await a.reached(1)
        await a.send(1)
        b.serving.close(1, "handed over")
        closed = asyncio.Event()
        runtime = b.runtimes.pop(1)
        runtime.close(closed.set)
        await closed.wait()
        refused = await a.send(1)
        assert (refused.executed, refused.message) == (False, "handed over")
        d.own(1, b.disks[1])
        a.peers.lead(a.routes[1], d.identity, 1)
        await a.reached(1)
        assert (await a.send(1)).first_sequence == 2


@on_loop
async def test_brokers_on_other_machines_are_reached_over_tls(tmp_path: Path) -> None:
    pem = Path(__file__).with_name("certificate.pem")
    certificate = ssl.PEM_cert_to_DER_cert(pem.read_text()[pem.read_text().index("-----BEGIN CERT") :])
    inbound = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    inbound.load_cert_chain(pem)
    outbound = ssl.create_default_context()
    outbound.check_hostname = False
    outbound.verify_mode = ssl.CERT_NONE

    async def reached(shown: bytes) -> tuple[Broker, Broker, asyncio.Server]:
        listener = bound_tcp("127.0.0.1", 0)
        port = listener.getsockname()[1]
        a = Broker("a", tmp_path, address_of=lambda owner: TcpAddress("127.0.0.1", port, outbound))
        b = Broker("b", tmp_path)
        b.own(1)
        server = await listen_tls(listener, lambda: b.peers.make_answering(shown), inbound, b.loop, 10)
        a.peers.lead(a.routes[1], b.identity, 1)
        return a, b, server

    a, b, server = await reached(certificate)
    await a.reached(1)
    assert (await a.send(1)).first_sequence == 1
    server.close()
    await asyncio.gather(a.stop(), b.stop())
    # Somebody in between shows a certificate that is not the owner's.
    a, b, server = await reached(b"another certificate")
    await eventually(lambda: "secret" in (a.routes[1].failure or ""))
    server.close()
    await asyncio.gather(a.stop(), b.stop())


# -- the secret --------------------------------------------------------------------------------------------------------


def test_secret_is_made_once_and_is_for_its_owner_only(tmp_path: Path) -> None:
    first = load_secret(tmp_path)
    assert load_secret(tmp_path) == first
    assert len(first) >= 32
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o640)
    with pytest.raises(UnusableFile, match="chmod 600"):
        load_secret(tmp_path)
    file.chmod(0o600)
    file.write_bytes(b"short\n")
    with pytest.raises(UnusableFile, match="has 5 bytes, a secret has 32 at least"):
        load_secret(tmp_path)


def test_secret_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    with pytest.raises(UnusableFile, match="can't be used"):
        load_secret(tmp_path / "missing")


@on_loop
async def test_a_connection_that_is_not_answered_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network drops the first packets, as between two machines; the system would try once a minute."""
    tries = 0

    async def connect_later(*arguments: Any) -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            await asyncio.Event().wait()
        await connect(*arguments)

    monkeypatch.setattr(peers, "connect", connect_later)
    async with brokers(tmp_path, "b") as (b,):
        a = Broker("a", tmp_path, limits=PeerLimits(handshake_s=0.01))
        b.own(1)
        a.peers.lead(a.routes[1], b.identity, 1)
        await a.reached(1)
        assert (await a.send(1)).first_sequence == 1
        await a.stop()
    assert tries == 3
