"""Connecting: where to, and what is said when nobody is there."""

from __future__ import annotations

import socket
import threading

import pytest

from partibus.client.endpoint import endpoint_of
from partibus.client.errors import ConnectFailed, InvalidRequest
from partibus.namespace.connection_string import parse_connection_string
from tests.kit.plain_client import connect
from tests.unit.client.broker import TinyBroker

KEY = "SharedAccessKeyName=n;SharedAccessKey=c2VjcmV0"


@pytest.mark.parametrize(
    ("endpoint", "host", "port", "tls"),
    [
        ("sb://broker/", "broker", 5671, True),
        ("sb://broker:5672", "broker", 5672, False),
        ("sb://broker:7000", "broker", 7000, True),
        ("sb://broker:7000;UseDevelopmentEmulator=true", "broker", 7000, False),
        ("sb://broker;UseDevelopmentEmulator=true", "broker", 5672, False),
        ("sb://[::1]:5672", "::1", 5672, False),
    ],
)
def test_connection_string_says_where_and_how(endpoint: str, host: str, port: int, tls: bool) -> None:
    found = endpoint_of(parse_connection_string(f"Endpoint={endpoint};{KEY}"))
    assert (found.address, found.port, found.tls) == (host, port, tls)


def test_nobody_there_names_the_address_and_the_next_step() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(ConnectFailed, match=rf"127\.0\.0\.1:{port}.*partibus serve") as caught:
        connect(f"Endpoint=sb://127.0.0.1:{port};{KEY};UseDevelopmentEmulator=true")
    assert "c2VjcmV0" not in str(caught.value)


def test_server_that_speaks_no_amqp_is_told_apart() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(100)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        text = f"Endpoint=sb://127.0.0.1:{server.getsockname()[1]};{KEY};UseDevelopmentEmulator=true"
        with pytest.raises(ConnectFailed):
            connect(text)
        thread.join()


def test_close_may_be_called_twice_and_ends_everything(broker: TinyBroker) -> None:
    client = connect(broker.connection_string)
    sender = client.sender("q")
    client.close()
    client.close()
    with pytest.raises(InvalidRequest, match="make a new one"):
        sender.send([b""])
