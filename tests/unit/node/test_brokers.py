"""A supervisor before it starts its brokers: ports held from their choice to the end, and no database open."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from partibus.node import brokers
from partibus.node.settings import Settings


def test_a_supervisor_has_no_database_open_when_it_forks_brokers(tmp_path: Path) -> None:
    """SQLite keeps its locks per process: a fork would believe that it has those of its supervisor."""
    prepared = brokers.Brokers(Settings(data=tmp_path / "data", brokers=2, amqp_port=0, http_port=0))
    try:
        assert (tmp_path / "data" / "catalog.db").exists()
        opened = [os.readlink(f"/proc/self/fd/{name}") for name in _descriptors()]
        assert [path for path in opened if str(tmp_path) in path and ".db" in path] == []
    finally:
        asyncio.run(prepared.stop())


def _descriptors() -> list[str]:
    return [name for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")]


def test_a_port_that_the_system_chooses_is_never_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    def bind_and_close(*_: object, **__: object) -> socket.socket:
        raise AssertionError("another process may take a port that was closed")

    monkeypatch.setattr(socket, "create_server", bind_and_close)
    with brokers._hold("127.0.0.1", 0) as held:
        assert held.getsockname()[1] > 0


def test_a_port_that_another_process_shares_is_refused() -> None:
    with (
        socket.create_server(("127.0.0.1", 0), reuse_port=True) as other,
        pytest.raises(OSError, match="Address already in use"),
    ):
        brokers._hold("127.0.0.1", other.getsockname()[1])


def test_a_port_of_a_process_that_ended_just_now_is_held() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            listener.accept()[0].close()  # the side that ends a connection first keeps its port busy
            assert client.recv(1) == b""
    with brokers._hold("127.0.0.1", port) as held:
        assert held.getsockname()[1] == port
