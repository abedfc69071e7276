"""Redrive: the chosen dead letters go back, each once, also when the job is killed; the others stay."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
from pyspark.sql import SparkSession

from partibus.pipeline.job import Job, JobError, JobOptions
from partibus.pipeline.redrive import Change, Want, run
from partibus.testing.broker_process import BrokerProcess
from tests.kit.azure_receiving import receive_exactly
from tests.kit.spark_cluster import children_of
from tests.spark.conftest import CONFIG

PIPELINE = (sys.executable, "-c", "from partibus.cli.main import main; main()", "pipeline", "redrive")
FAST = tuple(word for name, value in CONFIG.items() for word in ("--conf", f"{name}={value}"))
LOOK_S = 0.2
EVEN = "cast(application_properties['number'] as int) % 2 = 0 and text like 'body%'"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


class Bench:
    """A session, a broker and a directory."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, folder: Path) -> None:
        self.spark = spark
        self.broker = broker
        self.out = str(folder / "redriven")
        self.folder = folder

    def fill(self, entity: str, count: int, *, subscriptions: tuple[str, ...] = ()) -> None:
        """Messages that are all dead letters in the end; every third has another reason."""
        with self._client() as client:
            sender = client.get_topic_sender(entity) if subscriptions else client.get_queue_sender(entity)
            with sender:
                sender.send_messages(
                    [
                        ServiceBusMessage(
                            f"body {number}", message_id=f"id-{number:03}", application_properties={"number": number}
                        )
                        for number in range(count)
                    ]
                )
            for subscription in subscriptions or ("",):
                receiver = (
                    client.get_subscription_receiver(entity, subscription)
                    if subscription
                    else client.get_queue_receiver(entity)
                )
                with receiver:
                    for message in receive_exactly(receiver, count):
                        reason = "late" if int(str(message.message_id)[3:]) % 3 else "broken"
                        receiver.dead_letter_message(message, reason=reason, error_description="for a test")

    def redrive(self, entity: str, *, dry_run: bool = False, **more: Any) -> dict[str, Any]:
        options = JobOptions(spark=self.spark, json=self.folder / "result.json", report=self.folder / "page.html",
                             dry_run=dry_run)  # fmt: skip
        with Job("redrive", options, {}) as job:
            return run(job, Want(self.broker.connection_string, entity, None if dry_run else self.out, **more))

    def ids(self, entity: str) -> list[str]:
        """Return the messages that can be received there."""
        return sorted(str(row.message_id) for row in self.rows(entity))

    def rows(self, entity: str) -> list[Any]:
        reader = self.spark.read.format("partibus").options(connection=self.broker.connection_string, entity=entity)
        return reader.load().where("state = 'active'").collect()

    def _client(self) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(self.broker.connection_string, retry_total=0)


def named(numbers: range) -> list[str]:
    return [f"id-{number:03}" for number in numbers]


@pytest.mark.usefixtures("several_partitions")
@pytest.mark.row("D10")
def test_chosen_dead_letters_go_back_once_and_the_others_stay(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    bench = Bench(spark, broker, tmp_path)
    queue = broker.create_queue("letters")
    dead = f"{queue}/$DeadLetterQueue"
    began = math.floor(time.time())
    bench.fill(queue, 20)
    looked = bench.redrive(queue, dry_run=True, where=EVEN, samples_max=2)
    assert (looked["dead_letters"], looked["matched"], looked["sent"]) == (20, 10, 0)
    (source,) = looked["sources"]
    assert [(one["reason"], one["messages"]) for one in source["reasons"]] == [("late", 6), ("broken", 4)]
    assert all(began <= one["oldest"] <= one["newest"] <= time.time() for one in source["reasons"])
    assert {sample["properties"]["number"] for sample in source["samples"]} <= {str(n) for n in range(0, 20, 2)}
    assert bench.ids(dead) == named(range(20))

    changes = [Change.parse("property.again=concat('from ', dead_letter_reason)"), Change.parse("body=upper(text)")]
    found = bench.redrive(queue, where=EVEN, changes=changes)
    assert (found["dead_letters"], found["matched"], found["sent"]) == (20, 10, 10)
    rows = bench.rows(queue)
    assert sorted(row.message_id for row in rows) == named(range(0, 20, 2))
    for row in rows:
        number = int(row.message_id[3:])
        again = "from late" if number % 3 else "from broken"
        assert row.application_properties == {"number": str(number), "again": again}
        assert bytes(row.body).decode() == f"BODY {number}"
        assert row.dead_letter_reason is None
    assert bench.ids(dead) == named(range(1, 20, 2))

    # The trail has each of them; and whoever comes now receives the others.
    (source,) = found["sources"]
    trail = spark.read.parquet(source["audit"]).collect()
    assert sorted(row.original_message_id for row in trail) == named(range(0, 20, 2))
    assert {(row.sent_from, row.sent_to, row.repeated) for row in trail} == {(dead, queue, False)}
    with (
        ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client,
        client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver,
    ):
        assert len(receive_exactly(receiver, 1)) == 1


def kill_tasks(bench: Bench, queue: str, target: str) -> None:
    """Kill the job's tasks after the first message."""
    context = bench.spark.sparkContext

    def redrive() -> None:
        context.setInterruptOnCancel(True)
        bench.redrive(queue, to=target, where=EVEN, rate=1)

    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(redrive)
        while not bench.broker.describe(target).messages:
            with suppress(TimeoutError):
                pytest.fail(f"it ended with {job.exception(LOOK_S)} before it has sent anything")
        context.cancelAllJobs()
        assert job.exception() is not None
    # Spark lets a worker of a task that was killed go on for seconds. The next redrive might be over by then and have
    # forgotten its ids, and the worker's next message would be there twice.
    java: Any = context._jvm
    for daemon in children_of(java.java.lang.ProcessHandle.current().pid()):
        for worker in children_of(daemon):
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)


