"""The job `repartition`: move a queue's messages to other partitions, and prove that the copy is whole and in order.

A message is identified by its key and a checksum of everything that a copy keeps of it. The copy must have the messages
of every key, each as often, and as its first messages in the same order. Later messages of the copy are counted, and
break nothing. Messages without a key have no order.
"""

from contextlib import closing, suppress
from typing import NamedTuple

from pyspark import StorageLevel
from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

from partibus.client.errors import CursorLost, NotFound
from partibus.client.extensions.entities import Entities, EntityInfo
from partibus.client.extensions.ranges import open_ranges
from partibus.client.sync import connect
from partibus.pipeline.balance import partition_of, predict, slot_of
from partibus.pipeline.job import DONE, FINDINGS, Job, JobError, Values, said
from partibus.pipeline.place import Place
from partibus.pipeline.report.page import (
    Page,
    Section,
    Verdict,
    counted,
    figure,
    in_words,
    number,
    paragraph,
    percent,
    range_of_times,
    table,
    text,
)
from partibus.pipeline.report.plots import bars
from partibus.spark.tail import complete_tail

LINE = ("key", "partition_id", "position", "content")
_KEPT = (
    "body", "body_type", "content_type", "content_encoding", "session_id", "partition_key", "subject", "correlation_id",
    "to", "reply_to", "reply_to_session_id",
)  # fmt: skip
_MAPS = ("application_properties", "application_property_types")
_SIDES = ("here", "there")


class Proof(NamedTuple):
    """The proof of a move."""

    messages: int
    keys: int
    missing: int
    """Messages that are missing from the copy, or differ there."""
    added: int
    """Messages in the copy only: sent by another client meanwhile, or stored twice."""
    keys_out_of_order: int
    keys_unlike: int
    """Keys with missing messages."""
    misplaced: int
    """Messages of the copy outside the partition of their key."""

    @property
    def holds(self) -> bool:
        """Whether the copy is whole and in order."""
        return not (self.missing or self.keys_out_of_order or self.keys_unlike or self.misplaced)


def lines(rows: DataFrame) -> DataFrame:
    """Return `LINE` of rows with the columns of the data source.

    A message without an id gets the id that the sink gives to its copy.
    """
    address = sf.concat_ws("/", "entity_id", "partition_id", "position")
    parts: list[Column] = [sf.coalesce("message_id", address), *map(sf.col, _KEPT)]
    parts += [sf.array_sort(sf.map_entries(name)) for name in _MAPS]
    # A checksum skips nulls, so without marks a value could stand for that of the next column:
    marked = [part for given in parts for part in (given.isNull(), given)]
    return rows.select(_key().alias("key"), "partition_id", "position", sf.xxhash64(*marked).alias("content"))


def prove(source: DataFrame, copy: DataFrame, expired: DataFrame, partitions: int) -> Proof:
    """Compare lines of ``copy`` with those of ``source``, which were moved.

    The copy may have or lack ``expired`` messages, which expired during the move.
    """
    copy = copy.join(
        expired.select("key", "content").distinct().alias("gone"),
        copy["key"].eqNullSafe(sf.col("gone.key")) & (copy["content"] == sf.col("gone.content")),
        "left_anti",
    )
    sums = _counted(source, copy, partitions).first()
    unlike = _out_of_order(source, copy)
    assert sums is not None, "sums have a row"
    return Proof(
        sums["messages"] or 0, sums["keys"], sums["missing"] or 0, sums["added"] or 0, unlike, sums["keys_unlike"],
        sums["misplaced"] or 0,
    )  # fmt: skip


def shares(moved: DataFrame, copy: DataFrame | None, partitions: int) -> list[Values]:
    """Return the predicted and the actual share of messages of each partition of the copy.

    `plan` predicts the share from the moved rows. The actual share is None while there is no copy.
    """
    by_slot = moved.select(slot_of(_key()).alias("slot")).groupBy("slot").count()
    slots = {row["slot"]: row["count"] for row in by_slot.collect()}
    if not slots:
        return []
    rows = sum(slots.values())
    unkeyed = slots.pop(None, 0)
    predicted = predict(slots, unkeyed, partitions, rows, sampled_share=1).shares
    counted = {} if copy is None else {row[0]: row[1] for row in copy.groupBy("partition_id").count().collect()}
    total = sum(counted.values())
    return [
        {
            "partition": partition,
            "predicted": round(share, 6),
            "real": round(counted.get(partition, 0) / total, 6) if total else None,
            "messages": counted.get(partition, 0) if copy is not None else None,
        }
        for partition, share in enumerate(predicted)
    ]


