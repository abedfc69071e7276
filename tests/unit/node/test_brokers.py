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


def test_a_port_of_a_process_that_ended_just_now_is_held() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            listener.accept()[0].close()  # the side that ends a connection first keeps its port busy
            assert client.recv(1) == b""
    with brokers._hold("127.0.0.1", port) as held:
        assert held.getsockname()[1] == port
