"""The job `capture`: each message of an entity as a row of one table, its disposition as a row of another.

```text
 entity ──▶ stream of messages ─────────▶ OUT/messages ┐
   cursor ─▶ stream of dispositions ────▶ OUT/fates    ├─▶ captured: each message with its disposition
                                                       ┘
```

A cursor keeps both for the two streams, and each stream advances its own position. A message is captured where it was
accepted, so it is found with its disposition, whichever table is ahead.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import NamedTuple
from uuid import uuid4

from pyspark import StorageLevel
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from partibus.client.extensions.ranges import BOUND_BYTES, open_ranges
from partibus.pipeline.job import Job, JobError, Values, fault_of, interruption, said
from partibus.pipeline.place import Place
from partibus.pipeline.report.page import (
    Page,
    Section,
    Verdict,
    code,
    figure,
    in_words,
    number,
    paragraph,
    range_of_times,
    table,
    text,
    time_of_us,
)
from partibus.pipeline.report.plots import lines
from partibus.pipeline.sending import Sending, check_target, forget, sent
from partibus.spark.dispositions import complete_dispositions
from partibus.spark.listener import CommitListener
from partibus.spark.schema import DDL, DISPOSITION_DDL
from partibus.spark.sink_options import SinkOptions
from partibus.spark.sink_rows import sink_key
from partibus.spark.sink_values import ADDRESS
from partibus.spark.tail import complete_tail

HERE = "here"
"""The disposition of a message that had not left when it was captured."""
MESSAGES, FATES, CHECKPOINTS = "messages", "fates", "checkpoints"
NOT_CAPTURED = ("state",)
"""Columns that depend on the time of reading."""
_KEY = ["entity_id", "partition_id", "sequence_number"]


class Chosen(NamedTuple):
    """A choice of captured messages."""

    since: datetime | None = None
    """The earliest time of acceptance by the broker."""
    until: datetime | None = None
    partitions: Sequence[int] = ()
    """Partition ids; empty: all."""
    fates: Sequence[str] = ()


DATE = "date"
"""The column by which the tables are divided into folders: the day, in UTC, of acceptance or of the fate."""
_TIMES = {MESSAGES: "enqueued_time", FATES: "fate_time"}
FILES_OF_RUN = 4
"""Files that one run writes of each day: tasks that write at the same time."""
TIME_TYPE = "spark.sql.parquet.outputTimestampType"
"""Spark's setting of how files have times."""


def start(
    spark: SparkSession, options: Mapping[str, str], out: str, *, seconds: float | None, dated: bool = True
) -> list[StreamingQuery]:
    """Start the two streams, of messages and fates.

    ``options`` are those of the data source, with the cursor. ``seconds`` is the trigger; None: what is there now.
    Each micro-batch of a trigger writes one file a day and table, and a run over what is there `FILES_OF_RUN`.
    ``dated`` divides the tables by `DATE`; a capture keeps the layout with which it began.
    """
    # Spark's default, INT96, has no statistics by which a reader could skip files.
    spark.conf.set(TIME_TYPE, "TIMESTAMP_MICROS")
    queries = []
    for name in (MESSAGES, FATES):
        rows = spark.readStream.format("partibus").options(**{**options, "table": name}).load().drop(*NOT_CAPTURED)
        if dated:
            rows = rows.withColumn(DATE, sf.to_date(_TIMES[name]))
        rows = rows.repartition(1 if seconds is not None else min(FILES_OF_RUN, spark.sparkContext.defaultParallelism))
        written = rows.writeStream.partitionBy(DATE) if dated else rows.writeStream
        writer = (
            written.format("parquet")
            .queryName(f"capture of {name}")
            .option("path", f"{out}/{name}")
            .option("checkpointLocation", f"{out}/{CHECKPOINTS}/{name}")
        )
        every = {"availableNow": True} if seconds is None else {"processingTime": f"{seconds} seconds"}
        writer = writer.trigger(**every)
        queries.append(writer.start())
    return queries


