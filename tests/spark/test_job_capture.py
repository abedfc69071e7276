"""Capture: each message once with its fate, over restarts, and sent again from there; the tests share one capture."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from pyspark.sql import SparkSession

from partibus.client.extensions.ranges import open_ranges
from partibus.pipeline import capture, plan
from partibus.pipeline.capture import Chosen, Replay, Want, captured
from partibus.pipeline.job import Job, JobError, JobOptions
from partibus.routing.slots import partition_for_key
from partibus.spark.errors import OptionError
from partibus.spark.options import Options
from partibus.testing.broker_process import BrokerProcess
from tests.kit.azure_receiving import receive_exactly
from tests.plugins import snippets


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


KEYS = list({partition_for_key(f"key-{n}", 16): f"key-{n}" for n in range(20)}.values())[:3]
"""Keys of three partitions: few have messages, so that micro-batches have few tasks."""


def key_of(id_: str) -> str:
    """Return the key of a message."""
    return KEYS[int(id_[3:]) % 3]


class Bench:
    """A session, a broker, a queue and a directory."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, folder: Path, queue: str) -> None:
        self.spark = spark
        self.broker = broker
        self.folder = folder
        self.queue = broker.create_queue(queue, EnablePartitioning=True)
        self.out = str(folder / "captured")
        self.sent = 0

    def options(self, *, dry_run: bool = False) -> JobOptions:
        return JobOptions(
            spark=self.spark, json=self.folder / "result.json", report=self.folder / "report.html", dry_run=dry_run
        )

    def send(self, count: int) -> list[str]:
        ids = [f"id-{number:03}" for number in range(self.sent, self.sent + count)]
        self.sent += count
        with self.client() as client, client.get_queue_sender(self.queue) as sender:
            sender.send_messages(
                [
                    ServiceBusMessage(
                        f"body of {id_}",
                        message_id=id_,
                        partition_key=key_of(id_),
                        application_properties={"number": int(id_[3:]), "half": 0.5},
                    )
                    for id_ in ids
                ]
            )
        return ids

    def settle(self, count: int, how: str) -> list[str]:
        with self.client() as client, client.get_queue_receiver(self.queue) as receiver:
            found = receive_exactly(receiver, count)
            for message in found:
                getattr(receiver, how)(message)
        return [str(message.message_id) for message in found]

    def client(self) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(self.broker.connection_string, retry_total=0)

    def capture(self, **more: Any) -> dict[str, Any]:
        with Job("capture", self.options(), {}) as job:
            return capture.run(job, Want(self.broker.connection_string, self.queue, self.out, **more))

    def follow(self) -> dict[str, Any]:
        """Capture all that is there, as `partibus pipeline capture --follow`."""

        def is_over() -> bool:
            for query in self.spark.streams.active:
                query.processAllAvailable()
            return True

        said: list[dict[str, Any]] = []
        with Job("capture", self.options(), {}) as job:
            want = Want(self.broker.connection_string, self.queue, self.out)
            capture.follow(job, want, 0.2, said.append, is_over)
        (found,) = said
        return found

    def replay(self, to: str, chosen: Chosen = Chosen(), *, dry_run: bool = False, **more: Any) -> dict[str, Any]:  # noqa: B008 (a value)
        with Job("capture", self.options(dry_run=dry_run), {}) as job:
            return capture.replay(job, Replay(self.broker.connection_string, self.out, to, chosen, **more))

    def rows(self) -> dict[str, Any]:
        found = captured(self.spark, self.out).collect()
        assert len(found) == len({row.message_id for row in found})
        return {row.message_id: row for row in found}

    def bodies(self, queue: str) -> list[tuple[str, str]]:
        rows = (
            self.spark.read.format("partibus")
            .options(connection=self.broker.connection_string, entity=queue)
            .load()
            .collect()
        )
        return [(row.message_id, bytes(row.body).decode()) for row in rows]


class Captured(NamedTuple):
    """The ids of what became of messages, and what two runs of the capture said."""

    bench: Bench
    early: list[str]
    """Completed before the first capture."""
    left: list[str]
    completed: list[str]
    dead: list[str]
    said: list[dict[str, Any]]


