"""Flights as messages: key, id, body, and the shard whose sender process sends them."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from uuid import UUID
from zlib import crc32

from partibus.demo.flights import Flight

Properties = dict[str | bytes, int | float | bytes | bool | str | UUID]
"""As the client's type says it."""


class Envelope(NamedTuple):
    """One message to send."""

    message_id: str
    """Unique: `flight-` and the row of the input."""
    key: str
    """Partition key: the tail number; for flights without an aircraft, carrier and flight number."""
    n: int
    """Counts the messages of this key from 0: what the check of order goes by."""
    properties: Properties
    """Application properties, by which subscriptions select: the carrier, the departure's delay in minutes unless the
    flight was cancelled, and `n`."""
    body: bytes
    """The flight as JSON."""


def key_of(flight: Flight) -> str:
    """The partition key of a flight."""
    return str(flight["tailnum"] or f"{flight['carrier']}{flight['flight']}")


def envelopes(flights: Iterable[Flight], shard: int = 0, shards: int = 1) -> Iterator[Envelope]:
    """The messages of one shard, in order of the input. A key's flights are all in one shard: one sender keeps the
    order that several could not."""
    sent: Counter[str] = Counter()
    for row, flight in enumerate(flights):
        key = key_of(flight)
        if crc32(key.encode()) % shards != shard:
            continue
        body = json.dumps(flight, separators=(",", ":")).encode()
        properties: Properties = {"carrier": str(flight["carrier"]), "n": sent[key]}
        if (delay := flight["dep_delay"]) is not None:
            properties["delay"] = delay
        yield Envelope(f"flight-{row:06d}", key, sent[key], properties, body)
        sent[key] += 1
