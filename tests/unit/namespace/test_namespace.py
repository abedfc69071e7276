"""The in-memory view: lookups, and changes that follow the catalog."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from partibus.clock import ManualClock
from partibus.errors import EntityNotFound, InvalidOperation, StoreUnavailable
from partibus.namespace.catalog import Catalog
from partibus.namespace.config_document import ConfigError
from partibus.namespace.config_json import Config, parse_config_json
from partibus.namespace.entities import EntityOptions, EntityStatus
from partibus.namespace.namespace import Applied, Namespace


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    catalog = Catalog(tmp_path, 16)
    yield catalog
    catalog.close()


@pytest.fixture
def namespace(catalog: Catalog, clock: ManualClock) -> Namespace:
    return Namespace(catalog, clock)


def config(*queues: dict[str, object]) -> Config:
    document = {"UserConfig": {"Namespaces": [{"Name": "ns", "Queues": list(queues)}]}}
    return parse_config_json(json.dumps(document).encode())


def test_a_queue_is_found_whatever_the_case(namespace: Namespace) -> None:
    made = namespace.create("Orders/EU")
    assert namespace.queue("orders/eu") is made
    assert namespace.find("ORDERS/EU") is made
    assert made.name == "Orders/EU"
    assert namespace.find("orders") is None
    with pytest.raises(EntityNotFound, match="'orders'"):
        namespace.queue("orders")


def test_options_are_worked_out_for_use(namespace: Namespace) -> None:
    queue = namespace.create(
        "q",
        EntityOptions(
            lock_duration_ms=30_000,
            max_delivery_count=3,
            default_ttl_ms=5_000,
            dead_lettering_on_expiration=True,
            batched_operations=False,
            max_size_mb=2048,
            status=EntityStatus.RECEIVE_DISABLED,
        ),
    )
    assert (queue.lock_duration_ms, queue.max_delivery_count, queue.default_ttl_ms) == (30_000, 3, 5_000)
    assert (queue.dead_lettering_on_expiration, queue.batched_operations) == (True, False)
    assert (queue.partition_size_max_bytes, queue.message_size_max_bytes) == (2048 * 2**20, 256 * 1024)
    assert (queue.can_send, queue.can_receive, queue.partitioned) == (True, False, False)
    assert (queue.created_ms, queue.updated_ms, queue.deleted) == (1_000, 1_000, False)
    assert namespace.create("unlimited").default_ttl_ms is None


@pytest.mark.row("P5", "P7")
def test_sixteen_partitions_or_one(namespace: Namespace) -> None:
    assert len(namespace.create("plain").partitions) == 1
    partitioned = namespace.create("partitioned", EntityOptions(partitioned=True))
    assert partitioned.partitioned
    assert [placement.partition_no for placement in partitioned.partitions] == list(range(16))


def test_holders_of_a_queue_see_an_update(namespace: Namespace, clock: ManualClock) -> None:
    held = namespace.create("q")
    clock.advance(500)
    assert namespace.update("Q", EntityOptions(lock_duration_ms=5_000, status=EntityStatus.DISABLED)) is held
    assert (held.lock_duration_ms, held.can_send, held.created_ms, held.updated_ms) == (5_000, False, 1_000, 1_500)


def test_a_refused_update_changes_nothing(namespace: Namespace) -> None:
    queue = namespace.create("q")
    with pytest.raises(InvalidOperation):
        namespace.update("q", EntityOptions(partitioned=True, max_delivery_count=1))
    assert queue.max_delivery_count == 10


def test_holders_of_a_queue_see_that_it_was_deleted(namespace: Namespace) -> None:
    queue = namespace.create("q")
    assert namespace.delete("Q") == [queue]
    assert queue.deleted
    assert namespace.find("q") is None
    again = namespace.create("q")
    assert again.entity_id != queue.entity_id
    assert not again.deleted


def test_memory_stays_as_it_was_when_the_catalog_fails(namespace: Namespace, catalog: Catalog) -> None:
    queue = namespace.create("q")
    catalog.close()
    with pytest.raises(StoreUnavailable):
        namespace.create("r")
    with pytest.raises(StoreUnavailable):
        namespace.update("q", EntityOptions(max_delivery_count=1))
    with pytest.raises(StoreUnavailable):
        namespace.delete("q")
    assert list(namespace) == [queue]
    assert (queue.deleted, queue.max_delivery_count) == (False, 10)


def test_a_restart_finds_the_same_queues(namespace: Namespace, catalog: Catalog, clock: ManualClock) -> None:
    for name in ("b", "A", "c"):
        namespace.create(name, EntityOptions(partitioned=name == "c"))
    again = Namespace(catalog, clock)
    assert [queue.name for queue in again] == ["A", "b", "c"]
    assert len(again) == 3
    assert [(queue.entity_id, queue.partitions, queue.description) for queue in again] == [
        (queue.entity_id, queue.partitions, queue.description) for queue in namespace
    ]


def test_applying_a_file_makes_updates_and_leaves(namespace: Namespace) -> None:
    namespace.create("other")
    queue = namespace.create("q", EntityOptions(lock_duration_ms=5_000))
    namespace.create("same", EntityOptions(max_delivery_count=3))
    declared = config(
        {"Name": "Q", "Properties": {"MaxDeliveryCount": 7}},
        {"Name": "same", "Properties": {"MaxDeliveryCount": 3}},
        {"Name": "new", "Properties": {"EnablePartitioning": True}},
    )
    assert namespace.apply(declared) == Applied(created=1, updated=1, unchanged=1)
    assert (queue.max_delivery_count, queue.lock_duration_ms) == (7, 60_000)
    assert len(namespace.queue("new").partitions) == 16
    assert namespace.find("other") is not None


def test_applying_a_file_again_changes_nothing(namespace: Namespace, catalog: Catalog, clock: ManualClock) -> None:
    declared = config({"Name": "q", "Properties": {"EnablePartitioning": True}}, {"Name": "r"})
    assert namespace.apply(declared) == Applied(2, 0, 0)
    before = catalog.list_entities()
    clock.advance(1)
    assert Namespace(catalog, clock).apply(declared) == Applied(0, 0, 2)
    assert catalog.list_entities() == before


@pytest.mark.row("P9")
def test_an_immutable_difference_names_both_values_and_applies_nothing(namespace: Namespace) -> None:
    namespace.create("q")
    namespace.create("p", EntityOptions(partitioned=True))
    declared = config({"Name": "new"}, {"Name": "q", "Properties": {"EnablePartitioning": True}}, {"Name": "p"})
    with pytest.raises(ConfigError) as caught:
        namespace.apply(declared)
    assert [problem.path for problem in caught.value.problems] == [
        "$.UserConfig.Namespaces[0].Queues[1].Properties.EnablePartitioning",
        "$.UserConfig.Namespaces[0].Queues[2].Properties.EnablePartitioning",
    ]
    assert "is false for life and can't become true" in caught.value.problems[0].text
    assert "is true for life and can't become false" in caught.value.problems[1].text
    assert namespace.find("new") is None
