"""Peek: what one answer holds, and how a client goes on (rows A8 to A10, P16, P17)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance.clients.interface import Outgoing, ServiceBusClient, peek_all, receive_all
from tests.conformance.clients.python_sync import PythonSync

MakeQueue = Callable[..., str]
ANSWER_BYTES_MAX = 256 * 1024


@pytest.mark.row("P16")
def test_peek_of_a_plain_queue_begins_with_its_oldest_message(sdk: ServiceBusClient, make_queue: MakeQueue) -> None:
    queue = make_queue()
    sdk.send_list(queue, [Outgoing(b"%d" % i, partition_key=str(i)) for i in range(5)])
    (oldest,) = sdk.peek(queue, 1)
    assert oldest.body == b"0"
    for message in receive_all(sdk, queue, 2):
        sdk.complete(queue, message)
    assert [message.body for message in sdk.peek(queue, 3)] == [b"2", b"3", b"4"]


@pytest.mark.row("P17", "A9")
def test_peek_of_a_partitioned_queue_answers_from_one_partition_its_oldest_first(
    sdk: ServiceBusClient, make_queue: MakeQueue
) -> None:
    """Fewer than were asked for, although there are more elsewhere."""
    queue = make_queue(EnablePartitioning=True)
    sdk.send_list(queue, [Outgoing(b"%d" % i, partition_key=str(i % 8)) for i in range(40)])
    one_answer, everything = sdk.peek(queue, 100), peek_all(sdk, queue)
    assert 0 < len(one_answer) < len(everything) == 40
    (partition,) = {message.partition for message in one_answer}
    bodies = [int(message.body) for message in one_answer]
    assert bodies == sorted(int(m.body) for m in everything if m.partition == partition)


@pytest.mark.row("A8", "A10")
def test_peek_answer_ends_at_256_kb_and_the_next_one_goes_on(sdk: ServiceBusClient, queue: str) -> None:
    """Twenty messages of 30 KB with one key: eight of them fit into an answer."""
    for start in range(0, 20, 5):
        sdk.send_list(queue, [Outgoing(bytes([i]) * 30_000, partition_key="one") for i in range(start, start + 5)])
    one_answer = sdk.peek(queue, 20)
    assert 7 <= len(one_answer) <= ANSWER_BYTES_MAX // 30_000
    assert [message.body[0] for message in peek_all(sdk, queue, 20)] == list(range(20))


@pytest.mark.row("A8")
def test_message_that_fills_an_answer_alone_is_peeked_all_the_same(
    sdk: ServiceBusClient, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    for i in range(2):
        sdk.send(queue, Outgoing(bytes([i]) * 255_000))
    assert [len(sdk.peek(queue, 10, start)) for start in (1, 2, 3)] == [1, 1, 0]


def test_peek_shows_no_lock_and_counts_nothing(python: PythonSync, queue: str) -> None:
    python.send(queue, Outgoing(b"x"))
    peeked = [message for _ in range(3) for message in peek_all(python, queue)]
    assert [(one.delivery_count, one.token.locked_until_utc) for one in peeked] == 3 * [(0, None)]
    (message,) = receive_all(python, queue, 1)
    assert message.delivery_count == 0
    assert {one.token.enqueued_time_utc for one in peeked} == {message.token.enqueued_time_utc}
    python.complete(queue, message)


def test_peek_past_the_end_finds_nothing(sdk: ServiceBusClient, queue: str) -> None:
    sdk.send(queue, Outgoing(b"x"))
    (message,) = peek_all(sdk, queue)
    assert message.sequence_number is not None
    assert sdk.peek(queue, 1, message.sequence_number + 1) == []
    assert sdk.peek(queue, 1, (1 << 63) - 1) == []
