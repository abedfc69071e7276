"""The demo's Spark job, from messages in partitions to a proof, without a broker."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from partibus.demo.capture import (
    BATCHES,
    ENTITY_SCHEMA,
    Capture,
    Tables,
    busiest_keys,
    checksum,
    collect_delays,
    collect_keys,
    collect_partitions,
    fingerprint,
    flights_table,
    write_derived,
)
from partibus.demo.flights import CHECKSUM_MODULUS, Envelope, KeyTallies, Tally, envelopes, read_flights
from partibus.demo.flights import fingerprint as fingerprint_in_python
from partibus.demo.proof import Proof, check_selection, compare_selections, prove, read_input
from partibus.demo.topology import ALL, SUBSCRIPTIONS, path_of
from partibus.routing.slots import partition_for_key
from tests.spark.simulated import Partition, SimulatedNamespace, message

ROWS = 400
PARTITIONS = 4
partition_of = partial(partition_for_key, partition_count=PARTITIONS)


class Filled(NamedTuple):
    """The content of the namespace."""

    sent: dict[str, Tally]
    held: dict[str, dict[int, Partition]]
    """Subscription -> partition -> messages."""

    def put(self, namespace: SimulatedNamespace) -> None:
        for name, partitions in self.held.items():
            namespace.put(path_of(name), partitions)


def fill(namespace: SimulatedNamespace) -> Filled:
    """The first flights as a broker without faults would hold them; and the senders' tallies."""
    tallies = KeyTallies()
    held: dict[str, dict[int, Partition]] = {name: {id_: {} for id_ in range(PARTITIONS)} for name in SUBSCRIPTIONS}
    for envelope in envelopes(read_flights(ROWS)):
        tallies.add(envelope.key, envelope.message_id, envelope.body)
        id_ = partition_of(envelope.key)
        delay = envelope.properties.get("delay")
        selected = {
            ALL: True,
            "delayed": isinstance(delay, int) and delay > 60,
            "carrier": envelope.properties["carrier"] == "UA",
        }
        for name, partitions in held.items():
            if selected[name]:
                pos = len(partitions[id_])
                partitions[id_][pos] = message(
                    ROWS + pos,
                    envelope.body,
                    annotations={"x-opt-partition-key": envelope.key},
                    properties=[envelope.message_id],
                    application_properties={str(key): value for key, value in envelope.properties.items()},
                )
    filled = Filled(tallies.result(), held)
    filled.put(namespace)
    return filled


def hold(namespace: SimulatedNamespace, holds: bool) -> None:
    """Have readers of the subscription that gets all wait behind their first messages, or go on."""
    everything = namespace.read(path_of(ALL))
    everything.holds = holds
    namespace.write(path_of(ALL), everything)


def run(spark: SparkSession, namespace: SimulatedNamespace, out: Path) -> Tables:
    reader = spark.read.format("partibus_simulated").option("connection", namespace.connection).schema(ENTITY_SCHEMA)
    subscriptions = {name: reader.option("entity", path_of(name)).load() for name in SUBSCRIPTIONS}
    read = flights_table(subscriptions)
    read.write.partitionBy("subscription").parquet(str(out / "flights"))
    return write_derived(spark.read.schema(read.schema).parquet(str(out / "flights")), out)


def proof_of(sent: dict[str, Tally], tables: Tables, out: Path) -> Proof:
    _, tallies = collect_partitions(tables, PARTITIONS, ALL)
    proof = prove(sent, collect_keys(tables), tallies, partition_of, PARTITIONS, ROWS)
    selections = compare_selections(read_input(ROWS), out / "flights")
    return proof._replace(checks=[*proof.checks, *map(check_selection, selections)])


def failing(proof: Proof) -> list[str]:
    return [check.claim for check in proof.checks if not check.holds]


