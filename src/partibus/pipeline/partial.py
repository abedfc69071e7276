"""Sums of the telemetry rows of one Spark task, for `rollup`: one pass, column by column, in the task's Python.

Spark's own grouping handles each row's four names for each table anew. Here they become small numbers once, and a group
is one number. A task returns few rows: it adds up the rows of each chunk, and then those of all its chunks.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import log
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from partibus.telemetry.schema import COMMIT, OK

LATENCY, DWELL = "latency_us", "dwell_ms"
MEASURES: Final = (LATENCY, DWELL)
SETTLING: Final = ("deliver", "complete", "abandon", "release", "dead_letter", "defer", "expire")
"""Operations that have a dwell time since the message was enqueued."""
READ: Final = (
    "time", "op", "namespace", "entity", "partition_id", "key", "size_bytes", "delivery_count", DWELL, LATENCY,
    "messages", "outcome", "weight",
)  # fmt: skip
"""The columns of telemetry that are needed."""
ACTIVITY, TIMING, KEYS = range(3)
"""The tables, as the column ``part`` names them."""
NAMES: Final = ("namespace", "entity", "op", "outcome")
KEY: Final = "key"

SCHEMA: Final = pa.schema([
    ("part", pa.int32()), ("at", pa.int64()), ("namespace", pa.string()), ("entity", pa.string()),
    ("partition_id", pa.int32()), ("op", pa.string()), ("outcome", pa.string()), ("measure", pa.string()),
    ("bucket", pa.int32()), ("key", pa.string()), ("messages", pa.float64()), ("operations", pa.float64()),
    ("bytes", pa.float64()), ("deliveries", pa.float64()), ("redeliveries", pa.float64()), ("rows", pa.int64()),
])  # fmt: skip
"""``at``: the second of activity, the minute of timing. ``messages``: in the table of keys, the messages sent."""
DDL: Final = (
    "part int, at bigint, namespace string, entity string, partition_id int, op string, outcome string, "
    "measure string, bucket int, key string, messages double, operations double, bytes double, deliveries double, "
    "redeliveries double, rows bigint"
)
_SUMS: Final = ("messages", "operations", "bytes", "deliveries", "redeliveries", "rows")
_BY: Final = tuple(name for name in SCHEMA.names if name not in _SUMS)

CHUNK_ROWS = 1 << 18
"""Rows that are added up together: some 50 MB."""
HELD_ROWS = 1 << 20
"""Sums that a task holds before it adds them up again. It returns them when more than half as many remain."""
_BUCKETS = 1 << 12
"""More than the number of buckets: the largest number of 64 bits is in the 1,092nd."""


def partial_sums(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Add up rows with the columns of `READ` to rows of `SCHEMA`. Rows of equal groups are yet to be added up."""
    held: list[pa.Table] = []
    held_rows = waiting_rows = 0
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        waiting_rows += batch.num_rows
        if waiting_rows < CHUNK_ROWS:
            continue
        held += _add_up(pa.Table.from_batches(waiting))
        waiting, waiting_rows = [], 0
        held_rows = sum(table.num_rows for table in held)
        if held_rows > HELD_ROWS:
            held = [_again(held)]
            if held[0].num_rows > HELD_ROWS // 2:
                yield from held[0].to_batches()
                held = []
    if waiting_rows:
        held += _add_up(pa.Table.from_batches(waiting))
    if held:
        yield from _again(held).to_batches()


class _Chunk(NamedTuple):
    """The columns of some rows that all three tables need."""

    second: Any
    place: Any
    """A number for each combination of namespace, entity, partition, operation and outcome."""
    names: dict[str, "_Coded"]
    partitions: int
    """One more than the largest partition id, and one for rows without a partition."""
    weight: Any
    messages: Any
    bytes: Any
    is_ok: Any
    is_delivery: Any
    is_redelivery: Any


class _Coded(NamedTuple):
    """A column as indexes into a list of its distinct values."""

    codes: Any
    values: pa.Array

    def mask(self, texts: Sequence[str]) -> Any:
        """Tell for each row whether it has one of these texts."""
        known = np.isin(np.array(self.values.to_pylist(), dtype=object), list(texts))
        return known[self.codes]


