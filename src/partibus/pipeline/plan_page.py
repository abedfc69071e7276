"""The page of the job `plan`."""

from collections.abc import Sequence
from math import inf

from partibus.pipeline.balance import SIGNIFICANT_ROWS, runs_of
from partibus.pipeline.job import Values
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
    whole,
)
from partibus.pipeline.report.plots import bars, curve, ranking, strip


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
    times = f"From {moment_of(found['from'])} to {moment_of(found['to'])}" if found["from"] else "At unknown times"
    rows, sampled = found["rows"], [entity["sampled_share"] for entity in entities]
    left_out = found["entity_count"] - len(entities)
    if not rows:
        return "No messages are known. Sends that the broker refused are not counted."
    return (
        f"{times}: {counted(rows, 'message is', 'messages are')} known"
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
                whole("not judged") if entity["rows"] < SIGNIFICANT_ROWS else mark(not entity["hot_partitions"]),
            ]
            for entity in entities
        ],
        range(1, 9),
    )


def _entity(entity: Values) -> list[str]:
    advice = "".join(f"<li>{prose(sentence)}</li>" for sentence in entity["advice"])
    blocks = [f"<ul>{advice}</ul>"]
    if entity["partitions"] > 1:
        limit = entity["plan"]["limit_share"]
        # Of few messages the limit that allows for chance can be above all of the load.
        ratio = limit * entity["partitions"] if limit < 1 else None
        charts = [
            ("share of the load as observed, %", _percents(entity["observed"])),
            ("as predicted from the load of slots, %", [share * 100 for share in entity["now"]["shares"]]),
        ]
        blocks.append(figure(bars(f"Load per partition of {entity['entity']}", charts, limit=ratio, hot=inf)))
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
            ["partitions", "busiest carries", "± (95 %)", "busiest / mean", "Gini", "effective partitions"],
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
