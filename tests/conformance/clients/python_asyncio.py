"""azure-servicebus, the asyncio client, on a loop of its own that runs while a call runs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from azure.servicebus import ServiceBusReceiveMode
from azure.servicebus.aio import ServiceBusClient as AzureClient
from azure.servicebus.aio import ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import ServiceBusError

from tests.conformance.clients.azure_python import OPTIONS, from_azure, to_azure, trouble
from tests.conformance.clients.interface import WAIT_S, Outgoing, Received

T = TypeVar("T")


class PythonAsyncio:
    """Senders and receivers are kept by entity; this library makes a connection for each."""

    def __init__(self, connection_string: str) -> None:
        self._runner = asyncio.Runner()
        self._senders: dict[str, ServiceBusSender] = {}
        self._receivers: dict[tuple[str, bool], ServiceBusReceiver] = {}
        self._azure = self._run(self._make(connection_string))

    @staticmethod
    async def _make(connection_string: str) -> AzureClient:
        return AzureClient.from_connection_string(connection_string, **OPTIONS)

    def send(self, entity: str, *messages: Outgoing) -> None:
        async def run() -> None:
            for message in messages:
                await self._sender(entity).send_messages(to_azure(message))

        self._run(run())

    def send_list(self, entity: str, messages: Sequence[Outgoing]) -> None:
        async def run() -> None:
            await self._sender(entity).send_messages([to_azure(message) for message in messages])

        self._run(run())

    def send_batch(self, entity: str, messages: Sequence[Outgoing]) -> None:
        async def run() -> None:
            batch = await self._sender(entity).create_message_batch()
            for message in messages:
                batch.add_message(to_azure(message))
            await self._sender(entity).send_messages(batch)

        self._run(run())

    def receive(self, entity: str, count: int, *, delete: bool = False, wait_s: float = WAIT_S) -> list[Received]:
        async def run() -> list[Received]:
            return [from_azure(m) for m in await self._receiver(entity, delete).receive_messages(count, wait_s)]

        return self._run(run())

    def complete(self, entity: str, message: Received) -> None:
        async def run() -> None:
            await self._receiver(entity).complete_message(message.token)

        self._run(run())

    def abandon(self, entity: str, message: Received) -> None:
        async def run() -> None:
            await self._receiver(entity).abandon_message(message.token)

        self._run(run())

    def dead_letter(self, entity: str, message: Received, reason: str, description: str) -> None:
        async def run() -> None:
            receiver = self._receiver(entity)
            await receiver.dead_letter_message(message.token, reason=reason, error_description=description)

        self._run(run())

    def peek(self, entity: str, count: int, start: int = 1) -> list[Received]:
        async def run() -> list[Received]:
            found = await self._receiver(entity).peek_messages(count, sequence_number=start)
            return [from_azure(message) for message in found]

        return self._run(run())

    def close(self) -> None:
        async def run() -> None:
            await asyncio.gather(*(link.close() for link in [*self._senders.values(), *self._receivers.values()]))
            await self._azure.close()

        self._run(run())
        self._runner.close()

    def _sender(self, entity: str) -> ServiceBusSender:
        if entity not in self._senders:
            self._senders[entity] = self._azure.get_queue_sender(entity)
        return self._senders[entity]

    def _receiver(self, entity: str, delete: bool = False) -> ServiceBusReceiver:
        if (entity, delete) not in self._receivers:
            mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE if delete else ServiceBusReceiveMode.PEEK_LOCK
            self._receivers[entity, delete] = self._azure.get_queue_receiver(entity, receive_mode=mode)
        return self._receivers[entity, delete]

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        try:
            return self._runner.run(call)
        except (ServiceBusError, ValueError) as error:
            raise trouble(error) from error
