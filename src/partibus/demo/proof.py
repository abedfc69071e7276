"""The demo's proof: the messages read are those sent, and each subscription got those that its filter selects."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from partibus.demo.flights import EMPTY, Tally, flights_archive, total
from partibus.demo.topology import ALL, SUBSCRIPTIONS
from partibus.pipeline.report.page import counted

SHOWN_MAX = 3
"""Examples that a failed check names."""


class KeyRead(NamedTuple):
    """The messages that Spark read of one partition key."""

    tally: Tally
    partition_ids: tuple[int, ...]
    """Every partition that held a message of the key, rising."""
    misplaced: int
    """Messages whose `n` is not their place (from 0) when the key's messages are put in order of sequence number."""


class Check(NamedTuple):
    """One claim, and its result."""

    claim: str
    holds: bool
    found: str


class PartitionProof(NamedTuple):
    """Both sides of one partition: the sender's by the key's slot, the reader's by where the message was found."""

    partition_id: int
    sent: Tally
    read: Tally

    @property
    def holds(self) -> bool:
        """Whether the claim is true."""
        return self.sent == self.read


class Selection(NamedTuple):
    """The messages of one subscription, compared with the expected ones."""

    subscription: str
    expected: int
    messages: int
    missing: int
    """Expected, and not there."""
    unexpected: int
    repeated: int
    """Messages with the id of one before."""
    altered: int
    """Not the same content, key or partition as the same message in the subscription that gets all."""
    disordered: int
    """The messages behind one of their key that was sent later."""

    @property
    def faults(self) -> dict[str, int]:
        """The faults with a count above 0."""
        counts = {
            "missing": self.missing,
            "unexpected": self.unexpected,
            "repeated": self.repeated,
            "altered": self.altered,
            "out of order": self.disordered,
        }
        return {name: count for name, count in counts.items() if count}

    @property
    def holds(self) -> bool:
        """Whether there are no faults."""
        return not self.faults and self.expected == self.messages


class Proof(NamedTuple):
    """The verdict and its parts."""

    checks: list[Check]
    partitions: list[PartitionProof]
    """The partitions of the subscription that gets all."""

    @property
    def holds(self) -> bool:
        """Whether all claims are true."""
        return all(check.holds for check in self.checks)


def prove(
    sent: Mapping[str, Tally],
    read: Mapping[str, KeyRead],
    read_partitions: Mapping[int, Tally],
    partition_of: Callable[[str], int],
    partition_count: int,
    rows: int,
) -> Proof:
    """Compare the counts of the senders with those of Spark.

    ``partition_of`` is the broker's frozen routing, and ``rows`` the length of the input.
    """
    by_partition: dict[int, list[Tally]] = {partition_id: [] for partition_id in range(partition_count)}
    for key, tally in sent.items():
        by_partition[partition_of(key)].append(tally)
    expected = {partition_id: total(tallies) for partition_id, tallies in by_partition.items()}
    ids = sorted({*expected, *read_partitions})
    partitions = [PartitionProof(id_, expected.get(id_, EMPTY), read_partitions.get(id_, EMPTY)) for id_ in ids]
    all_sent, all_read = total(sent.values()), total(read_partitions.values())
    unequal = [part.partition_id for part in partitions if not part.holds]
    differing = [key for key in sorted({*sent, *read}) if sent.get(key) != _tally(read.get(key))]
    astray = [key for key, found in sorted(read.items()) if found.partition_ids != (partition_of(key),)]
    disordered = [key for key, found in sorted(read.items()) if found.misplaced]
    return Proof(
        [
            Check(
                "Every row of the input was sent and accepted",
                all_sent.messages == rows,
                f"{rows:,} rows, {all_sent.messages:,} accepted",
            ),
            Check(
                "As many messages were read as were sent",
                all_sent.messages == all_read.messages,
                f"{all_sent.messages:,} sent, {all_read.messages:,} read",
            ),
            Check(
                "The checksums over all messages are equal",
                all_sent.checksum == all_read.checksum,
                f"sent {all_sent.checksum:016x}, read {all_read.checksum:016x}",
            ),
            Check(
                "Count and checksum are equal in every partition",
                not unequal,
                counted(len(ids), "partition") if not unequal else f"unequal: {_some(unequal)}",
            ),
            Check(
                "Count and checksum are equal for every key",
                not differing,
                counted(len(sent), "key") if not differing else f"unequal: {_some(differing)}",
            ),
            Check(
                "Every key is in one partition, the one its hash names",
                not astray,
                counted(len(read), "key") if not astray else f"astray: {_some(astray)}",
            ),
            Check(
                "The messages of every key are in the order they were sent",
                not disordered,
                counted(len(read), "key") if not disordered else f"out of order: {_some(disordered)}",
            ),
        ],
        partitions,
    )


