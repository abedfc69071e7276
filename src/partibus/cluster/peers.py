"""The channels of one broker: one to each owner of a store that it needs, and those of other brokers to it."""

import asyncio
import os
from collections.abc import Callable, Set
from functools import partial

from partibus.cluster.channel import Channel, Receive
from partibus.cluster.handshake import NONCE_BYTES, Handshake
from partibus.cluster.in_doubt import InDoubt
from partibus.cluster.link import Link
from partibus.cluster.ownership import Identity
from partibus.cluster.serving import RemoteBroker, Serving
from partibus.cluster.sockets import Address, binding_of
from partibus.cluster.wire import read_questions
from partibus.limits import PeerLimits
from partibus.routing.store_access import StoreRoute
from partibus.throttling.allocator import Ask, Grant

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
        self._links: dict[Identity, Link] = {}
        self._answering: set[Channel] = set()

    # -- asking ------------------------------------------------------------------------------------------------------

    def lead(self, route: StoreRoute, owner: tuple[str, str], store_no: int) -> None:
        """Have a route lead to a store of another broker as soon as, and as long as, that broker can be reached."""
        identity = Identity(*owner)
        for link in self._links.values():
            link.let_go(store_no)
        existing = self._links.get(identity)
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
            self._links[identity] = existing
        existing.lead(store_no, route)

    def keep(self, present: Set[tuple[str, str]]) -> None:
        """Keep only the channels to running brokers and owners; others end after the answers to earlier requests."""
        for identity, link in list(self._links.items()):
            if identity not in present:
                link.leave()

    async def measure(self, brokers: int) -> dict[str, bytes]:
        """Return the measurements, by name, of the brokers to which this one has a channel.

        Brokers that take longer than `MEASURE_S` are missing.
        """
        texts: dict[str, bytes] = {}
        answers = []
        for identity, link in self._links.items():
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
        link = self._links.get(Identity(*owner))
        if link is None:
            on_grant(None)
        else:
            link.ask_credits(namespace, ask, on_grant)

    def _asking_handshake(self, expected: Identity, binding: Callable[[], bytes]) -> Handshake:
        return Handshake(self._us, self._secret, os.urandom(NONCE_BYTES), expected=expected, binding=binding)

    def _over(self, link: Link) -> None:
        if self._links.get(link.owner) is link:
            del self._links[link.owner]

    # -- answering ---------------------------------------------------------------------------------------------------

    def make_answering(self, certificate: bytes | None = None) -> Channel:
        """Return the protocol for a connection of a remote broker.

        It is for `partibus.cluster.sockets.listen`, or, with this broker's certificate (DER), for `listen_tls`.
        """
        binding: Callable[[], bytes] = bytes if certificate is None else partial(binding_of, certificate)
        remote_brokers: list[RemoteBroker] = []

        def opened(channel: Channel) -> Receive:
            peer = channel.handshake.peer
            remote_broker = self._serving.remote_broker(channel.outbox, None if peer is None else peer.run)
            remote_brokers.append(remote_broker)
            return lambda batch: remote_broker.receive(read_questions(batch))

        def lost(why: str) -> None:
            self._answering.discard(channel)
            for remote_broker in remote_brokers:
                remote_broker.lost()

        handshake = Handshake(self._us, self._secret, os.urandom(NONCE_BYTES), binding=binding)
        channel = Channel(self._loop, handshake, opened, lost, asks=False, limits=self._limits)
        self._answering.add(channel)
        return channel

    def close(self) -> None:
        """End all channels: this broker stops."""
        self._in_doubt.close()
        for link in list(self._links.values()):
            link.close("this broker is stopping")
        for channel in list(self._answering):
            channel.close("this broker is stopping")
