"""pytest plug-in: how tests are spread over workers (`-n 6 --dist loadfile --no-loadscope-reorder`).

A file of tests stays on one worker, so what a module's fixture starts (a broker) is started once. The tests that share
a Spark session are one unit. There are two, of transport and of analyses: one would last longer than all other tests,
and another JVM takes 15 s of CPU to start and to warm up. Long units start first, so that no worker is left with one at
the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer

SPARK = "tests/spark/"
ANALYSES = tuple(
    f"{SPARK}test_{name}" for name in ("demo.", "job_audit", "job_compact", "job_credits", "job_plan", "job_re")
)
OWN_SPARK = SPARK + "test_cluster"
"""The test that starts Spark in processes of its own, wherever it runs."""

LONG = (
    # Two to four minutes of a machine with two cores each.
    SPARK + "analyses",
    SPARK + "transport",
    # Half a minute to a minute and a half each, most of it waiting: beside Spark, which never waits.
    OWN_SPARK,
    "tests/pages/",
    "tests/robustness/test_machines",
    "tests/robustness/test_cursor_adversary",
    "tests/robustness/test_postgresql_losses",
    "tests/robustness/test_planted_bugs",
    "tests/robustness/test_elastic_partitions",
    "tests/conformance/test_brokers",
    "tests/robustness/test_bad_",
    "tests/robustness/test_many_strangers",
    "tests/property/test_partition_machine",
    "tests/robustness/test_refused_machines",
    "tests/robustness/test_deaths",
    "tests/robustness/test_short_chaos",
    "tests/robustness/test_restored_backups",
    "tests/simulation/test_elastic_queues",
    "tests/conformance/test_bench_scenario",
    "tests/conformance/test_topics",
    "tests/robustness/",
    "tests/conformance/",
    "tests/simulation/",
    "tests/property/",
    "tests/contract/",
    "tests/layers/",
    "tests/unit/frontends/sqs/test_errors",
    "tests/unit/store/",
    "tests/unit/namespace/",
    "tests/unit/demo/",
)
"""The beginnings of units, the longest first."""


class FilesAndSpark(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """A distribution of tests by `unit_of`."""

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
    """Name what stays together on one worker: a file, or the tests that share a Spark session."""
    file = nodeid.partition("::")[0]
    if not file.startswith(SPARK) or file.startswith(OWN_SPARK):
        return file
    return SPARK + ("analyses" if file.startswith(ANALYSES) else "transport")


def _rank(unit: str) -> int:
    return next((rank for rank, start in enumerate(LONG) if unit.startswith(start)), len(LONG))
