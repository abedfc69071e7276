"""`Questions` to sums that Spark holds, of any size."""

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from partibus.pipeline.partial import DWELL, LATENCY
from partibus.pipeline.questions import DONE, MOST, Name, Values
from partibus.pipeline.rollup import ENTITY, Rollup
from partibus.telemetry.schema import COMMIT, OK


class SparkQuestions(NamedTuple):
    """See `Questions`."""

    rollup: Rollup

    def totals(self, most: int) -> list[Values]:
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
        busy = ((sf.col("namespace") == namespace) & (sf.col("entity") == entity) for namespace, entity in names)
        is_busy = reduce(or_, busy, sf.lit(False))
        is_asked = is_busy & (sf.col("op") != COMMIT)
        activity, timing, keys = self.rollup
        return SparkQuestions(Rollup(activity.where(is_asked), timing.where(is_asked), keys.where(is_busy)))

    def by_operation(self) -> list[Values]:
        by_operation = self.rollup.activity.groupBy(*ENTITY, "partition_id", "op", "outcome")
        return _rows(by_operation.agg(*(sf.sum(name).alias(name) for name in ("messages", "bytes", "redeliveries"))))

    def series(self, step: int) -> list[Values]:
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
        return _histograms(self.rollup.timing, *ENTITY, "partition_id", "op", "measure")

    def histograms_over_time(self, step: int) -> list[Values]:
        shown = self.rollup.timing.where(
            ((sf.col("measure") == LATENCY) & sf.col("op").isin("send", "complete", COMMIT))
            | ((sf.col("measure") == DWELL) & (sf.col("op") == "deliver"))
        )
        steps = shown.withColumn("at", sf.floor(sf.col("minute") / step) * step)
        return _histograms(steps, "at", "op", "measure")

    def histogram_of_commits(self) -> list[Values]:
        return _histograms(self.rollup.timing.where(sf.col("op") == COMMIT), "op")

    def busiest_keys(self, most: int) -> list[Values]:
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


def _histograms(timing: DataFrame, *by: str) -> list[Values]:
    return _rows(timing.groupBy(*by, "bucket").agg(sf.sum("messages").alias("messages")))


def _rows(asked: DataFrame) -> list[Values]:
    return [row.asDict() for row in asked.collect()]
