"""Senders on a simulated network: batches, order, failures, time limits, and brokers that die in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from partibus.amqp import AmqpError
from partibus.amqp.sections import BATCH_FORMAT
from partibus.client.aio import (
    NOT_SENT,
    REFUSED,
    STORED,
    UNKNOWN,
    Client,
    OutgoingMessage,
    RetryPolicy,
    Sending,
    Token,
)
from partibus.client.aio import connection as aio_connection
from partibus.client.aio.send_results import SendResults
from partibus.client.aio.tasks import seen
from partibus.client.errors import (
    AccessDenied,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    InvalidRequest,
    LinkLost,
    MessageTooLarge,
    NotFound,
    Throttled,
    TimedOut,
)
from partibus.client.messages import IncomingMessage
from partibus.errors import ArgumentError
from tests.unit.client.simulated import CONNECTION, EPOCH_S, SimulatedBroker, connections, run


def message(text: str, **fields: object) -> OutgoingMessage:
    return OutgoingMessage(body=text.encode(), **fields)  # type: ignore[arg-type]


def texts(payloads: list[bytes]) -> list[str]:
    bodies = [IncomingMessage(payload).body for payload in payloads]
    return [body.decode() for body in bodies if isinstance(body, bytes)]


def busy(text: str = "Error code: 50009, please wait 2 seconds and try again.") -> AmqpError:
    return AmqpError("com.microsoft:server-busy", text)


@pytest.mark.row("C10")
def test_sends_of_one_interval_are_one_transfer() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        client = broker.client()
        sender = client.sender("q")
        await sender.open()
        begun = asyncio.get_running_loop().time()
        first = sender.send(message("0"))
        await asyncio.sleep(0.015)
        rest = [sender.send(message(str(number))) for number in range(1, 10)]
        await asyncio.sleep(0.004)
        assert broker.transfers == []
        await asyncio.gather(first, *rest)
        ((at, message_format, payloads),) = broker.transfers
        assert at == pytest.approx(begun + 0.020 + broker.latency_s)
        assert message_format == BATCH_FORMAT
        assert texts(payloads) == [str(number) for number in range(10)]
        await client.close()

    run(work())


@pytest.mark.row("C10")
def test_without_an_interval_each_send_is_a_transfer_of_its_own_at_once() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        client = broker.client(batch_flush_interval=0)
        sender = client.sender("q")
        await sender.open()
        begun = asyncio.get_running_loop().time()
        await asyncio.gather(*[sender.send(message(str(number))) for number in range(10)])
        assert [(at, form) for at, form, _ in broker.transfers] == [(begun + broker.latency_s, 0)] * 10
        await client.close()

    run(work())


@pytest.mark.row("C11")
def test_a_batch_that_would_exceed_the_limit_leaves_at_once_and_the_message_opens_the_next() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        broker.max_message_size = 10_000
        client = broker.client(batch_flush_interval=0.5)
        sender = client.sender("q")
        await sender.open()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        results = [sender.send(message(str(number) * 2_000)) for number in range(6)]
        await asyncio.gather(*results[:4])
        assert loop.time() - begun < 0.1
        assert [len(payloads) for _, _, payloads in broker.transfers] == [4]
        assert not results[4].done()
        await asyncio.gather(*results)
        assert loop.time() - begun >= 0.5
        assert [len(payloads) for _, _, payloads in broker.transfers] == [4, 2]
        assert texts(broker.stored["q"]) == [str(number) * 2_000 for number in range(6)]
        await client.close()

    run(work())


def test_messages_sent_before_the_link_is_open_are_cut_to_its_limit() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        broker.max_message_size = 10_000
        client = broker.client()
        sender = client.sender("q")
        results = [sender.send(message(str(number % 10) * 900)) for number in range(50)]
        too_large = sender.send(message("x" * 20_000))
        await asyncio.gather(*results)
        with pytest.raises(MessageTooLarge, match="10000"):
            await too_large
        assert texts(broker.stored["q"]) == [str(number % 10) * 900 for number in range(50)]
        assert all(sum(map(len, payloads)) <= 10_000 for _, _, payloads in broker.transfers)
        with pytest.raises(MessageTooLarge, match="send a smaller body"):
            sender.send(message("x" * 20_000))
        await client.close()

    run(work())


def test_a_batch_has_one_key_and_the_order_of_the_calls_stays() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        client = broker.client()
        sender = client.sender("q")
        keys = ["a", "a", "b", "b", "b", "a"]
        await asyncio.gather(*[sender.send(message(str(number), partition_key=key)) for number, key in enumerate(keys)])
        assert [len(payloads) for _, _, payloads in broker.transfers] == [2, 3, 1]
        assert texts(broker.stored["q"]) == ["0", "1", "2", "3", "4", "5"]
        await client.close()

    run(work())


def test_one_bad_message_fails_alone() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        refusal = AmqpError("amqp:not-allowed", "no session id")
        broker.refuse = lambda payload: refusal if texts([payload]) == ["3"] else None
        client = broker.client()
        sender = client.sender("q")
        results = [sender.send(message(str(number))) for number in range(6)]
        answers = await asyncio.gather(*results, return_exceptions=True)
        assert [type(answer) for answer in answers] == [type(None)] * 3 + [InvalidRequest] + [type(None)] * 2
        assert [result.outcome for result in results] == [STORED] * 3 + [REFUSED] + [STORED] * 2
        assert texts(broker.stored["q"]) == ["0", "1", "2", "4", "5"]
        assert sender.outstanding == sender.outstanding_bytes == 0
        await client.close()

    run(work())


def test_a_batch_of_the_callers_own_is_stored_as_a_whole_or_not() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        client = broker.client()
        sender = client.sender("q")
        await sender.send_batch([message("0")])
        assert (texts(broker.stored["q"]), broker.transfers[0][1]) == (["0"], 0)
        broker.stored["q"].clear()
        await sender.send_batch([message("0"), message("1")])
        broker.refuse = lambda payload: AmqpError("amqp:not-allowed", "no") if texts([payload]) == ["3"] else None
        with pytest.raises(InvalidRequest):
            await sender.send_batch([message("2"), message("3")])
        assert texts(broker.stored["q"]) == ["0", "1"]
        with pytest.raises(InvalidRequest, match="empty"):
            sender.send_batch([])
        with pytest.raises(MessageTooLarge):
            sender.send_batch([message("x" * 200_000)] * 2)
        await client.close()

    run(work())


def test_a_throttled_broker_is_left_alone_for_two_seconds() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        loop = asyncio.get_running_loop()
        free_at = loop.time() + 5.0
        broker.refuse = lambda payload: busy() if loop.time() < free_at else None
        client = broker.client()
        sender = client.sender("q")
        results = [sender.send(message(str(number), partition_key=str(number))) for number in range(3)]
        await asyncio.gather(*results)
        assert texts(broker.stored["q"]) == ["0", "1", "2"]
        times = sorted({at for at, _, _ in broker.transfers})
        assert all(later - sooner >= 2.0 for sooner, later in pairwise(times))
        assert len(times) in (3, 4)
        await client.close()

    run(work())


def test_errors_that_the_services_clients_repeat_are_repeated() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        refusals = [AmqpError("amqp:internal-error", "x"), AmqpError("com.microsoft:operation-cancelled", "x")]
        broker.refuse = lambda payload: refusals.pop() if refusals else None
        client = broker.client()
        sending = client.sender("q").send(message("0"))
        await sending
        assert (len(broker.transfers), sending.outcome) == (3, STORED)
        broker.refuse_attach = AmqpError("amqp:unauthorized-access", "expired")
        tokens = len(broker.tokens)
        late = client.sender("q")
        with pytest.raises(AccessDenied):
            await late.open()
        broker.refuse_attach = None
        await late.send(message("1"))
        assert len(broker.tokens) == tokens + 1, "a refused link asks for a new token"
        await client.close()

    run(work())


def test_a_broker_that_ends_the_link_over_a_message_is_not_flooded() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        broker.detach = AmqpError("amqp:link:detach-forced", "the outcome is unknown")
        client = broker.client()
        sending = client.sender("q").send(message("0"))
        await asyncio.sleep(20)
        assert 5 <= len(broker.transfers) <= 12
        broker.detach = None
        await sending
        assert texts(broker.stored["q"]) == ["0"]
        await client.close()

    run(work())


def test_a_client_of_one_attempt_repeats_nothing_and_connects_again() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        broker.refuse = lambda payload: busy()
        client = broker.client(retry=RetryPolicy(attempts=1))
        sender = client.sender("q")
        with pytest.raises(Throttled):
            await sender.send(message("0"))
        assert len(broker.transfers) == 1
        broker.refuse = lambda payload: None
        broker.mute = True
        lost = sender.send(message("1"))
        await asyncio.sleep(1)
        broker.kill()
        with pytest.raises(ConnectionLost, match="may or may not be stored"):
            await lost
        assert (lost.outcome, len(broker.transfers)) == (UNKNOWN, 2)
        with pytest.raises(ConnectFailed):
            await sender.send(message("2"))
        broker.restart()
        broker.mute = False
        await sender.send(message("3"))
        assert texts(broker.stored["q"]) == ["1", "3"]
        assert client.statistics.reconnects == 1
        await client.close()

    run(work())


def test_a_message_outlasts_the_attempts_of_a_client_with_a_short_time_limit() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        client = broker.client(timeout=0.05)
        broker.kill()
        sending = client.sender("q").send(message("0"), timeout=100.0)
        await asyncio.sleep(10)
        assert client.statistics.retries < 200
        broker.restart()
        await sending
        assert texts(broker.stored["q"]) == ["0"]
        await client.close()

    run(work())


def test_delays_grow_exponentially_with_jitter() -> None:
    policy = RetryPolicy(base=0.1, cap=5.0, jitter=0.2)
    error = ClientError("x")
    for attempt, expected in enumerate([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]):
        delays = {policy.delay(attempt, error) for _ in range(50)}
        assert all(0.8 * expected <= delay <= 1.2 * expected for delay in delays)
        assert len(delays) > 10
    assert policy.delay(5_000, error) <= 6.0


def test_a_time_limit_says_whether_the_message_was_sent() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        client = broker.client(timeout=5.0)
        sender = client.sender("q")
        await sender.send(message("0"))
        broker.mute = True
        sent = sender.send(message("1"))
        with pytest.raises(TimedOut, match="may or may not be stored"):
            await sent
        assert sent.outcome == UNKNOWN
        broker.kill()
        unsent = sender.send(message("2"), timeout=1.0)
        with pytest.raises(TimedOut, match="was not sent"):
            await unsent
        assert unsent.outcome == NOT_SENT
        assert sender.outstanding == 0
        await client.close()

    run(work())


def test_a_cancellation_takes_an_unsent_message_back_and_says_what_it_knows() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        client = broker.client()
        sender = client.sender("q")
        await sender.open()
        kept, taken_back = sender.send(message("kept")), sender.send(message("taken back"))
        assert taken_back.cancel()
        with pytest.raises(asyncio.CancelledError, match="was not sent"):
            await taken_back
        await kept
        assert taken_back.outcome == NOT_SENT
        assert texts(broker.stored["q"]) == ["kept"]
        broker.mute = True
        flying = sender.send_now([message("flying")])[0]
        await asyncio.sleep(0.01)
        flying.cancel()
        with pytest.raises(asyncio.CancelledError, match="unknown"):
            await flying
        assert flying.outcome == UNKNOWN
        assert not flying.cancel()
        assert sender.outstanding == 0
        broker.kill()
        await client.close()

    run(work())


def test_bytes_without_an_answer_hold_back_the_encoding_of_more() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        broker.commit_s = 1.0
        client = broker.client(buffer_bytes=10_000)
        sender = client.sender("q")
        await sender.open()
        results = [sender.send(message(str(number % 10) * 1_000)) for number in range(100)]
        assert sender.outstanding == 100
        assert 10_000 <= sender.outstanding_bytes < 11_100
        await sender.room()
        assert sum(result.done() for result in results) >= 85
        await asyncio.gather(*results)
        assert texts(broker.stored["q"]) == [str(number % 10) * 1_000 for number in range(100)]
        await client.close()

    run(work())


def test_an_unknown_entity_fails_what_waits_and_nothing_hangs() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        client = broker.client()
        sender = client.sender("missing")
        results = [sender.send(message("0")) for _ in range(3)]
        for result in results:
            with pytest.raises(NotFound, match="could not be found; the message was not sent"):
                await result
        with pytest.raises(NotFound):
            await sender.open()
        await client.close()

    run(work())


def test_close_sends_what_is_open_and_is_idempotent() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        client = broker.client(batch_flush_interval=1.0)
        sender = client.sender("q")
        result = sender.send(message("0"))
        await asyncio.gather(client.close(), client.close())
        await client.close()
        await result
        assert texts(broker.stored["q"]) == ["0"]
        with pytest.raises(LinkLost, match="closed"):
            sender.send(message("1"))
        with pytest.raises(ClientError, match="closed"):
            client.sender("q")

    run(work())


def test_bodies_that_are_no_bytes_and_messages_that_are_none_are_refused_at_the_call() -> None:
    async def work() -> None:
        client = SimulatedBroker().client()
        sender = client.sender("q")
        with pytest.raises(InvalidRequest, match="pass bytes"):
            sender.send(OutgoingMessage(body="text"))  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="not dict"):
            sender.send({})  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest):
            sender.send(OutgoingMessage(application_properties={"x": object()}))
        assert sender.outstanding == 0
        await client.close()

    run(work())


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"session_id": 5}, "session_id is 5, but must be a text of 128 characters at most"),
        ({"session_id": "x" * 129}, "session_id"),
        ({"partition_key": b"k"}, "partition_key"),
        ({"message_id": "x" * 129}, "message_id"),
        ({"message_id": 1.5}, "message_id is 1.5"),
        ({"correlation_id": True}, "correlation_id"),
        ({"subject": 5}, "subject is 5, but must be a text"),
        ({"content_type": "ä"}, "ASCII"),
        ({"ttl_ms": -1}, "ttl_ms is -1, but must be a whole number of milliseconds, 0 to 4294967295"),
        ({"ttl_ms": "1"}, "ttl_ms"),
        ({"scheduled_ms": 1.8e12}, "Pass int(moment.timestamp() * 1000)"),
        ({"application_properties": {1: 2}}, "application_properties is {1: 2}"),
        ({"application_properties": [1]}, "application_properties"),
    ],
)
def test_fields_of_a_message_out_of_range_name_value_and_bound(fields: dict[str, object], named: str) -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        client = broker.client()
        sender = client.sender("q")
        with pytest.raises(InvalidRequest) as caught:
            sender.send(message("x", **fields))
        assert named in str(caught.value)
        with pytest.raises(InvalidRequest):
            sender.send_batch([message("x", **fields)])
        assert sender.outstanding == 0
        await client.close()

    run(work())


def test_arguments_of_calls_out_of_range_name_value_and_bound() -> None:
    async def work() -> None:
        client = SimulatedBroker().client()
        sender = client.sender("q")
        wrong: Any
        for wrong in (-1, float("nan"), "1"):
            with pytest.raises(ArgumentError, match="but must be 0 to 86400 s"):
                sender.send(b"", timeout=wrong)
            with pytest.raises(ArgumentError, match="but must be 0 to 86400 s"):
                sender.send_batch([b""], timeout=wrong)
        for at_ms in ("tomorrow", -5, 1.8e12, True):
            with pytest.raises(ArgumentError, match="enqueue_at_ms is"):
                await sender.schedule([message("x")], at_ms)  # type: ignore[arg-type]
        for numbers in (["1"], [1 << 64], [1.5]):
            with pytest.raises(ArgumentError, match="sequence number is"):
                await sender.cancel_scheduled(numbers)  # type: ignore[arg-type]
        await sender.cancel_scheduled([])
        assert await sender.schedule([], 5) == []
        for several in (b"abc", "abc", None, message("x")):
            with pytest.raises(InvalidRequest, match="pass a list of messages"):
                sender.send_batch(several)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="operation is ''"):
            await client.request("q", "", {})
        with pytest.raises(ArgumentError, match="body is None"):
            await client.request("q", "x", None)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="beside"):
            client.transaction("q")  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="session_id"):
            client.session_receiver("q", "x" * 129)
        with pytest.raises(ArgumentError, match="entity"):
            client.rules("")
        await client.close()

    run(work())


@pytest.mark.parametrize(
    ("token", "named"),
    [
        (LookupError("no such tenant"), "the credential failed for 'sb://simulated/q': LookupError"),
        ("token", "return Token"),
        (Token("x", "tomorrow"), "expires at 'tomorrow'; give seconds since 1970"),  # type: ignore[arg-type]
        (Token("x", float("nan")), "expires at nan"),
    ],
)
def test_a_credential_that_fails_is_an_error_of_the_call(token: object, named: str) -> None:
    def credential(audience: str) -> Token:
        if isinstance(token, Exception):
            raise token
        return token  # type: ignore[return-value]

    async def work() -> None:
        broker = SimulatedBroker()
        client = Client(namespace="amqp://simulated:5672", credential=credential)
        for connection in connections(client):
            connection.connect = broker.connect
        with pytest.raises(AccessDenied) as caught:
            await client.sender("q").open()
        assert named in str(caught.value)
        await client.close()

    run(work())


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"connections": 0}, "connections is 0, but must be 1 to 64"),
        ({"connections": True}, "connections"),
        ({"batch_flush_interval": -0.001}, "batch_flush_interval is -0.001, but must be 0 to 1 s"),
        ({"batch_flush_interval": 20}, "batch_flush_interval is 20"),
        ({"prefetch": -1}, "prefetch is -1, but must be 0 to 100000"),
        ({"prefetch": 1.5}, "prefetch"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"transport": "http"}, "transport is 'http'"),
        ({"endpoint": "host:99999"}, "endpoint"),
        ({"namespace": "x"}, "connection_string"),
        ({"buffer_bytes": 1}, "buffer_bytes"),
        ({"retry": 5}, "retry is 5, but must be a RetryPolicy"),
        ({"ssl_context": "x"}, "ssl_context is 'x'"),
        ({"ca_file": 5}, "ca_file is 5"),
        ({"container_id": 5}, "container_id is 'int', but must be a text"),
        ({"endpoint": 5}, "endpoint is 'int'"),
        ({"credential": 5}, "credential is 5"),
        ({"profile": "fast"}, "profile is 'fast', but must be one of high-throughput"),
    ],
)
def test_settings_out_of_range_name_value_and_bound(wrong: dict[str, object], named: str) -> None:
    async def work() -> None:
        SimulatedBroker().client(**wrong)

    with pytest.raises(ArgumentError) as caught:
        run(work())
    assert named in str(caught.value)


def test_a_wrong_connection_string_or_entity_names_the_next_step() -> None:
    async def work() -> None:
        client = SimulatedBroker().client()
        for entity in ("", None, "/"):
            with pytest.raises(ArgumentError, match="entity"):
                client.sender(entity)
        with pytest.raises(ArgumentError, match="mode"):
            client.receiver("q", mode="peek-lock")  # type: ignore[arg-type]

    run(work())
    for text in ("", "Endpoint=sb://x", f"{CONNECTION};Key=1", CONNECTION.encode()):
        with pytest.raises(ArgumentError) as caught:
            Client(text)  # type: ignore[arg-type]
        assert "c2VjcmV0" not in str(caught.value), "the key is in the text"


Step = tuple[int, float, int]
"""Messages to send, seconds to wait then, and what happens to the broker (0: nothing, 1: killed, 2: restarted)."""


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 40), st.sampled_from([0.0, 0.001, 0.0035, 0.019, 0.022, 0.5, 3.0]), st.integers(0, 2)),
        min_size=1,
        max_size=12,
    ),
    interval=st.sampled_from([0.0, 0.02]),
    size=st.sampled_from([1, 500, 3_000]),
    back_after=st.floats(0.0, 90.0),
    cancelled=st.sets(st.integers(0, 100), max_size=5),
)
def test_a_broker_killed_in_mid_batch_loses_no_acknowledged_message_and_leaves_no_future_waiting(
    steps: list[Step], interval: float, size: int, back_after: float, cancelled: set[int]
) -> None:
    """Send through deaths of the broker at any moment, then compare results with what is stored."""

    async def work() -> None:
        broker = SimulatedBroker()
        broker.max_message_size = 20_000
        client = broker.client(batch_flush_interval=interval, buffer_bytes=30_000)
        sender = client.sender("q")
        results: list[Sending] = []
        finished: list[int] = []

        def note(number: int) -> Callable[[object], None]:
            return lambda _: finished.append(number)

        for count, pause_s, fate in steps:
            for _ in range(count):
                number = len(results)
                sending = sender.send(message(f"{number:05}" + "x" * size))
                sending.add_done_callback(note(number))
                results.append(sending)
            await asyncio.sleep(pause_s)
            for number in cancelled:
                if number < len(results):
                    results[number].cancel()
            if fate == 1:
                broker.kill()
            elif fate == 2:
                broker.restart()
        await asyncio.sleep(back_after)
        broker.restart()
        if results:
            _, waiting = await asyncio.wait(results, timeout=200.0)
            assert not waiting
        stored = [int(text[:5]) for text in texts(broker.stored["q"])]
        first = list(dict.fromkeys(stored))
        for number, result in enumerate(results):
            if result.cancelled():
                assert result.outcome in (NOT_SENT, UNKNOWN)
                assert result.outcome == UNKNOWN or number not in first
            elif result.exception() is None:
                assert result.outcome == STORED
                assert number in first
            else:
                assert isinstance(result.exception(), TimedOut)
                assert result.outcome in (NOT_SENT, UNKNOWN)
                assert result.outcome == UNKNOWN or number not in first
        assert first == sorted(first)
        in_order = [number for number in finished if not results[number].cancelled()]
        assert in_order == sorted(in_order)
        assert sender.outstanding == sender.outstanding_bytes == 0
        await client.close()

    run(work())


def test_messages_and_requests_that_wait_for_the_window_leave_later_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The window of the broker has room for less than its credit, and the client's queue for a few more."""
    monkeypatch.setattr(aio_connection, "LIMITS", replace(aio_connection.LIMITS, pending_bytes_max=2_000))

    async def work() -> None:
        broker = SimulatedBroker()
        broker.incoming_window = 10
        broker.answers["op"] = lambda body: (200, None, body)
        client = broker.client(batch_flush_interval=0)
        sender = client.sender("q")
        await sender.open()
        results = [sender.send(message(f"{number:03}" + "x" * 500)) for number in range(60)]
        await asyncio.sleep(0)
        assert client.statistics.messages_sent < 60
        await asyncio.gather(*results)
        assert [text[:3] for text in texts(broker.stored["q"])] == [f"{number:03}" for number in range(60)]
        assert client.statistics.messages_sent == client.statistics.transfers_sent == 60
        assert client.statistics.retries == 0
        bodies = [{"x": f"{number:03}" + "x" * 500} for number in range(60)]
        replies = await asyncio.gather(*[client.request("q", "op", body) for body in bodies])
        assert replies == bodies
        await client.close()

    run(work())


