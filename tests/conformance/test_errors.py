"""The errors that clients get; an error ends nothing but its own scope."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest
from azure.servicebus import ServiceBusClient as AzureClient
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
)

from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.azure_python import OPTIONS
from tests.conformance.clients.interface import (
    DEAD_LETTER,
    QUIET_S,
    Client,
    ClientTrouble,
    Outgoing,
    ServiceBusClient,
    Trouble,
    peek_all,
    receive_all,
)
from tests.conformance.clients.javascript import JavaScriptServiceBus
from tests.conformance.clients.python_sync import PythonSync
from tests.conformance.conftest import LIBRARIES, PLAIN_AMQP, Clients, CountMessages

MakeQueue = Callable[..., str]
MESSAGE = Outgoing(b"x")
TOO_LARGE = Outgoing(bytes(300_000))


def test_unknown_entity_is_not_found_for_senders_and_receivers(client: Client) -> None:
    """Traps 8 and 21: the refusal of an attach, and the words that two libraries look for."""
    with pytest.raises(ClientTrouble) as sending:
        client.send("no-such-queue", MESSAGE)
    with pytest.raises(ClientTrouble) as receiving:
        client.receive("no-such-queue", 1)
    assert (sending.value.kind, receiving.value.kind) == (Trouble.NOT_FOUND, Trouble.NOT_FOUND)


def test_refused_link_leaves_the_connection_as_it_was(client: Client, make_queue: MakeQueue) -> None:
    """Trap 1: a second answer to a detach ends the connection of libraries that are built on rhea."""
    queue = make_queue()
    client.send(queue, MESSAGE)
    with pytest.raises(ClientTrouble):
        client.receive("no-such-queue", 1)
    client.send(queue, MESSAGE)
    assert len(receive_all(client, queue, 2)) == 2


def test_message_over_the_limit_is_refused_by_its_size_and_the_link_goes_on(
    client: Client, make_queue: MakeQueue, messages_in: CountMessages
) -> None:
    """Trap 3: the error in a rejection has three fields."""
    queue = make_queue()
    client.send(queue, MESSAGE)
    with pytest.raises(ClientTrouble) as refused:
        client.send(queue, TOO_LARGE)
    assert refused.value.kind is Trouble.TOO_LARGE
    client.send(queue, MESSAGE)
    assert messages_in(queue) == 2


def test_disabled_queue_refuses_senders_and_receivers(client: Client, make_queue: MakeQueue) -> None:
    queue = make_queue(Status="Disabled")
    with pytest.raises(ClientTrouble) as sending:
        client.send(queue, MESSAGE)
    with pytest.raises(ClientTrouble) as receiving:
        client.receive(queue, 1)
    assert (sending.value.kind, receiving.value.kind) == (Trouble.DISABLED, Trouble.DISABLED)


def test_queue_that_is_disabled_in_one_direction_serves_the_other(
    javascript: JavaScriptServiceBus, make_queue: MakeQueue
) -> None:
    no_send, no_receive = make_queue(Status="SendDisabled"), make_queue(Status="ReceiveDisabled")
    with pytest.raises(ClientTrouble) as sending:
        javascript.send(no_send, MESSAGE)
    with pytest.raises(ClientTrouble) as receiving:
        javascript.receive(no_receive, 1)
    assert (sending.value.kind, receiving.value.kind) == (Trouble.DISABLED, Trouble.DISABLED)
    javascript.send(no_receive, MESSAGE)
    assert javascript.receive(no_send, 1, wait_s=QUIET_S) == []


@pytest.mark.parametrize("library", LIBRARIES)
def test_wrong_key_is_refused(broker: BrokerProcess, library: str, make_queue: MakeQueue) -> None:
    """The key of the development account is valid here; any other is not."""
    queue = make_queue()
    wrong = broker.connection_string.replace("SAS_KEY_VALUE", "WRONG_KEY_VALUE")
    assert wrong != broker.connection_string
    with pytest.raises(ClientTrouble) as refused, closing(LIBRARIES[library](wrong)) as client:
        client.send(queue, MESSAGE)
    assert refused.value.kind is Trouble.UNAUTHORIZED
    assert "WRONG_KEY_VALUE" not in broker.log


def test_sending_to_the_dead_letter_sub_queue_is_not_allowed(client: Client, make_queue: MakeQueue) -> None:
    with pytest.raises(ClientTrouble) as refused:
        client.send(make_queue() + DEAD_LETTER, MESSAGE)
    assert refused.value.kind is Trouble.NOT_ALLOWED


@pytest.mark.row("K6")
@pytest.mark.parametrize("library", PLAIN_AMQP)
def test_session_id_other_than_the_partition_key_is_not_allowed(
    clients: Clients, library: str, queue: str, messages_in: CountMessages
) -> None:
    """The libraries of the service refuse it themselves; others leave it to the broker."""
    with pytest.raises(ClientTrouble) as refused:
        clients.get(library).send(queue, Outgoing(b"x", session_id="a", partition_key="b"))
    assert refused.value.kind is Trouble.NOT_ALLOWED
    assert messages_in(queue) == 0


def test_python_raises_the_exceptions_that_its_documentation_names(
    broker: BrokerProcess, python: PythonSync, make_queue: MakeQueue
) -> None:
    queue, disabled = make_queue(), make_queue(Status="Disabled")
    with pytest.raises(MessagingEntityNotFoundError), python.azure.get_queue_sender("no-such-queue"):
        pass
    with pytest.raises(MessagingEntityDisabledError), python.azure.get_queue_receiver(disabled):
        pass
    with python.azure.get_queue_sender(queue) as sender, pytest.raises(MessageSizeExceededError):
        sender.send_messages(ServiceBusMessage(TOO_LARGE.body))
    wrong = broker.connection_string.replace("SAS_KEY_VALUE", "WRONG_KEY_VALUE")
    with (
        AzureClient.from_connection_string(wrong, **OPTIONS) as client,
        pytest.raises(ServiceBusAuthenticationError),
        client.get_queue_sender(queue),
    ):
        pass


@pytest.mark.queues
def test_deleting_a_queue_refuses_what_a_sender_sends_on(broker: BrokerProcess, client: Client, queue: str) -> None:
    client.send(queue, MESSAGE)
    broker.delete_queue(queue)
    with pytest.raises(ClientTrouble) as refused:
        client.send(queue, MESSAGE)
    assert refused.value.kind is Trouble.NOT_FOUND


@pytest.mark.queues
def test_a_queue_that_is_made_again_answers_on_the_same_connection(
    broker: BrokerProcess, sdk: ServiceBusClient, queue: str
) -> None:
    sdk.send(queue, MESSAGE)
    assert len(peek_all(sdk, queue)) == 1
    broker.delete_queue(queue)
    broker.create_queue(queue)
    sdk.send(queue, Outgoing(b"new"))
    sdk.schedule(queue, [Outgoing(b"newer")], 4_102_444_800_000)
    assert {message.body for message in peek_all(sdk, queue)} == {b"new", b"newer"}
