"""pytest plug-in: how tests are spread over workers (`-n 2 --dist loadfile --no-loadscope-reorder`).

A file of tests stays on one worker, so what a module's fixture starts (a broker) is started once. The tests that share
a Spark session are two units, each with a JVM on its worker: one would take as long as everything else together. Long
tests start first, so that no worker is left with one at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer

SPARK = "tests/spark/"
JOBS = (SPARK + "test_job_", SPARK + "test_demo")
"""About half of what the tests with a Spark session take."""
OWN_SPARK = SPARK + "test_cluster"
"""It starts Spark in processes of its own, wherever it runs."""

LONG = (
    SPARK + "streams",
    SPARK + "jobs",
    # About a minute each, half of it waiting: beside Spark, which never waits.
    "tests/robustness/test_planted_bugs",
    "tests/robustness/test_cursor_adversary",
    "tests/robustness/test_machines",
    OWN_SPARK,
    "tests/robustness/test_topology_adversary",
    "tests/robustness/test_refused_machines",
    "tests/robustness/test_bad_",
    "tests/simulation/test_simulation",
    "tests/property/test_partition_machine",
    "tests/robustness/",
    "tests/conformance/",
    "tests/simulation/",
    "tests/property/",
)
"""What units begin with, the longest first."""


class FilesAndSpark(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """By `unit_of`."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Spread `--dist loadfile` in our way; any other choice on the command line stands."""
    return FilesAndSpark(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first, otherwise in the order of collection."""
    items.sort(key=lambda item: _rank(unit_of(item.nodeid)))


def unit_of(nodeid: str) -> str:
    """What stays together on one worker: a file, or half of the tests with a Spark session."""
    file = nodeid.partition("::")[0]
    if not file.startswith(SPARK) or file.startswith(OWN_SPARK):
        return file
    return SPARK + ("jobs" if file.startswith(JOBS) else "streams")


def _rank(unit: str) -> int:
    return next((rank for rank, start in enumerate(LONG) if unit.startswith(start)), len(LONG))
