"""The job `repartition`: the messages of a queue or subscription into a queue with other partitions (D11).

It reads as the one reader of the source, micro-batch by micro-batch, each source partition in one task and in order,
and the broker drops what it is sent again by the position of it: so a run that was ended in any way goes on where it
was. Two cursors keep what was moved, and what consumers of the new queue finish, until both sides are compared.
"""

from contextlib import closing, suppress
from typing import Any, NamedTuple

from pyspark import StorageLevel
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from partibus.client.client import connect
from partibus.client.entities import Entities, EntityInfo
from partibus.client.errors import CursorLost, NotFound
from partibus.client.ranges import open_ranges
from partibus.pipeline.errors import JobError, said
from partibus.pipeline.job import DONE, FINDINGS, Job
from partibus.pipeline.places import Place
from partibus.pipeline.repartition import lines, prove, shares
from partibus.pipeline.repartition_page import repartition_page
from partibus.spark.tail import complete_tail

Values = dict[str, Any]

NOTE = "repartition.json"
COUNTS = {1: False, 16: True}
"""How many partitions a queue may have -> `EnablePartitioning`."""
ROUNDS = 20
BATCH = 500_000
"""Messages of a micro-batch."""
KEPT_BYTES = 1 << 40
"""Of each partition, until the proof is done."""
_OWN = frozenset(("EnablePartitioning", "ForwardTo", "ForwardDeadLetteredMessagesTo", "Status"))
"""Properties that the new queue does not take over."""
_LIGHT = (
    "entity_id string, partition_id int, position bigint, session_id string, partition_key string, message_id string, "
    "state string"
)


class Want(NamedTuple):
    """What is asked for."""

    connection: str
    source: str
    to: str
    state: str
    """Directory of the checkpoint, wherever Spark can write."""
    partitions: int | None = None
    """None: `to` is there."""
    leave: bool = False
    """Deferred and scheduled messages stay where they are."""
    close_source: bool = False
    revoke_locks: bool = False

    @property
    def cursor(self) -> str:
        return f"repartition-{self.to}"[:120]

    @property
    def proof(self) -> str:
        return f"{self.cursor}-proof"


def run(job: Job, want: Want) -> Values:
    """Move what is there, and prove it. Raises `JobError` for what can't be moved."""
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
                "holds": None, "shares": shares(live, None, partitions),
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
    """How many partitions the target will have. Raises `JobError`."""
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
            raise JobError(f"there is no queue {want.to!r}; say with --partitions how many it is to have")
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
    """Messages by state."""
    counted = {row["state"]: row["count"] for row in rows.groupBy("state").count().collect()}
    found: Values = {state: counted.get(state, 0) for state in ("active", "deferred", "delayed")}
    # Reading by position leaves out what has none yet:
    found["scheduled"] = max(0, source.messages - sum(counted.values()))
    found["dead_lettered"] = source.dead_letter_messages
    return found


def _check_states(want: Want, states: Values) -> None:
    waiting = {state: states[state] for state in ("deferred", "scheduled") if states[state]}
    if waiting and not want.leave:
        told = " and ".join(f"{count:,} {state} messages" for state, count in waiting.items())
        raise JobError(
            f"{want.source!r} has {told}, which only those who hold their sequence numbers can receive or cancel: have "
            "them do so first, or leave these messages where they are with --leave"
        )


def _check_ids(rows: DataFrame, target: EntityInfo) -> None:
    """Copies come all at once: what a window of time has kept apart would be dropped."""
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
    """Have the target, the cursors and the note; raises `JobError` when they are of another run."""
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
    """Until nothing is left, or it is clear that there will always be something."""
    checkpoint = Place(job.spark, want.state).at("checkpoint")
    reading = {
        "connection": want.connection, "entity": want.source, "mode": "consume", "cursor": want.cursor,
        "maxMessagesPerTrigger": str(BATCH), "revokeLocks": str(want.revoke_locks).lower(),
    }  # fmt: skip
    for _ in range(ROUNDS):
        rows = job.spark.readStream.format("partibus").options(**reading).load()
        # The rest of its life goes with a message, which begins a new one:
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
    """`Proof` and shares, of all that was moved since the job was first started."""
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
    """What was kept for the proof goes; the move's own cursor too."""
    with closing(open_ranges(want.connection, entity)) as ranges:
        for name in (want.proof, want.cursor) if entity == want.source else (want.proof,):
            with suppress(CursorLost):
                ranges.close_cursor(name, drop=True)
