"""The questions of the job `telemetry` to the sums of `rollup`.

Spark answers them (`questions_spark`), or this process where the sums are few (`questions_here`). Answers are rows as
dictionaries.
"""

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from partibus.pipeline import partial
from partibus.pipeline.job import Values
from partibus.pipeline.partial import DWELL, LATENCY
from partibus.pipeline.rollup import ENTITY, Rollup
from partibus.telemetry.schema import COMMIT, OK

Name = tuple[str, str]
"""Namespace and entity."""

DONE: Final = {"sent": "send", "delivered": "deliver", "completed": "complete"}
"""The columns of curves, with the operation of each."""
MOST: Final = {name: f"{name}_most" for name in DONE}
"""The column of the most in one second, for each of these columns."""


class Questions(Protocol):
    """The questions. All sums are over everything that was added up."""

    def totals(self, most: int) -> list[Values]:
        """Return the totals of everything, and of up to ``most`` busiest entities, in order.

        The columns are ``all`` (whether it is the first row), ``namespace``, ``entity``, ``first`` and ``last`` second,
        ``rows``, ``operations``, ``told`` (rows of them), ``commits``, ``committed`` messages, and ``entities``, the
        number of entities with operations. The result is empty when there are no rows.
        """

    def only(self, names: Sequence[Name]) -> "Questions":
        """Return the same questions about these entities, without commits."""

    def by_operation(self) -> list[Values]:
        """Return ``messages``, ``bytes`` and ``redeliveries`` per entity, partition, operation and outcome."""

    def series(self, step: int) -> list[Values]:
        """Return a row per ``at`` (each ``step`` seconds) and entity, in order.

        The columns are those of `DONE`, ``redelivered`` and ``refused``, as messages per second, and those of `MOST`.
        """

    def histograms(self) -> list[Values]:
        """Return ``messages`` per entity, partition, operation, measure and ``bucket``."""

    def histograms_over_time(self, step: int) -> list[Values]:
        """Return ``messages`` per ``at`` (each ``step`` seconds), operation, measure and ``bucket``.

        They cover the durations of sends, completions and commits, and the ages of messages at delivery.
        """

    def histogram_of_commits(self) -> list[Values]:
        """Return ``messages``, here commits, per ``bucket`` of their duration."""

    def busiest_keys(self, most: int) -> list[Values]:
        """Return the ``most`` keys of each entity with the most messages sent and delivered, in order.

        The columns are ``sent``, ``bytes``, ``deliveries``, ``redeliveries``, the first and last of their
        ``partitions``, and ``n``, the number of keys of the entity.
        """


HELD_MAX = 2_000_000
"""Sums that one process may hold: some 300 MB."""
_ENTITY = ("namespace", "entity")


