"""Delays and retention: times that run from the send."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from partibus.amqp import ACCEPTED
from partibus.amqp.codec.types import Timestamp
from partibus.amqp.section_encoding import encode_annotations, encode_data, encode_properties
from tests.unit.frontends.harness import World
from tests.unit.frontends.sqs.harness import SqsWorld


@pytest.fixture
def sqs(tmp_path: Path) -> SqsWorld:
    return SqsWorld(World(tmp_path))


def fifo(sqs: SqsWorld, delay_s: int) -> str:
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true", "DelaySeconds": str(delay_s)}
    url: str = sqs.call("CreateQueue", QueueName="q.fifo", Attributes=attributes)["QueueUrl"]
    return url


def send(sqs: SqsWorld, url: str, body: str, **members: object) -> Any:
    return sqs.call("SendMessage", QueueUrl=url, MessageBody=body, **members)


def receive(sqs: SqsWorld, url: str) -> list[Any]:
    answer = sqs.call("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["All"])
    messages: list[Any] = answer.get("Messages", [])
    return messages


def test_a_delayed_message_keeps_the_number_and_time_of_its_send(sqs: SqsWorld) -> None:
    url = fifo(sqs, 5)
    numbers = [send(sqs, url, body, MessageGroupId="g")["SequenceNumber"] for body in ("a", "b")]
    sent_ms = sqs.world.broker.clock.now_ms()
    sqs.world.wait(5_000)
    messages = receive(sqs, url)
    assert [message["Attributes"]["SequenceNumber"] for message in messages] == numbers
    assert all(int(message["Attributes"]["SentTimestamp"]) <= sent_ms for message in messages)
    later = send(sqs, url, "c", MessageGroupId="g")["SequenceNumber"]
    assert later > numbers[-1]


def test_retention_of_a_delayed_message_runs_from_its_send(sqs: SqsWorld) -> None:
    attributes = {"MessageRetentionPeriod": "60"}
    url = sqs.call("CreateQueue", QueueName="q", Attributes=attributes)["QueueUrl"]
    send(sqs, url, "a", DelaySeconds=50)
    sqs.world.wait(51_000)
    (message,) = receive(sqs, url)
    visible = {"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0}
    sqs.call("ChangeMessageVisibility", **visible)
    sqs.world.wait(10_000)
    assert receive(sqs, url) == []


def test_messages_that_are_delayed_follow_the_delay_of_their_fifo_queue(sqs: SqsWorld) -> None:
    url = fifo(sqs, 60)
    first = send(sqs, url, "first", MessageGroupId="g")
    sqs.world.wait(1_000)
    assert receive(sqs, url) == []
    sqs.call("SetQueueAttributes", QueueUrl=url, Attributes={"DelaySeconds": "0"})
    send(sqs, url, "second", MessageGroupId="g")
    messages = receive(sqs, url)
    assert [message["Body"] for message in messages] == ["first", "second"]
    assert messages[0]["Attributes"]["SequenceNumber"] == first["SequenceNumber"]


def test_a_new_delay_of_a_standard_queue_is_one_of_new_messages(sqs: SqsWorld) -> None:
    url = sqs.call("CreateQueue", QueueName="q", Attributes={"DelaySeconds": "60"})["QueueUrl"]
    send(sqs, url, "first")
    sqs.call("SetQueueAttributes", QueueUrl=url, Attributes={"DelaySeconds": "0"})
    send(sqs, url, "second")
    assert [message["Body"] for message in receive(sqs, url)] == ["second"]
    sqs.world.wait(60_000)
    assert [message["Body"] for message in receive(sqs, url)][-1] == "first"


@pytest.mark.parametrize("is_fifo", [True, False], ids=["FIFO", "standard"])
def test_retention_ends_messages_in_flight_and_frees_their_group(sqs: SqsWorld, *, is_fifo: bool) -> None:
    attributes = {"MessageRetentionPeriod": "60", "VisibilityTimeout": "600"}
    if is_fifo:
        attributes |= {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    url = sqs.call("CreateQueue", QueueName="q.fifo" if is_fifo else "q", Attributes=attributes)["QueueUrl"]
    send(sqs, url, "first", MessageGroupId="g")
    (first,) = receive(sqs, url)
    sqs.world.wait(30_000)
    send(sqs, url, "second", MessageGroupId="g")
    sqs.world.wait(31_000)
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    counts = sqs.call("GetQueueAttributes", QueueUrl=url, AttributeNames=names)["Attributes"]
    assert counts == dict(zip(names, ("1", "0"), strict=True))
    assert [message["Body"] for message in receive(sqs, url)] == ["second"]
    sqs.call("DeleteMessage", QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    assert sqs.call("GetQueueAttributes", QueueUrl=url, AttributeNames=names)["Attributes"][names[1]] == "1"


@pytest.mark.parametrize("is_fifo", [True, False], ids=["FIFO", "standard"])
def test_a_shorter_retention_ends_messages_that_are_there(sqs: SqsWorld, *, is_fifo: bool) -> None:
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"} if is_fifo else {}
    url = sqs.call("CreateQueue", QueueName="q.fifo" if is_fifo else "q", Attributes=attributes)["QueueUrl"]
    send(sqs, url, "old", MessageGroupId="g")
    sqs.world.wait(100_000)
    send(sqs, url, "new", MessageGroupId="g")
    sqs.call("SetQueueAttributes", QueueUrl=url, Attributes={"MessageRetentionPeriod": "60"})
    assert [message["Body"] for message in receive(sqs, url)] == ["new"]
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    counts = sqs.call("GetQueueAttributes", QueueUrl=url, AttributeNames=names)["Attributes"]
    assert counts == dict(zip(names, ("0", "1"), strict=True))


def test_a_new_delay_of_a_fifo_queue_is_none_of_messages_that_an_amqp_client_has_scheduled(sqs: SqsWorld) -> None:
    url, client = fifo(sqs, 60), sqs.world.client()
    due = Timestamp(sqs.world.timeline.now_ms() + 90_000)
    annotations = encode_annotations({"x-opt-scheduled-enqueue-time": due})
    properties = encode_properties(message_id="m", group_id="amqp")
    assert client.send(client.sender("q.fifo"), annotations + properties + encode_data(b"scheduled")) == [ACCEPTED]
    send(sqs, url, "delayed", MessageGroupId="g")
    for delay_s, bodies in ((30, []), (0, ["delayed"])):
        sqs.call("SetQueueAttributes", QueueUrl=url, Attributes={"DelaySeconds": str(delay_s)})
        assert [message["Body"] for message in receive(sqs, url)] == bodies
    sqs.world.wait(85_000)
    assert "scheduled" not in [message["Body"] for message in receive(sqs, url)]
    sqs.world.wait(10_000)
    assert "scheduled" in [message["Body"] for message in receive(sqs, url)]
