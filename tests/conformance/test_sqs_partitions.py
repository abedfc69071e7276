"""FIFO queues and their partitions as boto3 sees them: quotas, parts of batches, splits and merges."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from click.testing import CliRunner

from partibus.cli.main import main
from partibus.client.extensions.cluster import FaultInjections, Partitions
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.test_sqs import delete, receive
from tests.kit.eventually import eventually
from tests.kit.plain_client import connect

REQUESTS = 20
"""Requests per second of a partition, for each action."""
PARTITIONS = 3
HIGH = {
    "FifoQueue": "true",
    "ContentBasedDeduplication": "true",
    "FifoThroughputLimit": "perMessageGroupId",
    "DeduplicationScope": "messageGroup",
}
GROUPS = [f"item{n}" for n in range(40)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    capacity = ("--partition-requests", str(REQUESTS), "--partition-messages", str(REQUESTS * 10))
    arguments = ("--clock", "manual", "--sqs-partitions", str(PARTITIONS), "--partition-calm", "60s", *capacity)
    with BrokerProcess(tmp_path_factory.mktemp("sqs"), arguments=arguments) as broker:
        yield broker


@pytest.fixture(scope="module")
def sqs(broker: BrokerProcess) -> Any:
    return client_of(broker)


def client_of(broker: BrokerProcess, **retries: Any) -> Any:
    return boto3.client(
        "sqs",
        endpoint_url=broker.sqs_url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(retries={"total_max_attempts": 1} | retries),
    )


def partition_of(answer: Any) -> int:
    """Return the partition that a sequence number names in its last 16 bits."""
    return int(answer["SequenceNumber"]) & 0xFFFF


def owners(broker: BrokerProcess, name: str) -> int:
    """Return how many partitions own slots."""
    with connect(broker.connection_string) as client:
        found = Partitions(client).of(name)
    counts = [one["slots"] for one in found["partitions"]]  # type: ignore[attr-defined]
    return sum(count > 0 for count in counts)


def send_batch(sqs: Any, queue: str, groups: list[str], body: str = "x") -> Any:
    entries = [
        {"Id": str(n), "MessageBody": f"{body}-{n}", "MessageGroupId": group, "MessageDeduplicationId": f"{body}-{n}"}
        for n, group in enumerate(groups)
    ]
    return sqs.send_message_batch(QueueUrl=queue, Entries=entries)


def burst(broker: BrokerProcess, sqs: Any, queue: str, name: str, *, until: int = PARTITIONS) -> dict[str, list[str]]:
    """Send at once what so many partitions carry in ten seconds, and wait for them; return the bodies by group."""
    sent: dict[str, list[str]] = {}
    for number in range(10 * REQUESTS * (until - 1) + REQUESTS):
        group = GROUPS[number % len(GROUPS)]
        sqs.send_message(QueueUrl=queue, MessageBody=f"{name}-{number}", MessageGroupId=group)
        sent.setdefault(group, []).append(f"{name}-{number}")
    broker.advance(1_000)  # the second of the burst counts when it is over
    eventually(f"{name} has {until} partitions", lambda: owners(broker, name) == until)
    return sent


def drain(sqs: Any, queue: str) -> dict[str, list[str]]:
    """Receive and delete until an answer is empty; return the bodies by group, in the order of their receives."""
    found: dict[str, list[str]] = {}
    while messages := receive(sqs, queue, 2):
        for message in messages:
            found.setdefault(message["Attributes"]["MessageGroupId"], []).append(message["Body"])
        delete(sqs, queue, messages)
    return found


@pytest.fixture(scope="module")
def spread(broker: BrokerProcess, sqs: Any) -> tuple[str, dict[int, list[str]]]:
    """A queue of three partitions, and the groups of each."""
    queue = sqs.create_queue(QueueName="spread.fifo", Attributes=HIGH)["QueueUrl"]
    burst(broker, sqs, queue, "spread.fifo")
    drain(sqs, queue)
    groups: dict[int, list[str]] = {}
    for group in GROUPS:
        sent = sqs.send_message(QueueUrl=queue, MessageBody=f"where {group}", MessageGroupId=group)
        groups.setdefault(partition_of(sent), []).append(group)
    drain(sqs, queue)
    assert len(groups) == PARTITIONS
    return queue, groups


@pytest.fixture
def enforced(broker: BrokerProcess, spread: tuple[str, dict[int, list[str]]]) -> Iterator[None]:
    """The quotas of the queue of three partitions hold, and all budgets are full."""
    broker.update_queue("spread.fifo", PartibusEnforceThroughput=True)
    broker.advance(1_000)
    yield
    broker.update_queue("spread.fifo", PartibusEnforceThroughput=False)
    drain(client_of(broker), spread[0])


def use_up(sqs: Any, queue: str, group: str) -> str:
    """Send to one group until its partition refuses; return the code of the refusal."""
    for n in range(REQUESTS):
        sqs.send_message(QueueUrl=queue, MessageBody=f"use up {group} {n}", MessageGroupId=group)
    with pytest.raises(ClientError, match=r"Request is throttled\.") as refused:
        sqs.send_message(QueueUrl=queue, MessageBody=f"over {group}", MessageGroupId=group)
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    return str(refused.value.response["Error"]["Code"])


@pytest.mark.row("S3", "S4", "S5")
def test_a_burst_adds_partitions_and_a_calm_removes_them(broker: BrokerProcess, sqs: Any) -> None:
    queue = sqs.create_queue(QueueName="elastic.fifo", Attributes=HIGH)["QueueUrl"]
    first = sqs.send_message(QueueUrl=queue, MessageBody="first", MessageGroupId="item0")
    (held,) = receive(sqs, queue, 0)
    sent = burst(broker, sqs, queue, "elastic.fifo")
    for group in GROUPS[1:]:
        sqs.send_message(QueueUrl=queue, MessageBody=f"after {group}", MessageGroupId=group)
        sent[group].append(f"after {group}")
    shown = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    assert int(shown["ApproximateNumberOfMessages"]) == sum(map(len, sent.values()))
    assert shown["ApproximateNumberOfMessagesNotVisible"] == "1"
    again = sqs.send_message(QueueUrl=queue, MessageBody="first", MessageGroupId="item0")
    assert (again["MessageId"], again["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
    found = drain(sqs, queue)
    assert "item0" not in found, "its head is in flight, received before the split"
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=held["ReceiptHandle"])
    found |= drain(sqs, queue)
    assert found == sent

    def is_merged() -> bool:
        broker.advance(61_000)
        return owners(broker, "elastic.fifo") == 1

    eventually("the queue has one partition again", is_merged)


def rebalance(broker: BrokerProcess, *arguments: str) -> Any:
    return CliRunner().invoke(
        main, ["partition", "rebalance", *arguments], env={"PARTIBUS_CONNECTION": broker.connection_string}
    )


def slots_of(broker: BrokerProcess, name: str) -> list[int]:
    with connect(broker.connection_string) as client:
        found: Any = Partitions(client).of(name)
    return [one["slots"] for one in found["partitions"]]


@pytest.mark.row("S5")
def test_a_plan_is_carried_out_once(broker: BrokerProcess, sqs: Any, tmp_path: Path) -> None:
    queue = sqs.create_queue(QueueName="planned.fifo", Attributes=HIGH)["QueueUrl"]
    sent = {group: [f"{group}-{n}" for n in range(3)] for group in GROUPS}
    for n in range(2):
        for group in GROUPS:
            sqs.send_message(QueueUrl=queue, MessageBody=f"{group}-{n}", MessageGroupId=group)
    split = {"partitions": 2, "slots": [[0, 999, 1], [1000, 16_383, 0]]}
    plan = {"entity": "planned.fifo", "partitions": 1, "same_count": {"slots": []}, "other_count": split}
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"partibus_plan": 1, "entities": [plan]}))
    dry = rebalance(broker, "planned.fifo", "--plan", str(file), "--dry-run")
    assert (dry.exit_code, slots_of(broker, "planned.fifo")) == (0, [16_384])
    assert rebalance(broker, "planned.fifo", "--plan", str(file)).exit_code == 0
    for group in GROUPS:
        sqs.send_message(QueueUrl=queue, MessageBody=f"{group}-2", MessageGroupId=group)
    eventually("the slots have moved", lambda: slots_of(broker, "planned.fifo") == [15_384, 1_000])
    assert drain(sqs, queue) == sent

    def is_settled() -> bool:
        with connect(broker.connection_string) as client:
            return not Partitions(client).of("planned.fifo")["moves"]

    eventually("the move has finished", is_settled)
    again = rebalance(broker, "planned.fifo", "--plan", str(file))
    assert (again.exit_code, "no slot has to move" in again.output) == (0, True)


def test_a_plan_that_does_not_fit_the_queue_is_refused(broker: BrokerProcess, sqs: Any, tmp_path: Path) -> None:
    sqs.create_queue(QueueName="unplanned.fifo", Attributes=HIGH)
    file = tmp_path / "plan.json"

    def said(partitions: int, slots: list[Any]) -> str:
        counts = {"partitions": partitions, "slots": slots}
        plan = {"entity": "unplanned.fifo", "partitions": partitions, "same_count": counts, "other_count": counts}
        file.write_text(json.dumps({"partibus_plan": 1, "entities": [plan]}))
        result = rebalance(broker, "unplanned.fifo", "--plan", str(file))
        assert result.exit_code == 1
        return str(result.output)

    assert "was made for 2 partitions, and 'unplanned.fifo' has 1" in said(2, [])
    assert f"The plan has 9 partitions, and 'unplanned.fifo' may have {PARTITIONS}" in said(1, [[0, 5, 8]])
    assert "runs of slots below 16384 that do not overlap" in said(1, [[0, 5, 1], [5, 9, 0]])
    assert "runs of slots below 16384" in said(1, [[0, 16_384, 1]])
    file.write_text("{}")
    assert "is no plan" in rebalance(broker, "unplanned.fifo", "--plan", str(file)).output
    assert slots_of(broker, "unplanned.fifo") == [16_384]


@pytest.mark.row("S3")
def test_partitions_stop_at_the_quota(broker: BrokerProcess, sqs: Any) -> None:
    queue = sqs.create_queue(QueueName="quota.fifo", Attributes=HIGH)["QueueUrl"]
    burst(broker, sqs, queue, "quota.fifo")
    for n in range(PARTITIONS * REQUESTS * 3):
        sqs.send_message(QueueUrl=queue, MessageBody=f"more {n}", MessageGroupId=GROUPS[n % len(GROUPS)])
        if n % 60 == 59:
            broker.advance(16_000)
    assert owners(broker, "quota.fifo") == PARTITIONS


@pytest.mark.row("S8")
def test_a_partition_over_its_quota_refuses_requests_of_one_action(
    broker: BrokerProcess, sqs: Any, spread: tuple[str, dict[int, list[str]]], enforced: None
) -> None:
    queue, groups = spread
    one, other = groups[0][0], groups[1][0]
    assert use_up(sqs, queue, one) == "RequestThrottled"
    sqs.send_message(QueueUrl=queue, MessageBody="another partition", MessageGroupId=other)
    got = receive(sqs, queue, 0)
    assert got, "receives have a budget of their own"
    delete(sqs, queue, got)
    broker.advance(1_000 // REQUESTS)
    sqs.send_message(QueueUrl=queue, MessageBody="one more", MessageGroupId=one)
    with pytest.raises(ClientError, match="throttled"):
        sqs.send_message(QueueUrl=queue, MessageBody="too soon", MessageGroupId=one)
    broker.advance(1_000)
    bodies = [body for some in drain_slowly(broker, sqs, queue).values() for body in some]
    assert "too soon" not in bodies, "a refused request changes nothing"
    sent = sqs.send_message(QueueUrl=queue, MessageBody="too soon", MessageGroupId=one)
    assert [one["MessageId"] for one in receive(sqs, queue, 0, VisibilityTimeout=0)] == [sent["MessageId"]], (
        "no id was remembered"
    )


def drain_slowly(broker: BrokerProcess, sqs: Any, queue: str) -> dict[str, list[str]]:
    """Drain a queue whose quotas hold."""
    found: dict[str, list[str]] = {}
    while messages := receive(sqs, queue, 0):
        for message in messages:
            found.setdefault(message["Attributes"]["MessageGroupId"], []).append(message["Body"])
        delete(sqs, queue, messages)
        broker.advance(200)
    return found


@pytest.mark.row("S8")
def test_receives_deletes_and_changes_have_quotas(
    broker: BrokerProcess, sqs: Any, spread: tuple[str, dict[int, list[str]]], enforced: None
) -> None:
    queue, groups = spread
    for place in range(PARTITIONS):
        sqs.send_message(QueueUrl=queue, MessageBody=f"quota {place}", MessageGroupId=groups[place][0])
    got = sorted(receive(sqs, queue, 0), key=lambda one: one["Body"])
    assert len(got) == PARTITIONS, "one receive fills from several partitions"
    for _ in range(REQUESTS):
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=got[0]["ReceiptHandle"], VisibilityTimeout=60)
    entries = [
        {"Id": str(n), "ReceiptHandle": one["ReceiptHandle"], "VisibilityTimeout": 60} for n, one in enumerate(got)
    ]
    answer = sqs.change_message_visibility_batch(QueueUrl=queue, Entries=entries)
    assert [(one["Id"], one["Code"], one["SenderFault"]) for one in answer["Failed"]] == [
        ("0", "RequestThrottled", True)
    ]
    assert [one["Id"] for one in answer["Successful"]] == ["1", "2"]
    assert len(delete(sqs, queue, got)["Successful"]) == PARTITIONS
    for _ in range(REQUESTS - 1):
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=got[0]["ReceiptHandle"])
    with pytest.raises(ClientError, match="throttled"):
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=got[0]["ReceiptHandle"])
    for _ in range(PARTITIONS * (REQUESTS - 1)):
        assert receive(sqs, queue, 0) == []
    with pytest.raises(ClientError, match="throttled"):  # no partition has a budget
        receive(sqs, queue, 0)
    broker.advance(1_000)
    assert receive(sqs, queue, 0) == []


@pytest.mark.row("S9", "S11", "S12")
def test_each_part_of_a_batch_draws_on_its_own_partition(
    broker: BrokerProcess, sqs: Any, spread: tuple[str, dict[int, list[str]]], enforced: None
) -> None:
    queue, groups = spread
    use_up(sqs, queue, groups[1][0])
    mixed = [groups[n % PARTITIONS][n // PARTITIONS % len(groups[n % PARTITIONS])] for n in range(9)]
    answer = send_batch(sqs, queue, mixed, "mixed")
    assert {(one["Code"], one["SenderFault"]) for one in answer["Failed"]} == {("RequestThrottled", True)}
    assert [one["Id"] for one in answer["Failed"]] == ["1", "4", "7"], "the part of the partition without a budget"
    places = {one["Id"]: partition_of(one) for one in answer["Successful"]}
    assert places == {"0": 0, "2": 2, "3": 0, "5": 2, "6": 0, "8": 2}
    for n in range(REQUESTS - 1):
        send_batch(sqs, queue, [groups[0][0], groups[2][0]], f"pair{n}")
    with pytest.raises(ClientError) as refused:
        send_batch(sqs, queue, mixed, "over")
    assert refused.value.response["Error"]["Code"] == "RequestThrottled"
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403


@pytest.mark.row("S9")
def test_the_parts_of_a_batch_fail_apart_and_whole(
    broker: BrokerProcess, sqs: Any, spread: tuple[str, dict[int, list[str]]]
) -> None:
    queue, groups = spread
    mixed = [groups[n % PARTITIONS][0] for n in range(9)]
    with connect(broker.connection_string) as client:
        faults = FaultInjections(client)
        faults.fail(entity="spread.fifo", partitions=[2])
        answer = send_batch(sqs, queue, mixed, "apart")
        assert [one["Id"] for one in answer["Failed"]] == ["2", "5", "8"]
        assert {(one["Code"], one["SenderFault"]) for one in answer["Failed"]} == {("ServiceUnavailable", False)}
        assert [one["Id"] for one in answer["Successful"]] == ["0", "1", "3", "4", "6", "7"]
        faults.heal()
    found = drain(sqs, queue)
    assert found == {groups[0][0]: ["apart-0", "apart-3", "apart-6"], groups[1][0]: ["apart-1", "apart-4", "apart-7"]}


@pytest.mark.row("S12")
def test_messages_of_one_group_share_a_part_whatever_the_number_of_partitions(
    sqs: Any, spread: tuple[str, dict[int, list[str]]]
) -> None:
    queue, groups = spread
    answer = send_batch(sqs, queue, [groups[n % 2][0] for n in range(10)], "together")
    numbers = [int(one["SequenceNumber"]) for one in answer["Successful"]]
    for start in (0, 1):
        part = numbers[start::2]
        assert {number & 0xFFFF for number in part} == {start}
        counters = [number >> 16 for number in part]
        assert counters == list(range(counters[0], counters[0] + 5)), "numbered together, in the order of the batch"
    drain(sqs, queue)


def test_a_queue_without_high_throughput_has_the_quota_of_one_partition(broker: BrokerProcess, sqs: Any) -> None:
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    queue = sqs.create_queue(QueueName="normal.fifo", Attributes=attributes)["QueueUrl"]
    broker.update_queue("normal.fifo", PartibusEnforceThroughput=True)
    refused = Counter[bool]()
    for n in range(REQUESTS + 3):
        try:
            sqs.send_message(QueueUrl=queue, MessageBody=f"m{n}", MessageGroupId=f"g{n}")
            refused[False] += 1
        except ClientError:
            refused[True] += 1
    assert refused == {False: REQUESTS, True: 3}
    broker.advance(1_000)
    for _ in range(REQUESTS):
        receive(sqs, queue, 0, VisibilityTimeout=60)
    with pytest.raises(ClientError, match="throttled"):
        receive(sqs, queue, 0)


def test_a_client_that_is_throttled_tries_again(broker: BrokerProcess, sqs: Any) -> None:
    queue = sqs.create_queue(QueueName="patient.fifo", Attributes=HIGH)["QueueUrl"]
    broker.update_queue("patient.fifo", PartibusEnforceThroughput=True)
    use_up(sqs, queue, "g")
    for mode in ("legacy", "standard"):
        patient = client_of(broker, mode=mode, total_max_attempts=2)
        with pytest.raises(ClientError) as refused:
            patient.send_message(QueueUrl=queue, MessageBody=mode, MessageGroupId="g")
        assert refused.value.response["ResponseMetadata"]["RetryAttempts"] == 1, mode


def test_a_queue_gets_back_to_one_partition_with_normal_throughput(broker: BrokerProcess, sqs: Any) -> None:
    queue = sqs.create_queue(QueueName="back.fifo", Attributes=HIGH)["QueueUrl"]
    sent = burst(broker, sqs, queue, "back.fifo", until=2)
    assert drain(sqs, queue) == sent
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"FifoThroughputLimit": "perQueue"})

    def is_merged() -> bool:
        broker.advance(16_000)
        return owners(broker, "back.fifo") == 1

    eventually("the queue has one partition", is_merged)
