"""A broker per test, and a client on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.plain_client import Client, connect
from tests.unit.client.broker import TinyBroker, tiny_broker


@pytest.fixture
def broker() -> Iterator[TinyBroker]:
    with tiny_broker() as broker:
        yield broker


@pytest.fixture
def client(broker: TinyBroker) -> Iterator[Client]:
    with connect(broker.connection_string, timeout_s=10) as client:
        yield client
