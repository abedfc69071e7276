"""The project's own client, asyncio and blocking, against a broker process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.request import urlopen

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from partibus.amqp.codec.performatives import Attach, Disposition, Open, Transfer, decode_performative
from partibus.amqp.frames import AMQP_FRAME, HEADER
from partibus.amqp.sections import BATCH_FORMAT
from partibus.client import sync
from partibus.client.aio import (
    NEXT_SESSION,
    Client,
    IncomingMessage,
    OutgoingMessage,
    ReceiveMode,
    Receiver,
    RetryPolicy,
    RuleInfo,
    Token,
)
from partibus.client.aio.incoming import FILL_BYTES
from partibus.client.errors import (
    AccessDenied,
    AlreadyExists,
    ClientError,
    Closed,
    ConnectFailed,
    InvalidRequest,
    LockLost,
    NotFound,
    SendFailed,
    SessionHeld,
    TimedOut,
)
from partibus.namespace.connection_string import parse_connection_string
from partibus.namespace.sas import make_token
from partibus.testing.broker_process import BrokerProcess
from tests.kit.eventually import EVENTUALLY_S
from tests.plugins.snippets import blocks, run_python

T = TypeVar("T")
MakeQueue = Callable[..., str]


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine; a hang is an error."""

    async def limited() -> T:
        return await asyncio.wait_for(work, 60.0)

    return asyncio.run(limited())


def message(text: str, **fields: Any) -> OutgoingMessage:
    return OutgoingMessage(body=text.encode(), **fields)


def texts(messages: list[IncomingMessage]) -> list[str]:
    return [one.body.decode() for one in messages if isinstance(one.body, bytes)]


async def receive_all(receiver: Receiver, count: int) -> list[IncomingMessage]:
    found: list[IncomingMessage] = []
    while len(found) < count:
        more = await receiver.receive(count - len(found), EVENTUALLY_S)
        assert more, f"only {len(found)} of {count} messages came"
        found += more
    return found


async def cached(receiver: Receiver, count: int) -> None:
    """Wait until the cache has as many messages; each look takes a round trip."""
    while receiver.cached < count:
        await receiver.peek()


def connections_of(broker: BrokerProcess) -> int:
    with urlopen(f"{broker.http_url}/metrics", timeout=EVENTUALLY_S) as response:
        lines = response.read().decode().splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith("partibus_broker_connections{")))


# -- sending ----------------------------------------------------------------------------------------------------------


@pytest.mark.row("C3")
def test_sends_overlap_each_other_and_a_waiting_receive(broker: BrokerProcess, make_queue: MakeQueue) -> None:
    queue = make_queue()

    async def work() -> None:
        async with Client(broker.connection_string, batch_flush_interval=0) as client:
            sender, receiver = client.sender(queue), client.receiver(queue)
            await sender.open()
            waiting = asyncio.ensure_future(receiver.receive(1, EVENTUALLY_S))
            await asyncio.sleep(0)
            sent = client.statistics.transfers_sent
            results = [sender.send(message(str(number))) for number in range(50)]
            await asyncio.sleep(0)
            # All left before the first was answered.
            assert client.statistics.transfers_sent - sent == 50
            assert not any(result.done() for result in results)
            assert texts(await waiting) == ["0"]
            await asyncio.gather(*results)
            assert texts(await receive_all(receiver, 49)) == [str(number) for number in range(1, 50)]

    run(work())


