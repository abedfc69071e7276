"""Catalogs that are closed when the test that opened them ends."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from partibus.namespace.catalog import Catalog
from partibus.namespace.catalog_file import FILE_NAME, CatalogFile

_opened: list[Catalog] = []


@cache
def _new_file() -> bytes:
    """Return the bytes of a new catalog. Making one syncs it some times."""
    with TemporaryDirectory() as folder:
        Catalog(Path(folder), store_count=1).close()
        assert not list(Path(folder).glob("*-wal")), "all is in the file"
        return (Path(folder) / FILE_NAME).read_bytes()


def open_catalog(folder: Path, stores: int = 16) -> Catalog:
    """Open the catalog of a folder until the test ends. An empty folder gets a copy of one that was made before."""
    if not any(folder.iterdir()):
        (folder / FILE_NAME).touch(0o600)
        (folder / FILE_NAME).write_bytes(_new_file())
    _opened.append(Catalog(folder, stores))
    return _opened[-1]


def database(catalog: Catalog) -> sqlite3.Connection:
    """Return the connection to the file of a catalog, whose statements tests trace and change."""
    assert isinstance(catalog._database, CatalogFile)
    return catalog._database._connection


@pytest.fixture(autouse=True)
def close_catalogs() -> Iterator[None]:
    """Close what `open_catalog` opened: each open catalog holds five file descriptors."""
    yield
    while _opened:
        _opened.pop().close()
