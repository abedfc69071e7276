"""A supervised broker: a child of the supervisor, which assigns its stores and answers for all (D2, D19).

The process ends with its supervisor: the system kills it then, and so does the end of the control channel.
"""

import asyncio
import ctypes
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvloop

from partibus.clock import ManualClock, SystemClock
from partibus.cluster.control import Body, ControlChannel, ControlLost, ControlRefused
from partibus.cluster.handshake import load_secret
from partibus.cluster.ownership import Identity
from partibus.cluster.sockets import listen
from partibus.errors import InvalidOperation, PartibusError, StoreUnavailable
from partibus.namespace.catalog import Catalog
from partibus.namespace.changes import Change
from partibus.node.coordinator import Coordinator
from partibus.node.metrics import Measurements, packed, unpacked
from partibus.node.node import Broker
from partibus.node.settings import Ports, settings_from_plain
from partibus.node.shared_stores import SharedStores
from partibus.partition.protocol.ports import StoreError
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.store.acknowledged import AcknowledgedChanges
from partibus.store.generations import Owner
from partibus.store.opening import Opener, StorePlace

log = logging.getLogger(__name__)

SOCKETS = "cluster"
"""The folder, in the data directory, of the sockets by which brokers reach each other."""
CATALOG_BUSY_S = 0.3
"""How long a change waits for another broker in the middle of one, which takes a few ms.

The loop stands still meanwhile, so this is far below the time after which a broker counts as dead.
"""
RETRY_S = 0.05
_BEFORE_THE_START = frozenset(("ping", "reload", "drain"))
"""Operations that do nothing in a process that is not a broker yet."""
_PR_SET_PDEATHSIG = 1