def test_a_thousand_refused_messages_past_the_buffer_have_results() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        client = broker.client(buffer_bytes=1_024)
        sender = client.sender("q")
        await sender.open()
        first = sender.send(message("1" * 2_000))
        refused = [sender.send(b"x" * 300_000) for _ in range(1_000)]
        last = sender.send(message("2"))
        results = await asyncio.gather(first, *refused, last, return_exceptions=True)
        assert {type(result) for result in results[1:-1]} == {MessageTooLarge}
        assert (results[0], results[-1]) == (None, None)
        assert sender.outstanding_bytes == 0
        await client.close()

    run(work())


def test_messages_that_expired_or_were_cancelled_in_an_outage_leave_the_memory() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        client = broker.client(timeout=5.0, buffer_bytes=200_000)
        sender = client.sender("q")
        await sender.open()
        broker.kill()
        queue = sender._transfers.queue
        most = 0
        for second in range(500):
            await sender.room()
            for result in [sender.send(message("x" * 10_000)) for _ in range(10)]:
                result.add_done_callback(seen)
                if second % 2:
                    result.cancel()
            await asyncio.sleep(1)
            held = [one for batch in queue for one in batch.sendings]
            most = max(most, sum(len(one.payload) for one in held))
            assert len(held) <= 200, "batches without a message are dropped"
        assert 0 < most < 400_000
        await asyncio.sleep(6)
        broker.restart()
        await sender.send(message("last"))
        assert texts(broker.stored["q"]) == ["last"]
        await client.close()

    run(work())


