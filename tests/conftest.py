"""What holds for every test: the plug-in for specification rows, hypothesis settings, the spread over workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer

pytest_plugins = ["pytester", "tests.plugins.rows"]

# A busy machine must not fail a property: no deadline. What hypothesis finds it keeps in .hypothesis/.
settings.register_profile("partibus", deadline=None)
settings.load_profile("partibus")

LONG = ("tests/spark/", "tests/conformance/", "tests/simulation/")
"""Folders whose tests take longest; they start first, so that no worker is left with one at the end."""


class OneSparkWorker(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """A file of tests stays on one worker, which starts its broker once; all Spark tests share one JVM."""

    def _split_scope(self, nodeid: str) -> str:
        return "tests/spark/" if nodeid.startswith("tests/spark/") else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Spread `--dist loadfile` in our way; any other choice on the command line stands."""
    return OneSparkWorker(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first, otherwise in the order of collection."""
    items.sort(key=lambda item: next((i for i, prefix in enumerate(LONG) if item.nodeid.startswith(prefix)), len(LONG)))