class SupervisedProcess:
    """The process of a supervised broker: it becomes the broker that the supervisor describes, and ends with it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ended = asyncio.Event()
        self.channel: ControlChannel
        self._loop = loop
        self._broker: Broker | None = None
        self._coordinator: Supervised | None = None
        self._closing = False

    async def handle(self, op: str, body: Body) -> Body | None:
        """Carry out an operation of the supervisor (`partibus.cluster.control.Handle`)."""
        if op == "start":
            await self._start(body)
        elif op == "close":
            await self._close()
        elif self._coordinator is not None and self._broker is not None:
            return await self._coordinator.handle(op, body)
        elif op not in _BEFORE_THE_START:
            raise ControlRefused(f"a broker that could not start has no answer to '{op}'")
        return None

    def leave(self) -> None:
        """Stop without being told to. Others take the stores when the process has ended."""

        async def leave() -> None:
            if self._broker is not None:
                await self._broker.drain()
            await self._close()

        self._leaving = self._loop.create_task(leave())

    async def _start(self, body: Body) -> None:
        """Become the broker that the supervisor describes.

        Everything up to the first ``await`` comes before its next operation, so that no change of the catalog falls in
        between.
        """
        try:
            self._broker = self._make(body)
            await self._broker.coordinator.join()
        except (PartibusError, StoreError, OSError) as error:
            print(f"partibus: {body['broker']}: {error}", file=sys.stderr)
            raise ControlRefused(str(error)) from error

    def _make(self, body: Body) -> Broker:
        settings = settings_from_plain(body["settings"])
        places = [StorePlace(*place) for place in body["store_places"]]
        now_ms = body["now_ms"]
        catalog = Catalog(
            settings.data, len(places), busy_timeout_s=CATALOG_BUSY_S, record=AcknowledgedChanges(settings.data)
        )

        def coordinate(broker: Broker) -> Coordinator:
            self._coordinator = Supervised(broker, self.channel, Ports._make(body["ports"]))
            return self._coordinator

        broker = Broker(
            Identity(body["broker"], body["incarnation"]),
            settings,
            self._loop,
            SystemClock() if now_ms is None else ManualClock(now_ms),
            places,
            catalog,
            coordinate,
            self._end,
        )
        broker.front.namespaces.follow(body["changes"])
        return broker

    async def _close(self) -> None:
        """Close the stores, then end."""
        if self._closing:
            await self.ended.wait()
            return
        self._closing = True
        if self._broker is None:
            self._end()
        else:
            await self._broker.close()

    def _end(self) -> None:
        """Let the process end after the answer to the supervisor."""
        self._loop.call_soon(self.ended.set)


class Supervised:
    """The coordinator of a broker whose supervisor assigns its stores and answers for all brokers of the machine.

    It is a `partibus.node.coordinator.Coordinator`, and `handle` carries out the operations of the supervisor.
    """

    def __init__(self, broker: Broker, channel: ControlChannel, ports: Ports) -> None:
        self._broker = broker
        self._channel = channel
        self._ports = ports
        self._sockets: asyncio.Server | None = None
        self._present: Set[Identity] = frozenset()
        """The runs of the brokers that are present."""
        self._folder = broker.settings.data / SOCKETS
        openers = [
            Opener(place, Owner(*broker.us), broker.settings.data, check_time=broker.check_time)
            for place in broker.places
        ]
        secret = load_secret(broker.settings.data)
        self.stores = SharedStores(broker, secret, self._socket_path, lambda store_no: openers[store_no]())

    async def handle(self, op: str, body: Body) -> Body | None:
        """Carry out an operation of the supervisor. Raises `ControlRefused` for an unknown one."""
        front = self._broker.front
        match op:
            case "ping":  # it carries the facts of the other brokers, and the reply those of this one
                front.hear(body["told"])
                return {"told": front.told, "units": front.units.units}
            case "owners":
                self._follow_owners(body)
            case "take":
                await self._take(body["store_no"])
            case "give-up":
                await self._broker.give_up(body["store_no"])
            case "listen":
                front.hear(body["told"])
                await self._broker.listen(self._ports, shared=True)
                gc.freeze()  # as `partibus.node.main` does
                gc.enable()
            case "follow":
                await self._follow_change(body["change"])
            case "facts":
                return self._broker.report()
            case "measure":
                return {"packed": packed(await front.measuring.measure(body["brokers"]))}
            case "take-used":
                return {"entities": front.idle.take_used()}
            case "advance":
                if front.hand is not None:
                    await front.hand.move_to(body["now_ms"], self._known(body["used"]) if front.units.leads else None)
            case "run-out":
                if front.hand is not None:
                    await front.hand.run_out()
            case "reload":
                self._broker.reload()
            case "drain":
                await self._broker.drain()
            case _:
                raise ControlRefused(f"a broker knows no operation '{op}'")
        return None

    async def join(self) -> None:
        """Accept the other brokers. Stores, and the word to listen for clients, come from the supervisor."""
        self._broker.front.units.asked = self.stores.served.asked
        path = self._socket_path(self._broker.us)
        self._sockets = await listen(path, self.stores.peers.make_answering, self._broker.loop)

    async def leave(self) -> None:
        """End the channels to the other brokers."""
        try:
            self.stores.peers.close()
        finally:
            if self._sockets is not None:
                self._sockets.close()

    def _socket_path(self, owner: tuple[str, str]) -> Path:
        return self._folder / f"{owner[0]}.sock"

    # -- operations of the supervisor --------------------------------------------------------------------------------

    def _follow_owners(self, body: Body) -> None:
        owners = [None if owner is None else Identity(*owner) for owner in body["owners"]]
        present = frozenset(Identity(*one) for one in body["present"])
        if not self._present <= present:
            self._broker.front.idle.begin()  # what was used through a run that has ended may not be known
        self._present = present
        self.stores.follow(body["version"], owners, present)
        self._broker.lead(body["leader"] == self._broker.us.broker)
        self._broker.front.units.follow(len(present), self._broker.settings.brokers_most)

    async def _take(self, store_no: int) -> None:
        """Open a store and own it."""
        taken: asyncio.Future[StoreRuntime] = self._broker.loop.create_future()
        self.stores.take(store_no, taken.set_result)
        self._broker.opened(store_no, await taken)

    async def _follow_change(self, change: Change) -> None:
        """Follow a change by another broker. The reply comes after that: the other broker waits for it."""
        while True:
            try:
                self._broker.front.namespaces.follow(change)
                return
            except StoreUnavailable as error:
                log.warning("the catalog can't be read now: %s", error)
                await asyncio.sleep(RETRY_S)

    # -- requests to the supervisor ----------------------------------------------------------------------------------

    def announce(self, change: Change, followed: Callable[[], None]) -> None:
        """Announce a change through the supervisor."""

        async def tell() -> None:
            await self._ask("announce", change=change)
            followed()

        self._broker.front.spawn(tell())

    async def status(self) -> dict[str, Any]:
        """Ask the supervisor for brokers and stores."""
        return dict(await self._ask("status"))

    async def measurements(self) -> Mapping[str, Measurements]:
        """Ask the supervisor for all measurements."""
        answers = await self._ask("measurements")
        return await unpacked((broker, answer["packed"]) for broker, answer in answers.items())

    async def advance(self, milliseconds: int) -> int:
        """Have the supervisor move the manual clock."""
        return int((await self._ask("advance", milliseconds=milliseconds))["now_ms"])

    async def used(self, *, surely: bool = False) -> Iterable[int] | None:
        """Ask the supervisor for the queues used through any broker, which it asks at once."""
        if not self._broker.front.units.leads:
            return None
        return self._known((await self._ask("used"))["entities"])

    def _known(self, used: list[int] | None) -> list[int] | None:
        """Return the queues used through any broker, or None when a broker did not tell.

        The marks of the brokers that did tell are lost with the answer, so every entity counts as just used then.
        """
        if used is None:
            self._broker.front.idle.begin()
        return used

    async def _ask(self, op: str, **body: Any) -> Body:
        try:
            return await self._channel.ask(op, **body)
        except ControlRefused as error:
            raise InvalidOperation(str(error)) from error
        except ControlLost as error:  # this process is about to end
            raise StoreUnavailable(f"The broker is stopping: {error}.") from error


def run(control: int) -> None:
    """Run as a child, with the descriptor of an end of a control channel.

    The caller may have disabled garbage collection before it imported this: it is enabled when the broker listens.
    """
    _end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end = socket.socket(fileno=control)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(end))


async def _run(end: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    process = SupervisedProcess(loop)
    process.channel = await ControlChannel.open(end, process.handle, _orphaned)
    loop.add_signal_handler(signal.SIGTERM, process.leave)
    await process.ended.wait()
    await process.channel.finish()


def _end_with_parent() -> None:
    """Have the system kill this process when the thread that started it ends, where it can (Linux)."""
    with suppress(OSError, AttributeError):  # the end of the control channel says the same
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _orphaned() -> None:
    """End at once after the loss of the supervisor, since a new one may be starting on the same data.

    Nothing acknowledged is lost, as in any crash.
    """
    os.kill(os.getpid(), signal.SIGKILL)
