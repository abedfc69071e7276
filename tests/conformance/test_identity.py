"""Clients whose credential is a token of an identity provider: azure-servicebus with an issuer of the test's own."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path
from ssl import create_default_context
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import AccessRights, AuthorizationRule, ServiceBusAdministrationClient

from partibus.client.extensions.entities import Policies
from partibus.client.messages import OutgoingMessage
from partibus.testing.broker_process import BrokerProcess
from tests.kit.eventually import EVENTUALLY_S
from tests.kit.issuer import Issuer
from tests.kit.plain_client import connect

OWNER, SENDER, RECEIVER = (f"Azure Service Bus Data {name}" for name in ("Owner", "Sender", "Receiver"))
ISSUER = Issuer()


class Credential:
    """A stand-in for azure-identity."""

    def __init__(self, *roles: str, issuer: Issuer = ISSUER) -> None:
        self.roles = roles
        self.issuer = issuer
        self.scopes: tuple[str, ...] = ()

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        self.scopes = scopes
        return AccessToken(self.issuer.token(roles=self.roles), int(time.time()) + 3_600)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("identity")
    roles = {role: {"role": role} for role in (OWNER, SENDER, RECEIVER)}
    roles["q-senders"] = {"role": SENDER, "entity": "q"}
    path = ISSUER.write(folder, roles=roles)
    with BrokerProcess(folder, tls=True, arguments=("--identity", str(path))) as broker:
        broker.create_queue("q")
        broker.create_queue("other")
        yield broker


def client_of(broker: BrokerProcess, credential: Credential) -> ServiceBusClient:
    return ServiceBusClient(
        "localhost",
        credential,
        custom_endpoint_address=f"https://localhost:{broker.amqps_port}",
        transport_type=TransportType.Amqp,
        connection_verify=str(broker.ca_file),
        retry_total=0,
    )


def test_a_sender_and_a_receiver_do_what_their_roles_say(served: BrokerProcess) -> None:
    credential = Credential(SENDER)
    with client_of(served, credential) as client, client.get_queue_sender("q") as sender:
        sender.send_messages(ServiceBusMessage(b"by token"))
    assert credential.scopes == ("https://servicebus.azure.net//.default",)
    with client_of(served, Credential(RECEIVER)) as client, client.get_queue_receiver("q") as receiver:
        assert [str(message) for message in receiver.peek_messages()] == ["by token"]
        (message,) = receiver.receive_messages(1, max_wait_time=EVENTUALLY_S)
        receiver.renew_message_lock(message)
        receiver.complete_message(message)
    with (
        client_of(served, Credential(RECEIVER)) as client,
        pytest.raises(ServiceBusError, match="right Send"),
        client.get_queue_sender("q") as sender,
    ):
        sender.send_messages(ServiceBusMessage(b"x"))


def test_a_role_on_one_entity_opens_no_other(served: BrokerProcess) -> None:
    with client_of(served, Credential("q-senders")) as client:
        with client.get_queue_sender("q") as sender:
            sender.send_messages(ServiceBusMessage(b"x"))
        with pytest.raises(ServiceBusError, match="right Send"), client.get_queue_sender("other") as sender:
            sender.send_messages(ServiceBusMessage(b"x"))


@pytest.mark.parametrize(
    ("credential", "reason"),
    [(Credential("Reader"), "has no role"), (Credential(OWNER, issuer=Issuer()), "not valid")],
)
def test_a_token_that_is_no_good_is_refused_with_the_reason(
    served: BrokerProcess, credential: Credential, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The library has the reason in its log, and calls it a client error."""
    with (
        caplog.at_level(logging.INFO, "azure.servicebus"),
        client_of(served, credential) as client,
        pytest.raises(ServiceBusError),
        client.get_queue_sender("q") as sender,
    ):
        sender.send_messages(ServiceBusMessage(b"x"))
    assert reason in caplog.text


