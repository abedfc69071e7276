"""The channels of one broker: one to each owner of a store that it needs, and those of other brokers to it.

A `Link` stands for one run of an owner. It uses one channel at a time, and opens a new one as long as the owner is
present.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Set
from functools import partial

from partibus.cluster.channel import Channel, Receive
from partibus.cluster.handshake import NONCE_BYTES, Handshake
from partibus.cluster.in_doubt import InDoubt
from partibus.cluster.ownership import Identity
from partibus.cluster.remote_store import RemoteBroker
from partibus.cluster.serving import ServedBroker, Serving
from partibus.cluster.sockets import Address, TcpAddress, binding_of, connect
from partibus.cluster.wire import read_answers, read_questions
from partibus.limits import PeerLimits
from partibus.routing.store_access import StoreRoute
from partibus.throttling.allocator import Ask, Grant

log = logging.getLogger(__name__)

RETRY_S = 0.02
"""Time until the first new attempt. It doubles with each further attempt, up to the longest."""
RETRY_MAX_S = 1.0
LAST_ANSWERS_S = 5.0
"""The time in which a broker without stores must answer earlier requests."""
_LOOK_S = 0.05

MakeHandshake = Callable[[Identity, Callable[[], bytes]], Handshake]
"""Gets the expected identity and the binding (`partibus.cluster.handshake`)."""


class Link:
    """The channel to one owner. ``on_over`` is called once the channel has ended."""

    def __init__(
        self,
        owner: Identity,
        address: Address,
        make_handshake: MakeHandshake,
        on_over: "Callable[[Link], None]",
        loop: asyncio.AbstractEventLoop,
        limits: PeerLimits,
        in_doubt: InDoubt | None = None,
    ) -> None:
        self.owner = owner
        self.leaving = False
        self._address = address
        self._make_handshake = make_handshake
        self._on_over = on_over
        self._loop = loop
        self._limits = limits
        self._in_doubt = in_doubt
        self._routes: dict[int, StoreRoute] = {}
        self._channel: Channel | None = None
        self._remote: RemoteBroker | None = None
        self._retry_s = RETRY_S
        self._opened_s = 0.0
        self._task = loop.create_task(self._connect())

    def lead(self, store_no: int, route: StoreRoute) -> None:
        """Have a route lead to a store of this owner, now or as soon as the owner is reached."""
        self._routes[store_no] = route
        if self._remote is not None:
            route.lead_to(self._remote.store(store_no, route))
        else:
            route.lead_nowhere(f"{route.name} is {self.owner.broker}'s, which is not reached yet")

    def measure(self, brokers: int, on_measured: Callable[[bytes | None], None]) -> bool:
        """Ask for measurements (`RemoteBroker.measure`). Return False when the owner is not reached now."""
        if self._remote is None:
            return False
        self._remote.measure(brokers, on_measured)
        return True

    def ask_credits(self, namespace: int, ask: Ask, on_grant: Callable[[Grant | None], None]) -> None:
        """Ask for credits (`RemoteBroker.ask_credits`). The grant is also None when the owner is not reached now."""
        if self._remote is None:
            on_grant(None)
        else:
            self._remote.ask_credits(namespace, ask, on_grant)

    def let_go(self, store_no: int) -> None:
        """Stop leading to a store that another broker owns now. Idempotent."""
        self._routes.pop(store_no, None)

    def leave(self) -> None:
        """End after the owner's answers to earlier requests: it has no stores, or has ended."""
        if self.leaving:
            return
        self.leaving = True
        self._routes.clear()
        if self._remote is None or not self._remote.requests:
            self.close(f"{self.owner.broker} has given up its stores")
        else:
            self._task = self._loop.create_task(self._await_answers(self._remote))

    def close(self, why: str) -> None:
        """End now. Idempotent."""
        self.leaving = True
        self._task.cancel()
        if self._channel is not None:
            self._channel.close(why)
        self._on_over(self)

    # -- channels ----------------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        while not self.leaving:
            try:
                await self._dial(self._new_channel())
                return
            except OSError as error:
                log.info("%s is not reached at %s: %s", self.owner.broker, self._address, error)
                self._channel = None
            await self._pause()

    async def _dial(self, channel: Channel) -> None:
        self._channel = channel
        seconds = self._limits.handshake_s
        try:
            async with asyncio.timeout(seconds):
                await connect(self._address, lambda: channel, self._loop)
        except TimeoutError:  # the system would go on for minutes, in steps that grow
            raise TimeoutError(f"no connection within {seconds:g} s") from None

    async def _reconnect(self) -> None:
        await self._pause()
        await self._connect()

    async def _pause(self) -> None:
        await asyncio.sleep(self._retry_s)
        self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)

    def _new_channel(self) -> Channel:
        def binding() -> bytes:
            return binding_of(channel.peer_certificate) if isinstance(self._address, TcpAddress) else b""

        channel = Channel(
            self._loop,
            self._make_handshake(self.owner, binding),
            self._opened,
            self._lost,
            asks=True,
            limits=self._limits,
        )
        return channel

    def _opened(self, channel: Channel) -> Receive:
        remote = self._remote = RemoteBroker(
            self.owner.broker,
            channel.outbox,
            self._loop.call_soon,
            self._limits,
            self.owner.run,
            self._in_doubt,
        )
        self._opened_s = self._loop.time()
        for store_no, route in self._routes.items():
            if route.access is None:  # else this broker has taken the store itself
                route.lead_to(remote.store(store_no, route))
        return lambda batch: remote.receive(read_answers(batch))

    def _lost(self, why: str) -> None:
        remote, self._remote, self._channel = self._remote, None, None
        if remote is not None and self._loop.time() > self._opened_s + RETRY_MAX_S:
            self._retry_s = RETRY_S  # it was good for a while
        why = f"{self.owner.broker} is not reached: {why}"
        if remote is not None:
            remote.lost(why)
        for route in self._routes.values():
            if route.access is None:
                route.lead_nowhere(why)
        if not self.leaving:
            self._task = self._loop.create_task(self._reconnect())
        else:
            self._on_over(self)

    async def _await_answers(self, remote: RemoteBroker) -> None:
        end_s = self._loop.time() + LAST_ANSWERS_S
        # Polling is enough: the owner's last answers are a matter of one commit.
        while remote.requests and self._loop.time() < end_s:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        self.close(f"{self.owner.broker} has given up its stores")