def _counted(source: DataFrame, copy: DataFrame, partitions: int) -> DataFrame:
    """Count the surplus messages of each side, and the misplaced messages of the copy, in one row.

    Keys are counted as groups, so that no row is read twice. The messages without a key form one group, which is not
    counted as a key.
    """
    place = partition_of(slot_of(sf.col("key")), sf.lit(partitions))
    astray = sf.when(sf.col("key").isNotNull() & (place != sf.col("partition_id")), 1).otherwise(0)
    none = sf.lit(0)
    both = source.select("key", "content", sf.lit(1).alias("here"), none.alias("there"), none.alias("astray")).union(
        copy.select("key", "content", none.alias("here"), sf.lit(1).alias("there"), astray.alias("astray"))
    )
    each = both.groupBy("key", "content").agg(*(sf.sum(name).alias(name) for name in ("here", "there", "astray")))
    more, less = (sf.greatest(sf.col(one) - sf.col(other), none) for one, other in (_SIDES, _SIDES[::-1]))
    by_key = each.groupBy("key").agg(
        sf.sum("here").alias("messages"), sf.sum(more).alias("missing"), sf.sum(less).alias("added"),
        sf.sum("astray").alias("misplaced"),
    )  # fmt: skip
    sums = (sf.sum(name).alias(name) for name in ("messages", "missing", "added", "misplaced"))
    return by_key.agg(
        *sums,
        sf.count(sf.when(sf.col("messages") > 0, sf.col("key"))).alias("keys"),
        sf.count(sf.when(sf.col("missing") > 0, sf.col("key"))).alias("keys_unlike"),
    )


def _out_of_order(source: DataFrame, copy: DataFrame) -> int:
    """Count the keys whose copy does not begin with the same messages in the same order."""
    place = sf.row_number().over(Window.partitionBy("key").orderBy("partition_id", "position"))

    def ranked(rows: DataFrame, name: str) -> DataFrame:
        keyed = rows.where(sf.col("key").isNotNull())
        return keyed.select("key", place.alias("place"), sf.col("content").alias(name))

    both = ranked(source, "here").join(ranked(copy, "there"), ["key", "place"])
    return both.where(sf.col("here") != sf.col("there")).select("key").distinct().count()


def _key() -> Column:
    return sf.coalesce("session_id", "partition_key")


NOTE = "repartition.json"
COUNTS = {1: False, 16: True}
"""`EnablePartitioning` by the allowed partition counts of a queue."""
ROUNDS = 20
BATCH = 500_000
"""Messages of a micro-batch."""
KEPT_BYTES = 1 << 40
"""Bytes of each partition that are kept until the proof is done."""
_OWN = frozenset(("EnablePartitioning", "ForwardTo", "ForwardDeadLetteredMessagesTo", "Status"))
"""Properties that the new queue does not copy."""
_LIGHT = (
    "entity_id string, partition_id int, position bigint, session_id string, partition_key string, message_id string, "
    "enqueued_time timestamp, state string"
)


class Want(NamedTuple):
    """The request for a move."""

    connection: str
    source: str
    to: str
    state: str
    """The directory of the checkpoint, wherever Spark can write."""
    partitions: int | None = None
    """The partition count of a new queue; None: `to` exists."""
    leave: bool = False
    """Whether deferred and scheduled messages stay in the source."""
    close_source: bool = False
    revoke_locks: bool = False

    @property
    def cursor(self) -> str:
        """The name of the cursor that reads the source."""
        return f"repartition-{self.to}"[:120]

    @property
    def proof(self) -> str:
        """The name of the cursor that keeps messages for the proof."""
        return f"{self.cursor}-proof"


