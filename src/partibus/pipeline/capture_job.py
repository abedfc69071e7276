"""The jobs `capture` and its replay: an entity to tables, and captured messages to an entity."""

from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, NamedTuple
from uuid import uuid4

from pyspark import StorageLevel
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from partibus.client.ranges import BOUND_BYTES, open_ranges
from partibus.pipeline import capture
from partibus.pipeline.capture_page import capture_page, replay_page
from partibus.pipeline.errors import JobError, said
from partibus.pipeline.interrupts import interruption
from partibus.pipeline.job import Job
from partibus.pipeline.places import Place
from partibus.pipeline.sending import Sending, check_target, forget, sent
from partibus.spark.fates import complete_fates
from partibus.spark.listener import CommitListener
from partibus.spark.sink_options import SinkOptions
from partibus.spark.sink_rows import sink_key
from partibus.spark.tail import complete_tail

Values = dict[str, Any]

CAPTURE, REPLAY = "capture.json", "replay.json"
LOOK_S = 1
LOOKS = 20
"""After so many of them rows are counted: of a query Spark keeps what the last hundred micro-batches did."""


class Rows:
    """How many a query has brought in this run, if it is asked for them now and then."""

    def __init__(self, query: StreamingQuery) -> None:
        self.query = query
        self._counted = 0
        self._batch = -1
        """The last one that is counted."""

    def count(self) -> int:
        """With those of earlier calls."""
        for progress in self.query.recentProgress:
            if progress.batchId > self._batch and progress.numInputRows:  # one that idles has its next batch's number
                self._counted += progress.numInputRows
                self._batch = progress.batchId
        return self._counted


class Want(NamedTuple):
    """What is asked for of a capture."""

    connection: str
    entity: str
    out: str
    cursor: str | None = None
    """None: a name of its own for each directory."""
    cursor_bytes: int = BOUND_BYTES
    start: str = "earliest"


class Replay(NamedTuple):
    """What is asked for of a replay."""

    connection: str
    out: str
    to: str
    chosen: capture.Chosen = capture.Chosen()
    rate: float | None = None
    new_ids: bool = False


def run(job: Job, want: Want) -> Values:
    """Capture what is there now, and tell of all that is captured."""
    options = _begin(job.spark, want)
    with job.step("capture"):
        queries = capture.start(job.spark, options, want.out, seconds=None)
        job.watched(lambda: _await(queries))
    _complete(job.spark, want.out, options)
    return _finish(job, want, [Rows(query) for query in queries])


def follow(
    job: Job, want: Want, every_s: float, show: Callable[[Values], None], is_over: Callable[[], bool] = lambda: False
) -> None:
    """Capture what comes until interrupted, or until ``is_over``, asked each second, says so; then tell."""
    spark = job.spark
    with interruption() as is_interrupted:
        options = _begin(spark, want)
        listener = CommitListener(options)
        spark.streams.addListener(listener)
        queries = capture.start(spark, options, want.out, seconds=every_s)
        counted = [Rows(query) for query in queries]
        looks = 0
        try:
            while all(query.isActive for query in queries) and not is_interrupted() and not is_over():
                queries[0].awaitTermination(LOOK_S)
                looks += 1
                if looks % LOOKS == 0:
                    _ = [rows.count() for rows in counted]
            _await([query for query in queries if not query.isActive])
        finally:
            for query in queries:
                query.stop()
            spark.streams.removeListener(listener)
    _complete(spark, want.out, options)
    show(_finish(job, want, counted))


