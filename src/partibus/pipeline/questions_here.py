"""`Questions` to sums that this process holds, as rows of `partial.SCHEMA`.

Spark's share of a small question is what it does before it begins: 22 s of processor time for six of them to 420,000
sums, in a Java that has just started. Here they take one.
"""

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from partibus.pipeline import partial
from partibus.pipeline.partial import DWELL, LATENCY
from partibus.pipeline.questions import DONE, MOST, Name, Values
from partibus.telemetry.schema import COMMIT, OK

HELD_MAX = 2_000_000
"""Sums that one process is asked to hold: some 300 MB."""
_ENTITY = ("namespace", "entity")


class QuestionsHere(NamedTuple):
    """See `Questions`."""

    activity: pa.Table
    timing: pa.Table
    keys: pa.Table

    def totals(self, most: int) -> list[Values]:
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
        activity, timing, keys = (table.filter(_of_entities(table, names)) for table in self)
        return QuestionsHere(
            activity.filter(pc.not_equal(activity["op"], COMMIT)),
            timing.filter(pc.not_equal(timing["op"], COMMIT)),
            keys,
        )

    def by_operation(self) -> list[Values]:
        by = (*_ENTITY, "partition_id", "op", "outcome")
        found: list[Values] = _grouped(self.activity, by, sums=("messages", "bytes", "redeliveries")).to_pylist()
        return found

    def series(self, step: int) -> list[Values]:
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
        return _histograms(self.timing, *_ENTITY, "partition_id", "op", "measure")

    def histograms_over_time(self, step: int) -> list[Values]:
        timing = self.timing
        took = pc.and_(
            pc.equal(timing["measure"], LATENCY), pc.is_in(timing["op"], pa.array(["send", "complete", COMMIT]))
        )
        aged = pc.and_(pc.equal(timing["measure"], DWELL), pc.equal(timing["op"], "deliver"))
        shown = timing.filter(pc.or_(took, aged))
        return _histograms(_with(shown, at=_floor(shown["at"], step)), "at", "op", "measure")

    def histogram_of_commits(self) -> list[Values]:
        return _histograms(self.timing.filter(pc.equal(self.timing["op"], COMMIT)), "op")

    def busiest_keys(self, most: int) -> list[Values]:
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
    """``sums``: rows of `partial.SCHEMA`, several of a group or one."""
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
    """A row per group. ``least``, ``greatest``: name -> column."""
    asked = {
        **{name: (name, "sum") for name in sums},
        **{name: (column, "min") for name, column in (least or {}).items()},
        **{name: (column, "max") for name, column in (greatest or {}).items()},
    }
    by = list(by)
    # With threads the order in which numbers are added would be any, and so would their last digits.
    found = table.group_by(by, use_threads=False).aggregate(list(asked.values()))
    columns = {name: found[f"{column}_{how}"] for name, (column, how) in asked.items()}
    return pa.table({**{name: found[name] for name in by}, **columns})


def _histograms(timing: pa.Table, *by: str) -> list[Values]:
    found: list[Values] = _grouped(timing, (*by, "bucket"), sums=("messages",)).to_pylist()
    return found


def _with(table: pa.Table, **columns: Any) -> pa.Table:
    """The table with these columns, which take the place of those with their names."""
    return pa.table({**{name: table[name] for name in table.column_names}, **columns})


def _where(wanted: Any, values: Any) -> Any:
    """The values, and 0 where they are not wanted."""
    return pc.if_else(pc.fill_null(wanted, False), values, pa.scalar(0, values.type))


def _floor(seconds: Any, step: int) -> Any:
    return pc.multiply(pc.divide(seconds, step), step)


def _place(name: str | None) -> tuple[bool, str]:
    """What to sort by: nothing comes first, as Spark has it."""
    return (name is not None, name or "")
