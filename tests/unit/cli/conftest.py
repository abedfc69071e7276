"""The command line against a tiny broker, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import BinaryIO

import pytest
from click.testing import CliRunner, Result

from partibus.cli.main import main
from tests.unit.client.broker import TinyBroker, tiny_broker

Run = Callable[..., Result]


@pytest.fixture
def broker() -> Iterator[TinyBroker]:
    with tiny_broker() as broker:
        yield broker


@pytest.fixture
def run(broker: TinyBroker) -> Run:
    """Calls `partibus` with arguments, and standard input if given."""

    def run(*arguments: str, input: bytes | BinaryIO | None = None) -> Result:
        runner = CliRunner(env={"PARTIBUS_CONNECTION": broker.connection_string, "COLUMNS": "200"})
        return runner.invoke(main, arguments, input=input)

    return run