class QuestionsHere(NamedTuple):
    """The answers of this process (`Questions`)."""

    activity: pa.Table
    timing: pa.Table
    keys: pa.Table

    def totals(self, most: int) -> list[Values]:
        """Return the totals (`Questions.totals`)."""
        activity = self.activity
        if not activity.num_rows:
            return []
        is_commit = pc.equal(activity["op"], COMMIT)
        rows = _grouped(
            _with(
                activity,
                operations=_where(pc.invert(is_commit), activity["operations"]),
                told=_where(pc.invert(is_commit), activity["rows"]),
                commits=_where(is_commit, activity["operations"]),
                committed=_where(is_commit, activity["messages"]),
            ),
            _ENTITY, sums=("rows", "operations", "told", "commits", "committed"), least={"first": "at"},
            greatest={"last": "at"},
        ).to_pylist()  # fmt: skip
        rows.sort(key=lambda row: (-row["operations"], *(_place(row[name]) for name in _ENTITY)))
        entities = sum(row["operations"] > 0 for row in rows)
        every = {
            **dict.fromkeys(_ENTITY),
            "first": min(row["first"] for row in rows),
            "last": max(row["last"] for row in rows),
            **{name: sum(row[name] for row in rows) for name in ("rows", "operations", "told", "commits", "committed")},
        }
        whole = {"all": True, **every, "entities": entities}
        return [whole, *({"all": False, **row, "entities": entities} for row in rows[:most])]

    def only(self, names: Sequence[Name]) -> "QuestionsHere":
        """Return the same questions about these entities."""
        activity, timing, keys = (table.filter(_of_entities(table, names)) for table in self)
        return QuestionsHere(
            activity.filter(pc.not_equal(activity["op"], COMMIT)),
            timing.filter(pc.not_equal(timing["op"], COMMIT)),
            keys,
        )

    def by_operation(self) -> list[Values]:
        """Return sums by operation."""
        by = (*_ENTITY, "partition_id", "op", "outcome")
        found: list[Values] = _grouped(self.activity, by, sums=("messages", "bytes", "redeliveries")).to_pylist()
        return found

    def series(self, step: int) -> list[Values]:
        """Return curves by entity."""
        activity, messages = self.activity, self.activity["messages"]
        done = pc.equal(activity["outcome"], OK)
        columns = {
            **{name: _where(pc.and_(done, pc.equal(activity["op"], op)), messages) for name, op in DONE.items()},
            "redelivered": activity["redeliveries"],
            "refused": _where(pc.invert(done), messages),
        }
        seconds = _grouped(_with(activity, **columns), (*_ENTITY, "at"), sums=tuple(columns))
        points = _grouped(
            _with(seconds, at=_floor(seconds["at"], step)), ("at", *_ENTITY), sums=tuple(columns),
            greatest={most: name for name, most in MOST.items()},
        ).to_pylist()  # fmt: skip
        points.sort(key=lambda point: (point["at"], *(_place(point[name]) for name in _ENTITY)))
        return [{**point, **{name: point[name] / step for name in columns}} for point in points]

    def histograms(self) -> list[Values]:
        """Return histograms by entity, partition, operation and measure."""
        return _histograms(self.timing, *_ENTITY, "partition_id", "op", "measure")

    def histograms_over_time(self, step: int) -> list[Values]:
        """Return histograms by time, operation and measure."""
        timing = self.timing
        took = pc.and_(
            pc.equal(timing["measure"], LATENCY), pc.is_in(timing["op"], pa.array(["send", "complete", COMMIT]))
        )
        aged = pc.and_(pc.equal(timing["measure"], DWELL), pc.equal(timing["op"], "deliver"))
        shown = timing.filter(pc.or_(took, aged))
        return _histograms(_with(shown, at=_floor(shown["at"], step)), "at", "op", "measure")

    def histogram_of_commits(self) -> list[Values]:
        """Return the histogram of commit durations."""
        return _histograms(self.timing.filter(pc.equal(self.timing["op"], COMMIT)), "op")

    def busiest_keys(self, most: int) -> list[Values]:
        """Return the busiest keys of each entity."""
        keys = _grouped(
            self.keys, (*_ENTITY, "key"), sums=("messages", "bytes", "deliveries", "redeliveries"),
            least={"lowest": "partition_id"}, greatest={"highest": "partition_id"},
        )  # fmt: skip
        keys = _with(keys, busy=pc.add(keys["messages"], keys["deliveries"]))
        found: list[Values] = []
        for one in keys.group_by(list(_ENTITY)).aggregate([]).to_pylist():
            mine = keys.filter(_of_entities(keys, [(one["namespace"], one["entity"])]))
            order = pc.sort_indices(mine, [("busy", "descending"), ("key", "ascending")])
            found += (_key(row, mine.num_rows) for row in mine.take(order[:most]).to_pylist())
        return found


def questions_here(sums: pa.Table) -> QuestionsHere:
    """Answer from ``sums``, rows of `partial.SCHEMA`; a group may have several."""
    parts = (partial.ACTIVITY, partial.TIMING, partial.KEYS)
    return QuestionsHere(*(sums.filter(pc.equal(sums["part"], part)) for part in parts))


def _key(row: Values, count: int) -> Values:
    return {
        **{name: row[name] for name in (*_ENTITY, "key", "bytes", "deliveries", "redeliveries")},
        "sent": row["messages"],
        "partitions": sorted({row["lowest"], row["highest"]}),
        "n": count,
    }


def _of_entities(table: pa.Table, names: Sequence[Name]) -> Any:
    each = (
        pc.and_kleene(pc.equal(table["namespace"], namespace), pc.equal(table["entity"], entity))
        for namespace, entity in names
    )
    return reduce(pc.or_kleene, each, pa.array(np.zeros(table.num_rows, bool)))


def _grouped(
    table: pa.Table, by: Iterable[str], *, sums: Sequence[str], least: Values | None = None,
    greatest: Values | None = None,
) -> pa.Table:  # fmt: skip
    """Return a row per group. ``least`` and ``greatest`` map the name of a result to its column."""
    asked = {
        **{name: (name, "sum") for name in sums},
        **{name: (column, "min") for name, column in (least or {}).items()},
        **{name: (column, "max") for name, column in (greatest or {}).items()},
    }
    by = list(by)
    # Threads would add numbers in an arbitrary order, and so change their last digits.
    found = table.group_by(by, use_threads=False).aggregate(list(asked.values()))
    columns = {name: found[f"{column}_{how}"] for name, (column, how) in asked.items()}
    return pa.table({**{name: found[name] for name in by}, **columns})


def _histograms(timing: pa.Table, *by: str) -> list[Values]:
    found: list[Values] = _grouped(timing, (*by, "bucket"), sums=("messages",)).to_pylist()
    return found


def _with(table: pa.Table, **columns: Any) -> pa.Table:
    """Return the table with these columns added or replaced."""
    return pa.table({**{name: table[name] for name in table.column_names}, **columns})


def _where(wanted: Any, values: Any) -> Any:
    """Return the values, and 0 where they are not wanted."""
    return pc.if_else(pc.fill_null(wanted, False), values, pa.scalar(0, values.type))


def _floor(seconds: Any, step: int) -> Any:
    return pc.multiply(pc.divide(seconds, step), step)


def _place(name: str | None) -> tuple[bool, str]:
    """Return the sort key of a name: null comes first, as in Spark."""
    return (name is not None, name or "")


