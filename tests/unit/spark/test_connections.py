"""Connections kept between tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from partibus.spark.options import Options
from partibus.spark.reader import IDLE_MAX, borrowed_client, close_idle
from tests.spark.simulated import SimulatedClient, connection_string

opened: list[Client] = []


class Client(SimulatedClient):
    def __init__(self, connection: str, entity: str) -> None:
        self.entity = entity
        self.closed = False
        opened.append(self)

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def _nothing_open() -> Iterator[None]:
    opened.clear()
    yield
    close_idle()
    assert all(client.closed for client in opened)


def options(entity: str = "q") -> Options:
    return Options(connection_string(Path("nowhere")), entity)


def use(entity: str = "q", *, fresh: bool = False) -> Client:
    with borrowed_client(options(entity), Client, fresh=fresh) as client:
        assert isinstance(client, Client)
        assert not client.closed
        return client


def test_second_use_gets_the_kept_connection() -> None:
    assert use() is use()
    assert len(opened) == 1


def test_two_at_once_do_not_share_and_one_is_kept() -> None:
    with borrowed_client(options(), Client) as one, borrowed_client(options(), Client) as two:
        assert one is not two
    assert [client.closed for client in opened] == [False, True]


def test_failed_use_closes() -> None:
    with pytest.raises(ValueError, match="broken"), borrowed_client(options(), Client):
        raise ValueError("broken")
    assert opened[0].closed
    assert use() is opened[1]


def test_fresh_use_closes_the_kept_one() -> None:
    first = use()
    assert use(fresh=True) is not first
    assert first.closed


def test_idle_connections_are_bounded_and_the_oldest_goes() -> None:
    for number in range(IDLE_MAX + 1):
        use(f"q{number}")
    assert [client.entity for client in opened if client.closed] == ["q0"]
    for number in range(1, IDLE_MAX + 1):
        use(f"q{number}")
    assert len(opened) == IDLE_MAX + 1, "the others are kept"