def messages(spark: SparkSession, out: str) -> DataFrame:
    """Read the captured messages without their dispositions. Raises `JobError`."""
    return _table(spark, out, MESSAGES, DDL).drop(*NOT_CAPTURED, DATE)


def captured(spark: SparkSession, out: str) -> DataFrame:
    """Read the captured messages with their fates. Raises `JobError`.

    The columns are those of the data source and ``fate`` (`HERE`: not left), ``fate_time`` and ``dwell_ms``, the time
    from acceptance to the fate.
    """
    found = messages(spark, out)
    fates = _table(spark, out, FATES, DISPOSITION_DDL).select(
        *_KEY, "fate", "fate_time", sf.col("delivery_count").alias("_deliveries")
    )
    joined = found.join(fates, _KEY, "left")
    return joined.select(
        *(sf.col(name) for name in found.columns if name != "delivery_count"),
        sf.coalesce("_deliveries", "delivery_count").alias("delivery_count"),
        sf.coalesce("fate", sf.lit(HERE)).alias("fate"),
        "fate_time",
        (sf.unix_millis("fate_time") - sf.unix_millis("enqueued_time")).alias("dwell_ms"),
    )


def chosen(rows: DataFrame, want: Chosen) -> DataFrame:
    """Select rows of `captured`."""
    tests: list[Column] = []
    if want.since is not None:
        tests.append(sf.col("enqueued_time") >= sf.lit(want.since))
    if want.until is not None:
        tests.append(sf.col("enqueued_time") < sf.lit(want.until))
    if want.partitions:
        tests.append(sf.col("partition_id").isin(list(want.partitions)))
    if want.fates:
        tests.append(sf.col("fate").isin(list(want.fates)))
    for test in tests:
        rows = rows.where(test)
    return rows


def summary(rows: DataFrame) -> Values:
    """Summarize `captured`: totals, messages and milliseconds by disposition, and both over time in minutes."""
    by_fate = (
        rows.groupBy("fate")
        .agg(
            sf.count("*").alias("messages"),
            *(sf.percentile_approx("dwell_ms", share).alias(name) for name, share in _SHARES.items()),
            sf.min(sf.unix_seconds("enqueued_time")).alias("first"),
            sf.max(sf.unix_seconds(sf.coalesce("fate_time", "enqueued_time"))).alias("last"),
        )
        .orderBy(sf.desc("messages"))
        .collect()
    )
    by_partition = rows.groupBy("partition_id").count().orderBy("partition_id").collect()
    return {
        "messages": sum(row.messages for row in by_fate),
        "fates": {
            row.fate: {"messages": row.messages, "dwell_ms": {name: row[name] for name in _SHARES}} for row in by_fate
        },
        "times": [end for row in by_fate for end in (row["first"], row["last"]) if end is not None],
        "partitions": {str(row.partition_id): row["count"] for row in by_partition},
        "series": {
            "accepted": _per_minute(rows, "enqueued_time"),
            **{row.fate: _per_minute(rows.where(sf.col("fate") == row.fate), "fate_time") for row in by_fate
               if row.fate != HERE},
        },
    }  # fmt: skip


_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_MINUTES_MAX = 1_440
"""The most minutes of a series: the last day of a longer one."""


def _per_minute(rows: DataFrame, time: str) -> list[list[int]]:
    """Return [Unix time, messages] of each minute from the first to the last one with messages."""
    minute = (sf.unix_seconds(time) / 60).cast("bigint") * 60
    counted = rows.groupBy(minute.alias("at")).count().orderBy(sf.desc("at")).limit(_MINUTES_MAX).collect()
    return every_minute({row.at: row["count"] for row in counted})


