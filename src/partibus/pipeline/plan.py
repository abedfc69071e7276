"""The job `plan`: hot partitions and keys, the effect of other partition counts, and splits and merges."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from partibus.client.extensions.cluster import PLAN_VERSION
from partibus.pipeline.balance import (
    SIGNIFICANT_ROWS,
    STANDARD_PARTITION_COUNT,
    Merge,
    Plan,
    Prediction,
    Split,
    observed_count,
    plan,
    predict,
    runs_of,
    skew,
)
from partibus.pipeline.capture import CAPTURE, MESSAGES
from partibus.pipeline.job import Job, JobError, Values, fault_of
from partibus.pipeline.loads import Loads, collect_loads, key_loads, message_rows, range_of, sent_rows
from partibus.pipeline.logs import read_parquet
from partibus.pipeline.place import Place
from partibus.pipeline.plan_page import plan_page
from partibus.pipeline.report.page import (
    counted,
    percent,
)
from partibus.pipeline.rows import GIVE_TELEMETRY, of_entities, read_rows, within
from partibus.pipeline.telemetry import is_subscription
from partibus.routing.elastic import rebalance
from partibus.routing.slots import SLOT_COUNT, SlotMap, partition_for_slot

COUNTS = (1, 2, 4, 8, 16, 32, 64)
WORTHWHILE = 0.9
"""The share of the busiest partition's load that a move of slots may leave to it; above that no move is proposed."""
NOT_PARTITIONED = 1.5
"""Partitions that are worth fewer full ones than this help little."""
HOT_KEY = 0.5
"""A key is hot when it alone has this share of a partition's mean load."""


class Want(NamedTuple):
    """The request for a plan."""

    paths: Sequence[str]
    messages_of: str | None = None
    """The entity whose messages the paths hold; None: they hold telemetry."""
    entities: Sequence[str] = ()
    since: datetime | None = None
    until: datetime | None = None
    counts: Sequence[int] = COUNTS
    partitions: int | None = None
    """The present number of partitions; None: derived from the data."""
    ratio: float = 1.5
    """The multiple of the mean load that a partition may carry."""
    count_max: int = 64
    by_bytes: bool = False
    entities_max: int = 20
    keys_max: int = 10
    plan_file: str | None = None
    """The file for the slots to move, which `partibus partition rebalance --plan` reads."""


_GIVE_MESSAGES = "give the folder of `partibus pipeline capture --out`, or a folder of Parquet files"


def run(job: Job, want: Want) -> Values:
    """Return the result. The job changes nothing."""
    job.check_paths(want.paths, GIVE_TELEMETRY if want.messages_of is None else _GIVE_MESSAGES)
    spark = job.spark
    if want.messages_of is None:
        rows = sent_rows(of_entities(within(read_rows(spark, want.paths), want.since, want.until), want.entities))
    else:
        rows = within(message_rows(_messages(spark, want.paths), want.messages_of), want.since, want.until)
    keys = key_loads(rows, want.by_bytes).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        with job.step("add up keys"):
            whole = job.watched(lambda: range_of(keys))
        with job.step("ask the sums"):
            loads = job.watched(
                lambda: collect_loads(spark, keys, entities_max=want.entities_max, keys_max=want.keys_max)
            )
    finally:
        keys.unpersist()
    entities = [describe(one, want) for one in loads]
    found = {"unit": "bytes" if want.by_bytes else "messages", "entities": entities, **whole}
    if want.plan_file is not None:
        write_plan(Path(want.plan_file), loads, entities)
    job.finish(found, page=plan_page)
    return found