def replay(job: Job, want: Replay) -> Values:
    """Send captured messages, each once: one that was interrupted goes on when it is asked for again."""
    spark = job.spark
    place = Place(spark, want.out)
    rows = capture.chosen(capture.captured(spark, want.out), want.chosen)
    with job.step("look"):
        count = job.watched(rows.count)
        check_target(want.connection, want.to, new_ids=want.new_ids)
    asked = {"to": want.to, "chosen": want.chosen._asdict(), "new_ids": want.new_ids}
    mark = blake2b(repr(asked).encode(), digest_size=8).hexdigest()
    before = place.read(REPLAY) or {}
    resumed = before.get("asked") == mark and before.get("status") == "sending"
    if before.get("status") == "sending" and not resumed and not job.options.dry_run:
        raise JobError(
            f"a replay of {want.out} to {before.get('to')!r} was interrupted: ask for it again as it was, with the "
            f"same filters, or give it up by removing {place.at(REPLAY)}"
        )
    result: Values = {"to": want.to, "messages": count, "sent": 0, "repeated": 0, "resumed": resumed, "audit": None}
    if job.options.dry_run:
        job.finish(result, page=replay_page)
        return result
    run_id = str(before["run"]) if resumed else uuid4().hex
    note: Values = {"run": run_id, "asked": mark, "to": want.to, "status": "sending", "since": datetime.now(UTC)}
    place.write(REPLAY, note)
    options = SinkOptions.parse({"connection": want.connection, "entity": want.to})
    sending = Sending(options, sink_key("replay", run_id), want.rate)
    audit = place.at("replays", f"run={run_id}")
    with job.step("send"):
        lines = sent(_to_send(rows, want), sending)
        job.watched(lambda: lines.write.mode("overwrite").parquet(audit))
    place.write(REPLAY, note | {"status": "done", "until": datetime.now(UTC)})
    forget(sending)
    told = spark.read.parquet(audit)
    result |= {"sent": told.count(), "repeated": told.where("repeated").count(), "audit": audit}
    job.finish(result, page=replay_page)
    return result


def _to_send(rows: DataFrame, want: Replay) -> DataFrame:
    rows = rows.withColumn("scheduled_enqueue_time", sf.lit(None).cast("timestamp"))
    return rows.withColumn("message_id", sf.lit(None).cast("string")) if want.new_ids else rows


def _begin(spark: SparkSession, want: Want) -> dict[str, str]:
    """The options of both streams; a capture that begins has its cursor first, from which on nothing is missed."""
    place = Place(spark, want.out)
    before = place.read(CAPTURE)
    if before is not None and (before["entity"], want.cursor or before["cursor"]) != (want.entity, before["cursor"]):
        raise JobError(
            f"{want.out} is the capture of {before['entity']!r} by the cursor {before['cursor']!r}; "
            "use another directory for another one"
        )
    name = str(before["cursor"]) if before is not None else want.cursor or f"capture-{uuid4().hex[:8]}"
    options = {
        "connection": want.connection,
        "entity": want.entity,
        "cursor": name,
        "cursorBytes": str(want.cursor_bytes),
        "startingPositions": want.start,
    }
    has_begun = all(place.exists(capture.CHECKPOINTS, one, "commits", "0") for one in (capture.MESSAGES, capture.FATES))
    if not has_begun:
        client = open_ranges(want.connection, want.entity)
        try:
            if before is None and any(cursor.name == name for cursor in client.cursors()):
                raise JobError(
                    f"{want.entity!r} has a cursor {name!r} already, which is somebody else's: give another --cursor, "
                    "or drop it with `partibus cursor drop`"
                )
            place.write(CAPTURE, {"entity": want.entity, "cursor": name})
            if not place.exists(capture.CHECKPOINTS, capture.MESSAGES, "offsets", "0"):
                client.open_cursor(name, start=want.start, fates=True, bound_bytes=want.cursor_bytes)
        finally:
            client.close()
    return options


def _complete(spark: SparkSession, out: str, options: dict[str, str]) -> None:
    """What the last micro-batches have written is nobody's to keep any more."""
    place = Place(spark, out)
    for table in (capture.MESSAGES, capture.FATES):
        checkpoint = place.at(capture.CHECKPOINTS, table)
        if not place.exists(capture.CHECKPOINTS, table, "commits", "0"):
            continue
        if table == capture.MESSAGES:
            complete_tail(checkpoint, options, spark=spark)
        else:
            complete_fates(checkpoint, options, spark=spark, open_client=open_ranges)


def _await(queries: list[StreamingQuery]) -> None:
    try:
        for query in queries:
            query.awaitTermination()
    except StreamingQueryException as error:
        for query in queries:
            query.stop()
        raise JobError(f"the capture ended: {said(error)}") from error


def _finish(job: Job, want: Want, counted: list[Rows]) -> Values:
    with job.step("tell"):
        rows = capture.captured(job.spark, want.out).select(
            "partition_id", "enqueued_time", "fate", "fate_time", "dwell_ms"
        )
        kept = rows.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            result = job.watched(lambda: capture.summary(kept))
        finally:
            kept.unpersist()
    new = [rows.count() for rows in counted]
    place = Place(job.spark, want.out)
    result |= {"out": want.out, "new_messages": new[0], "new_fates": new[1], **(place.read(CAPTURE) or {})}
    job.finish(result, page=capture_page)
    return result
