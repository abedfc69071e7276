"""Set-up of every test: the plug-ins of this project, and the settings of hypothesis."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator

import pytest
from hypothesis import settings

from partibus.testing.broker_process import BrokerProcess
from tests.kit import postgresql_server
from tests.kit.fork_server import ForkServer

# Many environments for builds have Python keep no bytecode. Each broker and each of Spark's workers would compile
# all of its modules then, half of what its start costs.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The tests make few cycles. Collections by Python's own threshold of 700 objects take a tenth of the processor time of
# simulations and properties.
gc.set_threshold(20_000, 20, 50)

FORK_SERVER = ForkServer()
BrokerProcess.launch = FORK_SERVER.launch

pytest_plugins = [
    "pytester",
    "tests.plugins.compiled",
    "tests.plugins.rows",
    "tests.plugins.soak",
    "tests.plugins.spread",
]

# A busy machine must not fail a property: no deadline. Nor must chance: the examples are the same each time. With
# PARTIBUS_PROPERTY_EXAMPLES others are searched, so many times as many; what is found is kept in .hypothesis/.
TIMES = int(os.environ.get("PARTIBUS_PROPERTY_EXAMPLES", "1"))
settings.register_profile("partibus", deadline=None, derandomize=TIMES == 1, max_examples=100 * TIMES)
settings.load_profile("partibus")


def pytest_unconfigure() -> None:
    """End the process that brokers are forked from."""
    FORK_SERVER.close()


@pytest.fixture(scope="session", autouse=True)
def keep_postgresql_cluster(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Have all workers copy one empty cluster of PostgreSQL, in the directory that they share."""
    base = tmp_path_factory.getbasetemp()
    postgresql_server.kept_in = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Shorten the pauses of the Azure client, and keep the collected tests out of every garbage collection.

    They are a million objects, and live until the end. A full collection takes seconds with them and some milliseconds
    without, and each file with clients for Python asks for one.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        if "azure.servicebus" in sys.modules:
            from tests.conformance.clients.azure_python import poll_often

            poll_often()
        gc.freeze()
        gc.enable()
