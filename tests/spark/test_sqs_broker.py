"""SQS queues are read and written as any other entity: bodies, groups, attributes, order and deduplication."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pyspark.sql.functions as F  # noqa: N812 (as everybody calls it)
import pytest
from pyspark.sql import DataFrame, SparkSession

from partibus.testing.broker_process import BrokerProcess
from tests.kit.eventually import eventually

GROUPS = [f"customer-{n}" for n in range(5)]
FIFO = {"FifoQueue": "true"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture(scope="module")
def sqs(broker: BrokerProcess) -> Any:
    return boto3.client(
        "sqs",
        endpoint_url=broker.sqs_url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )


def reading(broker: BrokerProcess, entity: str, **options: str) -> dict[str, str]:
    return {"connection": broker.connection_string, "entity": entity, **options}


def send(sqs: Any, queue: str, numbers: range) -> dict[str, list[str]]:
    """Send to the groups in turn; return the bodies by group."""
    sent: dict[str, list[str]] = {}
    for number in numbers:
        group, body = GROUPS[number % len(GROUPS)], f"order {number} Größe"
        sqs.send_message(
            QueueUrl=queue,
            MessageBody=body,
            MessageGroupId=group,
            MessageDeduplicationId=f"d-{number}",
            MessageAttributes={
                "colour": {"DataType": "String", "StringValue": "red"},
                "weight": {"DataType": "Number", "StringValue": str(number)},
            },
        )
        sent.setdefault(group, []).append(body)
    return sent


def by_group(frame: DataFrame) -> dict[str, list[str]]:
    """Return bodies by group, in the order of their sequence numbers."""
    found: dict[str, list[str]] = {}
    for row in frame.orderBy("partition_id", "position").collect():
        found.setdefault(row.session_id, []).append(bytes(row.body).decode())
    return found


def received(sqs: Any, queue: str, count: int) -> dict[str, list[tuple[str, str]]]:
    """Receive messages over SQS and delete them; return (body, deduplication id) by group, in order."""
    found: dict[str, list[tuple[str, str]]] = {}

    def has_all() -> bool:
        answer = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=1, AttributeNames=["All"])
        for message in answer.get("Messages", []):
            attributes = message["Attributes"]
            one = (message["Body"], attributes["MessageDeduplicationId"])
            found.setdefault(attributes["MessageGroupId"], []).append(one)
            sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
        return sum(map(len, found.values())) >= count

    eventually(f"{count} messages come", has_all)
    assert "Messages" not in sqs.receive_message(QueueUrl=queue)
    return found


@pytest.mark.row("D1")
def test_batch_reads_a_fifo_queue_with_groups_and_attributes(
    spark: SparkSession, broker: BrokerProcess, sqs: Any
) -> None:
    queue = sqs.create_queue(QueueName="read.fifo", Attributes=FIFO)["QueueUrl"]
    sent = send(sqs, queue, range(20))
    frame = spark.read.format("partibus").options(**reading(broker, "read.fifo")).load()
    assert by_group(frame) == sent
    first = frame.orderBy("position").first()
    assert first is not None
    assert (first.session_id, first.body_type) == (GROUPS[0], "data")
    assert dict(first.application_properties) == {"colour": "red", "weight": "0"}
    held = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=1)["Messages"]
    assert len(held) == 1
    assert by_group(frame) == sent, "a message in flight is read, too"


@pytest.mark.row("D1")
def test_batch_reads_a_standard_queue(spark: SparkSession, broker: BrokerProcess, sqs: Any) -> None:
    queue = sqs.create_queue(QueueName="standard")["QueueUrl"]
    ids = {sqs.send_message(QueueUrl=queue, MessageBody=f"ä{n}")["MessageId"]: f"ä{n}" for n in range(5)}
    frame = spark.read.format("partibus").options(**reading(broker, "standard")).load()
    assert {row.message_id: bytes(row.body).decode() for row in frame.collect()} == ids


@pytest.mark.row("D2")
def test_stream_reads_a_fifo_queue_and_goes_on(
    spark: SparkSession, broker: BrokerProcess, sqs: Any, tmp_path: Path
) -> None:
    queue = sqs.create_queue(QueueName="stream.fifo", Attributes=FIFO)["QueueUrl"]
    sent = send(sqs, queue, range(10))
    for numbers in (range(10), range(10, 25)):
        if numbers.start:
            for group, bodies in send(sqs, queue, numbers).items():
                sent[group] += bodies
        rows = spark.readStream.format("partibus").options(**reading(broker, "stream.fifo", cursor="capture"))
        columns = rows.load().select("session_id", "body", "partition_id", "position")
        writer = columns.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
        assert by_group(spark.read.parquet(str(tmp_path / "out"))) == sent
        received(sqs, queue, len(numbers))


@pytest.mark.row("D5")
def test_sink_writes_groups_in_order_and_each_row_once(spark: SparkSession, broker: BrokerProcess, sqs: Any) -> None:
    queue = sqs.create_queue(QueueName="sink.fifo", Attributes=FIFO)["QueueUrl"]
    number = F.col("id").cast("string")
    rows = spark.range(0, 50, numPartitions=1).select(
        "id",
        F.concat(F.lit("Größe "), number).alias("body"),
        F.concat(F.lit("customer-"), F.col("id") % 5).alias("session_id"),
        F.concat(F.lit("d-"), number).alias("message_id"),
    )
    for _ in range(2):
        options = reading(broker, "sink.fifo", idColumn="id", sink="job")
        rows.write.format("partibus").options(**options).mode("append").save()
    # A job without a name does not know the rows: the queue knows the ids.
    rows.write.format("partibus").options(**reading(broker, "sink.fifo", idColumn="id")).mode("append").save()
    expected = {f"customer-{group}": [(f"Größe {n}", f"d-{n}") for n in range(group, 50, 5)] for group in range(5)}
    assert received(sqs, queue, 50) == expected
    again = sqs.send_message(
        QueueUrl=queue, MessageBody="other", MessageGroupId="customer-0", MessageDeduplicationId="of-SQS"
    )
    assert again["SequenceNumber"]
    assert received(sqs, queue, 1) == {"customer-0": [("other", "of-SQS")]}
