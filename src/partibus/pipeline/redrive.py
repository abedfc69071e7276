"""Redrive: which dead letters are chosen, and what becomes of them on their way. Functions over DataFrames with the
columns of the data source.

Expressions are Spark SQL over these columns, and over ``text``, the body as UTF-8.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from partibus.pipeline.errors import JobError
from partibus.spark.sink_columns import ADDRESS, SINK_TYPES

Values = dict[str, Any]

PROPERTY = "property."
DEAD_LETTER_PROPERTIES = ("DeadLetterReason", "DeadLetterErrorDescription")
"""Of a message that is none any more they would say the wrong thing."""
TRAIL = (
    "sequence_number", "enqueued_time", "delivery_count", "dead_letter_reason", "dead_letter_error_description",
    "session_id", "partition_key", "subject", "original_message_id",
)  # fmt: skip
"""What the audit trail says of a message beside its address and where it went."""
_BODY_TEXT = "text"
_SHOWN = 200
"""Characters of a body in a sample."""


class Change(NamedTuple):
    """``--set COLUMN=EXPRESSION``, or of one application property ``property.NAME=EXPRESSION``."""

    column: str
    expression: str

    @classmethod
    def parse(cls, text: str) -> "Change":
        """Raises `JobError`."""
        column, equals, expression = text.partition("=")
        column, expression = column.strip(), expression.strip()
        settable = [name for name in SINK_TYPES if name not in ADDRESS]
        if not equals or not expression or not column:
            raise JobError(f"--set {text!r} is not of the form COLUMN=EXPRESSION or property.NAME=EXPRESSION")
        if not (column in settable or (column.startswith(PROPERTY) and column != PROPERTY)):
            raise JobError(f"--set {text!r} sets {column!r}; it may be property.NAME or {', '.join(settable)}")
        return cls(column, expression)


def active(rows: DataFrame) -> DataFrame:
    """Dead letters that nobody has put aside."""
    return rows.where(sf.col("state") == "active").withColumn(_BODY_TEXT, sf.col("body").cast("string"))


def matching(rows: DataFrame, where: str | None) -> DataFrame:
    """Those of `active` for which the expression holds. Raises `JobError` naming it."""
    if where is None:
        return rows
    try:
        found = rows.where(sf.expr(where))
        _ = found.schema
    except (AnalysisException, ParseException) as error:
        raise _wrong("--where", where, error) from None
    return found


def changed(rows: DataFrame, changes: Sequence[Change], *, new_ids: bool = False) -> DataFrame:
    """What is sent for these rows: every expression sees the message as it was. Raises `JobError`."""
    values: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    for change in changes:
        try:
            value = sf.expr(change.expression)
            found = rows.select(value.alias("value")).schema["value"].dataType.simpleString()
        except (AnalysisException, ParseException) as error:
            raise _wrong(f"--set {change.column}", change.expression, error) from None
        if change.column.startswith(PROPERTY):
            properties[change.column.removeprefix(PROPERTY)] = value.cast("string")
            continue
        types = SINK_TYPES[change.column]
        if found == "void":
            value = value.cast(types[0])
        elif found not in types:
            raise JobError(f"--set {change.column}: {change.expression!r} is {found}; it must be {' or '.join(types)}")
        values[change.column] = value
    values.setdefault("scheduled_enqueue_time", sf.lit(None).cast("timestamp"))
    values["original_message_id"] = sf.col("message_id")
    if new_ids:
        values["message_id"] = sf.lit(None).cast("string")
    if "application_properties" not in values:
        values |= _with_properties(properties)
    elif properties:
        raise JobError("--set application_properties sets all of them; leave out it, or --set property.NAME")
    return rows.withColumns(values)


def by_reason(rows: DataFrame) -> list[Values]:
    """Messages by the reason why they are dead letters, most first."""
    reason = sf.coalesce("dead_letter_reason", sf.lit(""))
    counted = rows.groupBy(reason.alias("reason")).count().orderBy(sf.desc("count"), "reason").collect()
    return [{"reason": row.reason, "messages": row["count"]} for row in counted]


def samples(rows: DataFrame, most: int) -> list[Values]:
    """Of `active` rows: what a person wants to see of some."""
    shown = rows.select(
        "partition_id", "position", "message_id", "dead_letter_reason", "dead_letter_error_description",
        sf.col("application_properties").alias("properties"), sf.substring(_BODY_TEXT, 1, _SHOWN).alias("body"),
    ).limit(most)  # fmt: skip
    return [row.asDict(recursive=True) for row in shown.collect()]


def _with_properties(properties: Mapping[str, Any]) -> Values:
    gone = sf.array(*(sf.lit(name) for name in (*DEAD_LETTER_PROPERTIES, *properties)))
    values = {
        name: sf.map_filter(name, lambda key, _: ~sf.array_contains(gone, key))
        for name in ("application_properties", "application_property_types")
    }
    if properties:
        pairs = [part for name, value in properties.items() for part in (sf.lit(name), value)]
        empty = sf.create_map().cast("map<string,string>")
        kept = sf.coalesce(values["application_properties"], empty)
        values["application_properties"] = sf.map_concat(kept, sf.create_map(*pairs))
    return values


def _wrong(option: str, expression: str, error: AnalysisException | ParseException) -> JobError:
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return JobError(f"{option} {expression!r} is no expression over the columns of a message: {said}")
