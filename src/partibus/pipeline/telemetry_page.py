"""The page of the job `telemetry`."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

from partibus.pipeline.report.page import (
    Page,
    Section,
    Verdict,
    beside,
    code,
    figure,
    folded,
    number,
    paragraph,
    percent,
    table,
    text,
    time_of_us,
)
from partibus.pipeline.report.plots import bars, lines

Values = dict[str, Any]

ENTITIES_SHOWN = 8
"""The number of entities with a section of their own."""
CURVES_MAX = 5
HOT = 1.5
"""A partition is hot at this multiple of the mean load."""
_PERCENTILES: Final = {"p50": "p50", "p90": "p90", "p99": "p99", "p99_9": "p99.9", "largest": "largest"}


def telemetry_page(found: Values) -> Page:
    """Make the page of a result of `telemetry.summarize`."""
    if not found["rows"]:
        return Page("Telemetry", "There are no rows in what was read.", [])
    entities: list[Values] = found["entities"]
    sampled = found["sampled_share"]
    return Page(
        title="Telemetry",
        lead=f"{found['from'][:19]} to {found['to'][:19]}: {found['rows']:,} rows of telemetry, "
        + ("of every message." if sampled > 0.999 else f"of {percent(sampled)} of the messages; figures are of all."),
        verdict=_verdict(entities),
        tiles=_tiles(found),
        sections=[
            Section("Over time", _over_time(found)),
            Section("Entities", _entities(found)),
            *(Section(entity["entity"], _entity(entity)) for entity in entities[:ENTITIES_SHOWN]),
            *([Section("Commits", _commits(found))] if found["commits"] else []),
        ],
    )


def _verdict(entities: list[Values]) -> Verdict:
    """Return the most important findings, the most harmful first."""
    said = []
    if throttled := sum(entity["throttled"] for entity in entities):
        said.append(f"{throttled:,} operations were throttled")
    if refused := sum(sum(entity["refused"].values()) for entity in entities) - throttled:
        said.append(f"{refused:,} were refused for other reasons")
    if expired := sum(entity["locks_expired"] for entity in entities):
        said.append(f"{expired:,} locks expired")
    if lettered := sum(entity["dead_lettered"] for entity in entities):
        said.append(f"{lettered:,} messages were dead-lettered")
    hot = [
        f"{entity['entity']} ({entity['skew']['sent']['largest_over_mean']:.1f} times the mean)"
        for entity in entities
        if entity["skew"].get("sent") and entity["skew"]["sent"]["largest_over_mean"] >= HOT
    ]
    if hot:
        more = f" and {len(hot) - 3} more" if len(hot) > 3 else ""
        said.append(f"one partition carries far more than the others in {', '.join(hot[:3])}{more}")
    if not said:
        return Verdict(True, "CALM", "Nothing was refused, no lock expired, no partition is hot.")
    sentence = "; ".join(said)
    return Verdict(None, "LOOK AT THIS", f"{sentence[0].upper()}{sentence[1:]}.")


def _tiles(found: Values) -> list[tuple[str, str]]:
    entities: list[Values] = found["entities"]
    totals = {name: sum(entity[name] for entity in entities) for name in ("sent", "delivered", "redelivered")}
    tiles = [
        (number(totals["sent"]), "messages sent"),
        (f"{totals['sent'] / found['seconds']:,.0f}/s", "sent on average"),
        (f"{totals['delivered'] / found['seconds']:,.0f}/s", "delivered on average"),
        (percent(totals["redelivered"] / totals["delivered"] if totals["delivered"] else 0), "of deliveries repeated"),
        (number(found["entity_count"]), "entities"),
    ]
    if found["commits"]:
        tiles.append((f"{found['commits']['messages_per_commit']:.0f}", "messages per commit"))
    return tiles


def _over_time(found: Values) -> list[str]:
    points: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    names = ("sent", "delivered", "completed", "redelivered", "refused")
    for row in found["series"]:
        for name in names:
            points[row["at"]][name] += row[name]
    # The last step has only begun when the rows end.
    times = sorted(points)[: -1 if len(points) > 3 else None]
    curves = {name: (times, [points[at][name] for at in times]) for name in names}
    troubles = {name: curves.pop(name) for name in ("redelivered", "refused")}
    each: dict[str, tuple[list[float], list[float]]] = {}
    for entity in found["entities"][:CURVES_MAX]:
        rows = [row for row in found["series"] if row["entity"] == entity["entity"] and row["at"] in times]
        each[entity["entity"]] = [row["at"] for row in rows], [row["sent"] for row in rows]
    return [
        figure(
            lines("Messages per second", [("messages per second", curves), ("repeated, refused per second", troubles)])
        ),
        figure(
            lines(
                "Latency over time",
                [
                    ("send: command to durable", _percentile_curves(found, "latency_us", "send", 1e-6)),
                    ("age of a message at delivery", _percentile_curves(found, "dwell_ms", "deliver", 1e-3)),
                ],
                unit=lambda seconds: time_of_us(seconds * 1e6),
                log=True,
            ),
            "Percentiles per minute, right within 2 % of the value; the scale is logarithmic.",
        ),
        *(
            [figure(lines("Messages sent per second and entity", [("sent per second, by entity", each)]))]
            if len(each) > 1
            else []
        ),
    ]


def _percentile_curves(found: Values, measure: str, op: str, unit: float) -> dict[str, tuple[list[float], list[float]]]:
    rows = [row for row in found["latency_series"] if row["measure"] == measure and row["op"] == op]
    return {
        name: ([row["at"] for row in rows], [max(row[key] * unit, 1e-6) for row in rows])
        for key, name in _PERCENTILES.items()
        if key in ("p50", "p99", "largest") and rows
    }


def _entities(found: Values) -> list[str]:
    rows = [
        [
            code(entity["entity"]),
            number(entity["sent"]),
            f"{entity['per_second']['sent']['mean']:,.1f}",
            number(entity["per_second"]["sent"]["peak"]),
            number(entity["delivered"]),
            percent(entity["redelivery_share"]),
            number(entity["completed"]),
            number(entity["dead_lettered"]),
            number(sum(entity["refused"].values())),
            _time(entity, "latency_us", "send", "p50"),
            _time(entity, "latency_us", "send", "p99"),
            _time(entity, "dwell_ms", "deliver", "p50"),
            _time(entity, "dwell_ms", "deliver", "p99"),
        ]
        for entity in found["entities"]
    ]
    head = [
        "entity", "sent", "per second", "peak", "delivered", "repeated", "completed", "dead-lettered", "refused",
        "send p50", "send p99", "age at delivery p50", "p99",
    ]  # fmt: skip
    left_out = found["entities_left_out"]
    return [
        table(head, rows, range(1, len(head))),
        *([paragraph(f"{left_out:,} less busy entities are left out.")] if left_out else []),
    ]


def _entity(entity: Values) -> list[str]:
    partitions: list[Values] = entity["partitions"]
    blocks = []
    if len(partitions) > 1:
        charts = [
            ("sent", [load["sent"] for load in partitions]),
            ("delivered", [load["delivered"] for load in partitions]),
            ("bytes sent, MB", [load["sent_bytes"] / 1e6 for load in partitions]),
        ]
        skew = entity["skew"]["sent"]
        blocks.append(
            figure(
                bars(f"Load per partition of {entity['entity']}", charts),
                f"Of sent messages the busiest partition has {skew['largest_over_mean']:.2f} times the mean, the least "
                f"busy {skew['smallest_over_mean']:.2f} times; Gini {skew['gini']:.2f} (0 is even).",
            )
        )
    operations = table(
        ["operation", "messages", *_PERCENTILES.values(), "age: p50", "p99", "largest"],
        _operations(entity),
        range(1, 10),
    )
    blocks.append(operations)
    tables = []
    if entity["refused"]:
        rows = [[code(outcome), number(count)] for outcome, count in entity["refused"].items()]
        tables.append(table(["refused with", "operations"], rows, (1,)))
    if entity["keys"]:
        rows = [
            [code(key["key"]), number(key["sent"]), percent(key["share"]), number(key["redelivered"]), text(_ids(key))]
            for key in entity["keys"]
        ]
        tables.append(
            table(
                [f"busiest of {entity['key_count']:,} keys", "sent", "share", "repeated", "partition"], rows, (1, 2, 3)
            )
        )
    if tables:
        blocks.append(beside(*tables))
    if len(partitions) > 1:
        blocks.append(folded("Per partition", table(
            ["partition", "sent", "delivered", "repeated", "completed", "refused", "send p99", "age at delivery p99"],
            [
                [
                    number(load["partition"]), number(load["sent"]), number(load["delivered"]),
                    number(load["redelivered"]), number(load["completed"]), number(sum(load["refused"].values())),
                    _time(load, "latency_us", "send", "p99"), _time(load, "dwell_ms", "deliver", "p99"),
                ]
                for load in partitions
            ],
            range(8),
        )))  # fmt: skip
    return blocks


def _operations(entity: Values) -> Iterable[list[str]]:
    latency, dwell = entity["latency_us"], entity["dwell_ms"]
    for op in sorted({*latency, *dwell}, key=lambda op: (op != "send", op != "deliver", op)):
        count = (latency.get(op) or dwell[op])["count"]
        yield [
            code(op),
            number(count),
            *(_time(entity, "latency_us", op, name) for name in _PERCENTILES),
            *(_time(entity, "dwell_ms", op, name) for name in ("p50", "p99", "largest")),
        ]


def _commits(found: Values) -> list[str]:
    commits = found["commits"]
    spread = commits["duration_us"]
    rows = [[number(commits["count"]), f"{commits['per_second']:,.1f}", f"{commits['messages_per_commit']:,.1f}"]]
    if spread:
        rows[0] += [time_of_us(spread[name]) for name in _PERCENTILES]
    head = ["commits", "per second", "messages in one", *(_PERCENTILES.values() if spread else ())]
    return [
        table(head, rows, range(len(head))),
        figure(
            lines(
                "Duration of commits",
                [("duration of a commit", _percentile_curves(found, "latency_us", "commit", 1e-6))],
                unit=lambda seconds: time_of_us(seconds * 1e6),
                log=True,
            )
        ),
    ]


def _time(values: Values, measure: str, op: str, name: str) -> str:
    spread = values[measure].get(op)
    return "" if spread is None else time_of_us(spread[name] * (1 if measure == "latency_us" else 1000))


def _ids(key: Values) -> str:
    return ", ".join(map(str, key["partitions"]))
