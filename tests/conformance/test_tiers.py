"""Namespaces of every tier on one server: what would be refused in production is refused here, and a migration to
premium goes on under clients that are connected (rows P5-P10, A11, R10)."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessageSizeExceededError
from azure.servicebus.management import ServiceBusAdministrationClient

from partibus.client.errors import ClientError, InvalidRequest
from partibus.client.extensions.entities import Entities
from partibus.client.extensions.namespaces import Namespaces
from partibus.client.messages import OutgoingMessage
from partibus.namespace.connection_string import parse_connection_string
from partibus.testing.broker_process import BrokerProcess
from tests.kit.azure_receiving import receive_exactly
from tests.kit.eventually import EVENTUALLY_S
from tests.kit.plain_client import connect

KIB = 1024
MIB = 1024 * KIB


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), tls=True, arguments=("--clock", "manual")) as broker:
        yield broker


@pytest.fixture(autouse=True)
def _names_below_localhost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolve names as systems with a resolver of their own do; the libraries ask the system."""
    resolve = socket.getaddrinfo

    def resolve_more(host: Any, *more: Any, **named: Any) -> Any:
        return resolve("localhost" if str(host).endswith(".localhost") else host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_more)


def namespace(broker: BrokerProcess, name: str, **options: object) -> str:
    """Make a namespace; its connection string."""
    with connect(broker.connection_string) as client:
        return Namespaces(client).create(name, options).connection_string(client.endpoint)


@pytest.fixture(scope="module")
def basic(broker: BrokerProcess) -> str:
    return namespace(broker, "basic-1", tier="basic")


@pytest.fixture(scope="module")
def premium(broker: BrokerProcess) -> str:
    """Make a premium namespace of one partition."""
    return namespace(broker, "premium-1", tier="premium")


@pytest.fixture(scope="module")
def parted(broker: BrokerProcess) -> str:
    """Premium, of four partitions."""
    return namespace(broker, "premium-4", tier="premium", partitions=4)


def admin(broker: BrokerProcess, connection: str) -> ServiceBusAdministrationClient:
    shown = parse_connection_string(connection)
    url = (
        f"Endpoint=sb://{shown.host}:{broker.ready['https_port']};SharedAccessKeyName={shown.key_name};"
        f"SharedAccessKey={shown.key}"
    )
    return ServiceBusAdministrationClient.from_connection_string(url, connection_verify=str(broker.ca_file))


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(HttpResponseError) as refused:
        call()
    assert refused.value.status_code == 400
    return str(refused.value)


def test_basic_has_plain_queues_only_over_the_admin_api_too(broker: BrokerProcess, basic: str) -> None:
    with admin(broker, basic) as client:
        assert client.get_namespace_properties().messaging_sku == "Basic"
        client.create_queue("plain")
        assert client.create_queue("parts", enable_partitioning=True).enable_partitioning
        assert client.get_queue("plain").default_message_time_to_live == timedelta(days=14)
        topic = refusal(lambda: client.create_topic("t"))
        assert "'topic', but must be queue in a namespace of the tier basic, which has no topics" in topic
        client.create_queue("target")
        wants: list[tuple[dict[str, Any], str]] = [
            ({"requires_session": True}, "RequiresSession"),
            ({"requires_duplicate_detection": True}, "RequiresDuplicateDetection"),
            ({"forward_to": "target"}, "ForwardTo"),
            ({"forward_dead_lettered_messages_to": "target"}, "ForwardDeadLetteredMessagesTo"),
            ({"enable_express": True}, "EnableExpress"),
        ]
        for properties, name in wants:
            said = refusal(partial(client.create_queue, "refused", **properties))
            assert f"{name} is" in said
            assert "in a namespace of the tier basic" in said
        assert "refused" not in {queue.name for queue in client.list_queues()}


def test_basic_refuses_over_amqp_what_it_refuses_over_http(basic: str) -> None:
    with connect(basic) as client:
        Entities(client).create_queue("onward", {})
        for properties in ({"RequiresSession": True}, {"RequiresDuplicateDetection": True}, {"ForwardTo": "onward"}):
            with pytest.raises(InvalidRequest, match="in a namespace of the tier basic, which has no"):
                Entities(client).create_queue("refused", properties)
        with pytest.raises(InvalidRequest, match="which has no topics"):
            Entities(client).create_topic("t", {})


