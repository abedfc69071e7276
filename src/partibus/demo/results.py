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
