"""Moving a queue into one with other partitions: whole and in order, after interruptions too, and what is refused."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from pyspark.sql import DataFrame, SparkSession

from partibus.client.extensions.ranges import open_ranges
from partibus.client.messages import OutgoingMessage
from partibus.pipeline import repartition
from partibus.pipeline.job import Job, JobError, JobOptions
from partibus.pipeline.repartition import Proof, Want, prove
from partibus.routing.slots import partition_for_key
from partibus.testing.broker_process import BrokerProcess
from tests.kit.azure_receiving import receive_exactly
from tests.kit.plain_client import connect

pytestmark = [pytest.mark.row("D11"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


def run(spark: SparkSession, want: Want, *, dry_run: bool = False, path: Path | None = None) -> dict[str, Any]:
    with Job(
        "repartition",
        JobOptions(spark=spark, dry_run=dry_run, json=path, report=path and path.with_suffix(".html")),
        {},
    ) as job:
        return repartition.run(job, want)


def send(broker: BrokerProcess, queue: str, numbers: range, *, sessions: bool = False) -> None:
    """Few have no key, unless there are sessions."""
    messages = []
    for number in numbers:
        key = f"key-{number % 23}" if sessions or number % 46 else None
        messages.append(
            OutgoingMessage(
                body=str(number).encode(),
                message_id=None if number % 5 == 0 else f"id-{number}",
                session_id=key if sessions else None,
                partition_key=None if sessions else key,
                ttl_ms=3_600_000 if number % 11 == 0 else None,
                application_properties={"number": number, "odd": bool(number % 2)},
            )
        )
    with connect(broker.connection_string) as client:
        client.sender(queue).send(messages)


def take(broker: BrokerProcess, queue: str, count: int) -> list[tuple[str | None, int]]:
    """Key and number of messages, received and completed by the service's library."""
    found: list[tuple[str | None, int]] = []
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver(queue) as receiver,
    ):
        for message in receive_exactly(receiver, count):
            receiver.complete_message(message)
            properties = message.application_properties
            assert properties is not None
            number = int(properties[b"number"])
            assert str(message) == str(number)
            assert properties[b"odd"] is bool(number % 2)
            found.append((message.partition_key, number))
    return found


