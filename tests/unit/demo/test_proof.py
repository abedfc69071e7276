"""The proof: holds for what was sent, and fails for everything else."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partibus.demo.flights import KeyTallies, Tally, fingerprint, total
from partibus.demo.proof import KeyRead, Proof, Selection, check_left, prove
from partibus.routing.slots import partition_for_key

PARTITIONS = 4
partition_of = partial(partition_for_key, partition_count=PARTITIONS)


class Read(NamedTuple):
    """A message as the reading side finds it."""

    key: str
    message_id: str
    n: int
    body: bytes
    partition_id: int
    sequence: int


def sent_and_read(keys: Sequence[str]) -> tuple[dict[str, Tally], list[Read]]:
    """One message per entry of ``keys``, as sent, and as a broker without faults would hold them."""
    tallies = KeyTallies()
    counts: dict[str, int] = {}
    read = []
    for sequence, key in enumerate(keys):
        n = counts.get(key, 0)
        counts[key] = n + 1
        body = f"body {sequence}".encode()
        tallies.add(key, f"id-{sequence}", body)
        read.append(Read(key, f"id-{sequence}", n, body, partition_of(key), sequence))
    return tallies.result(), read


def proof_of(sent: dict[str, Tally], read: Sequence[Read], rows: int) -> Proof:
    """Tally the reading side message by message, in plain Python."""
    by_key: dict[str, list[Read]] = {}
    by_partition: dict[int, KeyTallies] = {}
    for message in read:
        by_key.setdefault(message.key, []).append(message)
        by_partition.setdefault(message.partition_id, KeyTallies()).add("", message.message_id, message.body)
    keys = {}
    for key, messages in by_key.items():
        messages.sort(key=lambda message: message.sequence)
        prints = sum(fingerprint(message.message_id, message.body) for message in messages)
        keys[key] = KeyRead(
            Tally(len(messages), prints % 2**64),
            tuple(sorted({message.partition_id for message in messages})),
            sum(message.n != place for place, message in enumerate(messages)),
        )
    partitions = {id_: tallies.result()[""] for id_, tallies in by_partition.items()}
    return prove(sent, keys, partitions, partition_of, PARTITIONS, rows)


def failing(proof: Proof) -> list[str]:
    return [check.claim.split()[0] for check in proof.checks if not check.holds]


KEYS = [f"N{number}" for number in (1, 2, 3, 1, 1, 2, 4, 5, 1, 3)]


def test_what_was_sent_is_proved() -> None:
    sent, read = sent_and_read(KEYS)
    proof = proof_of(sent, read, len(KEYS))
    assert proof.holds
    assert [part.partition_id for part in proof.partitions] == list(range(PARTITIONS))
    assert sum(part.read.messages for part in proof.partitions) == len(KEYS)


Fault = Callable[[list[Read]], list[Read]]

FAULTS: dict[str, tuple[Fault, set[str]]] = {
    "lost": (lambda read: read[:3] + read[4:], {"As", "The checksums", "Count", "The messages"}),
    "last lost": (lambda read: read[:-1], {"As", "The checksums", "Count"}),
    "doubled": (lambda read: [*read, read[0]._replace(sequence=99)], {"As", "The checksums", "Count", "The messages"}),
    "body changed": (lambda read: [read[0]._replace(body=b"other"), *read[1:]], {"The checksums", "Count"}),
    "id changed": (lambda read: [read[0]._replace(message_id="other"), *read[1:]], {"The checksums", "Count"}),
    "one lost, another doubled": (
        lambda read: [*read[1:], read[1]._replace(sequence=99)],
        {"The checksums", "Count", "The messages"},
    ),
    "key swapped": (
        lambda read: [read[0]._replace(key="N9", partition_id=partition_of("N9")), *read[1:]],
        {"Count", "The messages"},
    ),
    "in another partition": (
        lambda read: [*read[:-1], read[-1]._replace(partition_id=(read[-1].partition_id + 1) % PARTITIONS)],
        {"Count", "Every key"},
    ),
    "order of a key changed": (
        lambda read: [read[0]._replace(sequence=50), *read[1:]],
        {"The messages"},
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_fails_the_checks_that_it_concerns(name: str) -> None:
    fault, expected = FAULTS[name]
    sent, read = sent_and_read(KEYS)
    proof = proof_of(sent, fault(read), len(KEYS))
    found = [check.claim for check in proof.checks if not check.holds]
    assert not proof.holds
    for words in expected:
        assert any(claim.startswith(words) for claim in found), (words, found)
    for claim in found:
        assert any(claim.startswith(words) for words in expected), (claim, expected)


def test_rows_that_were_never_sent_are_noticed() -> None:
    sent, read = sent_and_read(KEYS)
    assert failing(proof_of(sent, read, len(KEYS) + 1)) == ["Every"]


def test_failed_check_names_some_and_counts_the_rest() -> None:
    sent, _ = sent_and_read([f"N{number}" for number in range(10)])
    proof = proof_of(sent, [], 10)
    assert proof.checks[4].found == "unequal: N0, N1, N2 and 7 more"


def test_partition_that_there_should_not_be_is_shown() -> None:
    sent, read = sent_and_read(KEYS)
    proof = proof_of(sent, [*read[:-1], read[-1]._replace(partition_id=77)], len(KEYS))
    assert [part.partition_id for part in proof.partitions if not part.holds] == [partition_of(KEYS[-1]), 77]


@given(st.lists(st.sampled_from("abcdefgh"), max_size=40), st.randoms(use_true_random=False))
def test_order_of_reading_does_not_matter(keys: list[str], chance: random.Random) -> None:
    sent, read = sent_and_read(keys)
    chance.shuffle(read)
    assert proof_of(sent, read, len(keys)).holds


def test_fingerprint_is_frozen() -> None:
    assert fingerprint("flight-000001", b"{}") == 0x40C20CD76186C8F5


def test_id_and_body_do_not_run_together() -> None:
    assert fingerprint("ab", b"c") != fingerprint("a", b"bc")


def test_total_wraps_at_64_bits() -> None:
    assert total([Tally(1, 2**64 - 1), Tally(2, 2)]) == Tally(3, 1)
    assert total([]) == Tally(0, 0)


@pytest.mark.parametrize(
    ("left", "holds"),
    [
        ({"all": 9, "worked": 0}, True),
        ({"all": 9, "worked": 1}, False),
        ({"all": 8, "worked": 0}, False),
        ({"all": 9}, False),
    ],
)
def test_what_is_left_at_the_broker_is_what_was_not_consumed(left: dict[str, int], holds: bool) -> None:
    selections = [Selection("all", 9, 9, 0, 0, 0, 0, 0), Selection("worked", 4, 4, 0, 0, 0, 0, 0)]
    check = check_left(selections, left, "worked")
    assert check.holds == holds
    assert check.found.startswith(f"all {left['all']}")