AddressOf = Callable[[Identity], Address]

MEASURE_S = 2.0
"""The time limit of measurements; brokers that take longer are left out of the metrics."""


def _settle(answer: "asyncio.Future[bytes | None]", text: bytes | None) -> None:
    if not answer.done():
        answer.set_result(text)


class PeerChannels:
    """The channels to and from other brokers. All on the loop.

    ``secret`` is that of all brokers of the namespace (`partibus.cluster.handshake`).
    """

    def __init__(
        self,
        us: tuple[str, str],
        secret: bytes,
        address_of: AddressOf,
        serving: Serving,
        loop: asyncio.AbstractEventLoop,
        limits: PeerLimits | None = None,
    ) -> None:
        self._us = Identity(*us)
        self._secret = secret
        self._address_of = address_of
        self._serving = serving
        self._loop = loop
        self._limits = limits or PeerLimits()
        self._in_doubt = InDoubt(self._us.run, loop.call_later, loop.time)
        self.asking: dict[Identity, Link] = {}
        """The channels on which this broker asks the owners of stores."""
        self.answering: set[Channel] = set()
        """The channels on which other brokers ask this one."""

    # -- asking ------------------------------------------------------------------------------------------------------

    def lead(self, route: StoreRoute, owner: tuple[str, str], store_no: int) -> None:
        """Have a route lead to a store of another broker as soon as, and as long as, that broker can be reached."""
        identity = Identity(*owner)
        for link in self.asking.values():
            link.let_go(store_no)
        existing = self.asking.get(identity)
        if existing is None or existing.leaving:
            existing = Link(
                identity,
                self._address_of(identity),
                self._asking_handshake,
                self._over,
                self._loop,
                self._limits,
                self._in_doubt,
            )
            self.asking[identity] = existing
        existing.lead(store_no, route)

    def keep(self, present: Set[tuple[str, str]]) -> None:
        """Keep only the channels to running brokers and owners; others end after the answers to earlier requests."""
        for identity, link in list(self.asking.items()):
            if identity not in present:
                link.leave()

    async def measure(self, brokers: int) -> dict[str, bytes]:
        """Return the measurements, by name, of the brokers to which this one has a channel.

        Brokers that take longer than `MEASURE_S` are missing.
        """
        texts: dict[str, bytes] = {}
        answers = []
        for identity, link in self.asking.items():
            answer: asyncio.Future[bytes | None] = self._loop.create_future()
            if link.measure(brokers, partial(_settle, answer)):
                answers.append((identity.broker, answer))
        if answers:
            await asyncio.wait([answer for _, answer in answers], timeout=MEASURE_S)
        for broker, answer in answers:
            if not answer.done():
                answer.cancel()
            elif (text := answer.result()) is not None:
                texts[broker] = text
        return texts

    def ask_credits(
        self, owner: tuple[str, str], namespace: int, ask: Ask, on_grant: Callable[[Grant | None], None]
    ) -> None:
        """Ask the allocator of a namespace at a broker.

        ``on_grant`` gets None when that is not reached, or has no allocator.
        """
        link = self.asking.get(Identity(*owner))
        if link is None:
            on_grant(None)
        else:
            link.ask_credits(namespace, ask, on_grant)

    def _asking_handshake(self, expected: Identity, binding: Callable[[], bytes]) -> Handshake:
        return Handshake(self._us, self._secret, os.urandom(NONCE_BYTES), expected=expected, binding=binding)

    def _over(self, link: Link) -> None:
        if self.asking.get(link.owner) is link:
            del self.asking[link.owner]

    # -- answering ---------------------------------------------------------------------------------------------------

    def make_answering(self, certificate: bytes | None = None) -> Channel:
        """Return the protocol for a connection of a remote broker.

        It is for `partibus.cluster.sockets.listen`, or, with this broker's certificate (DER), for `listen_tls`.
        """
        binding: Callable[[], bytes] = bytes if certificate is None else partial(binding_of, certificate)
        remote_brokers: list[ServedBroker] = []

        def opened(channel: Channel) -> Receive:
            peer = channel.handshake.peer
            remote_broker = self._serving.remote_broker(channel.outbox, None if peer is None else peer.run)
            remote_brokers.append(remote_broker)
            return lambda batch: remote_broker.receive(read_questions(batch))

        def lost(why: str) -> None:
            self.answering.discard(channel)
            for remote_broker in remote_brokers:
                remote_broker.lost()

        handshake = Handshake(self._us, self._secret, os.urandom(NONCE_BYTES), binding=binding)
        channel = Channel(self._loop, handshake, opened, lost, asks=False, limits=self._limits)
        self.answering.add(channel)
        return channel

    def close(self) -> None:
        """End all channels: this broker stops."""
        self._in_doubt.close()
        for link in list(self.asking.values()):
            link.close("this broker is stopping")
        for channel in list(self.answering):
            channel.close("this broker is stopping")
