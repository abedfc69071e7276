"""One of several brokers: a child of a supervisor, which assigns its stores and answers for all (D2, D19).

It ends with its supervisor: the system kills it then, and so does the end of the control channel.
"""

import asyncio
import ctypes
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import uvloop

from partibus.clock import Clock, ManualClock, SystemClock
from partibus.cluster.control import Body, ControlChannel, ControlLost, ControlRefused
from partibus.cluster.credits import Credits
from partibus.cluster.handshake import Identity
from partibus.cluster.ownership import Owner, Stores
from partibus.cluster.peers import PeerChannels
from partibus.cluster.secret import load_secret
from partibus.cluster.serving import Serving
from partibus.cluster.sockets import listen
from partibus.errors import InvalidOperation, PartibusError, StoreUnavailable
from partibus.namespace.announcing import Change
from partibus.namespace.catalog import Catalog
from partibus.namespace.keys_file import load_policies
from partibus.node.front import Front
from partibus.node.host import StoreHosts
from partibus.node.metrics import Measurements, packed, unpacked
from partibus.node.settings import Ports, settings_from_plain
from partibus.node.stored_time import stored_time
from partibus.node.telemetry import Telemetry
from partibus.partition.protocol.ports import Store, StoreError
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.store.acknowledged import AcknowledgedChanges
from partibus.store.opening import Opener, StorePlace
from partibus.store.owner import Owner as StoreOwner

log = logging.getLogger(__name__)

SOCKETS = "cluster"
"""The folder, in the data directory, of the sockets by which brokers reach each other."""
CATALOG_BUSY_S = 0.3
"""How long a change waits for another broker in the middle of one, which takes a few ms.

The loop stands still meanwhile, so this is far below the time after which a broker counts as dead.
"""
RETRY_S = 0.05
_BEFORE_THE_START = frozenset(("start", "ping", "reload", "drain", "close"))
_PR_SET_PDEATHSIG = 1


