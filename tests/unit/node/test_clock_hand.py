"""Moving the clock of a whole broker: what has happened, and is durable, when the mover is answered (D26)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from partibus.clock import ManualClock
from partibus.message import Message, pack
from partibus.namespace.entity import Entity
from partibus.node.clocks import ClockHand
from partibus.node.node import Broker
from partibus.node.settings import Settings
from partibus.node.single_process import make_broker
from partibus.partition.protocol.commands import Enqueue, Inspect, Receive
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.replies import Accepted, Granted, Inspected
from partibus.routing.partitions import PartitionHandle

MINUTE_MS = 60_000
LOTS = 1_300
"""More than two slices of a sweep."""

Scene = Callable[[Broker, "Hand"], Awaitable[None]]


class Hand:
    """Moves a broker's clock, as its HTTP port does."""

    def __init__(self, broker: Broker) -> None:
        assert isinstance(broker.clock, ManualClock)
        self._hand = ClockHand(
            broker.clock, broker.front.namespaces.clock_moved, broker.stores.runtimes.values, broker.front.idle
        )

    async def advance(self, ms: int) -> int:
        return await self._hand.advance(ms)


def play(folder: Path, scene: Scene) -> None:
    """A broker with a manual clock for one scene."""

    async def run() -> None:
        settings = Settings(data=folder / "data", amqp_port=0, http_port=0, manual_clock=True)
        broker = make_broker(settings, asyncio.get_running_loop())
        await broker.start()
        try:
            await asyncio.wait_for(scene(broker, Hand(broker)), 60)
        finally:
            await broker.stop()

    asyncio.run(run())


async def ask(partition: PartitionHandle, command: Any) -> Any:
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    partition.submit(command, answer.set_result)
    return await answer


async def send(entity: Entity, count: int, partition: int = 0, **fields: Any) -> None:
    messages = [Message(pack(ttl_ms=fields.get("ttl_ms"), rest=b"body"), **fields) for _ in range(count)]
    reply = await ask(entity.route.partitions[partition], Enqueue(entity.route.numbers.next(), messages))
    assert isinstance(reply, Accepted)


async def counts(entity: Entity, partition: int = 0) -> tuple[int, int, int]:
    """(active sub-queue, dead-letter sub-queue, locked)."""
    reply = await ask(entity.route.partitions[partition], Inspect(entity.route.numbers.next()))
    assert isinstance(reply, Inspected)
    active, dead = reply.subqueues[SubqueueKind.ACTIVE], reply.subqueues[SubqueueKind.DEAD_LETTER]
    return active.messages, dead.messages, active.locked


def all_durable(broker: Broker) -> bool:
    return all(runtime.is_durable(runtime.decided) for runtime in broker.stores.runtimes.values())


def test_what_expires_is_gone_and_durable(tmp_path: Path) -> None:
    async def scene(broker: Broker, hand: Hand) -> None:
        entity = broker.front.broker.create_queue(
            "q", {"DeadLetteringOnMessageExpiration": True, "EnablePartitioning": True}
        )
        for partition in range(16):
            await send(entity, LOTS if partition == 7 else 3, partition, ttl_ms=MINUTE_MS)
        await hand.advance(MINUTE_MS - 1)
        assert await counts(entity, 7) == (LOTS, 0, 0)
        start_ms = broker.clock.now_ms()
        assert await hand.advance(1) == start_ms + 1
        assert all_durable(broker)
        assert [await counts(entity, partition) for partition in (0, 7, 15)] == [(0, 3, 0), (0, LOTS, 0), (0, 3, 0)]

    play(tmp_path, scene)


def test_what_falls_due_by_what_fell_due_has_run_too(tmp_path: Path) -> None:
    """A lock ends for the last time that is allowed, and the message with it."""

    async def scene(broker: Broker, hand: Hand) -> None:
        entity = broker.front.broker.create_queue("q", {"MaxDeliveryCount": 1, "LockDuration": "PT5S"})
        await send(entity, LOTS)
        (partition,) = entity.route.partitions
        missing = LOTS
        all_granted = asyncio.Event()

        def on_granted(reply: Any) -> None:
            nonlocal missing
            if not isinstance(reply, Granted):  # the broker stops
                return
            missing -= len(reply.entries)
            if not missing:
                all_granted.set()

        receiver = entity.route.numbers.next()
        partition.register(receiver, on_granted)
        partition.submit(Receive(0, receiver, LOTS, 1 << 24))
        await all_granted.wait()
        assert await counts(entity) == (LOTS, 0, LOTS)
        await hand.advance(5_000)
        assert all_durable(broker)
        assert await counts(entity) == (0, LOTS, 0)

    play(tmp_path, scene)


