"""The page of the job `telemetry`."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import inf
from typing import Final

from partibus.pipeline.job import Values
from partibus.pipeline.report.page import (
    Page,
    Section,
    Verdict,
    beside,
    code,
    counted,
    figure,
    folded,
    moment_of,
    number,
    paragraph,
    percent,
    table,
    text,
    time_of_us,
)
from partibus.pipeline.report.plots import HOT_MEANS, bars, lines
from partibus.pipeline.telemetry import is_subscription, step_of

ENTITIES_SHOWN = 8
"""The number of entities with a section of their own."""
CURVES_MAX = 5
SIGNIFICANT = 100
"""Messages below which a skew says nothing."""
_PERCENTILES: Final = {"p50": "p50", "p90": "p90", "p99": "p99", "p99_9": "p99.9", "largest": "largest"}


def telemetry_page(found: Values) -> Page:
    """Make the page of a result of `telemetry.summarize`."""
    if not found["rows"]:
        return Page("Telemetry", "There are no rows in what was read.", [])
    entities: list[Values] = found["entities"]
    sampled = found["sampled_share"]
    return Page(
        title="Telemetry",
        lead=f"{moment_of(found['from'])} to {moment_of(found['to'])}: {counted(found['rows'], 'row')} of telemetry, "
        + (
            "of every message."
            if sampled > 0.999
            else f"of {percent(sampled)} of the operations; figures are estimates for all."
        )
        + _unseen(found),
        verdict=_verdict(entities),
        tiles=_tiles(found),
        sections=[
            Section("Over time", _over_time(found)),
            Section("Entities", _entities(found)),
            *(Section(_title(entity, found), _entity(entity)) for entity in entities[:ENTITIES_SHOWN]),
            *([Section("Commits", _commits(found))] if found["commits"] else []),
        ],
    )


def _unseen(found: Values) -> str:
    """Say what the figures do not include."""
    left_out = found["entities_left_out"]
    return (
        (
            f" The figures leave out {counted(left_out, 'less busy entity', 'less busy entities')}; only the number of "
            "entities counts them."
            if left_out
            else ""
        )
        + ("" if found["commits"] else " No commit was recorded.")
        + " Reads by position, as Spark's, are no deliveries. Rows that a broker dropped are missing; its metric "
        "partibus_telemetry_dropped_total counts them."
    )


def _verdict(entities: list[Values]) -> Verdict:
    """Return the most important findings, the most harmful first."""
    said = []
    if throttled := sum(entity["throttled"] for entity in entities):
        said.append(f"throttling refused {counted(throttled, 'operation')}")
    if refused := sum(sum(entity["refused"].values()) for entity in entities) - throttled:
        said.append(f"the broker refused {counted(refused, 'operation')}{' for other reasons' if throttled else ''}")
    if expired := sum(entity["locks_expired"] for entity in entities):
        said.append(f"{counted(expired, 'lock')} expired")
    if lettered := sum(entity["dead_lettered"] for entity in entities):
        said.append(f"the broker dead-lettered {counted(lettered, 'message')}")
    factors = {
        entity["entity"]: entity["skew"]["sent"]["largest_over_mean"]
        for entity in entities
        if entity["sent"] >= SIGNIFICANT and entity["skew"].get("sent")
    }
    hot = [name for name in sorted(factors, key=lambda name: -factors[name]) if factors[name] >= HOT_MEANS]
    if hot:
        worst = ", ".join(f"{name} ({factors[name]:.1f} times the mean)" for name in hot[:3])
        more = f" and {len(hot) - 3} more" if len(hot) > 3 else ""
        said.append(f"one partition carries far more than the others in {worst}{more}")
    if not said:
        return Verdict(True, "CALM", "Nothing was refused, no lock expired, no partition is hot.")
    sentence = "; ".join(said)
    return Verdict(None, "LOOK AT THIS", f"{sentence[0].upper()}{sentence[1:]}.")


def _tiles(found: Values) -> list[tuple[str, str]]:
    entities: list[Values] = found["entities"]
    repeated, deliveries = sum(entity["redelivered"] for entity in entities), found["deliveries"]
    tiles = [
        (number(found["messages_in"]), "messages in"),
        (number(found["copies_stored"]), "copies stored"),
        (number(deliveries), "deliveries"),
        (f"{number(found['messages_in'] / found['seconds'])}/s", "messages in, on average"),
        (f"{number(deliveries / found['seconds'])}/s", "deliveries, on average"),
        (percent(repeated / deliveries if deliveries else 0), "of deliveries repeated"),
        (number(found["entity_count"]), "entities"),
    ]
    if found["commits"]:
        tiles.append((number(found["commits"]["messages_per_commit"]), "messages per commit"))
    return tiles


def _over_time(found: Values) -> list[str]:
    points: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in found["series"]:
        point = points[row["at"]]
        if not is_subscription(row["entity"]):
            point["messages in"] += row["sent"]
        point["deliveries"] += row["delivered"]
        for name in ("completed", "redelivered", "refused"):
            point[name] += row[name]
    times = sorted(points)
    each = _stored(found, times)
    title = "Messages stored per second and entity"
    more = [figure(lines(title, [("stored per second, by entity", each)], step=found["step_seconds"]))]
    return [_rates(found, points, times), _latencies(found), *(more if len(each) > 1 else [])]


def _rates(found: Values, points: Mapping[int, Mapping[str, float]], times: list[int]) -> str:
    step = found["step_seconds"]
    rates, troubles = (
        {"repeated" if name == "redelivered" else name: (times, [points[at][name] for at in times]) for name in names}
        for names in (("messages in", "deliveries", "completed"), ("redelivered", "refused"))
    )
    return figure(
        lines(
            "Messages per second",
            [("messages per second", rates), ("repeated, refused per second", troubles)],
            step=step,
        ),
        f"Means over {time_of_us(step * 1e6)} each. Messages in include those that the broker forwarded to another "
        "entity.",
    )


def _latencies(found: Values) -> str:
    return figure(
        lines(
            "Latency over time",
            [
                ("send: command to durable", _percentile_curves(found, "latency_us", "send", 1e-6)),
                ("age of a message at delivery", _percentile_curves(found, "dwell_ms", "deliver", 1e-3)),
            ],
            unit=lambda seconds: time_of_us(seconds * 1e6),
            log=True,
            step=_latency_step(found),
        ),
        "Percentiles per minute, right within 2 % of the value; the scale is logarithmic.",
    )


def _stored(found: Values, times: list[int]) -> dict[str, tuple[list[float], list[float]]]:
    """Return the curves of the busiest entities: times, and messages stored per second."""
    known = set(times)
    each: dict[str, tuple[list[float], list[float]]] = {}
    for entity in found["entities"][:CURVES_MAX]:
        rows = [
            row
            for row in found["series"]
            if (row["namespace"], row["entity"]) == (entity["namespace"], entity["entity"]) and row["at"] in known
        ][: len(times)]
        each[_title(entity, found)] = [row["at"] for row in rows], [row["sent"] for row in rows]
    return each


def _latency_step(found: Values) -> int:
    return step_of(found["seconds"], 60)


def _title(entity: Values, found: Values) -> str:
    """Return the entity's path, with its namespace where entities of several are shown."""
    several = len({one["namespace"] for one in found["entities"]}) > 1
    return f"{entity['namespace']}: {entity['entity']}" if several else str(entity["entity"])


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
            code(_title(entity, found)),
            number(entity["sent"]),
            number(entity["per_second"]["sent"]["mean"]),
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
        "send p50", "send p99", "age at delivery p50", "age at delivery p99",
    ]  # fmt: skip
    left_out = found["entities_left_out"]
    # The table is as broad as the page, so columns without values have to go: ages where nothing was delivered.
    kept = [place for place in range(len(head)) if not rows or any(row[place] for row in rows)]
    return [
        table([head[place] for place in kept], [[row[place] for place in kept] for row in rows], range(1, len(kept))),
        *([paragraph(f"Left out: {counted(left_out, 'less busy entity', 'less busy entities')}.")] if left_out else []),
    ]