def run(job: Job, want: Want) -> Values:
    """Move the present messages, and prove it. Raises `JobError` for messages that can't be moved."""
    with job.step("look"), closing(connect(want.connection)) as client:
        entities = Entities(client)
        source, target = entities.get(want.source), _find(entities, want.to)
        partitions = _check(want, source, target)
        live = _rows(job.spark, want, want.source, _LIGHT).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            states = job.watched(lambda: _states(live, source))
            _check_states(want, states)
            _check_ids(live, source if target is None else target)
            result: Values = {
                "source": source.name, "to": want.to, "partitions": {"from": source.partitions, "to": partitions},
                "created": target is None, "before": states, "moved": 0, "left": states, "proof": None,
                "holds": None, "shares": shares(live, None, partitions), "times": _times(live),
            }  # fmt: skip
        finally:
            live.unpersist()
        if job.options.dry_run:
            job.finish(result, page=repartition_page)
            return result
        place = Place(job.spark, want.state)
        _begin(place, want, source, target, entities, partitions)
        if want.close_source:
            entities.update(want.source, {"Status": "SendDisabled"})
    with job.step("move"):
        _move(job, want)
    with job.step("prove"):
        result.update(job.watched(lambda: _proved(job.spark, want, partitions)))
    with closing(connect(want.connection)) as client:
        left = _states(_rows(job.spark, want, want.source, _LIGHT), Entities(client).get(want.source))
    result["left"] = left
    if result["holds"]:
        for entity in (want.source, want.to):
            _drop(want, entity)
        place.write(NOTE, {**(place.read(NOTE) or {}), "status": "proved"})
    whole = result["holds"] and not left["active"] and not left["delayed"]
    job.finish(result, status=DONE if whole else FINDINGS, page=repartition_page)
    return result


# Before anything is changed -----------------------------------------------------------------------------------------


def _find(entities: Entities, name: str) -> EntityInfo | None:
    try:
        return entities.get(name)
    except NotFound:
        return None


def _check(want: Want, source: EntityInfo, target: EntityInfo | None) -> int:
    """Return the target's number of partitions. Raises `JobError`."""
    if source.kind == "topic":
        raise JobError(
            f"{want.source!r} is a topic, which holds no messages; name a queue, or TOPIC/Subscriptions/NAME"
        )
    if source.name.lower() == want.to.lower():
        raise JobError(f"--to is {want.to!r}, the source itself; a queue's partitions are fixed, so name a new queue")
    if source.properties.get("ForwardTo"):
        raise JobError(f"{want.source!r} forwards its messages; clear its ForwardTo to have them stay and be moved")
    if target is None:
        if want.partitions is None:
            raise JobError(f"there is no queue {want.to!r}; say with --partitions how many it shall have")
        if want.partitions not in COUNTS:
            raise JobError(
                f"--partitions is {want.partitions}; queues of this broker have 1 partition or 16 (`partibus pipeline "
                "plan` predicts any number)"
            )
        if source.kind != "queue":
            raise JobError(f"{want.source!r} is a subscription, so {want.to!r} can't be made like it; create it first")
        return want.partitions
    if target.kind != "queue":
        raise JobError(f"--to is {want.to!r}, a {target.kind}; messages are moved to a queue")
    if target.properties.get("PartibusElasticPartitions"):
        raise JobError(
            f"the partitions of {want.to!r} follow its load (PartibusElasticPartitions), so the places of its keys "
            "can't be proved; name a queue with fixed partitions"
        )
    if want.partitions not in (None, target.partitions):
        raise JobError(f"{want.to!r} is there and has {target.partitions} partitions, not {want.partitions}")
    for name, why in (("RequiresSession", "sessions"), ("ForwardTo", "")):
        here, there = source.properties.get(name), target.properties.get(name)
        if why and bool(here) != bool(there):
            raise JobError(
                f"{name} is {here} at {want.source!r} and {there} at {want.to!r}: {why} would be lost or refused"
            )
        if not why and there:
            raise JobError(f"{want.to!r} forwards to {there!r}; move to that one, or clear its ForwardTo")
    return target.partitions


def _states(rows: DataFrame, source: EntityInfo) -> Values:
    """Count messages by state."""
    counted = {row["state"]: row["count"] for row in rows.groupBy("state").count().collect()}
    found: Values = {state: counted.get(state, 0) for state in ("active", "deferred", "delayed")}
    # A read by position omits messages that have no position yet:
    found["scheduled"] = max(0, source.messages - sum(counted.values()))
    found["dead_lettered"] = source.dead_letter_messages
    return found


