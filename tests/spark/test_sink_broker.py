"""Writing to a real broker: what arrives, and that each row is there once whatever fails."""

from __future__ import annotations

import os
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyspark.sql.functions as F  # noqa: N812 (as everybody calls it)
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusReceiveMode
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from partibus.client.extensions.ranges import open_ranges
from partibus.routing.slots import partition_for_key
from partibus.testing.broker_process import BrokerProcess
from tests.kit.azure_receiving import receive_exactly
from tests.kit.eventually import EVENTUALLY_S, eventually
from tests.spark.failing_sink import FailingSource, KilledSource

BATCHES = "spark.sql.execution.arrow.maxRecordsPerBatch"
WAITING = 30
"""Batches of 50 rows that a task has which waits in the middle: more than what Spark holds on the way."""
MIDDLE_S = 2 * EVENTUALLY_S
"""How long that task waits at most for who waits for its first rows, and then kills and starts the broker."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture(scope="module", autouse=True)
def _sources(spark: SparkSession) -> None:
    spark.dataSource.register(FailingSource)
    spark.dataSource.register(KilledSource)


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Several requests for each task."""
    before = spark.conf.get(BATCHES)
    spark.conf.set(BATCHES, "50")
    yield
    assert before is not None
    spark.conf.set(BATCHES, before)


def numbers(spark: SparkSession, count: int, tasks: int = 2) -> DataFrame:
    """Rows with a body and a key."""
    row = F.col("id").cast("string")
    return spark.range(0, count, numPartitions=tasks).select(
        "id", row.alias("body"), F.concat(F.lit("key-"), F.col("id") % 20).alias("partition_key")
    )


def write(frame: DataFrame, broker: BrokerProcess, entity: str, source: str = "partibus", **options: str) -> None:
    given = {"connection": broker.connection_string, "entity": entity, "keyOrder": "ignore"}
    frame.write.format(source).options(**given | options).mode("append").save()


def read(spark: SparkSession, broker: BrokerProcess, entity: str, **options: str) -> DataFrame:
    given = {"connection": broker.connection_string, "entity": entity}
    return spark.read.format("partibus").options(**given | options).load()


def bodies(spark: SparkSession, broker: BrokerProcess, entity: str) -> Counter[str]:
    return Counter(row.body.decode() for row in read(spark, broker, entity).select("body").collect())


def once(count: int) -> Counter[str]:
    return Counter(map(str, range(count)))


# What arrives -------------------------------------------------------------------------------------------------------


@pytest.mark.row("D5")
def test_service_client_receives_what_columns_said(spark: SparkSession, broker: BrokerProcess) -> None:
    queue = broker.create_queue("columns", EnablePartitioning=True)
    frame = numbers(spark, 40).select(
        "*",
        F.lit("text/plain").alias("content_type"),
        F.lit("label").alias("subject"),
        F.lit("answer").alias("reply_to"),
        F.concat(F.lit("c-"), "id").alias("correlation_id"),
        F.lit(60_000).alias("time_to_live_ms"),
        F.create_map(F.lit("a"), F.lit("1")).alias("application_properties"),
        (F.col("id") * 2).cast("int").alias("double"),
    )
    write(frame, broker, queue, idColumn="id", propertyColumns="double")
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver,
    ):
        found = {int(str(message)): message for message in receive_exactly(receiver, 40)}
    assert sorted(found) == list(range(40))
    for number, message in found.items():
        key = f"key-{number % 20}"
        assert (message.message_id, message.partition_key) == (str(number), key)
        assert (message.content_type, message.subject, message.reply_to) == ("text/plain", "label", "answer")
        assert message.correlation_id == f"c-{number}"
        assert message.time_to_live == timedelta(minutes=1)
        assert message.application_properties == {b"a": b"1", b"double": 2 * number}
        assert message.sequence_number is not None
        assert message.sequence_number >> 48 == partition_for_key(key, 16)


