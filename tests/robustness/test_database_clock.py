"""Brokers of several machines over a database whose clock is set (ADR 0025)."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from tests.kit.eventually import eventually
from tests.kit.postgresql_server import PostgreSQLServer
from tests.robustness.machines import Machines

SHIM = Path(__file__).parents[1] / "kit" / "stepped_clock.c"
HOUR_S = 3_600
HEARTBEATS = 4
"""The heartbeats of each broker after a step, before a test looks: a wrong conclusion is drawn at the first."""


class Database:
    """A server whose clock a test sets."""

    def __init__(self, compiler: str) -> None:
        self.server = PostgreSQLServer()
        library, self._offset = self.server.directory / "clock.so", self.server.directory / "ahead"
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(SHIM), "-ldl"], check=True)
        library.chmod(0o755)
        self._offset.write_text("0")
        self._offset.chmod(0o644)
        self.server.start({"LD_PRELOAD": str(library), "STEPPED_CLOCK": str(self._offset)})

    def step(self, ahead_s: int) -> None:
        """Set the clock to so many seconds ahead of the machine's."""
        self._offset.write_text(str(ahead_s))
        (now_s,) = self.server.sql("SELECT extract(epoch FROM clock_timestamp())")
        assert abs(float(now_s) - time.time() - ahead_s) < HOUR_S / 2


@pytest.fixture
def database() -> Iterator[Database]:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("a clock that is set is a library that Linux loads first: it needs a C compiler (cc)")
    database = Database(compiler)
    yield database
    database.server.kill()


def owners(machines: Machines) -> list[tuple[str | None, int | None]]:
    """The owner of each store, and how often it was taken over."""
    return [(store.owner, store.epoch) for store in machines.status("a").stores]


def await_heartbeats(machines: Machines, database: Database) -> None:
    """Wait until each broker has written its row in the catalog some times more."""
    (schema,) = parse_qs(urlsplit(machines.catalog_url).query)["schema"]
    query = f"SELECT broker || ' ' || xmin FROM {schema}.broker"
    seen: dict[str, set[str]] = {}

    with psycopg.connect(database.server.conninfo(), autocommit=True) as connection:

        def have_written() -> bool:
            for (row,) in connection.execute(query):
                broker, version = row.split()
                seen.setdefault(broker, set()).add(version)
            return all(len(versions) > HEARTBEATS for versions in seen.values())

        eventually("every broker has written heartbeats", have_written)


def test_a_step_of_the_databases_clock_takes_no_store_from_its_owner(tmp_path: Path, database: Database) -> None:
    with Machines(tmp_path, database.server).start("a", "b") as machines:
        before = owners(machines)
        for ahead_s in (HOUR_S, 0, -HOUR_S):
            database.step(ahead_s)
            await_heartbeats(machines, database)
            assert owners(machines) == before
            assert [broker.state for broker in machines.status("a").brokers] == ["serving", "serving"]
        for name in "ab":
            assert "no longer sends heartbeats" not in machines.brokers[name].log


def test_a_step_back_locks_neither_the_stores_of_a_lost_broker_nor_its_name(tmp_path: Path, database: Database) -> None:
    with Machines(tmp_path, database.server).start("a", "b") as machines:
        machines.brokers["b"].kill()
        database.step(-HOUR_S)
        machines.settle("a")
        machines.brokers["b"].start()
        machines.settle("a", "b")