@pytest.mark.row("P6", "P8", "P23")
def test_entities_of_a_premium_namespace_have_its_partitions_and_sizes(
    broker: BrokerProcess, premium: str, parted: str
) -> None:
    with admin(broker, parted) as client:
        made = client.create_queue("q", enable_partitioning=False)
        assert made.enable_partitioning, "the namespace says so"
        assert made.max_message_size_in_kilobytes == 1024
        large = client.create_topic("t", max_size_in_megabytes=20 * 1024)
        assert (large.enable_partitioning, large.max_size_in_megabytes) == (True, 80 * 1024)
        client.update_topic(large)
        assert client.get_topic("t").max_size_in_megabytes == 80 * 1024, "what is shown is what was meant"
        assert "EnableExpress is True" in refusal(lambda: client.create_queue("x", enable_express=True))
        assert "MaxSizeInMegabytes is 7168" in refusal(lambda: client.create_queue("x", max_size_in_megabytes=7 * 1024))
    with connect(parted) as amqp:
        assert [Entities(amqp).get(name).partitions for name in ("q", "t")] == [4, 4]
    with admin(broker, premium) as client:
        assert client.create_queue("whole", max_size_in_megabytes=80 * 1024).max_size_in_megabytes == 80 * 1024
        assert "EnablePartitioning is True" in refusal(lambda: client.create_queue("x", enable_partitioning=True))
    with admin(broker, broker.connection_string) as client:
        said = refusal(lambda: client.create_queue("x", max_size_in_megabytes=7 * 1024))
        assert "MaxSizeInMegabytes is 7168, but must be one of 1024, 2048, 3072, 4096, 5120" in said


def test_premium_carries_large_messages_one_by_one(premium: str) -> None:
    with connect(premium) as client:
        Entities(client).create_queue("large", {"MaxMessageSizeInKilobytes": 100 * 1024})
    body = bytes(range(256)) * (24 * KIB) + b"the end"
    with ServiceBusClient.from_connection_string(premium) as sdk:  # a busy unit may say: later
        with sdk.get_queue_sender("large") as sender:
            sender.send_messages(ServiceBusMessage(body))
            batch = sender.create_message_batch()
            assert batch.max_size_in_bytes == MIB
            batch.add_message(ServiceBusMessage(bytes(900 * KIB)))
            sender.send_messages(batch)
        with sdk.get_queue_receiver("large") as receiver:
            for expected in (body, bytes(900 * KIB)):
                (message,) = receiver.receive_messages(1, max_wait_time=EVENTUALLY_S)
                assert b"".join(message.body) == expected
                receiver.complete_message(message)


@pytest.mark.row("A11")
def test_partitioned_premium_takes_a_mebibyte_at_once(parted: str) -> None:
    with connect(parted) as client:
        Entities(client).create_queue("mebibyte", {})
        with pytest.raises(ClientError, match="MaxMessageSizeInKilobytes is 2048, but must be 1024"):
            Entities(client).create_queue("more", {"MaxMessageSizeInKilobytes": 2048})
    sdk = ServiceBusClient.from_connection_string(parted, retry_total=0)
    with sdk, sdk.get_queue_sender("mebibyte") as sender:
        sender.send_messages(ServiceBusMessage(bytes(1000 * KIB)))
        with pytest.raises(MessageSizeExceededError):
            sender.send_messages(ServiceBusMessage(bytes(1025 * KIB)))
        batch = sender.create_message_batch()
        batch.add_message(ServiceBusMessage(bytes(600 * KIB)))
        with pytest.raises(MessageSizeExceededError):
            batch.add_message(ServiceBusMessage(bytes(600 * KIB)))