@pytest.mark.row("D5")
def test_sessions_topics_schedules_and_duplicate_detection(spark: SparkSession, broker: BrokerProcess) -> None:
    sessions = broker.create_queue("sessions", EnablePartitioning=True, RequiresSession=True)
    rows = numbers(spark, 30).withColumnRenamed("partition_key", "session_id")
    write(rows, broker, sessions, idColumn="id")
    assert {row.session_id for row in read(spark, broker, sessions).collect()} == {f"key-{n}" for n in range(20)}

    topic = broker.create_topic("topic", EnablePartitioning=True)
    one, other = (broker.create_subscription(topic, name) for name in ("one", "other"))
    for _ in range(2):
        write(numbers(spark, 30), broker, topic, idColumn="id", sink="job")
    assert bodies(spark, broker, one) == bodies(spark, broker, other) == once(30)

    detecting = broker.create_queue("detecting", EnablePartitioning=True, RequiresDuplicateDetection=True)
    for _ in range(2):
        write(numbers(spark, 30), broker, detecting, idColumn="id")
    assert bodies(spark, broker, detecting) == once(30)

    later = broker.create_queue("later")
    at = F.lit(datetime.now(UTC) + timedelta(hours=1))
    write(numbers(spark, 5).withColumn("scheduled_enqueue_time", at), broker, later, idColumn="id")
    assert bodies(spark, broker, later) == Counter()
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver(later) as receiver,
    ):
        assert len(receiver.peek_messages(10)) == 5


@pytest.mark.row("D5")
def test_keys_keep_their_order(spark: SparkSession, broker: BrokerProcess) -> None:
    queue = broker.create_queue("ordered", EnablePartitioning=True)
    write(numbers(spark, 2_000, tasks=1), broker, queue, idColumn="id")
    by_key: dict[str, list[int]] = {}
    for row in read(spark, broker, queue).orderBy("partition_id", "position").collect():
        by_key.setdefault(row.partition_key, []).append(int(row.body))
    assert sum(map(len, by_key.values())) == 2_000
    assert all(found == sorted(found) for found in by_key.values())


# Once ---------------------------------------------------------------------------------------------------------------


@pytest.mark.row("D5")
@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("source", ["failing", "killed"])
def test_row_of_a_task_that_is_tried_again_is_there_once(
    spark: SparkSession, broker: BrokerProcess, source: str
) -> None:
    """Name rows with a key, and without."""
    queue = broker.create_queue(f"again-{source}", EnablePartitioning=True)
    key = F.when(F.col("id") % 2 == 0, F.col("partition_key"))
    write(numbers(spark, 600).withColumn("partition_key", key), broker, queue, source, idColumn="id")
    assert bodies(spark, broker, queue) == once(600)


@pytest.mark.usefixtures("small_batches")
def test_row_without_a_name_is_there_once_at_least(spark: SparkSession, broker: BrokerProcess) -> None:
    """Show that the attempts above do store rows twice without the check."""
    queue = broker.create_queue("unnamed", EnablePartitioning=True)
    write(numbers(spark, 600).drop("id"), broker, queue, "failing")
    found = bodies(spark, broker, queue)
    assert found.keys() == once(600).keys()
    assert Counter(found.values()) == {1: 400, 2: 200}


@pytest.mark.row("D5")
def test_job_with_a_name_can_be_run_again(spark: SparkSession, broker: BrokerProcess) -> None:
    queue = broker.create_queue("job", EnablePartitioning=True)
    for count in (100, 300, 300):
        write(numbers(spark, count), broker, queue, idColumn="id", sink="job")
    assert bodies(spark, broker, queue) == once(300)
    write(numbers(spark, 10), broker, queue, idColumn="id")
    assert bodies(spark, broker, queue) == once(300) + once(10)


@pytest.mark.row("D5")
def test_queue_is_copied_once_however_often(spark: SparkSession, broker: BrokerProcess) -> None:
    first, second = (broker.create_queue(name, EnablePartitioning=True) for name in ("original", "copy"))
    write(numbers(spark, 300).drop("partition_key"), broker, first, idColumn="id")
    for tasks in (1, 5):
        write(read(spark, broker, first).repartition(tasks), broker, second, sink="copy", keyOrder="warn")
    assert bodies(spark, broker, second) == once(300)


