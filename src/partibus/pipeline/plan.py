"""The job `plan`: hot partitions and keys, the effect of other partition counts, and splits and merges."""

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from partibus.client.extensions.cluster import PLAN_VERSION
from partibus.pipeline.balance import (
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
from partibus.pipeline.capture import CAPTURE, MESSAGES, Place
from partibus.pipeline.job import Job, JobError
from partibus.pipeline.loads import Loads, collect_loads, key_loads, message_rows, range_of, sent_rows
from partibus.pipeline.logs import read_parquet
from partibus.pipeline.report.page import (
    Page,
    Section,
    Verdict,
    code,
    counted,
    figure,
    mark,
    moment_of,
    number,
    paragraph,
    percent,
    prose,
    table,
)
from partibus.pipeline.report.plots import bars, curve, ranking, strip
from partibus.pipeline.rows import of_entities, read_rows, within
from partibus.pipeline.telemetry import is_subscription
from partibus.routing.elastic import rebalance
from partibus.routing.slots import SLOT_COUNT, SlotMap, partition_for_slot

Values = dict[str, Any]

COUNTS = (1, 2, 4, 8, 16, 32, 64)
SIGNIFICANT_ROWS = 100
"""Messages that must be known before a partition or key is called hot: fewer differ by chance."""
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


def run(job: Job, want: Want) -> Values:
    """Return the result. The job changes nothing."""
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
        raise JobError(
            f"no table of messages at {', '.join(paths)}: {error.getCondition() or error}. Give the folder of "
            "`partibus pipeline capture --out`, or a folder of Parquet files"
        ) from None


def describe(loads: Loads, want: Want) -> Values:
    """Describe one entity. Raises `JobError` when its number of partitions can't be derived."""
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
    known = loads.rows >= SIGNIFICANT_ROWS
    # Of a few messages no change is proposed: a plan without slots has none.
    planned = plan(
        loads.slots if known else {}, loads.unkeyed if known else loads.total, runs_of(count),
        want.ratio * mean if known else loads.total + 1, max(want.count_max, count) if known else count,
    )  # fmt: skip
    if not known:
        planned = planned._replace(actions=[], runs=runs_of(count), shares=list(now.shares))
    observed = [loads.partitions.get(partition, 0.0) for partition in range(count)]
    hot_keys = [
        {
            "key": key.key,
            "slot": key.slot,
            "partition": partition_for_slot(key.slot, count),
            "load": round(key.load),
            "share": key.load / loads.total,
            "times_mean": key.load / mean,
            "hot": known and key.load > HOT_KEY * mean and count > 1,
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
            if known and share * count > want.ratio
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
            "partitions": len(ends),
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


def plan_page(found: Values) -> Page:
    """Make the page of a result of `run`."""
    entities: list[Values] = found["entities"]
    hot = [entity for entity in entities if entity["hot_partitions"]]
    worst = max(entities, key=lambda entity: entity["now"]["skew"]["largest_over_mean"], default=None)
    return Page(
        title="Partitions and keys",
        lead=f"How {found['unit']} spread over partitions when sent, what other partitions would do, what to change. "
        + _seen(found, entities),
        verdict=None
        if worst is None
        else Verdict(None, "TOO FEW MESSAGES", f"No entity has {SIGNIFICANT_ROWS} known messages, so none is judged.")
        if all(entity["rows"] < SIGNIFICANT_ROWS for entity in entities)
        else Verdict(True, "EVEN", "No partition carries more than it may.")
        if not hot
        else Verdict(
            False,
            "HOT",
            f"{len(hot)} of {counted(len(entities), 'entity has', 'entities have')} a partition that carries more than "
            "it may; the worst is "
            f"{worst['entity']} with {worst['now']['skew']['largest_over_mean']:.1f} times the mean.",
        ),
        tiles=[
            (number(len(entities)), "entities"),
            (number(sum(entity["load"] for entity in entities)), found["unit"]),
            (number(sum(entity["keys"] for entity in entities)), "keys"),
            (number(sum(len(entity["hot_partitions"]) for entity in entities)), "hot partitions"),
            (number(sum(key["hot"] for entity in entities for key in entity["largest_keys"])), "hot keys"),
            (
                number(sum(len(entity["plan"]["actions"]) for entity in entities)),
                "splits and merges, for elastic queues",
            ),
        ],
        sections=[
            Section("Entities", [_overview(entities)]),
            *(Section(one["entity"], _entity(one)) for one in entities),
        ],
    )


def _seen(found: Values, entities: Sequence[Values]) -> str:
    """State the time range, the sample, and what the figures do not include."""
    times = f"{moment_of(found['from'])} to {moment_of(found['to'])}" if found["from"] else "Messages of unknown times"
    rows, sampled = found["rows"], [entity["sampled_share"] for entity in entities]
    left_out = found["entity_count"] - len(entities)
    return (
        f"{times}: {rows:,} messages are known"
        + (", which is every one" if min(sampled, default=1.0) > 0.999 else f", {percent(min(sampled))} or more of all")
        + (f"; left out: {counted(left_out, 'less busy entity', 'less busy entities')}" if left_out else "")
        + ". Sends that the broker refused are not counted."
    )


def _overview(entities: list[Values]) -> str:
    return table(
        [
            "entity",
            "load",
            "with a key",
            "keys",
            "partitions",
            "busiest / mean",
            "Gini",
            "effective partitions",
            "after the plan",
            "even",
        ],
        [
            [
                code(entity["entity"]),
                number(entity["load"]),
                percent(entity["keyed_share"]),
                number(entity["keys"]),
                number(entity["partitions"]),
                f"{entity['now']['skew']['largest_over_mean']:.2f}",
                f"{entity['now']['skew']['gini']:.2f}",
                f"{entity['now']['effective_partitions']:.1f}",
                f"{1 / entity['plan']['largest_share']:.1f}",
                mark(not entity["hot_partitions"]),
            ]
            for entity in entities
        ],
        range(1, 9),
    )


def _entity(entity: Values) -> list[str]:
    advice = "".join(f"<li>{prose(sentence)}</li>" for sentence in entity["advice"])
    blocks = [f"<ul>{advice}</ul>"]
    if entity["partitions"] > 1:
        ratio = entity["plan"]["limit_share"] * entity["partitions"]
        charts = [
            ("share of the load as observed, %", _percents(entity["observed"])),
            ("as predicted from the load of slots, %", [share * 100 for share in entity["now"]["shares"]]),
        ]
        blocks.append(figure(bars(f"Load per partition of {entity['entity']}", charts, limit=ratio)))
    blocks += _predictions(entity)
    if entity["largest_keys"]:
        keys = [(f"{key['partition']}: {key['key']}", key["share"]) for key in entity["largest_keys"]]
        title = "partition: largest keys, share of the load"
        blocks.append(figure(ranking(f"Largest keys of {entity['entity']}", title, keys, percent)))
    return blocks + _steps(entity)


def _predictions(entity: Values) -> list[str]:
    """Show how the load would spread over other numbers of partitions."""
    blocks = []
    predictions = entity["predictions"]
    counts = [one["partitions"] for one in predictions]
    if entity["keyed_share"] > 0:
        blocks.append(
            figure(
                curve(
                    f"Other partition counts for {entity['entity']}",
                    "effective partitions",
                    {"as this load would spread": (counts, [one["effective_partitions"] for one in predictions]),
                     "if it were even": (counts, counts)},
                    "partitions",
                    "effective",
                    {},
                ),
                "Partitions that would be full when the busiest one is. Where the curve flattens, single keys are "
                "too large for more partitions to help.",
            )
        )  # fmt: skip
    blocks.append(
        table(
            ["partitions", "busiest carries", "±", "busiest / mean", "Gini", "effective partitions"],
            [
                [
                    f"<b>{one['partitions']} (now)</b>"
                    if one["partitions"] == entity["partitions"]
                    else number(one["partitions"]),
                    percent(one["largest_share"]),
                    percent(one["error"]) if one["error"] else "",
                    f"{one['skew']['largest_over_mean']:.2f}",
                    f"{one['skew']['gini']:.2f}",
                    f"{one['effective_partitions']:.1f}",
                ]
                for one in predictions
            ],
            range(6),
        )
    )
    return blocks


def _steps(entity: Values) -> list[str]:
    """Show the plan's splits and merges, and the partitions that no split helps."""
    blocks = []
    now, planned = entity["now"], entity["plan"]
    if planned["actions"]:
        blocks.append(
            paragraph(
                "Splits and merges, which only a queue whose number of partitions follows its load "
                "(PartibusElasticPartitions) can carry out:"
            )
        )
        before = [
            (run.first, run.end, share) for run, share in zip(runs_of(entity["partitions"]), now["shares"], strict=True)
        ]
        after = [(one["first_slot"], one["end_slot"], one["share"]) for one in planned["partitions"]]
        blocks.append(
            figure(strip(f"Slots of {entity['entity']}", "each partition's slots and share of the load", before, after))
        )
        blocks.append(
            table(
                ["step", "change", "shares of the load then"],
                [_action(n, one) for n, one in enumerate(planned["actions"], 1)],
                (0,),
            )
        )
    if planned["stuck"]:
        blocks.append(paragraph(_stuck(planned["stuck"])))
    return blocks


def _stuck(partitions: list[int]) -> str:
    *others, last = map(str, partitions)
    which = f"partitions {', '.join(others)} and {last}" if others else f"partition {last}"
    return f"No split helps {which}: nearly all is in one slot{' of each' if others else ''}."


def _action(place: int, action: Values) -> list[str]:
    if action["action"] == "split":
        shares = " and ".join(percent(share) for share in action["shares"])
        where = f"split partition {action['partition']} at slot {action['at_slot']:,}"
        return [str(place), f"{where}: the slots above become partition {action['new_partition']}", shares]
    return [
        str(place),
        f"merge partitions {action['partition']} and {action['with_partition']}",
        percent(action["share"]),
    ]


def _percents(loads: list[float]) -> list[float]:
    total = sum(loads) or 1
    return [load / total * 100 for load in loads]
