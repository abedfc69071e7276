"""SQS as boto3 speaks it, on standard and FIFO queues, and one queue over SQS and AMQP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage
from botocore.exceptions import ClientError

from partibus.testing.broker_process import BrokerProcess
from tests.kit.azure_receiving import receive_exactly


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("sqs"), arguments=("--clock", "manual")) as broker:
        yield broker


def client_of(broker: BrokerProcess) -> Any:
    return boto3.client(
        "sqs",
        endpoint_url=f"http://127.0.0.1:{broker.ready['sqs_port']}",
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )


@pytest.fixture(scope="module")
def sqs(broker: BrokerProcess) -> Any:
    return client_of(broker)


def receive(sqs: Any, queue: str, wait_s: int = 5, **more: Any) -> list[Any]:
    found: list[Any] = sqs.receive_message(
        QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=wait_s, AttributeNames=["All"], **more
    ).get("Messages", [])
    return found


def delete(sqs: Any, queue: str, messages: list[Any]) -> Any:
    entries = [{"Id": str(n), "ReceiptHandle": one["ReceiptHandle"]} for n, one in enumerate(messages)]
    return sqs.delete_message_batch(QueueUrl=queue, Entries=entries)


@pytest.mark.row("S13")
def test_a_standard_queue(sqs: Any, broker: BrokerProcess) -> None:
    queue = sqs.create_queue(QueueName="standard", Attributes={"VisibilityTimeout": "30"})["QueueUrl"]
    attributes = {"n": {"DataType": "Number", "StringValue": "5"}, "b": {"DataType": "Binary", "BinaryValue": b"\0\1"}}
    sent = sqs.send_message(QueueUrl=queue, MessageBody="hello \u2603", MessageAttributes=attributes)
    (message,) = receive(sqs, queue, MessageAttributeNames=["All"])
    assert (message["MessageId"], message["Body"]) == (sent["MessageId"], "hello \u2603")
    assert message["MessageAttributes"] == attributes
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert receive(sqs, queue, 0) == []
    broker.advance(30_001)
    (again,) = receive(sqs, queue)
    assert again["Attributes"]["ApproximateReceiveCount"] == "2"
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=again["ReceiptHandle"], VisibilityTimeout=0)
    (third,) = receive(sqs, queue)
    assert third["ReceiptHandle"] not in (message["ReceiptHandle"], again["ReceiptHandle"])
    assert len(delete(sqs, queue, [third])["Successful"]) == 1
    assert sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["ApproximateNumberOfMessages"])["Attributes"] == {
        "ApproximateNumberOfMessages": "0"
    }


@pytest.mark.row("S6", "S10", "S13")
def test_a_fifo_queue_keeps_groups_in_order_and_answers_duplicates(sqs: Any, broker: BrokerProcess) -> None:
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    queue = sqs.create_queue(QueueName="orders.fifo", Attributes=attributes)["QueueUrl"]
    entries = [{"Id": str(n), "MessageBody": f"m{n}", "MessageGroupId": f"g{n % 3}"} for n in range(9)]
    sent = sqs.send_message_batch(QueueUrl=queue, Entries=entries)
    assert [one["Id"] for one in sent["Successful"]] == [str(n) for n in range(9)]
    first = sent["Successful"][0]
    again = sqs.send_message(QueueUrl=queue, MessageBody="m0", MessageGroupId="g0")
    assert (again["MessageId"], again["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
    got = receive(sqs, queue)
    by_group: dict[str, list[str]] = {}
    for message in got:
        by_group.setdefault(message["Attributes"]["MessageGroupId"], []).append(message["Body"])
    assert by_group == {"g0": ["m0", "m3", "m6"], "g1": ["m1", "m4", "m7"], "g2": ["m2", "m5", "m8"]}
    sqs.send_message(QueueUrl=queue, MessageBody="later", MessageGroupId="g0")
    assert receive(sqs, queue, 0) == []
    delete(sqs, queue, got)
    (later,) = receive(sqs, queue)
    assert later["Body"] == "later"
    broker.advance(30_001)
    with pytest.raises(ClientError, match="expired"):
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=later["ReceiptHandle"])
    (later,) = receive(sqs, queue)
    delete(sqs, queue, [later])


@pytest.mark.row("S2")
def test_no_answer_names_a_partition(sqs: Any) -> None:
    attributes = {"FifoQueue": "true", "FifoThroughputLimit": "perMessageGroupId", "DeduplicationScope": "messageGroup"}
    queue = sqs.create_queue(QueueName="fast.fifo", Attributes=attributes)["QueueUrl"]
    shown = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    assert not [name for name in shown if "artition" in name]
    sqs.send_message(QueueUrl=queue, MessageBody="x", MessageGroupId="g", MessageDeduplicationId="1")
    (message,) = receive(sqs, queue)
    assert not [name for name in (*message, *message["Attributes"]) if "artition" in name]
    delete(sqs, queue, [message])


def test_a_fifo_queue_is_a_session_queue_over_amqp(sqs: Any, broker: BrokerProcess) -> None:
    queue = sqs.create_queue(QueueName="both.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    sqs.send_message(QueueUrl=queue, MessageBody="from sqs", MessageGroupId="g", MessageDeduplicationId="1")
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        with client.get_queue_receiver("both.fifo", session_id=NEXT_AVAILABLE_SESSION) as receiver:
            (message,) = receive_exactly(receiver, 1)
            assert (str(message), message.session_id) == ("from sqs", "g")
            assert receive(sqs, queue, 0) == []
            receiver.complete_message(message)
        with client.get_queue_sender("both.fifo") as sender:
            sender.send_messages(ServiceBusMessage("from amqp", session_id="g", message_id="2"))
    (message,) = receive(sqs, queue)
    assert (message["Body"], message["Attributes"]["MessageGroupId"]) == ("from amqp", "g")
    delete(sqs, queue, [message])


def test_errors_have_the_codes_that_clients_compare(sqs: Any) -> None:
    with pytest.raises(ClientError) as missing:
        sqs.get_queue_url(QueueName="missing")
    assert missing.value.response["Error"]["Code"] == "AWS.SimpleQueueService.NonExistentQueue"
    queue = sqs.create_queue(QueueName="strict")["QueueUrl"]
    with pytest.raises(ClientError) as wrong:
        sqs.delete_message(QueueUrl=queue, ReceiptHandle="not one of ours")
    assert wrong.value.response["Error"]["Code"] == "ReceiptHandleIsInvalid"
    with pytest.raises(ClientError) as unordered:
        sqs.send_message(QueueUrl=queue, MessageBody="x", MessageDeduplicationId="1")
    assert unordered.value.response["Error"]["Code"] == "InvalidParameterValue"


def test_a_receive_can_be_repeated_after_a_kill(tmp_path: Path) -> None:
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    with BrokerProcess(tmp_path, arguments=("--clock", "manual")) as broker:
        sqs = client_of(broker)
        queue = sqs.create_queue(QueueName="again.fifo", Attributes=attributes)["QueueUrl"]
        for number in range(3):
            sqs.send_message(QueueUrl=queue, MessageBody=f"m{number}", MessageGroupId=f"g{number % 2}")
        first = receive(sqs, queue, ReceiveRequestAttemptId="once")
        # The locks of a grant are durable with the next commit.
        sqs.send_message(QueueUrl=queue, MessageBody="next", MessageGroupId="g0")
        broker.kill()
        broker.start()
        sqs = client_of(broker)
        queue = sqs.get_queue_url(QueueName="again.fifo")["QueueUrl"]
        again = receive(sqs, queue, ReceiveRequestAttemptId="once")
        assert [one["ReceiptHandle"] for one in again] == [one["ReceiptHandle"] for one in first]
        assert [one["Body"] for one in again] == [one["Body"] for one in first]
        assert len(delete(sqs, queue, again)["Successful"]) == 3
        assert [one["Body"] for one in receive(sqs, queue, ReceiveRequestAttemptId="once")] == ["next"]


def test_messages_outlive_a_kill(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        queue = client_of(broker).create_queue(QueueName="kept.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
        name = queue.rsplit("/", 1)[1]
        sent = client_of(broker).send_message(
            QueueUrl=queue, MessageBody="kept", MessageGroupId="g", MessageDeduplicationId="1"
        )
        broker.kill()
        broker.start()
        sqs = client_of(broker)
        queue = sqs.get_queue_url(QueueName=name)["QueueUrl"]
        again = sqs.send_message(QueueUrl=queue, MessageBody="x", MessageGroupId="g", MessageDeduplicationId="1")
        assert (again["MessageId"], again["SequenceNumber"]) == (sent["MessageId"], sent["SequenceNumber"])
        (message,) = receive(sqs, queue)
        assert (message["Body"], message["MessageId"]) == ("kept", sent["MessageId"])
