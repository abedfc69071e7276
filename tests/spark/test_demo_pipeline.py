"""The demo's Spark job, from messages in partitions to a proof, without a broker."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from partibus.demo.capture import BATCHES, Capture
from partibus.demo.envelopes import envelopes
from partibus.demo.flights import read_flights
from partibus.demo.outcome import busiest_keys, collect_delays, collect_keys, collect_partitions
from partibus.demo.pipeline import ENTITY_SCHEMA, Tables, checksum, fingerprint, flights_table, write_derived
from partibus.demo.proof import Proof, check_selection, prove
from partibus.demo.selection import compare_selections, read_input
from partibus.demo.tally import CHECKSUM_MODULUS, KeyTallies, Tally
from partibus.demo.tally import fingerprint as fingerprint_in_python
from partibus.demo.topology import ALL, SUBSCRIPTIONS, path_of
from partibus.routing.slots import partition_for_key
from tests.spark.simulated import Partition, SimulatedNamespace, message

ROWS = 400
PARTITIONS = 4
partition_of = partial(partition_for_key, partition_count=PARTITIONS)


class Filled(NamedTuple):
    """What the namespace was filled with."""

    sent: dict[str, Tally]
    held: dict[str, dict[int, Partition]]
    """Subscription -> partition -> messages."""

    def put(self, namespace: SimulatedNamespace) -> None:
        for name, partitions in self.held.items():
            namespace.put(path_of(name), partitions)


def fill(namespace: SimulatedNamespace, step: int = 1) -> Filled:
    """What a broker without faults would hold of the first flights; and the senders' tallies. A negative ``step``
    numbers the messages backwards."""
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
                    ROWS + step * pos,
                    envelope.body,
                    annotations={"x-opt-partition-key": envelope.key},
                    properties=[envelope.message_id],
                    application_properties={str(key): value for key, value in envelope.properties.items()},
                )
    filled = Filled(tallies.result(), held)
    filled.put(namespace)
    return filled


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


def test_what_is_in_the_partitions_is_proved_and_tabled(
    spark: SparkSession, namespace: SimulatedNamespace, tmp_path: Path
) -> None:
    sent, held = fill(namespace)
    tables = run(spark, namespace, tmp_path / "tables")
    proof = proof_of(sent, tables, tmp_path / "tables")
    assert proof.holds, proof.checks

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


@pytest.mark.row("D2", "D4")
def test_a_capture_that_was_ended_goes_on_from_its_checkpoint(
    spark: SparkSession, namespace: SimulatedNamespace, tmp_path: Path
) -> None:
    sent, _ = fill(namespace)
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
    first = capture.run_into_the_middle(lambda done, total: shown.append((done, total)))
    assert len(first.batches) < BATCHES
    assert first.ended_in in range(1, BATCHES)
    assert shown
    stray = out / "flights" / "subscription=all" / "part-stray.parquet"
    stray.write_bytes(next((out / "flights" / "subscription=all").glob("*.parquet")).read_bytes())
    second = capture.run_to_the_end(lambda done, total: None)
    assert second.ended_in is None
    files, rows = capture.remove_leftovers()
    assert not stray.exists()
    assert files >= 1
    assert rows >= 1
    assert proof_of(sent, write_derived(capture.flights, out), out).holds


@pytest.mark.parametrize("fault", ["lost", "doubled", "order"])
def test_a_fault_in_the_partitions_is_found(
    spark: SparkSession, namespace: SimulatedNamespace, tmp_path: Path, fault: str
) -> None:
    filled = fill(namespace, step=-1 if fault == "order" else 1)
    partition = filled.held[ALL][1]
    if fault == "lost":
        del partition[5]
    elif fault == "doubled":
        partition[len(partition)] = partition[5]
    filled.put(namespace)
    proof = proof_of(filled.sent, run(spark, namespace, tmp_path / "tables"), tmp_path / "tables")
    assert [part.partition_id for part in proof.partitions if not part.holds] == ([] if fault == "order" else [1])
    assert not proof.holds
    if fault == "order":
        # Few of the late flights are of one aircraft: their order can't tell.
        assert failing(proof)[0] == "The messages of every key are in the order they were sent"
        assert {claim.split()[1] for claim in failing(proof)[1:]} >= {"all", "carrier"}


def test_a_fault_in_one_subscription_is_its_own(
    spark: SparkSession, namespace: SimulatedNamespace, tmp_path: Path
) -> None:
    filled = fill(namespace)
    for delayed in filled.held["delayed"].values():
        delayed.clear()
    filled.put(namespace)
    tables = run(spark, namespace, tmp_path / "tables")
    proof = proof_of(filled.sent, tables, tmp_path / "tables")
    assert failing(proof) == ["Subscription delayed holds exactly the rows that the data says"]
    assert all(part.holds for part in proof.partitions)
    loads, tallies = collect_partitions(tables, PARTITIONS, "delayed")
    assert ([load.messages for load in loads], tallies) == ([0] * PARTITIONS, {})


def test_partition_that_nothing_was_read_of_has_no_load(
    spark: SparkSession, namespace: SimulatedNamespace, tmp_path: Path
) -> None:
    held = fill(namespace).held[ALL]
    namespace.put(path_of(ALL), {**held, 2: {}})
    loads, tallies = collect_partitions(run(spark, namespace, tmp_path / "tables"), PARTITIONS, ALL)
    assert loads[2] == (2, 0, 0, 0)
    assert sorted(tallies) == [0, 1, 3]


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