def every_minute(counts: Mapping[int, int]) -> list[list[int]]:
    """Return [Unix time, messages] of the last minutes, at most `_MINUTES_MAX`. Minutes without messages are 0."""
    if not counts:
        return []
    last = max(counts)
    first = max(min(counts), last - 60 * (_MINUTES_MAX - 1))
    return [[at, counts.get(at, 0)] for at in range(first, last + 1, 60)]


def _table(spark: SparkSession, out: str, name: str, ddl: str) -> DataFrame:
    try:
        return spark.read.schema(ddl).parquet(f"{out}/{name}")
    except AnalysisException as error:
        raise JobError(f"{out} holds no capture: {fault_of(error)}; {GIVE_CAPTURE}") from None


GIVE_CAPTURE = "give the folder of `partibus pipeline capture --out`"
CAPTURE, REPLAY = "capture.json", "replay.json"
LOOK_S = 1
LOOKS = 20
"""Looks between two counts of rows: Spark keeps the last hundred micro-batches of a query."""


class Rows:
    """Counts the rows of a query in this run, if it is asked now and then."""

    def __init__(self, query: StreamingQuery) -> None:
        self.query = query
        self._counted = 0
        self._batch = -1
        """The last counted micro-batch."""

    def count(self) -> int:
        """Return the count, earlier calls included."""
        for progress in self.query.recentProgress:
            if progress.batchId > self._batch and progress.numInputRows:  # one that idles has its next batch's number
                self._counted += progress.numInputRows
                self._batch = progress.batchId
        return self._counted


class Want(NamedTuple):
    """The request for a capture."""

    connection: str
    entity: str
    out: str
    cursor: str | None = None
    """The cursor's name; None: one derived from the directory."""
    cursor_bytes: int = BOUND_BYTES
    start: str = "earliest"


class Replay(NamedTuple):
    """The request for a replay."""

    connection: str
    out: str
    to: str
    chosen: Chosen = Chosen()
    rate: float | None = None
    new_ids: bool = False
    typed: tuple[str | None, str | None] | None = None
    """`since` and `until` as the user typed them; None: as in ``chosen``.

    An interrupted replay is recognized by them, since `2h` is another time when it is requested again.
    """


def run(job: Job, want: Want) -> Values:
    """Capture the present messages, and report on all captured ones."""
    options = _begin(job.spark, want)
    with job.step("capture"):
        queries = start(job.spark, options, want.out, seconds=None, dated=_is_dated(job.spark, want.out))
        job.watched(lambda: _await(queries))
    _complete(job.spark, want.out, options)
    return _finish(job, want, [Rows(query) for query in queries])


