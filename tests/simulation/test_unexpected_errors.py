"""An unexpected exception at any call of any command fails its store and breaks no promise."""

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from inspect import CO_GENERATOR
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest

import partibus.partition
from partibus.message import Message, pack
from partibus.partition.core.machine import Partition
from partibus.partition.core.meters import CommitMeter
from partibus.partition.core.step import Step
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import load_requests as w
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.runtime.commit_queue import CommitQueue
from partibus.partition.runtime.decider import Decider
from partibus.partition.runtime.lifecycle import StoreLifecycle
from partibus.partition.runtime.slot import Slot
from partibus.partition.runtime.store_runtime import StoreRuntime
from tests.kit.invariants import BrokenPromise
from tests.kit.simulated_host import SimulatedHost, SimulatedTimer, Timeline
from tests.kit.simulation import Simulation
from tests.kit.stores.memory import MemoryDisk, MemoryStore
from tests.plugins.soak import seeds

PRODUCT = str(Path(partibus.partition.__file__).parent)
CALLS_MAX = 150
"""Calls within one command; most have fewer."""
CHANCE = 0.03
STEPS = 2_500
OPTIONS = PartitionOptions(lock_duration_ms=5_000)
ROWS = (1, 2)


class Planted(Exception):
    """Raised at a call of the product."""


class Raising:
    """Raises `Planted` at a call that a seed chooses, in some of the commands."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.planted = 0
        self.is_over = False

    def call(self, call: Callable[[], object], *, within: bool = False) -> None:
        """Make a call, perhaps with an exception in it. ``within``: at a call that the product itself makes."""
        if self.is_over or self.random.random() >= CHANCE:
            call()
            return
        left = int(CALLS_MAX ** self.random.random())

        def count(frame: FrameType, event: str, _argument: object) -> None:
            nonlocal left
            code = frame.f_code
            if event != "call" or code.co_flags & CO_GENERATOR or not code.co_filename.startswith(PRODUCT):
                return
            if within and (frame.f_back is None or not frame.f_back.f_code.co_filename.startswith(PRODUCT)):
                return
            left -= 1
            if left < 0:
                sys.setprofile(None)
                self.planted += 1
                raise Planted(frame.f_code.co_qualname)

        sys.setprofile(count)
        try:
            call()
        finally:
            sys.setprofile(None)


def raise_in(monkeypatch: pytest.MonkeyPatch, raising: Raising) -> None:
    """Plant exceptions in all that a runtime decides."""
    decide = Decider.decide

    def decide_or_fail(self: Decider, slot: Slot, command: w.Input, holdable: bool) -> None:
        if sys.getprofile() is None:
            raising.call(lambda: decide(self, slot, command, holdable))
        else:  # a command within a command
            decide(self, slot, command, holdable)

    monkeypatch.setattr(Decider, "decide", decide_or_fail)


class RaisingHost(SimulatedHost):
    """A host in whose calls of the product exceptions are planted. The loop of production would log them."""

    raising: Raising

    def call_later(self, delay_ms: float, call: Callable[[], object]) -> SimulatedTimer:
        return super().call_later(delay_ms, partial(self._call, call))

    def write(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Do a blocking job, which is the store's: nothing is planted in it."""
        later = super().call_later

        def run() -> None:
            result: Any
            try:
                result = job()
            except Exception as error:  # noqa: BLE001 (as every host)
                result = error
            later(self._delay_ms(), partial(self._call, lambda: done(result)))

        later(self._delay_ms(), run)

    read = write

    def _call(self, call: Callable[[], object]) -> None:
        with suppress(Planted):
            if sys.getprofile() is None:
                self.raising.call(call, within=True)
            else:
                call()


class RaisingSimulation(Simulation):
    """A simulation of a process whose every event may raise, until it comes to rest."""

    def __init__(self, seed: int, express_ms: int = 0) -> None:
        self.raising = Raising(seed)
        super().__init__(seed, express_ms)

    def new_host(self) -> SimulatedHost:
        host = RaisingHost(self.timeline, self.random)
        host.raising = self.raising
        return host

    def come_to_rest(self) -> None:
        self.raising.is_over = True
        super().come_to_rest()