def test_interrupted_move_goes_on_beside_consumers_of_the_new_queue(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = broker.create_queue("plain", LockDuration="PT2M")
    send(broker, old, range(200))
    want = Want(broker.connection_string, old, "wide", str(tmp_path / "state"), partitions=16)

    dry = run(spark, want, dry_run=True, path=tmp_path / "dry.json")
    assert "Nothing was changed" in (tmp_path / "dry.html").read_text()
    assert (dry["before"]["active"], dry["created"], dry["proof"]) == (200, True, None)
    assert sum(one["predicted"] for one in dry["shares"]) == pytest.approx(1, abs=1e-4)

    def lost(*_: object, **__: object) -> None:
        raise ConnectionError("the driver is lost behind the sink's commit")

    with monkeypatch.context() as patched:
        patched.setattr(repartition, "complete_tail", lost)
        with pytest.raises(ConnectionError):
            run(spark, want)
    early = take(broker, "wide", 50)
    send(broker, old, range(200, 260))

    found = run(spark, want, path=tmp_path / "result.json")
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "done"
    page = (tmp_path / "result.html").read_text()
    assert "PROVED" in page
    assert page.count("<svg") == 2
    assert found["proof"] == Proof(260, 23, 0, 0, 0, 0, 0)._asdict()
    assert (found["holds"], found["moved"], found["left"]["active"]) == (True, 260, 0)
    # A message with a key is where its slot says; few have none, and go together:
    predicted, real = ([one[what] for one in found["shares"]] for what in ("predicted", "real"))
    assert predicted == pytest.approx(real, abs=0.025)
    assert max(predicted) > 0.1, "uneven, so that it is a prediction"

    received = early + take(broker, "wide", 210)
    assert sorted(number for _, number in received) == list(range(260))
    by_key: defaultdict[str | None, list[int]] = defaultdict(list)
    for key, number in received:
        by_key[key].append(number)
    del by_key[None]
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    for queue in (old, "wide"):
        assert broker.describe(queue).messages == 0
        ranges = open_ranges(broker.connection_string, queue)
        assert ranges.cursors() == [], "the proof is done: nothing is kept for it"
        ranges.close()


def test_sessions_are_moved_back_to_one_partition_and_what_can_not_be_moved_is_refused_first(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    queue = broker.create_queue("sessions", EnablePartitioning=True, RequiresSession=True, MaxDeliveryCount=7)
    topic = broker.create_topic("topic")
    plain = broker.create_queue("no-sessions")
    detecting = broker.create_queue("detecting", RequiresDuplicateDetection=True, RequiresSession=True)
    elastic = broker.create_queue("elastic", PartibusElasticPartitions=4, RequiresSession=True)
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_sender(queue) as sender,
        client.get_queue_receiver(queue, session_id="key-3") as receiver,
    ):
        sender.send_messages([ServiceBusMessage(b"twice", message_id="1", session_id="key-3") for _ in range(3)])
        (first,) = receive_exactly(receiver, 1)
        receiver.defer_message(first)
        sender.schedule_messages(
            ServiceBusMessage(b"later", session_id="key-3"), datetime.now(UTC) + timedelta(hours=1)
        )
    send(broker, queue, range(120), sessions=True)
    base = Want(broker.connection_string, queue, "narrow", str(tmp_path / "state"), partitions=1)
    for want, words in (
        (base, "1 deferred messages and 1 scheduled messages"),
        (base._replace(partitions=5), "--partitions is 5; queues of this broker have 1 partition or 16"),
        (base._replace(partitions=None), "there is no queue 'narrow'"),
        (base._replace(source=topic), "a topic, which holds no messages"),
        (base._replace(to=queue), "the source itself"),
        (base._replace(to=plain, partitions=None), "RequiresSession is"),
        (base._replace(to=elastic, partitions=None), "the partitions of 'elastic' follow its load"),
        (base._replace(to=plain, partitions=16), "has 1 partitions, not 16"),
        (base._replace(to=detecting, leave=True), "1 message ids are there more than once"),
    ):
        with pytest.raises(JobError) as refused:
            run(spark, want)
        assert words in str(refused.value)

    found = run(spark, base._replace(leave=True, close_source=True))
    assert (found["holds"], found["moved"], found["proof"]["keys"]) == (True, 122, 23)
    assert (found["left"]["deferred"], found["left"]["scheduled"], found["left"]["active"]) == (1, 1, 0)
    made = broker.describe("narrow")
    assert (made.partitions, made.messages) == (1, 122)
    assert (made.properties["RequiresSession"], made.properties["MaxDeliveryCount"]) == (True, 7)
    assert made.status == "Active"
    assert broker.describe(queue).status == "SendDisabled"
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver("narrow", session_id="key-3") as receiver,
    ):
        bodies = [str(message) for message in receive_exactly(receiver, 8)]
    assert bodies == ["twice", "twice", *(str(number) for number in range(3, 120, 23))]
    with pytest.raises(JobError, match="belongs to the move from 'sessions' to 'narrow'"):
        run(spark, base._replace(to="other", leave=True))


@pytest.mark.usefixtures("several_partitions")
def test_proof_finds_planted_faults(spark: SparkSession) -> None:
    keys = ["a", "b", "c"]
    place = {key: partition_for_key(key, 16) for key in keys}
    original = [(key, 0, 10 * turn + index, 100 * index + turn) for turn in range(4) for index, key in enumerate(keys)]
    good = [(key, place[key], position, content) for key, _, position, content in original]
    unkeyed = [(None, 0, 90 + number, number) for number in range(3)]
    without = [(None, 5 - number, 7, number) for number in range(3)]

    def table(rows: list[Any]) -> DataFrame:
        return spark.createDataFrame(rows, "key string, partition_id int, position bigint, content bigint")

    def proof(copy: list[Any], expired: list[Any]) -> Proof:
        return prove(table(original + unkeyed), table(copy), table(expired), 16)

    whole = Proof(15, 3, 0, 0, 0, 0, 0)
    later = ("a", place["a"], 999, 5)
    assert proof([*good, *without, later], [later]) == whole

    # One without a key and the last of each key are missing, the first of "a" comes last, "b" is elsewhere, and what
    # no client sent is there.
    moved = [(*good[0][:2], 999, good[0][3]), *good[1:-3]]
    elsewhere = [(key, (part + 1) % 16 if key == "b" else part, *rest) for key, part, *rest in moved]
    assert proof([*elsewhere, *without[1:], ("d", partition_for_key("d", 16), 998, 5)], [later]) == Proof(
        messages=15, keys=3, missing=4, added=1, keys_out_of_order=1, keys_unlike=3, misplaced=3
    )
    faults = ("missing", "keys_out_of_order", "keys_unlike", "misplaced")
    assert not any(whole._replace(**{name: 1}).holds for name in faults)
    assert whole.holds
