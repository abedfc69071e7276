"""azure-servicebus, the blocking client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from azure.servicebus import ServiceBusClient as AzureClient
from azure.servicebus import ServiceBusReceiveMode, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import ServiceBusError

from tests.conformance.clients.azure_python import OPTIONS, from_azure, to_azure, trouble
from tests.conformance.clients.interface import WAIT_S, Outgoing, Received


class PythonSync:
    """Senders and receivers are kept by entity; this library makes a connection for each."""

    def __init__(self, connection_string: str) -> None:
        self.azure = AzureClient.from_connection_string(connection_string, **OPTIONS)
        self._senders: dict[str, ServiceBusSender] = {}
        self._receivers: dict[tuple[str, bool], ServiceBusReceiver] = {}

    def sender(self, entity: str) -> ServiceBusSender:
        if entity not in self._senders:
            self._senders[entity] = self.azure.get_queue_sender(entity)
        return self._senders[entity]

    def receiver(self, entity: str, *, delete: bool = False) -> ServiceBusReceiver:
        if (entity, delete) not in self._receivers:
            mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE if delete else ServiceBusReceiveMode.PEEK_LOCK
            self._receivers[entity, delete] = self.azure.get_queue_receiver(entity, receive_mode=mode)
        return self._receivers[entity, delete]

    def send(self, entity: str, *messages: Outgoing) -> None:
        with _troubles():
            for message in messages:
                self.sender(entity).send_messages(to_azure(message))

    def send_list(self, entity: str, messages: Sequence[Outgoing]) -> None:
        with _troubles():
            self.sender(entity).send_messages([to_azure(message) for message in messages])

    def send_batch(self, entity: str, messages: Sequence[Outgoing]) -> None:
        with _troubles():
            batch = self.sender(entity).create_message_batch()
            for message in messages:
                batch.add_message(to_azure(message))
            self.sender(entity).send_messages(batch)

    def receive(self, entity: str, count: int, *, delete: bool = False, wait_s: float = WAIT_S) -> list[Received]:
        with _troubles():
            return [from_azure(m) for m in self.receiver(entity, delete=delete).receive_messages(count, wait_s)]

    def complete(self, entity: str, message: Received) -> None:
        with _troubles():
            self.receiver(entity).complete_message(message.token)

    def abandon(self, entity: str, message: Received) -> None:
        with _troubles():
            self.receiver(entity).abandon_message(message.token)

    def dead_letter(self, entity: str, message: Received, reason: str, description: str) -> None:
        with _troubles():
            self.receiver(entity).dead_letter_message(message.token, reason=reason, error_description=description)

    def peek(self, entity: str, count: int, start: int = 1) -> list[Received]:
        with _troubles():
            return [from_azure(m) for m in self.receiver(entity).peek_messages(count, sequence_number=start)]

    def close(self) -> None:
        """All links at once: each takes this library half a second and more."""
        with ThreadPoolExecutor(32) as pool:
            list(pool.map(lambda link: link.close(), [*self._senders.values(), *self._receivers.values()]))
        self.azure.close()


@contextmanager
def _troubles() -> Iterator[None]:
    try:
        yield
    except (ServiceBusError, ValueError) as error:
        raise trouble(error) from error
