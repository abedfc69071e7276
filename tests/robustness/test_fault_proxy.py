"""The fault proxy does to connections what it says, and nothing else."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.kit.eventually import EVENTUALLY_S, eventually
from tests.kit.fault_proxy import FaultProxy, Place


class Echo:
    """A server that sends back what it gets, and half closes when its client does."""

    def __init__(self, place: Place) -> None:
        if isinstance(place, tuple):
            self._listener = socket.create_server(place)
        else:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(place))
            self._listener.listen()
        self.place: Place = self._listener.getsockname() if isinstance(place, tuple) else place
        self.heard = b""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            while data := client.recv(1 << 16):
                self.heard += data
                client.sendall(data)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture(params=["tcp", "unix"])
def echo(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Echo]:
    place: Place = ("127.0.0.1", 0) if request.param == "tcp" else tmp_path / "echo"
    with closing(Echo(place)) as server:
        yield server


@pytest.fixture
def way(echo: Echo, tmp_path: Path) -> Iterator[FaultProxy]:
    with FaultProxy(echo.place, ("127.0.0.1", 0) if isinstance(echo.place, tuple) else tmp_path / "way") as way:
        yield way


def client_of(way: FaultProxy) -> socket.socket:
    address = way.address
    if isinstance(address, tuple):
        return socket.create_connection(address, EVENTUALLY_S)
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(EVENTUALLY_S)
    client.connect(str(address))
    return client


def received(client: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length and (more := client.recv(length - len(data))):
        data += more
    return data


def is_cut(client: socket.socket) -> bool:
    """Whether it ends without another byte."""
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


def is_refused(way: FaultProxy) -> bool:
    """Whether a new connection ends at once; perhaps before it is there."""
    try:
        with client_of(way) as client:
            return is_cut(client)
    except ConnectionError:
        return True


def test_bytes_pass_both_ways_and_so_does_the_end(way: FaultProxy) -> None:
    data = bytes(range(256)) * 4_000
    with client_of(way) as client:
        sender = threading.Thread(target=client.sendall, args=(data,))
        sender.start()
        assert received(client, len(data)) == data
        sender.join()
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
    assert (way.accepted, way.cuts) == (1, 0)


def test_slow_and_late_bytes_arrive_in_order(way: FaultProxy) -> None:
    way.to_target.delay_s = 0.01
    way.to_client.bytes_per_s = 20_000
    data = bytes(range(250)) * 20
    with client_of(way) as client:
        client.sendall(data)
        assert received(client, len(data)) == data


def test_what_is_held_arrives_when_that_ends(way: FaultProxy) -> None:
    with client_of(way) as client:
        way.to_client.holds = True
        client.sendall(b"one")
        client.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(EVENTUALLY_S)
        way.heal()
        assert received(client, 3) == b"one"


def test_what_is_swallowed_never_arrives_and_its_connection_ends_with_that(way: FaultProxy, echo: Echo) -> None:
    with client_of(way) as client, client_of(way) as other:
        other.sendall(b"x")
        assert received(other, 1) == b"x"
        way.to_client.swallows = True
        client.sendall(b"heard")
        client.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(EVENTUALLY_S)
        assert echo.heard == b"xheard"
        way.heal()
        assert is_cut(client)
        other.sendall(b"y")
        assert received(other, 1) == b"y"


def test_cut(way: FaultProxy) -> None:
    with client_of(way) as client, client_of(way) as other:
        for one in (client, other):
            one.sendall(b"x")
            assert received(one, 1) == b"x"
        assert way.cut() == 2
        assert is_cut(client)
        assert is_cut(other)
        with client_of(way) as again:
            again.sendall(b"z")
            assert received(again, 1) == b"z"


def test_half_closed(way: FaultProxy, echo: Echo) -> None:
    with client_of(way) as client:
        client.sendall(b"x")
        assert received(client, 1) == b"x"
        way.half_close(way.to_client)
        assert client.recv(1) == b""
        client.sendall(b"still heard")
        eventually("what was said is heard", lambda: echo.heard == b"xstill heard")


def test_a_request_or_its_answer_is_lost(way: FaultProxy, echo: Echo) -> None:
    with client_of(way) as small, client_of(way) as large:
        way.lose_next(way.to_target, 10)
        small.sendall(b"12")
        assert received(small, 2) == b"12"
        large.sendall(b"x" * 10)
        assert is_cut(large)
        assert echo.heard == b"12"
    with client_of(way) as small, client_of(way) as large:
        way.lose_next_answer(10)
        large.sendall(b"y" * 10)
        assert is_cut(large)
        small.sendall(b"34")
        assert received(small, 2) == b"34"
        assert echo.heard == b"12" + b"y" * 10 + b"34"


def test_new_connections_are_refused_and_a_target_may_be_away_or_another(
    way: FaultProxy, echo: Echo, tmp_path: Path
) -> None:
    way.refuses = True
    assert is_refused(way)
    way.heal()
    way.target = tmp_path / "nobody"
    assert is_refused(way)
    way.target = echo.place
    with client_of(way) as client:
        client.sendall(b"x")
        assert received(client, 1) == b"x"
