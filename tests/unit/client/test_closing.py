"""Ends of clients: close at any moment, twice, beside other calls, after a loss, and calls from elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partibus.amqp import AmqpError
from partibus.client.aio import Client, OutgoingMessage, Receiver
from partibus.client.errors import ClientError, Closed, ConnectFailed, InvalidRequest
from tests.unit.client.simulated import CONNECTION, SimulatedBroker, connections, run
from tests.unit.client.test_aio_receiver import fill, numbers, settled_by_token


def now() -> float:
    return asyncio.get_running_loop().time()


async def outcome(work: Any) -> object:
    """Return the result or the error of a future, task or coroutine."""
    try:
        return await work
    except ClientError as error:
        return error


def test_a_close_ends_although_producers_go_on_sending() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        client = broker.client(batch_flush_interval=0.001)
        sender = client.sender("q")
        stored = 0

        async def produce() -> None:
            nonlocal stored
            while True:
                await sender.send(OutgoingMessage(body=b"x"))
                stored += 1

        producers = [asyncio.ensure_future(produce()) for _ in range(10)]
        await asyncio.sleep(1)
        begun = now()
        await client.close()
        assert now() - begun < 0.1
        for error in await asyncio.gather(*producers, return_exceptions=True):
            assert isinstance(error, Closed)
            assert not error.retriable
        assert stored == len(broker.stored["q"])

    run(work())


def test_a_flush_waits_for_what_was_sent_before_it() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        client = broker.client(batch_flush_interval=0.001)
        sender = client.sender("q")

        async def produce() -> None:
            while True:
                await sender.send(OutgoingMessage(body=b"x"))

        producers = [asyncio.ensure_future(produce()) for _ in range(10)]
        await asyncio.sleep(1)
        results = [sender.send(OutgoingMessage(body=b"y")) for _ in range(3)]
        results[2].cancel()
        await asyncio.wait_for(sender.flush(), 0.1)
        assert all(result.done() for result in results)
        await client.close()
        await asyncio.gather(*producers, return_exceptions=True)

    run(work())


def test_calls_on_a_closed_client_fail_at_once() -> None:
    async def work() -> None:
        client = SimulatedBroker().client()
        sender, receiver = client.sender("q"), client.receiver("q")
        await client.open()
        await client.close()
        begun = now()
        calls: list[Coroutine[Any, Any, object]] = [
            client.open(), client.request("q", "x", {}), client.rules("q").list(), client.authorize("q"),
            client.advise("q", seconds=1.0), sender.open(), sender.room(), receiver.receive(), receiver.peek(),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(Closed, match="make a new one"):
                await call
        for make in (client.sender, client.receiver, client.session_receiver):
            with pytest.raises(Closed):
                make("q")
        with pytest.raises(Closed):
            client.transaction()
        assert now() == begun

    run(work())


def test_what_waits_for_a_connection_ends_with_the_client_and_is_not_cancelled() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        broker.kill()
        client = broker.client(timeout=1_000.0)
        sender, receiver = client.sender("q"), client.receiver("q")
        waiting = [
            asyncio.ensure_future(outcome(one))
            for one in (client.open(), sender.open(), receiver.receive(1, 500.0), client.request("q", "x", {}))
        ]
        await asyncio.sleep(20)
        begun = now()
        await client.close()
        errors = await asyncio.wait_for(asyncio.gather(*waiting), 1.0)
        assert now() - begun < 1.0
        for error in errors:
            assert isinstance(error, Closed | ConnectFailed)

    run(work())


def test_settlements_by_token_have_results_when_the_client_is_closed() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        fill(broker, 4)
        settled_by_token(broker)
        client = broker.client(timeout=5.0)
        receiver = client.receiver("q")
        messages = await receiver.receive(4)
        results = [receiver.complete(messages[0]), receiver.complete(messages[1:3]), receiver.abandon(messages[3])]
        broker.kill()
        await asyncio.sleep(1)
        closing = asyncio.ensure_future(client.close())
        await asyncio.sleep(0.01)
        with pytest.raises(Closed):
            await receiver.receive()
        await closing
        for result in results:
            with pytest.raises(ClientError):
                await asyncio.wait_for(result, 1.0)

    run(work())


def test_a_close_waits_for_settlements_that_go_on_by_token() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        fill(broker, 2)
        settled = settled_by_token(broker)
        client = broker.client()
        receiver = client.receiver("q")
        messages = await receiver.receive(2)
        result = receiver.complete(messages)
        broker.kill()
        await asyncio.sleep(1)
        asyncio.get_running_loop().call_later(3.0, broker.restart)
        await receiver.close()
        assert result.done()
        assert result.exception() is None
        assert len(settled) == 2
        with pytest.raises(Closed):
            receiver.complete(messages)
        await client.close()

    run(work())


def test_a_receive_that_has_some_messages_returns_them_when_its_link_is_lost() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        broker.latency_s = 0.5
        client = broker.client()
        receiver = client.receiver("q")
        await receiver.open()
        waiting = asyncio.ensure_future(receiver.receive(5, 60.0))
        await asyncio.sleep(1.1)
        fill(broker, 2)
        await asyncio.sleep(0.55)
        assert not waiting.done(), "it asks the broker whether more is on its way"
        begun = now()
        broker.kill()
        broker.restart()
        assert numbers(await waiting) == [0, 1]
        assert now() - begun < 0.1
        await client.close()

    run(work())


def test_a_close_releases_cached_messages_of_the_present_link_only() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        fill(broker, 4)
        client = broker.client(prefetch=2)
        receiver = client.receiver("q")
        lost = [*await receiver.receive(1), *await receiver.receive(1)]
        broker.kill()
        broker.restart()
        held = [*await receiver.receive(1), *await receiver.receive(1)]
        # The delivery ids of the lost link are those of messages that the program holds now.
        receiver.take_back(lost)
        assert receiver.cached == 2
        await client.close()
        assert (numbers(lost), numbers(held)) == ([0, 1], [2, 3])
        assert not broker.waiting["q"], "messages that the program holds were released"

    run(work())


def test_a_failed_open_leaves_no_connection_behind() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        client = broker.client(connections=3, timeout=5.0)

        async def refuse(protocol: asyncio.Protocol) -> None:
            raise ConnectFailed("no")

        connections(client)[1].connect = refuse
        begun = now()
        with pytest.raises(ConnectFailed):
            async with client:
                pass
        assert now() - begun < 6.0, "connections are opened side by side"
        assert not any(connection.is_open for connection in connections(client))

    run(work())


def test_a_client_belongs_to_one_event_loop() -> None:
    broker = SimulatedBroker()
    client = Client(CONNECTION)
    with pytest.raises(InvalidRequest, match="in a coroutine"):
        client.sender("q")

    async def use() -> Any:
        for connection in connections(client):
            connection.connect = broker.connect
        sender, receiver = client.sender("q"), client.receiver("q")
        await sender.send(OutgoingMessage(body=b"00000"))
        return sender, receiver, await receiver.receive(1)

    async def use_elsewhere() -> None:
        with pytest.raises(InvalidRequest, match="belongs to another event loop"):
            sender.send(OutgoingMessage(body=b"x"))
        with pytest.raises(InvalidRequest, match="another event loop"):
            receiver.complete(messages)
        calls: list[Coroutine[Any, Any, object]] = [
            client.open(), client.close(), client.request("q", "x", {}), sender.flush(), sender.room(), sender.close(),
            receiver.receive(), receiver.peek(), receiver.close(),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(InvalidRequest, match="another event loop"):
                await call

    sender, receiver, messages = run(use())
    run(use_elsewhere())
    with pytest.raises(InvalidRequest, match="outside of its event loop"):
        sender.send(OutgoingMessage(body=b"x"))


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["send", "receive", "settle", "kill", "restart", "flush", "cancel", "close link"]),
            st.sampled_from([0.0, 0.001, 0.0035, 0.021, 0.5, 3.0]),
        ),
        max_size=25,
    ),
    prefetch=st.sampled_from([0, 5]),
    interval=st.sampled_from([0.0, 0.02]),
)
def test_after_a_close_at_any_moment_no_future_waits(
    steps: list[tuple[str, float]], prefetch: int, interval: float
) -> None:
    """Use and lose a broker in any order, then close: each result is there, none is a cancellation of the caller."""

    async def work() -> None:
        broker = SimulatedBroker()
        settled_by_token(broker)
        fill(broker, 30)
        client = broker.client(prefetch=prefetch, batch_flush_interval=interval, timeout=20.0)
        sender, receiver = client.sender("q"), client.receiver("q")
        results: list[asyncio.Future[Any]] = []
        stored: list[asyncio.Future[Any]] = []
        got: list[Any] = []

        async def receive(receiver: Receiver) -> None:
            got.extend(await receiver.receive(3, 10.0))

        for step, pause_s in steps:
            match step:
                case "send":
                    with suppress(Closed):
                        stored.append(sender.send(OutgoingMessage(body=b"%05d" % (100 + len(stored)))))
                case "receive":
                    results.append(asyncio.ensure_future(receive(receiver)))
                case "settle" if got:
                    with suppress(Closed):
                        results.append(receiver.complete(got.pop()))
                case "flush":
                    results.append(asyncio.ensure_future(sender.flush()))
                case "cancel" if results:
                    results.pop().cancel()
                case "kill":
                    broker.kill()
                case "restart":
                    broker.restart()
                case "close link":
                    results.append(asyncio.ensure_future(receiver.close()))
                    receiver = client.receiver("q")
            await asyncio.sleep(pause_s)
        closing = [asyncio.ensure_future(client.close()) for _ in range(2)]
        _, waiting = await asyncio.wait([*results, *stored, *closing], timeout=60.0)
        assert not waiting
        for one in [*results, *stored, *closing]:
            assert not one.cancelled()
            assert one.exception() is None or isinstance(one.exception(), ClientError)
        bodies = {payload[-5:] for payload in broker.stored["q"]}
        for number, one in enumerate(stored):
            if one.exception() is None:
                assert b"%05d" % (100 + number) in bodies
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    run(work())


def test_a_transaction_that_is_not_declared_leaves_no_link_behind() -> None:
    async def work() -> None:
        client = SimulatedBroker().client(timeout=5.0)  # it has no coordinator
        transaction = client.transaction()
        with pytest.raises(ClientError):
            async with transaction:
                pass
        assert transaction.is_closed
        with pytest.raises(Closed):
            async with transaction:
                pass
        assert connections(client)[0].links == 0
        await client.close()

    run(work())


def test_one_malformed_message_does_not_keep_the_others_of_a_receive() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        malformed = b"\x00\x53\x72\xc1\x05\x02\xa3\x01x" + b"\xff" + OutgoingMessage(body=b"x").encode()
        broker.arrive("q", [malformed])
        fill(broker, 2)
        client = broker.client(prefetch=3)
        receiver = client.receiver("q", auto_renew=60.0)
        got = await receiver.receive(1)
        await asyncio.sleep(1)
        got += await receiver.receive(5)
        assert len(got) == 3
        assert numbers(got[1:]) == [0, 1]
        await client.close()

    run(work())


async def use(broker: SimulatedBroker, client: Client) -> list[int]:
    """Open, send, receive, complete and close links: a program that may be cancelled at each of its awaits."""
    await client.open()
    sender, receiver = client.sender("q"), client.receiver("q")
    await sender.open()
    sent = [OutgoingMessage(body=b"%05d" % number) for number in range(6)]
    await asyncio.gather(*[sender.send(message) for message in sent])
    await sender.send_batch(sent[:2])
    await sender.room()
    await sender.flush()
    got: list[int] = []
    while len(got) < 8:
        messages = await receiver.receive(3, 5.0)
        if not messages:
            broker.expire_locks()  # of what a cancelled run has received
        got += numbers(messages)
        await receiver.complete(messages)
    await receiver.close()
    await sender.close()
    return got


@settings(max_examples=40, deadline=None)
@given(steps=st.integers(0, 1_000), prefetch=st.sampled_from([0, 4]), interval=st.sampled_from([0.0, 0.02]))
def test_a_program_that_is_cancelled_at_any_await_can_use_its_client_again(
    steps: int, prefetch: int, interval: float
) -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        settled_by_token(broker)
        client = broker.client(prefetch=prefetch, batch_flush_interval=interval, connections=2, timeout=5.0)
        task = asyncio.ensure_future(use(broker, client))
        for step in range(steps):
            await asyncio.sleep(0.0003 if step % 3 == 0 else 0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        broker.expire_locks()
        got = await asyncio.wait_for(use(broker, client), 500.0)
        assert set(got) <= set(range(6))
        await client.close()
        assert [one for one in asyncio.all_tasks() if one is not asyncio.current_task()] == []

    run(work())


def test_the_late_end_of_a_transport_leaves_the_next_connection_open() -> None:
    """The end of a transport with TLS comes after the next connection was opened."""

    async def work() -> None:
        broker = SimulatedBroker()
        broker.close_s = 0.05
        client = broker.client()
        receiver = client.receiver("q")
        waiting = asyncio.ensure_future(receiver.receive(1, 60.0))
        await asyncio.sleep(1)
        peer = broker.wires[0].peer
        peer.engine.close(AmqpError("amqp:connection:forced", "the broker ends"))
        peer.flush()
        await asyncio.sleep(1)
        fill(broker, 1)
        assert numbers(await waiting) == [0]
        assert (broker.connections, broker.closed) == (2, 1)
        assert client.statistics.retries == 0
        await client.close()
        assert broker.closed == 2

    run(work())


def test_an_attempt_that_ends_while_it_connects_leaves_no_transport() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        client = broker.client()

        async def slow(protocol: asyncio.Protocol) -> None:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(10)
            await broker.connect(protocol)

        (connection,) = connections(client)
        connection.connect = slow
        opening = asyncio.ensure_future(outcome(client.open()))
        await asyncio.sleep(1)
        await client.close()
        assert isinstance(await opening, ClientError)
        await asyncio.sleep(1)
        assert (broker.connections, broker.closed) == (1, 1)

    run(work())


def test_a_close_ends_at_the_clients_limit_although_a_message_has_a_longer_one() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        client = broker.client(timeout=5.0)
        sender = client.sender("q")
        await sender.open()
        broker.kill()
        sending = sender.send(OutgoingMessage(body=b"x"), timeout=86_400)
        await asyncio.sleep(1)
        begun = now()
        await sender.close()
        assert now() - begun < 6.0
        error = await outcome(sending)
        assert isinstance(error, Closed)
        assert "not sent" in str(error)
        await client.close()

    run(work())


def test_a_transaction_needs_a_token_for_its_entity_only() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        client = broker.client(timeout=5.0)
        receiver = client.receiver("q")
        for transaction in (client.transaction(beside=receiver), client.transaction()):
            with pytest.raises(ClientError):  # The simulated broker has no coordinator.
                async with transaction:
                    pass
        assert broker.tokens == ["sb://simulated/q", "sb://simulated/"]
        await client.close()

    run(work())