@pytest.mark.row("C4")
@pytest.mark.parametrize("connections", [1, 3])
def test_all_links_of_a_client_share_its_connections_evenly(
    broker: BrokerProcess, make_queue: MakeQueue, connections: int
) -> None:
    queue = make_queue()

    async def work() -> None:
        before = await asyncio.to_thread(connections_of, broker)
        async with Client(broker.connection_string, connections=connections) as client:
            links = [client.sender(queue) for _ in range(6)], [client.receiver(queue) for _ in range(6)]
            for some in links:
                await asyncio.gather(*[link.open() for link in some])
            assert await asyncio.to_thread(connections_of, broker) - before == connections
            used = [link.connection for some in links for link in some]
            assert sorted(used.count(one) for one in set(used)) == [12 // connections] * connections
            results = [sender.send(message("x")) for sender in links[0]]
            await asyncio.gather(*results)
            assert await asyncio.to_thread(connections_of, broker) - before == connections

    run(work())


@pytest.mark.row("C9")
def test_asynchronous_sends_and_completes_are_batched(broker: BrokerProcess, make_queue: MakeQueue) -> None:
    queue = make_queue()

    async def work() -> None:
        async with Client(broker.connection_string) as client:
            sender, receiver = client.sender(queue), client.receiver(queue, prefetch=500)
            await sender.open()
            statistics = client.statistics
            await asyncio.gather(*[sender.send(message(str(number))) for number in range(200)])
            assert (statistics.messages_sent, statistics.transfers_sent) == (200, 1)
            messages = await receive_all(receiver, 200)
            assert texts(messages) == [str(number) for number in range(200)]
            await asyncio.gather(*[receiver.complete(one) for one in messages])
            assert (statistics.settled, statistics.dispositions_sent) == (200, 1)
            assert await receiver.peek() == []

    run(work())


@pytest.mark.row("C10")
def test_the_interval_is_20_ms_and_0_disables_batching(broker: BrokerProcess, make_queue: MakeQueue) -> None:
    queue = make_queue()

    async def work() -> None:
        async with Client(broker.connection_string, batch_flush_interval=0) as client:
            assert client.settings.flush_interval == 0
            sender = client.sender(queue)
            await asyncio.gather(*[sender.send(message("x")) for _ in range(10)])
            assert client.statistics.transfers_sent == 10
        async with Client(broker.connection_string) as client:
            assert client.settings.flush_interval == 0.020
            sender = client.sender(queue)
            await asyncio.gather(*[sender.send(message("x")) for _ in range(10)])
            assert client.statistics.transfers_sent == 1

    run(work())


@pytest.mark.row("C11")
def test_a_full_batch_leaves_at_once_and_its_last_message_opens_the_next(
    broker: BrokerProcess, make_queue: MakeQueue
) -> None:
    queue = make_queue()

    async def work() -> None:
        async with Client(broker.connection_string, batch_flush_interval=1.0) as client:
            sender = client.sender(queue)
            await sender.open()
            most = sender.max_message_bytes
            assert most is not None
            size = most // 4
            results = [sender.send(message(str(number) * size)) for number in range(4)]
            # The fourth did not fit: three are on their way before the interval is over.
            assert client.statistics.messages_sent == 3
            await asyncio.gather(*results[:3])
            assert not results[3].done()
            await results[3]
            assert client.statistics.transfers_sent == 2

    run(work())


def test_one_message_of_a_batch_that_the_broker_refuses_fails_alone(
    broker: BrokerProcess, make_queue: MakeQueue
) -> None:
    queue = make_queue(RequiresSession=True)

    async def work() -> None:
        async with Client(broker.connection_string) as client:
            sender = client.sender(queue)
            results = [sender.send(message(str(number), session_id="s")) for number in range(3)]
            results.insert(1, sender.send(message("bad")))
            results.append(sender.send(message("bad", session_id="s", partition_key="other")))
            answers = await asyncio.gather(*results, return_exceptions=True)
            assert [type(answer) for answer in answers] == [
                type(None), InvalidRequest, type(None), type(None), InvalidRequest,
            ]  # fmt: skip
            receiver = client.session_receiver(queue, "s")
            assert texts(await receive_all(receiver, 3)) == ["0", "1", "2"]

    run(work())


def test_messages_keep_their_fields(broker: BrokerProcess, make_queue: MakeQueue) -> None:
    queue = make_queue()

    async def work() -> None:
        async with Client(broker.connection_string) as client:
            sent = OutgoingMessage(
                body=b"body",
                message_id="id",
                partition_key="key",
                subject="subject",
                content_type="text/plain",
                correlation_id="correlation",
                to="to",
                reply_to="reply",
                ttl_ms=60_000,
                application_properties={"text": "t", "number": 7, "flag": True},
            )
            await client.sender(queue).send(sent)
            (got,) = await client.receiver(queue).receive(1, EVENTUALLY_S)
            assert (got.body, got.message_id, got.partition_key, got.subject) == (b"body", "id", "key", "subject")
            assert (got.content_type, got.correlation_id, got.to, got.reply_to) == (
                "text/plain", "correlation", "to", "reply",
            )  # fmt: skip
            assert got.header.ttl == 60_000
            assert got.application_properties == {"text": "t", "number": 7, "flag": True}
            assert got.delivery_count == 0
            assert got.sequence_number is not None
            assert got.locked_until_ms is not None

    run(work())


# -- receiving ---------------------------------------------------------------------------------------------------------


@pytest.mark.row("C15")
def test_the_prefetch_cache_belongs_to_one_receiver(broker: BrokerProcess, make_queue: MakeQueue) -> None:
    queue = make_queue()

    async def work() -> None:
        async with Client(broker.connection_string, prefetch=10) as client:
            await client.sender(queue).send_batch([message(str(number)) for number in range(10)])
            first, second = client.receiver(queue), client.receiver(queue)
            taken = await first.receive(1, EVENTUALLY_S)
            await cached(first, 9)
            assert (first.cached, second.cached) == (9, 0)
            assert await second.receive(1, 0.2) == []
            taken += await first.receive(9, EVENTUALLY_S)
            assert texts(taken) == [str(number) for number in range(10)]

    run(work())


@pytest.mark.row("C16")
def test_an_empty_cache_is_filled_by_256_kilobytes_at_most(broker: BrokerProcess, make_queue: MakeQueue) -> None:
    queue = make_queue()
    size = 10_000

    async def work() -> None:
        async with Client(broker.connection_string) as client:
            await asyncio.gather(*[client.sender(queue).send(message("x" * size)) for _ in range(100)])
            receiver = client.receiver(queue, prefetch=90)
            before = client.statistics.bytes_received
            brought = len(await receiver.receive(1, EVENTUALLY_S))
            await cached(receiver, 25 - brought)
            # A request behind the deliveries: what was sent before it is here now.
            await receiver.peek()
            assert client.statistics.bytes_received - before <= FILL_BYTES + 2 * size
            assert FILL_BYTES - 2 * size <= (brought + receiver.cached) * size <= FILL_BYTES
            assert FILL_BYTES == 256 * 1024
            few = client.receiver(queue, prefetch=3)
            brought = len(await few.receive(1, EVENTUALLY_S))
            await cached(few, 3 - brought)
            await few.peek()
            assert brought + few.cached == 3

    run(work())


@pytest.mark.row("C19")
def test_nothing_is_prefetched_by_default(broker: BrokerProcess, make_queue: MakeQueue) -> None:
    queue = make_queue()

    async def work() -> None:
        async with Client(broker.connection_string) as client:
            await client.sender(queue).send_batch([message(str(number)) for number in range(10)])
            first, second = client.receiver(queue), client.receiver(queue)
            assert texts(await first.receive(1, EVENTUALLY_S)) == ["0"]
            assert first.prefetch == first.cached == 0
            # All others are free for another receiver.
            assert texts(await receive_all(second, 9)) == [str(number) for number in range(1, 10)]

    run(work())


@pytest.mark.row("C39")
@pytest.mark.parametrize("kind", ["asyncio", "blocking"])
def test_the_cache_serves_asynchronous_and_synchronous_receives(
    broker: BrokerProcess, make_queue: MakeQueue, kind: str
) -> None:
    queue = make_queue()
    expected = [str(number) for number in range(20)]

    async def work() -> None:
        async with Client(broker.connection_string, prefetch=20) as client:
            await client.sender(queue).send_batch([message(text) for text in expected])
            receiver = client.receiver(queue)
            got = await receiver.receive(1, EVENTUALLY_S)
            await cached(receiver, 19)
            flows = client.statistics.flows_sent
            for _ in range(19):
                got += await receiver.receive(1, EVENTUALLY_S)
            assert client.statistics.flows_sent == flows
            assert texts(got) == expected

    def work_blocking() -> None:
        with sync.Client(broker.connection_string, prefetch=20) as client:
            client.sender(queue).send_batch([message(text) for text in expected])
            receiver = client.receiver(queue)
            got = receiver.receive(1, EVENTUALLY_S)
            deadline = time.monotonic() + EVENTUALLY_S
            while receiver.cached < 19 and time.monotonic() < deadline:
                receiver.peek()
            assert receiver.cached == 19
            flows = client.statistics.flows_sent
            for _ in range(19):
                got += receiver.receive(1, EVENTUALLY_S)
            assert client.statistics.flows_sent == flows
            assert texts(got) == expected

    if kind == "asyncio":
        run(work())
    else:
        work_blocking()


def test_settlements_do_what_they_say(broker: BrokerProcess, make_queue: MakeQueue) -> None:
    queue = make_queue()

    async def work() -> None:
        async with Client(broker.connection_string) as client:
            sender, receiver = client.sender(queue), client.receiver(queue)
            await asyncio.gather(*[sender.send(message(text)) for text in "abcde"])
            a, b, c, d, e = await receive_all(receiver, 5)
            until_ms = await receiver.renew_lock(a)
            assert until_ms >= (a.locked_until_ms or 0)
            await receiver.complete(a)
            await receiver.abandon(b)
            await receiver.defer(c)
            await receiver.dead_letter(d, "reason", "description")
            receiver.release(e)
            again = await receive_all(receiver, 2)
            assert texts(again) == ["b", "e"]
            assert [one.delivery_count for one in again] == [1, 0]
            number = c.sequence_number
            assert number is not None
            (deferred,) = await receiver.receive_deferred([number])
            assert deferred.body == b"c"
            await receiver.complete(deferred)
            with pytest.raises(NotFound):
                await receiver.receive_deferred([number])
            dead = client.receiver(f"{queue}/$DeadLetterQueue")
            (letter,) = await dead.receive(1, EVENTUALLY_S)
            assert (letter.body, letter.dead_letter_reason) == (b"d", "reason")
            await dead.complete(letter)
            deleting = client.receiver(queue, mode=ReceiveMode.RECEIVE_AND_DELETE)
            await sender.send(message("f"))
            (deleted,) = await deleting.receive(1, EVENTUALLY_S)
            with pytest.raises(InvalidRequest):
                deleting.complete(deleted)
            await asyncio.gather(*[receiver.complete(one) for one in again])
            assert await receiver.peek(10) == []

    run(work())


def test_scheduled_messages_can_be_cancelled(broker: BrokerProcess, make_queue: MakeQueue) -> None:
    queue = make_queue()

    async def work() -> None:
        async with Client(broker.connection_string) as client:
            sender, receiver = client.sender(queue), client.receiver(queue)
            later = int(time.time() * 1000) + 3_600_000
            first, second = await sender.schedule([message("a"), message("b")], later)
            assert [one.state for one in await receiver.peek(5)] == ["scheduled", "scheduled"]
            await sender.cancel_scheduled([first])
            (left,) = await receiver.peek(5)
            assert (left.sequence_number, left.scheduled_ms) == (second, later)
            with pytest.raises(NotFound):
                await sender.cancel_scheduled([first])

    run(work())


def test_sessions_are_held_by_one_receiver_and_have_a_state(broker: BrokerProcess, make_queue: MakeQueue) -> None:
    queue = make_queue(RequiresSession=True)

    async def work() -> None:
        async with Client(broker.connection_string) as client:
            sender = client.sender(queue)
            await asyncio.gather(*[sender.send(message(text, session_id=text[0])) for text in ("a1", "b1", "a2", "b2")])
            one = client.session_receiver(queue, NEXT_SESSION, max_wait=EVENTUALLY_S)
            await one.open()
            assert one.session_id == "a"
            assert one.locked_until_ms is not None
            held = client.session_receiver(queue, "a", max_wait=0.5)
            with pytest.raises(SessionHeld):
                await held.open()
            other = client.session_receiver(queue, max_wait=EVENTUALLY_S)
            assert texts(await receive_all(other, 2)) == ["b1", "b2"]
            with pytest.raises(TimedOut):
                await client.session_receiver(queue, max_wait=0.2).open()
            assert await one.get_state() is None
            await one.set_state(b"state")
            assert await one.get_state() == b"state"
            assert await one.renew_session_lock() >= one.locked_until_ms - 1
            messages = await receive_all(one, 2)
            assert texts(messages) == ["a1", "a2"]
            await one.complete(messages[0])
            await one.close()
            again = client.session_receiver(queue, "a")
            (left,) = await again.receive(1, EVENTUALLY_S)
            assert (left.body, await again.get_state()) == (b"a2", b"state")

    run(work())


def test_a_transaction_commits_all_or_nothing(broker: BrokerProcess, make_queue: MakeQueue) -> None:
    queue = make_queue()

    async def work() -> None:
        async with Client(broker.connection_string, connections=2) as client:
            sender, receiver = client.sender(queue), client.receiver(queue)
            while receiver.connection is not sender.connection:
                receiver = client.receiver(queue)
            await sender.send(message("old"))
            (old,) = await receiver.receive(1, EVENTUALLY_S)
            with suppress(ZeroDivisionError):
                async with client.transaction(sender) as transaction:
                    await sender.send(message("never"), transaction=transaction)
                    raise ZeroDivisionError
            async with client.transaction(sender) as transaction:
                await sender.send(message("new"), transaction=transaction)
                await receiver.complete(old, transaction=transaction)
                assert texts(await receiver.peek(5)) == ["old"]
            assert texts(await receiver.peek(5)) == ["new"]
            with pytest.raises(InvalidRequest, match="not open"):
                sender.send(message("x"), transaction=transaction)
            stranger = client.sender(queue)
            while stranger.connection is sender.connection:
                stranger = client.sender(queue)
            async with client.transaction(sender) as transaction:
                with pytest.raises(InvalidRequest, match="another connection"):
                    stranger.send(message("x"), transaction=transaction)

    run(work())


def test_rules_select_what_a_subscription_gets(broker: BrokerProcess, request: pytest.FixtureRequest) -> None:
    topic = broker.create_topic("rules-of-the-client")
    broker.create_subscription(topic, "s")

    async def work() -> None:
        async with Client(broker.connection_string) as client:
            path = f"{topic}/Subscriptions/s"
            rules = client.rules(path)
            await rules.add(RuleInfo("red", sql="colour = 'red'"))
            await rules.remove("$Default")
            assert [rule.name for rule in await rules.list()] == ["red"]
            with pytest.raises(AlreadyExists):
                await rules.add(RuleInfo("red", sql="1=1"))
            sender = client.sender(topic)
            await asyncio.gather(
                *[sender.send(message(text, application_properties={"colour": text})) for text in ("red", "blue")]
            )
            assert texts(await receive_all(client.receiver(path), 1)) == ["red"]

    run(work())


@pytest.mark.parametrize("sessions", [False, True])
def test_a_processor_completes_what_its_handler_returns_from(
    broker: BrokerProcess, make_queue: MakeQueue, sessions: bool
) -> None:
    queue = make_queue(RequiresSession=sessions, MaxDeliveryCount=2)

    async def work() -> None:
        async with Client(broker.connection_string) as client:
            sender = client.sender(queue)
            await asyncio.gather(
                *[
                    sender.send(message(str(number), session_id=str(number % 3) if sessions else None))
                    for number in range(30)
                ]
            )
            seen: list[int] = []
            errors: list[BaseException] = []
            running = most = 0
            done = asyncio.Event()

            async def handle(one: IncomingMessage, receiver: Receiver) -> None:
                nonlocal running, most
                assert isinstance(one.body, bytes)
                number = int(one.body)
                running += 1
                most = max(most, running)
                await asyncio.sleep(0.01)
                running -= 1
                if number == 7:
                    raise ZeroDivisionError
                seen.append(number)
                if len(seen) == 29 and len(errors) == 2:
                    done.set()

            def on_error(error: BaseException, one: IncomingMessage | None) -> None:
                errors.append(error)
                if len(seen) == 29 and len(errors) == 2:
                    done.set()

            processor = client.processor(
                queue, handle, concurrency=3, sessions=sessions, prefetch=10, on_error=on_error
            )
            await processor.start()
            await asyncio.wait_for(done.wait(), EVENTUALLY_S * 2)
            await processor.stop()
            await processor.stop()
            assert sorted(seen) == [number for number in range(30) if number != 7]
            assert [type(error) for error in errors] == [ZeroDivisionError] * 2
            assert most == 3
            if sessions:
                for session in range(3):
                    own = [number for number in seen if number % 3 == session]
                    assert own == sorted(own)
            (dead,) = await client.receiver(f"{queue}/$DeadLetterQueue").receive(1, EVENTUALLY_S)
            assert dead.body == b"7"

    run(work())


# -- connecting -------------------------------------------------------------------------------------------------------


def test_errors_of_connecting_name_the_next_step(broker: BrokerProcess, make_queue: MakeQueue) -> None:
    queue = make_queue()

    async def work() -> None:
        async with Client(broker.connection_string) as client:
            with pytest.raises(NotFound):
                await client.sender("no-such-queue").send(message("x"))
            with pytest.raises(NotFound):
                await client.receiver("no-such-queue").receive()
        wrong = broker.connection_string.replace("SharedAccessKey=", "SharedAccessKey=wrong")
        async with Client(wrong) as client:
            with pytest.raises(AccessDenied):
                await client.sender(queue).send(message("x"))
        address = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=b"
        with pytest.raises(ConnectFailed, match="partibus serve"):
            await Client(address, retry=RetryPolicy(attempts=1)).open()
        nowhere = Client(address, timeout=0.5)
        with pytest.raises(TimedOut, match="was not sent"):
            await nowhere.sender(queue).send(message("x"))
        await nowhere.close()

    run(work())


def test_a_credential_makes_tokens_for_each_audience(broker: BrokerProcess, make_queue: MakeQueue) -> None:
    queue = make_queue()
    connection = parse_connection_string(broker.connection_string)
    audiences: list[str] = []

    async def credential(audience: str) -> Token:
        audiences.append(audience)
        expires_at = int(time.time()) + 600
        return Token(make_token(audience, connection.key_name, connection.key, expires_at), expires_at)

    async def work() -> None:
        namespace = f"amqp://{connection.host}:{broker.port}"
        async with Client(namespace=namespace, credential=credential) as client:
            await client.sender(queue).send(message("x"))
            assert texts(await client.receiver(queue).receive(1, EVENTUALLY_S)) == ["x"]
        assert set(audiences) == {f"sb://{connection.host}/{queue}"}

    run(work())


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with BrokerProcess(tmp_path_factory.mktemp("tls"), tls=True) as broker:
        broker.create_queue("q")
        yield broker


@pytest.mark.parametrize("transport", ["tls", "websocket", "websocket-tls"])
def test_every_transport_carries_large_messages(secure: BrokerProcess, transport: str) -> None:
    async def work() -> None:
        settings: dict[str, Any] = {
            "tls": {"endpoint": f"https://localhost:{secure.amqps_port}", "ca_file": str(secure.ca_file)},
            "websocket": {"endpoint": secure.http_url, "transport": "websocket"},
            "websocket-tls": {
                "endpoint": secure.https_url,
                "transport": "websocket",
                "ca_file": str(secure.ca_file),
            },
        }[transport]
        async with Client(secure.connection_string, **settings) as client:
            await asyncio.gather(*[client.sender("q").send(message(str(number) * 200_000)) for number in range(5)])
            got = await receive_all(receiver := client.receiver("q", prefetch=10), 5)
            assert sorted(texts(got)) == [str(number) * 200_000 for number in range(5)]
            await asyncio.gather(*[receiver.complete(one) for one in got])
        if "ca_file" in settings:
            untrusting = Client(
                secure.connection_string, **(settings | {"ca_file": None}), retry=RetryPolicy(attempts=1)
            )
            with pytest.raises(ConnectFailed, match="ca_file"):
                await untrusting.open()
            await untrusting.close()

    run(work())


def test_a_killed_broker_loses_no_acknowledged_message(tmp_path: Path) -> None:
    """Send and complete through three deaths by SIGKILL."""
    with BrokerProcess(tmp_path) as broker:
        broker.create_queue("q")

        async def work() -> None:
            async with Client(broker.connection_string, prefetch=50) as client:
                sender, receiver = client.sender("q"), client.receiver("q")
                stored: list[int] = []
                received: list[int] = []
                sending = True
                goal = 100
                reached = asyncio.Event()

                async def send(first: int) -> None:
                    number = first
                    while sending:
                        await sender.send(message(str(number)))
                        stored.append(number)
                        number += 20
                        if len(stored) >= goal:
                            reached.set()

                async def consume() -> None:
                    while sending or set(received) < set(stored):
                        try:
                            messages = await receiver.receive(50, 1.0)
                        except ConnectFailed:
                            continue  # The broker was away for all of this second.
                        for one in messages:
                            (failure,) = await asyncio.gather(receiver.complete(one), return_exceptions=True)
                            assert failure is None or isinstance(failure, ClientError)
                            assert isinstance(one.body, bytes)
                            received.append(int(one.body))

                tasks = [asyncio.create_task(send(first)) for first in range(20)]
                consuming = asyncio.create_task(consume())
                for _ in range(3):
                    await reached.wait()
                    goal = len(stored) + 100
                    reached.clear()
                    broker.kill()
                    await asyncio.to_thread(broker.start)
                sending = False
                await asyncio.gather(*tasks)
                await asyncio.wait_for(consuming, 45)
                assert set(stored) <= set(received)
                assert client.statistics.reconnects >= 3

        run(work())


# -- blocking ---------------------------------------------------------------------------------------------------------


def test_the_blocking_client_does_the_same(broker: BrokerProcess, make_queue: MakeQueue) -> None:
    queue, sessions = make_queue(), make_queue(RequiresSession=True)
    with sync.Client(broker.connection_string, connections=2) as client:
        sender, receiver = client.sender(queue), client.receiver(queue)
        assert sender.send([message(str(number)) for number in range(10)]) == 10
        assert sender.send(message("10")) == 1
        future = sender.submit(message("11"))
        future.result(EVENTUALLY_S)
        got: list[IncomingMessage] = []
        while len(got) < 12:
            got += receiver.receive(12, EVENTUALLY_S)
        assert texts(got) == [str(number) for number in range(12)]
        receiver.complete(got[:8])
        receiver.abandon(got[8])
        receiver.dead_letter(got[9], "reason")
        receiver.defer(got[10])
        receiver.renew_lock(got[11])
        receiver.release(got[11])
        number = got[10].sequence_number
        assert number is not None
        receiver.complete(receiver.receive_deferred([number]))
        again = [*receiver.receive(2, EVENTUALLY_S)]
        again += receiver.receive(2, 0.2)
        assert texts(again) == ["8", "11"]
        with client.transaction(sender) as transaction:
            sender.send(message("t"), transaction=transaction)
        with pytest.raises(NotFound):
            client.sender("no-such-queue").send(message("x"))
        with pytest.raises(SendFailed) as caught:
            client.sender(sessions).send([message("a", session_id="s"), message("b"), message("c", session_id="s")])
        assert [index for index, _ in caught.value.failures] == [1]
        with client.session_receiver(sessions) as session:
            assert session.session_id == "s"
            session.set_state(b"x")
            assert session.get_state() == b"x"
            assert session.renew_session_lock() > 0
        (sequence,) = sender.schedule([message("later")], int(time.time() * 1000) + 3_600_000)
        sender.cancel_scheduled([sequence])
    client.close()
    with pytest.raises(Closed, match="closed"):
        client.open()
    assert all(thread.name != "partibus-client" for thread in threading.enumerate())


def test_threads_share_a_blocking_client(broker: BrokerProcess, make_queue: MakeQueue) -> None:
    queue = make_queue()
    with sync.Client(broker.connection_string) as client:
        sender = client.sender(queue)

        def work(number: int) -> None:
            for at in range(20):
                sender.send(message(f"{number}-{at}"))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found: list[str] = []
        with client.receiver(queue, prefetch=200) as receiver:
            while len(found) < 160:
                messages = receiver.receive(200, EVENTUALLY_S)
                found += texts(messages)
                receiver.complete(messages)
        assert sorted(found) == sorted(f"{number}-{at}" for number in range(8) for at in range(20))


def test_a_lost_lock_is_told_on_completion(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, arguments=("--clock", "manual")) as broker:
        broker.create_queue("q")
        with sync.Client(broker.connection_string, prefetch=2) as client:
            client.sender("q").send([message("a"), message("b")])
            receiver = client.receiver("q")
            (first,) = receiver.receive(1, EVENTUALLY_S)
            while receiver.cached < 1:
                receiver.peek()
            broker.advance(120_000)
            (second,) = receiver.receive(1, EVENTUALLY_S)
            for one in (first, second):
                with pytest.raises(LockLost):
                    receiver.complete(one)


# -- the wire ----------------------------------------------------------------------------------------------------------


def performatives(data: bytes) -> list[Any]:
    """Decode the frames that a client sent, behind its protocol headers; the payload of transfers is dropped."""
    found: list[Any] = []
    at = 0
    while at + 8 <= len(data):
        if data[at : at + 4] == b"AMQP":
            at += 8
            continue
        size, offset, kind, _ = HEADER.unpack_from(data, at)
        body = at + offset * 4
        if kind == AMQP_FRAME and body < at + size:
            found.append(decode_performative(data, body, at + size, 32)[0])
        at += size
    return found


async def recorded(broker: BrokerProcess, use: Callable[[str], Coroutine[Any, Any, None]]) -> list[Any]:
    """Let a client use the broker through a proxy, and return the performatives that it sent, by connection."""
    connections: list[bytearray] = []
    tasks: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: bytearray | None) -> None:
        while data := await reader.read(65_536):
            if record is not None:
                record += data
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        record = bytearray()
        connections.append(record)
        back_reader, back_writer = await asyncio.open_connection("127.0.0.1", broker.port)
        for some in (pump(reader, back_writer, record), pump(back_reader, writer, None)):
            task = asyncio.create_task(some)
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await use(broker.connection_string.replace(f":{broker.port}", f":{port}"))
    server.close()
    if tasks:
        await asyncio.wait(set(tasks), timeout=EVENTUALLY_S)
    return [one for record in connections for one in performatives(bytes(record))]


