"""Receivers on a simulated network: prefetch, batches of completions, expired locks, losses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partibus.amqp import (
    ACCEPTED,
    AmqpError,
    Coordinator,
    Declare,
    Declared,
    Delivery,
    Discharge,
    Disposed,
    Link,
    Rejected,
    Sender,
    TransactionalState,
)
from partibus.amqp import Receiver as LinkReceiver
from partibus.amqp.codec.composite import build
from partibus.amqp.codec.types import Array, Timestamp
from partibus.amqp.section_encoding import encode_annotations
from partibus.amqp.section_fields import decode_body
from partibus.amqp.sections import split_sections
from partibus.client.aio import IncomingMessage, OutgoingMessage, ReceiveMode, Receiver, RetryPolicy
from partibus.client.aio.incoming import FILL_BYTES
from partibus.client.errors import (
    Busy,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    InvalidRequest,
    LinkLost,
    LockLost,
    NotFound,
    TimedOut,
)
from partibus.errors import ArgumentError
from tests.unit.client.simulated import EPOCH_S, Peer, SimulatedBroker, address_of, connections, run


def fill(broker: SimulatedBroker, count: int, size: int = 10) -> None:
    broker.arrive(
        "q", [OutgoingMessage(body=f"{number:05}".encode() * (size // 5)).encode() for number in range(count)]
    )


def numbers(messages: list[IncomingMessage]) -> list[int]:
    return [int(one.body[:5]) for one in messages if isinstance(one.body, bytes)]


@pytest.mark.row("C19")
def test_without_prefetch_no_message_is_taken_that_no_call_wants() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        fill(broker, 10)
        client = broker.client()
        receiver = client.receiver("q")
        await receiver.open()
        await asyncio.sleep(1)
        assert not broker.locked
        assert numbers(await receiver.receive(3)) == [0, 1, 2]
        assert len(broker.locked) == 3
        assert numbers(await receiver.receive(50, 1.0)) == [3, 4, 5, 6, 7, 8, 9]
        fill(broker, 1)
        await asyncio.sleep(1)
        assert len(broker.locked) == 10
        assert receiver.cached == 0
        await client.close()

    run(work())


def test_a_receive_waits_for_a_message_or_for_its_time() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        client = broker.client()
        receiver = client.receiver("q")
        loop = asyncio.get_running_loop()
        await receiver.open()
        begun = loop.time()
        assert await receiver.receive(1, 5.0) == []
        assert loop.time() - begun == pytest.approx(5.0, abs=0.1)
        waiting = [asyncio.ensure_future(receiver.receive(1, 60.0)) for _ in range(3)]
        await asyncio.sleep(1)
        fill(broker, 3)
        assert [numbers(await one) for one in waiting] == [[0], [1], [2]]
        await client.close()

    run(work())


def test_a_receive_outlasts_a_loss_between_attach_and_its_wait() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        client = broker.client()
        receiver = client.receiver("q")
        attach = receiver.open

        async def lost_at_once() -> None:
            await attach()
            if broker.connections == 1:
                broker.kill()
                broker.restart()
                await asyncio.sleep(0.001)

        receiver.open = lost_at_once  # type: ignore[method-assign]
        waiting = asyncio.ensure_future(receiver.receive(1, 30.0))
        await asyncio.sleep(5)
        fill(broker, 1)
        assert numbers(await waiting) == [0]
        await client.close()

    run(work())


def test_a_link_that_is_lost_as_soon_as_it_is_attached_is_attached_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss came before the attempt went on: it met a receiver without a link."""

    async def work() -> None:
        broker = SimulatedBroker()
        fill(broker, 1)
        client = broker.client()
        receiver = client.receiver("q")

        def attached_and_lost() -> None:
            monkeypatch.undo()
            receiver.on_attached()
            receiver.on_over(LinkLost("the entity has moved"))

        monkeypatch.setattr(receiver, "on_attached", attached_and_lost)
        assert numbers(await receiver.receive(1, 60.0)) == [0]
        assert client.statistics.retries == 1
        await client.close()

    run(work())


def test_a_cancelled_receive_takes_no_message_with_it() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        client = broker.client()
        receiver = client.receiver("q")
        await receiver.open()
        waiting = asyncio.ensure_future(receiver.receive(1, 60.0))
        await asyncio.sleep(1)
        waiting.cancel()
        fill(broker, 2)
        await asyncio.sleep(1)
        assert not broker.locked
        assert numbers(await receiver.receive(2, 1.0)) == [0, 1]
        await client.close()

    run(work())


def test_prefetch_fills_an_empty_cache_and_serves_from_it() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        fill(broker, 100)
        client = broker.client(prefetch=20)
        receiver = client.receiver("q")
        await receiver.open()
        await asyncio.sleep(1)
        assert not broker.locked
        got = await receiver.receive(1)
        await asyncio.sleep(1)
        assert (len(broker.locked), receiver.cached) == (20, 19)
        flows = client.statistics.flows_sent
        for _ in range(19):
            got += await receiver.receive(1)
        assert client.statistics.flows_sent == flows
        assert len(broker.locked) == 20
        got += await receiver.receive(1)
        await asyncio.sleep(1)
        assert len(broker.locked) == 40
        assert numbers(got) == list(range(21))
        await client.close()
        assert len(broker.waiting["q"]) == 79

    run(work())


@pytest.mark.row("C16")
@pytest.mark.parametrize("size", [1_000, 20_000, 100_000, 250_000])
def test_a_fill_asks_for_256_kilobytes_at_most(size: int) -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        fill(broker, 800, size)
        client = broker.client(prefetch=500)
        receiver = client.receiver("q")
        taken = 0
        for _ in range(3):
            messages = await receiver.receive(1)
            await asyncio.sleep(1)
            brought = len(messages) + receiver.cached
            taken += brought
            assert brought == FILL_BYTES // len(broker.stored["q"][0])
            while receiver.cached:
                await receiver.receive(receiver.cached)
        assert len(broker.locked) == taken
        await client.close()

    run(work())


