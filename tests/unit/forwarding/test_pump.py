"""A pump and a destination that refuses messages for a while: when it comes again, and what it does meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from partibus.errors import StoreUnavailable
from partibus.forwarding.destination import Destination
from partibus.forwarding.pump import RETRY_MS_MAX, RETRY_MS_MIN, Pump, Source
from partibus.message import pack
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.generations import Generation
from partibus.partition.protocol.keys import Entry
from partibus.partition.protocol.options import PartitionOptions
from partibus.routing.partitions import Numbers, PartitionHandle
from partibus.routing.slots import SlotMap
from partibus.routing.store_access import StoreAccess
from tests.unit.routing.fakes import FakePartition

ROW = 7


class World:
    """A source with one message, which is granted to each receiver anew, and its destination."""

    def __init__(self) -> None:
        self.to = [FakePartition(index, accepts=False) for index in range(2)]
        for partition in self.to:
            partition._store = cast(StoreAccess, self)
        self.slots = SlotMap(2)
        self.catch_ups = 0
        self.on_catch_up: Callable[[], None] = lambda: None
        self.calls: list[tuple[float, Callable[[], None]]] = []
        self.commands: list[Any] = []
        self.receivers: dict[int, Callable[[Any], None]] = {}
        source = Source(
            cast(StoreAccess, self), ROW, 0, lambda: PartitionOptions(forwards=1), "q", 0, lambda: [Generation(0, 0)]
        )
        self.pump = Pump(source, "to", self.find, Numbers(), self.call_later, lambda: None)

    failure = None
    overloaded = False

    def find(self, name: str) -> Destination:
        partitions = cast(Sequence[PartitionHandle], self.to)
        return Destination(name, partitions, True, 10_000, False, False, self.slots, catch_up=self.catch_up)

    def catch_up(self) -> None:
        self.catch_ups += 1
        self.on_catch_up()

    def call_later(self, delay_ms: float, call: Callable[[], None]) -> None:
        self.calls.append((delay_ms, call))

    def run(self) -> list[float]:
        """Make the calls that are due; return their delays."""
        calls, self.calls = self.calls, []
        for _, call in calls:
            call()
        return [delay_ms for delay_ms, _ in calls]

    # -- the source --------------------------------------------------------------------------------------------------

    def register(self, receiver: int, on_granted: Callable[[Any], None]) -> None:
        self.receivers[receiver] = on_granted

    def unregister(self, receiver: int) -> None:
        del self.receivers[receiver]

    def submit(self, row: int, options: PartitionOptions, command: Any, *_: Any, holdable: bool = False) -> None:
        self.commands.append(command)

    def grant(self) -> None:
        """Grant a message without a key, which goes to partition 0."""
        (receiver,) = self.receivers
        entry = Entry(1, 1, 1, 0, 0, None, None, 100, pack(rest=b"\x00\x53\x75\xa0\x01x"))
        self.receivers[receiver](r.Granted(receiver, 0, 5, 0, [entry], ended=False))


@pytest.fixture
def world() -> World:
    found = World()
    found.pump.begin()
    return found


def refuse(world: World) -> list[float]:
    """Have the destination name another owner; return the delays until the pump has begun again."""
    world.grant()
    world.to[0].answer(r.Moved(0, {0: 1}))
    assert len(world.calls) == 1
    return world.run()


def test_while_this_broker_does_not_know_who_owns_slots_the_pauses_become_longer(world: World) -> None:
    pauses = [pause for _ in range(10) for pause in refuse(world)]
    assert pauses[:4] == [RETRY_MS_MIN, 2 * RETRY_MS_MIN, 4 * RETRY_MS_MIN, 8 * RETRY_MS_MIN]
    assert pauses[-2:] == [RETRY_MS_MAX, RETRY_MS_MAX]
    assert world.catch_ups == 10
    world.slots = SlotMap(2, 1, [(0, 1)])
    assert refuse(world) == [RETRY_MS_MIN], "another move"


@pytest.mark.parametrize("away", [False, True])
def test_the_catalog_is_asked_who_owns_slots(world: World, *, away: bool) -> None:
    def read() -> None:
        if away:
            raise StoreUnavailable("the catalog is away")
        world.slots = SlotMap(2, 1, [(0, 1)])

    world.on_catch_up = read
    refuse(world)
    assert world.catch_ups == 1
    (command,) = [one for one in world.commands if isinstance(one, c.Receive)][1:]
    assert command.forward, "the pump has begun again"


def test_the_catalog_is_not_asked_when_the_owners_are_known_by_then(world: World) -> None:
    world.grant()
    world.to[0].answer(r.Moved(0, {0: 1}))
    world.slots = SlotMap(2, 1, [(0, 1)])
    world.run()
    assert world.catch_ups == 0


def test_a_pump_that_stops_ends_at_the_source_after_its_last_batch(world: World) -> None:
    stopped: list[bool] = []
    world.grant()
    world.pump.stop(lambda: stopped.append(True))
    assert not stopped
    world.to[0].answer(r.Accepted(1, 1))
    assert stopped == [True]
    assert [type(command) for command in world.commands[-2:]] == [c.Forwarded, c.CancelReceive]
