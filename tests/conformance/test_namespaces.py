"""Several namespaces behind the ports of one server: over every front end a client is in the one that it names."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusClient, TransportType
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import MessagingSku, ServiceBusAdministrationClient
from click.testing import CliRunner, Result
from websockets.sync.client import connect as connect_websocket
from websockets.typing import Subprotocol

from partibus.amqp import Connection, Plain
from partibus.amqp.events import Closed, Opened
from partibus.cli.main import main
from partibus.client.errors import ClientError, NotFound
from partibus.client.extensions.cluster import FaultInjections, back_up, cluster_status
from partibus.client.extensions.entities import Entities
from partibus.client.extensions.namespaces import NamespaceInfo, Namespaces
from partibus.client.extensions.ranges import open_ranges
from partibus.client.messages import OutgoingMessage
from partibus.clock import SystemClock
from partibus.namespace.connection_string import parse_connection_string
from partibus.namespace.sas import make_token
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.conftest import BROKERS
from tests.kit.eventually import EVENTUALLY_S
from tests.kit.plain_client import connect

FLAG = ";UseDevelopmentEmulator=true"


class Tenant(NamedTuple):
    """A namespace, and how its clients reach it."""

    info: NamespaceInfo
    string: str
    """Connection string of plain AMQP."""

    @property
    def host(self) -> str:
        return parse_connection_string(self.string).host

    def token(self, path: str = "") -> str:
        until_s = SystemClock().now_ms() // 1000 + 600
        return make_token(f"http://{self.host}/{path}", self.info.policy, self.info.primary_key, until_s)

    def over_tls(self, port: int) -> str:
        shown = parse_connection_string(self.string)
        return f"Endpoint=sb://{shown.host}:{port};SharedAccessKeyName={shown.key_name};SharedAccessKey={shown.key}"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("broker")
    with BrokerProcess(folder, tls=True, arguments=("--clock", "manual", "--brokers", BROKERS)) as broker:
        yield broker


@pytest.fixture(scope="module")
def tenants(broker: BrokerProcess) -> tuple[Tenant, Tenant]:
    """Two namespaces. Each has a queue ``q`` and one called as itself is, with a message that says whose it is; so has
    the default one."""
    made = []
    with connect(broker.connection_string) as client:
        for name in ("acme-1", "bravo-1"):
            info = Namespaces(client).create(name)
            made.append(Tenant(info, info.connection_string(client.endpoint)))
    for name, string in (("default", broker.connection_string), *((one.info.name, one.string) for one in made)):
        with connect(string) as client:
            Entities(client).create_queue("q", {})
            Entities(client).create_queue(f"of-{name}", {})
            client.sender("q").send([OutgoingMessage(body=name.encode())])
    return made[0], made[1]


@pytest.fixture(scope="module")
def acme(tenants: tuple[Tenant, Tenant]) -> Tenant:
    return tenants[0]


@pytest.fixture(scope="module")
def bravo(tenants: tuple[Tenant, Tenant]) -> Tenant:
    return tenants[1]


@pytest.fixture
def _names_below_localhost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Are this machine (RFC 6761), also where the system's resolver does not know that."""
    resolve = socket.getaddrinfo

    def resolve_more(host: Any, *more: Any, **options: Any) -> Any:
        is_here = isinstance(host, str) and host.endswith(".localhost")
        return resolve("127.0.0.1" if is_here else host, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_more)


def peeked(string: str, **options: Any) -> list[str]:
    """Return the messages of ``q`` that the library for Python sees."""
    with (
        ServiceBusClient.from_connection_string(string, retry_total=0, **options) as client,
        client.get_queue_receiver("q") as receiver,
    ):
        return [str(message) for message in receiver.peek_messages(10)]


