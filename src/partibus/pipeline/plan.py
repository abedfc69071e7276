"""The job `plan`: hot partitions and keys, what other partition counts would do, and what to split and merge."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from pyspark import StorageLevel

from partibus.pipeline.advice import advice
from partibus.pipeline.balance import Plan, Prediction, Split, observed_count, plan, predict, runs_of
from partibus.pipeline.errors import JobError
from partibus.pipeline.job import Job
from partibus.pipeline.loads import Loads, collect_loads, key_loads, message_rows, sent_rows
from partibus.pipeline.plan_page import plan_page
from partibus.pipeline.rows import of_entities, read_rows, within
from partibus.pipeline.skew import skew
from partibus.routing.slots import partition_for_slot

Values = dict[str, Any]

COUNTS = (1, 2, 4, 8, 16, 32, 64)
HOT_KEY = 0.5
"""A key is hot when it alone has so much of what a partition has on average."""


class Want(NamedTuple):
    """What is asked for."""

    paths: Sequence[str]
    messages_of: str | None = None
    """The paths hold messages of this entity, not telemetry."""
    entities: Sequence[str] = ()
    since: datetime | None = None
    until: datetime | None = None
    counts: Sequence[int] = COUNTS
    partitions: int | None = None
    """How many there are now; None: worked out."""
    ratio: float = 1.5
    """Times the mean load that a partition may carry."""
    count_max: int = 64
    by_bytes: bool = False
    entities_max: int = 20
    keys_max: int = 10


def run(job: Job, want: Want) -> Values:
    """The result; nothing is changed."""
    spark = job.spark
    if want.messages_of is None:
        rows = sent_rows(of_entities(within(read_rows(spark, want.paths), want.since, want.until), want.entities))
    else:
        rows = message_rows(spark.read.parquet(*want.paths), want.messages_of)
    keys = key_loads(rows, want.by_bytes).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        with job.step("add up keys"):
            job.watched(keys.count)
        with job.step("ask the sums"):
            loads = job.watched(
                lambda: collect_loads(spark, keys, entities_max=want.entities_max, keys_max=want.keys_max)
            )
    finally:
        keys.unpersist()
    found = {"unit": "bytes" if want.by_bytes else "messages", "entities": [describe(one, want) for one in loads]}
    job.finish(found, page=plan_page)
    return found


def describe(loads: Loads, want: Want) -> Values:
    """All about one entity. Raises `JobError` when its partitions can't be told."""
    count = want.partitions or observed_count(loads.placed, sorted(loads.partitions))
    if count is None:
        raise JobError(
            f"'{loads.entity}' had its keys in partitions that no one number of partitions explains: its partitions "
            "changed meanwhile. Give --since after the change, or --partitions with the number of now."
        )
    if count <= max(loads.partitions, default=0):
        raise JobError(
            f"--partitions is {count}, but messages of '{loads.entity}' are in partition {max(loads.partitions)}"
        )
    now = predict(loads.slots, loads.unkeyed, count, loads.rows, loads.sampled_share)
    predictions = [
        predict(loads.slots, loads.unkeyed, other, loads.rows, loads.sampled_share)
        for other in sorted({*want.counts, count})
    ]
    mean = loads.total / count
    planned = plan(loads.slots, loads.unkeyed, runs_of(count), want.ratio * mean, max(want.count_max, count))
    observed = [loads.partitions.get(partition, 0.0) for partition in range(count)]
    hot_keys = [
        {
            "key": key.key,
            "slot": key.slot,
            "partition": partition_for_slot(key.slot, count),
            "load": round(key.load),
            "share": key.load / loads.total,
            "times_mean": key.load / mean,
            "hot": key.load > HOT_KEY * mean and count > 1,
        }
        for key in loads.keys
    ]
    return {
        "namespace": loads.namespace,
        "entity": loads.entity,
        "load": round(loads.total),
        "rows": loads.rows,
        "sampled_share": loads.sampled_share,
        "keys": loads.key_count,
        "keyed_share": 1 - loads.unkeyed / loads.total if loads.total else 0.0,
        "partitions": count,
        "observed": [round(load) for load in observed],
        "observed_skew": skew(observed)._asdict(),
        "now": _prediction(now),
        "hot_partitions": [
            {"partition": partition, "share": share, "times_mean": share * count}
            for partition, share in enumerate(now.shares)
            if share * count > want.ratio
        ],
        "largest_keys": hot_keys,
        "predictions": [_prediction(one) for one in predictions],
        "plan": _plan(planned),
        "advice": advice(loads, count, predictions, planned, hot_keys, want.ratio),
    }


def _prediction(one: Prediction) -> Values:
    return {**one._asdict(), "shares": [round(share, 6) for share in one.shares], "skew": one.skew._asdict()}


def _plan(planned: Plan) -> Values:
    actions: list[Values] = [
        {
            "action": "split",
            "partition": one.partition,
            "at_slot": one.at,
            "new_partition": one.new,
            "shares": one.shares,
        }
        if isinstance(one, Split)
        else {"action": "merge", "partition": one.partition, "with_partition": one.gone, "share": one.share}
        for one in planned.actions
    ]
    return {
        "limit_share": planned.limit_share,
        "actions": actions,
        "largest_share": max(planned.shares),
        "stuck": [run.partition for run in planned.stuck],
        "partitions": [
            {"partition": run.partition, "first_slot": run.first, "end_slot": run.end, "share": share}
            for run, share in zip(planned.runs, planned.shares, strict=True)
        ],
    }
