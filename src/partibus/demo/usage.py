"""What the broker's own telemetry says about the run: two jobs of the pipeline with pages of their own, and of their
results what the demo's page shows."""

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from partibus.demo.results import Commits, EntityUse, Operation, Outlook, Prediction, Usage
from partibus.demo.topology import TOPIC
from partibus.pipeline import plan, telemetry_job
from partibus.pipeline.job import Job, JobOptions
from partibus.pipeline.partial import LATENCY

Values = dict[str, Any]

COUNTS = (8, 16, 32, 64)
"""Numbers of partitions to predict the load of."""


def find_usage(spark: SparkSession, telemetry: Path, report: Path) -> Usage:
    """Run the job `telemetry` over the folder; ``report`` is its page, with the result as JSON beside it."""
    want = telemetry_job.Want([str(telemetry)])
    found = telemetry_job.run(_job("telemetry", spark, telemetry, report), want)
    entities: list[Values] = found["entities"]
    commits = found["commits"]
    return Usage(
        found["rows"],
        [_entity(entity) for entity in entities],
        [operation for entity in entities for operation in _operations(entity)],
        None
        if commits is None
        else Commits(
            commits["count"],
            commits["messages_per_commit"],
            commits["duration_us"]["p50"],
            commits["duration_us"]["p99"],
        ),
    )


def find_outlook(spark: SparkSession, telemetry: Path, report: Path) -> Outlook:
    """Run the job `plan` in the same way."""
    want = plan.Want([str(telemetry)], entities=[TOPIC], counts=COUNTS)
    (found,) = plan.run(_job("plan", spark, telemetry, report), want)["entities"]
    return Outlook(
        found["partitions"],
        [
            Prediction(
                one["partitions"], one["largest_share"], one["skew"]["largest_over_mean"], one["effective_partitions"]
            )
            for one in found["predictions"]
        ],
        list(found["advice"]),
    )


def _job(name: str, spark: SparkSession, telemetry: Path, report: Path) -> Job:
    """A run of a job that is not entered as a context: that would draw its progress over the demo's."""
    options = JobOptions(spark=spark, json=report.with_suffix(".json"), report=report)
    return Job(name, options, {"paths": [str(telemetry)]})


def _entity(entity: Values) -> EntityUse:
    sent = entity["per_second"]["sent"]
    return EntityUse(
        entity["entity"],
        entity["sent"],
        sent["mean"],
        sent["peak"],
        entity["skew"]["sent"]["largest_over_mean"],
    )


def _operations(entity: Values) -> list[Operation]:
    latency = entity[LATENCY]
    counts = {"send": entity["sent"], "complete": entity["completed"]}
    return [
        Operation(entity["entity"], name, count, latency[name]["p50"], latency[name]["p99"])
        for name, count in counts.items()
        if name in latency
    ]
