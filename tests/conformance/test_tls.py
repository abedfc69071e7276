"""Unmodified clients over TLS and in websockets, and the certificate that they see."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import ssl
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, cast
from urllib.error import URLError
from urllib.request import urlopen

import boto3
import pytest
from azure.servicebus import TransportType
from botocore.config import Config
from botocore.exceptions import HTTPClientError, SSLError

from partibus.client.messages import OutgoingMessage
from partibus.namespace.connection_string import parse_connection_string
from partibus.testing.broker_process import BrokerFailed, BrokerProcess, run_to_the_end
from tests.conformance.clients.interface import (
    Client,
    ClientTrouble,
    Outgoing,
    ServiceBusClient,
    peek_all,
    receive_all,
)
from tests.conformance.clients.javascript import JavaScriptServiceBus, Rhea
from tests.conformance.clients.python_asyncio import PythonAsyncio
from tests.conformance.clients.python_sync import PythonSync
from tests.kit.eventually import EVENTUALLY_S, eventually
from tests.kit.plain_client import connect

# The library for asyncio gives this to its own HTTP library, for websockets without TLS.
pytestmark = pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning")

FLAG = "UseDevelopmentEmulator=true;"
LARGE = os.urandom(200_000)
"""More than a frame, in both directions."""


def over_tls(broker: BrokerProcess) -> str:
    """The connection string without the flag by which clients choose plain TCP."""
    return broker.connection_string.replace(FLAG, "")


def at_tls_port(broker: BrokerProcess) -> str:
    """Return what `over_tls` does, with the port of AMQP over TLS."""
    return over_tls(broker).replace(f":{broker.port}", f":{broker.amqps_port}")


def python_over(transport: str, broker: BrokerProcess, kind: type[PythonSync | PythonAsyncio]) -> ServiceBusClient:
    trusted = {"connection_verify": str(broker.ca_file)}
    match transport:
        case "amqps":
            address = f"https://localhost:{broker.amqps_port}"
            return kind(over_tls(broker), custom_endpoint_address=address, transport_type=TransportType.Amqp, **trusted)
        case "wss":
            return kind(over_tls(broker), custom_endpoint_address=broker.https_url, **trusted)
        case "wss, a path before":
            return kind(over_tls(broker), custom_endpoint_address=f"{broker.https_url}/my/path", **trusted)
        case _:
            return kind(broker.connection_string, custom_endpoint_address=broker.http_url)


def javascript_over(transport: str, broker: BrokerProcess) -> ServiceBusClient:
    """This library speaks TLS in websockets always."""
    if transport == "amqps":
        return JavaScriptServiceBus(at_tls_port(broker), ca_file=broker.ca_file)
    endpoint = f"sb://localhost:{broker.ready['https_port']}"
    return JavaScriptServiceBus(over_tls(broker), websocket=True, endpoint=endpoint, ca_file=broker.ca_file)


def rhea_over_tls(host: str, port: int, policy: str, key: str, ca_file: Path) -> Client:
    return Rhea(host, port, policy, key, ca_file=ca_file)


def proton_over_tls(host: str, port: int, policy: str, key: str, ca_file: Path) -> Client:
    if importlib.util.find_spec("proton") is None:
        pytest.skip("python-qpid-proton is not installed: it has no wheel and needs a C compiler")
    from tests.conformance.clients.proton import Proton

    return Proton(host, port, policy, key, ca_file=ca_file)


PLAIN_AMQP_OVER_TLS = {"rhea": rhea_over_tls, "proton": proton_over_tls}
CLIENTS: dict[str, Callable[[BrokerProcess], ServiceBusClient]] = {
    "python-amqps": lambda broker: python_over("amqps", broker, PythonSync),
    "python-wss": lambda broker: python_over("wss", broker, PythonSync),
    "python-wss-path": lambda broker: python_over("wss, a path before", broker, PythonSync),
    "python-ws": lambda broker: python_over("ws", broker, PythonSync),
    "python-asyncio-amqps": lambda broker: python_over("amqps", broker, PythonAsyncio),
    "python-asyncio-wss": lambda broker: python_over("wss", broker, PythonAsyncio),
    "python-asyncio-ws": lambda broker: python_over("ws", broker, PythonAsyncio),
    "javascript-amqps": lambda broker: javascript_over("amqps", broker),
    "javascript-wss": lambda broker: javascript_over("wss", broker),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), tls=True) as broker:
        yield broker


@pytest.fixture(scope="module")
def opened(broker: BrokerProcess) -> Iterator[Callable[[str], ServiceBusClient]]:
    with ExitStack() as stack:
        clients: dict[str, ServiceBusClient] = {}

        def get(name: str) -> ServiceBusClient:
            if name not in clients:
                clients[name] = stack.enter_context(closing(CLIENTS[name](broker)))
            return clients[name]

        yield get


@pytest.fixture(params=CLIENTS)
def over(opened: Callable[[str], ServiceBusClient], request: pytest.FixtureRequest) -> ServiceBusClient:
    """Each library, on each way to the broker that it has besides plain TCP."""
    return opened(request.param)


def test_messages_requests_and_errors_pass_on_every_way_to_the_broker(
    over: ServiceBusClient, make_queue: Callable[..., str]
) -> None:
    queue = make_queue(EnablePartitioning=True)
    over.send(queue, Outgoing(b"small", partition_key="k"), Outgoing(LARGE, partition_key="k"))
    over.send_batch(queue, [Outgoing(b"%d" % i, partition_key="k") for i in range(20)])
    messages = receive_all(over, queue, 22)
    assert [message.body for message in messages] == [b"small", LARGE, *(b"%d" % i for i in range(20))]
    for message in messages:
        over.complete(queue, message)
    assert peek_all(over, queue) == []
    # Requests, whose answers are as large, and errors.
    over.send(queue, *(Outgoing(LARGE) for _ in range(4)))
    assert [len(message.body) for message in peek_all(over, queue)] == 4 * [len(LARGE)]
    with pytest.raises(ClientTrouble, match="could not be found"):
        over.send("no-such-queue", Outgoing(b"x"))


def test_who_does_not_trust_the_authority_connects_to_nothing(broker: BrokerProcess) -> None:
    address = f"https://localhost:{broker.amqps_port}"
    stranger = PythonSync(over_tls(broker), custom_endpoint_address=address, transport_type=TransportType.Amqp)
    with closing(stranger), pytest.raises(ClientTrouble, match="CERTIFICATE_VERIFY_FAILED"):
        stranger.send("q", Outgoing(b"x"))
    # The broker goes on for others, and has nothing to say about it.
    assert get_health(broker.https_url, broker.ca_file)["status"] == "healthy"
    assert "Traceback" not in broker.log


def test_our_own_client_speaks_tls(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(broker.ca_file))
    queue = broker.create_queue("own-client")
    with connect(at_tls_port(broker)) as client:
        client.sender(queue).send([OutgoingMessage(body=LARGE)])
        (message,) = client.receiver(queue).receive(1)
        assert message.body == LARGE


def test_boto3_speaks_sqs_over_tls_with_the_certificate_of_the_broker(broker: BrokerProcess) -> None:
    def connected(url: str, **more: object) -> Any:
        return boto3.client(
            "sqs",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
            **more,
        )

    sqs = connected(broker.sqs_tls_url, verify=str(broker.ca_file))
    queue = sqs.create_queue(QueueName="over-tls")["QueueUrl"]
    assert queue == f"{broker.sqs_tls_url}/000000000000/over-tls"
    sent = sqs.send_message(QueueUrl=queue, MessageBody="x" * 200_000)
    (message,) = sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=5)["Messages"]
    assert (message["MessageId"], len(message["Body"])) == (sent["MessageId"], 200_000)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    # The HTTPS port answers the same requests, and the plain port sees the same queue.
    assert connected(broker.https_url, verify=str(broker.ca_file)).list_queues()["QueueUrls"]
    assert connected(broker.sqs_url).get_queue_url(QueueName="over-tls")["QueueUrl"].startswith("http://")
    with pytest.raises(SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        connected(broker.sqs_tls_url, config=Config(retries={"total_max_attempts": 1})).list_queues()
    with pytest.raises(HTTPClientError):
        connected(
            broker.sqs_tls_url.replace("https:", "http:"), config=Config(retries={"total_max_attempts": 1})
        ).list_queues()


@pytest.mark.parametrize("library", ["rhea", "proton"])
def test_plain_amqp_clients_speak_tls(broker: BrokerProcess, make_queue: Callable[..., str], library: str) -> None:
    queue = make_queue()
    login = parse_connection_string(at_tls_port(broker))
    assert login.port is not None
    where = (login.host, login.port, login.key_name, login.key)
    with closing(PLAIN_AMQP_OVER_TLS[library](*where, broker.ca_file)) as client:
        client.send(queue, Outgoing(LARGE), Outgoing(b"small"))
        messages = receive_all(client, queue, 2)
        assert [message.body for message in messages] == [LARGE, b"small"]
        for message in messages:
            client.complete(queue, message)
    assert broker.describe(queue).messages == 0


def get_health(url: str, ca_file: Path) -> dict[str, object]:
    with urlopen(f"{url}/health", timeout=EVENTUALLY_S, context=ssl.create_default_context(cafile=ca_file)) as response:
        return cast("dict[str, object]", json.load(response))


def test_health_is_told_over_https_with_the_certificate_in_it(broker: BrokerProcess) -> None:
    health = get_health(broker.https_url, broker.ca_file)
    assert health["status"] == "healthy"
    assert health["certificate"] == "ok"
    with (
        pytest.raises(URLError, match="CERTIFICATE_VERIFY_FAILED"),
        urlopen(f"{broker.https_url}/health", timeout=EVENTUALLY_S),
    ):
        pass


def test_old_versions_of_tls_are_refused(broker: BrokerProcess) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(broker.ca_file)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(("127.0.0.1", broker.amqps_port)) as plain, pytest.raises((ssl.SSLError, OSError)):
        context.wrap_socket(plain, server_hostname="localhost")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection(("127.0.0.1", broker.amqps_port)) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as wrapped,
    ):
        assert wrapped.version() == "TLSv1.2"


def certificate_of(port: int, ca_file: Path) -> bytes:
    """Return the certificate that a new connection gets (DER)."""
    context = ssl.create_default_context(cafile=ca_file)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=EVENTUALLY_S) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as wrapped,
    ):
        shown = wrapped.getpeercert(binary_form=True)
    assert shown is not None
    return shown


MANY = 20
"""Connections of which each of two brokers gets one, but once in a million times."""


@pytest.mark.parametrize("brokers", ["1", "2"])
def test_certificate_is_replaced_without_a_restart_and_broken_files_change_nothing(
    tmp_path: Path, brokers: str
) -> None:
    many = MANY if brokers == "2" else 1
    with BrokerProcess(tmp_path, tls=True, arguments=("--brokers", brokers)) as broker:
        server = broker.data / "certs" / "server.pem"
        assert stat.S_IMODE(server.stat().st_mode) == 0o600
        ports = (broker.amqps_port, int(broker.ready["https_port"]), int(broker.ready["sqs_tls_port"]))
        (first,) = {certificate_of(port, broker.ca_file) for port in ports for _ in range(many)}
        broker.create_queue("q")
        kept = PythonSync(
            over_tls(broker), custom_endpoint_address=broker.https_url, connection_verify=str(broker.ca_file)
        )
        with closing(kept):
            kept.send("q", Outgoing(b"before"))
            made = run_to_the_end("certs", "--data", str(broker.data), "--renew", "--name", "broker.example")
            assert made.returncode == 0, made.stderr
            assert "broker.example" in made.stderr
            broker.hang_up()
            # Every broker's, behind both ports.
            eventually(
                "every port shows the new certificate",
                lambda: all(certificate_of(port, broker.ca_file) != first for port in ports for _ in range(many)),
            )
            (second,) = {certificate_of(port, broker.ca_file) for port in ports for _ in range(many)}
            good = server.read_bytes()
            server.write_text("nothing that could be used")
            # Without a signal: the files have changed.
            eventually(
                "health names the broken files",
                lambda: "former" in str(get_health(broker.https_url, broker.ca_file)["certificate"]),
            )
            assert {certificate_of(port, broker.ca_file) for port in ports} == {second}
            assert get_health(broker.https_url, broker.ca_file)["status"] == "healthy"
            assert "the certificate stays as it was" in broker.log
            server.write_bytes(good)
            broker.hang_up()
            eventually(
                "the new files are served",
                lambda: all(get_health(broker.https_url, broker.ca_file)["certificate"] == "ok" for _ in range(many)),
            )
            kept.send("q", Outgoing(b"after"))
        broker.restart()
        assert certificate_of(broker.amqps_port, broker.ca_file) == second


def test_given_certificate_is_served_and_an_unusable_one_is_refused_at_the_start(tmp_path: Path) -> None:
    made = run_to_the_end("certs", "--data", str(tmp_path / "elsewhere"), "--json")
    authority, server = (Path(json.loads(made.stdout)[key]) for key in ("authority", "server"))
    whole = server.read_text()
    end_of_key = whole.index("-----BEGIN CERTIFICATE-----")
    (key := tmp_path / "key.pem").write_text(whole[:end_of_key])
    (certificate := tmp_path / "certificate.pem").write_text(whole[end_of_key:])
    (folder := tmp_path / "broker").mkdir()
    arguments = ("--certificate", str(certificate), "--certificate-key", str(key))
    with BrokerProcess(folder, tls=True, arguments=arguments) as broker:
        assert get_health(broker.https_url, authority)["certificate"] == "ok"
        assert not broker.ca_file.exists()
    (other := tmp_path / "other").mkdir()
    run_to_the_end("certs", "--data", str(other))
    arguments = ("--certificate", str(certificate), "--certificate-key", str(other / "certs" / "server.pem"))
    with pytest.raises(BrokerFailed, match="the key is not that of the certificate"):
        BrokerProcess(folder, tls=True, arguments=arguments).start()
