from __future__ import annotations

from collections.abc import Iterator

import pytest

from partibus.testing.broker_process import BrokerProcess
from tests.kit.postgresql_server import PostgreSQLServer, shared_server
from tests.robustness.raw import MIB, check_serves, forget_peak, rss_bytes

GROWTH_MAX = 200 * MIB
"""The most bytes by which one peer may make the process grow at its worst moment.

A flood of bodies of 64 KiB takes 145 to 165 MiB however long it lasts: queued and committed bodies, and memory that
malloc keeps between them.
"""


@pytest.fixture(scope="session")
def server() -> PostgreSQLServer:
    """Shared by the tests of a process, each with schemas of its own; who kills it starts it again."""
    return shared_server()


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for the attacks of a file; at its end it stops in good order and has logged no traceback."""
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        broker.create_queue("alive")
        broker.create_queue("parts", EnablePartitioning=True)
        yield broker


@pytest.fixture
def broker(process: BrokerProcess) -> Iterator[BrokerProcess]:
    """Check after every attack that the broker lives, serves others, keeps its bounds and has logged no traceback."""
    forget_peak(process)
    before = rss_bytes(process)
    yield process
    assert "Traceback" not in process.log, process.log
    grown = rss_bytes(process, peak=True) - before
    assert grown < GROWTH_MAX, f"grew by {grown / MIB:.0f} MiB"
    check_serves(process)