class SparkQuestions(NamedTuple):
    """The answers of Spark (`Questions`)."""

    rollup: Rollup

    def totals(self, most: int) -> list[Values]:
        """Return the totals (`Questions.totals`)."""
        about_messages = sf.col("op") != COMMIT
        sums = self.rollup.activity.groupingSets(
            [[sf.col("namespace"), sf.col("entity")], []], "namespace", "entity"
        ).agg(
            (sf.grouping_id() > 0).alias("all"),
            sf.min("second").alias("first"),
            sf.max("second").alias("last"),
            sf.sum("rows").alias("rows"),
            *(
                sf.sum(sf.when(about_messages if of_messages else ~about_messages, sf.col(name)).otherwise(0)).alias(
                    alias
                )
                for name, of_messages, alias in (
                    ("operations", True, "operations"),
                    ("rows", True, "told"),
                    ("operations", False, "commits"),
                    ("messages", False, "committed"),
                )
            ),
        )
        count = sf.count_if(~sf.col("all") & (sf.col("operations") > 0)).over(Window.partitionBy())
        first = sums.withColumn("entities", count).sort(sf.desc("all"), sf.desc("operations"), *ENTITY).limit(most + 1)
        return _rows(first)

    def only(self, names: Sequence[Name]) -> "SparkQuestions":
        """Return the same questions about these entities."""
        busy = ((sf.col("namespace") == namespace) & (sf.col("entity") == entity) for namespace, entity in names)
        is_busy = reduce(or_, busy, sf.lit(False))
        is_asked = is_busy & (sf.col("op") != COMMIT)
        activity, timing, keys = self.rollup
        return SparkQuestions(Rollup(activity.where(is_asked), timing.where(is_asked), keys.where(is_busy)))

    def by_operation(self) -> list[Values]:
        """Return sums by operation."""
        by_operation = self.rollup.activity.groupBy(*ENTITY, "partition_id", "op", "outcome")
        return _rows(by_operation.agg(*(sf.sum(name).alias(name) for name in ("messages", "bytes", "redeliveries"))))

    def series(self, step: int) -> list[Values]:
        """Return curves by entity."""
        done = sf.col("outcome") == OK
        seconds = self.rollup.activity.groupBy(*ENTITY, "second").agg(
            *(
                sf.sum(sf.when(done & (sf.col("op") == op), sf.col("messages")).otherwise(0.0)).alias(name)
                for name, op in DONE.items()
            ),
            sf.sum("redeliveries").alias("redelivered"),
            sf.sum(sf.when(~done, sf.col("messages")).otherwise(0.0)).alias("refused"),
        )
        series = seconds.groupBy((sf.floor(sf.col("second") / step) * step).alias("at"), *ENTITY).agg(
            *((sf.sum(name) / step).alias(name) for name in (*DONE, "redelivered", "refused")),
            *(sf.max(name).alias(most) for name, most in MOST.items()),
        )
        return _rows(series.sort("at", *ENTITY))

    def histograms(self) -> list[Values]:
        """Return histograms by entity, partition, operation and measure."""
        return _histograms_in_spark(self.rollup.timing, *ENTITY, "partition_id", "op", "measure")

    def histograms_over_time(self, step: int) -> list[Values]:
        """Return histograms by time, operation and measure."""
        shown = self.rollup.timing.where(
            ((sf.col("measure") == LATENCY) & sf.col("op").isin("send", "complete", COMMIT))
            | ((sf.col("measure") == DWELL) & (sf.col("op") == "deliver"))
        )
        steps = shown.withColumn("at", sf.floor(sf.col("minute") / step) * step)
        return _histograms_in_spark(steps, "at", "op", "measure")

    def histogram_of_commits(self) -> list[Values]:
        """Return the histogram of commit durations."""
        return _histograms_in_spark(self.rollup.timing.where(sf.col("op") == COMMIT), "op")

    def busiest_keys(self, most: int) -> list[Values]:
        """Return the busiest keys of each entity."""
        per_key = self.rollup.keys.groupBy(*ENTITY, "key", "others").agg(
            *(sf.sum(name).alias(name) for name in ("sent", "bytes", "deliveries", "redeliveries")),
            sf.array_sort(sf.array_distinct(sf.array(sf.min("partition_id"), sf.max("partition_id")))).alias(
                "partitions"
            ),
        )
        whole = Window.partitionBy(*ENTITY)
        order = whole.orderBy("others", sf.desc(sf.col("sent") + sf.col("deliveries")), "key")
        ranked = per_key.select(
            "*", sf.row_number().over(order).alias("rank"), sf.count_if(~sf.col("others")).over(whole).alias("n")
        )
        return _rows(ranked.where((sf.col("rank") <= most) & ~sf.col("others")).sort("rank"))


def _histograms_in_spark(timing: DataFrame, *by: str) -> list[Values]:
    return _rows(timing.groupBy(*by, "bucket").agg(sf.sum("messages").alias("messages")))


def _rows(asked: DataFrame) -> list[Values]:
    return [row.asDict() for row in asked.collect()]
