"""Receipt handles whose partition has gone, and receives whose client has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from partibus.frontends.sqs.calls import Call
from partibus.frontends.sqs.handles import read_handles, write_handles
from partibus.frontends.sqs.polls import RETRY_MS
from partibus.partition.protocol.commands import Command, OpenCursor
from partibus.partition.protocol.keys import SubqueueKind
from partibus.routing.partitions import PartitionHandle
from tests.unit.frontends.harness import World
from tests.unit.frontends.sqs.harness import SqsWorld

FIFO = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}


@pytest.fixture
def sqs(world: World) -> SqsWorld:
    return SqsWorld(world)


@pytest.fixture
def url(sqs: SqsWorld) -> str:
    url: str = sqs.call("CreateQueue", QueueName="q.fifo", Attributes=FIFO)["QueueUrl"]
    sqs.call("SendMessage", QueueUrl=url, MessageBody="a", MessageGroupId="g")
    return url


def test_a_handle_of_a_partition_that_was_merged_away_is_that_of_a_deleted_message(sqs: SqsWorld, url: str) -> None:
    (message,) = sqs.call("ReceiveMessage", QueueUrl=url)["Messages"]
    good = message["ReceiptHandle"]
    (handle,) = read_handles([good])
    assert handle is not None
    (gone,) = write_handles(handle.entity_id, handle.created_ms, 7, handle.lock_id, [handle.pos], handle.received_ms)
    assert sqs.call("DeleteMessage", QueueUrl=url, ReceiptHandle=gone) in ({}, None)
    entries = [{"Id": "gone", "ReceiptHandle": gone}, {"Id": "good", "ReceiptHandle": good}]
    change = sqs.call(
        "ChangeMessageVisibilityBatch", QueueUrl=url, Entries=[one | {"VisibilityTimeout": 60} for one in entries]
    )
    assert [one["Id"] for one in change["Successful"]] == ["good"]
    assert "Message does not exist" in change["Failed"][0]["Message"]
    deleted = sqs.call("DeleteMessageBatch", QueueUrl=url, Entries=entries)
    assert [one["Id"] for one in deleted["Successful"]] == ["gone", "good"]
    assert "Failed" not in deleted


def test_a_client_that_leaves_while_it_waits_for_credits_gets_no_message(
    sqs: SqsWorld, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admitted: list[Callable[[], None]] = []

    def later(call: Call, operation: object, entity: object, then: Callable[[], None]) -> None:
        admitted.append(then)

    with monkeypatch.context() as patched:
        patched.setattr(Call, "admit", later)
        client = sqs.connect()
        client.send(sqs.signer.request("ReceiveMessage", {"QueueUrl": url, "WaitTimeSeconds": 20}))
        client.protocol.connection_lost(None)
    for go_on in admitted:
        go_on()
    sqs.world.wait()
    answer: Any = sqs.call("ReceiveMessage", QueueUrl=url)
    assert [message["Body"] for message in answer["Messages"]] == ["a"]


def test_a_long_poll_asks_seldom_while_a_cursor_reads_the_queue_alone(
    sqs: SqsWorld, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, asked = PartitionHandle.submit, list[object]()

    def counted(partition: PartitionHandle, command: Command, *more: Any, **named: Any) -> None:
        asked.append(command)
        assert len(asked) < 1_000, "the poll does not pause between requests"
        submit(partition, command, *more, **named)

    route = sqs.world.broker.entity_of(sqs.world.namespace.queue("q.fifo")).route
    for partition in route.partitions:
        partition.submit(
            OpenCursor(route.numbers.next(), SubqueueKind.ACTIVE, "alone", lease_ms=60_000), lambda _: None
        )
    sqs.world.wait()
    monkeypatch.setattr(PartitionHandle, "submit", counted)
    client = sqs.connect()
    client.send(sqs.signer.request("ReceiveMessage", {"QueueUrl": url, "WaitTimeSeconds": 5}))
    sqs.world.wait(6_000)
    assert client.answers() in ([{}], [None])
    assert len(asked) <= len(route.partitions) * (5_000 // RETRY_MS + 2)