def follow(
    job: Job, want: Want, every_s: float, show: Callable[[Values], None], is_over: Callable[[], bool] = lambda: False
) -> None:
    """Capture until interrupted, or until ``is_over`` says so, which is asked each second; then report."""
    spark = job.spark
    with interruption() as is_interrupted:
        options = _begin(spark, want)
        listener = CommitListener(options)
        spark.streams.addListener(listener)
        queries = start(spark, options, want.out, seconds=every_s, dated=_is_dated(spark, want.out))
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
    """Send captured messages, each once. A replay that was interrupted continues when it is requested again.

    It keeps the times of the first request, whatever `2h` is by then.
    """
    job.check_paths([want.out], GIVE_CAPTURE)
    spark = job.spark
    place = Place(spark, want.out)
    asked = {"to": want.to, "chosen": _typed(want), "new_ids": want.new_ids}
    mark = blake2b(repr(asked).encode(), digest_size=8).hexdigest()
    before = place.read(REPLAY) or {}
    resumed = before.get("asked") == mark and before.get("status") == "sending"
    picked = _as_before(want.chosen, before) if resumed else want.chosen
    rows = chosen(captured(spark, want.out), picked)
    with job.step("look"):
        count, times = job.watched(lambda: _extent(rows))
        check_target(want.connection, want.to, new_ids=want.new_ids)
    if before.get("status") == "sending" and not resumed and not job.options.dry_run:
        raise JobError(
            f"a replay of {want.out} to {before.get('to')!r} was interrupted: ask for it again as it was, with the "
            f"same filters, or give it up by removing {place.at(REPLAY)}"
        )
    result: Values = {
        "to": want.to, "messages": count, "times": times, "sent": 0, "repeated": 0, "resumed": resumed, "audit": None
    }  # fmt: skip
    if job.options.dry_run:
        job.finish(result, page=replay_page)
        return result
    run_id = str(before["run"]) if resumed else uuid4().hex
    note: Values = {
        "run": run_id, "asked": mark, "to": want.to, "status": "sending", "since": datetime.now(UTC),
        "chosen": picked._asdict(),
    }  # fmt: skip
    place.write(REPLAY, note)
    options = SinkOptions.parse({"connection": want.connection, "entity": want.to})
    sending = Sending(options, sink_key("replay", run_id), want.rate)
    audit = place.at("replays", f"run={run_id}")
    with job.step("send"):
        lines = sent(_to_send(rows, run_id if want.new_ids else None), sending)
        job.watched(lambda: lines.write.mode("overwrite").parquet(audit))
    place.write(REPLAY, note | {"status": "done", "until": datetime.now(UTC)})
    forget(sending)
    told = spark.read.parquet(audit)
    result |= {"sent": told.count(), "repeated": told.where("repeated").count(), "audit": audit}
    job.finish(result, page=replay_page)
    return result


def _extent(rows: DataFrame) -> tuple[int, list[float]]:
    """Return the number of messages, and the times at which the broker accepted the first and the last one."""
    time = sf.unix_seconds("enqueued_time")
    (found,) = rows.agg(
        sf.count("*").alias("messages"), sf.min(time).alias("first"), sf.max(time).alias("last")
    ).collect()
    return found.messages, [] if found["first"] is None else [found["first"], found["last"]]


def _typed(want: Replay) -> Values:
    """Return the choice as the user typed it."""
    if want.typed is None:
        return want.chosen._asdict()
    since, until = want.typed
    return want.chosen._asdict() | {"since": since, "until": until}


def _as_before(want: Chosen, note: Values) -> Chosen:
    """Return the choice with the times in the note of an interrupted replay. Earlier versions noted none."""
    if "chosen" not in note:
        return want
    since, until = (
        None if text is None else datetime.fromisoformat(text)
        for text in (note["chosen"]["since"], note["chosen"]["until"])
    )
    return want._replace(since=since, until=until)


def _to_send(rows: DataFrame, run_id: str | None) -> DataFrame:
    """Return rows to send. With ``run_id`` they have ids that no other replay gives, and each attempt of it does."""
    rows = rows.withColumn("scheduled_enqueue_time", sf.lit(None).cast("timestamp"))
    if run_id is None:
        return rows
    return rows.withColumn("message_id", sf.concat_ws("/", sf.lit(run_id), *ADDRESS))


def _is_dated(spark: SparkSession, out: str) -> bool:
    """Tell whether the capture divides its tables by day. One that an earlier version began does not."""
    return bool((Place(spark, out).read(CAPTURE) or {}).get("dated", False))


def _begin(spark: SparkSession, want: Want) -> dict[str, str]:
    """Make the options of both streams. A new capture creates its cursor first, so that it misses nothing."""
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
    has_begun = all(place.exists(CHECKPOINTS, one, "commits", "0") for one in (MESSAGES, FATES))
    if not has_begun:
        client = open_ranges(want.connection, want.entity)
        try:
            if before is None and any(cursor.name == name for cursor in client.cursors()):
                raise JobError(
                    f"{want.entity!r} has a cursor {name!r} already, of another capture: give another --cursor, "
                    "or drop it with `partibus cursor drop`"
                )
            place.write(CAPTURE, {"entity": want.entity, "cursor": name, "dated": True})
            if not place.exists(CHECKPOINTS, MESSAGES, "offsets", "0"):
                client.open_cursor(name, start=want.start, dispositions=True, bound_bytes=want.cursor_bytes)
        finally:
            client.close()
    return options