def test_tokens_of_other_entities_are_renewed_while_an_entity_refuses_its_links() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        broker.stored["p"] = []
        client = broker.client()
        await client.sender("q").open()
        broker.refuse_attach = AmqpError("amqp:unauthorized-access", "the rule lacks Send")
        for _ in range(1_200):
            with pytest.raises(AccessDenied):
                await client.sender("p").open()
            await asyncio.sleep(3)
        assert broker.tokens.count("sb://simulated/q") == 2, "an hour has one renewal"
        await client.close()

    run(work())


@pytest.mark.parametrize("way", ["denied", "hangs"])
def test_a_token_that_can_not_be_renewed_keeps_no_other_one_waiting(way: str) -> None:
    asked: list[str] = []

    async def credential(audience: str) -> Token:
        asked.append(audience)
        loop = asyncio.get_running_loop()
        if audience.endswith("/p") and loop.time() > 100.0:
            if way == "denied":
                raise PermissionError
            await loop.create_future()
        return Token("x", EPOCH_S + loop.time() + 3_600.0)

    async def work() -> None:
        broker = SimulatedBroker()
        broker.stored["p"] = []
        client = Client(namespace="amqp://simulated:5672", credential=credential)
        (connection,) = connections(client)
        connection.connect = broker.connect
        loop = asyncio.get_running_loop()
        connection.wall = lambda: EPOCH_S + loop.time()
        await client.sender("p").open()
        await client.sender("q").open()
        await asyncio.sleep(3_600)
        assert broker.tokens == ["sb://simulated/p", "sb://simulated/q", "sb://simulated/q"]
        assert 10 <= asked.count("sb://simulated/p") <= 100, "a renewal that failed is tried again"
        await client.close()

    run(work())