@pytest.fixture(scope="module")
def made(spark: SparkSession, broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Captured:
    bench = Bench(spark, broker, tmp_path_factory.mktemp("capture"), "captured")
    first = bench.send(45)
    early = bench.settle(5, "complete_message")
    said = [bench.capture()]
    # Between two runs: what has come and gone is there all the same.
    completed = bench.settle(16, "complete_message")
    second = bench.send(30)
    dead = bench.settle(10, "dead_letter_message")
    said.append(bench.follow())
    left = set(first + second) - {*early, *completed, *dead}
    return Captured(bench, early, sorted(left), completed, dead, said)


@pytest.mark.row("D6")
def test_each_message_is_captured_once_with_its_fate(
    spark: SparkSession, broker: BrokerProcess, made: Captured
) -> None:
    bench, tmp_path = made.bench, made.bench.folder
    before, found = made.said
    # All were captured that were there; the fates of those that left before the cursor came are not known.
    assert (before["messages"], before["new_messages"], set(before["fates"])) == (40, 40, {"here"})
    assert (found["messages"], found["new_messages"], found["new_fates"]) == (70, 30, 26)
    idle = bench.capture()
    assert (idle["messages"], idle["new_messages"], idle["new_fates"]) == (70, 0, 0)
    rows = bench.rows()
    assert rows.keys().isdisjoint(made.early)
    assert set(rows) == {*made.left, *made.completed, *made.dead}
    assert Counter(row.fate for row in rows.values()) == {"here": 44, "completed": 16, "dead_lettered": 10}
    assert {id_ for id_, row in rows.items() if row.fate == "completed"} == set(made.completed)
    assert {id_ for id_, row in rows.items() if row.fate == "dead_lettered"} == set(made.dead)
    assert all(row.dwell_ms >= 0 and row.fate_time >= row.enqueued_time for row in rows.values() if row.fate_time)
    one = rows[made.left[0]]
    assert one.application_properties == {"number": str(int(one.message_id[3:])), "half": "0.5"}
    assert bytes(one.body).decode() == f"body of {one.message_id}"

    # The broker keeps nothing.
    client = open_ranges(broker.connection_string, bench.queue)
    try:
        (cursor,) = client.cursors()
        assert (cursor.lag, cursor.retained_bytes) == (0, 0)
        for one in cursor.partitions:
            assert client.read_dispositions(one.partition_id, cursor.name, one.disposition_position) == []
    finally:
        client.close()
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["status"], result["result"]["fates"]["completed"]["messages"]) == ("done", 16)
    assert "Messages per minute" in (tmp_path / "report.html").read_text()
    assert "SharedAccessKey" not in (tmp_path / "result.json").read_text()

    # The job takes neither another reader's cursor nor another entity's capture.
    with pytest.raises(JobError, match="has a cursor"), Job("capture", JobOptions(spark=spark), {}) as job:
        capture.run(job, Want(broker.connection_string, bench.queue, str(tmp_path / "new"), cursor.name))
    with pytest.raises(JobError, match="is the capture of 'captured'"), Job("x", JobOptions(spark=spark), {}) as job:
        capture.run(job, Want(broker.connection_string, "other", bench.out))