def test_an_owner_administers_entities(served: BrokerProcess) -> None:
    address = f"localhost:{served.ready['https_port']}"
    options: dict[str, Any] = {"connection_verify": str(served.ca_file), "retry_total": 0}
    with ServiceBusAdministrationClient(address, Credential(OWNER), **options) as admin:
        admin.create_queue("made-by-token")
        assert admin.get_queue("made-by-token").name == "made-by-token"
        admin.delete_queue("made-by-token")


def request(broker: BrokerProcess, method: str, path: str, token: str, body: bytes = b"") -> tuple[int, str]:
    context = create_default_context(cafile=str(broker.ca_file))
    connection = HTTPSConnection("localhost", broker.ready["https_port"], context=context, timeout=EVENTUALLY_S)
    connection.request(method, path, body, {"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_messages_over_http_go_by_the_roles(served: BrokerProcess) -> None:
    assert request(served, "POST", "/other/messages", ISSUER.token(roles=[SENDER]), b"x")[0] == 201
    assert request(served, "DELETE", "/other/messages/head", ISSUER.token(roles=[SENDER]))[0] == 401
    assert request(served, "DELETE", "/other/messages/head", ISSUER.token(roles=[SENDER, RECEIVER]))[0] == 200
    status, text = request(served, "POST", "/other/messages", ISSUER.token(roles=[SENDER], exp=1))
    assert status == 401
    assert "has expired" in text


def test_every_broker_takes_tokens_of_each_key(tmp_path: Path) -> None:
    first, second = Issuer("key-1"), Issuer("key-2")
    path = first.write(tmp_path)
    (tmp_path / "keys.jwks").write_text(json.dumps({"keys": [first.public, second.public]}))
    with BrokerProcess(tmp_path, tls=True, arguments=("--identity", str(path), "--brokers", "2")) as broker:
        broker.create_queue("q")
        for issuer in (first, second):
            with client_of(broker, Credential(SENDER, issuer=issuer)) as client, client.get_queue_sender("q") as sender:
                sender.send_messages(ServiceBusMessage(b"x"))
        assert broker.describe("q").messages == 2


def test_without_a_provider_the_refusal_says_what_to_configure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with BrokerProcess(tmp_path, tls=True) as broker:
        broker.create_queue("q")
        with connect(broker.connection_string, timeout_s=EVENTUALLY_S) as root:
            root.sender("q").send([OutgoingMessage(body=b"x")])
        with (
            caplog.at_level(logging.INFO, "azure.servicebus"),
            client_of(broker, Credential(OWNER)) as client,
            pytest.raises(ServiceBusError),
            client.get_queue_sender("q") as sender,
        ):
            sender.send_messages(ServiceBusMessage(b"x"))
        assert "serve with --identity FILE" in caplog.text
        status, text = request(broker, "GET", "/q", ISSUER.token(roles=[OWNER]))
        assert status == 401
        assert "serve with --identity FILE" in text


def test_an_owner_neither_sees_nor_sets_policies_over_http(served: BrokerProcess) -> None:
    with connect(served.connection_string, timeout_s=EVENTUALLY_S) as root:
        policies = Policies(root, "other")
        before = policies.set("theirs", ["Listen"])
        address = f"localhost:{served.ready['https_port']}"
        options: dict[str, Any] = {"connection_verify": str(served.ca_file), "retry_total": 0}
        with ServiceBusAdministrationClient(address, Credential(OWNER), **options) as admin:
            queue = admin.get_queue("other")
            assert not queue.authorization_rules
            queue.max_delivery_count = 7
            admin.update_queue(queue)
            assert admin.get_queue("other").max_delivery_count == 7
            queue.authorization_rules = [
                AuthorizationRule(type="SharedAccessAuthorizationRule", key_name="mine", rights=[AccessRights.LISTEN])
            ]
            with pytest.raises(ClientAuthenticationError, match="needs a key of the operator"):
                admin.update_queue(queue)
        assert policies.list() == [before]
