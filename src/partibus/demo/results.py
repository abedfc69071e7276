"""The demo's results, and what telemetry says of the broker's use."""

from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from partibus.demo.proof import Proof, Selection
from partibus.demo.topology import TOPIC, Filter
from partibus.pipeline import plan, telemetry_job
from partibus.pipeline.job import Job, JobOptions
from partibus.pipeline.partial import LATENCY


class Delay(NamedTuple):
    """Flights of one carrier that were to leave in one hour of the day."""

    carrier: str
    hour: int
    flights: int
    cancelled: int
    departure_delay: float | None
    """Mean, minutes; None when none of them left."""


class PartitionLoad(NamedTuple):
    """The load of one broker partition by one subscription."""

    partition_id: int
    messages: int
    bytes: int
    """Bytes of bodies."""
    keys: int


class SubscriptionLoad(NamedTuple):
    """One subscription: its filter and its messages."""

    name: str
    filter: Filter
    selection: Selection
    partitions: list[PartitionLoad]


class KeyLoad(NamedTuple):
    """One partition key."""

    key: str
    messages: int
    partition_id: int


class Phase(NamedTuple):
    """One step of the run, timed."""

    name: str
    seconds: float
    messages: int = 0
    """Messages that it handled; 0 where a rate means nothing."""


class Run(NamedTuple):
    """One run of the query."""

    batches: list[int]
    """Rows of each micro-batch that was committed."""
    ended_in: int | None
    """Spark's number, from 0 on, of the micro-batch that it was ended in; None: it came to its end."""


class Captured(NamedTuple):
    """The results of the runs."""

    runs: list[Run]
    removed_files: int
    removed_rows: int
    """Half-written by the run that was ended, and no part of the table."""


class Operation(NamedTuple):
    """The operations on the messages of one entity."""

    entity: str
    name: str
    """`send` or `complete`."""
    messages: int
    latency_p50_us: float
    """Time from the command to durability."""
    latency_p99_us: float


class EntityUse(NamedTuple):
    """One entity, the busiest first."""

    entity: str
    sent: int
    per_second: float
    """Mean from the first operation to the last."""
    per_second_peak: int
    skew: float
    """Sent to the busiest partition, over the mean."""


class Commits(NamedTuple):
    """The commits of the messaging stores."""

    number: int
    messages_each: float
    p50_us: float
    p99_us: float


class Usage(NamedTuple):
    """The job `telemetry`."""

    first: str
    """When the first operation began, ISO 8601."""
    last: str
    rows: int
    entities: list[EntityUse]
    operations: list[Operation]
    commits: Commits | None
    messages_in: int
    """Messages that clients sent."""
    copies_stored: int
    """Copies of them in subscriptions."""
    deliveries: int


class Prediction(NamedTuple):
    """The prediction for another number of partitions."""

    partitions: int
    largest_share: float
    largest_over_mean: float
    effective_partitions: float
    """The number of full partitions that the busy ones are worth."""


class Outlook(NamedTuple):
    """The job `plan`, of the topic."""

    partitions: int
    """How many the job found that there are."""
    predictions: list[Prediction]
    advice: list[str]


class Results(NamedTuple):
    """Everything that the report is made from."""

    proof: Proof
    body_bytes: int
    senders: int
    delays: list[Delay]
    carrier_names: dict[str, str]
    subscriptions: list[SubscriptionLoad]
    """The one that gets all comes first."""
    busiest_keys: list[KeyLoad]
    phases: list[Phase]
    software: dict[str, str]
    """Name -> version."""
    captured: Captured
    usage: Usage
    outlook: Outlook
    seconds: float
    """The whole run; steps overlap."""
    tables: Path

    @property
    def partitions(self) -> list[PartitionLoad]:
        """The partitions of the subscription that gets all."""
        return self.subscriptions[0].partitions

    @property
    def messages(self) -> int:
        """The number of messages sent, as the subscription that gets all shows."""
        return sum(load.messages for load in self.partitions)

    @property
    def copies(self) -> int:
        """The number of messages read of all subscriptions."""
        return sum(subscription.selection.messages for subscription in self.subscriptions)

    @property
    def keys(self) -> int:
        """The number of partition keys."""
        return sum(load.keys for load in self.partitions)


Values = dict[str, Any]

COUNTS = (8, 16, 32, 64)
"""Numbers of partitions to predict the load of."""


def find_usage(spark: SparkSession, telemetry: Path, report: Path) -> Usage:
    """Run the job `telemetry` over the folder; ``report`` is its page, with the result as JSON beside it."""
    want = telemetry_job.Want([str(telemetry)])
    found = telemetry_job.run(job_of("telemetry", spark, telemetry, report), want)
    entities: list[Values] = found["entities"]
    commits = found["commits"]
    return Usage(
        found["from"],
        found["to"],
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
        found["messages_in"],
        found["copies_stored"],
        found["deliveries"],
    )


def find_outlook(spark: SparkSession, telemetry: Path, report: Path) -> Outlook:
    """Run the job `plan` in the same way."""
    want = plan.Want([str(telemetry)], entities=[TOPIC], counts=COUNTS)
    (found,) = plan.run(job_of("plan", spark, telemetry, report), want)["entities"]
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


def job_of(name: str, spark: SparkSession, telemetry: Path, report: Path) -> Job:
    """Make a run of a job without entering it as a context, which would draw its progress over the demo's."""
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