def _add_up(rows: pa.Table) -> list[pa.Table]:
    if rows.column("time").null_count:
        rows = rows.filter(pc.is_valid(rows.column("time")))
    if not rows.num_rows:
        return []
    names = {name: _coded(rows.column(name)) for name in NAMES}
    partition = _numbers(rows.column("partition_id"), -1) + 1
    partitions = int(partition.max()) + 1
    place = names["namespace"].codes.astype(np.int64)
    for codes, count in (
        (names["entity"].codes, len(names["entity"].values)),
        (partition, partitions),
        (names["op"].codes, len(names["op"].values)),
        (names["outcome"].codes, len(names["outcome"].values)),
    ):
        place = place * count + codes
    weight = _numbers(rows.column("weight"), 1.0)
    is_delivery = names["op"].mask(["deliver"])
    chunk = _Chunk(
        _numbers(pc.cast(pc.cast(rows.column("time"), pa.timestamp("us")), pa.int64()), 0) // 1_000_000,
        place,
        names,
        partitions,
        weight,
        weight * _numbers(rows.column("messages"), 1),
        weight * _numbers(rows.column("size_bytes"), 0),
        names["outcome"].mask([OK]),
        is_delivery,
        is_delivery & (_numbers(rows.column("delivery_count"), 0) > 1),
    )
    return [_activity(chunk), _timing(chunk, rows), _keys(chunk, rows)]


