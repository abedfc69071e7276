"""What a run gave, as plain values: what the report shows and the last lines print."""

from pathlib import Path
from typing import NamedTuple

from partibus.demo.proof import Proof, Selection
from partibus.demo.topology import Filter


class Delay(NamedTuple):
    """Flights of one carrier that were to leave in one hour of the day."""

    carrier: str
    hour: int
    flights: int
    cancelled: int
    departure_delay: float | None
    """Mean, minutes; None when none of them left."""


class PartitionLoad(NamedTuple):
    """What one broker partition carried of one subscription."""

    partition_id: int
    messages: int
    bytes: int
    """Of bodies."""
    keys: int


class SubscriptionLoad(NamedTuple):
    """One subscription: what it selects, what it holds."""

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
    """The micro-batch that it was ended in, begun and not committed; None: it came to its end."""


class Captured(NamedTuple):
    """What the runs did."""

    runs: list[Run]
    removed_files: int
    removed_rows: int
    """Half-written by the run that was ended, and no part of the table."""


class Operation(NamedTuple):
    """What was done to the messages of one entity."""

    entity: str
    name: str
    """`send` or `complete`."""
    messages: int
    latency_p50_us: float
    """From the command to durability."""
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
    """Of the messaging stores."""

    number: int
    messages_each: float
    p50_us: float
    p99_us: float


class Usage(NamedTuple):
    """The job `telemetry`."""

    rows: int
    entities: list[EntityUse]
    operations: list[Operation]
    commits: Commits | None


class Prediction(NamedTuple):
    """What another number of partitions would do."""

    partitions: int
    largest_share: float
    largest_over_mean: float
    effective_partitions: float
    """So many full partitions are they worth."""


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
        """Of the subscription that gets all."""
        return self.subscriptions[0].partitions

    @property
    def messages(self) -> int:
        """That were sent, as the subscription shows that gets all."""
        return sum(load.messages for load in self.partitions)

    @property
    def copies(self) -> int:
        """That were read of all subscriptions."""
        return sum(subscription.selection.messages for subscription in self.subscriptions)

    @property
    def keys(self) -> int:
        return sum(load.keys for load in self.partitions)
