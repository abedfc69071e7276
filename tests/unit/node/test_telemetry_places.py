"""The owner of a row of telemetry: the namespace, the entity and the partition of the operation."""

from __future__ import annotations

from pathlib import Path

from partibus.namespace.namespace_options import NamespaceOptions
from partibus.node.telemetry import _places_of
from partibus.partition.protocol.notes import SEND
from partibus.telemetry.recorder import Place
from tests.unit.namespace.servers import Cluster
from tests.unit.telemetry.test_recorder import NOW_MS, ROW, Recording, entries, messages_of


def test_the_same_path_in_two_namespaces_is_two_entities(tmp_path: Path) -> None:
    member = Cluster(tmp_path).join()
    place_of = _places_of(member.namespaces)
    acme = member.namespaces.create("acme-1", NamespaceOptions())
    brokers = (member.namespaces.default, acme)
    made = [broker.create_queue("q", {"EnablePartitioning": True}).queue for broker in brokers]
    for queue, namespace in zip(made, ("default", "acme-1"), strict=True):
        placement = queue.partitions[5]
        assert place_of(placement.partition_row) == Place("q", 5, placement.store_no, namespace)
    assert place_of(999_999) == Place("", 0, 0)
    acme.delete("q")
    assert place_of(made[1].partitions[5].partition_row).entity == ""
    member.catalog.close()


def test_rows_say_the_namespace() -> None:
    recording = Recording()
    recording.recorder.place_of = lambda row: Place("q", row, 0, "acme-1")
    sent = entries(11)
    recording.store.noted(ROW, [(SEND, 0, sent, messages_of(sent, ["north"]))], NOW_MS, 1)
    recording.commit(1)
    assert [row["namespace"] for row in recording.rows()] == ["acme-1", "default"], "a commit is of all"
