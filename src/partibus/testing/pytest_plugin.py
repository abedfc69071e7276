"""Fixtures for pytest, which finds them by itself where partibus is installed.

`partibus_broker` is one broker for the whole run, on free ports and with a manual clock.
"""

from collections.abc import Iterator

import pytest

from partibus.testing.broker_process import BrokerProcess


@pytest.fixture(scope="session")
def partibus_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Run a broker until the tests have ended.

    Its clock is manual: `BrokerProcess.advance` ends locks and times to live without waiting.
    """
    with BrokerProcess(tmp_path_factory.mktemp("partibus"), arguments=("--clock", "manual")) as broker:
        yield broker
