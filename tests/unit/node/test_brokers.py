"""The supervisor's ports: held from their choice to the end."""

import socket

import pytest

from partibus.node import brokers


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