def _activity(chunk: _Chunk) -> pa.Table:
    first = int(chunk.second.min())
    places = int(chunk.place.max()) + 1
    groups, sums = _grouped(
        (chunk.second - first) * places + chunk.place,
        messages=chunk.messages,
        operations=chunk.weight,
        bytes=chunk.bytes,
        redeliveries=chunk.messages * chunk.is_redelivery,
    )
    return _table(ACTIVITY, sums, at=groups // places + first, **_decoded(chunk, groups % places))


def _timing(chunk: _Chunk, rows: pa.Table) -> pa.Table:
    minute = chunk.second // 60
    first = int(minute.min())
    places = int(chunk.place.max()) + 1
    spot = (minute - first) * places + chunk.place
    # The duration of a commit counts once, however many messages it had.
    weight = np.where(chunk.names["op"].mask([COMMIT]), 1.0, chunk.weight)
    is_settling = chunk.names["op"].mask(SETTLING)
    found, weights = [], []
    for index, (name, is_asked) in enumerate(((LATENCY, chunk.is_ok), (DWELL, chunk.is_ok & is_settling))):
        column = rows.column(name)
        wanted = is_asked & pc.is_valid(column).to_numpy()
        values = _numbers(column, 0)[wanted]
        found.append((spot[wanted] * len(MEASURES) + index) * _BUCKETS + buckets_of(values))
        weights.append(weight[wanted])
    groups, sums = _grouped(np.concatenate(found), messages=np.concatenate(weights))
    spots, buckets = groups // _BUCKETS, groups % _BUCKETS
    which = pa.array(MEASURES, pa.string()).take(pa.array(spots % len(MEASURES)))
    spots //= len(MEASURES)
    decoded = _decoded(chunk, spots % places)
    return _table(TIMING, sums, at=(spots // places + first) * 60, measure=which, bucket=buckets, **decoded)


def _keys(chunk: _Chunk, rows: pa.Table) -> pa.Table:
    """Return the load of each key, over all operations and outcomes."""
    column = rows.column("key")
    is_sent = chunk.names["op"].mask(["send"])
    wanted = chunk.is_ok & (is_sent | chunk.is_delivery) & pc.is_valid(column).to_numpy()
    key = _coded(column.filter(pa.array(wanted)))
    behind = len(chunk.names["op"].values) * len(chunk.names["outcome"].values)
    places = int(chunk.place.max()) // behind + 1
    messages, is_sent = chunk.messages[wanted], is_sent[wanted]
    groups, sums = _grouped(
        key.codes.astype(np.int64) * places + chunk.place[wanted] // behind,
        messages=messages * is_sent,
        bytes=chunk.bytes[wanted] * is_sent,
        deliveries=messages * chunk.is_delivery[wanted],
        redeliveries=messages * chunk.is_redelivery[wanted],
    )
    decoded = _decoded(chunk, groups % places * behind)
    names = {name: decoded[name] for name in ("namespace", "entity", "partition_id")}
    return _table(KEYS, sums, key=key.values.take(pa.array(groups // places)), **names)


def buckets_of(values: Any) -> Any:
    """Return the bucket of each of the numbers in an array."""
    found = np.zeros(len(values), np.int64)
    positive = values >= 1
    found[positive] = np.ceil(np.log(values[positive].astype(np.float64)) / log(G)).astype(np.int64) + 1
    return found


def _decoded(chunk: _Chunk, places: Any) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name in ("outcome", "op"):
        values = chunk.names[name].values
        columns[name] = values.take(pa.array(places % len(values)))
        places = places // len(values)
    partition = places % chunk.partitions
    columns["partition_id"] = pa.array(partition - 1, pa.int32(), mask=partition == 0)
    places = places // chunk.partitions
    entities = chunk.names["entity"].values
    columns["entity"] = entities.take(pa.array(places % len(entities)))
    columns["namespace"] = chunk.names["namespace"].values.take(pa.array(places // len(entities)))
    return columns


def _grouped(groups: Any, **values: Any) -> tuple[Any, dict[str, Any]]:
    """Return the distinct groups and the sums of the values in each; ``rows`` is the size of the group."""
    table = pa.table({"group": groups, **values})
    asked: list[Any] = [(name, "sum") for name in values]
    found = table.group_by("group", use_threads=False).aggregate([*asked, ("group", "count")])
    sums = {name: found.column(f"{name}_sum") for name in values}
    return found.column("group").to_numpy(), {**sums, "rows": found.column("group_count")}


def _again(tables: list[pa.Table]) -> pa.Table:
    """Merge rows of equal groups."""
    found = pa.concat_tables(tables).group_by(list(_BY), use_threads=False).aggregate([(name, "sum") for name in _SUMS])
    columns = {name: found.column(name if name in _BY else f"{name}_sum") for name in SCHEMA.names}
    return pa.table(columns).cast(SCHEMA)


def _table(part: int, sums: dict[str, Any], **columns: Any) -> pa.Table:
    count = len(sums["rows"])
    given = {"part": np.full(count, part, np.int32), **columns, **sums}
    return pa.table([
        pa.chunked_array([pa.nulls(count, field.type)]) if field.name not in given
        else _as(given[field.name], field.type)
        for field in SCHEMA
    ], schema=SCHEMA)  # fmt: skip


def _as(values: Any, kind: pa.DataType) -> Any:
    return values.cast(kind) if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values).cast(kind)


def _coded(column: pa.ChunkedArray) -> _Coded:
    if pa.types.is_dictionary(column.type):
        column = column.cast(pa.string()) if column.null_count else column.unify_dictionaries()
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode(null_encoding="encode")
    coded = column.combine_chunks()
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.chunk(0)
    return _Coded(coded.indices.to_numpy(), coded.dictionary)


def _numbers(column: pa.ChunkedArray, missing: float) -> Any:
    return pc.fill_null(column, missing).to_numpy() if column.null_count else column.to_numpy()


G = 1.02 / 0.98
SHARES = (0.5, 0.9, 0.99, 0.999)
"""The percentiles that results hold."""

Spread = dict[str, float]


def value_of(bucket: int) -> float:
    """Return the value that represents a bucket."""
    return float(bucket) if bucket < 2 else G ** (bucket - 1) * 2 / (1 + G)


def spread(weights: Mapping[int, float], shares: Sequence[float] = SHARES) -> Spread:
    """Return count, mean, percentiles (`p50`, `p99_9`) and largest value of a histogram.

    The histogram maps buckets to weights, and is not empty. Values have four digits.
    """
    count = sum(weights.values())
    mean = sum(weight * value_of(bucket) for bucket, weight in weights.items()) / count
    found: Spread = {"count": round(count), "mean": _short(mean)}
    buckets = sorted(weights)
    upto, place = weights[buckets[0]], 0
    for share in sorted(shares):
        # Sums of weights are floating-point numbers: a share counts as reached when
        # less than a billionth of it is missing.
        while upto < count * share * (1 - 1e-9) and place < len(buckets) - 1:
            place += 1
            upto += weights[buckets[place]]
        found[percentile_name(share)] = _short(value_of(buckets[place]))
    return {**found, "largest": _short(value_of(buckets[-1]))}


def percentile_name(share: float) -> str:
    """Return the name of a percentile: `p50`, `p99_9`."""
    return f"p{share * 100:g}".replace(".", "_")


def _short(value: float) -> float:
    return float(f"{value:.4g}")