class Stream:
    """A stream from one queue to another."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, folder: Path, name: str, **options: str) -> None:
        self.spark, self.broker, self.options = spark, broker, options
        self.checkpoint = folder / "checkpoint"
        self.source = broker.create_queue(f"{name}-from", EnablePartitioning=True)
        self.target = broker.create_queue(f"{name}-to", EnablePartitioning=True)

    def send(self, start: int, end: int) -> None:
        # Few partitions have rows, so that micro-batches have few tasks.
        keys = F.concat(F.lit("key-"), F.col("id") % 3)
        frame = numbers(self.spark, end).where(F.col("id") >= start).withColumn("partition_key", keys)
        write(frame, self.broker, self.source, idColumn="id")

    def run(self, source: str = "partibus", **reading: str) -> None:
        given = {"connection": self.broker.connection_string, "failOnDataLoss": "false", "entity": self.source}
        rows = self.spark.readStream.format("partibus").options(**given | reading).load()
        writer = rows.writeStream.format(source).options(
            connection=self.broker.connection_string, entity=self.target, **self.options
        )
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()

    def forget_the_last_commit(self) -> None:
        """Forget the last commit, as when the driver is lost behind the sink's commit, and before its own."""
        commits = self.checkpoint / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)

    def arrived(self) -> Counter[str]:
        return bodies(self.spark, self.broker, self.target)