class TestAmqp:
    @pytest.mark.usefixtures("_names_below_localhost")
    def test_the_connection_string_is_all_that_a_client_needs(
        self, broker: BrokerProcess, acme: Tenant, bravo: Tenant
    ) -> None:
        assert peeked(acme.string) == ["acme-1"]
        assert peeked(bravo.string) == ["bravo-1"]
        assert peeked(broker.connection_string) == ["default"]

    def test_over_tls_the_host_name_of_the_open_counts(
        self, broker: BrokerProcess, acme: Tenant, bravo: Tenant
    ) -> None:
        """The library calls the server ``localhost`` in its handshake: it goes to another address than it names."""
        options = {"connection_verify": str(broker.ca_file), "transport_type": TransportType.Amqp}
        address = f"https://localhost:{broker.amqps_port}"
        for tenant in (acme, bravo):
            string = tenant.string.replace(FLAG, "")
            assert peeked(string, custom_endpoint_address=address, **options) == [tenant.info.name]

    def test_in_a_websocket(self, broker: BrokerProcess, acme: Tenant) -> None:
        string = acme.string.replace(FLAG, "")
        found = peeked(string, custom_endpoint_address=broker.https_url, connection_verify=str(broker.ca_file))
        assert found == ["acme-1"]

    @pytest.mark.usefixtures("_names_below_localhost")
    def test_a_key_of_another_is_refused(self, acme: Tenant, bravo: Tenant) -> None:
        mixed = acme.string.replace(acme.info.primary_key, bravo.info.primary_key)
        with pytest.raises(ServiceBusError):
            peeked(mixed)

    def test_a_name_in_the_handshake_counts_where_the_open_has_none(
        self, broker: BrokerProcess, acme: Tenant, bravo: Tenant
    ) -> None:
        for tenant, other in ((acme, bravo), (bravo, acme)):
            context = ssl.create_default_context(cafile=str(broker.ca_file))
            with (
                socket.create_connection(("127.0.0.1", broker.amqps_port), 20) as plain,
                context.wrap_socket(plain, server_hostname=tenant.host) as stream,
            ):
                assert _opens(stream.recv, stream.sendall, tenant)
            with (
                socket.create_connection(("127.0.0.1", broker.amqps_port), 20) as plain,
                context.wrap_socket(plain, server_hostname=other.host) as stream,
            ):
                assert not _opens(stream.recv, stream.sendall, tenant)

    def test_a_name_in_the_request_for_a_websocket_counts_where_the_open_has_none(
        self, broker: BrokerProcess, acme: Tenant, bravo: Tenant
    ) -> None:
        for host, opens in ((acme.host, True), (bravo.host, False), ("localhost", False)):
            port = broker.ready["http_port"]
            plain = socket.create_connection(("127.0.0.1", port), 20)
            address = f"ws://{host}:{port}/$servicebus/websocket"
            with connect_websocket(address, sock=plain, subprotocols=[Subprotocol("amqp")]) as websocket:

                def receive(_: int, websocket: Any = websocket) -> bytes:
                    return bytes(websocket.recv(20))

                assert _opens(receive, websocket.send, acme) is opens


def _opens(receive: Callable[[int], bytes], send: Callable[[bytes], object], tenant: Tenant) -> bool:
    """Whether a client that shows the tenant's key, and names no host in AMQP, gets in."""
    engine = Connection(server=False, login=Plain(tenant.info.policy, tenant.info.primary_key))
    engine.open("a client")
    seen: list[object] = []
    while not any(isinstance(event, Opened | Closed) for event in seen):
        if data := engine.data_to_send():
            send(data)
        seen += engine.receive_data(receive(1 << 16))
    if not any(isinstance(event, Closed) for event in seen):
        send(engine.data_to_send() or b"")
        engine.begin()  # a refusal comes right behind the open
        send(engine.data_to_send())
        seen += engine.receive_data(receive(1 << 16))
    closed = [event for event in seen if isinstance(event, Closed)]
    assert all(one.error is not None and one.error.condition == "amqp:unauthorized-access" for one in closed)
    return not closed