@pytest.mark.parametrize(("calls", "prefetch", "fills"), [(1, 5_000, 1), (3, 5_000, 2), (3, 300, 2)])
def test_calls_that_wait_together_have_two_fills_under_way_within_the_count(
    calls: int, prefetch: int, fills: int
) -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        fill(broker, 1, 1_000)
        client = broker.client(prefetch=prefetch)
        receiver = client.receiver("q")
        await receiver.receive(1)  # The size of messages is known from now on.
        waiting = [asyncio.ensure_future(receiver.receive(1)) for _ in range(calls)]
        await asyncio.sleep(1)
        fill(broker, 2_000, 1_000)
        await asyncio.sleep(1)
        await asyncio.gather(*waiting)
        size = len(broker.stored["q"][-1])
        assert receiver.cached + calls == min(prefetch, fills * FILL_BYTES // size)
        await client.close()

    run(work())


def test_the_next_fill_is_asked_for_while_another_is_on_its_way() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        fill(broker, 1, 1_000)
        client = broker.client(prefetch=5_000)
        receiver = client.receiver("q")
        await receiver.receive(1)
        waiting = [asyncio.ensure_future(receiver.receive(1_000)) for _ in range(4)]
        await asyncio.sleep(1)
        two_fills = broker.credit_of("q")
        assert two_fills == 2 * FILL_BYTES // len(broker.stored["q"][0])
        for _ in range(2):
            # A little less than one of them: the heads of frames count in what one read brings.
            fill(broker, two_fills // 2 - 10, 1_000)
            assert broker.credit_of("q") == two_fills // 2 + 10
            await asyncio.sleep(1)
            assert broker.credit_of("q") == two_fills
        await client.close()
        assert [one.done() for one in waiting] == [True] * 4

    run(work())


@pytest.mark.row("C15")
def test_caches_are_not_shared() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        fill(broker, 10)
        client = broker.client(prefetch=10)
        first, second = client.receiver("q"), client.receiver("q")
        await first.receive(1)
        await asyncio.sleep(1)
        assert (first.cached, second.cached) == (9, 0)
        assert await second.receive(1, 1.0) == []
        await client.close()

    run(work())


def test_an_expired_copy_stays_cached_and_fails_on_complete() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        fill(broker, 3)
        client = broker.client(prefetch=3)
        receiver = client.receiver("q")
        (first,) = await receiver.receive(1)
        await asyncio.sleep(1)
        broker.expire_locks()
        assert receiver.cached == 2
        second, third = await receiver.receive(2)
        for message in (first, second, third):
            with pytest.raises(LockLost):
                await receiver.complete(message)
        assert len(broker.waiting["q"]) == 3
        await client.close()

    run(work())


@pytest.mark.row("C9")
def test_completions_of_one_interval_travel_together() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        fill(broker, 300)
        client = broker.client(prefetch=300)
        receiver = client.receiver("q")
        messages: list[IncomingMessage] = []
        while len(messages) < 300:
            messages += await receiver.receive(300)
        await asyncio.gather(*[receiver.complete(message) for message in messages])
        assert client.statistics.dispositions_sent == 1
        assert len(broker.completed) == 300
        await client.close()

    run(work())


def settled_by_token(broker: SimulatedBroker, *, names: bool = False) -> list[UUID]:
    """Have the broker settle messages by their tokens; return the tokens that it will have settled.

    It settles the others of a request in which a lock is lost. ``names``: whether its answer names the lost ones.
    """
    settled: list[UUID] = []

    def settle(body: dict[Any, Any]) -> tuple[int, str | None, object]:
        array = body["lock-tokens"]
        assert isinstance(array, Array)
        tokens = [one for one in array.items if isinstance(one, UUID)]
        lost = [one for one in tokens if one.bytes_le not in broker.locked]
        for one in tokens:
            if one not in lost:
                settled.append(one)
                broker.completed.append(broker.locked.pop(one.bytes_le)[1])
        if lost:
            named = {"partibus:lost-lock-tokens": Array(0x98, lost)} if names else None
            return 410, "com.microsoft:message-lock-lost", named
        return 200, None, {}

    broker.answers["com.microsoft:update-disposition"] = settle
    return settled


@pytest.mark.parametrize("interval", [0.0, 0.02])
def test_completions_of_one_call_travel_together_and_have_one_result(interval: float) -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        fill(broker, 30)
        client = broker.client(batch_flush_interval=interval)
        receiver = client.receiver("q")
        messages = await receiver.receive(30)
        await receiver.complete(messages[:10])
        await receiver.complete([])
        assert [count for _, count in broker.dispositions] == [10]
        assert len(broker.completed) == 10
        lost = messages[12].delivery
        assert lost is not None
        del broker.locked[lost.tag]
        with pytest.raises(LockLost):
            await receiver.complete(messages[10:20])
        assert len(broker.completed) == 19, "the others of the call are completed"
        with pytest.raises(InvalidRequest, match="settled already"):
            await receiver.complete([*messages[:1], *messages[20:30]])
        assert len(broker.completed) == 29
        assert client.statistics.settled >= 29
        await client.close()

    run(work())


def test_completions_of_one_call_outlast_the_loss_of_their_link() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        fill(broker, 6)
        settled = settled_by_token(broker)
        client = broker.client()
        receiver = client.receiver("q")
        messages = await receiver.receive(6)
        under_way = receiver.complete(messages)
        broker.kill()
        await asyncio.sleep(1)
        broker.restart()
        await under_way
        assert settled == [one.lock_token for one in messages]
        assert len(broker.requests) == 1
        await client.close()

    run(work())


def test_without_an_interval_completions_leave_at_once() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        fill(broker, 2)
        client = broker.client(batch_flush_interval=0)
        receiver = client.receiver("q")
        first, second = await receiver.receive(2)
        begun = asyncio.get_running_loop().time()
        await receiver.complete(first)
        assert asyncio.get_running_loop().time() - begun < 0.005
        await receiver.abandon(second)
        assert [count for _, count in broker.dispositions] == [1, 1]
        await client.close()

    run(work())


def test_settling_twice_and_settling_without_a_lock_are_refused() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        fill(broker, 4)
        broker.answers["com.microsoft:peek-message"] = lambda body: (
            200,
            None,
            {"messages": [{"message": OutgoingMessage(body=b"x").encode()}]},
        )
        client = broker.client()
        receiver = client.receiver("q")
        (message,) = await receiver.receive(1)
        waiting = receiver.complete(message)
        with pytest.raises(InvalidRequest, match="being settled already"):
            receiver.complete(message)
        await waiting
        with pytest.raises(InvalidRequest, match="settled already"):
            receiver.abandon(message)
        (peeked,) = await receiver.peek()
        with pytest.raises(InvalidRequest, match="no lock"):
            receiver.complete(peeked)
        with pytest.raises(InvalidRequest, match="4096"):
            receiver.dead_letter(message, "x" * 5_000)
        deleting = client.receiver("q", mode=ReceiveMode.RECEIVE_AND_DELETE)
        (deleted,) = await deleting.receive(1)
        with pytest.raises(InvalidRequest, match="was deleted when it was received"):
            deleting.complete(deleted)
        await check_arguments(receiver)
        with pytest.raises(ArgumentError, match="max_wait is -1"):
            await receiver.receive(1, -1.0)
        await client.close()

    run(work())


async def check_arguments(receiver: Receiver) -> None:
    """Call a receiver with wrong arguments."""
    wrong: Any
    for wrong in (0, -1, "1", True, 1.5):
        with pytest.raises(ArgumentError, match="max_messages is"):
            await receiver.receive(wrong)
    for wrong in (None, "abc", [None]):
        with pytest.raises(InvalidRequest, match="pass a received message"):
            receiver.complete(wrong)
    wrong = None
    for call in (receiver.abandon, receiver.dead_letter, receiver.defer, receiver.release):
        with pytest.raises(InvalidRequest, match="a NoneType has no lock"):
            call(wrong)
    for wrong in ("1", 1 << 64):
        with pytest.raises(ArgumentError, match="sequence number is"):
            await receiver.peek(1, wrong)
        with pytest.raises(ArgumentError, match="sequence number is"):
            await receiver.receive_deferred([wrong])
    assert await receiver.receive_deferred([]) == []


def test_arguments_are_checked_where_the_cache_has_messages() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        fill(broker, 10)
        client = broker.client(prefetch=10)
        receiver = client.receiver("q")
        await receiver.receive(1)
        await asyncio.sleep(1)
        await check_arguments(receiver)
        assert receiver.cached == 9
        await client.close()

    run(work())


def test_a_loop_that_ends_early_leaves_the_rest_in_the_cache() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        fill(broker, 10)
        client = broker.client(prefetch=10)
        receiver = client.receiver("q")
        seen: list[int] = []
        async for message in receiver:
            seen += numbers([message])
            if len(seen) == 3:
                break
        assert seen == [0, 1, 2]
        assert numbers(await receiver.receive(10)) == [3, 4, 5, 6, 7, 8, 9]
        await client.close()

    run(work())


def test_messages_of_a_lost_link_are_settled_by_their_tokens() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        fill(broker, 5)
        settled = settled_by_token(broker)
        client = broker.client(prefetch=5)
        receiver = client.receiver("q")
        (first,) = await receiver.receive(1)
        await asyncio.sleep(1)
        under_way = receiver.complete(first)
        broker.kill()
        await asyncio.sleep(3)
        broker.restart()
        await under_way
        rest = await receiver.receive(4)
        await receiver.complete(rest[0])
        broker.locked.clear()
        with pytest.raises(LockLost):
            await receiver.complete(rest[1])
        assert settled == [first.lock_token, rest[0].lock_token]
        assert client.statistics.reconnects == 1
        await client.close()

    run(work())


def test_a_client_of_one_attempt_fails_what_a_lost_link_has_not_answered() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        fill(broker, 2)
        client = broker.client(retry=RetryPolicy(attempts=1))
        receiver = client.receiver("q")
        (first,) = await receiver.receive(1)
        waiting = asyncio.ensure_future(receiver.receive(5))
        under_way = receiver.complete(first)
        broker.kill()
        with pytest.raises(ConnectionLost, match="was not carried out"):
            await under_way
        with suppress(ConnectionLost):
            await waiting
        with pytest.raises(ConnectFailed):
            await client.receiver("q").receive(1)
        broker.restart()
        await receiver.receive(1, 1)
        assert client.statistics.reconnects == 1
        await client.close()

    run(work())


def test_a_receive_goes_on_after_an_outage_and_says_when_there_is_no_connection() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        client = broker.client(timeout=10.0)
        receiver = client.receiver("q")
        await receiver.open()
        waiting = asyncio.ensure_future(receiver.receive(1, 60.0))
        await asyncio.sleep(1)
        broker.kill()
        await asyncio.sleep(4)
        broker.restart()
        fill(broker, 1)
        assert numbers(await waiting) == [0]
        broker.kill()
        with pytest.raises(ClientError) as caught:
            await receiver.receive(1, 3.0)
        assert isinstance(caught.value, ConnectFailed)
        await client.close()

    run(work())


def test_a_default_prefetch_is_refused_where_cached_messages_would_be_lost() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        fill(broker, 3)
        client = broker.client(prefetch=20)
        with pytest.raises(ArgumentError, match="lost with the process"):
            client.receiver("q", mode=ReceiveMode.RECEIVE_AND_DELETE)
        receiver = client.receiver("q", mode=ReceiveMode.RECEIVE_AND_DELETE, prefetch=3)
        assert numbers([one async for one in take(receiver, 3)]) == [0, 1, 2]
        assert not broker.locked
        await client.close()

    run(work())


async def take(receiver: Receiver, count: int) -> AsyncIterator[IncomingMessage]:
    """Iterate over a receiver, close it behind the last message, and see the iteration end."""
    async for message in receiver:
        yield message
        count -= 1
        if not count:
            asyncio.get_running_loop().call_later(1.0, lambda: asyncio.ensure_future(receiver.close()))


def test_an_unknown_entity_fails_the_receive() -> None:
    async def work() -> None:
        client = SimulatedBroker().client()
        receiver = client.receiver("missing")
        with pytest.raises(NotFound):
            await receiver.receive(1)
        await client.close()
        with pytest.raises(LinkLost, match="closed"):
            await receiver.receive(1)

    run(work())


def test_locks_are_renewed_until_the_message_is_settled() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        loop = asyncio.get_running_loop()

        def renew(body: dict[Any, Any]) -> tuple[int, str | None, object]:
            until = Timestamp(int((EPOCH_S + loop.time() + 60) * 1000))
            return 200, None, {"expirations": [until for _ in body["lock-tokens"].items]}

        broker.answers["com.microsoft:renew-lock"] = renew
        until = Timestamp(int((EPOCH_S + 60) * 1000))
        broker.arrive(
            "q", [encode_annotations({"x-opt-locked-until": until}) + OutgoingMessage(body=b"x").encode()] * 2
        )
        client = broker.client()
        receiver = client.receiver("q", auto_renew=600.0)
        first, second = await receiver.receive(2)
        await asyncio.sleep(200)
        renewals = [len(body["lock-tokens"].items) for operation, body in broker.requests]
        assert set(renewals) == {2}
        assert 5 <= len(renewals) <= 8
        await receiver.complete(first)
        await asyncio.sleep(200)
        assert {len(body["lock-tokens"].items) for _, body in broker.requests[len(renewals) :]} == {1}
        await asyncio.sleep(1_000)
        count = len(broker.requests)
        await asyncio.sleep(1_000)
        assert len(broker.requests) == count, "renewals end after auto_renew"
        await receiver.complete(second)
        await client.close()

    run(work())


@pytest.mark.row("C4")
def test_links_are_dealt_evenly_over_connections() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        client = broker.client(connections=3)
        senders = [client.sender("q") for _ in range(6)]
        await asyncio.gather(*[sender.open() for sender in senders])
        assert broker.connections == 3
        assert sorted(senders.count(one) for one in senders) == [1] * 6
        assert [one.links for one in connections(client)] == [2, 2, 2]
        receivers = [client.receiver("q") for _ in range(4)]
        assert [one.links for one in connections(client)] == [4, 3, 3]
        await receivers[0].close()
        client.receiver("q")
        assert sorted(one.links for one in connections(client)) == [3, 3, 4]
        await client.close()

    run(work())


@settings(max_examples=60, deadline=None)
@given(
    prefetch=st.sampled_from([0, 1, 7, 100]),
    fates=st.lists(st.tuples(st.sampled_from([0.0, 0.002, 0.021, 0.5]), st.booleans()), max_size=8),
    count=st.integers(0, 60),
    most=st.integers(1, 20),
    names=st.booleans(),
)
def test_every_message_is_completed_once_or_received_again_whatever_breaks(
    prefetch: int, fates: list[tuple[float, bool]], count: int, most: int, names: bool
) -> None:
    """Consume through deaths of the broker: each acknowledged completion is one message, and none is left out."""

    async def work() -> None:
        broker = SimulatedBroker()
        settled_by_token(broker, names=names)
        fill(broker, count)
        client = broker.client(prefetch=prefetch, timeout=30.0)
        receiver = client.receiver("q")
        acknowledged: set[int] = set()
        unknown: set[int] = set()
        attempts = 0

        async def consume() -> None:
            nonlocal attempts
            while attempts < 1_000 and (len(broker.completed) < count or len(acknowledged | unknown) < count):
                attempts += 1
                try:
                    messages = await receiver.receive(most, 5.0)
                except ClientError:
                    continue
                if not messages:
                    broker.expire_locks()  # those of messages whose completion has failed
                done = await asyncio.gather(
                    *[receiver.complete(message) for message in messages], return_exceptions=True
                )
                for message, result in zip(messages, done, strict=True):
                    assert result is None or isinstance(result, ClientError)
                    if result is None:
                        acknowledged.update(numbers([message]))
                    elif "unknown" in str(result):
                        unknown.update(numbers([message]))

        task = asyncio.ensure_future(consume())
        for pause_s, restarts in fates:
            await asyncio.sleep(pause_s)
            broker.kill()
            await asyncio.sleep(pause_s)
            if restarts:
                broker.restart()
        broker.restart()
        await asyncio.wait_for(task, 10_000.0)
        done = numbers([IncomingMessage(payload) for payload in broker.completed])
        assert sorted(acknowledged | unknown) == list(range(count))
        assert sorted(set(done)) == list(range(count))
        assert len(done) == count, "a message was completed twice"
        await client.close()
        assert not broker.locked

    run(work())


@pytest.mark.parametrize("prefetch", [0, 10])
def test_a_receive_outlasts_a_delivery_that_the_broker_has_aborted(prefetch: int) -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        client = broker.client()
        receiver = client.receiver("q", prefetch=prefetch)
        await receiver.open()
        waiting = asyncio.ensure_future(receiver.receive(1, 60.0))
        await asyncio.sleep(1)
        link = receiver._incoming._link
        assert link is not None
        link.flow.on_delivery()
        receiver.on_deliveries([])
        assert link.credit >= 1
        fill(broker, 1)
        assert numbers(await waiting) == [0]
        await client.close()

    run(work())


@pytest.mark.parametrize("condition", ["com.microsoft:server-busy", "com.microsoft:timeout"])
def test_a_settlement_that_a_busy_broker_refused_is_repeated_by_its_token(
    condition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        fill(broker, 3)
        settled = settled_by_token(broker)
        refused: list[int] = []

        def refuse(self: Peer, link: Sender, event: Disposed) -> None:
            refused.extend(event.delivery_ids)
            link.settle_many(event.delivery_ids, Rejected(AmqpError(condition, "later")), retain=True)

        monkeypatch.setattr(Peer, "on_settled", refuse)
        client = broker.client()
        receiver = client.receiver("q")
        messages = await receiver.receive(3)
        alone, together = receiver.abandon(messages[0]), receiver.complete(messages[1:])
        await asyncio.gather(alone, together)
        assert len(refused) == 3
        assert set(settled) == {message.lock_token for message in messages}
        assert client.statistics.retries == 2
        await client.close()

    run(work())


def test_a_client_of_one_attempt_does_not_repeat_a_refused_settlement(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        fill(broker, 1)
        busy = Rejected(AmqpError("com.microsoft:server-busy", "later"))
        monkeypatch.setattr(
            Peer, "on_settled", lambda self, link, event: link.settle_many(event.delivery_ids, busy, retain=True)
        )
        client = broker.client(retry=RetryPolicy(attempts=1))
        receiver = client.receiver("q")
        with pytest.raises(Busy):
            await receiver.complete(await receiver.receive(1))
        assert not broker.requests
        await client.close()

    run(work())


@pytest.mark.parametrize("expired", [False, True])
def test_completions_of_an_outage_fail_together_at_the_time_limit(expired: bool) -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        fill(broker, 20)
        client = broker.client(timeout=5.0)
        receiver = client.receiver("q")
        messages = await receiver.receive(20)
        results = [receiver.complete(message) for message in messages]
        broker.kill()
        if expired:  # The broker answers once that a lock is lost.
            broker.restart()

            def lost(body: dict[Any, Any]) -> tuple[int, str | None, object]:
                broker.mute = len(broker.requests) > 1
                return 410, "com.microsoft:message-lock-lost", None

            broker.answers["com.microsoft:update-disposition"] = lost
        done, left = await asyncio.wait(results, timeout=11.0 if expired else 6.0)
        assert (len(done), len(left)) == (20, 0)
        assert all(isinstance(result.exception(), ClientError) for result in done)
        await client.close()

    run(work())


@pytest.mark.parametrize("sends", [False, True])
def test_a_broker_that_detaches_each_link_is_not_flooded_with_attaches(
    sends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        attach = Peer.on_attached
        attached: list[float] = []
        loop = asyncio.get_running_loop()

        def on_attached(self: Peer, link: Link) -> None:
            if address_of(link) != "q" or loop.time() >= 5.0:
                attach(self, link)
                return
            attached.append(loop.time())
            link.accept(max_message_size=broker.max_message_size)

            def detach() -> None:
                link.detach(AmqpError("amqp:link:detach-forced", "not now"))
                self.flush()

            loop.call_later(0.003, detach)

        monkeypatch.setattr(Peer, "on_attached", on_attached)
        client = broker.client()
        if sends:
            sender = client.sender("q")
            results = [sender.send(OutgoingMessage(body=b"0"))]
            await asyncio.sleep(2)
            results.append(sender.send(OutgoingMessage(body=b"1")))
            await asyncio.gather(*results)
        else:
            waiting = asyncio.ensure_future(client.receiver("q").receive(1, 60.0))
            await asyncio.sleep(20)
            fill(broker, 1)
            assert numbers(await waiting) == [0]
        assert 3 < len(attached) < 12
        assert attached[1] - attached[0] < 0.05, "the first loss is mended at once"
        await client.close()

    run(work())


def locked_message() -> bytes:
    """Return an encoded message whose lock ends after 60 s."""
    until = Timestamp(int((EPOCH_S + 60) * 1000))
    return encode_annotations({"x-opt-locked-until": until}) + OutgoingMessage(body=b"x").encode()


def test_a_renewal_that_fails_is_tried_again_until_the_lock_ends() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        loop = asyncio.get_running_loop()
        failing = [(0.0, 40.0), (150.0, 1_000.0)]
        asked: list[float] = []

        def renew(body: dict[Any, Any]) -> tuple[int, str | None, object]:
            asked.append(loop.time())
            if any(begin <= loop.time() < end for begin, end in failing):
                return 403, "amqp:unauthorized-access", None
            return 200, None, {"expirations": [Timestamp(int((EPOCH_S + loop.time() + 60) * 1000))]}

        broker.answers["com.microsoft:renew-lock"] = renew
        broker.arrive("q", [locked_message()])
        client = broker.client()
        receiver = client.receiver("q", auto_renew=600.0)
        (message,) = await receiver.receive()
        await asyncio.sleep(140)
        assert receiver._locks.kept
        assert 2 <= len(asked) <= 6
        await asyncio.sleep(400)
        assert not receiver._locks.kept
        assert len(asked) <= 20
        assert asked[-1] < 220, "requests end with the lock"
        await receiver.complete(message)
        await client.close()

    run(work())


def test_the_renewal_of_a_session_that_fails_is_tried_again_until_its_lock_ends() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        loop = asyncio.get_running_loop()
        asked: list[float] = []

        def renew(body: dict[Any, Any]) -> tuple[int, str | None, object]:
            asked.append(loop.time())
            if loop.time() < 40.0 or loop.time() > 150.0:
                return 403, "amqp:unauthorized-access", None
            return 200, None, {"expiration": Timestamp(int((EPOCH_S + loop.time() + 60) * 1000))}

        broker.answers["com.microsoft:renew-session-lock"] = renew
        client = broker.client()
        receiver = client.session_receiver("q", "s", auto_renew=600.0)
        receiver.locked_until_ms = int((EPOCH_S + 60) * 1000)
        await receiver.open()
        await asyncio.sleep(400)
        assert len([at for at in asked if 40.0 <= at <= 150.0]) >= 3
        assert len(asked) <= 20
        assert asked[-1] < 220, "requests end with the lock"
        await client.close()

    run(work())


class Coordination:
    """A coordinator for the simulated broker, whose transactions are provisional until a commit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        attach, receive, settle = Peer.on_attached, Peer.on_deliveries, Peer.on_settled
        self.refusal: AmqpError | None = None
        """The error of the next commit."""
        self.commits: list[bool] = []
        """Whether each transaction was committed."""

        def on_attached(peer: Peer, link: Link) -> None:
            if isinstance(link.target, Coordinator) and isinstance(link, LinkReceiver):
                link.accept()
                link.grant(10)
            else:
                attach(peer, link)

        def on_deliveries(peer: Peer, link: LinkReceiver, deliveries: list[Delivery]) -> None:
            if not isinstance(link.target, Coordinator):
                receive(peer, link, deliveries)
                return
            for delivery in deliveries:
                request = build(decode_body(split_sections(delivery.payload).body)[0])
                if isinstance(request, Discharge):
                    self.commits.append(not request.fail)
                refusal = self.refusal if isinstance(request, Discharge) and not request.fail else None
                answer = Declared(txn_id=b"t") if isinstance(request, Declare) else ACCEPTED
                link.settle_many([delivery], answer if refusal is None else Rejected(refusal))

        def on_settled(peer: Peer, link: Sender, event: Disposed) -> None:
            if isinstance(event.state, TransactionalState):
                link.settle_many(event.delivery_ids, event.state)
            else:
                settle(peer, link, event)

        monkeypatch.setattr(Peer, "on_attached", on_attached)
        monkeypatch.setattr(Peer, "on_deliveries", on_deliveries)
        monkeypatch.setattr(Peer, "on_settled", on_settled)


@pytest.mark.parametrize("end", ["commit", "refused", "roll back", "lost"])
def test_a_message_stays_locked_until_the_commit_of_its_transaction(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        coordination = Coordination(monkeypatch)
        settled = settled_by_token(broker)
        broker.arrive("q", [locked_message()])
        client = broker.client()
        receiver = client.receiver("q", auto_renew=600.0)
        (message,) = await receiver.receive()
        if end == "refused":
            coordination.refusal = AmqpError("amqp:transaction:rollback", "too late")
        with suppress(ZeroDivisionError, ClientError):
            async with client.transaction() as transaction:
                await receiver.complete(message, transaction=transaction)
                assert receiver._locks.kept
                assert message.settled
                if end == "roll back":
                    raise ZeroDivisionError
                if end == "lost":
                    broker.kill()
                    broker.restart()
                    await asyncio.sleep(1)
        if end == "commit":
            assert not receiver._locks.kept
            with pytest.raises(InvalidRequest, match="settled already"):
                receiver.complete(message)
        else:
            assert receiver._locks.kept
            await receiver.complete(message)
            assert settled == [message.lock_token]
            assert not receiver._locks.kept
        await client.close()

    run(work())


def test_a_slow_renewal_is_not_begun_again_with_each_message() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        loop = asyncio.get_running_loop()
        asked: list[tuple[float, UUID]] = []

        async def renew(tokens: list[UUID]) -> list[int]:
            asked.extend((loop.time(), token) for token in tokens)
            await asyncio.sleep(20)
            if loop.time() < 60.0:
                raise Busy("slow and in vain")
            return [int((EPOCH_S + loop.time() + 60) * 1000) for _ in tokens]

        broker.arrive("q", [locked_message()])
        client = broker.client()
        receiver = client.receiver("q", auto_renew=600.0)
        receiver._locks._renew = renew
        (first,) = await receiver.receive()
        await asyncio.sleep(35)
        for _ in range(10):
            until = Timestamp(int((EPOCH_S + loop.time() + 60) * 1000))
            payload = encode_annotations({"x-opt-locked-until": until}) + OutgoingMessage(body=b"x").encode()
            broker.arrive("q", [payload])
            await receiver.receive()
            await asyncio.sleep(1)
        await asyncio.sleep(50)
        times = [at for at, token in asked if token == first.lock_token]
        assert len(times) == 2
        assert times[1] < 60, "a renewal in vain is tried again before the lock ends, whenever others are due"
        assert {token for _, token in asked} == set(receiver._locks.kept)
        await client.close()

    run(work())


def test_a_message_that_is_being_completed_can_not_be_released() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        fill(broker, 2)
        client = broker.client()
        receiver = client.receiver("q")
        first, second = await receiver.receive(2)
        completed = receiver.complete(first)
        with pytest.raises(InvalidRequest, match="being settled already"):
            receiver.release(first)
        receiver.release(second)
        await asyncio.wait_for(completed, 1.0)
        assert numbers(await receiver.receive(2)) == [1]
        await client.close()

    run(work())


def test_a_commit_waits_for_sends_and_is_a_roll_back_if_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        coordination = Coordination(monkeypatch)
        broker.credit = 1
        client = broker.client()
        sender = client.sender("q")
        async with client.transaction() as transaction:
            queued = [sender.send(OutgoingMessage(body=b"x"), transaction=transaction) for _ in range(3)]
            taken_back = sender.send(OutgoingMessage(body=b"x"), transaction=transaction)
            taken_back.cancel()
        assert all(one.done() for one in queued)
        assert len(broker.stored["q"]) == 3
        assert coordination.commits == [True]
        with pytest.raises(ClientError, match=r"a send failed.*could not be found") as caught:
            async with client.transaction() as transaction:
                client.sender("missing").send(OutgoingMessage(body=b"x"), transaction=transaction)
        assert isinstance(caught.value.__cause__, NotFound)
        assert coordination.commits == [True, False]
        await client.close()

    run(work())


async def settled_in_one_request(broker: SimulatedBroker, receiver: Receiver, lost: int) -> list[ClientError | None]:
    """Complete ten messages by their tokens, one of which has lost its lock; return the errors of all."""
    fill(broker, 10)
    messages = await receiver.receive(10)
    results = [receiver.complete(message) for message in messages]
    gone = messages[lost].lock_token
    assert gone is not None
    del broker.locked[gone.bytes_le]
    broker.kill()
    broker.restart()
    await asyncio.wait(results)
    errors = [result.exception() for result in results]
    assert all(error is None or isinstance(error, LockLost) for error in errors)
    return [error for error in errors if error is None or isinstance(error, ClientError)]


def test_lost_tokens_that_the_answer_names_leave_the_others_completed() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        settled = settled_by_token(broker, names=True)
        client = broker.client()
        errors = await settled_in_one_request(broker, client.receiver("q"), 4)
        assert [index for index, error in enumerate(errors) if error is not None] == [4]
        assert "unknown" not in str(errors[4])
        assert (len(settled), len(broker.requests)) == (9, 1)
        assert client.statistics.settled == 9
        await client.close()

    run(work())


def test_where_no_token_is_named_a_lost_lock_is_unknown() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        settled = settled_by_token(broker)
        client = broker.client()
        errors = await settled_in_one_request(broker, client.receiver("q"), 4)
        assert all("unknown" in str(error) for error in errors)
        assert (len(settled), len(broker.requests)) == (9, 11)
        await client.close()

    run(work())


@pytest.mark.parametrize("executed", [True, False])
def test_a_repeated_settlement_by_token_is_unknown_if_the_first_attempt_was_sent(executed: bool) -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        settled = settled_by_token(broker)
        settle = broker.answers["com.microsoft:update-disposition"]
        fill(broker, 2)
        client = broker.client()
        receiver = client.receiver("q")
        first, second = await receiver.receive(2)
        broker.kill()
        if not executed:
            result = receiver.complete(first)
            await asyncio.sleep(1)
            broker.locked.clear()
        else:

            def answer_is_lost(body: dict[Any, Any]) -> tuple[int, str | None, object]:
                answer = settle(body)
                if len(broker.requests) == 1:
                    broker.kill()
                    broker.restart()
                return answer

            broker.answers["com.microsoft:update-disposition"] = answer_is_lost
            await asyncio.sleep(1)
            result = receiver.complete(first)
        broker.restart()
        with pytest.raises(LockLost) as caught:
            await result
        assert ("unknown" in str(caught.value)) is executed
        assert settled == ([first.lock_token] if executed else [])
        assert client.statistics.retries > 0
        if executed:
            await receiver.complete(second)
        await client.close()

    run(work())


@pytest.mark.parametrize("sends", [False, True])
def test_a_link_that_is_lost_in_the_turn_in_which_its_attempt_ends_is_attached_again(
    sends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss is processed after the last step of the attempt's task, and before the callback of its end."""

    async def work() -> None:
        broker = SimulatedBroker()
        loop = asyncio.get_running_loop()
        client = broker.client(timeout=10.0)
        link: Any = client.sender("q") if sends else client.receiver("q")
        await link.open()
        waiting: Any = None if sends else asyncio.ensure_future(link.receive(1, 60.0))
        await asyncio.sleep(1)
        attempts: list[asyncio.Task[None] | None] = []

        def attached_and_soon_lost() -> None:
            monkeypatch.undo()
            link.on_attached()
            attempts.append(link._opening)
            loop.call_soon(lose)

        def lose() -> None:
            attempts.append(link._opening)
            wire = broker.wires.pop()
            wire.cut = wire.peer.dead = True
            wire.protocol.connection_lost(None)

        monkeypatch.setattr(link, "on_attached", attached_and_soon_lost)
        broker.kill()
        broker.restart()
        if sends:
            await link.send(OutgoingMessage(body=b"00000"))
        else:
            await asyncio.sleep(5)
            fill(broker, 1)
            assert numbers(await waiting) == [0]
        assert attempts[0] is attempts[1], "the loss came later or earlier"
        await client.close()

    run(work())


def test_a_connection_that_is_lost_in_the_turn_in_which_its_attempt_ends_is_opened_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        loop = asyncio.get_running_loop()
        client = broker.client()
        (connection,) = connections(client)
        on_data = connection.on_data
        later: list[asyncio.Task[None]] = []

        def opened_and_soon_lost(data: bytes) -> None:
            on_data(data)
            if connection.is_open:
                monkeypatch.undo()
                loop.call_soon(lose)
                later.append(asyncio.ensure_future(connection.ready()))

        def lose() -> None:
            assert connection._opening is not None
            assert connection._opening.done()
            wire = broker.wires.pop()
            wire.cut = wire.peer.dead = True
            wire.protocol.connection_lost(None)

        monkeypatch.setattr(connection, "on_data", opened_and_soon_lost)
        await connection.ready()
        await later[0]
        assert connection.is_open
        await client.close()

    run(work())


def test_a_connection_that_is_lost_before_its_attempt_goes_on_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        client = broker.client()
        (connection,) = connections(client)
        on_data = connection.on_data

        def opened_and_lost(data: bytes) -> None:
            on_data(data)
            if connection.is_open:
                monkeypatch.undo()
                connection.on_lost(None)

        monkeypatch.setattr(connection, "on_data", opened_and_lost)
        with pytest.raises(ConnectionLost, match="as soon as it was open"):
            await connection.ready()
        await connection.ready()
        assert client.statistics.reconnects == 0
        await client.close()

    run(work())


@pytest.mark.parametrize("end", ["commit", "roll back", "commit twice", "refused"])
def test_a_transaction_that_the_program_ends_itself_leaves_no_session(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        coordination = Coordination(monkeypatch)
        client = broker.client()
        await client.sender("q").open()
        (connection,) = connections(client)
        sessions, links = len(broker.wires[0].peer.engine.sessions), connection.links
        if end == "refused":
            coordination.refusal = AmqpError("amqp:transaction:rollback", "too late")
        for _ in range(3):
            with suppress(ClientError):
                async with client.transaction() as transaction:
                    await (transaction.roll_back() if end == "roll back" else transaction.commit())
                    if end == "commit twice":
                        await transaction.commit()
        await asyncio.sleep(1)
        assert coordination.commits == [end != "roll back"] * 3
        assert len(broker.wires[0].peer.engine.sessions) == sessions
        assert connection.links == links
        await client.close()

    run(work())


def test_a_link_waits_for_a_session_where_the_connection_has_its_most() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        broker.channel_max = 2
        client = broker.client(timeout=10.0)
        receivers = [client.receiver("q") for _ in range(3)]
        await receivers[0].open()
        await receivers[1].open()
        with pytest.raises(Busy, match="3 sessions, its most"):
            await receivers[2].open()
        opening = asyncio.ensure_future(receivers[2].open())
        await asyncio.sleep(1)
        await receivers[0].close()
        await opening
        assert receivers[2].is_open
        await client.close()

    run(work())


def test_locks_are_renewed_a_thousand_at_a_time() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        loop = asyncio.get_running_loop()
        renewed: list[UUID] = []

        def renew(body: dict[Any, Any]) -> tuple[int, str | None, object]:
            tokens = body["lock-tokens"].items
            if len(tokens) > 1_000:
                return 400, "com.microsoft:argument-error", None
            renewed.extend(tokens)
            until = Timestamp(int((EPOCH_S + loop.time() + 60) * 1000))
            return 200, None, {"expirations": [until for _ in tokens]}

        broker.answers["com.microsoft:renew-lock"] = renew
        broker.arrive("q", [locked_message()] * 2_500)
        client = broker.client()
        receiver = client.receiver("q", auto_renew=600.0)
        messages: list[IncomingMessage] = []
        while len(messages) < 2_500:
            messages += await receiver.receive(2_500)
        await asyncio.sleep(40)
        assert len(renewed) == 2_500
        assert set(renewed) == {message.lock_token for message in messages}
        assert len(broker.requests) <= 4, "few requests of many locks"
        await client.close()

    run(work())


async def ended_at(result: asyncio.Future[None]) -> tuple[float, type[ClientError] | None, bool]:
    """Wait for a settlement; return when it ended, with which kind of error, and whether that says "unknown"."""
    await asyncio.wait([result])
    error = result.exception()
    assert error is None or isinstance(error, ClientError)
    return asyncio.get_running_loop().time(), None if error is None else type(error), "(unknown)" in str(error)


@pytest.mark.parametrize("together", [False, True])
def test_a_completion_that_gets_no_answer_ends_at_the_time_limit(together: bool) -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        fill(broker, 4)
        client = broker.client(timeout=10.0)
        receiver = client.receiver("q")
        messages = await receiver.receive(4)
        await receiver.complete(messages[0])
        broker.mute = True
        loop = asyncio.get_running_loop()
        begun = loop.time()
        first = receiver.complete(messages[1:3] if together else messages[1])
        await asyncio.sleep(4)
        second = receiver.abandon(messages[3])
        for result, limit in ((first, begun + 10.0), (second, begun + 14.0)):
            time, kind, is_unknown = await ended_at(result)
            assert time == pytest.approx(limit, abs=0.1)
            assert (kind, is_unknown) == (TimedOut, True)
        broker.mute = False
        await client.close()

    run(work())


def test_settlements_go_on_by_token_within_what_is_left_of_their_time() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        settled = settled_by_token(broker, names=True)
        fill(broker, 3)
        client = broker.client(timeout=10.0, retry=RetryPolicy(jitter=0.0))
        receiver = client.receiver("q")
        messages = await receiver.receive(3)
        broker.mute = True
        loop = asyncio.get_running_loop()
        begun = loop.time()
        results: list[asyncio.Future[None]] = []
        for message in messages:
            results.append(receiver.complete(message))
            await asyncio.sleep(3)
        broker.kill()  # at 9 s
        broker.mute = False
        time, kind, _ = await ended_at(results[0])
        assert time <= begun + 10.1
        assert kind is not None
        assert issubclass(kind, ClientError)
        broker.restart()
        broker.locked = {one.tag: ("q", b"", 0.0) for message in messages[1:] if (one := message.delivery) is not None}
        assert [(await ended_at(result))[1] for result in results[1:]] == [None, None]
        assert loop.time() < begun + 13.0
        assert set(settled) == {message.lock_token for message in messages[1:]}
        await client.close()

    run(work())


def test_a_settlement_by_token_that_gets_no_answer_ends_at_the_time_limit() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        settled_by_token(broker)
        fill(broker, 1)
        client = broker.client(timeout=10.0)
        receiver = client.receiver("q")
        messages = await receiver.receive(1)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        under_way = receiver.complete(messages)
        broker.mute = True  # The answer is lost, and so are those of the next connection.
        await asyncio.sleep(3)
        broker.kill()
        broker.restart()
        time, kind, is_unknown = await ended_at(under_way)
        assert time == pytest.approx(begun + 10.0, abs=0.1)
        assert (kind is not None, is_unknown) == (True, True)
        await client.close()

    run(work())


def test_a_settlement_is_not_repeated_past_its_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        fill(broker, 1)
        busy = Rejected(AmqpError("com.microsoft:server-busy", "Error code: 50009"))
        monkeypatch.setattr(
            Peer, "on_settled", lambda self, link, event: link.settle_many(event.delivery_ids, busy, retain=True)
        )
        client = broker.client(timeout=1.0)
        receiver = client.receiver("q")
        with pytest.raises(Busy, match="the settlement was not carried out"):
            await receiver.complete(await receiver.receive(1))
        assert not broker.requests
        assert asyncio.get_running_loop().time() < 1.0
        await client.close()

    run(work())
