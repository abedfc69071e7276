"""The checks of the layers can fail: every way to import is seen, and a wrong one is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.layers.imports import read_imports, read_modules
from tests.layers.test_layers import covers, is_allowed_inside, is_allowed_outside

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("statement", "target"),
    [
        ("import partibus.store.sqlite", "partibus.store.sqlite"),
        ("import partibus.store as s, asyncio", "partibus.store"),
        ("from partibus.store import sqlite", "partibus.store.sqlite"),
        ("from partibus.store.sqlite import open_store", "partibus.store.sqlite"),
        ("from partibus import store", "partibus.store"),
        ("from . import machine", "partibus.partition.machine"),
        ("from .machine import decide", "partibus.partition.machine"),
        ("from ..store.sqlite import open_store", "partibus.store.sqlite"),
        ("def f():\n    import partibus.store", "partibus.store"),
        ("if TYPE_CHECKING:\n    from partibus import store", "partibus.store"),
    ],
)
def test_every_way_to_import_is_seen(tmp_path: Path, statement: str, target: str) -> None:
    files = {"store/__init__": "", "store/sqlite": "", "partition/__init__": "", "partition/machine": ""}
    files["partition/runtime"] = statement
    for name, text in {"__init__": "", **files}.items():
        path = tmp_path / "partibus" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    targets = [i.target for i in read_imports(read_modules(tmp_path))]
    assert targets[0] == target


@pytest.mark.parametrize(
    ("importer", "target", "allowed"),
    [
        ("store.sqlite.writer", "partition.protocol.ports", True),
        ("partition.core.machine", "store.frames", False),
        ("partition.core.machine", "partition.protocol.commands", True),
        ("partition.core.machine", "partition.runtime.slot", False),
        ("amqp.codec.types", "errors", False),
        ("client.sender", "namespace.sas", True),
        ("client.sender", "namespace.entities", False),
        ("namespace.sas", "routing.slots", False),
        ("unheard_of", "errors", False),
    ],
)
def test_only_arrows_on_the_map_are_allowed(importer: str, target: str, allowed: bool) -> None:
    assert is_allowed_inside(importer, target) is allowed


@pytest.mark.parametrize(
    ("importer", "target", "allowed"),
    [
        ("frontends.amqp.server", "asyncio", True),
        ("frontends.amqp.link", "asyncio.streams", False),
        ("partition.machine", "time", False),
        ("partition.machine", "heapq", True),
        ("partition.machine", "pyarrow.parquet", False),
        ("spark.reader", "pyarrow.parquet", True),
        ("cli.main", "not_on_the_map", False),
    ],
)
def test_the_world_stays_where_the_map_says(importer: str, target: str, allowed: bool) -> None:
    assert is_allowed_outside(importer, target) is allowed


def test_name_covers_what_lies_below_it_but_not_what_only_begins_alike() -> None:
    assert covers("store", "store.sqlite")
    assert not covers("store", "storefront")
    assert not covers("store.sqlite", "store")
