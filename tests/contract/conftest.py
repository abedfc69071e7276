"""One place per kind of store; what a test opens there is closed at its end."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from partibus.partition.protocol.ports import Store
from tests.contract.stores import PLACES, Opener


@pytest.fixture(params=list(PLACES))
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens the store of one place, as often as a test wants."""
    opened: list[Store] = []
    open_inner = PLACES[request.param](tmp_path)

    def opener() -> Store:
        opened.append(open_inner())
        return opened[-1]

    yield opener
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Opener) -> Store:
    """One open store without rows."""
    return open_store()
