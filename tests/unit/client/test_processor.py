"""Processors on a simulated network: handlers that fail or stop, two starts, two stops, a closed client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from partibus.amqp.codec.types import Timestamp
from partibus.amqp.section_encoding import encode_annotations
from partibus.client.aio import IncomingMessage, OutgoingMessage, Receiver
from partibus.client.errors import Closed, LockLost, NotFound
from partibus.errors import ArgumentError
from tests.unit.client.simulated import EPOCH_S, SimulatedBroker, connections, run
from tests.unit.client.test_aio_receiver import fill, numbers, settled_by_token


def test_a_handler_may_fail_in_any_way_and_the_loop_goes_on() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        fill(broker, 4)
        settled_by_token(broker)
        client = broker.client()
        told: list[BaseException] = []
        seen: list[int] = []

        async def handle(message: IncomingMessage, receiver: Receiver) -> None:
            seen.extend(numbers([message]))
            if seen[-1] == 0:
                raise ZeroDivisionError
            if seen[-1] == 1:
                cancelled = asyncio.get_running_loop().create_future()
                cancelled.cancel()
                await cancelled

        def on_error(error: BaseException, message: IncomingMessage | None) -> None:
            told.append(error)
            raise RuntimeError("the report of an error fails, too")

        processor = client.processor("q", handle, on_error=on_error)
        await processor.start()
        await asyncio.sleep(5)
        await processor.stop()
        assert seen == [0, 1, 2, 3]
        assert [type(error) for error in told] == [ZeroDivisionError, asyncio.CancelledError]
        await client.close()

    run(work())


def test_a_handler_may_stop_its_processor() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        fill(broker, 5)
        client = broker.client()
        seen: list[int] = []

        async def handle(message: IncomingMessage, receiver: Receiver) -> None:
            seen.extend(numbers([message]))
            if len(seen) == 2:
                await processor.stop()

        processor = client.processor("q", handle)
        await asyncio.wait_for(processor.run(), 10.0)
        assert seen == [0, 1]
        assert len(broker.completed) == 2
        assert not broker.locked
        await client.close()

    run(work())


def test_a_second_stop_waits_for_the_handlers_too() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        fill(broker, 1)
        client = broker.client()
        told: list[BaseException] = []

        async def handle(message: IncomingMessage, receiver: Receiver) -> None:
            await asyncio.sleep(5)

        processor = client.processor("q", handle, on_error=lambda error, message: told.append(error))
        await processor.start()
        await asyncio.sleep(1)
        first = asyncio.ensure_future(processor.stop())
        await asyncio.sleep(0.1)
        await processor.stop()
        assert len(broker.completed) == 1
        assert not told
        await first
        await processor.stop()
        fill(broker, 1)
        await processor.start()
        await asyncio.sleep(6)
        await processor.stop()
        assert len(broker.completed) == 2
        await client.close()

    run(work())


def test_two_starts_are_one_and_a_stop_ends_a_start() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        client = broker.client()

        async def handle(message: IncomingMessage, receiver: Receiver) -> None:
            raise AssertionError

        processor = client.processor("q", handle, concurrency=3)
        await asyncio.gather(processor.start(), processor.start())
        assert connections(client)[0].links == 1
        await processor.stop()
        assert connections(client)[0].links == 0
        broker.kill()
        starting = asyncio.ensure_future(processor.start())
        await asyncio.sleep(1)
        await processor.stop()
        with pytest.raises(Closed):
            await starting
        assert connections(client)[0].links == 0
        await client.close()

    run(work())


@pytest.mark.parametrize("sessions", [False, True])
def test_a_processor_ends_with_its_client(sessions: bool) -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        client = broker.client()
        told: list[BaseException] = []

        async def handle(message: IncomingMessage, receiver: Receiver) -> None:
            raise AssertionError

        processor = client.processor("q", handle, sessions=sessions, on_error=lambda error, message: told.append(error))
        await processor.start()
        await asyncio.sleep(1)
        await client.close()
        await asyncio.sleep(1_000)
        assert {type(error) for error in told} <= {Closed}
        assert len(told) <= 2
        await processor.stop()

    run(work())


def test_a_start_that_fails_leaves_nothing_behind() -> None:
    async def work() -> None:
        client = SimulatedBroker().client()

        async def handle(message: IncomingMessage, receiver: Receiver) -> None:
            raise AssertionError

        processor = client.processor("missing", handle)
        with pytest.raises(NotFound):
            await processor.start()
        assert connections(client)[0].links == 0
        wrong: Any = None
        with pytest.raises(ArgumentError, match="handler"):
            client.processor("q", wrong)
        await client.close()

    run(work())


def test_a_message_whose_link_was_lost_in_the_handler_is_settled_by_its_token() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        settled = settled_by_token(broker)
        until = Timestamp(int((EPOCH_S + 600) * 1000))
        broker.arrive("q", [encode_annotations({"x-opt-locked-until": until}) + OutgoingMessage(body=b"x").encode()])
        client = broker.client()
        told: list[BaseException] = []
        used: list[Receiver] = []

        async def handle(message: IncomingMessage, receiver: Receiver) -> None:
            used.append(receiver)
            broker.kill()
            broker.restart()
            await asyncio.sleep(5)

        processor = client.processor("q", handle, on_error=lambda error, message: told.append(error))
        await processor.start()
        await asyncio.sleep(20)
        assert len(used) == len(settled) == 1
        assert not used[0]._locks.kept
        assert not told
        await processor.stop()
        await client.close()

    run(work())


def test_a_handler_whose_session_is_lost_meanwhile_is_reported() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        fill(broker, 1)
        client = broker.client()
        told: list[tuple[type[BaseException], bool]] = []

        async def handle(message: IncomingMessage, receiver: Receiver) -> None:
            broker.kill()
            broker.restart()
            await asyncio.sleep(5)

        processor = client.processor(
            "q", handle, sessions=True, on_error=lambda error, message: told.append((type(error), message is not None))
        )
        await processor.start()
        await asyncio.sleep(20)
        assert (LockLost, True) in told
        await processor.stop()
        await client.close()

    run(work())


def test_a_stop_in_an_outage_ends_at_once() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        loop = asyncio.get_running_loop()
        client = broker.client()

        async def handle(message: IncomingMessage, receiver: Receiver) -> None:
            raise AssertionError

        processor = client.processor("q", handle, concurrency=3, on_error=lambda error, message: None)
        await processor.start()
        await asyncio.sleep(1)
        broker.kill()
        await asyncio.sleep(40)  # The first receives have ended, and the next ones open the receiver.
        begun = loop.time()
        await processor.stop()
        assert loop.time() - begun < 1.0
        await client.close()

    run(work())


@pytest.mark.parametrize("sessions", [False, True])
def test_a_run_ends_with_its_client_and_the_handlers_under_way(sessions: bool) -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        client = broker.client()
        ended: list[IncomingMessage] = []

        async def handle(message: IncomingMessage, receiver: Receiver) -> None:
            await asyncio.sleep(5)
            ended.append(message)

        settings: dict[str, Any] = {"concurrency": 2, "sessions": sessions, "on_error": lambda error, message: None}
        processor = client.processor("q", handle, **settings)
        running = asyncio.create_task(processor.run())
        await asyncio.sleep(1)
        fill(broker, 1)
        await asyncio.sleep(1)
        await client.close()
        await asyncio.wait_for(running, 20.0)
        assert len(ended) == 1

    run(work())