@pytest.mark.row("P10", "R10")
def test_a_migration_to_premium_keeps_everything_under_clients_that_are_connected(broker: BrokerProcess) -> None:
    """Messages, locks, a session with its state, a scheduled and a deferred message, links, the entities themselves."""
    string = namespace(broker, "mover-1")
    with connect(string) as client:
        entities = Entities(client)
        entities.create_queue("wide", {"EnablePartitioning": True, "MaxSizeInMegabytes": 5 * 1024})
        entities.create_queue("plain", {})
        entities.create_queue("held", {"EnablePartitioning": True, "RequiresSession": True})
        before = {name: entities.get(name) for name in ("wide", "plain", "held")}
        client.sender("wide").send([OutgoingMessage(body=str(number).encode()) for number in range(64)])
    with ServiceBusClient.from_connection_string(string, retry_total=0) as sdk:
        sender = sdk.get_queue_sender("wide")
        receiver = sdk.get_queue_receiver("wide")
        locked = receiver.receive_messages(10, max_wait_time=EVENTUALLY_S)
        assert locked
        deferred = locked.pop()
        receiver.defer_message(deferred)
        with sdk.get_queue_sender("held") as to_session:
            to_session.send_messages([ServiceBusMessage(str(number), session_id="s") for number in range(3)])
        session = sdk.get_queue_receiver("held", session_id="s")
        session.session.set_state(b"state")
        (first,) = session.receive_messages(1, max_wait_time=EVENTUALLY_S)

        with connect(broker.connection_string) as operator:
            with pytest.raises(InvalidRequest, match="partitions is 3"):
                Namespaces(operator).migrate("mover-1", {"tier": "premium", "partitions": 3})
            assert Namespaces(operator).migrate("mover-1", {"tier": "premium", "partitions": 2}).tier == "premium"
            with pytest.raises(ClientError, match="can't be migrated"):
                Namespaces(operator).migrate("mover-1", {"tier": "standard"})

        for message in locked:  # on the links from before, under the locks from before
            receiver.complete_message(message)
        session.complete_message(first)
        assert session.session.get_state() == b"state"
        assert [str(message) for message in receive_exactly(session, 2)] == ["1", "2"]
        sender.send_messages(ServiceBusMessage("after"))
        (again,) = receiver.receive_deferred_messages(deferred.sequence_number or 0)
        assert str(again) == str(deferred)
        receiver.complete_message(again)
        for link in (session, receiver, sender):
            link.close()
    with connect(string) as client:
        entities = Entities(client)
        for name, then in before.items():
            now = entities.get(name)
            assert (now.partitions, now.properties) == (then.partitions, then.properties)
        entities.create_queue("new", {})
        assert entities.get("new").partitions == 2
        assert entities.get("wide").messages == 64 - len(locked) - 1 + 1
        entities.update("wide", {"MaxDeliveryCount": 3})


@pytest.mark.row("C35")
def test_http_is_not_counted_among_the_connections_of_a_namespace(broker: BrokerProcess) -> None:
    string = namespace(broker, "narrow-1", limits={"connections": 1})
    with connect(string) as client:
        Entities(client).create_queue("q", {})
        with pytest.raises(ClientError, match="quota of 1 connections at a time"), connect(string) as other:
            other.sender("q")
        with admin(broker, string) as over_http:
            assert [queue.name for queue in over_http.list_queues()] == ["q"]
            over_http.create_queue("second")
        client.sender("second").send([OutgoingMessage(body=b"x")])
    with connect(string) as client:
        assert len(client.receiver("second").receive(1)) == 1


@pytest.mark.row("P10", "R10")
def test_it_is_premium_after_a_restart(broker: BrokerProcess) -> None:
    """The last test of the file: it restarts the broker of the others."""
    string = namespace(broker, "mover-2")
    with connect(string) as client:
        Entities(client).create_queue("wide", {"EnablePartitioning": True})
        client.sender("wide").send([OutgoingMessage(body=b"kept")])
    with connect(broker.connection_string) as operator:
        Namespaces(operator).migrate("mover-2", {"tier": "premium", "partitions": 4})
    with connect(string) as client:
        Entities(client).create_queue("new", {})
    broker.kill()
    broker.start()
    with connect(string) as client:
        assert [Entities(client).get(name).partitions for name in ("wide", "new")] == [16, 4]
        assert Entities(client).get("wide").messages == 1
