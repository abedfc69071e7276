"""SQS at several brokers: each request may reach another one than that which owns the queue's partition."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
import pytest
from botocore.config import Config

from partibus.client.extensions.cluster import Partitions
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.several import all_well, is_running, pids
from tests.conformance.test_sqs import client_of, delete, receive
from tests.conformance.test_sqs_partitions import HIGH
from tests.kit.eventually import eventually
from tests.kit.plain_client import connect
from tests.kit.reached import connections_of

REQUESTS = 20
TRIES = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    capacity = ("--partition-requests", str(REQUESTS), "--partition-messages", str(10 * REQUESTS))
    arguments = ("--brokers", "2", "--sqs-partitions", "4", *capacity)
    with BrokerProcess(tmp_path_factory.mktemp("sqs"), arguments=arguments) as broker:
        eventually("both serve", lambda: all_well(broker))
        yield broker


def client_at(broker: BrokerProcess, pid: int) -> Any:
    """Return a client whose only connection is at the broker process ``pid``."""
    port = int(broker.ready["sqs_port"])
    for _ in range(TRIES):
        before = connections_of(pid, port)
        found = boto3.client(
            "sqs",
            endpoint_url=broker.sqs_url,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
            config=Config(max_pool_connections=1),
        )
        found.list_queues()
        if connections_of(pid, port) - before:
            return found
    raise AssertionError(f"none of {TRIES} connections is at process {pid}")


@pytest.fixture
def two(broker: BrokerProcess) -> tuple[Any, Any]:
    """A client at each broker."""
    eventually("both serve", lambda: all_well(broker))
    first, second = pids(broker).values()
    return client_at(broker, first), client_at(broker, second)


@pytest.mark.parametrize("name", ["each", "each.fifo"])
def test_a_queue_is_the_same_at_every_broker(two: tuple[Any, Any], name: str) -> None:
    one, other = two
    fifo = name.endswith(".fifo")
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"} if fifo else {}
    queue = one.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    assert other.get_queue_url(QueueName=name)["QueueUrl"] == queue
    assert queue in other.list_queues()["QueueUrls"]
    group = {"MessageGroupId": "g"} if fifo else {}
    for n in range(4):
        (one, other)[n % 2].send_message(QueueUrl=queue, MessageBody=f"m{n}", **group)
    got = receive(other, queue)
    while len(got) < 4:
        got += receive(one, queue)
    assert sorted(message["Body"] for message in got) == ["m0", "m1", "m2", "m3"]
    if fifo:
        assert [message["Body"] for message in got] == ["m0", "m1", "m2", "m3"]
        again = other.send_message(QueueUrl=queue, MessageBody="m0", MessageGroupId="g")
        assert again["MessageId"] == got[0]["MessageId"], "the other broker knows the id"
    handle = got[0]["ReceiptHandle"]
    one.change_message_visibility(QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=100)
    assert len(delete(one, queue, got[:2])["Successful"]) == 2
    assert len(delete(other, queue, got[2:])["Successful"]) == 2
    assert receive(one, queue, 0) == receive(other, queue, 0) == []


def test_a_long_poll_hears_of_a_send_at_the_other_broker(two: tuple[Any, Any]) -> None:
    one, other = two
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    queue = one.create_queue(QueueName="poll.fifo", Attributes=attributes)["QueueUrl"]
    with ThreadPoolExecutor(1) as pool:
        polling = pool.submit(receive, other, queue, 20)
        one.send_message(QueueUrl=queue, MessageBody="now", MessageGroupId="g")
        (message,) = polling.result(timeout=15)
    assert message["Body"] == "now"


def test_a_purge_at_one_broker_holds_off_the_other(two: tuple[Any, Any]) -> None:
    one, other = two
    queue = one.create_queue(QueueName="purged-once")["QueueUrl"]
    one.purge_queue(QueueUrl=queue)
    with pytest.raises(other.exceptions.PurgeQueueInProgress):
        other.purge_queue(QueueUrl=queue)


def test_order_and_handles_outlive_a_broker(broker: BrokerProcess, two: tuple[Any, Any]) -> None:
    """Split a queue over stores of both brokers, receive, kill one broker, and go on at the other."""
    one, other = two
    name, groups = "killed.fifo", [f"g{n}" for n in range(12)]
    queue = one.create_queue(QueueName=name, Attributes=HIGH | {"VisibilityTimeout": "600"})["QueueUrl"]
    sent: dict[str, list[str]] = {group: [] for group in groups}
    number = 0

    def send(client: Any) -> None:
        nonlocal number
        for group in groups:
            client.send_message(QueueUrl=queue, MessageBody=str(number), MessageGroupId=group)
            sent[group].append(str(number))
            number += 1

    def is_split() -> bool:
        send(one)
        send(other)
        with connect(broker.connection_string) as client:
            found = Partitions(client).of(name)
        return sum(part["slots"] > 0 for part in found["partitions"]) > 1  # type: ignore[attr-defined]

    eventually("it has several partitions", is_split)
    held = receive(one, queue)
    assert held
    victim = pids(broker)["broker-1"]
    os.kill(victim, signal.SIGKILL)
    eventually("it is gone", lambda: not is_running(victim))
    eventually("both serve", lambda: all_well(broker))
    sqs = client_of(broker)
    send(sqs)
    assert len(delete(sqs, queue, held)["Successful"]) == len(held), "handles of before are good"
    got: dict[str, list[str]] = {}
    for message in held:
        got.setdefault(message["Attributes"]["MessageGroupId"], []).append(message["Body"])

    def is_drained() -> bool:
        for message in (found := receive(sqs, queue, 1)):
            got.setdefault(message["Attributes"]["MessageGroupId"], []).append(message["Body"])
        if found:
            delete(sqs, queue, found)
        return sum(map(len, got.values())) >= number

    eventually("everything has come", is_drained)
    assert got == sent, "each group in order, nothing lost or twice"
