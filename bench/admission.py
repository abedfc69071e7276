"""The cost of admitting a connection: TCP, SASL, open, the claim, and the end."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from urllib.error import HTTPError
from urllib.request import urlopen

from partibus.amqp import Connection, Plain
from partibus.bench.measures import cpu_s_when_quiet
from partibus.bench.scenarios import TemporaryBroker
from partibus.client.extensions.entities import Entities
from partibus.client.sync import connect
from partibus.namespace.connection_string import parse_connection_string
from tests.kit.issuer import Issuer

ROUNDS = 5
CONNECTIONS = 300
TARGET_US = 1_000
_TIMEOUT_S = 30.0
_OWNER = "Azure Service Bus Data Owner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The median of several rounds, of connections one after the other."""

    scenario: str = "admission"
    way: str
    connections: int
    rounds: int
    cpu_us: float
    """The broker's CPU time, user and system, per connection from its first byte to its end."""

    def as_dict(self) -> dict[str, object]:
        return {key: round(value, 1) if isinstance(value, float) else value for key, value in asdict(self).items()}


def measure_admission(directory: Path) -> Iterator[Admission]:
    """Measure each way to show a claim."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    issuer = Issuer()
    arguments = ("--identity", str(issuer.write(directory)))
    with TemporaryBroker(directory, arguments=arguments) as broker:
        string = parse_connection_string(broker.connection)
        with connect(broker.connection) as client:
            Entities(client).create_queue("q", {})
        by_token = f"Endpoint=sb://localhost:{broker.amqp_port};UseDevelopmentEmulator=true;SharedAccessSignature="
        for name in ("http_port", "sqs_port"):  # the broker imports what answers there while it is measured otherwise
            with suppress(HTTPError), urlopen(f"http://127.0.0.1:{broker.ready[name]}/health", timeout=_TIMEOUT_S):
                pass
        ways: dict[str, Callable[[], None]] = {
            "a shared access signature put to $cbs": lambda: _claim(broker.connection),
            "a token of an identity provider (RS256) put to $cbs": lambda: _claim(
                by_token + issuer.token(roles=[_OWNER])
            ),
            "SASL PLAIN": lambda: _log_in(broker.amqp_port, string.key_name, string.key),
        }
        for way, admit in ways.items():
            for _ in range(CONNECTIONS // 10):
                admit()
            found = [_round(broker.pid, admit) for _ in range(ROUNDS)]
            yield Admission(way=way, connections=CONNECTIONS, rounds=ROUNDS, cpu_us=median(found))
    shutil.rmtree(directory)


def _round(pid: int, admit: Callable[[], None]) -> float:
    began_s = cpu_s_when_quiet(pid)
    for _ in range(CONNECTIONS):
        admit()
    return (cpu_s_when_quiet(pid) - began_s) / CONNECTIONS * 1e6


def _claim(connection_string: str) -> None:
    with connect(connection_string, timeout=_TIMEOUT_S) as client:
        client.run(client.inner.authorize("q"))


def _log_in(port: int, name: str, key: str) -> None:
    engine = Connection(server=False, login=Plain(name, key))
    engine.open("bench")
    with socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S) as stream:
        while engine.peer is None:
            if data := engine.data_to_send():
                stream.sendall(data)
            engine.receive_data(stream.recv(65_536))
        engine.close()
        stream.sendall(engine.data_to_send())
        while stream.recv(65_536):
            pass