def test_the_wire_is_that_of_azure_servicebus_where_it_must_be(broker: BrokerProcess, make_queue: MakeQueue) -> None:
    """Compare what both clients send for the same work: a batch, a receive and a completion."""
    queue = make_queue()

    async def azure(connection: str) -> None:
        async with ServiceBusClient.from_connection_string(connection) as client:
            async with client.get_queue_sender(queue) as sender:
                await sender.send_messages([ServiceBusMessage(b"a"), ServiceBusMessage(b"b")])
            async with client.get_queue_receiver(queue) as receiver:
                left = 2
                while left:
                    for one in await receiver.receive_messages(left, max_wait_time=EVENTUALLY_S):
                        await receiver.complete_message(one)
                        left -= 1

    async def own(connection: str) -> None:
        async with Client(connection) as client:
            sender, receiver = client.sender(queue), client.receiver(queue)
            await asyncio.gather(*[sender.send(message(text)) for text in "ab"])
            for one in await receive_all(receiver, 2):
                await receiver.complete(one)

    def wire(sent: list[Any]) -> dict[str, object]:
        attaches = [one for one in sent if isinstance(one, Attach)]
        links = {
            attach.role: attach
            for attach in attaches
            if queue in str(getattr(attach.source, "address", "")) + str(getattr(attach.target, "address", ""))
            and "$management" not in str(getattr(attach.target, "address", ""))
        }
        settled = [one for one in sent if isinstance(one, Disposition) and not one.settled]
        return {
            "hostname": {one.hostname for one in sent if isinstance(one, Open)},
            "sender settles": links[False].snd_settle_mode,
            "receiver settles": (links[True].snd_settle_mode, links[True].rcv_settle_mode),
            "first delivery-count": links[False].initial_delivery_count,
            "outcomes": {type(one.state).__name__ for one in settled},
            "tokens": any(getattr(attach.target, "address", None) == "$cbs" for attach in attaches),
            "batch": {one.message_format for one in sent if isinstance(one, Transfer)} >= {0, BATCH_FORMAT},
            "settles as receiver": {one.role for one in settled},
        }

    async def work() -> None:
        theirs, ours = wire(await recorded(broker, azure)), wire(await recorded(broker, own))
        assert ours == theirs
        assert ours["outcomes"] == {"Accepted"}
        assert ours["batch"] is True

    run(work())


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_page_of_the_client_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[2] / "docs" / "client.md"
    with BrokerProcess(tmp_path) as broker:
        broker.create_queue("orders")
        monkeypatch.setenv("PARTIBUS_CONNECTION", broker.connection_string)
        names: dict[str, object] = {"__name__": "page"}
        ran = [language for language, text in blocks(page.read_text(encoding="utf-8")) if language == "python"]
        for _, text in blocks(page.read_text(encoding="utf-8")):
            run_python(text, page, names)
        assert len(ran) == 5
        assert broker.describe("orders").messages == 1
