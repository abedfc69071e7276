"""Compaction: every reader sees each row once, before, during and after, with a crash at any step."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from partibus.pipeline import compact
from partibus.pipeline.capture import CAPTURE, FATES, MESSAGES
from partibus.pipeline.job import Job, JobError, JobOptions
from partibus.pipeline.place import Place
from tests.plugins.soak import ROUND

ROWS = 3
"""Rows of a micro-batch."""
COLUMNS = "partition_id int, position bigint, enqueued_time timestamp, date date"
SCHEMA = pa.schema(
    [
        ("partition_id", pa.int32()),
        ("position", pa.int64()),
        ("enqueued_time", pa.timestamp("us", tz="UTC")),
        ("date", pa.date32()),
    ]
)
"""`COLUMNS` in a file that is written without Spark."""
STEPS = ("write_text", "move", "_swap", "remove") if ROUND is not None else ("move", "remove")
"""Steps at which a compaction crashes: before and after its files are in their places; in a soak all of them."""


class Table:
    """A folder of a capture whose messages a running query writes."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.source = folder / "in"
        self.out = folder / "a capture"  # a name that a URI has escaped
        self.source.mkdir()
        self.sent = 0
        Place(spark, str(self.out)).write(CAPTURE, {"entity": "q", "cursor": "c", "dated": True})

    def begin(self) -> StreamingQuery:
        rows = self.spark.readStream.schema(COLUMNS).parquet(str(self.source))
        self.query: StreamingQuery = (
            rows.coalesce(1).writeStream.format("parquet").partitionBy("date")
            .option("path", f"{self.out}/{MESSAGES}")
            .option("checkpointLocation", f"{self.out}/checkpoints/{MESSAGES}")
            .start()
        )  # fmt: skip
        return self.query

    def send(self, batches: int) -> None:
        for _ in range(batches):
            at = datetime(2026, 1, 1 + self.sent % 2, tzinfo=UTC)
            rows = [(0, self.sent * ROWS + n, at, at.date()) for n in range(ROWS)]
            file = self.source / f"{self.sent}.parquet"
            aside = file.with_name(f".{file.name}")  # the query may look at any moment
            pq.write_table(
                pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA), aside
            )
            aside.rename(file)
            self.query.processAllAvailable()
            self.sent += 1

    def positions(self) -> list[int]:
        found = self.spark.read.parquet(f"{self.out}/{MESSAGES}").select("position", "date").collect()
        assert {row.date.day for row in found} == {1, 2}
        return sorted(row.position for row in found)

    def run(self, *, dry_run: bool = False, keep_s: float = 3600) -> dict[str, Any]:
        with Job("compact", JobOptions(spark=self.spark, dry_run=dry_run), {}) as job:
            return compact.run(job, compact.Want(str(self.out), keep_s=keep_s))

    def files(self) -> list[Path]:
        return sorted((self.out / MESSAGES).glob("date=*/*.parquet"))

    @property
    def expected(self) -> list[int]:
        return list(range(self.sent * ROWS))


@pytest.fixture
def made(spark: SparkSession, tmp_path: Path) -> Iterator[Table]:
    spark.conf.set("spark.sql.streaming.fileSink.log.compactInterval", "4")
    table = Table(spark, tmp_path)
    query = table.begin()
    try:
        table.send(4)
        yield table
    finally:
        query.stop()
        spark.conf.unset("spark.sql.streaming.fileSink.log.compactInterval")


@pytest.mark.usefixtures("several_partitions")
def test_rows_are_there_once_while_the_capture_goes_on(made: Table) -> None:
    planned = made.run(dry_run=True)["tables"][MESSAGES]
    assert (planned["files_before"], planned["files_after"], len(made.files())) == (4, 2, 4)
    found = made.run()
    assert found["tables"][MESSAGES] == planned | {"files": 2, "rows": 4 * ROWS}
    assert found["tables"][FATES]["files"] == 0
    assert made.positions() == made.expected
    assert len(made.files()) == 6, "replaced files stay for readers that began before"
    # The running query gathers its log over the new files.
    made.send(4)
    assert made.positions() == made.expected
    found = made.run(keep_s=0)
    assert found["tables"][MESSAGES]["files"] == 2
    assert (found["tables"][MESSAGES]["files_before"], found["deleted_files"]) == (6, 10)
    assert made.positions() == made.expected
    assert len(made.files()) == 2
    for file in made.files():
        column = pq.ParquetFile(file).metadata.row_group(0).column(2)
        assert (column.physical_type, column.statistics.has_min_max) == ("INT64", True)
    assert made.run(keep_s=0)["tables"][MESSAGES]["files_before"] == 0, "large files and single ones stay"
    made.send(1)
    assert made.positions() == made.expected


@pytest.mark.seeded
def test_a_crash_at_any_step_changes_no_row(made: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    for step in STEPS:
        with monkeypatch.context() as patched:
            patched.setattr(compact if step == "_swap" else Place, step, crash)
            with pytest.raises(KeyboardInterrupt):
                made.run()
        assert made.positions() == made.expected, step
    made.run()
    assert made.positions() == made.expected
    made.run(keep_s=0)
    assert made.positions() == made.expected
    assert len(made.files()) == 2
    assert list((made.out / ".compact").iterdir()) == []


def test_folders_that_hold_no_capture_and_logs_of_other_formats_are_refused(made: Table, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="holds no capture"), Job("c", JobOptions(spark=made.spark), {}) as job:
        compact.run(job, compact.Want(str(tmp_path)))
    made.query.stop()
    (log,) = (made.out / MESSAGES / "_spark_metadata").glob("[0-9]*.compact")
    log.with_name(f".{log.name}.crc").unlink(missing_ok=True)
    log.write_text(log.read_text().replace("v1", "v9", 1))
    with pytest.raises(JobError, match="has the format 'v9'"):
        made.run()


def test_second_compaction_at_once_is_refused_and_changes_no_row(made: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    join = compact._join

    def join_after_another_run(*arguments: Any) -> int:
        monkeypatch.setattr(compact, "_join", join)
        made.run()
        return join(*arguments)

    monkeypatch.setattr(compact, "_join", join_after_another_run)
    with pytest.raises(JobError, match="another compaction has replaced them; nothing was changed"):
        made.run()
    assert made.positions() == made.expected
    made.run(keep_s=0)
    assert made.positions() == made.expected
    assert len(made.files()) == 2