def _entity(entity: Values) -> list[str]:
    is_partitioned = len(entity["partitions"]) > 1
    operations = table(
        ["operation", "messages", *_PERCENTILES.values(), "age: p50", "age: p99", "age: largest"],
        _operations(entity),
        range(1, 10),
    )
    tables = [*_refusals(entity), *_keys(entity)]
    return [
        *([_loads(entity)] if is_partitioned else []),
        operations,
        *([beside(*tables)] if tables else []),
        *([_per_partition(entity)] if is_partitioned else []),
    ]


def _loads(entity: Values) -> str:
    partitions: list[Values] = entity["partitions"]
    charts = [
        ("messages sent", [load["sent"] for load in partitions]),
        ("deliveries", [load["delivered"] for load in partitions]),
        ("bytes sent", [load["sent_bytes"] for load in partitions]),
    ]
    skew = entity["skew"]["sent"]
    hot = HOT_MEANS if entity["sent"] >= SIGNIFICANT else inf
    return figure(
        bars(f"Load per partition of {entity['entity']}", charts, hot=hot),
        f"{entity['partitions_used']} of {len(partitions)} partitions had operations. Of sent messages the "
        f"busiest partition has {skew['largest_over_mean']:.2f} times the mean, the least busy "
        f"{skew['smallest_over_mean']:.2f} times; Gini {skew['gini']:.2f} (0 is even).",
    )


def _refusals(entity: Values) -> Iterable[str]:
    if entity["refused"]:
        rows = [[code(outcome), number(count)] for outcome, count in entity["refused"].items()]
        yield table(["refused with", "operations"], rows, (1,))


def _keys(entity: Values) -> Iterable[str]:
    if entity["keys"]:
        rows = [
            [code(key["key"]), number(key["sent"]), percent(key["share"]), number(key["redelivered"]), text(_ids(key))]
            for key in entity["keys"]
        ]
        head = [f"busiest of {entity['key_count']:,} keys", "sent", "share", "repeated", "partition"]
        yield table(head, rows, (1, 2, 3))


def _per_partition(entity: Values) -> str:
    return folded("Per partition", table(
        ["partition", "sent", "delivered", "repeated", "completed", "refused", "send p99", "age at delivery p99"],
        [
            [
                number(load["partition"]), number(load["sent"]), number(load["delivered"]),
                number(load["redelivered"]), number(load["completed"]), number(sum(load["refused"].values())),
                _time(load, "latency_us", "send", "p99"), _time(load, "dwell_ms", "deliver", "p99"),
            ]
            for load in entity["partitions"]
        ],
        range(8),
    ))  # fmt: skip


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
    rows = [[number(commits["count"]), number(commits["per_second"]), number(commits["messages_per_commit"])]]
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
                step=_latency_step(found),
            )
        ),
    ]


def _time(values: Values, measure: str, op: str, name: str) -> str:
    spread = values[measure].get(op)
    return "" if spread is None else time_of_us(spread[name] * (1 if measure == "latency_us" else 1000))


def _ids(key: Values) -> str:
    return ", ".join(map(str, key["partitions"]))
