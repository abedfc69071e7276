"""A supervisor before it starts its brokers: ports held from their choice to the end, and no database open."""

import asyncio
import errno
import os
import re
import socket
from pathlib import Path

import pytest

from partibus.errors import ArgumentError
from partibus.node import brokers
from partibus.node.settings import Settings, listening


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
    with brokers.hold_port("127.0.0.1", 0) as held:
        assert held.getsockname()[1] > 0


def test_a_port_that_another_process_shares_is_refused() -> None:
    with (
        socket.create_server(("127.0.0.1", 0), reuse_port=True) as other,
        pytest.raises(OSError, match="Address already in use"),
    ):
        brokers.hold_port("127.0.0.1", other.getsockname()[1])


def test_a_port_of_a_process_that_ended_just_now_is_held() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            listener.accept()[0].close()  # the side that ends a connection first keeps its port busy
            assert client.recv(1) == b""
    with brokers.hold_port("127.0.0.1", port) as held:
        assert held.getsockname()[1] == port


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(errno.EADDRINUSE, "in use"),
            "--http-port is 80, but must be a free port. It is in use at h.",
        ),
        (OSError(errno.EACCES, "denied"), "--http-port is 80, but must be a port that your user may listen on."),
        (
            OSError(errno.EADDRNOTAVAIL, "no such"),
            "--host is 'h', but must be an address or host name",
        ),
        (socket.gaierror(-2, "unknown"), "--host is 'h', but must be an address or host name"),
    ],
)
def test_an_option_is_named_that_no_listener_can_be_made_for(error: OSError, said: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(said)), listening("h", 80, "--http-port"):
        raise error
    with pytest.raises(OSError, match="files"), listening("h", 80, "--http-port"):
        raise OSError(errno.EMFILE, "too many files")


def test_a_supervisor_names_the_option_of_a_taken_port_and_a_file_that_it_could_not_write(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = Settings(data=tmp_path, brokers=2, amqp_port=other.getsockname()[1])
        with pytest.raises(ArgumentError, match=r"--amqp-port is .* 0 takes a free one"):
            brokers.Brokers(taken)
    ready_file = tmp_path / "missing" / "ready.json"
    with pytest.raises(ArgumentError, match=f"--ready-file is '{ready_file}'.* Make the directory {ready_file.parent}"):
        brokers.Brokers(Settings(data=tmp_path / "other", brokers=2, ready_file=ready_file))