class SupervisedBroker:
    """A child that carries out the supervisor's operations; each operation is a method."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ended = asyncio.Event()
        self.channel: ControlChannel
        self._loop = loop
        self._made = False
        self._drained = False
        self._closing = False
        self._sockets: asyncio.Server | None = None
        self._janitor = False
        self._operations: dict[str, Callable[[Body], Awaitable[Body | None]]] = {
            "start": self._start,
            "ping": self._ping,
            "owners": self._owners,
            "take": self._take,
            "give-up": self._give_up,
            "listen": self._listen,
            "reload": self._reload,
            "follow": self._follow,
            "facts": self._facts,
            "measure": self._measure,
            "take-used": self._take_used,
            "advance": self._advance,
            "run-out": self._run_out,
            "drain": self._drain,
            "close": self._close,
        }

    async def handle(self, op: str, body: Body) -> Body | None:
        """Carry out an operation (`partibus.cluster.control.Handle`)."""
        operation = self._operations.get(op)
        if operation is None:
            raise ControlRefused(f"a broker knows no operation '{op}'")
        if not self._made and op not in _BEFORE_THE_START:
            raise ControlRefused(f"a broker that could not start has no answer to '{op}'")
        return await operation(body)

    # -- life --------------------------------------------------------------------------------------------------------

    async def _start(self, body: Body) -> None:
        """Become the broker that the supervisor describes.

        Everything up to the first ``await`` comes before its next operation, so that no change of the catalog falls in
        between.
        """
        try:
            self._make(body)
            path = _socket_path(self._settings.data, self._us)
            self._sockets = await listen(path, self._peers.make_answering, self._loop)
        except (PartibusError, StoreError, OSError) as error:
            print(f"partibus: {body['broker']}: {error}", file=sys.stderr)
            raise ControlRefused(str(error)) from error

    def _make(self, body: Body) -> None:
        self._settings = settings = settings_from_plain(body["settings"])
        self._us = Owner(body["broker"], body["incarnation"])
        self._ports = Ports._make(body["ports"])
        now_ms = body["now_ms"]
        self._clock: Clock = SystemClock() if now_ms is None else ManualClock(now_ms)
        self._hosts = StoreHosts(self._loop)
        self._telemetry = Telemetry(settings, *self._us, self._loop)
        self._meters = self._telemetry.meters
        names = body["store_names"]
        places = [StorePlace(*place) for place in body["store_places"]]
        check_time = stored_time(self._clock, settings, self._time_jumped, self._loop)
        self._openers = [Opener(place, StoreOwner(*self._us), settings.data, check_time=check_time) for place in places]
        self._places = places
        self._serving = Serving()
        self._peers = PeerChannels(
            Identity(*self._us),
            load_secret(settings.data),
            lambda peer: _socket_path(settings.data, peer),
            self._serving,
            self._loop,
            settings.limits.peer,
        )
        self.stores = Stores(
            names, self._us, self._hosts.near, self._peers, self._serving, self._open_store, self._make_runtime
        )
        credits = Credits(self._us, len(names), self._peers, self._clock, self._loop.time)
        self.stores.on_owners = credits.follow
        self._serving.grant = credits.grant
        self.front = Front(
            settings,
            self._loop,
            self._clock,
            Catalog(
                settings.data,
                len(names),
                busy_timeout_s=CATALOG_BUSY_S,
                record=AcknowledgedChanges(settings.data),
            ),
            load_policies(settings.data, emulator=settings.emulator, emulator_operates=settings.is_local),
            {route.name: route for route in self.stores.routes},
            self.stores.runtimes.values,
            self,
            self._meters,
            credits,
            self._us.broker,
        )
        self.front.units.asked = self._serving.asked
        self.front.namespaces.follow(body["changes"])
        self._telemetry.begin(self.front.namespaces)
        self._made = True

    def _time_jumped(self) -> None:
        self.front.time_jumped()

    async def _ping(self, body: Body) -> Body | None:
        """Answer a ping. It carries the facts of the other brokers, and the reply those of this one."""
        if not self._made:
            return None
        self.front.hear(body["told"])
        return {"told": self.front.told, "units": self.front.units.units}

    async def _listen(self, body: Body) -> None:
        """Accept connections. The message tells the connections that the other brokers have."""
        self.front.hear(body["told"])
        await self.front.listen(self._settings.host, self._ports, shared=True)
        gc.freeze()  # as `partibus.node.main` does
        gc.enable()

    async def _reload(self, body: Body) -> None:
        """Reload the certificate from its files."""
        if self._made:
            self.front.reload()

    async def _drain(self, body: Body) -> None:
        """Tell the clients to go."""
        if self._made and not self._drained:
            self._drained = True
            await self.front.drain()

    async def _close(self, body: Body) -> None:
        """Close the stores, then end."""
        if self._closing:
            await self.ended.wait()
            return
        self._closing = True
        async with AsyncExitStack() as closing:  # the last of these first, whatever another one raises
            closing.callback(self._loop.call_soon, self.ended.set)
            if self._made:
                closing.callback(self.front.close)
                closing.callback(self._telemetry.close)
                closing.callback(self._hosts.stop)
                if self._sockets is not None:
                    closing.callback(self._sockets.close)
                closing.callback(self._peers.close)
                closing.push_async_callback(self._close_stores)

    async def _close_stores(self) -> None:
        closed = asyncio.Event()
        self.stores.close(closed.set)
        await closed.wait()

    async def leave(self) -> None:
        """Stop without being told to, as `_drain` and `_close`. Others take the stores when the process has ended."""
        await self._drain({})
        await self._close({})

    # -- ownership ---------------------------------------------------------------------------------------------------

    async def _owners(self, body: Body) -> None:
        owners = [None if owner is None else Owner(*owner) for owner in body["owners"]]
        self.stores.follow(body["version"], owners, [Owner(*one) for one in body["present"]])
        janitor = body["janitor"] == self._us.broker
        if janitor and not self._janitor:
            self.front.idle.begin()
        self._janitor = janitor
        self.front.units.leads = janitor
        self.front.units.follow(len(body["present"]), self._settings.brokers_most)

    async def _take(self, body: Body) -> None:
        store_no = body["store_no"]
        taken: asyncio.Future[StoreRuntime] = self._loop.create_future()
        self.stores.take(store_no, taken.set_result)
        runtime = await taken
        self.front.forwarder.opened(store_no, runtime)
        try:
            self.front.drop_leftovers(store_no, runtime)
        except StoreUnavailable as error:
            log.warning("what deleted entities have left in %s stays for now: %s", self.stores.names[store_no], error)

    async def _give_up(self, body: Body) -> None:
        given = asyncio.Event()
        self.stores.give_up(body["store_no"], given.set)
        await given.wait()

    def _open_store(self, store_no: int) -> Store:
        return self._openers[store_no]()

    def _make_runtime(self, store_no: int, open_one: Callable[[], Store]) -> StoreRuntime:
        return self.front.make_runtime(open_one, self._hosts.of(self._places[store_no]), self._clock, self._meters)

    # -- as one of the whole -----------------------------------------------------------------------------------------

    async def _follow(self, body: Body) -> None:
        """Follow a change by another broker. The reply comes after that: the other broker waits for it."""
        while True:
            try:
                self.front.namespaces.follow(body["change"])
                return
            except StoreUnavailable as error:
                log.warning("the catalog can't be read now: %s", error)
                await asyncio.sleep(RETRY_S)

    async def _facts(self, body: Body) -> Body:
        return {
            "stores": self.stores.facts(),
            "connections": self.front.connections,
            "namespaces": self.front.connections_by_namespace,
        }

    async def _measure(self, body: Body) -> Body:
        return {"packed": packed(await self.front.measuring.measure(body["brokers"]))}

    async def _take_used(self, body: Body) -> Body:
        return {"entities": self.front.idle.take_used()}

    async def _advance(self, body: Body) -> None:
        if self.front.hand is not None:
            await self.front.hand.move_to(body["now_ms"], body["used"] if self._janitor else None)

    async def _run_out(self, body: Body) -> None:
        if self.front.hand is not None:
            await self.front.hand.run_out()

    # -- what `partibus.node.front.ClusterAdmin` asks for -------------------------------------------------------------

    def announce(self, change: Change, followed: Callable[[], None]) -> None:
        """Announce a change through the supervisor."""

        async def tell() -> None:
            await self._ask("announce", change=change)
            followed()

        task = self._loop.create_task(tell())
        _KEPT.add(task)
        task.add_done_callback(_KEPT.discard)

    async def health(self) -> Mapping[str, str]:
        """Ask the supervisor for the health of each store (`ClusterAdmin`)."""
        stores: Mapping[str, str] = (await self._ask("health"))["stores"]
        return stores

    async def status(self) -> dict[str, Any]:
        """Ask the supervisor for brokers and stores (`ClusterAdmin`)."""
        return dict(await self._ask("status"))

    async def measurements(self) -> Mapping[str, Measurements]:
        """Ask the supervisor for all measurements (`ClusterAdmin`)."""
        answers = await self._ask("measurements")
        return await unpacked((broker, answer["packed"]) for broker, answer in answers.items())

    async def advance(self, milliseconds: int) -> int:
        """Have the supervisor move the manual clock (`ClusterAdmin`)."""
        return int((await self._ask("advance", milliseconds=milliseconds))["now_ms"])

    async def used(self) -> Iterable[int] | None:
        """Ask the supervisor for the queues used through any broker (`ClusterAdmin`)."""
        if not self._janitor:
            return None
        entities: list[int] = (await self._ask("used"))["entities"]
        return entities

    async def _ask(self, op: str, **body: Any) -> Body:
        try:
            return await self.channel.ask(op, **body)
        except ControlRefused as error:
            raise InvalidOperation(str(error)) from error
        except ControlLost as error:  # this process is about to end
            raise StoreUnavailable(f"The broker is stopping: {error}.") from error


_KEPT: set[asyncio.Task[None]] = set()
"""Tasks under way; the loop itself holds tasks weakly."""


def main() -> None:
    """Run as a child. The only argument is a file descriptor, an end of a control channel.

    The caller may have disabled garbage collection before it imported this: it is enabled when the broker listens.
    """
    _end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end = socket.socket(fileno=int(sys.argv[1]))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(end))


async def _run(end: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    member = SupervisedBroker(loop)
    member.channel = await ControlChannel.open(end, member.handle, _orphaned)

    def leave() -> None:
        task = loop.create_task(member.leave())
        _KEPT.add(task)
        task.add_done_callback(_KEPT.discard)

    loop.add_signal_handler(signal.SIGTERM, leave)
    await member.ended.wait()
    await member.channel.finish()


def _end_with_parent() -> None:
    """Have the system kill this process when the thread that started it ends, where it can (Linux)."""
    with suppress(OSError, AttributeError):  # the end of the control channel says the same
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _orphaned() -> None:
    """End at once after the loss of the supervisor, since a new one may be starting on the same data.

    Nothing acknowledged is lost, as in any crash.
    """
    os.kill(os.getpid(), signal.SIGKILL)


def _socket_path(data: Path, owner: tuple[str, str]) -> Path:
    return data / SOCKETS / f"{owner[0]}.sock"
