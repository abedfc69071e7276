"""pytest plug-in: how tests are spread over workers (`-n 2 --dist loadfile --no-loadscope-reorder`).

A file of tests stays on one worker, so what a module's fixture starts (a broker) is started once. All Spark tests
share one worker and with it one JVM. Long tests start first, so that no worker is left with one at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer

SPARK = "tests/spark/"
LONG = (SPARK, "tests/conformance/", "tests/simulation/")
"""Folders of long tests, the longest first."""


class OneSparkWorker(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """By file, except that all Spark tests are one unit."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Spread `--dist loadfile` in our way; any other choice on the command line stands."""
    return OneSparkWorker(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first, otherwise in the order of collection."""
    items.sort(key=lambda item: _rank(item.nodeid))


def _rank(nodeid: str) -> int:
    return next((rank for rank, folder in enumerate(LONG) if nodeid.startswith(folder)), len(LONG))
