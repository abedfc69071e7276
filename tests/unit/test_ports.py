"""Ports of brokers that are stopped and started again."""

import gc
import socket
from pathlib import Path

import pytest

from partibus.testing import broker_process
from partibus.testing.broker_process import BrokerProcess, reserve_port


class Holder:
    pass


def test_a_reserved_port_is_free_and_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = reserve_port(holder := Holder())
    socket.create_server(("127.0.0.1", first)).close()
    monkeypatch.setattr(broker_process, "_PORTS", range(first, first + 1))
    with pytest.raises(OSError, match=rf"1,000 ports of {first} to {first} were all in use: stop other servers"):
        reserve_port(Holder())
    del holder
    gc.collect()
    assert reserve_port(Holder()) == first


def test_a_port_with_a_server_is_not_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    port = reserve_port(Holder())
    monkeypatch.setattr(broker_process, "_PORTS", range(port, port + 1))
    with socket.create_server(("127.0.0.1", port)), pytest.raises(OSError, match="in use"):
        reserve_port(Holder())


def test_no_port_of_a_broker_is_one_that_the_system_gives_to_connections(tmp_path: Path) -> None:
    """A connection of any other process could take such a port while the broker is down."""
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = BrokerProcess(tmp_path, tls=True).ready
    assert len(set(ports.values())) == 6
    assert not [port for port in ports.values() if first <= port <= last]
