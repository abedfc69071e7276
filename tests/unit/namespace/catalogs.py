"""Catalogs that are closed when the test that opened them ends."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from partibus.namespace.catalog import Catalog
from partibus.namespace.catalog_file import CatalogFile

_opened: list[Catalog] = []


def open_catalog(folder: Path, stores: int = 16) -> Catalog:
    """Open the catalog of a folder until the test ends."""
    _opened.append(Catalog(folder, stores))
    return _opened[-1]


def file_of(catalog: Catalog) -> CatalogFile:
    """Return the file of a catalog, which tests damage and make wait."""
    assert isinstance(catalog._database, CatalogFile)
    return catalog._database


def database(catalog: Catalog) -> sqlite3.Connection:
    """Return the connection to the file of a catalog, whose statements tests trace and change."""
    return file_of(catalog)._connection


@pytest.fixture(autouse=True)
def close_catalogs() -> Iterator[None]:
    """Close what `open_catalog` opened: each open catalog holds five file descriptors."""
    yield
    while _opened:
        _opened.pop().close()
