"""The start of pumps: messages that wait in a store are loaded when it opens, even after a failed try."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from partibus.forwarding.forwarder import LOOKS_MAX, Forwarder
from partibus.namespace.namespaces import Namespaces
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.routing.store_access import StoreAccess

ROW = 7


class FakeStore:
    """A store with one partition that holds something; its wakes may be lost."""

    def __init__(self) -> None:
        self.failure: str | None = None
        self.waiting: list[Callable[[], None]] = []
        self.questions = self

    def find_filled(self, rows: list[int], found: Callable[[list[int] | None], None]) -> None:
        found(None if self.failure else rows)

    def when_usable(self, call: Callable[[], None]) -> None:
        self.waiting.append(call)


class World:
    """One entity that forwards, and a clock of calls."""

    def __init__(self) -> None:
        self.store = FakeStore()
        self.calls: list[Callable[[], None]] = []
        self.dependents = 0
        self.is_known = True
        """Whether the catalog has the entity."""
        self.queue = SimpleNamespace(
            name="q",
            entity_id=1,
            deleted=False,
            partitions=[SimpleNamespace(store_no=0, partition_row=ROW)],
            index_of=lambda row: 0,
            description=SimpleNamespace(options=SimpleNamespace(forward_to="t", forward_dead_lettered_to="")),
        )
        partition = SimpleNamespace(wake=self.wake, partition_id=0)
        route = SimpleNamespace(partitions=[partition])
        entity = SimpleNamespace(queue=self.queue, route=route, join=lambda user: None)
        self.on_followed: list[Callable[[Any], None]] = []
        namespaces = SimpleNamespace(
            queues=lambda: iter([self.queue]),
            queue_of=lambda row: self.queue if self.is_known else None,
            entity_of=lambda queue: entity,
            on_followed=self.on_followed,
        )
        self.forwarder = Forwarder(cast(Namespaces, namespaces), lambda delay_ms, call: self.calls.append(call))

    def wake(self) -> None:
        self.dependents += 1

    def see(self) -> None:
        """The partition is loaded: its pump begins."""
        self.forwarder.see(cast(StoreAccess, self.store), ROW)

    def run(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()

    def open(self) -> None:
        self.forwarder.opened(0, cast(StoreRuntime, self.store))
        self.run()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(world.forwarder, "pump", Mock())
    return world


def test_what_waits_in_a_store_is_loaded_once(world: World) -> None:
    world.open()
    assert world.dependents == 1
    world.see()
    world.run()
    assert (world.dependents, world.calls) == (1, [])


def test_a_wake_that_is_lost_is_repeated(world: World) -> None:
    world.open()
    world.run()
    assert world.dependents == 2
    world.see()
    world.run()
    assert world.calls == []


def test_a_store_that_fails_meanwhile_is_looked_at_again_when_it_is_back(world: World) -> None:
    world.open()
    world.store.failure = "sick"
    world.run()
    assert (world.dependents, world.calls) == (1, [])
    world.store.failure = None
    (back,) = world.store.waiting
    back()
    world.run()
    assert world.dependents == 2


def test_what_is_not_to_be_forwarded_any_more_is_left_alone(world: World) -> None:
    world.open()
    world.queue.description.options.forward_to = ""
    world.run()
    assert (world.dependents, world.calls) == (1, [])


@pytest.mark.parametrize("everything", [False, True])
def test_what_waits_in_an_open_store_is_loaded_when_another_broker_has_set_forwarding(
    world: World, *, everything: bool
) -> None:
    options = world.queue.description.options
    options.forward_to = ""
    world.open()
    (followed,) = world.on_followed
    followed(world.queue)
    assert world.dependents == 0
    options.forward_to = "t"
    followed(None if everything else world.queue)
    if everything:
        world.run()
    assert world.dependents == 1
    world.see()
    world.run()
    followed(world.queue)
    assert (world.dependents, world.calls) == (1, [])


def test_a_run_of_a_store_that_has_left_is_not_looked_at_for_the_next_one(world: World) -> None:
    world.open()
    world.store.failure = "closed"
    world.run()
    (back,) = world.store.waiting
    world.store = FakeStore()
    world.open()
    world.see()
    world.run()
    back()
    assert world.calls == []


@pytest.mark.parametrize("transfers", [False, True])
def test_the_entity_of_a_loaded_partition_is_looked_for_until_the_catalog_has_it(
    world: World, monkeypatch: pytest.MonkeyPatch, *, transfers: bool
) -> None:
    world.is_known = False
    store = cast(StoreRuntime, world.store)
    for _ in range(2):
        world.forwarder.see(store, ROW, transfers=transfers)
    for _ in range(2 * LOOKS_MAX):
        world.run()
    assert len(world.calls) == 1, "it is looked for once, however often it was loaded"
    world.is_known = True
    pumped = Mock()
    monkeypatch.setattr(world.forwarder, "pump", pumped)
    world.run()
    assert [source.kind for (_, source, _, _), _ in pumped.call_args_list] == [
        SubqueueKind.ACTIVE,
        *[SubqueueKind.TRANSFER] * transfers,
    ]
    assert world.calls == []


def test_the_entity_is_not_looked_for_when_the_store_has_left(world: World) -> None:
    world.is_known = False
    world.forwarder.see(cast(StoreRuntime, world.store), ROW)
    for _ in range(2 * LOOKS_MAX):
        world.run()
    world.store.failure = "closed"
    world.run()
    assert (world.calls, len(world.store.waiting)) == ([], 1)
