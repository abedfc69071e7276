"""Telemetry added up column by column says what plain arithmetic does, however rows are cut into batches and files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partibus.pipeline import partial
from partibus.pipeline.job import JobError
from partibus.pipeline.partial import READ, partial_sums, value_of
from partibus.pipeline.rows import Chosen, rows_of

START = datetime(2026, 1, 1, tzinfo=UTC)
TYPES = pa.schema([
    ("time", pa.timestamp("us", "UTC")), ("op", pa.string()), ("namespace", pa.string()), ("entity", pa.string()),
    ("partition_id", pa.int32()), ("key", pa.string()), ("size_bytes", pa.int64()), ("delivery_count", pa.int32()),
    ("dwell_ms", pa.int64()), ("latency_us", pa.int64()), ("messages", pa.int32()), ("outcome", pa.string()),
    ("weight", pa.float64()),
])  # fmt: skip
ROWS = st.lists(
    st.fixed_dictionaries({
        "time": st.integers(0, 200_000).map(lambda ms: START + timedelta(milliseconds=ms)),
        "op": st.sampled_from(["send", "deliver", "complete", "commit"]),
        "namespace": st.sampled_from(["default", "other"]),
        "entity": st.sampled_from(["q", "r", None]),
        "partition_id": st.sampled_from([None, 0, 3]),
        "key": st.sampled_from([None, "a", "b"]),
        "size_bytes": st.sampled_from([None, 100, 250]),
        "delivery_count": st.sampled_from([None, 1, 2]),
        "dwell_ms": st.sampled_from([None, 0, 1, 7, 90_000]),
        "latency_us": st.sampled_from([None, 1, 950, 951]),
        "messages": st.sampled_from([None, 1, 4]),
        "outcome": st.sampled_from(["ok", "amqp:not-found"]),
        "weight": st.sampled_from([None, 1.0, 4.0]),
    }),
    max_size=30,
)  # fmt: skip


SUMS = ("messages", "operations", "bytes", "deliveries", "redeliveries", "rows")
Sums = dict[int, dict[tuple[Any, ...], float]]
"""Sums by table, group and measure, unless they are 0."""


def batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, TYPES)


def summed(batches: Iterable[pa.RecordBatch]) -> Sums:
    found: Sums = {part: defaultdict(float) for part in range(3)}
    for row in (row for one in partial_sums(batches) for row in one.to_pylist()):
        sums = {
            name: row.pop(name) for name in ("messages", "operations", "bytes", "deliveries", "redeliveries", "rows")
        }
        part = row.pop("part")
        for name, value in sums.items():
            found[part][(*row.values(), name)] += value or 0
    return {part: {group: value for group, value in sums.items() if value} for part, sums in found.items()}


def plain(rows: list[dict[str, Any]]) -> Sums:
    """The same, row by row. A bucket is told by the value that stands for it."""
    found: Sums = {part: defaultdict(float) for part in range(3)}
    for row in rows:
        second = int((row["time"] - START).total_seconds()) + int(START.timestamp())
        place = (row["namespace"], row["entity"], row["partition_id"])
        weight = 1.0 if row["weight"] is None else row["weight"]
        count = weight * (1 if row["messages"] is None else row["messages"])
        size = weight * (row["size_bytes"] or 0)
        again = row["op"] == "deliver" and (row["delivery_count"] or 0) > 1
        group = (second, *place, row["op"], row["outcome"], None, None, None)
        for name, value in (
            ("messages", count), ("operations", weight), ("bytes", size), ("redeliveries", count * again), ("rows", 1),
        ):  # fmt: skip
            found[partial.ACTIVITY][(*group, name)] += value
        if row["outcome"] != "ok":
            continue
        for measure, settles in (("latency_us", True), ("dwell_ms", row["op"] in ("deliver", "complete"))):
            if row[measure] is not None and settles:
                bucket = next(n for n in range(2_000) if row[measure] <= value_of(n) * 1.0201)
                bucket = 0 if row[measure] < 1 else max(1, bucket)
                timed = (second // 60 * 60, *place, row["op"], row["outcome"], measure, bucket, None)
                found[partial.TIMING][(*timed, "messages")] += 1.0 if row["op"] == "commit" else weight
                found[partial.TIMING][(*timed, "rows")] += 1
        if row["key"] is not None and row["op"] in ("send", "deliver"):
            keyed = (None, *place, None, None, None, None, row["key"])
            is_sent = row["op"] == "send"
            for name, value in (
                ("messages", count * is_sent), ("bytes", size * is_sent), ("deliveries", count * (not is_sent)),
                ("redeliveries", count * again), ("rows", 1),
            ):  # fmt: skip
                found[partial.KEYS][(*keyed, name)] += value
    return {part: {group: value for group, value in sums.items() if value} for part, sums in found.items()}


@given(rows=ROWS, cut=st.integers(0, 30))
def test_sums_are_those_of_plain_arithmetic(rows: list[dict[str, Any]], cut: int) -> None:
    assert summed([batch(rows[:cut]), batch(rows[cut:])]) == plain(rows)


def test_chunks_and_sums_that_are_held_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"time": START + timedelta(seconds=n), "op": "send", "namespace": "default", "entity": f"q{n % 3}",
         "key": f"k{n % 7}", "outcome": "ok", "latency_us": 900 + n, "size_bytes": n}
        for n in range(100)
    ]  # fmt: skip
    rows = [dict.fromkeys(TYPES.names) | row for row in rows]
    whole = summed([batch(rows)])
    monkeypatch.setattr(partial, "CHUNK_ROWS", 8)
    monkeypatch.setattr(partial, "HELD_ROWS", 40)
    assert summed([batch(rows[n : n + 5]) for n in range(0, 100, 5)]) == whole


def test_file_is_read_as_its_broker_wrote_it(tmp_path: Path) -> None:
    """Read it without a column that it does not know, with names as dictionaries and times in milliseconds."""
    path = tmp_path / "one.parquet"
    rows = batch([
        dict.fromkeys(TYPES.names)
        | {"time": START + timedelta(seconds=n), "op": "send", "namespace": "n", "entity": entity, "outcome": "ok"}
        for n, entity in enumerate(["q", "Q", None, "r"])
    ])  # fmt: skip
    table = pa.Table.from_batches([rows])
    table = table.set_column(0, "time", table.column("time").cast(pa.timestamp("ms", "UTC")))
    table = table.set_column(3, "entity", table.column("entity").dictionary_encode()).drop_columns(["dwell_ms"])
    pq.write_table(table, path)
    (found,) = rows_of(str(path), Chosen())
    assert found.schema.names == list(READ)
    assert summed([found]) == summed([rows])
    (found,) = rows_of(str(path), Chosen(START + timedelta(seconds=1), START + timedelta(seconds=3), frozenset({"q"})))
    assert found.column("entity").to_pylist() == ["Q"]
    assert not list(rows_of(str(tmp_path / "gone.parquet"), Chosen()))


def test_file_that_is_cut_short_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"op": ["send"]}), tmp_path / "whole.parquet")
    path = tmp_path / "cut.parquet"
    path.write_bytes((tmp_path / "whole.parquet").read_bytes()[:-5])
    with pytest.raises(JobError, match=rf"{path} is no whole Parquet file \(.*\): remove it"):
        list(rows_of(str(path), Chosen()))
