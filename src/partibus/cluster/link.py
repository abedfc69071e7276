"""The way to one run of a broker that owns stores.

It uses one channel at a time, and opens a new one as long as the owner is present.
"""

import asyncio
import logging
from collections.abc import Callable

from partibus.cluster.channel import Channel, Receive
from partibus.cluster.handshake import Handshake
from partibus.cluster.in_doubt import InDoubt
from partibus.cluster.ownership import Identity
from partibus.cluster.remote_store import RemoteBroker
from partibus.cluster.sockets import Address, TcpAddress, binding_of, connect
from partibus.cluster.wire import read_answers
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
        await connect(self._address, lambda: channel, self._loop)

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
