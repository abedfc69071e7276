"""The broker's telemetry: rates, latencies, ages, redeliveries and refusals, per entity, partition and key.

`rollup` adds rows up. This module asks for the sums (`questions`), after a batch and during a stream alike, and returns
plain values in the shape that docs/pipeline.md defines.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from math import ceil
from typing import Final

from partibus.pipeline.balance import STANDARD_PARTITION_COUNT, observed_count, skew
from partibus.pipeline.job import Values
from partibus.pipeline.partial import DWELL, LATENCY, spread
from partibus.pipeline.questions import DONE, MOST, Name, Questions
from partibus.routing.slots import slot_for_key
from partibus.telemetry.schema import KEY_MAX, OK

PLACED_KEYS: Final = 1_000
"""Keys of each entity whose partitions show how many partitions it has."""
SERIES_POINTS_MAX: Final = 240
"""The most points of a curve: the page of a report can't show more."""
THROTTLED: Final = ("com.microsoft:server-busy", "amqp:resource-limit-exceeded")
"""Outcomes that ask the client to slow down, or report that a resource is full."""

Histogram = dict[int, float]
"""Messages by bucket."""

_COUNTED: Final = {
    "sent": "send",
    "delivered": "deliver",
    "completed": "complete",
    "abandoned": "abandon",
    "released": "release",
    "dead_lettered": "dead_letter",
    "deferred": "defer",
    "expired": "expire",
    "locks_expired": "lock_expired",
    "forwarded": "forward",
}
"""The operation of each name in the result."""


def summarize(questions: Questions, *, entities_max: int, keys_max: int) -> Values:
    """Return the result of the job.

    It has the details of the ``entities_max`` busiest entities and of ``keys_max`` keys of each.
    """
    every, names = _totals(questions.totals(entities_max))
    if not every["rows"]:
        return {**every, "entities": [], "commits": None, "series": [], "latency_series": []}
    busy = questions.only(names)
    step = step_of(every["seconds"], 1)
    with ThreadPoolExecutor() as pool:  # the larger part is what Spark's driver does for each of them
        series_asked = pool.submit(busy.series, step)
        sums_asked = pool.submit(busy.by_operation)
        histograms_asked = pool.submit(busy.histograms)
        keys_asked = pool.submit(busy.busiest_keys, max(keys_max, PLACED_KEYS))
        latency_asked = pool.submit(questions.histograms_over_time, step_of(every["seconds"], 60))
        durations = questions.histogram_of_commits() if every["commits"] else []
    series = _filled(series_asked.result(), names, every, step)
    ranked = keys_asked.result()
    entities = _entities(sums_asked.result(), every["seconds"], _peaks(series), _partition_counts(ranked))
    _add_timing(entities, histograms_asked.result())
    if every["commits"]:
        weights = {row["bucket"]: row["messages"] for row in durations}
        every["commits"]["duration_us"] = spread(weights) if weights else None
    _add_keys(entities, ranked, keys_max)
    return {
        **every,
        "entities": list(entities.values()),
        **_flows(entities.values()),
        "step_seconds": step,
        "series": [{name: value for name, value in point.items() if name not in MOST.values()} for point in series],
        "latency_series": _over_time(latency_asked.result()),
    }


def _totals(found: list[Values]) -> tuple[Values, list[Name]]:
    """Return the totals of all rows, and the names of the busiest entities."""
    if not found:
        return {"rows": 0}, []
    every, *rows = found
    seconds = every["last"] - every["first"] + 1
    names = [(row["namespace"], row["entity"]) for row in rows if row["operations"] > 0]
    return {
        "from": _iso(every["first"]),
        "to": _iso(every["last"] + 1),
        "seconds": seconds,
        "rows": every["rows"],
        "operations": round(every["operations"]),
        "sampled_share": every["told"] / every["operations"] if every["operations"] else 1.0,
        "entity_count": every["entities"],
        "entities_left_out": every["entities"] - len(names),
        "commits": {
            "count": round(every["commits"]),
            "per_second": every["commits"] / seconds,
            "messages_per_commit": every["committed"] / every["commits"],
        }
        if every["commits"]
        else None,
    }, names