def test_messages_of_an_outage_that_expire_one_after_the_other_share_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    expire = SendResults._expire

    def counted(results: SendResults) -> None:
        looks.append(asyncio.get_running_loop().time())
        expire(results)

    monkeypatch.setattr(SendResults, "_expire", counted)

    async def work() -> None:
        broker = SimulatedBroker()
        loop = asyncio.get_running_loop()
        client = broker.client()
        broker.kill()
        sender = client.sender("q")
        late: list[float] = []

        def expired(sending: asyncio.Future[None]) -> None:
            assert isinstance(sending.exception(), TimedOut)
            late.append(loop.time() - deadlines[sending])

        deadlines: dict[asyncio.Future[None], float] = {}
        for _ in range(2_000):
            sending = sender.send(message("x"), timeout=10.0)
            deadlines[sending] = loop.time() + 10.0
            sending.add_done_callback(expired)
            await asyncio.sleep(0.001)
        await sender.flush()
        assert len(late) == 2_000
        assert max(late) < 0.1
        assert len(looks) <= 50, "2 s of messages"
        await client.close()

    run(work())


@pytest.mark.parametrize("count", [1, 3])
def test_messages_whose_outcome_the_broker_does_not_know_are_told_so_and_not_sent_again(count: int) -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        broker.refuse = lambda payload: AmqpError("com.microsoft:timeout", "the commit has no answer")
        client = broker.client()
        sendings = client.sender("q").send_now([message(str(number)) for number in range(count)])
        for sending in sendings:
            with pytest.raises(TimedOut, match="the commit has no answer; the message was sent, and may or may not"):
                await sending
            assert sending.outcome == UNKNOWN
        assert len(broker.transfers) == 1
        await client.close()

    run(work())


