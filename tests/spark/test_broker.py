"""The data source on a real broker, filled by the service's own client."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from partibus.routing.slots import partition_for_key
from partibus.testing.broker_process import BrokerProcess
from tests.kit.azure_receiving import receive_exactly

PARTITIONED, PLAIN, DEAD, TOPIC = "partitioned", "plain", "dead", "topic"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        broker.create_queue(PARTITIONED, EnablePartitioning=True)
        broker.create_queue(PLAIN)
        broker.create_queue(DEAD, EnablePartitioning=True)
        broker.create_topic(TOPIC, EnablePartitioning=True)
        yield broker


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        yield client


def load(spark: SparkSession, broker: BrokerProcess, entity: str, **options: str) -> DataFrame:
    return spark.read.format("partibus").options(connection=broker.connection_string, entity=entity, **options).load()


@pytest.mark.row("D1")
def test_partitioned_queue_is_read_as_the_client_peeks_it(
    spark: SparkSession, broker: BrokerProcess, client: ServiceBusClient
) -> None:
    keys = [f"key-{number % 40}" for number in range(200)]
    with client.get_queue_sender(PARTITIONED) as sender:
        sender.send_messages(
            [
                ServiceBusMessage(f"body {number}".encode(), message_id=f"id-{number}", partition_key=key)
                for number, key in enumerate(keys)
            ]
        )
    frame = load(spark, broker, PARTITIONED)
    assert frame.rdd.getNumPartitions() == 16
    read = {row.message_id: row for row in frame.collect()}
    assert len(read) == len(keys)
    for number, key in enumerate(keys):
        row = read[f"id-{number}"]
        assert (row.body, row.body_type) == (f"body {number}".encode(), "data")
        assert (row.partition_key, row.partition_id) == (key, partition_for_key(key, 16))
        assert row.sequence_number >> 48 == row.partition_id
        assert (row.state, row.delivery_count) == ("active", 0)
    with client.get_queue_receiver(PARTITIONED) as receiver:
        for peeked in receiver.peek_messages(20):
            row = read[str(peeked.message_id)]
            assert row.sequence_number == peeked.sequence_number
            assert peeked.enqueued_time_utc is not None
            assert row.enqueued_time == peeked.enqueued_time_utc.astimezone(UTC).replace(tzinfo=None)


@pytest.mark.row("D1")
def test_subscription_is_read_like_a_queue_and_is_its_own(
    spark: SparkSession, broker: BrokerProcess, client: ServiceBusClient
) -> None:
    one, other = (broker.create_subscription(TOPIC, name) for name in ("one", "other"))
    keys = {f"id-{number}": f"key-{number % 20}" for number in range(60)}
    with client.get_topic_sender(TOPIC) as sender:
        sender.send_messages([ServiceBusMessage(b"x", message_id=id_, partition_key=key) for id_, key in keys.items()])
    with client.get_subscription_receiver(TOPIC, "one") as receiver:
        (message,) = receive_exactly(receiver, 1)
        receiver.dead_letter_message(message, reason="why")
    frames = [load(spark, broker, path) for path in (one, one + "/$DeadLetterQueue", other)]
    assert [frame.rdd.getNumPartitions() for frame in frames] == [16, 16, 16]
    left, dead, all_ = ({row.message_id: row for row in frame.collect()} for frame in frames)
    assert set(all_) == set(keys)
    assert (set(left), set(dead)) == (set(keys) - {message.message_id}, {message.message_id})
    assert {id_: (row.partition_key, row.partition_id) for id_, row in all_.items()} == {
        id_: (key, partition_for_key(key, 16)) for id_, key in keys.items()
    }
    assert [row.dead_letter_reason for row in dead.values()] == ["why"]


def test_properties_come_as_the_client_sent_them(
    spark: SparkSession, broker: BrokerProcess, client: ServiceBusClient
) -> None:
    identity = UUID("12345678-1234-5678-1234-567812345678")
    message = ServiceBusMessage(
        b"",
        content_type="text/plain",
        correlation_id="correlation",
        subject="label",
        to="to",
        reply_to="reply",
        reply_to_session_id="reply session",
        application_properties={
            "text": "é",
            "n": 7,
            "big": 2**30,
            "f": 0.5,
            "yes": True,
            "id": identity,
        },
    )
    with client.get_queue_sender(PLAIN) as sender:
        sender.send_messages(message)
    (row,) = load(spark, broker, PLAIN).where("subject = 'label'").collect()
    assert (row.content_type, row.correlation_id, row.to, row.reply_to, row.reply_to_session_id) == (
        "text/plain", "correlation", "to", "reply", "reply session",
    )  # fmt: skip
    assert row.application_properties == {
        "text": "é", "n": "7", "big": str(2**30), "f": "0.5", "yes": "true", "id": str(identity),
    }  # fmt: skip
    assert row.application_property_types["id"] == "uuid"
    assert (row.partition_id, row.partition_key) == (0, None)


def test_dead_lettered_messages_are_read_from_their_sub_queue_alone(
    spark: SparkSession, broker: BrokerProcess, client: ServiceBusClient
) -> None:
    with client.get_queue_sender(DEAD) as sender:
        sender.send_messages([ServiceBusMessage(b"x", message_id=f"id-{number}") for number in range(6)])
    with client.get_queue_receiver(DEAD) as receiver:
        for message in receive_exactly(receiver, 4):
            receiver.dead_letter_message(message, reason="why", error_description="words")
    dead = load(spark, broker, f"{DEAD}/$DeadLetterQueue")
    assert dead.rdd.getNumPartitions() == 16
    rows = dead.select("dead_letter_reason", "dead_letter_error_description").collect()
    assert rows == [Row(dead_letter_reason="why", dead_letter_error_description="words")] * 4
    assert load(spark, broker, DEAD).count() == 2


def test_reading_changes_nothing_for_consumers(
    spark: SparkSession, broker: BrokerProcess, client: ServiceBusClient
) -> None:
    with client.get_queue_sender(PLAIN) as sender:
        sender.send_messages(ServiceBusMessage(b"x", message_id="untouched"))
    for _ in range(2):
        assert load(spark, broker, PLAIN).where("message_id = 'untouched'").count() == 1
    with client.get_queue_receiver(PLAIN) as receiver:
        counts = {
            m.message_id: m.delivery_count for m in receiver.receive_messages(max_message_count=10, max_wait_time=5)
        }
    assert counts["untouched"] == 0


def test_positions_split_a_long_partition(spark: SparkSession, broker: BrokerProcess, client: ServiceBusClient) -> None:
    with client.get_queue_sender(PARTITIONED) as sender:
        sender.send_messages([ServiceBusMessage(b"x", partition_key="split", subject="split") for _ in range(50)])
    frame = load(spark, broker, PARTITIONED, positionsPerTask="10", rowsPerBatch="3", bytesPerFetch="65536")
    assert frame.rdd.getNumPartitions() > 16 + 3
    assert frame.where("subject = 'split'").count() == 50


@pytest.mark.parametrize(
    ("change", "entity", "words"),
    [
        (("SAS_KEY_VALUE", "bm90IHRoZSBrZXk="), PLAIN, "the key in option 'connection' must be right"),
        (("Endpoint=sb://localhost:", "Endpoint=sb://localhost:1"), PLAIN, "option 'connection' must name a broker"),
        (("", ""), "nothing-here", "option 'entity' must name what exists"),
        (("", ""), TOPIC, "cannot read 'topic' at sb://"),
    ],
)
def test_what_the_broker_refuses_names_the_option_and_hides_the_key(
    spark: SparkSession, broker: BrokerProcess, change: tuple[str, str], entity: str, words: str
) -> None:
    connection = broker.connection_string.replace(*change)
    if change[0].startswith("Endpoint"):
        connection = "Endpoint=sb://127.0.0.1:1;" + broker.connection_string.partition(";")[2]
    frame = spark.read.format("partibus").options(connection=connection, entity=entity).load()
    with pytest.raises(PySparkException) as caught:
        frame.collect()
    assert words in str(caught.value)
    assert "bm90IHRoZSBrZXk=" not in str(caught.value)
    assert "SAS_KEY_VALUE" not in str(caught.value)
