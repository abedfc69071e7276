"""Streams from a real broker: what reaches the sink, what becomes of the queue, and what a restart goes on from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from partibus.client.extensions.ranges import CursorSummary, open_ranges
from partibus.client.messages import OutgoingMessage
from partibus.spark.listener import CommitListener
from partibus.spark.tail import complete_tail
from partibus.testing.broker_process import BrokerProcess
from tests.kit.azure_receiving import receive_exactly
from tests.kit.plain_client import connect


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


class Pipeline:
    """A queue, a stream from it into Parquet files, and what both hold."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, folder: Path, queue: str, **options: str) -> None:
        self.spark = spark
        self.broker = broker
        self.checkpoint = folder / "checkpoint"
        self.out = folder / "out"
        self.queue = broker.create_queue(queue, EnablePartitioning=True, LockDuration="PT1M")
        self.sent = 0
        self.options = {"connection": broker.connection_string, "entity": queue, "cursor": "capture", **options}

    def send(self, count: int) -> list[str]:
        """Messages with ids from where the last ones ended."""
        numbers = range(self.sent, self.sent + count)
        self.sent += count
        # Few partitions have messages, so that micro-batches have few tasks.
        keys = {f"id-{number}": f"key-{number % 4}" for number in numbers}
        with self._client() as client, client.get_queue_sender(self.queue) as sender:
            sender.send_messages(
                [ServiceBusMessage(b"body", message_id=id_, partition_key=key) for id_, key in keys.items()]
            )
        return list(keys)

    def start(self, *, available_now: bool, **options: str) -> StreamingQuery:
        reader = self.spark.readStream.format("partibus").options(pollTimeoutMs="0", **self.options | options)
        rows = reader.load().select("message_id", "partition_id", "position", "state")
        writer = rows.writeStream.format("parquet").option("path", str(self.out))
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(availableNow=True).start() if available_now else writer.start()

    def run(self, **options: str) -> list[int]:
        """Run to the end of what is there; return the rows of each micro-batch."""
        query = self.start(available_now=True, **options)
        query.awaitTermination()
        return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]

    def read(self) -> list[str]:
        """The ids in the sink."""
        return [row.message_id for row in self.spark.read.parquet(str(self.out)).select("message_id").collect()]

    def receive(self, count: int) -> list[str]:
        """Receive as a consumer that completes."""
        with self._client() as client, client.get_queue_receiver(self.queue) as receiver:
            found = receive_exactly(receiver, count)
            for message in found:
                receiver.complete_message(message)
        return [str(message.message_id) for message in found]

    def left(self) -> int:
        return self.broker.describe(self.queue).messages

    def cursor(self) -> CursorSummary:
        client = open_ranges(self.broker.connection_string, self.queue)
        try:
            (found,) = client.cursors()
        finally:
            client.close()
        return found

    def _client(self) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(self.broker.connection_string, retry_total=0)


@pytest.mark.row("D2", "D4")
def test_restart_from_a_checkpoint_goes_on_where_it_was_beside_consumers(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    flow = Pipeline(spark, broker, tmp_path, "beside", maxMessagesPerTrigger="40")
    first = flow.send(100)
    batches = flow.run()
    # A position of each partition is no message's: the first micro-batch has fewer rows than it may.
    assert (sum(batches), max(batches), len(batches)) == (100, 40, 3)
    assert Counter(flow.read()) == Counter(first)
    assert flow.cursor().lag == batches[-1]
    second = flow.send(50)
    finished = flow.receive(60)
    assert len(set(finished) & set(first)) > 0
    assert sum(flow.run()) == 50
    assert Counter(flow.read()) == Counter(first + second)
    complete_tail(flow.checkpoint, flow.options)
    assert flow.cursor().lag == 0
    assert flow.left() == 90


@pytest.mark.row("D2")
def test_what_arrives_while_the_query_reads_is_read_once(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    """An end that is told before its messages can be read would leave them out for ever."""
    flow = Pipeline(spark, broker, tmp_path, "meanwhile", failOnDataLoss="false")
    query = flow.start(available_now=False)
    try:
        sent: list[str] = []
        with connect(broker.connection_string) as client:
            sender = client.sender(flow.queue)
            while sum(progress.numInputRows > 0 for progress in query.recentProgress) < 3:
                ids = [f"id-{len(sent) + place}" for place in range(50)]
                sender.send([OutgoingMessage(message_id=id_, partition_key=id_) for id_ in ids])
                sent += ids
        query.processAllAvailable()
    finally:
        query.stop()
    assert Counter(flow.read()) == Counter(sent)


@pytest.mark.row("D3")
def test_consumed_queue_is_empty_when_the_tail_is_completed(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    flow = Pipeline(spark, broker, tmp_path, "consumed", mode="consume", maxMessagesPerTrigger="30")
    first = flow.send(70)
    batches = flow.run()
    assert (sum(batches), max(batches), len(batches)) == (70, 30, 3)
    assert flow.left() == batches[-1]
    with pytest.raises(ServiceBusError, match="capture"):
        flow.receive(1)
    assert sum(complete_tail(flow.checkpoint, flow.options).values()) > 0
    assert complete_tail(flow.checkpoint, flow.options) != {}
    assert flow.left() == 0
    second = flow.send(20)
    assert flow.run() == [20]
    complete_tail(flow.checkpoint, flow.options, spark=spark)
    assert Counter(flow.read()) == Counter(first + second)
    third = flow.send(5)
    assert sorted(flow.receive(5)) == sorted(third)


@pytest.mark.row("D2", "D3")
def test_query_survives_a_killed_broker_and_its_listener_completes_the_last_batch(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    flow = Pipeline(spark, broker, tmp_path, "killed", mode="consume")
    listener = CommitListener(flow.options)
    spark.streams.addListener(listener)
    query = flow.start(available_now=False)
    try:
        sent = flow.send(40)
        query.processAllAvailable()
        broker.kill()
        broker.start()
        sent += flow.send(40)
        query.processAllAvailable()
        assert Counter(flow.read()) == Counter(sent)
        for _ in range(30):
            if flow.left() == 0:
                break
            query.awaitTermination(1)
        assert flow.left() == 0
        assert query.isActive
    finally:
        query.stop()
        spark.streams.removeListener(listener)
        listener.close()
