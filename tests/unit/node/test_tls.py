"""Handshakes that never end, certificates that change, and the certificates for development."""

from __future__ import annotations

import asyncio
import socket
import ssl
import stat
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest
import uvloop

from partibus.errors import ArgumentError, UnusableFile
from partibus.limits import TlsLimits
from partibus.node.certificates import default_names, ensure_development, read_facts
from partibus.node.tls import ServerTls, TlsListener, make_context

NOW = datetime.now(UTC)
EVENTUALLY_S = 90.0


class Echo(asyncio.Protocol):
    """Says back whatever comes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not registered as such

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


def serve(tmp_path: Path, work: Callable[[int], None], limits: TlsLimits) -> list[str]:
    """Run ``work(port)`` in a thread beside a listener; the errors that the loop has met."""
    made = ensure_development(tmp_path, default_names(), NOW)
    met: list[str] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: met.append(str(context)))
        listener = TlsListener(ServerTls(made.server, None), Echo, limits)
        try:
            await asyncio.to_thread(work, listener.start("127.0.0.1", 0))
        finally:
            listener.stop()
            for _ in range(50):  # until what the client has closed is closed here
                await asyncio.sleep(0.001)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    return met


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=EVENTUALLY_S)


def said_back(port: int, ca_file: Path) -> bytes:
    """Return the reply to a good client."""
    context = ssl.create_default_context(cafile=ca_file)
    with connect(port) as plain, context.wrap_socket(plain, server_hostname="localhost") as sock:
        sock.sendall(b"hello")
        return sock.recv(100)


def ended(sock: socket.socket) -> bool:
    """Whether the server ends the connection, having said nothing; a time-out fails."""
    try:
        return sock.recv(100) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01"], ids=["nothing", "a beginning"])
def test_handshake_that_never_ends_is_ended(tmp_path: Path, sent: bytes) -> None:
    def work(port: int) -> None:
        with connect(port) as sock:
            sock.sendall(sent)
            assert ended(sock)
        assert said_back(port, tmp_path / "ca.pem") == b"hello"

    assert serve(tmp_path, work, TlsLimits(handshake_s=0.2)) == []


def test_flood_of_handshakes_ends_its_oldest_and_holds_up_nobody(tmp_path: Path) -> None:
    def work(port: int) -> None:
        with ExitStack() as stack:
            flood = [stack.enter_context(connect(port)) for _ in range(20)]
            for sock in flood:
                sock.sendall(b"\x16\x03\x01")
            assert said_back(port, tmp_path / "ca.pem") == b"hello"
            # All but the last eight are over, long before their time.
            assert all(ended(sock) for sock in flood[:12])

    assert serve(tmp_path, work, TlsLimits(handshakes_max=8, handshake_s=600)) == []


def test_what_is_no_tls_ends_at_once(tmp_path: Path) -> None:
    def work(port: int) -> None:
        with connect(port) as sock, suppress(ConnectionResetError):
            sock.sendall(b"AMQP\x03\x01\x00\x00")
            while sock.recv(100):
                pass  # an alert
        assert said_back(port, tmp_path / "ca.pem") == b"hello"

    assert serve(tmp_path, work, TlsLimits()) == []


def test_port_that_is_taken_is_told(tmp_path: Path) -> None:
    made = ensure_development(tmp_path, default_names(), NOW)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="Address already in use"):
        TlsListener(ServerTls(made.server, None), Echo, TlsLimits()).start("127.0.0.1", taken.getsockname()[1])


# -- certificates ----------------------------------------------------------------------------------------------------


def test_development_certificate_is_for_this_machine_and_its_keys_are_the_owner_s(tmp_path: Path) -> None:
    made = ensure_development(tmp_path / "certs", default_names(), NOW)
    assert (made.new_authority, made.new_server) == (True, True)
    assert {"localhost", "127.0.0.1", "::1", socket.gethostname().lower()} <= set(made.facts.names)
    assert made.facts.begins < NOW < made.facts.ends
    for name, mode in (("ca.pem", 0o644), ("ca-key.pem", 0o600), ("server.pem", 0o600)):
        assert stat.S_IMODE((tmp_path / "certs" / name).stat().st_mode) == mode
    assert stat.S_IMODE((tmp_path / "certs").stat().st_mode) == 0o700
    assert "PRIVATE" not in made.authority.read_text()


def test_what_is_good_stays(tmp_path: Path) -> None:
    first = ensure_development(tmp_path, default_names("a.example"), NOW)
    before = first.server.read_bytes()
    again = ensure_development(tmp_path, default_names(), NOW)
    assert (again.new_authority, again.new_server) == (False, False)
    assert first.server.read_bytes() == before


@pytest.mark.parametrize(
    ("names", "later", "renew"),
    [
        (("b.example",), timedelta(), False),
        ((), timedelta(), True),
        ((), timedelta(days=368), False),
        ((), timedelta(days=3000), False),
    ],
    ids=["a new name", "asked for", "soon over", "over"],
)
def test_server_s_certificate_is_made_anew_by_the_same_authority_with_its_former_names(
    tmp_path: Path, names: tuple[str, ...], later: timedelta, renew: bool
) -> None:
    first = ensure_development(tmp_path, default_names("a.example"), NOW)
    authority = first.authority.read_bytes()
    again = ensure_development(tmp_path, default_names(*names), NOW + later, renew=renew)
    assert (again.new_authority, again.new_server) == (False, True)
    assert again.authority.read_bytes() == authority
    assert again.facts.ends > NOW + later + timedelta(days=300)
    if later < timedelta(days=397):
        assert "a.example" in again.facts.names
    assert set(names) <= set(again.facts.names)


def test_authority_that_is_nearly_over_is_made_anew(tmp_path: Path) -> None:
    ensure_development(tmp_path, default_names(), NOW)
    assert ensure_development(tmp_path, default_names(), NOW + timedelta(days=3600)).new_authority


@pytest.mark.parametrize("damage", [b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
@pytest.mark.parametrize("name", ["ca.pem", "ca-key.pem"])
def test_damaged_authority_is_refused_and_not_replaced(tmp_path: Path, name: str, damage: bytes) -> None:
    ensure_development(tmp_path, default_names(), NOW)
    (tmp_path / name).write_bytes(damage)
    with pytest.raises(UnusableFile, match=r"ca\.pem.*delete"):
        ensure_development(tmp_path, default_names(), NOW)
    assert (tmp_path / name).read_bytes() == damage


def test_authority_with_another_one_s_key_is_refused(tmp_path: Path) -> None:
    ensure_development(tmp_path / "one", default_names(), NOW)
    ensure_development(tmp_path / "two", default_names(), NOW)
    (tmp_path / "one" / "ca-key.pem").write_bytes((tmp_path / "two" / "ca-key.pem").read_bytes())
    with pytest.raises(UnusableFile, match="not the certificate of the key"):
        ensure_development(tmp_path / "one", default_names(), NOW)


def test_damaged_server_certificate_is_made_anew(tmp_path: Path) -> None:
    ensure_development(tmp_path, default_names(), NOW)
    (tmp_path / "server.pem").write_text("damaged")
    assert ensure_development(tmp_path, default_names(), NOW).new_server
    assert "localhost" in read_facts(tmp_path / "server.pem").names


@pytest.mark.parametrize("name", ["a b", "-a", "a..b", "ä", "x" * 64, "a/b", "*.*.a", "a,b"])
def test_what_is_no_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArgumentError, match="name"):
        ensure_development(tmp_path, [name], NOW)


def test_files_that_can_not_be_used_are_told_by_name_and_reason(tmp_path: Path) -> None:
    made = ensure_development(tmp_path / "one", default_names(), NOW)
    other = ensure_development(tmp_path / "two", default_names(), NOW)
    for certificate, key, reason in (
        (tmp_path / "missing.pem", None, "missing.pem: No such file"),
        (made.authority, None, "no certificate or no key"),
        (made.server, other.server, "the key is not that of the certificate"),
    ):
        with pytest.raises(UnusableFile, match=reason):
            make_context(certificate, key)


def test_changed_files_are_taken_and_broken_ones_are_told_until_they_are_good(tmp_path: Path) -> None:
    made = ensure_development(tmp_path, default_names(), NOW)
    tls = ServerTls(made.server, None)
    first = tls.context
    assert tls.says() == "ok"
    made.server.write_text("broken")
    tls.reload()
    assert tls.context is first
    assert "the former one is in use" in tls.says()
    assert str(made.server) in tls.says()
    ensure_development(tmp_path, default_names(), NOW)
    tls.reload()
    assert tls.context is not first
    assert tls.says() == "ok"


def test_certificate_that_is_over_is_told(tmp_path: Path) -> None:
    made = ensure_development(tmp_path, default_names(), NOW - timedelta(days=500))
    assert "it has ended on" in ServerTls(made.server, None).says()