def _filled(series: list[Values], names: Iterable[Name], every: Values, step: int) -> list[Values]:
    """Return the series with a row of zeros for each step in which an entity had no operation."""
    first, last = (int(datetime.fromisoformat(every[end]).timestamp()) for end in ("from", "to"))
    found = {(row["at"], row["namespace"], row["entity"]): row for row in series}
    zeros = dict.fromkeys((*DONE, "redelivered", "refused", *MOST.values()), 0)
    return [
        found.get((at, *name)) or {"at": at, "namespace": name[0], "entity": name[1], **zeros}
        for at in range(first // step * step, last, step)
        for name in sorted(names)
    ]


_SUBSCRIPTION: Final = "/subscriptions/"


def is_subscription(entity: str) -> bool:
    """Tell whether a path is that of a subscription, which receives copies of its topic's messages."""
    return _SUBSCRIPTION in entity.lower()


def _flows(entities: Iterable[Values]) -> Values:
    """Return messages in, copies stored and deliveries over ``entities``.

    A message that clients send to a topic comes in once, and each subscription that selects it stores a copy.
    """
    entities = list(entities)
    topics = {
        (one["namespace"], one["entity"].lower().partition(_SUBSCRIPTION)[0])
        for one in entities
        if is_subscription(one["entity"])
    }
    accepted = sum(one["sent"] for one in entities if not is_subscription(one["entity"]))
    return {
        "messages_in": max(0, accepted - sum(one["forwarded"] for one in entities)),
        "copies_stored": sum(
            one["sent"] for one in entities if (one["namespace"], one["entity"].lower()) not in topics
        ),
        "deliveries": sum(one["delivered"] for one in entities),
    }


def _partition_counts(ranked: list[Values]) -> dict[Name, int | None]:
    """Return the number of partitions that explains where each entity's keys were found.

    It is None where none does, because slots have moved. Entities without keys are left out.
    """
    placed: dict[Name, dict[int, int]] = defaultdict(dict)
    moved: set[Name] = set()
    for row in ranked:
        name = row["namespace"], row["entity"]
        if len(row["partitions"]) > 1:
            moved.add(name)
        elif row["partitions"] and row["partitions"][0] is not None and len(row["key"]) < KEY_MAX:
            placed[name][slot_for_key(row["key"])] = row["partitions"][0]
    counts = {name: observed_count(slots, sorted(set(slots.values()))) for name, slots in placed.items()}
    return {**counts, **dict.fromkeys(moved)}


def _entities(
    sums: list[Values], seconds: float, peaks: Mapping[Name, Values], partition_counts: Mapping[Name, int | None]
) -> dict[Name, Values]:
    """Return counts, rates and partitions of each entity, the busiest first."""
    found: dict[Name, list[Values]] = defaultdict(list)
    for row in sums:
        found[row["namespace"], row["entity"]].append(row)
    entities = {
        name: _entity(name, rows, seconds, peaks[name], partition_counts.get(name, STANDARD_PARTITION_COUNT))
        for name, rows in found.items()
    }
    return dict(sorted(entities.items(), key=lambda item: (-item[1]["sent"] - item[1]["delivered"], item[0])))


def _entity(name: Name, rows: list[Values], seconds: float, peaks: Values, partition_count: int | None) -> Values:
    partitions: dict[int, list[Values]] = defaultdict(list)
    for row in rows:
        if row["partition_id"] is not None:
            partitions[row["partition_id"]].append(row)
    counts = _counts(rows)
    used = len(partitions)
    least = max(partitions, default=-1) + 1
    # Partitions without operations count: telemetry has no row of them.
    count = max(least, partition_count or 0) if least > 1 else least
    loads = [{"partition": number, **_counts(partitions[number]), LATENCY: {}, DWELL: {}} for number in range(count)]
    return {
        "namespace": name[0],
        "entity": name[1],
        **counts,
        "redelivery_share": counts["redelivered"] / counts["delivered"] if counts["delivered"] else 0.0,
        "per_second": {key: {"mean": counts[key] / seconds, "peak": peaks[key]} for key in DONE},
        "skew": {key: skew([load[key] for load in loads])._asdict() for key in ("sent", "delivered") if loads},
        "partitions_used": used,
        "partitions": loads,
        LATENCY: {},
        DWELL: {},
        "keys": [],
        "key_count": 0,
    }


def _counts(rows: Iterable[Values]) -> Values:
    """Count messages by operation, and refused ones by reason."""
    done: dict[str, float] = defaultdict(float)
    refused: dict[str, float] = defaultdict(float)
    sent_bytes = redelivered = 0.0
    for row in rows:
        if row["outcome"] != OK:
            refused[row["outcome"]] += row["messages"]
            continue
        done[row["op"]] += row["messages"]
        redelivered += row["redeliveries"]
        if row["op"] == "send":
            sent_bytes += row["bytes"]
    return {
        **{name: round(done[op]) for name, op in _COUNTED.items()},
        "redelivered": round(redelivered),
        "sent_bytes": round(sent_bytes),
        "throttled": round(sum(refused[outcome] for outcome in THROTTLED if outcome in refused)),
        "refused": {outcome: round(refused[outcome]) for outcome in sorted(refused)},
    }


def _peaks(series: list[Values]) -> dict[Name, Values]:
    """Return the most messages of one second, per entity."""
    peaks: dict[Name, Values] = defaultdict(lambda: dict.fromkeys(MOST, 0))
    for point in series:
        mine = peaks[point["namespace"], point["entity"]]
        for name, column in MOST.items():
            mine[name] = max(mine[name], round(point[column]))
    return peaks


def _add_timing(entities: dict[Name, Values], histograms: list[Values]) -> None:
    """Add percentiles by operation to the entities and their partitions."""
    whole: dict[tuple[Name, str, str], Histogram] = defaultdict(lambda: defaultdict(float))
    parts: dict[tuple[Name, int, str, str], Histogram] = defaultdict(lambda: defaultdict(float))
    for row in histograms:
        name, bucket, messages = (row["namespace"], row["entity"]), row["bucket"], row["messages"]
        whole[name, row["measure"], row["op"]][bucket] += messages
        parts[name, row["partition_id"], row["measure"], row["op"]][bucket] += messages
    for (name, measure, op), histogram in whole.items():
        entities[name][measure][op] = spread(histogram)
    loads = {(name, load["partition"]): load for name, entity in entities.items() for load in entity["partitions"]}
    for (name, partition, measure, op), histogram in parts.items():
        if (name, partition) in loads:
            loads[name, partition][measure][op] = spread(histogram)


def _over_time(histograms: list[Values]) -> list[Values]:
    """Return curves over all entities: durations of sends, completions and commits, and message ages at delivery."""
    found: dict[tuple[int, str, str], Histogram] = defaultdict(dict)
    for row in histograms:
        found[row["at"], row["op"], row["measure"]][row["bucket"]] = row["messages"]
    return [
        {"at": at, "op": op, "measure": measure, **spread(found[at, op, measure])} for at, op, measure in sorted(found)
    ]


def _add_keys(entities: dict[Name, Values], ranked: list[Values], keys_max: int) -> None:
    for row in ranked:
        entity = entities[row["namespace"], row["entity"]]
        entity["key_count"] = row["n"]
        if len(entity["keys"]) == keys_max:
            continue
        entity["keys"].append({
            "key": row["key"],
            "sent": round(row["sent"]),
            "share": row["sent"] / entity["sent"] if entity["sent"] else 0.0,
            "bytes": round(row["bytes"]),
            "delivered": round(row["deliveries"]),
            "redelivered": round(row["redeliveries"]),
            "partitions": row["partitions"],
        })  # fmt: skip


def step_of(seconds: float, grain: int) -> int:
    """Return the seconds between two points of a curve, a multiple of the table's grain."""
    return grain * max(1, ceil(seconds / grain / SERIES_POINTS_MAX))


def _iso(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()