class TestHttp:
    def ask(
        self, broker: BrokerProcess, method: str, path: str, host: str, token: str, body: bytes | None = None
    ) -> tuple[int, bytes]:
        headers = {"Host": f"{host}:{broker.ready['http_port']}", "Authorization": token}
        request = Request(f"{broker.http_url}/{path}", body, headers, method=method)
        try:
            with urlopen(request, timeout=EVENTUALLY_S) as response:
                return response.status, response.read()
        except HTTPError as error:
            with error:
                return error.code, error.read()

    def test_messages(self, broker: BrokerProcess, acme: Tenant, bravo: Tenant) -> None:
        for tenant, other in ((acme, bravo), (bravo, acme)):
            mine, theirs = f"of-{tenant.info.name}/messages", f"of-{other.info.name}/messages"
            token = tenant.token()
            assert self.ask(broker, "POST", mine, tenant.host, token, b"over HTTP")[0] == 201
            assert self.ask(broker, "POST", theirs, tenant.host, token, b"over HTTP")[0] == 410
            for host in (other.host, "localhost", "127.0.0.1"):
                assert self.ask(broker, "DELETE", f"{mine}/head?timeout=0", host, token)[0] == 401
            assert self.ask(broker, "DELETE", f"{mine}/head?timeout=0", tenant.host, token) == (200, b"over HTTP")

    def test_entities(self, broker: BrokerProcess, acme: Tenant, bravo: Tenant) -> None:
        status, found = self.ask(broker, "GET", "$Resources/queues", acme.host, acme.token())
        assert status == 200
        assert b"of-acme-1" in found
        assert b"of-bravo-1" not in found
        assert b"of-default" not in found
        assert self.ask(broker, "GET", "of-bravo-1", acme.host, acme.token())[0] == 404
        assert self.ask(broker, "DELETE", "of-bravo-1", bravo.host, acme.token())[0] == 401

    @pytest.mark.usefixtures("_names_below_localhost")
    def test_the_admin_client_over_tls_sees_the_namespace_as_its_own(self, broker: BrokerProcess, acme: Tenant) -> None:
        string = acme.over_tls(int(broker.ready["https_port"]))
        with ServiceBusAdministrationClient.from_connection_string(
            string, connection_verify=str(broker.ca_file), retry_total=0
        ) as admin:
            about = admin.get_namespace_properties()
            assert (about.name, about.messaging_sku) == ("acme-1", MessagingSku.STANDARD)
            assert about.created_at_utc.timestamp() * 1000 == pytest.approx(acme.info.created_ms, abs=1)  # type: ignore[union-attr]
            assert {queue.name for queue in admin.list_queues()} == {"q", "of-acme-1"}
        with connect(broker.connection_string) as client:
            Namespaces(client).migrate("acme-1", {"units": 2})
        with ServiceBusAdministrationClient.from_connection_string(
            string, connection_verify=str(broker.ca_file), retry_total=0
        ) as admin:
            about = admin.get_namespace_properties()
            assert (about.messaging_sku, about.messaging_units) == (MessagingSku.PREMIUM, 2)
        wrong = string.replace("acme-1.localhost", "bravo-1.localhost")
        with (
            ServiceBusAdministrationClient.from_connection_string(
                wrong, connection_verify=str(broker.ca_file), retry_total=0
            ) as admin,
            pytest.raises(ClientAuthenticationError),
        ):
            admin.get_namespace_properties()

    def test_the_clock_is_the_operators(self, broker: BrokerProcess, acme: Tenant) -> None:
        body = json.dumps({"milliseconds": 1}).encode()
        for host in (acme.host, "localhost"):
            status, _ = self.ask(broker, "POST", "$partibus/clock/advance", host, acme.token(), body)
            assert status == 401

    def test_metrics_show_a_tenant_nothing_of_others(self, broker: BrokerProcess, acme: Tenant, bravo: Tenant) -> None:
        for host, token in ((acme.host, ""), (acme.host, bravo.token()), (bravo.host, acme.token())):
            assert self.ask(broker, "GET", "metrics", host, token)[0] == 401
        status, found = self.ask(broker, "GET", "metrics", acme.host, acme.token())
        assert status == 200
        samples = [line for line in found.decode().splitlines() if not line.startswith("#")]
        assert any('entity="' in sample for sample in samples)
        assert [sample for sample in samples if 'namespace="acme-1"' not in sample] == []