@pytest.mark.row("D6")
def test_captured_messages_are_sent_again_once(
    broker: BrokerProcess, made: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = made.bench
    ids: dict[int, list[str]] = {}
    for id_ in made.completed:
        ids.setdefault(partition_for_key(key_of(id_), 16), []).append(id_)
    assert len(ids) > 1, "more than one key can have"
    asked = min(ids)
    expected = [(id_, f"body of {id_}") for id_ in sorted(ids[asked])]
    target = broker.create_queue("replayed")
    chosen = Chosen(fates=("completed",), partitions=(asked,))
    assert bench.replay(target, chosen, dry_run=True)["messages"] == len(expected)
    assert bench.bodies(target) == []
    # As it is behind the last message: the broker still knows what was sent.
    with monkeypatch.context() as patched:
        patched.setattr(capture, "forget", lambda _: None)
        found = bench.replay(target, chosen)
    assert (found["messages"], found["sent"], found["repeated"]) == (len(expected), len(expected), 0)
    assert not found["resumed"]
    assert sorted(bench.bodies(target)) == expected

    # A crash there leaves it "sending": nothing is doubled, and other filters are refused meanwhile.
    state = Path(bench.out, "replay.json")
    before = json.loads(state.read_text())
    assert before["status"] == "done"
    state.write_text(json.dumps(before | {"status": "sending"}))
    with pytest.raises(JobError, match="was interrupted"):
        bench.replay(target, Chosen(partitions=(asked,)))
    found = bench.replay(target, chosen)
    assert (found["resumed"], found["repeated"]) == (True, len(expected))
    assert sorted(bench.bodies(target)) == expected
    with pytest.raises(JobError, match="there is no entity 'nowhere'"):
        bench.replay("nowhere")


def test_fates_are_a_stream_of_a_cursor() -> None:
    given = {"connection": "Endpoint=sb://h;SharedAccessKeyName=n;SharedAccessKey=k", "entity": "q", "table": "fates"}
    with pytest.raises(OptionError, match="takes a cursor"):
        Options.parse(given)
    with pytest.raises(OptionError, match=r"use spark\.readStream"):
        Options.parse(given | {"cursor": "c"}).check_batch()


@pytest.mark.row("D6")
def test_tables_are_divided_by_day_into_few_files_with_statistics(made: Captured) -> None:
    folder = Path(made.bench.out)
    for table, time_column in (("messages", "enqueued_time"), ("fates", "fate_time")):
        files = list((folder / table).glob("date=*/*.parquet"))
        assert files
        assert not list((folder / table).glob("*.parquet"))
        batches = len([one for one in (folder / "checkpoints" / table / "commits").iterdir() if one.name.isdecimal()])
        days = len(list((folder / table).glob("date=*")))
        assert len(files) <= capture.FILES_OF_RUN * batches * days
        footer = pq.ParquetFile(files[0])
        place = footer.schema_arrow.names.index(time_column)
        assert footer.metadata.row_group(0).column(place).physical_type == "INT64"
        assert footer.metadata.row_group(0).column(place).statistics.has_min_max


def test_the_folder_of_a_capture_is_a_table_of_messages_for_plan(made: Captured) -> None:
    with Job("plan", JobOptions(spark=made.bench.spark), {}) as job:
        found = plan.run(job, plan.Want([made.bench.out], messages_of=made.bench.queue))
    (entity,) = found["entities"]
    assert entity["load"] == len(made.bench.rows())
    with Job("plan", JobOptions(spark=made.bench.spark), {}) as job, pytest.raises(JobError, match="no table of mess"):
        plan.run(job, plan.Want([made.bench.out + "/nowhere"], messages_of="q"))


def test_blocks_of_the_docs_read_and_export_a_capture(made: Captured, tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "pipeline.md"
    exported = tmp_path / "exported"
    pasted: dict[str, object] = {"spark": made.bench.spark}
    ran = 0
    for language, text in snippets.blocks(page.read_text(encoding="utf-8")):
        if language == "python":
            text = text.replace("captured/orders", made.bench.out).replace("exported/orders", str(exported))
            snippets.run_python(text, page, pasted)
            ran += 1
    assert ran == 2
    assert pq.read_table(exported).num_rows == len(made.bench.rows()), "a reader without Spark's log"


def test_interrupted_replay_goes_on_with_the_times_of_its_first_request(
    broker: BrokerProcess, made: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = made.bench
    target = broker.create_queue("since")
    newest = max(row.enqueued_time for row in bench.rows().values()).astimezone(UTC)
    typed = ("2h", None)

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(capture, "forget", interrupt)
        with pytest.raises(KeyboardInterrupt):
            bench.replay(target, Chosen(since=newest), typed=typed)
    state = Path(bench.out, "replay.json")
    state.write_text(json.dumps(json.loads(state.read_text()) | {"status": "sending"}))
    later = newest + timedelta(seconds=1)
    with pytest.raises(JobError, match="was interrupted"):
        bench.replay(target, Chosen(since=later), typed=("3h", None))
    found = bench.replay(target, Chosen(since=later), typed=typed)
    assert found["resumed"]
    assert 0 < found["messages"] == found["repeated"] == len(bench.bodies(target))


def test_each_replay_has_new_ids_of_its_own(broker: BrokerProcess, made: Captured) -> None:
    bench = made.bench
    target = broker.create_queue("detecting", RequiresDuplicateDetection=True)
    newest = Chosen(since=max(row.enqueued_time for row in bench.rows().values()).astimezone(UTC))
    sent = [bench.replay(target, newest, new_ids=True)["sent"] for _ in range(2)]
    assert sent[0] == sent[1] > 0
    assert len({id_ for id_, _ in bench.bodies(target)}) == sum(sent)