def _complete(spark: SparkSession, out: str, options: dict[str, str]) -> None:
    """Advance the cursor over the last micro-batches."""
    place = Place(spark, out)
    for name in (MESSAGES, FATES):
        checkpoint = place.at(CHECKPOINTS, name)
        if not place.exists(CHECKPOINTS, name, "commits", "0"):
            continue
        if name == MESSAGES:
            complete_tail(checkpoint, options, spark=spark)
        else:
            complete_dispositions(checkpoint, options, spark=spark, open_client=open_ranges)


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
        rows = captured(job.spark, want.out).select("partition_id", "enqueued_time", "fate", "fate_time", "dwell_ms")
        kept = rows.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            result = job.watched(lambda: summary(kept))
        finally:
            kept.unpersist()
    new = [rows.count() for rows in counted]
    place = Place(job.spark, want.out)
    result |= {"out": want.out, "new_messages": new[0], "new_fates": new[1], **(place.read(CAPTURE) or {})}
    job.finish(result, page=capture_page)
    return result


def capture_page(found: Values) -> Page:
    """Make the page of a result of `run`."""
    fates, partitions = found["fates"], found["partitions"]
    left = {name: one for name, one in fates.items() if name != "here"}
    return Page(
        title="Capture",
        lead=f"Every message of {found['entity']} since the first run, and its disposition, in {found['out']}."
        + range_of_times(found["times"])
        + f" Curves have at most the last {_MINUTES_MAX:,} minutes. Messages that had left before the first run are "
        "missing.",
        tiles=[
            (number(found["messages"]), "messages captured"),
            (number(found["new_messages"]), "of them by this run"),
            *((number(one["messages"]), _name(fate)) for fate, one in fates.items()),
        ],
        sections=[
            Section("Dispositions", [_fates(left), *_over_time(found["series"])]),
            Section(
                "Partitions",
                [
                    paragraph("The table has only partitions with captured messages."),
                    table(
                        ["partition", "messages"],
                        [[code(one), number(count)] for one, count in partitions.items()],
                        (1,),
                    ),
                ],
            ),
        ],
    )


def replay_page(found: Values) -> Page:
    """Make the page of a result of `replay`."""
    return Page(
        title="Replay",
        lead=f"Captured messages, sent to {found['to']}."
        + range_of_times(found["times"])
        + " Messages that the capture does not have yet were not sent.",
        verdict=None if found["audit"] else Verdict(None, "DRY RUN", "Nothing was sent."),
        tiles=[
            (number(found["messages"]), "messages chosen"),
            (number(found["sent"]), "sent"),
            (number(found["repeated"]), "of them sent again after a failed attempt"),
        ],
        sections=[Section("Trail", [paragraph(f"Which message went when: {found['audit']}")])]
        if found["audit"]
        else [],
    )


def _fates(left: Values) -> str:
    names = ("p50", "p95", "p99")
    rows = [
        [text(_name(fate)), number(one["messages"]), *(_time(one["dwell_ms"][name]) for name in names)]
        for fate, one in left.items()
    ]
    return table(["disposition", "messages", *(f"{name} until then" for name in names)], rows, (1, 2, 3, 4))


def _over_time(series: Values) -> list[str]:
    curves = {
        _name(name): ([at for at, _ in points], [count for _, count in points])
        for name, points in series.items()
        if points
    }
    return [figure(lines("Messages per minute", [("messages per minute", curves)], step=60))] if curves else []


def _time(value_ms: float | None) -> str:
    return "" if value_ms is None else text(time_of_us(value_ms * 1000))


def _name(fate: str) -> str:
    return "still there" if fate == "here" else in_words(fate)