def test_a_scheduled_message_is_active_when_its_time_has_come(tmp_path: Path) -> None:
    async def scene(broker: Broker, hand: Hand) -> None:
        entity = broker.front.broker.create_queue("q", {})
        due_ms = broker.clock.now_ms() + MINUTE_MS
        await send(entity, LOTS, scheduled_ms=due_ms)
        reply = await ask(entity.route.partitions[0], Inspect(entity.route.numbers.next()))
        assert (reply.has_scheduled, reply.activated_ms) == (True, 0)
        await hand.advance(MINUTE_MS)
        assert all_durable(broker)
        reply = await ask(entity.route.partitions[0], Inspect(entity.route.numbers.next()))
        assert (reply.has_scheduled, reply.activated_ms) == (False, due_ms)
        assert reply.subqueues[SubqueueKind.ACTIVE].messages == LOTS

    play(tmp_path, scene)


def test_an_idle_queue_is_gone_and_its_rows_too(tmp_path: Path) -> None:
    async def scene(broker: Broker, hand: Hand) -> None:
        entity = broker.front.broker.create_queue("q", {"AutoDeleteOnIdle": "PT5M", "EnablePartitioning": True})
        await hand.advance(4 * MINUTE_MS)
        await send(entity, 1)
        await hand.advance(5 * MINUTE_MS - 1)
        assert broker.front.broker.namespace.find("q") is entity.queue
        await hand.advance(1)
        assert broker.front.broker.namespace.find("q") is None
        assert broker.front.catalog.dropped_partitions() == []

    play(tmp_path, scene)


def test_idle_queues_of_the_last_run_count_from_the_start(tmp_path: Path) -> None:
    async def before(broker: Broker, hand: Hand) -> None:
        broker.front.broker.create_queue("q", {"AutoDeleteOnIdle": "PT5M"})

    async def after(broker: Broker, hand: Hand) -> None:
        await hand.advance(5 * MINUTE_MS - 1)
        assert broker.front.broker.namespace.find("q") is not None
        await hand.advance(1)
        assert broker.front.broker.namespace.find("q") is None

    play(tmp_path, before)
    play(tmp_path, after)


def test_who_keeps_time_by_himself_is_called_under_the_new_time(tmp_path: Path) -> None:
    async def scene(broker: Broker, hand: Hand) -> None:
        entity = broker.front.broker.create_queue("q", {})
        (partition,) = entity.route.partitions
        told: list[int] = []

        def on_moved() -> None:
            told.append(broker.clock.now_ms())
            partition.submit(Enqueue(0, [Message(pack(rest=b"body"))]))

        await counts(entity)
        broker.front.namespaces.on_clock_moved.append(on_moved)
        now_ms = await hand.advance(1_000)
        assert told == [now_ms]
        assert all_durable(broker)
        assert (await counts(entity))[0] == 1

    play(tmp_path, scene)


def test_movers_take_turns(tmp_path: Path) -> None:
    async def scene(broker: Broker, hand: Hand) -> None:
        start_ms = broker.clock.now_ms()
        times = await asyncio.gather(hand.advance(1), hand.advance(2), hand.advance(3))
        assert [time_ms - start_ms for time_ms in times] == [1, 3, 6]

    play(tmp_path, scene)


def test_a_store_that_is_away_holds_nobody_up(tmp_path: Path) -> None:
    async def scene(broker: Broker, hand: Hand) -> None:
        entity = broker.front.broker.create_queue("q", {"AutoDeleteOnIdle": "PT5M"})
        await send(entity, 1, ttl_ms=MINUTE_MS)
        store_no = entity.queue.partitions[0].store_no
        broker.stores.runtimes[store_no].failure = "the disk is away"
        await hand.advance(10 * MINUTE_MS)
        assert not entity.queue.deleted
        broker.stores.runtimes[store_no].failure = None

    play(tmp_path, scene)