class TestReaders:
    """The client that Spark and the command line use."""

    def test_ranges_and_cursors(self, broker: BrokerProcess, acme: Tenant, bravo: Tenant) -> None:
        with closing(open_ranges(acme.string, "q")) as mine, closing(open_ranges(bravo.string, "q")) as theirs:
            assert mine.map().entity_id != theirs.map().entity_id
            (partition,) = mine.map().partitions
            (frame,) = mine.read(0, partition.first_pos, partition.end_pos)
            assert (frame.count, b"acme-1" in bytes(frame.data)) == (1, True)
            mine.open_cursor("reader")
            assert [one.name for one in mine.cursors()] == ["reader"]
            assert theirs.cursors() == []
            mine.close_cursor("reader", drop=True)
        with closing(open_ranges(acme.string, "of-bravo-1")) as none, pytest.raises(NotFound):
            none.map()

    def test_rehearsals(self, broker: BrokerProcess, acme: Tenant, bravo: Tenant) -> None:
        with connect(acme.string) as client:
            fault_injections = FaultInjections(client)
            with pytest.raises(ClientError, match="the default namespace"):
                fault_injections.fail(store="store-00")
            with pytest.raises(NotFound):
                fault_injections.fail(entity="of-bravo-1")
            fault_injections.fail(entity="q")
            try:
                assert Entities(client).get("q").availability == "Limited"
                for string in (bravo.string, broker.connection_string):
                    with connect(string) as other:
                        assert Entities(other).get("q").availability == "Available"
                        with pytest.raises(NotFound):
                            FaultInjections(other).heal(entity="of-acme-1")
                        assert FaultInjections(other).heal(entity="q") == 0
            finally:
                assert fault_injections.heal(entity="q") == 1

    def test_what_is_the_servers(self, acme: Tenant) -> None:
        with connect(acme.string) as client, pytest.raises(ClientError, match="Ask the default namespace"):
            cluster_status(client)

    def test_a_backup_has_all_and_a_restore_says_whose_messages_it_wants(
        self, broker: BrokerProcess, acme: Tenant, bravo: Tenant, tmp_path: Path
    ) -> None:
        with connect(broker.connection_string) as operator:
            back_up(operator, tmp_path / "backup")

        def restored(*arguments: str) -> Result:
            line = ("restore", str(tmp_path / "backup"), "--entity", "q", "--into", "side", *arguments)
            progress = ("--progress", str(tmp_path / f"{len(arguments)}.json"))
            return CliRunner(env={"PARTIBUS_CONNECTION": bravo.string}).invoke(main, [*line, *progress])

        result = restored("--namespace", "ACME-1")
        assert result.exit_code == 0, result.output
        result = restored()
        assert result.exit_code == 0, result.output
        assert "namespace nobody" in restored("--namespace", "nobody", "--json").output
        with connect(bravo.string) as client:
            receiver = client.receiver("side")
            found: list[object] = []
            while len(found) < 2:
                messages = receiver.receive(2, timeout_s=EVENTUALLY_S)
                receiver.settle(messages)
                found += [message.body for message in messages]
            assert found == [b"acme-1", b"default"]
            Entities(client).delete("side")

    def test_a_client_follows_no_string_into_a_namespace_of_another_key(self, acme: Tenant, bravo: Tenant) -> None:
        mixed = bravo.string.replace(bravo.info.primary_key, acme.info.primary_key)
        with pytest.raises(ClientError), connect(mixed) as client:
            client.sender("q")
