"""Message move tasks that another broker than the one that was asked carries out."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from partibus.errors import StoreUnavailable
from partibus.frontends.sqs.movers import LOCK_MS
from partibus.frontends.sqs.names import Home, QueueName
from partibus.frontends.sqs.polls import StandardPoll
from partibus.frontends.sqs.queues import change_options
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


def test_a_task_goes_on_after_a_failure_of_the_store(sqs: SqsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The poll of a failed store ends without messages, which does not mean that there are none."""
    task = Task(sqs)
    ask, failures = StandardPoll._ask, [StoreUnavailable("the store has failed"), StoreUnavailable("it still has")]

    def fail_first(poll: StandardPoll) -> None:
        if failures:
            poll._source = Mock()
            poll._failed(failures.pop())
        else:
            ask(poll)

    monkeypatch.setattr(StandardPoll, "_ask", fail_first)
    sqs.service.look_for_tasks()
    sqs.world.wait(5_000)
    assert failures == []
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
