"""The supervisor: it runs several brokers as child processes and assigns the stores to them (D2, D19).

It moves no message and keeps nothing on disk. It tells each starting child the owners and the time of a manual clock,
and its children end with it. Brokers act together through it: a broker that is asked for health, the clock or the
cluster asks the supervisor, which asks all.

A child that does not answer is killed: a stopped process still gets connections from the kernel, and may hold the
catalog's lock (both measured). A starting one can't answer yet, since it first reads the catalog; it is killed when it
is seen to be stopped. Ticks are counted and not time, so that a pause of the whole machine kills no child.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from partibus.cluster.admin import ClusterAdmin
from partibus.cluster.assignment import GiveUp, OwnershipPlan, Take
from partibus.cluster.children import Child, Children, Process
from partibus.cluster.control import Body, ControlChannel, ControlLost, ControlRefused
from partibus.errors import StartError
from partibus.units.scaling import brokers_wanted

log = logging.getLogger(__name__)

TICK_S = 0.25
SILENT_TICKS_MAX = 12
"""Ticks without an answer, 3 s, after which a child is killed. A broker on a busy machine, or one that takes in a large
request, is silent for up to a second. To kill it then would cost more than to wait.
"""
START_S = 60.0
"""Longest time that a child may take to read the catalog and join."""
DRAIN_S = 5.0
CLOSE_S = 20.0
"""Time that a graceful stop waits for clients to be told and for stores to be closed."""
RESTART_DELAY_S = 0.1
RESTART_DELAY_MAX_S = 5.0
STABLE_S = 10.0
"""A child that lived this long is restarted without delay. Otherwise the delay is twice the last one."""
ENDED_S = 5.0


class SupervisorError(StartError):
    """The brokers could not be started; the text says why."""


class Supervisor:
    """Child processes over the stores with these names: a fixed number, or as many as messaging units want (R12).

    An added broker starts like a restarted one: it joins, and stores move to it. A removed broker gives its stores up
    first, so that others have them while its clients can still reach everything through it. Then it is told to drain
    and close, as at a graceful stop. The youngest broker is removed.
    """

    def __init__(
        self,
        launch: Callable[[socket.socket], Awaitable[Process]],
        brokers: int,
        store_names: Sequence[str],
        make_start: Callable[[str], Mapping[str, Any]],
        now_ms: int | None,
        brokers_max: int | None = None,
        units_per_broker: int = 1,
        close_s: float = CLOSE_S,
        next_tick: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(TICK_S),
    ) -> None:
        """Prepare the children.

        ``launch`` starts a child with its end of the control channel, and may raise OSError. ``make_start`` makes the
        first message to a broker. ``now_ms``: of a manual clock, else None. ``brokers_max``: with it ``brokers`` is the
        least. ``close_s``: how long a child may take to close. ``next_tick`` waits until the next look at the children.
        """
        self._launch = launch
        self._names = store_names
        self._make_start = make_start
        self._least = brokers
        self._most = brokers if brokers_max is None else brokers_max
        self._units_per_broker = units_per_broker
        self._close_s = close_s
        self._next_tick = next_tick
        self.children = Children(brokers)
        self.admin = ClusterAdmin(self.children, store_names, now_ms)
        self._plan = OwnershipPlan(len(store_names))
        self._version = 0
        self._started = False
        self._stopping = False
        self._failed: asyncio.Future[None]
        self._all_joined = asyncio.Event()
        self._settled = asyncio.Event()
        self._any_moved = asyncio.Event()

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> list[dict[str, Any]]:
        """Start all, assign the stores, let them listen; return ``id``, ``pid`` and number of ``stores`` of each.

        Raises `SupervisorError` when a child ends before that; then none is left.
        """
        self._failed = asyncio.get_running_loop().create_future()
        for broker in self.children.brokers:
            self.children.spawn(self._keep_running(broker))
        self.children.spawn(self._tick())
        starting = self.children.spawn(self._all_serving())
        await asyncio.wait([starting, self._failed], return_when=asyncio.FIRST_COMPLETED)
        if self._failed.done():
            await self.stop()
            await self._failed
        await starting
        self._started = True
        return [
            {"id": broker, "pid": self.children[broker].pid, "stores": self._plan.owners.count(broker)}
            for broker in self.children.brokers
        ]

    async def stop(self) -> None:
        """Send clients elsewhere, close the stores, and wait until all children have ended."""
        self._stopping = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self.children.ask_all("drain"), DRAIN_S)
        for child in self.children:
            child.closing = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self.children.ask_all("close"), self._close_s)
        children = list(self.children)
        ended = [asyncio.ensure_future(child.process.wait()) for child in children]
        if ended:
            await asyncio.wait(ended, timeout=ENDED_S)
        for child in children:
            if child.process.returncode is None:
                log.warning("%s (process %d) did not end and is killed", child.broker, child.pid)
                child.kill()
        if ended:
            await asyncio.wait(ended)
        await self.children.cancel_all()

    def reload(self) -> None:
        """Have all brokers load the certificate from its files again."""
        self.children.spawn(self.children.ask_all("reload"))

    async def _all_serving(self) -> None:
        """Assign the stores when all children are ready, so that no store has to move at once."""
        await self._all_joined.wait()
        for broker in self.children.brokers:
            self._plan.joined(broker)
        self._reconcile()
        await self._settled.wait()
        await asyncio.gather(*(self._listen(self.children[broker]) for broker in self.children.brokers))

    # -- one child ---------------------------------------------------------------------------------------------------

    async def _keep_running(self, broker: str) -> None:
        delay_s = RESTART_DELAY_S
        loop = asyncio.get_running_loop()
        while not self._is_stopping() and broker in self.children.brokers:
            began_s = loop.time()
            try:
                child = await self._run(broker)
            except OSError as error:
                delay_s = min(2 * delay_s, RESTART_DELAY_MAX_S)
                log.error("%s can't be started now (%s); the next attempt follows in %g s", broker, error, delay_s)
                self._not_started(f"{broker} could not be started: {error}")
                if not self._started:
                    return
                await asyncio.sleep(delay_s)
                continue
            self.children.restarts[broker] += 1
            code = await child.process.wait()
            self._ended(child, code)
            if self._is_stopping() or child.leaving:
                return
            if not self._started:
                self._not_started(f"{broker} ended with exit code {code} before it was ready; its reason is in the log")
                return
            delay_s = RESTART_DELAY_S if loop.time() - began_s > STABLE_S else min(2 * delay_s, RESTART_DELAY_MAX_S)
            await asyncio.sleep(delay_s)

    def _is_stopping(self) -> bool:
        return self._stopping

    def _not_started(self, reason: str) -> None:
        """Fail the start of the supervisor, unless it is over."""
        if not self._started and not self._failed.done():
            self._failed.set_exception(SupervisorError(reason))

    async def _run(self, broker: str) -> Child:
        """Start a broker's process. Raises `OSError` when the machine has too many processes or open files."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await self._launch(theirs)
            except BaseException:
                ours.close()
                raise
        child = Child(broker, process)

        async def handle(op: str, body: Body) -> Body | None:
            return await self.admin.asked(child, op, body)

        def lost() -> None:
            asyncio.get_running_loop().call_later(ENDED_S, child.kill)

        child.channel = await ControlChannel.open(ours, handle, lost)
        self.children.add(child)
        self.children.spawn(self._introduce(child))
        return child

    async def _introduce(self, child: Child) -> None:
        """Tell a child its identity; it is ready when it has answered."""
        if self._is_stopping():
            child.kill()
            return
        start = dict(self._make_start(child.broker)) | {"now_ms": self.admin.now_ms, "changes": self.admin.changes}
        start |= {"broker": child.broker, "incarnation": child.incarnation, "store_names": list(self._names)}
        with suppress(ControlLost):
            try:
                child.introduced = True
                async with asyncio.timeout(START_S):  # `wait_for` would begin later
                    await child.channel.ask("start", **start)
            except (TimeoutError, ControlRefused) as error:
                why = str(error) or f"it took more than {START_S:g} s"
                log.warning("%s (process %d) could not start: %s", child.broker, child.pid, why)
                child.kill()
                return
            child.joined = True
            child.silent_ticks = 0
            if self.children.all_joined:
                self._all_joined.set()
            if self._started:
                self._plan.joined(child.broker)
                self._reconcile()
                await self._listen(child)
                again = log.warning if self.children.restarts[child.broker] else log.info
                again("%s runs now as process %d", child.broker, child.pid)

    async def _listen(self, child: Child) -> None:
        await child.channel.ask("listen", told=self.children.told_by_others(child))
        child.serving = True

    def _ended(self, child: Child, code: int) -> None:
        """Give a child's stores to the others at once: its process has ended, and its locks on files with it."""
        child.channel.close()
        self.children.remove(child)
        if not self._stopping and not child.leaving:
            log.warning(
                "%s (process %d) has ended with code %d; the others take its stores", child.broker, child.pid, code
            )
        self._plan.left(child.broker)
        self._reconcile()

    async def _tick(self) -> None:
        while True:
            await self._next_tick()
            for child in self.children:
                try:
                    self._look_at(child)
                except Exception:  # a bug of ours: the others are looked at all the same
                    log.exception("internal error: %s (process %d) can't be looked at", child.broker, child.pid)

    def _look_at(self, child: Child) -> None:
        """Ask a child whether it is there, and kill one that has not answered for too long.

        A closing child waits for its telemetry and traces on its loop. Time-outs bound that.
        """
        if child.closing:
            return
        if not child.joined:
            child.silent_ticks = child.silent_ticks + 1 if child.is_stopped else 0
        else:
            if child.silent_ticks == 0:
                self.children.spawn(self._ping(child))
            child.silent_ticks += 1
        if child.silent_ticks == SILENT_TICKS_MAX + 1:
            log.warning(
                "%s (process %d) has not answered for %.1f s and is killed",
                child.broker,
                child.pid,
                SILENT_TICKS_MAX * TICK_S,
            )
            child.kill()

    async def _ping(self, child: Child) -> None:
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        with suppress(ControlLost):
            answer = await child.channel.ask("ping", told=self.children.told_by_others(child))
            child.lag_ms = (loop.time() - asked_s) * 1000
            child.silent_ticks = 0
            child.told = answer.get("told", {})
            if child.broker == self.children.brokers[0] and "units" in answer:
                self._fit(answer["units"])

    # -- as many as are wanted ---------------------------------------------------------------------------------------

    def _fit(self, units: int) -> None:
        """Begin to start or to end one broker, for the units that premium namespaces have in all.

        One at a time, when all the stores are at their wanted owners.
        """
        wanted = brokers_wanted(units, self._least, self._most, self._units_per_broker)
        if wanted == len(self.children.brokers) or not (self._started and self._plan.settled) or self._is_stopping():
            return
        if any(child.leaving or not child.serving for child in self.children):
            return
        if len(self.children) != len(self.children.brokers):
            return  # one is being started again
        if wanted > len(self.children.brokers):
            broker = self.children.more()
            log.info("%s is started: %d messaging units want %d brokers", broker, units, wanted)
            self.children.spawn(self._keep_running(broker))
        else:
            broker = self.children.brokers.pop()
            log.info("%s is ended: %d messaging units want %d brokers", broker, units, wanted)
            self.children.spawn(self._end(self.children[broker]))

    async def _end(self, child: Child) -> None:
        child.leaving = True
        self._plan.leaving(child.broker)
        self._reconcile()
        while self._plan.has_any(child.broker) and child.process.returncode is None:
            await self._moved()
        with suppress(ControlLost, ControlRefused, TimeoutError):
            await asyncio.wait_for(child.channel.ask("drain"), DRAIN_S)
            child.closing = True
            await asyncio.wait_for(child.channel.ask("close"), self._close_s)
        try:
            await asyncio.wait_for(child.process.wait(), ENDED_S)
        except TimeoutError:
            log.warning("%s (process %d) did not end and is killed", child.broker, child.pid)
            child.kill()

    async def _moved(self) -> None:
        """Wait until the state of any store has changed."""
        self._any_moved = asyncio.Event()
        await self._any_moved.wait()

    # -- ownership ---------------------------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        """Send the possible requests after an event, and tell all children the owners."""
        if self._stopping:
            return
        for step in self._plan.next_steps():
            self.children.spawn(self._do(step, self.children[step.broker]))
        self._version += 1
        owners = [self._owner(broker) for broker in self._plan.owners]
        joined = self.children.joined
        said = {
            "version": self._version,
            "owners": owners,
            "leader": min((child.broker for child in joined), default=None),
            "present": [(child.broker, child.incarnation) for child in joined],
        }
        for child in joined:
            child.channel.tell("owners", **said)
        self._any_moved.set()
        if self._plan.settled:
            self._settled.set()

    def _owner(self, broker: str | None) -> tuple[str, str] | None:
        child = self.children.find(broker)
        return None if child is None else (child.broker, child.incarnation)

    async def _do(self, step: Take | GiveUp, child: Child) -> None:
        try:
            if isinstance(step, Take):
                await child.channel.ask("take", store_no=step.store_no)
                self._plan.taken(step.store_no, step.broker)
            else:
                await child.channel.ask("give-up", store_no=step.store_no)
                self._plan.released(step.store_no, step.broker)
        except ControlLost:
            pass  # it is dead, and its end says the rest
        except ControlRefused as error:
            log.error("%s (process %d) is killed, since it may have the store: %s", child.broker, child.pid, error)
            child.kill()
        else:
            self._reconcile()
