"""Catalogs of former formats: brought to the one of this version with all that is in them, in files and on servers."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psycopg
import pytest

from partibus.namespace.access import Right, SasPolicy
from partibus.namespace.catalog import Catalog
from partibus.namespace.catalog_database import FORMAT_VERSION, CatalogDatabase, schema_steps
from partibus.namespace.catalog_file import FILE_NAME, CatalogFile
from partibus.namespace.entities import QueueDescription
from partibus.namespace.namespace_options import NamespaceOptions
from partibus.store.postgresql.catalog import CatalogSchema, prepare_catalog
from tests.contract.stores import new_address

STORES = 16
TWO = """
    INSERT INTO entity (entity_id, folded_name, name, kind, properties, created_ms, updated_ms)
        VALUES (1, 'orders', 'Orders', 'queue', '{{"LockDuration": "PT5S"}}', 1000, 2000);
    INSERT INTO placement VALUES (1, 0, 3, 1);
    {policies}
    UPDATE numbers SET next_entity_id = 2, next_partition_row = 2, next_store_no = 4;
    INSERT INTO dropped_partition VALUES (77, 5);
"""
POLICIES = """
    INSERT INTO policy VALUES (0, 'of-all', 'Send,Listen', 'key-1', 'key-2', 1, 2);
    INSERT INTO policy VALUES (1, 'of-orders', 'Send', 'key-3', 'key-4', 3, 4);
"""


def content(version: int) -> str:
    """The rows that a broker of that format has written."""
    return TWO.format(policies=POLICIES if version > 1 else "")


def in_file(folder: Path, version: int) -> CatalogDatabase:
    connection = sqlite3.connect(folder / FILE_NAME)
    connection.executescript("".join(schema_steps("sqlite", 0)[:version]) + content(version))
    connection.close()
    return CatalogFile(folder)


def on_server(_: Path, version: int) -> CatalogDatabase:
    address = new_address()
    prepare_catalog(address, version, lambda _: schema_steps("postgresql", 0)[:version])
    with psycopg.connect(address.conninfo, autocommit=True) as connection:
        connection.execute(f"SET search_path = {address.schema}".encode())
        connection.execute(content(version).encode())
    prepare_catalog(address, FORMAT_VERSION, partial(schema_steps, "postgresql"))
    return CatalogSchema(address, "a test")


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("make", [in_file, on_server])
def test_what_was_in_it_is_in_the_default_namespace(
    make: Callable[[Path, int], CatalogDatabase], version: int, tmp_path: Path
) -> None:
    catalog = Catalog(make(tmp_path, version), STORES)
    (record,) = catalog.list_namespaces()
    assert (record.name, record.namespace_id, record.options) == ("default", 0, NamespaceOptions())
    (orders,) = catalog.list_entities()
    assert (orders.entity_id, orders.namespace_id, orders.description.name) == (1, 0, "Orders")
    assert (orders.created_ms, orders.updated_ms, orders.description.options.lock_duration_ms) == (1_000, 2_000, 5_000)
    assert [tuple(place) for place in orders.placements] == [(0, 3, 1)]
    assert catalog.dropped_partitions() == [(77, 5)]
    if version > 1:
        both = Right.SEND | Right.LISTEN
        assert catalog.namespace_policies() == (SasPolicy("of-all", both, "key-1", "key-2", 1, 2),)
        assert orders.policies == (SasPolicy("of-orders", Right.SEND, "key-3", "key-4", 3, 4),)
    made = catalog.create_namespace("acme-1", NamespaceOptions(), 3_000, ())
    acme = catalog.of(made.namespace_id)
    assert acme.namespace_policies() == ()
    new = acme.create(QueueDescription("orders"), 3_000)
    assert (new.entity_id, new.namespace_id, new.placements[0].partition_row, new.policies) == (2, 1, 2, ())
    assert catalog.get("orders") == orders
    catalog.delete_namespace("acme-1")
    assert catalog.list_entities() == [orders]
    catalog.close()


def test_a_file_is_copied_before(tmp_path: Path) -> None:
    in_file(tmp_path, 2).close()
    copy = tmp_path / f"{FILE_NAME}.before-format-{FORMAT_VERSION}.copy"
    with sqlite3.connect(copy) as connection:
        assert connection.execute("SELECT version FROM format").fetchall() == [(2,)]
        assert connection.execute("SELECT name FROM entity").fetchall() == [("Orders",)]
    connection.close()
    assert copy.stat().st_mode & 0o077 == 0
