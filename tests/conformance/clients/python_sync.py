"""azure-servicebus, the blocking client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode, ServiceBusReceiver, ServiceBusSender
from azure.servicebus import ServiceBusClient as AzureClient
from azure.servicebus.exceptions import ServiceBusError

from tests.conformance.clients.azure_python import OPTIONS, from_azure, to_azure, to_ms, to_time, trouble
from tests.conformance.clients.interface import WAIT_S, Outgoing, Received, Session, topic_and_subscription


class PythonSync:
    """Senders and receivers are kept by entity; this library makes a connection for each."""

    def __init__(self, connection_string: str, **options: Any) -> None:
        """``options`` of the library's client, such as its way to the broker."""
        self.azure = AzureClient.from_connection_string(connection_string, **OPTIONS, **options)
        self._senders: dict[str, ServiceBusSender] = {}
        self._receivers: dict[tuple[str, bool], ServiceBusReceiver] = {}
        self._sessions = count()

    def sender(self, entity: str) -> ServiceBusSender:
        if entity not in self._senders:
            topic, subscription = topic_and_subscription(entity)
            make = self.azure.get_topic_sender if subscription else self.azure.get_queue_sender
            self._senders[entity] = make(topic)
        return self._senders[entity]

    def receiver(self, entity: str, *, delete: bool = False) -> ServiceBusReceiver:
        if (entity, delete) not in self._receivers:
            self._receivers[entity, delete] = self._make_receiver(entity, receive_mode=_mode(delete))
        return self._receivers[entity, delete]

    def _make_receiver(self, entity: str, **options: Any) -> ServiceBusReceiver:
        topic, subscription = topic_and_subscription(entity)
        if subscription:
            return self.azure.get_subscription_receiver(topic, subscription, **options)
        return self.azure.get_queue_receiver(entity, **options)

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
            receiver = self.receiver(entity, delete=delete)
            receiver.__enter__()  # the library would count what opening the link takes
            return [from_azure(m) for m in receiver.receive_messages(count, wait_s)]

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

    def defer(self, entity: str, message: Received) -> None:
        with _troubles():
            self.receiver(entity).defer_message(message.token)

    def schedule(self, entity: str, messages: Sequence[Outgoing], at_ms: int) -> list[int]:
        with _troubles():
            return self.sender(entity).schedule_messages([to_azure(message) for message in messages], to_time(at_ms))

    def cancel_scheduled(self, entity: str, numbers: Sequence[int]) -> None:
        with _troubles():
            self.sender(entity).cancel_scheduled_messages(list(numbers))

    def receive_deferred(self, entity: str, numbers: Sequence[int], *, delete: bool = False) -> list[Received]:
        with _troubles():
            found = self.receiver(entity, delete=delete).receive_deferred_messages(list(numbers))
            return [from_azure(message) for message in found]

    def renew_lock(self, entity: str, message: Received) -> int:
        with _troubles():
            return int(to_ms(self.receiver(entity).renew_message_lock(message.token)))

    def accept_session(
        self, entity: str, session: str | None, *, delete: bool = False, wait_s: float = WAIT_S
    ) -> Session:
        receiver = self._make_receiver(
            entity,
            session_id=NEXT_AVAILABLE_SESSION if session is None else session,
            receive_mode=_mode(delete),
            max_wait_time=wait_s,
        )
        with _troubles():
            receiver.__enter__()
        link = f"{entity} session {next(self._sessions)}"
        self._receivers[link, False] = receiver
        self._receivers[link, True] = receiver
        return Session(self, link)

    def session_facts(self, link: str) -> tuple[str, int]:
        session = self.receiver(link).session
        return session.session_id, to_ms(session.locked_until_utc)

    def renew_session(self, link: str) -> int:
        with _troubles():
            return int(to_ms(self.receiver(link).session.renew_lock()))

    def session_state(self, link: str) -> bytes | None:
        with _troubles():
            return self.receiver(link).session.get_state()

    def set_session_state(self, link: str, state: bytes | None) -> None:
        with _troubles():
            self.receiver(link).session.set_state(state)

    def close_link(self, link: str) -> None:
        for delete in (False, True):
            if (receiver := self._receivers.pop((link, delete), None)) is not None:
                receiver.close()

    def close(self) -> None:
        """All links at once: each takes this library half a second and more."""
        with ThreadPoolExecutor(32) as pool:
            list(pool.map(_close, [*self._senders.values(), *self._receivers.values()]))
        self.azure.close()


def _close(link: ServiceBusSender | ServiceBusReceiver) -> None:
    with suppress(AttributeError):  # the library's own, where the broker has ended a connection or a session
        link.close()


def _mode(delete: bool) -> ServiceBusReceiveMode:
    return ServiceBusReceiveMode.RECEIVE_AND_DELETE if delete else ServiceBusReceiveMode.PEEK_LOCK


@contextmanager
def _troubles() -> Iterator[None]:
    try:
        yield
    except (ServiceBusError, ValueError) as error:
        raise trouble(error) from error
