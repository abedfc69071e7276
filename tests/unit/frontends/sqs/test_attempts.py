"""A receive of a FIFO queue that is repeated with its ReceiveRequestAttemptId, at any broker and after a restart."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partibus.frontends.sqs.attempts import Attempts
from partibus.frontends.sqs.state import FirstReceives
from partibus.partition.protocol.replies import pack_attempt, unpack_attempt
from tests.unit.frontends.harness import World
from tests.unit.frontends.sqs.harness import SqsWorld


class Queue:
    def __init__(self, sqs: SqsWorld) -> None:
        self.sqs = sqs
        self.url = sqs.call("CreateQueue", QueueName="q.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]

    def send(self, *groups: str) -> None:
        for number, group in enumerate(groups):
            body, key = f"{group}{number}", f"{group}-{number}"
            self.sqs.call(
                "SendMessage", QueueUrl=self.url, MessageBody=body, MessageGroupId=group, MessageDeduplicationId=key
            )

    def receive(self, attempt: str, **members: Any) -> list[Any]:
        members = {"MaxNumberOfMessages": 10, "AttributeNames": ["All"], **members}
        answer = self.sqs.call("ReceiveMessage", QueueUrl=self.url, ReceiveRequestAttemptId=attempt, **members)
        found: list[Any] = answer.get("Messages", [])
        return found

    def forget(self) -> None:
        """Be another broker, or the same one after a restart: its memory of receives is empty."""
        self.sqs.service.attempts = Attempts()
        self.sqs.service.first_receives = FirstReceives()


@pytest.fixture
def queue(world: World) -> Queue:
    return Queue(SqsWorld(world))


def handles(messages: list[Any]) -> list[str]:
    return [message["ReceiptHandle"] for message in messages]


@pytest.mark.parametrize("forgets", [False, True])
def test_a_repeated_receive_gives_the_same_messages_with_the_same_handles(queue: Queue, forgets: bool) -> None:
    queue.send("a", "b", "a")
    first = queue.receive("once", MessageAttributeNames=["All"])
    assert len(first) == 3
    if forgets:
        queue.forget()
    queue.sqs.world.wait(20_000)
    assert queue.receive("once", MessageAttributeNames=["All"]) == first
    # Its visibility timeout begins again.
    queue.sqs.world.wait(20_000)
    assert queue.receive("other") == []
    for handle in handles(first):
        queue.sqs.call("DeleteMessage", QueueUrl=queue.url, ReceiptHandle=handle)
    assert queue.receive("once") == []


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("end", ["deleted", "expired", "window", "purged"])
def test_a_receive_whose_messages_are_not_all_in_flight_is_a_new_one(queue: Queue, forgets: bool, end: str) -> None:
    queue.send("a", "b")
    first = queue.receive("once", VisibilityTimeout=40_000 if end == "window" else 30)
    if end == "deleted":
        queue.sqs.call("DeleteMessage", QueueUrl=queue.url, ReceiptHandle=first[0]["ReceiptHandle"])
    elif end == "expired":
        queue.sqs.world.wait(31_000)
    elif end == "window":
        queue.sqs.world.wait(5 * 60_000)
    else:
        queue.sqs.call("PurgeQueue", QueueUrl=queue.url)
    if forgets:
        queue.forget()
    queue.send("c")
    again = queue.receive("once")
    assert set(handles(again)).isdisjoint(handles(first))
    assert sorted(message["Body"] for message in again) == (["a0", "b1", "c0"] if end == "expired" else ["c0"])


def test_a_receive_with_a_changed_visibility_is_a_new_one_and_leaves_the_change(queue: Queue) -> None:
    queue.send("a", "b")
    first = queue.receive("once")
    handle = first[0]["ReceiptHandle"]
    queue.sqs.call("ChangeMessageVisibility", QueueUrl=queue.url, ReceiptHandle=handle, VisibilityTimeout=600)
    queue.send("c")
    assert [message["Body"] for message in queue.receive("once")] == ["c0"]
    queue.sqs.world.wait(31_000)
    assert [message["Body"] for message in queue.receive("other")] == ["b1", "c0"]


def test_a_receive_that_got_nothing_is_not_remembered(queue: Queue) -> None:
    assert queue.receive("once") == []
    queue.send("a")
    assert len(queue.receive("once")) == 1


def test_an_attempt_is_no_deduplication_id_and_the_other_way_round(queue: Queue) -> None:
    queue.send("a")
    assert len(queue.receive("a-0")) == 1
    queue.sqs.call("SendMessage", QueueUrl=queue.url, MessageBody="new", MessageGroupId="b", MessageDeduplicationId="b")
    queue.forget()
    assert [message["Body"] for message in queue.receive("b")] == ["new"]


def test_an_attempt_over_several_partitions_is_repeated_whole(world: World) -> None:
    world.queue("q.fifo", EnablePartitioning=True, RequiresSession=True, RequiresDuplicateDetection=True)
    queue = Queue(SqsWorld(world))
    queue.send(*"abcdefghij")
    places = {world.broker.entity("q.fifo").route.partition_of(group) for group in "abcdefghij"}
    assert len(places) > 2
    first = queue.receive("once")
    while not first:  # the partitions are read from their stores
        first = queue.receive("once")
    queue.forget()
    again = queue.receive("once")
    assert sorted(handles(again)) == sorted(handles(first))
    assert sorted(message["Body"] for message in again) == sorted(message["Body"] for message in first)


def test_the_first_receive_is_remembered_by_the_process_and_never_shown_too_early(queue: Queue) -> None:
    """Another process knows of no earlier receive: it shows the first that it sees."""
    queue.send("a")

    def receive() -> dict[str, str]:
        (message,) = queue.receive("once", VisibilityTimeout=1)
        queue.sqs.world.wait(301_000)  # the attempt is forgotten
        found: dict[str, str] = message["Attributes"]
        return found

    first, second = receive(), receive()
    assert first["ApproximateFirstReceiveTimestamp"] == second["ApproximateFirstReceiveTimestamp"]
    queue.forget()
    third, fourth = receive(), receive()
    assert third["ApproximateReceiveCount"] == "3"
    shown = int(third["ApproximateFirstReceiveTimestamp"])
    assert shown > int(first["ApproximateFirstReceiveTimestamp"])
    assert shown == int(fourth["ApproximateFirstReceiveTimestamp"])


@given(st.integers(0, 2**48), st.lists(st.integers(0, 2**48), max_size=10))
def test_a_packed_grant_is_read_back(granted_ms: int, positions: list[int]) -> None:
    assert unpack_attempt(pack_attempt(granted_ms, positions)) == (granted_ms, positions)


@given(st.binary(max_size=40))
def test_other_bytes_are_no_grant_or_any(data: bytes) -> None:
    granted_ms, positions = unpack_attempt(data)
    assert not positions or pack_attempt(granted_ms, positions) == data


@pytest.mark.parametrize("forgets", [False, True])
def test_a_repeat_after_a_delete_renews_no_lock_of_the_other_messages(queue: Queue, forgets: bool) -> None:
    queue.send("a", "b")
    first = queue.receive("once")
    queue.sqs.world.wait(20_000)
    queue.sqs.call("DeleteMessage", QueueUrl=queue.url, ReceiptHandle=first[0]["ReceiptHandle"])
    if forgets:
        queue.forget()
    assert queue.receive("once") == []
    queue.sqs.world.wait(11_000)
    assert [message["Body"] for message in queue.receive("other")] == ["b1"]
