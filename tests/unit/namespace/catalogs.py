"""Catalogs that are closed when the test that opened them ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from partibus.namespace.catalog import Catalog

_opened: list[Catalog] = []


def open_catalog(folder: Path, stores: int = 16) -> Catalog:
    """Open the catalog of a folder until the test ends."""
    _opened.append(Catalog(folder, stores))
    return _opened[-1]


@pytest.fixture(autouse=True)
def close_catalogs() -> Iterator[None]:
    """Close what `open_catalog` opened: each open catalog holds five file descriptors."""
    yield
    while _opened:
        _opened.pop().close()
