"""Was everything that was sent read, once, unchanged, on the right partition and in order, and does every subscription
hold what it should? Pure functions."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from partibus.demo.tally import EMPTY, Tally, total

SHOWN_MAX = 3
"""Examples that a failed check names."""


class KeyRead(NamedTuple):
    """What Spark read of one partition key."""

    tally: Tally
    partition_ids: tuple[int, ...]
    """Every partition that held a message of the key, rising."""
    misplaced: int
    """Messages whose `n` is not their place (from 0) when the key's messages are put in order of sequence number."""


class Check(NamedTuple):
    """One claim, and what was found."""

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
        return self.sent == self.read


class Selection(NamedTuple):
    """What one subscription holds, beside what the data says that it should."""

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
    """Behind one of their key that was sent later."""

    @property
    def faults(self) -> dict[str, int]:
        """Those that there are."""
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
        return not self.faults and self.expected == self.messages


class Proof(NamedTuple):
    """The verdict and its parts."""

    checks: list[Check]
    partitions: list[PartitionProof]
    """Of the subscription that gets all."""

    @property
    def holds(self) -> bool:
        return all(check.holds for check in self.checks)


def prove(
    sent: Mapping[str, Tally],
    read: Mapping[str, KeyRead],
    read_partitions: Mapping[int, Tally],
    partition_of: Callable[[str], int],
    partition_count: int,
    rows: int,
) -> Proof:
    """Compare what the senders counted with what Spark counted; ``partition_of`` is the broker's frozen routing and
    ``rows`` the length of the input."""
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
                f"{len(ids)} partitions" if not unequal else f"unequal: {_some(unequal)}",
            ),
            Check(
                "Count and checksum are equal for every key",
                not differing,
                f"{len(sent):,} keys" if not differing else f"unequal: {_some(differing)}",
            ),
            Check(
                "Every key is in one partition, the one its hash names",
                not astray,
                f"{len(read):,} keys" if not astray else f"astray: {_some(astray)}",
            ),
            Check(
                "The messages of every key are in the order they were sent",
                not disordered,
                f"{len(read):,} keys" if not disordered else f"out of order: {_some(disordered)}",
            ),
        ],
        partitions,
    )


def check_selection(selection: Selection) -> Check:
    """The claim about one subscription."""
    faults = ", ".join(f"{count:,} {name}" for name, count in selection.faults.items())
    return Check(
        f"Subscription {selection.subscription} holds exactly the rows that the data says",
        selection.holds,
        f"{selection.expected:,} rows, {selection.messages:,} messages" + (f": {faults}" if faults else ""),
    )


def check_left(selections: Sequence[Selection], left: Mapping[str, int], consumed: str) -> Check:
    """The claim about what the capture has left at the broker. ``left``: messages there by subscription; ``consumed``:
    the one whose reader completes."""
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
