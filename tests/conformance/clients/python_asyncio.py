"""azure-servicebus, the asyncio client, on a loop of its own that runs while a call runs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, TypeVar

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode
from azure.servicebus.aio import ServiceBusClient as AzureClient
from azure.servicebus.aio import ServiceBusReceiver, ServiceBusSender
from azure.servicebus.aio._base_handler_async import BaseHandler
from azure.servicebus.exceptions import ServiceBusError

from tests.conformance.clients.azure_python import OPTIONS, from_azure, to_azure, to_ms, to_time, trouble
from tests.conformance.clients.interface import WAIT_S, Outgoing, Received, Session, topic_and_subscription

T = TypeVar("T")


class PythonAsyncio:
    """Senders and receivers are kept by entity; this library makes a connection for each."""

    def __init__(self, connection_string: str, **options: Any) -> None:
        """``options`` of the library's client, such as its way to the broker."""
        self._runner = asyncio.Runner()
        self._senders: dict[str, ServiceBusSender] = {}
        self._receivers: dict[tuple[str, bool], ServiceBusReceiver] = {}
        self._sessions = count()
        self._azure = self._run(self._make(connection_string, options))

    @staticmethod
    async def _make(connection_string: str, options: dict[str, Any]) -> AzureClient:
        return AzureClient.from_connection_string(connection_string, **OPTIONS, **options)

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
            receiver = self._receiver(entity, delete)
            await receiver.__aenter__()  # the library would count what opening the link takes
            return [from_azure(m) for m in await receiver.receive_messages(count, wait_s)]

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

    def defer(self, entity: str, message: Received) -> None:
        async def run() -> None:
            await self._receiver(entity).defer_message(message.token)

        self._run(run())

    def schedule(self, entity: str, messages: Sequence[Outgoing], at_ms: int) -> list[int]:
        async def run() -> list[int]:
            azure = [to_azure(message) for message in messages]
            return await self._sender(entity).schedule_messages(azure, to_time(at_ms))

        return self._run(run())

    def cancel_scheduled(self, entity: str, numbers: Sequence[int]) -> None:
        async def run() -> None:
            await self._sender(entity).cancel_scheduled_messages(list(numbers))

        self._run(run())

    def receive_deferred(self, entity: str, numbers: Sequence[int], *, delete: bool = False) -> list[Received]:
        async def run() -> list[Received]:
            found = await self._receiver(entity, delete).receive_deferred_messages(list(numbers))
            return [from_azure(message) for message in found]

        return self._run(run())

    def renew_lock(self, entity: str, message: Received) -> int:
        async def run() -> int:
            return int(to_ms(await self._receiver(entity).renew_message_lock(message.token)))

        return self._run(run())

    def accept_session(
        self, entity: str, session: str | None, *, delete: bool = False, wait_s: float = WAIT_S
    ) -> Session:
        link = f"{entity} session {next(self._sessions)}"

        async def run() -> None:
            receiver = self._make_receiver(
                entity,
                session_id=NEXT_AVAILABLE_SESSION if session is None else session,
                receive_mode=_mode(delete),
                max_wait_time=wait_s,
            )
            await receiver.__aenter__()
            self._receivers[link, False] = receiver
            self._receivers[link, True] = receiver

        self._run(run())
        return Session(self, link)

    def session_facts(self, link: str) -> tuple[str, int]:
        session = self._receiver(link).session
        return session.session_id, to_ms(session.locked_until_utc)

    def renew_session(self, link: str) -> int:
        async def run() -> int:
            return int(to_ms(await self._receiver(link).session.renew_lock()))

        return self._run(run())

    def session_state(self, link: str) -> bytes | None:
        async def run() -> bytes | None:
            return await self._receiver(link).session.get_state()

        return self._run(run())

    def set_session_state(self, link: str, state: bytes | None) -> None:
        async def run() -> None:
            await self._receiver(link).session.set_state(state)

        self._run(run())

    def close_link(self, link: str) -> None:
        async def run() -> None:
            for delete in (False, True):
                if (receiver := self._receivers.pop((link, delete), None)) is not None:
                    await receiver.close()

        self._run(run())

    def close(self) -> None:
        async def run() -> None:
            await asyncio.gather(*(_close(link) for link in [*self._senders.values(), *self._receivers.values()]))
            await self._azure.close()

        self._run(run())
        self._runner.close()

    def _sender(self, entity: str) -> ServiceBusSender:
        if entity not in self._senders:
            topic, subscription = topic_and_subscription(entity)
            make = self._azure.get_topic_sender if subscription else self._azure.get_queue_sender
            self._senders[entity] = make(topic)
        return self._senders[entity]

    def _receiver(self, entity: str, delete: bool = False) -> ServiceBusReceiver:
        if (entity, delete) not in self._receivers:
            self._receivers[entity, delete] = self._make_receiver(entity, receive_mode=_mode(delete))
        return self._receivers[entity, delete]

    def _make_receiver(self, entity: str, **options: Any) -> ServiceBusReceiver:
        topic, subscription = topic_and_subscription(entity)
        if subscription:
            return self._azure.get_subscription_receiver(topic, subscription, **options)
        return self._azure.get_queue_receiver(entity, **options)

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        try:
            return self._runner.run(call)
        except (ServiceBusError, ValueError) as error:
            raise trouble(error) from error


async def _close(link: BaseHandler) -> None:
    with suppress(AttributeError):  # the library's own, where the broker has ended a connection or a session
        await link.close()


def _mode(delete: bool) -> ServiceBusReceiveMode:
    return ServiceBusReceiveMode.RECEIVE_AND_DELETE if delete else ServiceBusReceiveMode.PEEK_LOCK
