"""The interface of a message client for the tests, whichever library is behind it.

An adapter adds nothing of its own: each call is what an application would write with that library, and an error is the
library's own, named by `Trouble`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from tests.kit.eventually import EVENTUALLY_S

DEAD_LETTER = "/$DeadLetterQueue"
SUBSCRIPTIONS = "/Subscriptions/"
WAIT_S = EVENTUALLY_S
"""Seconds to wait for messages that must come."""
QUIET_S = 0.5
"""Seconds to wait for messages that must not come."""


class Trouble(StrEnum):
    """The error that a library shows its application, by the kind of its exception or code."""

    NOT_FOUND = "the entity does not exist"
    UNAUTHORIZED = "no valid claim"
    TOO_LARGE = "the message is too large"
    DISABLED = "the entity is disabled"
    LOCK_LOST = "the lock is lost"
    SESSION_LOST = "the session's lock is lost"
    SESSION_HELD = "somebody else holds the session"
    MESSAGE_NOT_FOUND = "no such message"
    FULL = "a quota is used up"
    BUSY = "the broker is busy"
    TIMEOUT = "nothing within the time given"
    NOT_ALLOWED = "not allowed"
    NOT_IMPLEMENTED = "not implemented"
    ARGUMENT = "an argument is refused"
    OTHER = "anything else"


class ClientTrouble(Exception):
    """An error of the library: its kind and its own words."""

    def __init__(self, kind: Trouble, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text


@dataclass(frozen=True)
class Outgoing:
    """A message to send; what is None is not set."""

    body: bytes
    message_id: str | None = None
    partition_key: str | None = None
    session_id: str | None = None
    subject: str | None = None
    ttl_ms: int | None = None
    scheduled_ms: int | None = None
    """Not before this time, in ms since 1970."""
    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Received:
    """A message as the library shows it. ``token`` is what the adapter settles by."""

    body: bytes
    message_id: str | None
    sequence_number: int | None
    delivery_count: int | None
    partition_key: str | None = None
    session_id: str | None = None
    subject: str | None = None
    properties: Mapping[str, Any] = field(default_factory=dict)
    dead_letter_reason: str | None = None
    dead_letter_description: str | None = None
    dead_letter_source: str | None = None
    state: str | None = None
    """``active``, ``deferred`` or ``scheduled``."""
    enqueued_ms: int | None = None
    locked_until_ms: int | None = None
    scheduled_ms: int | None = None
    """Times in ms since 1970."""
    token: Any = field(default=None, compare=False, repr=False)

    @property
    def number(self) -> int:
        """The sequence number, which every message from a broker has."""
        assert self.sequence_number is not None
        return self.sequence_number

    @property
    def partition(self) -> int:
        """The partition id that the sequence number holds (row P18)."""
        return self.number >> 48


def topic_and_subscription(entity: str) -> tuple[str, str]:
    """The topic of a subscription and its name, with what follows it; an empty name where the entity is no
    subscription."""
    topic, _, subscription = entity.partition(SUBSCRIPTIONS)
    return topic, subscription


class Client(Protocol):
    """One library, connected to one broker. Links are kept open between calls; every call may raise `ClientTrouble`.

    An entity is a queue, a topic or a subscription (topic/Subscriptions/name); what is sent to a subscription is sent
    to its topic, so that a test of queues can be one of subscriptions.
    """

    def send(self, entity: str, *messages: Outgoing) -> None:
        """Send each as a message of its own, and wait until all are accepted."""
        ...

    def receive(self, entity: str, count: int, *, delete: bool = False, wait_s: float = WAIT_S) -> list[Received]:
        """One receive call: up to ``count`` messages, none when ``wait_s`` pass without any."""
        ...

    def complete(self, entity: str, message: Received) -> None: ...

    def abandon(self, entity: str, message: Received) -> None: ...

    def dead_letter(self, entity: str, message: Received, reason: str, description: str) -> None: ...

    def defer(self, entity: str, message: Received) -> None: ...

    def close(self) -> None: ...


class ServiceBusClient(Client, Protocol):
    """A library that knows the Service Bus, not only AMQP."""

    def send_list(self, entity: str, messages: Sequence[Outgoing]) -> None:
        """Hand the library a list, which it sends as it likes."""
        ...

    def send_batch(self, entity: str, messages: Sequence[Outgoing]) -> None:
        """Build a batch and send it."""
        ...

    def peek(self, entity: str, count: int, start: int = 1) -> list[Received]:
        """One peek call, from a sequence number on. (A library asked without one goes on where it was.)"""
        ...

    def schedule(self, entity: str, messages: Sequence[Outgoing], at_ms: int) -> list[int]:
        """Schedule for a time in ms since 1970; the sequence numbers."""
        ...

    def cancel_scheduled(self, entity: str, numbers: Sequence[int]) -> None: ...

    def receive_deferred(self, entity: str, numbers: Sequence[int], *, delete: bool = False) -> list[Received]: ...

    def renew_lock(self, entity: str, message: Received) -> int:
        """The new end of the lock, in ms since 1970."""
        ...

    def accept_session(
        self, entity: str, session: str | None, *, delete: bool = False, wait_s: float = WAIT_S
    ) -> Session:
        """Lock a session by its id; with None the next one that has messages, if there is one within ``wait_s``."""
        ...

    def session_facts(self, link: str) -> tuple[str, int]:
        """The id of an accepted session, and the end of its lock in ms since 1970, as the library has them now."""
        ...

    def renew_session(self, link: str) -> int:
        """The new end of the lock, in ms since 1970."""
        ...

    def session_state(self, link: str) -> bytes | None: ...

    def set_session_state(self, link: str, state: bytes | None) -> None: ...

    def close_link(self, link: str) -> None:
        """Close a receiver: that of a session, or of an entity in peek-lock mode if there is one."""
        ...


class Session:
    """A session that is held by a receiver of its own. ``link`` names that receiver wherever a client takes an
    entity."""

    def __init__(self, client: ServiceBusClient, link: str) -> None:
        self.client = client
        self.link = link

    @property
    def id(self) -> str:
        return self.client.session_facts(self.link)[0]

    @property
    def locked_until_ms(self) -> int:
        return self.client.session_facts(self.link)[1]

    def receive(self, count: int = 1) -> list[Received]:
        """Receive until as many have come."""
        return receive_all(self.client, self.link, count)

    def nothing_left(self) -> bool:
        return nothing_left(self.client, self.link)

    def peek(self, count: int, start: int = 1) -> list[Received]:
        return self.client.peek(self.link, count, start)

    def complete(self, *messages: Received) -> None:
        for message in messages:
            self.client.complete(self.link, message)

    def abandon(self, message: Received) -> None:
        self.client.abandon(self.link, message)

    def defer(self, message: Received) -> None:
        self.client.defer(self.link, message)

    def dead_letter(self, message: Received, reason: str, description: str) -> None:
        self.client.dead_letter(self.link, message, reason, description)

    def receive_deferred(self, *numbers: int) -> list[Received]:
        return self.client.receive_deferred(self.link, numbers)

    def renew(self) -> int:
        return self.client.renew_session(self.link)

    @property
    def state(self) -> bytes | None:
        return self.client.session_state(self.link)

    @state.setter
    def state(self, value: bytes | None) -> None:
        self.client.set_session_state(self.link, value)

    def close(self) -> None:
        self.client.close_link(self.link)


def receive_all(client: Client, entity: str, count: int, *, delete: bool = False) -> list[Received]:
    """Receive until ``count`` messages have come, in the order in which they came."""
    found: list[Received] = []
    while len(found) < count:
        came = client.receive(entity, count - len(found), delete=delete)
        assert came, f"{len(found)} of {count} messages of '{entity}' have come, no more for {WAIT_S} s"
        found += came
    return found


def peek_all(client: ServiceBusClient, entity: str, count: int = 1000) -> list[Received]:
    """Peek, going on from the last number seen, until nothing is left (row A10)."""
    found: list[Received] = []
    start = 1
    while came := client.peek(entity, count, start):
        found += came
        start = found[-1].number + 1
    return found


def nothing_left(client: Client, entity: str) -> bool:
    """Whether nothing comes for a while."""
    return not client.receive(entity, 1, wait_s=QUIET_S)