def check_selection(selection: Selection) -> Check:
    """Check the claim about one subscription."""
    faults = ", ".join(f"{count:,} {name}" for name, count in selection.faults.items())
    return Check(
        f"Subscription {selection.subscription} holds exactly the rows that the data says",
        selection.holds,
        f"{selection.expected:,} rows, {selection.messages:,} messages" + (f": {faults}" if faults else ""),
    )


def check_left(selections: Sequence[Selection], left: Mapping[str, int], consumed: str) -> Check:
    """Check the claim about messages that the capture has left at the broker.

    ``left``: messages there by subscription. ``consumed``: the subscription whose reader completes.
    """
    due = {found.subscription: 0 if found.subscription == consumed else found.expected for found in selections}
    return Check(
        f"At the broker nothing is left of {consumed}, which was consumed, and everything of the others",
        due == dict(left),
        ", ".join(f"{name} {count:,}" for name, count in left.items()),
    )


def _tally(found: KeyRead | None) -> Tally | None:
    return None if found is None else found.tally


def _some(things: list[int] | list[str]) -> str:
    more = f" and {len(things) - SHOWN_MAX:,} more" if len(things) > SHOWN_MAX else ""
    return ", ".join(str(thing) for thing in things[:SHOWN_MAX]) + more


Frame = Any
"""A pandas DataFrame; pandas ships no types."""
Series = Any

SELECTED: Mapping[str, Callable[[Frame], Series]] = {
    ALL: lambda flights: pd.Series(True, flights.index),
    "delayed": lambda flights: flights["dep_delay"] > 60,
    "carrier": lambda flights: flights["carrier"] == "UA",
}
"""Subscription -> which rows of the input belong there, said in pandas. A flight that was cancelled has no delay: the
comparison is false here, and unknown in the broker's filter, which is no selection either."""

FOUND_COLUMNS = ["message_id", "partition_key", "partition_id", "sequence_number", "fingerprint"]


def read_input(rows: int | None = None) -> Frame:
    """Return the first ``rows`` of the input, or all: the columns of the predicates, and the id of each message."""
    flights = pd.read_csv(flights_archive(), nrows=rows, usecols=["carrier", "dep_delay"])
    flights["message_id"] = [f"flight-{row:06d}" for row in flights.index]
    return flights


def compare_selections(flights: Frame, table: Path) -> list[Selection]:
    """Return a comparison for each subscription. ``table``: the Parquet table of all messages, by subscription."""
    found = {name: _read(table, name) for name in SUBSCRIPTIONS}
    return [compare(name, flights[SELECTED[name](flights)], found[name], found[ALL]) for name in SUBSCRIPTIONS]


def compare(name: str, expected: Frame, found: Frame, everything: Frame) -> Selection:
    """Compare a subscription with the input.

    ``expected``: rows of the input, each key's in the order of sending. ``found``: messages of the subscription.
    ``everything``: those of the subscription that gets all.
    """
    ids, found_ids = pd.Index(expected["message_id"]), pd.Index(found["message_id"])
    return Selection(
        name,
        expected=len(ids),
        messages=len(found_ids),
        missing=len(ids.difference(found_ids)),
        unexpected=len(found_ids.difference(ids)),
        repeated=int(found_ids.duplicated().sum()),
        altered=0 if found is everything else _altered(found, everything),
        disordered=_disordered(found),
    )


def _read(table: Path, subscription: str) -> Frame:
    return pd.read_parquet(table, columns=FOUND_COLUMNS, filters=[("subscription", "==", subscription)])


def _altered(found: Frame, everything: Frame) -> int:
    """Find messages whose content, key or partition is not that of the one with the same id in ``everything``."""
    same = ["message_id", "partition_key", "partition_id", "fingerprint"]
    originals = everything.loc[everything["message_id"].isin(found["message_id"]), same]
    both = found[same].merge(originals.drop_duplicates(), how="left", indicator=True)
    return int((both["_merge"] == "left_only").sum())


def _disordered(found: Frame) -> int:
    """Find messages that were sent before the one that they stand behind: ids have the number of their row."""
    in_order = found.sort_values(["partition_key", "sequence_number"])
    rows = pd.to_numeric(in_order["message_id"].str.removeprefix("flight-"), errors="coerce")
    return int((rows.groupby(in_order["partition_key"]).diff() < 0).sum())