@pytest.mark.usefixtures("several_partitions")
@pytest.mark.row("D2", "D4")
def test_a_capture_that_was_ended_goes_on_from_its_checkpoint_to_tables_that_are_proved(
    spark: SparkSession, namespace: SimulatedNamespace, tmp_path: Path
) -> None:
    sent, held = fill(namespace)
    out = tmp_path / "tables"
    sources = {
        name: {
            "connection": namespace.connection,
            "entity": path_of(name),
            "cursor": "capture",
            "maxMessagesPerTrigger": str(ROWS // BATCHES),
            "pollTimeoutMs": "0",
        }
        for name in SUBSCRIPTIONS
    }
    capture = Capture(spark, sources, out, format_="partibus_simulated")
    shown: list[tuple[int, int]] = []
    hold(namespace, True)  # the second micro-batch can't be over before it is seen
    first = capture.run_into_the_middle(lambda done, total: shown.append((done, total)))
    assert len(first.batches) < BATCHES
    assert first.ended_in == 1
    hold(namespace, False)
    assert shown
    stray = out / "flights" / "subscription=all" / "part-stray.parquet"
    stray.write_bytes(next((out / "flights" / "subscription=all").glob("*.parquet")).read_bytes())
    second = capture.run_to_the_end(lambda done, total: None)
    assert second.ended_in is None
    files, rows = capture.remove_leftovers()
    assert not stray.exists()
    assert files >= 1
    assert rows >= 1
    tables = write_derived(capture.flights, out)
    proof = proof_of(sent, tables, out)
    assert proof.holds, proof.checks
    check_tables(tables, sent, held)


def check_tables(tables: Tables, sent: dict[str, Tally], held: dict[str, dict[int, Partition]]) -> None:
    flights = list(read_flights(ROWS))
    first = tables.flights.where("message_id = 'flight-000000'").select("subscription", "flight", "dep_delay", "n")
    assert sorted(map(tuple, first.collect())) == [("all", 1545, 2, 0), ("carrier", 1545, 2, 0)]

    delays = {(delay.carrier, delay.hour): delay for delay in collect_delays(tables)}
    morning = [flight for flight in flights if (flight["carrier"], flight["hour"]) == ("UA", 6)]
    left = [flight["dep_delay"] for flight in morning if isinstance(flight["dep_delay"], int)]
    assert delays["UA", 6].flights == len(morning)
    assert delays["UA", 6].cancelled == len(morning) - len(left)
    assert delays["UA", 6].departure_delay == pytest.approx(sum(left) / len(left))

    for name, partitions in held.items():
        loads, _ = collect_partitions(tables, PARTITIONS, name)
        assert [load.messages for load in loads] == [len(partitions[id_]) for id_ in range(PARTITIONS)]
    loads, _ = collect_partitions(tables, PARTITIONS, ALL)
    assert sum(load.keys for load in loads) == len(sent)
    busiest = busiest_keys(collect_keys(tables), 1)[0]
    assert busiest.messages == max(tally.messages for tally in sent.values())


def test_each_fault_in_the_partitions_is_found_and_nothing_else(
    spark: SparkSession, namespace: SimulatedNamespace, tmp_path: Path
) -> None:
    """One lost, one there twice, two of a key that changed places, each in a partition of its own; and a subscription
    that got nothing."""
    filled = fill(namespace)
    sent: dict[int, list[Envelope]] = {id_: [] for id_ in range(PARTITIONS)}
    for envelope in envelopes(read_flights(ROWS)):
        sent[partition_of(envelope.key)].append(envelope)
    lost, doubled, swapped, _ = (filled.held[ALL][id_] for id_ in range(PARTITIONS))
    # One that no other subscription has, which would miss it too, and the last of its key.
    last = {envelope.key: pos for pos, envelope in enumerate(sent[0]) if envelope.properties["carrier"] != "UA"}
    del lost[max(last.values())]
    doubled[len(doubled)] = doubled[5]
    key, n = next((envelope.key, envelope.n) for envelope in sent[2] if envelope.n)
    one, other = (pos for pos, envelope in enumerate(sent[2]) if envelope.key == key and envelope.n in (n - 1, n))
    swapped[one].data, swapped[other].data = swapped[other].data, swapped[one].data
    late = sum(len(partition) for partition in filled.held["delayed"].values())
    for partition in filled.held["delayed"].values():
        partition.clear()
    filled.put(namespace)

    out = tmp_path / "tables"
    tables = run(spark, namespace, out)
    proof = proof_of(filled.sent, tables, out)
    assert [part.partition_id for part in proof.partitions if not part.holds] == [0, 1]
    assert "The messages of every key are in the order they were sent" in failing(proof)
    found = {one.subscription: one.faults for one in compare_selections(read_input(ROWS), out / "flights")}
    assert found == {
        ALL: {"missing": 1, "repeated": 1, "out of order": 1}, "delayed": {"missing": late}, "carrier": {},
    }  # fmt: skip
    failed = [claim for claim in failing(proof) if claim.startswith("Subscription")]
    assert [claim.split()[1] for claim in failed] == [ALL, "delayed"]
    misplaced = {key for key, read in collect_keys(tables).items() if read.misplaced}
    assert misplaced == {key, sent[1][5].key}
    loads, tallies = collect_partitions(tables, PARTITIONS, "delayed")
    assert (loads, tallies) == ([(id_, 0, 0, 0) for id_ in range(PARTITIONS)], {})


def test_fingerprint_and_checksum_are_the_senders(spark: SparkSession) -> None:
    messages = [(f"id-{number}", bytes([number, 0, 255])) for number in range(50)]
    frame = spark.createDataFrame(messages, "id string, body binary").withColumn(
        "print", fingerprint(sf.col("id"), sf.col("body"))
    )
    expected = [fingerprint_in_python(id_, body) for id_, body in messages]
    assert [int(row["print"]) for row in frame.sort(sf.substring("id", 4, 2).cast("int")).collect()] == expected
    assert max(expected) >= 2**63
    (total,) = frame.agg(checksum(sf.col("print")).alias("sum")).collect()
    assert int(total["sum"]) == sum(expected) % CHECKSUM_MODULUS