@pytest.mark.row("D5")
def test_batch_that_a_lost_driver_repeats_is_there_once_by_its_positions(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    stream = Stream(spark, broker, tmp_path, "repeat", naming="positions")
    stream.send(0, 100)
    stream.run()
    stream.forget_the_last_commit()
    stream.send(100, 200)
    stream.run()
    assert stream.arrived() == once(200)


@pytest.mark.row("D5")
def test_batch_that_a_lost_driver_repeats_is_there_once_by_its_ids_which_are_kept_for_two_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Else a stream that runs for years would fill the disk with what can't come again."""
    with BrokerProcess(tmp_path) as broker:
        stream = Stream(spark, broker, tmp_path, "kept", naming="ids")
        for start in (0, 100, 200):
            if start:
                stream.forget_the_last_commit()
            stream.send(start, start + 100)
            stream.run()
        assert stream.arrived() == once(300)
        # Spark may end with a batch that has no rows.
        eventually("ids of two batches at most are kept", lambda: 100 <= ids_in_stores(broker) <= 200)


@pytest.mark.row("D5")
@pytest.mark.usefixtures("small_batches")
def test_stream_is_there_once_whatever_its_tasks_do(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    stream = Stream(spark, broker, tmp_path, "killed")
    stream.send(0, 1_600)
    stream.run("killed", maxMessagesPerTrigger="1000")
    assert stream.arrived() == once(1_600)


def ids_in_stores(broker: BrokerProcess) -> int:
    """Return the rows of all sinks in all stores."""
    count = 0
    for path in (broker.data / "stores").glob("*.db"):
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            count += connection.execute("SELECT count(*) FROM sink_id").fetchone()[0]
    return count


def test_source_partition_in_several_tasks_fails_where_a_mark_would_drop_rows(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    stream = Stream(spark, broker, tmp_path, "split", naming="positions")
    stream.send(0, 400)
    with pytest.raises(PySparkException, match=r"source partitions fed more than one|do not ascend"):
        stream.run(messagesPerSparkPartition="10")


@pytest.mark.row("D5")
@pytest.mark.usefixtures("small_batches")
def test_broker_that_is_killed_meanwhile_has_each_row_once(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    """Hold the one task in the middle of its rows until the broker was killed and runs again."""
    queue = broker.create_queue("meanwhile", EnablePartitioning=True)
    killed = str(tmp_path / "killed")

    def wait_in_the_middle(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == 2 * WAITING // 3:
                eventually("the broker was killed", lambda: os.path.exists(killed), MIDDLE_S)
            yield batch

    frame = numbers(spark, 50 * WAITING, tasks=1).withColumn("body", F.concat("body", F.lit(" " * 1_000)))
    frame = frame.mapInArrow(wait_in_the_middle, frame.schema)

    def kill() -> int:
        """Answers how many rows were stored."""
        try:
            with closing(open_ranges(broker.connection_string, queue)) as ranges:

                def stored() -> int:
                    return sum(one.messages for one in ranges.map().partitions)

                eventually("rows are stored", lambda: stored() > 0)
                found = stored()
            broker.kill()
            broker.start()
            return found
        finally:
            Path(killed).touch()

    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill)
        write(frame, broker, queue, idColumn="id")
        assert 0 < killing.result() < 50 * WAITING
    rows = read(spark, broker, queue).select(F.trim(F.col("body").cast("string")).alias("body")).collect()
    assert Counter(row.body for row in rows) == once(50 * WAITING)


# Refusals -----------------------------------------------------------------------------------------------------------


def test_what_cannot_be_written_is_refused(spark: SparkSession, broker: BrokerProcess) -> None:
    queue = broker.create_queue("refusing", RequiresSession=True)
    frame = numbers(spark, 5).drop("partition_key")
    for options, words in (
        ({"entity": "nowhere"}, "could not be found"),
        ({"entity": queue}, "Message 0 of the request: 'refusing' requires sessions"),
        ({"entity": queue, "naming": "hope"}, "option 'naming' is 'hope'"),
    ):
        with pytest.raises(PySparkException) as refused:
            write(frame, broker, **options, idColumn="id", retryTimeoutMs="1000")
        assert words in str(refused.value)
    with pytest.raises(PySparkException, match="mode 'overwrite'"):
        frame.write.format("partibus").options(connection=broker.connection_string, entity=queue).mode(
            "overwrite"
        ).save()


# What is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entity", "connection", "words"),
    [
        ("nothing-here", ("", ""), "option 'entity' must name what exists"),
        ("wrong-key", ("SharedAccessKey=", "SharedAccessKey=bm90"), "must be right and have the Send right"),
        ("wrong-port", (r"localhost:\d+", "localhost:1"), "must name a broker that runs"),
    ],
)
def test_what_nobody_can_write_to_is_told_before_any_task(
    spark: SparkSession, broker: BrokerProcess, entity: str, connection: tuple[str, str], words: str
) -> None:
    """A table whose tasks fail: they must not be asked."""
    if entity != "nothing-here":
        broker.create_queue(entity)
    frame = numbers(spark, 2).withColumn("body", F.raise_error(F.lit("a task ran")).cast("string"))
    found = re.sub(*connection, broker.connection_string, count=1) if connection[0] else broker.connection_string
    with pytest.raises(PySparkException, match=words) as caught:
        write(frame, broker, entity, idColumn="id", connection=found, retryTimeoutMs="0")
    assert "cannot write to" in str(caught.value)
    assert "a task ran" not in str(caught.value)


@pytest.mark.row("D5")
def test_sql_inserts_rows_into_a_view(spark: SparkSession, broker: BrokerProcess) -> None:
    broker.create_queue("inserted")
    options = f"'connection' '{broker.connection_string}', 'entity' 'inserted'"
    spark.sql(f"CREATE TEMPORARY VIEW inserted USING partibus OPTIONS ({options})")
    try:
        spark.sql("INSERT INTO inserted BY NAME SELECT encode('one', 'utf-8') AS body, 'a' AS subject")
        spark.sql("INSERT INTO inserted (body, subject) VALUES (encode('two', 'utf-8'), 'b')")
        rows = spark.sql("SELECT decode(body, 'utf-8') AS text, subject FROM inserted").collect()
        assert sorted(tuple(row) for row in rows) == [("one", "a"), ("two", "b")]
    finally:
        spark.catalog.dropTempView("inserted")