def _times(rows: DataFrame) -> list[float]:
    """Return the Unix times of the oldest and the newest message; empty without messages."""
    ends = [end("enqueued_time").cast("double") for end in (sf.min, sf.max)]
    return [at for at in rows.select(*ends).first() or () if at is not None]


def _check_states(want: Want, states: Values) -> None:
    waiting = {state: states[state] for state in ("deferred", "scheduled") if states[state]}
    if waiting and not want.leave:
        told = " and ".join(f"{count:,} {state} messages" for state, count in waiting.items())
        raise JobError(
            f"{want.source!r} has {told}, which only clients that hold their sequence numbers can receive or cancel: "
            "have them do so first, or leave these messages where they are with --leave"
        )


def _check_ids(rows: DataFrame, target: EntityInfo) -> None:
    """Reject ids that the target would drop.

    Copies come all at once, so a time window no longer separates equal ids.
    """
    if not target.properties.get("RequiresDuplicateDetection"):
        return
    ids = rows.where(sf.col("message_id").isNotNull()).groupBy("message_id").count()
    several = ids.where(sf.col("count") > 1).count()
    if several:
        raise JobError(
            f"{several:,} message ids are there more than once, and the new queue detects duplicates, so that it would "
            "drop all but one of each; move to a queue without RequiresDuplicateDetection, or receive them first"
        )


# The move -----------------------------------------------------------------------------------------------------------


def _begin(
    place: Place, want: Want, source: EntityInfo, target: EntityInfo | None, entities: Entities, partitions: int
) -> None:
    """Create the target, the cursors and the note. Raises `JobError` when they belong to another run."""
    before = place.read(NOTE)
    asked = {"source": source.name, "to": want.to}
    if before is not None and {name: before.get(name) for name in asked} != asked:
        raise JobError(
            f"{want.state} belongs to the move from {before.get('source')!r} to {before.get('to')!r}; give each move a "
            "directory of its own"
        )
    if before is not None and target is None:
        raise JobError(
            f"{want.state} says that {want.to!r} was made, and it is gone; give a new directory to begin anew"
        )
    if target is None:
        kept = {name: value for name, value in source.properties.items() if name not in _OWN}
        entities.create_queue(want.to, {**kept, "EnablePartitioning": COUNTS[partitions]})
    if before is not None and before.get("status") != "proved":
        return
    for entity, start in ((want.source, "earliest"), (want.to, "latest")):
        with closing(open_ranges(want.connection, entity)) as ranges:
            ranges.open_cursor(want.proof, start=start, bound_bytes=KEPT_BYTES)
    place.write(NOTE, {**asked, "partitions": partitions, "status": "moving"})


def _move(job: Job, want: Want) -> None:
    """Move messages until none are left, or until only messages are left that can't be moved."""
    checkpoint = Place(job.spark, want.state).at("checkpoint")
    reading = {
        "connection": want.connection, "entity": want.source, "mode": "consume", "cursor": want.cursor,
        "maxMessagesPerTrigger": str(BATCH), "revokeLocks": str(want.revoke_locks).lower(),
    }  # fmt: skip
    for _ in range(ROUNDS):
        rows = job.spark.readStream.format("partibus").options(**reading).load()
        # The copy begins a new life, which is the rest of the original's:
        left_ms = (sf.col("expires_at").cast("double") - sf.current_timestamp().cast("double")) * 1000
        left_ms = sf.when(sf.col("expires_at").isNotNull(), sf.greatest(left_ms, sf.lit(1)))
        rows = rows.withColumn("time_to_live_ms", left_ms.cast("bigint"))
        writer = (
            rows.drop("scheduled_enqueue_time")
            .writeStream.format("partibus")
            .options(connection=want.connection, entity=want.to, naming="positions", checkpointLocation=checkpoint)
        )
        query = writer.trigger(availableNow=True).start()
        try:
            job.watched(query.awaitTermination)
        except StreamingQueryException as error:
            raise JobError(
                f"the move has stopped, and goes on when it is started again with --state {want.state}: {said(error)}"
            ) from error
        complete_tail(checkpoint, reading, spark=job.spark)
        if not any(progress.numInputRows for progress in query.recentProgress):
            return


