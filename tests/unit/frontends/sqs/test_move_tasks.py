"""Message move tasks that another broker than the one that was asked carries out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from partibus.errors import MessageTooLarge
from partibus.frontends.sqs import movers
from partibus.frontends.sqs.attributes import MESSAGE_BYTES_MAX
from partibus.frontends.sqs.movers import LOCK_MS
from partibus.frontends.sqs.names import Home, QueueName
from partibus.frontends.sqs.queues import change_options
from partibus.namespace.access import Right, SasPolicy
from partibus.partition.protocol.commands import Command, Enqueue
from partibus.partition.protocol.ports import StoreError
from partibus.partition.protocol.replies import Failed
from partibus.routing.partitions import PartitionHandle
from tests.unit.frontends.harness import World
from tests.unit.frontends.sqs.harness import SqsWorld


@pytest.fixture
def sqs(tmp_path: Path) -> SqsWorld:
    return SqsWorld(World(tmp_path))


class Task:
    """A task from a queue with one message, begun by another broker."""

    def __init__(self, sqs: SqsWorld) -> None:
        self.sqs = sqs
        self.dead = sqs.call("CreateQueue", QueueName="dead")["QueueUrl"]
        attributes = sqs.call("GetQueueAttributes", QueueUrl=self.dead, AttributeNames=["QueueArn"])["Attributes"]
        self.arn = attributes["QueueArn"]
        policy = json.dumps({"deadLetterTargetArn": self.arn, "maxReceiveCount": 1})
        sqs.call("CreateQueue", QueueName="source", Attributes={"RedrivePolicy": policy})
        target = sqs.call("CreateQueue", QueueName="target")["QueueUrl"]
        attributes = sqs.call("GetQueueAttributes", QueueUrl=target, AttributeNames=["QueueArn"])["Attributes"]
        sqs.call("SendMessage", QueueUrl=self.dead, MessageBody="a")
        look = sqs.service.look_for_tasks
        sqs.service.look_for_tasks = lambda: None  # type: ignore[method-assign]
        sqs.call("StartMessageMoveTask", SourceArn=self.arn, DestinationArn=attributes["QueueArn"])
        sqs.service.look_for_tasks = look  # type: ignore[method-assign]

    @property
    def status(self) -> str:
        (task,) = self.sqs.call("ListMessageMoveTasks", SourceArn=self.arn)["Results"]
        assert isinstance(task["Status"], str)
        return task["Status"]


def test_a_new_task_is_complete_when_its_messages_have_moved(sqs: SqsWorld) -> None:
    task = Task(sqs)
    assert task.status == "RUNNING"
    sqs.service.look_for_tasks()
    sqs.world.wait(2_000)
    assert task.status == "COMPLETED"


def test_a_task_goes_on_after_a_failure_of_the_store(sqs: SqsWorld) -> None:
    """The poll of a failed store ends without messages, which does not mean that there are none."""
    task = Task(sqs)
    store = sqs.world.store_of("dead")
    store.fails, store.stays_away = StoreError("the store has failed", executed=False), True
    request = sqs.signer.request("SendMessage", {"QueueUrl": task.dead, "MessageBody": "b"})
    assert sqs.ask(request, 1_000).status == 503
    assert store.runtime.failure is not None
    sqs.service.look_for_tasks()
    sqs.world.wait(5_000)
    assert task.status == "RUNNING"
    store.fails, store.stays_away = None, False
    sqs.world.wait(60_000)
    counts = ["ApproximateNumberOfMessages"]
    left = sqs.call("GetQueueAttributes", QueueUrl=task.dead, AttributeNames=counts)["Attributes"]
    assert left == {"ApproximateNumberOfMessages": "0"}
    assert task.status == "COMPLETED"


def test_a_task_that_was_begun_before_waits_for_messages_that_its_last_mover_may_have_locked(sqs: SqsWorld) -> None:
    task = Task(sqs)
    broker = sqs.world.broker
    queue = sqs.service.queues_of(broker).find(broker, QueueName("us-east-1", "dead"))
    change_options(
        broker, Home(), queue, lambda old: replace(old, moves=tuple(replace(one, is_new=False) for one in old.moves))
    )
    sqs.call("ReceiveMessage", QueueUrl=task.dead, VisibilityTimeout=LOCK_MS // 1000 - 1)  # as that mover has
    sqs.service.look_for_tasks()
    sqs.world.wait(2_000)
    assert task.status == "RUNNING"
    sqs.world.wait(LOCK_MS)
    assert task.status == "COMPLETED"
    counts = ["ApproximateNumberOfMessages"]
    left = sqs.call("GetQueueAttributes", QueueUrl=task.dead, AttributeNames=counts)["Attributes"]
    assert left == {"ApproximateNumberOfMessages": "0"}


def redriven(sqs: SqsWorld, suffix: str = "") -> tuple[str, str]:
    """Return the URLs of a queue and of its dead-letter queue; messages are forwarded."""
    sqs.world.forward()
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"} if suffix else {}
    dead = sqs.call("CreateQueue", QueueName=f"dead{suffix}", Attributes=attributes)["QueueUrl"]
    arn = sqs.call("GetQueueAttributes", QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    redrive = {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})}
    source = sqs.call("CreateQueue", QueueName=f"source{suffix}", Attributes=attributes | redrive)["QueueUrl"]
    return source, dead


def exceed(sqs: SqsWorld, source: str, body: str, wait_ms: float = 1_000) -> None:
    """Send a message and receive it once too often."""
    sqs.call("SendMessage", QueueUrl=source, MessageBody=body, MessageGroupId="g")
    assert len(sqs.call("ReceiveMessage", QueueUrl=source, VisibilityTimeout=0)["Messages"]) == 1
    assert "Messages" not in sqs.call("ReceiveMessage", QueueUrl=source)
    sqs.world.wait(wait_ms)


@pytest.mark.parametrize("suffix", ["", ".fifo"], ids=["standard", "FIFO"])
def test_a_message_of_the_largest_size_reaches_its_dead_letter_queue(sqs: SqsWorld, suffix: str) -> None:
    source, dead = redriven(sqs, suffix)
    body = "x" * MESSAGE_BYTES_MAX
    exceed(sqs, source, body)
    (message,) = sqs.call("ReceiveMessage", QueueUrl=dead)["Messages"]
    assert message["Body"] == body


@pytest.mark.parametrize("name", ["dead", "other"], ids=["made again", "another one"])
def test_messages_wait_for_a_dead_letter_queue_in_place_of_the_deleted_one(sqs: SqsWorld, name: str) -> None:
    source, dead = redriven(sqs)
    exceed(sqs, source, "before")
    sqs.call("DeleteQueue", QueueUrl=dead)
    for body in ("first", "second"):
        exceed(sqs, source, body)
    url = sqs.call("CreateQueue", QueueName=name)["QueueUrl"]
    arn = sqs.call("GetQueueAttributes", QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    sqs.call("SetQueueAttributes", QueueUrl=source, Attributes={"RedrivePolicy": policy})
    sqs.world.wait(5_000)
    messages = sqs.call("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    assert [message["Body"] for message in messages] == ["first", "second"]


@pytest.mark.parametrize("suffix", ["", ".fifo"], ids=["standard", "FIFO"])
def test_a_message_that_waits_is_not_passed_by_one_that_comes_when_its_queue_is_made_again(
    sqs: SqsWorld, suffix: str
) -> None:
    source, dead = redriven(sqs, suffix)
    sqs.call("DeleteQueue", QueueUrl=dead)
    exceed(sqs, source, "first", wait_ms=100)
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"} if suffix else {}
    sqs.call("CreateQueue", QueueName=f"dead{suffix}", Attributes=attributes)
    exceed(sqs, source, "second", wait_ms=100)  # the pump has not looked again yet
    sqs.world.wait(5_000)
    messages = sqs.call("ReceiveMessage", QueueUrl=dead, MaxNumberOfMessages=10)["Messages"]
    assert [message["Body"] for message in messages] == ["first", "second"]


def test_receivers_get_dead_letters_whose_queue_is_missing_when_the_redrive_policy_ends(sqs: SqsWorld) -> None:
    source, dead = redriven(sqs)
    sqs.call("DeleteQueue", QueueUrl=dead)
    exceed(sqs, source, "first")
    sqs.call("SetQueueAttributes", QueueUrl=source, Attributes={"RedrivePolicy": ""})
    client = sqs.world.client()
    assert len(client.receive(client.receiver("source/$DeadLetterQueue"), 10)) == 1


@pytest.mark.parametrize("is_deleted_first", [False, True], ids=["deleted after the change", "deleted before it"])
def test_another_dead_letter_queue_gets_what_may_have_been_stored_in_a_deleted_one(
    sqs: SqsWorld, monkeypatch: pytest.MonkeyPatch, *, is_deleted_first: bool
) -> None:
    source, dead = redriven(sqs)
    other = sqs.call("CreateQueue", QueueName="other")["QueueUrl"]
    arn = sqs.call("GetQueueAttributes", QueueUrl=other, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    submit = PartitionHandle.submit

    def leave_in_doubt(handle: PartitionHandle, command: Command, on_reply: Any = None, **how: Any) -> None:
        if isinstance(command, Enqueue) and command.origin is not None:
            on_reply(Failed(command.request, None, False, "the answer was lost"))
        else:
            submit(handle, command, on_reply, **how)

    with monkeypatch.context() as patch:
        patch.setattr(PartitionHandle, "submit", leave_in_doubt)
        exceed(sqs, source, "first")
        if is_deleted_first:
            sqs.call("DeleteQueue", QueueUrl=dead)
            sqs.world.wait(1_500)  # between two attempts
        sqs.call("SetQueueAttributes", QueueUrl=source, Attributes={"RedrivePolicy": policy})
        if not is_deleted_first:
            sqs.call("DeleteQueue", QueueUrl=dead)
        sqs.world.wait(5_000)
    sqs.world.wait(5_000)
    (message,) = sqs.call("ReceiveMessage", QueueUrl=other, MaxNumberOfMessages=10)["Messages"]
    assert message["Body"] == "first"


@pytest.mark.parametrize("planted", ["as_new", "send", "StandardPoll"])
def test_an_unexpected_error_ends_a_task_as_failed_and_leaves_the_message(
    sqs: SqsWorld, planted: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task = Task(sqs)
    monkeypatch.setattr(movers, planted, Mock(side_effect=RuntimeError("planted")))
    sqs.service.look_for_tasks()
    sqs.world.wait(2_000)
    (shown,) = sqs.call("ListMessageMoveTasks", SourceArn=task.arn)["Results"]
    assert (shown["Status"], shown["FailureReason"]) == ("FAILED", "InternalFailure")
    assert "planted" in caplog.text
    monkeypatch.undo()
    (message,) = sqs.call("ReceiveMessage", QueueUrl=task.dead, AttributeNames=["All"])["Messages"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


def test_a_task_without_a_destination_needs_the_right_to_send_to_the_queues_of_the_dead_letters(sqs: SqsWorld) -> None:
    source, dead = redriven(sqs)
    exceed(sqs, source, "a")
    arn = sqs.call("GetQueueAttributes", QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    sqs.world.access.follow("dead", [SasPolicy("of-dead", Right.MANAGE, "of-dead-key", "")])
    signer = sqs.signer_of("of-dead")
    reply = sqs.ask(signer.request("StartMessageMoveTask", {"SourceArn": arn}))
    assert (reply.status, reply.members["__type"]) == (403, "com.amazon.coral.service#AccessDeniedException")
    assert "on the queue source: it lacks the right Send" in reply.members["message"]
    assert not sqs.call("ListMessageMoveTasks", SourceArn=arn)["Results"]
    sqs.call("StartMessageMoveTask", SourceArn=arn)
    sqs.world.wait(2_000)
    (message,) = sqs.call("ReceiveMessage", QueueUrl=source)["Messages"]
    assert message["Body"] == "a"


@pytest.mark.parametrize("data_type", ["String", "Binary", "String.mine"])
def test_a_dead_letter_keeps_attributes_with_the_names_of_its_reason(sqs: SqsWorld, data_type: str) -> None:
    source, dead = redriven(sqs)
    value = {"BinaryValue": "bWluZQ=="} if data_type == "Binary" else {"StringValue": "mine"}
    attributes = {name: {"DataType": data_type, **value} for name in ("DeadLetterReason", "DeadLetterErrorDescription")}
    sqs.call("SendMessage", QueueUrl=source, MessageBody="a", MessageAttributes=attributes)
    sqs.call("SendMessage", QueueUrl=source, MessageBody="b")
    members = {"MaxNumberOfMessages": 10, "MessageAttributeNames": ["All"], "VisibilityTimeout": 0}
    sent = sqs.call("ReceiveMessage", QueueUrl=source, **members)["Messages"]
    assert "Messages" not in sqs.call("ReceiveMessage", QueueUrl=source)
    sqs.world.wait(1_000)
    shown = sqs.call("ReceiveMessage", QueueUrl=dead, **members)["Messages"]
    assert [one.get("MessageAttributes") for one in shown] == [attributes, None]
    assert shown[0]["MD5OfMessageAttributes"] == sent[0]["MD5OfMessageAttributes"]
    arn = sqs.call("GetQueueAttributes", QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    sqs.call("StartMessageMoveTask", SourceArn=arn)
    sqs.world.wait(2_000)
    moved = sqs.call("ReceiveMessage", QueueUrl=source, **members)["Messages"]
    assert [one.get("MessageAttributes") for one in moved] == [attributes, None]


@pytest.mark.parametrize("suffix", ["", ".fifo"], ids=["standard", "FIFO"])
def test_the_full_count_of_a_task_is_shown_together_with_its_end(sqs: SqsWorld, suffix: str) -> None:
    source, dead = redriven(sqs, suffix)
    for body in ("a", "b"):
        exceed(sqs, source, body)
    arn = sqs.call("GetQueueAttributes", QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    sqs.call("StartMessageMoveTask", SourceArn=arn)  # which waits less than a task that looks for further messages
    (task,) = sqs.call("ListMessageMoveTasks", SourceArn=arn)["Results"]
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 2)
    assert "TaskHandle" not in task


def test_a_task_with_a_rate_shows_its_full_count_with_its_end(sqs: SqsWorld) -> None:
    source, dead = redriven(sqs)
    for body in ("a", "b", "c"):
        exceed(sqs, source, body)
    arn = sqs.call("GetQueueAttributes", QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    sqs.call("StartMessageMoveTask", SourceArn=arn, MaxNumberOfMessagesPerSecond=1)
    seen: dict[str, set[int]] = {"RUNNING": set(), "COMPLETED": set()}
    while not seen["COMPLETED"]:
        sqs.world.wait(100)
        (task,) = sqs.call("ListMessageMoveTasks", SourceArn=arn)["Results"]
        seen[task["Status"]].add(task["ApproximateNumberOfMessagesMoved"])
    assert seen == {"RUNNING": {1, 2}, "COMPLETED": {3}}


def test_a_task_is_complete_when_other_receivers_hold_what_is_left(
    sqs: SqsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(sqs)
    sqs.call("SendMessage", QueueUrl=task.dead, MessageBody="held")
    assert len(sqs.call("ReceiveMessage", QueueUrl=task.dead, VisibilityTimeout=60)["Messages"]) == 1
    monkeypatch.setattr("partibus.frontends.sqs.polls.IN_FLIGHT_MAX", 1)
    sqs.service.look_for_tasks()
    sqs.world.wait(2_000)
    assert task.status == "COMPLETED"


def test_a_message_sent_to_the_dead_letter_queue_itself_has_no_source_to_go_to(sqs: SqsWorld) -> None:
    _, dead = redriven(sqs)
    sqs.call("SendMessage", QueueUrl=dead, MessageBody="a")
    arn = sqs.call("GetQueueAttributes", QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    sqs.call("StartMessageMoveTask", SourceArn=arn)
    (task,) = sqs.call("ListMessageMoveTasks", SourceArn=arn)["Results"]
    assert (task["Status"], task["FailureReason"]) == ("FAILED", "CouldNotDetermineMessageSource")


def test_an_error_of_the_core_ends_a_task_with_its_code_of_sqs(sqs: SqsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(sqs)
    error = MessageTooLarge("target", 2, 1)
    monkeypatch.setattr(movers, "send", lambda route, runs, on_sent: on_sent([error]))
    sqs.service.look_for_tasks()
    sqs.world.wait(2_000)
    (shown,) = sqs.call("ListMessageMoveTasks", SourceArn=task.arn)["Results"]
    assert (shown["Status"], shown["FailureReason"]) == ("FAILED", "InvalidParameterValue")


def redrive_to(sqs: SqsWorld, source: str, target: str) -> None:
    """Set the redrive policy of one queue, by its URL, to another one."""
    arn = sqs.call("GetQueueAttributes", QueueUrl=target, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    sqs.call("SetQueueAttributes", QueueUrl=source, Attributes={"RedrivePolicy": policy})


@pytest.mark.parametrize("suffix", ["", ".fifo"], ids=["standard", "FIFO"])
def test_a_queue_may_be_its_own_dead_letter_queue(sqs: SqsWorld, suffix: str) -> None:
    source, _ = redriven(sqs, suffix)
    redrive_to(sqs, source, source)
    sqs.call("SendMessage", QueueUrl=source, MessageBody="a", MessageGroupId="g")
    counts: list[int] = []
    for _ in range(20):
        found = sqs.call("ReceiveMessage", QueueUrl=source, VisibilityTimeout=0, AttributeNames=["All"])
        counts += [int(one["Attributes"]["ApproximateReceiveCount"]) for one in found.get("Messages", ())]
        sqs.world.wait(1_000)
    assert counts == [*range(1, len(counts) + 1)]
    assert len(counts) >= 10, "each second receive may only move it"


@pytest.mark.parametrize("suffix", ["", ".fifo"], ids=["standard", "FIFO"])
def test_a_message_goes_through_any_number_of_dead_letter_queues(sqs: SqsWorld, suffix: str) -> None:
    source, dead = redriven(sqs, suffix)
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"} if suffix else {}
    urls = [source, dead]
    for number in range(6):
        url = sqs.call("CreateQueue", QueueName=f"dead-{number}{suffix}", Attributes=attributes)["QueueUrl"]
        redrive_to(sqs, urls[-1], url)
        urls.append(url)
    sqs.call("SendMessage", QueueUrl=source, MessageBody="a", MessageGroupId="g")
    for url in urls[:-1]:
        assert len(sqs.call("ReceiveMessage", QueueUrl=url, VisibilityTimeout=0)["Messages"]) == 1
        assert "Messages" not in sqs.call("ReceiveMessage", QueueUrl=url)
        sqs.world.wait(1_000)
    (message,) = sqs.call("ReceiveMessage", QueueUrl=urls[-1], AttributeNames=["All"])["Messages"]
    assert (message["Body"], message["Attributes"]["ApproximateReceiveCount"]) == ("a", "8")


def test_expiry_takes_a_message_through_few_dead_letter_queues(sqs: SqsWorld) -> None:
    """Expiry takes no receive, so a message would go on from a queue to itself for ever."""
    source, _ = redriven(sqs)
    redrive_to(sqs, source, source)
    sqs.call("SetQueueAttributes", QueueUrl=source, Attributes={"MessageRetentionPeriod": "60"})
    sqs.world.broker.update_by("source", lambda old: {"DeadLetteringOnMessageExpiration": True})
    sqs.call("SendMessage", QueueUrl=source, MessageBody="a")
    sqs.world.wait(600_000)
    client = sqs.world.client()
    assert len(client.receive(client.receiver("source/$Transfer/$DeadLetterQueue"), 10)) == 1


@pytest.mark.parametrize("suffix", ["", ".fifo"], ids=["standard", "FIFO"])
def test_two_queues_may_be_the_dead_letter_queues_of_each_other(sqs: SqsWorld, suffix: str) -> None:
    source, dead = redriven(sqs, suffix)
    redrive_to(sqs, dead, source)
    exceed(sqs, source, "a")
    for url in (dead, source) * 4:
        assert len(sqs.call("ReceiveMessage", QueueUrl=url, VisibilityTimeout=0)["Messages"]) == 1
        assert "Messages" not in sqs.call("ReceiveMessage", QueueUrl=url)
        sqs.world.wait(1_000)
    (message,) = sqs.call("ReceiveMessage", QueueUrl=dead)["Messages"]
    assert message["Body"] == "a"