def _messages(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Read tables of messages; of the folder of a capture, its messages. Raises `JobError`."""
    tables = [f"{path.rstrip('/')}/{MESSAGES}" if Place(spark, path).exists(CAPTURE) else path for path in paths]
    try:
        return read_parquet(spark, tables, recursive=False)
    except AnalysisException as error:
        raise JobError(f"no table of messages at {', '.join(paths)}: {fault_of(error)}; {_GIVE_MESSAGES}") from None


def describe(loads: Loads, want: Want) -> Values:
    """Describe one entity. Raises `JobError` when ``want.partitions`` is less than it has."""
    count, has_moved = _present_count(loads, want)
    placed = loads.placed if has_moved else None
    now = predict(loads.slots, loads.unkeyed, count, loads.rows, loads.sampled_share, placed)
    predictions = [
        now if other == count else predict(loads.slots, loads.unkeyed, other, loads.rows, loads.sampled_share)
        for other in sorted({*want.counts, count})
    ]
    known = loads.rows >= SIGNIFICANT_ROWS
    planned = Plan(want.ratio / count, [], [], [], []) if has_moved else _planned(loads, want, now, count, known)
    observed = [loads.partitions.get(partition, 0.0) for partition in range(count)]
    largest = _largest_keys(loads, count, known, placed)
    told = advice(loads, count, predictions, planned, largest, want.ratio)
    return {
        "namespace": loads.namespace,
        "entity": loads.entity,
        "load": round(loads.total),
        "rows": loads.rows,
        "sampled_share": loads.sampled_share,
        "keys": loads.key_count,
        "keyed_share": 1 - loads.unkeyed / loads.total if loads.total else 0.0,
        "partitions": count,
        "slots_moved": has_moved,
        "observed": [round(load) for load in observed],
        "observed_skew": skew(observed)._asdict(),
        "now": _prediction(now),
        "hot_partitions": [
            {"partition": partition, "share": share, "times_mean": share * count}
            for partition, share in enumerate(now.shares)
            if known and share * count > want.ratio
        ],
        "largest_keys": largest,
        "predictions": [_prediction(one) for one in predictions],
        "plan": _plan(planned, now),
        "advice": [*told, _MOVED] if has_moved else told,
    }


_MOVED = (
    "Slots of this entity have moved, or its number of partitions has changed: the figures of now have each slot in "
    "the partition where its keys were last found, and no splits or merges are planned. If the number has changed, "
    "repeat this command with `--partitions`."
)


def _present_count(loads: Loads, want: Want) -> tuple[int, bool]:
    """Return the number of partitions that the entity has now, and whether slots have moved. Raises `JobError`."""
    least = max(loads.partitions, default=0) + 1
    count = want.partitions or observed_count(loads.placed, sorted(loads.partitions))
    if count is None:
        return least, True
    if count < least:
        raise JobError(f"--partitions is {count}, but messages of '{loads.entity}' are in partition {least - 1}")
    return count, False


def _planned(loads: Loads, want: Want, now: Prediction, count: int, known: bool) -> Plan:
    """Plan splits and merges, but none from a few messages, or from empty ones by bytes."""
    if not known or not loads.total:
        nothing = plan({}, loads.total, runs_of(count), loads.total + 1, count)
        return nothing._replace(actions=[], runs=runs_of(count), shares=list(now.shares))
    mean = loads.total / count
    return plan(loads.slots, loads.unkeyed, runs_of(count), want.ratio * mean, max(want.count_max, count))


def _largest_keys(loads: Loads, count: int, known: bool, placed: Mapping[int, int] | None) -> list[Values]:
    mean = loads.total / count
    return [
        {
            "key": key.key,
            "slot": key.slot,
            "partition": partition_for_slot(key.slot, count) if placed is None else placed[key.slot],
            "load": round(key.load),
            "share": key.load / loads.total if mean else 0.0,
            "times_mean": key.load / mean if mean else 0.0,
            "hot": known and key.load > HOT_KEY * mean and count > 1,
        }
        for key in loads.keys
    ]


def _prediction(one: Prediction) -> Values:
    return {**one._asdict(), "shares": [round(share, 6) for share in one.shares], "skew": one.skew._asdict()}


def _plan(planned: Plan, now: Prediction) -> Values:
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
        "largest_share": max(planned.shares, default=now.largest_share),
        "stuck": [run.partition for run in planned.stuck],
        "partitions": [
            {"partition": run.partition, "first_slot": run.first, "end_slot": run.end, "share": share}
            for run, share in zip(planned.runs, planned.shares, strict=True)
        ],
    }


def write_plan(path: Path, loads: Sequence[Loads], entities: Sequence[Values]) -> None:
    """Write what `partibus partition rebalance --plan` carries out: the slots that belong to another partition."""
    plans = [planned_slots(one, entity) for one, entity in zip(loads, entities, strict=True)]
    document = {"partibus_plan": PLAN_VERSION, "entities": plans}
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.new")
    aside.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    aside.replace(path)


class Relief(NamedTuple):
    """Slots to move between the partitions that are there."""

    runs: list[tuple[int, int, int]]
    """(first slot, last slot, new partition)."""
    before: float
    """The busiest partition's share of the load with keys."""
    after: float

    @property
    def slots(self) -> int:
        """The number of slots to move."""
        return sum(last - first + 1 for first, last, _ in self.runs)


def relieve(loads: Loads, count: int) -> Relief:
    """Choose slots whose move relieves the busiest of ``count`` partitions, as the broker does."""
    owners = [partition_for_slot(slot, count) for slot in range(SLOT_COUNT)]
    for slot, partition in loads.placed.items():
        owners[slot] = partition
    starts = [slot for slot in range(SLOT_COUNT) if not slot or owners[slot - 1] != owners[slot]]
    wanted = rebalance(SlotMap(count, 1, [(slot, owners[slot]) for slot in starts]), loads.slots)
    runs = [(first, last, target) for _, target, moved in wanted.moves for first, last in moved]
    return Relief(sorted(runs), max(wanted.before), max(wanted.after))


def planned_slots(loads: Loads, entity: Values) -> Values:
    """Return the part of a plan file about one entity.

    ``same_count`` relieves hot partitions of an entity whose number of partitions is fixed. ``other_count`` has the
    splits and merges, for a queue whose partitions follow its load. Runs are (first slot, last slot, partition).
    """
    count = entity["partitions"]
    known = loads.rows >= SIGNIFICANT_ROWS
    relief = relieve(loads, count) if known else Relief([], 0.0, 0.0)
    ends = [(run["first_slot"], run["end_slot"] - 1, run["partition"]) for run in entity["plan"]["partitions"]]
    return {
        "namespace": loads.namespace,
        "entity": loads.entity,
        "partitions": count,
        "same_count": {
            "slots": relief.runs,
            "largest_share_before": relief.before,
            "largest_share_after": relief.after,
        },
        "other_count": {
            "partitions": len(ends) or count,
            "slots": numbered(ends) if known and entity["plan"]["actions"] else [],
            "largest_share_before": entity["now"]["largest_share"],
            "largest_share_after": entity["plan"]["largest_share"],
        },
    }


def numbered(runs: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return runs with partitions from 0 on without a gap, where as many as possible keep theirs."""
    used = {partition for *_, partition in runs}
    free = iter(sorted(set(range(len(used))) - used))
    name = {partition: partition if partition < len(used) else next(free) for partition in sorted(used)}
    return [(first, last, name[partition]) for first, last, partition in runs]


def advice(
    loads: Loads, count: int, predictions: Sequence[Prediction], planned: Plan, keys: Sequence[Values], ratio: float
) -> list[str]:
    """Return sentences of advice, the most important first.

    ``count`` is the present number of partitions, which is among ``predictions``. ``keys`` are the largest keys, as in
    the result. ``ratio`` is the multiple of the mean that a partition may carry.
    """
    if not loads.slots:
        return ["No message has a key: the load spreads evenly over any number of partitions."]
    if loads.rows < SIGNIFICANT_ROWS:
        return [
            f"Only {loads.rows:,} messages are known, and {SIGNIFICANT_ROWS} are needed to tell a hot partition from "
            "chance. Look at a longer time, or sample more."
        ]
    if not loads.total:
        return ["The known messages are empty: without `--by-bytes` they are counted instead."]
    now = next(one for one in predictions if one.partitions == count)
    if now.skew.largest_over_mean <= ratio:
        found = [*_keys(keys, ratio), *_even(now)]
    else:
        found = [*_keys(keys, ratio), *_moves(loads, count), *_splits(loads.entity, now, planned)]
    return [*found, *_counts(loads, now, predictions), *_merges(loads.entity, planned), *_doubt(loads, now)]


def _keys(keys: Sequence[Values], ratio: float) -> Iterator[str]:
    for key in keys:
        if key["hot"] and key["times_mean"] > ratio:
            yield (
                f"The key '{key['key']}' alone has {percent(key['share'])} of the load, {key['times_mean']:.1f} times "
                "what a partition has on average. No number of partitions takes that from its partition. Salt the key "
                "in the senders: append something of the message, where the order of the whole key is not needed."
            )


def _even(now: Prediction) -> Iterator[str]:
    yield (
        f"The busiest of {now.partitions} partitions carries {now.skew.largest_over_mean:.2f} times the mean: nothing "
        "to do."
        if now.partitions > 1
        else "There is one partition, which carries everything."
    )


def _moves(loads: Loads, count: int) -> Iterator[str]:
    if count == 1:
        return
    if is_subscription(loads.entity):
        yield "Slots of topics and subscriptions do not move. Give the topic's messages more distinct keys."
        return
    relief = relieve(loads, count)
    if relief.after > WORTHWHILE * relief.before:
        yield f"No move of slots between the {count} partitions helps. Send with more distinct keys."
        return
    yield (
        f"A move of {relief.slots:,} slots between the {count} partitions lowers the busiest one's share of the load "
        f"with keys from {percent(relief.before)} to {percent(relief.after)}. Repeat this command with "
        f"`--plan-file FILE`, then run `partibus partition rebalance {loads.entity} --plan FILE`, for a queue without "
        "sessions with `--any-order`. Slots of a topic do not move: give its messages more distinct keys."
    )


def _splits(entity: str, now: Prediction, planned: Plan) -> Iterator[str]:
    if is_subscription(entity):
        return
    splits = sum(isinstance(action, Split) for action in planned.actions)
    if splits and max(planned.shares) <= WORTHWHILE * now.largest_share:
        yield (
            f"With {counted(splits, 'split')} the busiest partition would carry {percent(max(planned.shares))} of the "
            f"load instead of {percent(now.largest_share)}. {_elastic_only(entity)}"
        )
    for run in planned.stuck:
        if run.partition < now.partitions:  # the others are only in the plan
            yield (
                f"No split helps partition {run.partition}: nearly all of its load is in one slot, mostly of one key. "
                "Salt this key."
            )


def _elastic_only(entity: str) -> str:
    return (
        "Only a queue with `--elastic-partitions` can do this: "
        f"`partibus partition rebalance {entity} --plan FILE` carries it out."
    )


def _counts(loads: Loads, now: Prediction, predictions: Sequence[Prediction]) -> Iterator[str]:
    """Advise on the partition counts that a queue can be created with."""
    wanted = {one.partitions: one for one in predictions}
    many = wanted.get(STANDARD_PARTITION_COUNT)
    command = f"`partibus pipeline repartition {loads.entity} --to NEW --partitions"
    if now.partitions < STANDARD_PARTITION_COUNT and many and many.largest_share < 0.75 * now.largest_share:
        yield (
            f"With {many.partitions} partitions the busiest would carry {percent(many.largest_share)}: they are worth "
            f"{many.effective_partitions:.1f} full ones, now {now.effective_partitions:.1f}. "
            f"If one store is the limit, run {command} {many.partitions}`."
        )
    elif now.partitions == STANDARD_PARTITION_COUNT and now.effective_partitions < NOT_PARTITIONED:
        yield (
            f"The {now.partitions} partitions are worth {now.effective_partitions:.1f} full ones: a queue that is not "
            f"partitioned carries nearly as much. Salt the keys, or run {command} 1`."
        )


def _merges(entity: str, planned: Plan) -> Iterator[str]:
    merges = sum(isinstance(action, Merge) for action in planned.actions)
    if merges and not is_subscription(entity):
        yield (f"{counted(merges, 'merge')} of cold neighbours would free as many partitions. {_elastic_only(entity)}")


def _doubt(loads: Loads, now: Prediction) -> Iterator[str]:
    if now.error > 0.1 * now.largest_share:
        yield (
            f"Only {loads.rows:,} messages are known: the largest share may be off by {percent(now.error)}. Look at a "
            "longer time, or sample more."
        )
