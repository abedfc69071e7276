"""What the job `plan` found, as a page."""

from html import escape
from typing import Any

from partibus.pipeline.balance import runs_of
from partibus.pipeline.report.page import (
    Page,
    Section,
    Verdict,
    code,
    figure,
    mark,
    number,
    paragraph,
    percent,
    table,
)
from partibus.pipeline.report.plots import bars, curve, ranking, strip

Values = dict[str, Any]


def plan_page(found: Values) -> Page:
    """The page of `plan.run`'s values."""
    entities: list[Values] = found["entities"]
    hot = [entity for entity in entities if entity["hot_partitions"]]
    worst = max(entities, key=lambda entity: entity["now"]["skew"]["largest_over_mean"], default=None)
    return Page(
        title="Partitions and keys",
        lead=f"How {found['unit']} spread over partitions when sent, what other partitions would do, what to change.",
        verdict=None
        if worst is None
        else Verdict(True, "EVEN", "No partition carries more than it may.")
        if not hot
        else Verdict(
            False,
            "HOT",
            f"{len(hot)} of {len(entities)} entities have a partition that carries more than it may; the worst is "
            f"{worst['entity']} with {worst['now']['skew']['largest_over_mean']:.1f} times the mean.",
        ),
        tiles=[
            (number(len(entities)), "entities"),
            (number(sum(entity["load"] for entity in entities)), found["unit"]),
            (number(sum(entity["keys"] for entity in entities)), "keys"),
            (number(sum(len(entity["hot_partitions"]) for entity in entities)), "hot partitions"),
            (number(sum(key["hot"] for entity in entities for key in entity["largest_keys"])), "hot keys"),
            (number(sum(len(entity["plan"]["actions"]) for entity in entities)), "changes proposed"),
        ],
        sections=[
            Section("Entities", [_overview(entities)]),
            *(Section(one["entity"], _entity(one)) for one in entities),
        ],
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
            "works as",
            "after the plan",
            "",
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
                f"{entity['now']['effective_partitions']:.1f} partitions",
                f"{1 / entity['plan']['largest_share']:.1f} partitions",
                mark(not entity["hot_partitions"]),
            ]
            for entity in entities
        ],
        range(1, 9),
    )


def _entity(entity: Values) -> list[str]:
    now, planned = entity["now"], entity["plan"]
    advice = "".join(f"<li>{escape(sentence)}</li>" for sentence in entity["advice"])
    blocks = [f"<ul>{advice}</ul>"]
    if entity["partitions"] > 1:
        ratio = planned["limit_share"] * entity["partitions"]
        charts = [
            ("share of the load as observed, %", _percents(entity["observed"])),
            ("as predicted from the load of slots, %", [share * 100 for share in now["shares"]]),
        ]
        blocks.append(figure(bars(f"Load per partition of {entity['entity']}", charts, limit=ratio)))
    predictions = entity["predictions"]
    counts = [one["partitions"] for one in predictions]
    if entity["keyed_share"] > 0:
        blocks.append(
            figure(
                curve(
                    f"Other partition counts for {entity['entity']}",
                    "how many full partitions that many partitions are worth",
                    {"as this load would spread": (counts, [one["effective_partitions"] for one in predictions]),
                     "if it were even": (counts, counts)},
                    "partitions",
                    "worth",
                    {},
                ),
                "The busiest partition is full first. Where the curve flattens, single keys are too large for more "
                "partitions to help.",
            )
        )  # fmt: skip
    blocks.append(
        table(
            ["partitions", "busiest carries", "±", "busiest / mean", "Gini", "works as"],
            [
                [
                    f"<b>{one['partitions']}</b> (now)"
                    if one["partitions"] == entity["partitions"]
                    else number(one["partitions"]),
                    percent(one["largest_share"]),
                    percent(one["error"]) if one["error"] else "",
                    f"{one['skew']['largest_over_mean']:.2f}",
                    f"{one['skew']['gini']:.2f}",
                    f"{one['effective_partitions']:.1f} partitions",
                ]
                for one in predictions
            ],
            range(6),
        )
    )
    if entity["largest_keys"]:
        keys = [(f"{key['key']} (partition {key['partition']})", key["share"]) for key in entity["largest_keys"]]
        blocks.append(
            figure(ranking(f"Largest keys of {entity['entity']}", "largest keys, share of the load", keys, percent))
        )
    if planned["actions"]:
        before = [
            (run.first, run.end, share) for run, share in zip(runs_of(entity["partitions"]), now["shares"], strict=True)
        ]
        after = [(one["first_slot"], one["end_slot"], one["share"]) for one in planned["partitions"]]
        blocks.append(
            figure(
                strip(f"Slots of {entity['entity']}", "who owns which slots, and its share of the load", before, after)
            )
        )
        blocks.append(
            table(
                ["", "change", "shares of the load then"],
                [_action(n, one) for n, one in enumerate(planned["actions"], 1)],
                (0,),
            )
        )
    if planned["stuck"]:
        blocks.append(
            paragraph(f"No split helps partition {', '.join(map(str, planned['stuck']))}: nearly all is in one slot.")
        )
    return blocks


def _action(place: int, action: Values) -> list[str]:
    if action["action"] == "split":
        shares = " and ".join(percent(share) for share in action["shares"])
        new = action["new_partition"]
        text = f"split partition {action['partition']} at slot {action['at_slot']:,}: what is above becomes {new}"
        return [str(place), text, shares]
    return [
        str(place),
        f"merge partitions {action['partition']} and {action['with_partition']}",
        percent(action["share"]),
    ]


def _percents(loads: list[float]) -> list[float]:
    total = sum(loads) or 1
    return [load / total * 100 for load in loads]