def kill_process(bench: Bench, queue: str, target: str) -> None:
    """Kill a process of the job's own, with its Spark, after the first message."""
    child = subprocess.Popen(
        [*PIPELINE, "--entity", queue, "--to", target, "--where", EVEN, "--out", bench.out, "--rate", "1", *FAST],
        env={**os.environ, "PARTIBUS_CONNECTION": bench.broker.connection_string},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not bench.broker.describe(target).messages:
            with suppress(subprocess.TimeoutExpired):
                pytest.fail(f"it ended with {child.wait(LOOK_S)} before it has sent anything")
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kill", [kill_tasks, pytest.param(kill_process, marks=pytest.mark.soak)])
@pytest.mark.row("D10")
def test_job_that_is_killed_goes_on_and_sends_nothing_twice(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, kill: Callable[[Bench, str, str], None]
) -> None:
    bench = Bench(spark, broker, tmp_path)
    queue = broker.create_queue(f"{kill.__name__}-from")
    target = broker.create_queue(f"{kill.__name__}-to")
    bench.fill(queue, 120)  # a message is sent each second: a late kill, too, is in the middle
    kill(bench, queue, target)
    assert 0 < broker.describe(target).messages < 60
    with pytest.raises(JobError, match="was interrupted: ask for it again as it was"):
        bench.redrive(queue, to=target)
    found = bench.redrive(queue, to=target, where=EVEN)
    assert found["sources"][0]["resumed"]
    assert found["sent"] == 60
    assert bench.ids(target) == named(range(0, 120, 2))
    assert bench.ids(f"{queue}/$DeadLetterQueue") == named(range(1, 120, 2))


@pytest.mark.row("D10")
def test_dead_letters_of_all_subscriptions_go_to_where_they_are_asked_to(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    bench = Bench(spark, broker, tmp_path)
    topic = broker.create_topic("topic")
    for name in ("one", "two"):
        broker.create_subscription(topic, name)
    target = broker.create_queue("collected")
    bench.fill(topic, 3, subscriptions=("one", "two"))
    found = bench.redrive(topic, to=target, where=EVEN)
    assert [one["sent"] for one in found["sources"]] == [2, 2]
    assert bench.ids(target) == sorted(2 * named(range(0, 3, 2)))


@pytest.mark.row("D10")
def test_what_cannot_be_done_is_said_before_anything_is(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    bench = Bench(spark, broker, tmp_path)
    queue = broker.create_queue("wrong")
    strict = broker.create_queue("strict", RequiresDuplicateDetection=True)
    for more, words in (
        ({"where": "reason = 'late'"}, "--where \"reason = 'late'\" is no expression"),
        ({"where": "state ="}, "--where 'state =' is no expression"),
        ({"changes": [Change("session_id", "nobody")]}, "--set session_id 'nobody' is no expression"),
        ({"changes": [Change("time_to_live_ms", "'long'")]}, "is string; it must be bigint"),
        ({"to": strict}, "give new ones with --new-ids"),
        ({"to": "nowhere"}, "there is no entity 'nowhere'"),
    ):
        with pytest.raises(JobError) as refused:
            bench.redrive(queue, dry_run=True, **more)
        assert words in str(refused.value)
    with pytest.raises(JobError, match=r"it may be property\.NAME or body"):
        Change.parse("sequence_number=1")
    with pytest.raises(JobError, match="not of the form"):
        Change.parse("body")