@pytest.mark.parametrize("error", [TimeoutError("no answer"), ConnectionResetError("gone")])
def test_messages_outlast_an_outage_of_the_credential(error: OSError) -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        loop = asyncio.get_running_loop()
        back_at = 5.0

        def credential(audience: str) -> Token:
            if loop.time() < back_at:
                raise error
            return Token("x", EPOCH_S + loop.time() + 3_600.0)

        client = Client(namespace="amqp://simulated:5672", credential=credential, timeout=20.0)
        (connection,) = connections(client)
        connection.connect = broker.connect
        connection.wall = lambda: EPOCH_S + loop.time()
        sender = client.sender("q")
        await sender.send(message("0"))
        assert loop.time() > back_at
        back_at = loop.time() + 10.0
        broker.kill()
        broker.restart()
        await sender.send(message("1"))
        assert loop.time() > back_at
        back_at = loop.time() + 100.0
        broker.kill()
        broker.restart()
        with pytest.raises(TimedOut, match=r"the credential failed for .*; the message was not sent"):
            await sender.send(message("2"))
        with pytest.raises(ConnectFailed, match="the credential failed") as caught:
            await client.sender("q").open()
        assert caught.value.__cause__ is error
        assert texts(broker.stored["q"]) == ["0", "1"]
        await client.close()

    run(work())


@pytest.mark.parametrize("interval", [0.0, 0.02])
def test_a_batch_of_the_callers_follows_messages_that_wait_for_room(interval: float) -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        client = broker.client(batch_flush_interval=interval, buffer_bytes=10_000, timeout=10.0)
        sender = client.sender("q")
        await sender.open()
        before = [sender.send(message(f"{number:02}" + "x" * 1_000)) for number in range(30)]
        refused = sender.send(b"x" * 300_000)
        batch = sender.send_batch([message("a" * 12_000), message("b")])
        room = asyncio.ensure_future(sender.room())
        after = sender.send(message("last"))
        with pytest.raises(MessageTooLarge):
            await refused
        await asyncio.gather(*before, batch, after, room)
        stored = [text[:2] for text in texts(broker.stored["q"])]
        assert stored == [*[f"{number:02}" for number in range(30)], "aa", "b", "la"]
        assert asyncio.get_running_loop().time() < 1.0
        assert sender.outstanding_bytes == 0
        await client.close()

    run(work())
