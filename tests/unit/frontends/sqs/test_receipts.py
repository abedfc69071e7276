"""Receipt handles whose partition has gone, and receives whose client has."""

from __future__ import annotations

from importlib import import_module
from typing import Any
from unittest.mock import Mock

import pytest

from partibus.frontends.sqs.handles import read_handles, write_handles
from partibus.frontends.sqs.polls import RETRY_MS
from partibus.frontends.sqs.stored import Incoming, read_stored
from partibus.partition.protocol.commands import Command, OpenCursor, ReceiveGroups
from partibus.partition.protocol.keys import SubqueueKind
from partibus.routing.entity import EntityRoute
from partibus.routing.partitions import PartitionHandle
from partibus.throttling.settings import ThrottlingPolicy, ThrottlingSettings
from partibus.throttling.uses import OPERATIONS, Operation
from tests.unit.frontends.harness import World
from tests.unit.frontends.sqs.harness import SqsWorld

RECEIVE_MESSAGE = import_module("partibus.frontends.sqs.actions.receive_message")
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


def read_alone(sqs: SqsWorld) -> EntityRoute:
    """Let a cursor read every partition of the queue alone, so that requests for groups are refused."""
    route = sqs.world.broker.entity_of(sqs.world.namespace.queue("q.fifo")).route
    for partition in route.partitions:
        partition.submit(
            OpenCursor(route.numbers.next(), SubqueueKind.ACTIVE, "alone", lease_ms=60_000), lambda _: None
        )
    sqs.world.wait()
    return route


def test_a_long_poll_asks_seldom_while_a_cursor_reads_the_queue_alone(
    sqs: SqsWorld, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, asked = PartitionHandle.submit, list[object]()

    def counted(partition: PartitionHandle, command: Command, *more: Any, **named: Any) -> None:
        asked.append(command)
        assert len(asked) < 1_000, "the poll does not pause between requests"
        submit(partition, command, *more, **named)

    route = read_alone(sqs)
    monkeypatch.setattr(PartitionHandle, "submit", counted)
    client = sqs.connect()
    client.send(sqs.signer.request("ReceiveMessage", {"QueueUrl": url, "WaitTimeSeconds": 5}))
    sqs.world.wait(6_000)
    assert client.answers() in ([{}], [None])
    assert len(asked) <= len(route.partitions) * (5_000 // RETRY_MS + 2)


def used(sqs: SqsWorld) -> dict[str, int]:
    """Return the credits used, by operation."""
    return {
        name: count for name, count in zip(OPERATIONS, sqs.world.broker.throttle.counters.used, strict=True) if count
    }


def test_requests_cost_credits_by_the_message_or_by_the_request(sqs: SqsWorld, url: str) -> None:
    sqs.world.broker.throttle.change(ThrottlingSettings(policy=ThrottlingPolicy.OBSERVE))
    entries = [{"Id": str(number), "MessageBody": str(number), "MessageGroupId": "h"} for number in range(4)]
    sqs.call("SendMessageBatch", QueueUrl=url, Entries=entries)
    assert used(sqs) == {"send": 4}
    members = {"QueueUrl": url, "MaxNumberOfMessages": 10, "ReceiveRequestAttemptId": "a"}
    messages = sqs.call("ReceiveMessage", **members)["Messages"]
    assert len(messages) == 5
    assert used(sqs) == {"send": 4, "receive": 5}
    assert sqs.call("ReceiveMessage", **members)["Messages"] == messages
    assert sqs.call("ReceiveMessage", QueueUrl=url) in ({}, None)
    sqs.call("DeleteMessage", QueueUrl=url, ReceiptHandle=messages[0]["ReceiptHandle"])
    assert used(sqs) == {"send": 4, "receive": 10}
    sqs.call("GetQueueUrl", QueueName="q.fifo")
    sqs.call("TagQueue", QueueUrl=url, Tags={"a": "b"})
    assert used(sqs) == {"send": 4, "receive": 10, "management": 20}


@pytest.mark.parametrize("action", ["ReceiveMessage", "PurgeQueue"])
def test_without_credits_requests_are_refused_and_do_nothing(sqs: SqsWorld, url: str, action: str) -> None:
    settings = ThrottlingSettings(policy=ThrottlingPolicy.ENFORCE, credits_per_s=10)
    sqs.world.broker.throttle.change(settings)
    sqs.world.broker.throttle.charge(Operation.SEND, settings.period_credits)
    reply = sqs.ask(sqs.signer.request(action, {"QueueUrl": url}), 100)
    assert (reply.status, reply.members["__type"]) == (403, "com.amazonaws.sqs#RequestThrottled")
    sqs.world.broker.throttle.change(ThrottlingSettings())
    (message,) = sqs.call("ReceiveMessage", QueueUrl=url, AttributeNames=["All"])["Messages"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


def test_a_message_that_raises_an_unexpected_error_is_received_with_its_body_only(
    sqs: SqsWorld, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attributes = {"n": {"DataType": "Number", "StringValue": "5"}}
    for body in ("b", "c"):
        sqs.call("SendMessage", QueueUrl=url, MessageBody=body, MessageGroupId="g", MessageAttributes=attributes)

    def read(data: bytes) -> Incoming:
        found = read_stored(data)
        if found.body == "b":
            raise RuntimeError("planted")
        return found

    monkeypatch.setattr(RECEIVE_MESSAGE, "read_stored", read)
    members = {"QueueUrl": url, "MaxNumberOfMessages": 10, "MessageAttributeNames": ["All"]}
    messages = sqs.call("ReceiveMessage", **members)["Messages"]
    assert [one["Body"] for one in messages] == ["a", "b", "c"]
    assert [one.get("MessageAttributes") for one in messages] == [None, None, attributes]
    assert "planted" in caplog.text
    for one in messages:
        sqs.call("DeleteMessage", QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])


@pytest.mark.parametrize("suffix", ["", ".fifo"], ids=["standard", "FIFO"])
def test_messages_of_an_answer_that_can_not_be_made_are_visible_again_and_count_no_receive(
    sqs: SqsWorld, url: str, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not suffix:
        url = sqs.call("CreateQueue", QueueName="q")["QueueUrl"]
        sqs.call("SendMessage", QueueUrl=url, MessageBody="a")
    monkeypatch.setattr(RECEIVE_MESSAGE, "write_handles", Mock(side_effect=RuntimeError("planted")))
    reply = sqs.ask(sqs.signer.request("ReceiveMessage", {"QueueUrl": url}), 100)
    assert (reply.status, reply.members["__type"]) == (500, "com.amazon.coral.service#InternalFailure")
    monkeypatch.undo()
    (message,) = sqs.call("ReceiveMessage", QueueUrl=url, AttributeNames=["All"])["Messages"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


def test_a_long_poll_asks_a_partition_once_after_a_pause_in_which_others_were_added(
    sqs: SqsWorld, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, asked = PartitionHandle.submit, list[object]()

    def counted(partition: PartitionHandle, command: Command, *more: Any, **named: Any) -> None:
        if isinstance(command, ReceiveGroups):
            asked.append(command)
        submit(partition, command, *more, **named)

    route = read_alone(sqs)
    monkeypatch.setattr(PartitionHandle, "submit", counted)
    sqs.connect().send(sqs.signer.request("ReceiveMessage", {"QueueUrl": url, "WaitTimeSeconds": 5}))
    sqs.world.wait(50)
    before = len(asked)
    for grown in list(route.grown):
        grown()
    sqs.world.wait(50)
    assert len(asked) == before
    sqs.world.wait(RETRY_MS)
    assert len(asked) == before + len(route.partitions)
