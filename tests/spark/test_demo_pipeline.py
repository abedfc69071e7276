"""The demo's Spark job, from messages in partitions to a proof, without a broker."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from partibus.demo.envelopes import envelopes
from partibus.demo.flights import read_flights
from partibus.demo.outcome import busiest_keys, collect_delays, collect_keys, collect_partitions
from partibus.demo.pipeline import QUEUE_SCHEMA, Tables, checksum, fingerprint, write_derived, write_flights
from partibus.demo.proof import Proof, prove
from partibus.demo.tally import CHECKSUM_MODULUS, KeyTallies, Tally
from partibus.demo.tally import fingerprint as fingerprint_in_python
from partibus.routing.slots import partition_for_key
from tests.spark.simulated import Partition, SimulatedNamespace, message

ROWS = 400
PARTITIONS = 4
partition_of = partial(partition_for_key, partition_count=PARTITIONS)


def fill(namespace: SimulatedNamespace, step: int = 1) -> tuple[dict[str, Tally], dict[int, Partition]]:
    """What a broker without faults would hold of the first flights; and the senders' tallies. A negative ``step``
    numbers the messages backwards."""
    tallies = KeyTallies()
    held: dict[int, Partition] = {id_: {} for id_ in range(PARTITIONS)}
    for envelope in envelopes(read_flights(ROWS)):
        tallies.add(envelope.key, envelope.message_id, envelope.body)
        id_ = partition_of(envelope.key)
        pos = len(held[id_])
        held[id_][pos] = message(
            ROWS + step * pos,
            envelope.body,
            partition_id=id_,
            annotations={"x-opt-partition-key": envelope.key},
            properties=[envelope.message_id],
            application_properties={"n": envelope.n, "carrier": envelope.carrier},
        )
    namespace.put("flights", held)
    return tallies.result(), held


def run(spark: SparkSession, namespace: SimulatedNamespace, out: Path) -> Tables:
    reader = spark.read.format("partibus_simulated").options(connection=namespace.connection, entity="flights")
    return write_derived(write_flights(reader.schema(QUEUE_SCHEMA).load(), out), out)


def proof_of(sent: dict[str, Tally], tables: Tables) -> Proof:
    _, tallies = collect_partitions(tables, PARTITIONS)
    return prove(sent, collect_keys(tables), tallies, partition_of, PARTITIONS, ROWS)


def test_what_is_in_the_partitions_is_proved_and_tabled(
    spark: SparkSession, namespace: SimulatedNamespace, tmp_path: Path
) -> None:
    sent, held = fill(namespace)
    tables = run(spark, namespace, tmp_path / "tables")
    proof = proof_of(sent, tables)
    assert proof.holds, proof.checks

    flights = list(read_flights(ROWS))
    first = tables.flights.where("message_id = 'flight-000000'").select("flight", "dep_delay", "origin", "n").collect()
    assert [tuple(row) for row in first] == [(1545, 2, "EWR", 0)]

    delays = {(delay.carrier, delay.hour): delay for delay in collect_delays(tables)}
    morning = [flight for flight in flights if (flight["carrier"], flight["hour"]) == ("UA", 6)]
    left = [flight["dep_delay"] for flight in morning if isinstance(flight["dep_delay"], int)]
    assert delays["UA", 6].flights == len(morning)
    assert delays["UA", 6].cancelled == len(morning) - len(left)
    assert delays["UA", 6].departure_delay == pytest.approx(sum(left) / len(left))

    loads, _ = collect_partitions(tables, PARTITIONS)
    assert [load.messages for load in loads] == [len(held[id_]) for id_ in range(PARTITIONS)]
    assert sum(load.keys for load in loads) == len(sent)
    busiest = busiest_keys(collect_keys(tables), 1)[0]
    assert busiest.messages == max(tally.messages for tally in sent.values())


@pytest.mark.parametrize("fault", ["lost", "doubled", "order"])
def test_a_fault_in_the_partitions_is_found(
    spark: SparkSession, namespace: SimulatedNamespace, tmp_path: Path, fault: str
) -> None:
    sent, held = fill(namespace, step=-1 if fault == "order" else 1)
    if fault == "lost":
        del held[1][5]
    elif fault == "doubled":
        held[1][len(held[1])] = held[1][5]
    namespace.put("flights", held)
    proof = proof_of(sent, run(spark, namespace, tmp_path / "tables"))
    assert [part.partition_id for part in proof.partitions if not part.holds] == ([] if fault == "order" else [1])
    assert not proof.holds
    if fault == "order":
        assert [check.claim for check in proof.checks if not check.holds] == [
            "The messages of every key are in the order they were sent"
        ]


def test_partition_that_nothing_was_read_of_has_no_load(
    spark: SparkSession, namespace: SimulatedNamespace, tmp_path: Path
) -> None:
    _, held = fill(namespace)
    namespace.put("flights", {**held, 2: {}})
    loads, tallies = collect_partitions(run(spark, namespace, tmp_path / "tables"), PARTITIONS)
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
