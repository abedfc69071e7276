"""The blocking client: its thread, its ends, its loops, and processors whose handlers run in threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from partibus.client import sync
from partibus.client.aio import OutgoingMessage
from partibus.client.errors import ClientError, Closed, InvalidRequest, SendFailed
from partibus.client.messages import IncomingMessage
from partibus.errors import ArgumentError
from tests.unit.client.broker import TinyBroker


def fill(broker: TinyBroker, count: int) -> None:
    broker.queues["q"].extend(OutgoingMessage(body=b"%d" % number).encode() for number in range(count))


def test_a_call_of_another_thread_ends_with_the_blocking_client(broker: TinyBroker) -> None:
    others = {thread for thread in threading.enumerate() if thread.name == "partibus-client"}
    client = sync.Client(broker.connection_string, timeout=30.0).open()
    receiver = client.receiver("q")
    receiver.open()
    told: list[BaseException] = []

    def wait() -> None:
        try:
            while True:
                receiver.receive(1, 20.0)
        except ClientError as error:
            told.append(error)

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    client.close()
    for thread in threads:
        thread.join()
    assert [type(error) for error in told] == [Closed] * 4
    left = {thread for thread in threading.enumerate() if thread.name == "partibus-client"}
    assert left <= others


def test_a_blocking_call_in_the_clients_own_thread_is_refused(broker: TinyBroker) -> None:
    told: list[BaseException] = []

    def ask() -> None:
        try:
            client.request("q", "x", {})
        except InvalidRequest as error:
            told.append(error)

    with sync.Client(broker.connection_string) as client:
        client.call(ask)
    assert "wait for itself" in str(told[0])


def test_a_blocking_client_may_be_used_in_a_thread_that_runs_an_event_loop(broker: TinyBroker) -> None:
    async def work() -> None:
        with sync.Client(broker.connection_string) as client:
            client.sender("q").send(OutgoingMessage(body=b"x"))

    asyncio.run(work())
    assert len(broker.queues["q"]) == 1


def test_a_forked_process_leaves_the_clients_block_and_the_parent_goes_on(broker: TinyBroker) -> None:
    with sync.Client(broker.connection_string) as client:
        sender = client.sender("q")
        sender.send(OutgoingMessage(body=b"1"))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                client.close()
                client.close()
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        sender.send(OutgoingMessage(body=b"2"))
    assert len(broker.queues["q"]) == 2


def test_submitted_messages_keep_their_order_past_the_buffer(broker: TinyBroker) -> None:
    with sync.Client(broker.connection_string, buffer_bytes=2_000) as client:
        sender = client.sender("q")
        results = [sender.submit(OutgoingMessage(body=b"%05d" % number)) for number in range(300)]
        wrong = sender.submit(OutgoingMessage(body="text"))  # type: ignore[arg-type]
        sender.flush()
        assert all(result.result(10) is None for result in results)
        with pytest.raises(InvalidRequest, match="pass bytes"):
            wrong.result(10)
        assert [payload[-5:] for payload in broker.queues["q"]] == [b"%05d" % number for number in range(300)]
        slow = client.sender("q", batch_flush_interval=1.0)
        slow.open()
        taken_back = slow.submit(OutgoingMessage(body=b"x"))
        assert taken_back.cancel()
        slow.flush()
        assert len(broker.queues["q"]) == 300
    with pytest.raises(Closed):
        sender.submit(OutgoingMessage(body=b"x"))


def test_one_malformed_message_of_a_call_fails_alone(broker: TinyBroker) -> None:
    wrong: Any = None
    with sync.Client(broker.connection_string) as client:
        sender = client.sender("q")
        good = OutgoingMessage(body=b"x")
        with pytest.raises(SendFailed) as caught:
            sender.send([good, OutgoingMessage(body=b"x", subject=5), good, wrong])  # type: ignore[arg-type]
        assert [(index, type(error)) for index, error in caught.value.failures] == [
            (1, InvalidRequest),
            (3, InvalidRequest),
        ]
        assert len(broker.queues["q"]) == 2
        with pytest.raises(InvalidRequest, match="not NoneType"):
            sender.send(wrong)
        receiver = client.receiver("q")
        for settle in (receiver.complete, receiver.abandon, receiver.defer, receiver.dead_letter):
            with pytest.raises(InvalidRequest, match="a NoneType has no lock"):
                settle(wrong)


def test_a_loop_that_ends_early_leaves_the_rest_in_the_cache(broker: TinyBroker) -> None:
    fill(broker, 10)
    with sync.Client(broker.connection_string, prefetch=10) as client:
        receiver = client.receiver("q")
        seen = []
        for message in receiver:
            seen.append(message.body)
            if len(seen) == 3:
                break
        while len(seen) < 10:
            seen += [message.body for message in receiver.receive(10, 10.0)]
        assert seen == [b"%d" % number for number in range(10)]


def test_a_processor_calls_its_handler_in_threads(broker: TinyBroker) -> None:
    fill(broker, 20)
    together = threading.Barrier(2, timeout=30.0)
    seen: list[object] = []
    told: list[BaseException] = []

    def handle(message: IncomingMessage, receiver: sync.Receiver) -> None:
        if message.body in (b"0", b"1"):
            together.wait()
        if message.body == b"5":
            raise ZeroDivisionError
        if message.body == b"6":
            receiver.dead_letter(message, "reason")
        seen.append(message.body)
        if len(seen) == 19:
            processor.stop()

    with sync.Client(broker.connection_string) as client:
        processor = client.processor("q", handle, concurrency=2, on_error=lambda error, message: told.append(error))
        processor.run()
        assert sorted(seen, key=str) == sorted([b"%d" % number for number in range(20) if number != 5], key=str)
        assert {type(error) for error in told} == {ZeroDivisionError}
        with processor:
            pass
        wrong: object
        for wrong in (None, "x"):
            with pytest.raises(ArgumentError, match="handler"):
                client.processor("q", wrong)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="concurrency"):
            client.processor("q", handle, concurrency=0)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt at SIGINT, which a shell's jobs in the background ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("twice", [False, True])
def test_an_interrupted_processor_lets_its_handlers_end_until_a_second_interrupt(
    broker: TinyBroker, twice: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, 1)
    stopping, over = threading.Event(), threading.Event()
    main = threading.main_thread().ident
    assert main == threading.get_ident()
    told: list[BaseException] = []
    handled: list[object] = []

    def handle(message: IncomingMessage, receiver: sync.Receiver) -> None:
        signal.pthread_kill(main, signal.SIGINT)
        stopping.wait(5.0)
        if twice:
            signal.pthread_kill(main, signal.SIGINT)
            over.wait(30.0)
        handled.append(message.body)

    with sync.Client(broker.connection_string) as client:
        processor = client.processor("q", handle, on_error=lambda error, message: told.append(error))
        stop = processor.stop

        def noted() -> None:
            stopping.set()
            stop()

        with monkeypatch.context() as patched:
            patched.setattr(processor, "stop", noted)
            with pytest.raises(KeyboardInterrupt):
                processor.run()
        assert len(handled) == (0 if twice else 1)
        over.set()
        processor.stop()
        assert [outcome for _, outcome in broker.settled] == ["accepted"]
    assert not told


def test_a_cancelled_submission_wakes_up_a_wait_for_several(broker: TinyBroker) -> None:
    with sync.Client(broker.connection_string, batch_flush_interval=1.0) as client:
        sender = client.sender("q")
        results = [sender.submit(OutgoingMessage(body=b"%d" % number)) for number in range(2)]
        assert results[0].cancel()
        done, left = concurrent.futures.wait(results, timeout=10.0)
        assert (len(done), len(left)) == (2, 0)
        assert results[0].cancelled()
        assert [IncomingMessage(payload).body for payload in broker.queues["q"]] == [b"1"]


@pytest.mark.parametrize("last", [False, True])
def test_a_processor_ends_when_another_thread_closes_its_client(broker: TinyBroker, last: bool) -> None:
    fill(broker, 1)
    handling, ended = threading.Event(), threading.Event()

    def handle(message: IncomingMessage, receiver: sync.Receiver) -> None:
        handling.set()
        ended.wait(5.0 if last else 0.1)

    with ExitStack() as stack:
        if not last:
            stack.enter_context(sync.Client(broker.connection_string))
        client = stack.enter_context(sync.Client(broker.connection_string))
        processor = client.processor("q", handle, on_error=lambda error, message: None)
        running = threading.Thread(target=processor.run)
        running.start()
        assert handling.wait(10.0)
        client.close()
        running.join(10.0)
        assert not running.is_alive()
        ended.set()
        with pytest.raises(Closed):
            processor.run()