class ReportedSimulation(Simulation):
    """A simulation in which `Planted` may reach the loop, where the host of production logs it."""

    raising: Raising

    def come_to_rest(self) -> None:
        self.raising.is_over = True
        super().come_to_rest()

    def start_process(self) -> None:
        super().start_process()
        call_soon = self.host.call_soon

        def call_quietly(call: Callable[[], None]) -> None:
            with suppress(Planted):
                call()

        def report(call: Callable[[], None]) -> None:
            call_soon(partial(call_quietly, call))

        self.host.call_soon = report  # type: ignore[method-assign]


def run(seed: int, monkeypatch: pytest.MonkeyPatch, express_ms: int = 0) -> int:
    raising = Raising(seed)
    raise_in(monkeypatch, raising)
    simulation = ReportedSimulation(seed, express_ms)
    simulation.raising = raising
    simulation.run(STEPS)
    return raising.planted


@pytest.mark.parametrize("express_ms", [0, 600])
@pytest.mark.parametrize("seed", range(4))
def test_an_exception_at_any_call_breaks_no_promise(
    seed: int, express_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(seed, monkeypatch, express_ms) > 5


@pytest.mark.parametrize("express_ms", [0, 600])
def test_an_exception_at_any_call_of_any_event_breaks_no_promise(express_ms: int) -> None:
    """Ends of commits and loads, timers, and giving up a store that has failed: none of them stops half-way."""
    planted = 0
    for seed in seeds(6):
        simulation = RaisingSimulation(seed, express_ms)
        simulation.run(STEPS)
        planted += simulation.raising.planted
    assert planted > 20


@pytest.mark.parametrize(("express_ms", "first"), [(0, 110), (600, 122)])
def test_the_simulation_catches_a_failure_that_is_given_up_by_half(
    express_ms: int, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: what a store's failure leaves in memory is used further after an unexpected exception.

    The search begins with the seed that is known to show it, and goes on should a change of the product hide it there.
    """

    def forget(self: StoreLifecycle, error: BaseException, of_commit: bool) -> None:
        self._lost(error, of_commit)

    monkeypatch.setattr(StoreLifecycle, "_forget", forget)
    for seed in range(first, first + 100):
        try:
            RaisingSimulation(seed, express_ms).run(STEPS)
        except (BrokenPromise, LookupError):  # the runtime itself may meet what it should have forgotten
            return
    pytest.fail("nothing was found")


def test_a_store_whose_memory_can_not_be_given_up_stays_closed() -> None:
    """Better no store than one whose memory is ahead of what is durable; the others go on."""
    stores = Stores()
    stores.answers.clear()
    bad, good = stores.runtimes

    def fail() -> None:
        raise Planted("a planted error")

    stores.on_failed[0] = fail
    opened = bad.store
    assert opened is not None
    opened.close()  # so that the next commit fails
    bad.submit(1, OPTIONS, c.Enqueue(69, [Message(pack(rest=b"body"))]))
    good.submit(1, OPTIONS, c.Enqueue(70, [Message(pack(rest=b"body"))]), stores.answers.append)
    stores.run_until(lambda: stores.answers and "restart the broker" in str(bad.failure))
    assert bad.store is None
    assert bad.breaks == 2
    assert [type(reply) for reply in stores.answers] == [r.Accepted]
    closed: list[bool] = []
    bad.close(lambda: closed.append(True))
    stores.run_until(lambda: closed)


def test_the_simulation_catches_a_machine_that_goes_on_after_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: the command is refused, and the memory that it has half changed is used further."""

    def go_on(self: Decider, _error: Exception, _slot: Slot, command: w.Input) -> None:
        self._answers.refuse(command, "an unexpected error")

    monkeypatch.setattr(Decider, "broke", go_on)
    for seed in (*range(9, 20), *range(9)):  # that of 9 is known to show it
        try:
            run(seed, monkeypatch)
        except BrokenPromise:
            return
    pytest.fail("nothing was found")


class Stores:
    """Two stores with one message each under lock, in two partitions, on one loop."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.host = SimulatedHost(self.timeline, Random(1))
        self.answers: list[Any] = []
        self.disks = [MemoryDisk(), MemoryDisk()]
        self.on_failed: dict[int, Callable[[], None]] = {}
        """Calls to make when a store has failed, before its memory is given up, by the number of the store."""
        self.runtimes = [
            StoreRuntime(partial(MemoryStore, disk), self.host, self.timeline, failed=partial(self._failed, number))
            for number, disk in enumerate(self.disks)
        ]
        for store, runtime in enumerate(self.runtimes):
            runtime.open()
            for row in ROWS:
                number = 10 * store + row
                runtime.register(number, self.answers.append)
                message = Message(pack(rest=b"body"))
                runtime.submit(row, OPTIONS, c.Enqueue(number, [message]), self.answers.append)
                runtime.submit(row, OPTIONS, c.Receive(0, number, 1, 1 << 20))
        self.run_until(lambda: len(self.answers) == 8)

    def _failed(self, number: int) -> None:
        self.on_failed.get(number, lambda: None)()

    def run_until(self, done: Callable[[], object]) -> list[Planted]:
        """Let time go on; give what was raised on the loop meanwhile."""
        raised = []
        while not done():
            try:
                self.timeline.run_next()
            except Planted as error:
                raised.append(error)
        return raised


def test_an_exception_in_a_timer_stops_no_other_timer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two locks run out in each store. One of them raises: its store is opened anew, and all messages come back."""
    stores = Stores()
    handle, planted = Partition.handle, iter([True])

    def raise_once(machine: Partition, command: w.Input, now_ms: int) -> Step:
        if type(command) is c.Tick and next(planted, False):
            raise Planted("a planted error")
        return handle(machine, command, now_ms)

    monkeypatch.setattr(Partition, "handle", raise_once)
    stores.timeline.time_ms += OPTIONS.lock_duration_ms
    stores.answers.clear()
    for runtime in stores.runtimes:
        runtime.run_due()
    bad, good = stores.runtimes
    assert (bad.breaks, good.breaks) == (1, 0)
    assert "Tick() of partition 1" in str(bad.failure)
    assert "Tick() of partition 1: Planted: a planted error" in caplog.text
    assert good.failure is None
    assert {reply.request for reply in stores.answers if type(reply) is r.Failed} <= {*ROWS}
    assert len(stores.run_until(lambda: bad.failure is None)) == 1

    stores.answers.clear()
    for store, runtime in enumerate(stores.runtimes):
        for row in ROWS:
            number = 100 + 10 * store + row
            runtime.register(number, stores.answers.append)
            runtime.submit(row, OPTIONS, c.Receive(0, number, 1, 1 << 20))
    stores.run_until(lambda: len(stores.answers) == 4)
    assert [type(reply) for reply in stores.answers] == [r.Granted] * 4
    assert [entry.delivery_count for reply in stores.answers for entry in reply.entries] == [1] * 4


def test_an_exception_in_a_callback_holds_no_other_answer_up() -> None:
    stores = Stores()
    stores.answers.clear()

    def fail(_reply: object) -> None:
        raise Planted("a client's callback")

    runtime = stores.runtimes[0]
    for number, on_reply in ((50, fail), (51, stores.answers.append)):
        runtime.submit(1, OPTIONS, c.Enqueue(number, [Message(pack(rest=b"body"))]), on_reply)
    assert len(stores.run_until(lambda: stores.answers and runtime.breaks)) <= 1
    assert [(type(reply), reply.request) for reply in stores.answers] == [(r.Accepted, 51)]
    assert runtime.failure is None


@pytest.mark.parametrize(("owner", "part"), [(CommitMeter, "committed"), (CommitQueue, "end"), (CommitQueue, "take")])
def test_an_exception_around_a_commit_fails_its_store(owner: type, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replies of durable requests say so, or have a known outcome; the store goes on."""
    stores = Stores()
    stores.answers.clear()
    bad = stores.runtimes[0]
    do_part = getattr(owner, part)

    def fail(self: object, *arguments: object) -> object:
        if self not in (bad._commits.meter, bad._commits.queue):
            return do_part(self, *arguments)
        monkeypatch.undo()
        raise Planted(part)

    for number, runtime in enumerate(stores.runtimes, start=60):
        runtime.submit(1, OPTIONS, c.Enqueue(number, [Message(pack(rest=b"body"))]), stores.answers.append)
    monkeypatch.setattr(owner, part, fail)
    if part == "take":
        bad._commits.start()
    stores.run_until(lambda: bad.breaks and bad.failure is None and len(stores.answers) >= 2)
    of_bad = next(reply for reply in stores.answers if reply.request == 60)
    stored = len(stores.disks[0].durable.entries) - len(ROWS)
    assert stored == (part != "take")
    assert type(of_bad) is r.Failed
    assert of_bad.executed is (part != "take")
    assert [type(reply) for reply in stores.answers if reply.request == 61] == [r.Accepted]