# The proof ----------------------------------------------------------------------------------------------------------


def _proved(spark: SparkSession, want: Want, partitions: int) -> Values:
    """Return `Proof` and shares over everything that was moved since the job was first started."""
    rows = _rows(spark, want, want.source, cursor=want.proof)
    moved = rows.where("state = 'consumed'").persist(StorageLevel.MEMORY_AND_DISK)
    copy = lines(_rows(spark, want, want.to, cursor=want.proof)).persist(StorageLevel.MEMORY_AND_DISK)
    source = lines(moved).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        proof = prove(source, copy, lines(rows.where("state = 'expired'")), partitions)
        dealt = shares(moved, copy, partitions)
    finally:
        for table in (moved, copy, source):
            table.unpersist()
    largest = max((abs(one["predicted"] - one["real"]) for one in dealt if one["real"] is not None), default=0.0)
    return {
        "moved": proof.messages,
        "holds": proof.holds,
        "proof": proof._asdict(),
        "shares": dealt,
        "prediction_error": round(largest, 6),
    }


def _rows(spark: SparkSession, want: Want, entity: str, schema: str | None = None, **options: str) -> DataFrame:
    reader = spark.read.format("partibus").options(connection=want.connection, entity=entity, **options)
    return (reader if schema is None else reader.schema(schema)).load()


def _drop(want: Want, entity: str) -> None:
    """Drop the cursors of the proof and of the move."""
    with closing(open_ranges(want.connection, entity)) as ranges:
        for name in (want.proof, want.cursor) if entity == want.source else (want.proof,):
            with suppress(CursorLost):
                ranges.close_cursor(name, drop=True)


def repartition_page(found: Values) -> Page:
    """Make the page of a result of `run`."""
    shares = found["shares"]
    before, after = (counted(found["partitions"][end], "partition") for end in ("from", "to"))
    charts = [("predicted share of messages, %", [100 * one["predicted"] for one in shares])]
    if found["proof"] is not None:
        charts.append(("real share of messages, %", [100 * (one["real"] or 0.0) for one in shares]))
    sections = [Section("States", [_state_counts(found)])]
    if shares:
        sections.insert(0, Section("Partitions", [figure(bars("Partitions", charts)), _shares(shares)]))
    if found["proof"] is not None:
        rows = [[text(in_words(name)), number(count)] for name, count in found["proof"].items()]
        sections.append(Section("Proof", [table(["check", "count"], rows, (1,))]))
    return Page(
        title=f"{found['source']} to {found['to']}",
        lead=f"A queue of {before} moved into one of {after}."
        + range_of_times(found["times"])
        + " The figures cover every message that was in the source when the job began.",
        verdict=_verdict(found),
        tiles=[
            (number(found["before"]["active"]), "to be moved at the start"),
            (number(found["moved"]), "moved"),
            (number(found["left"]["active"] + found["left"]["delayed"]), "left"),
        ],
        sections=sections,
    )


def _verdict(found: Values) -> Verdict:
    if found["proof"] is None:
        return Verdict(None, "DRY RUN", "Nothing was changed.")
    if not found["holds"]:
        return Verdict(False, "FAULTS", "The copy is not what was moved; the table of the proof says in what.")
    return Verdict(True, "PROVED", "Each message is in the new queue, every key whole and in its order.")


def _state_counts(found: Values) -> str:
    rows = [
        [text(in_words(state)), number(count), number(found["left"][state])] for state, count in found["before"].items()
    ]
    return paragraph("The messages of the source.") + table(["state", "before", "after"], rows, (1, 2))


def _shares(shares: list[Values]) -> str:
    """Return the table of the shares; a dry run has predicted ones only."""
    if any(one["real"] is None for one in shares):
        rows = [[number(one["partition"]), percent(one["predicted"])] for one in shares]
        return table(["partition", "predicted"], rows, (0, 1))
    rows = [
        [number(one["partition"]), percent(one["predicted"]), percent(one["real"]), number(one["messages"])]
        for one in shares
    ]
    return table(["partition", "predicted", "real", "messages"], rows, (0, 1, 2, 3))
