"""The blocking client as proofs need it: each message a transfer of its own, nothing repeated, errors as they came.

A test of losses must know what the broker has acknowledged and what it may have done. So a link or a connection that
was lost stays lost, and the test makes another client.
"""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, Self

from partibus.amqp import Modified, Rejected
from partibus.client import sync
from partibus.client.errors import ClientError, ConnectionLost, LinkLost, SendFailed, TimedOut
from partibus.client.management import (
    PEEK,
    RECEIVE_DEFERRED,
    SETTLE,
    DeferredMessage,
    deferred_arguments,
    deferred_messages,
    peek_arguments,
    peeked_messages,
    settle_arguments,
)
from partibus.client.outcomes import COMPLETE, DEFER, RELEASE, NextSession, ReceiveMode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType
    from uuid import UUID

    from partibus.amqp import DeliveryState
    from partibus.client import aio
    from partibus.client.aio.connection import Connection
    from partibus.client.endpoint import Endpoint
    from partibus.client.messages import IncomingMessage, OutgoingMessage

WINDOW = 1_000
"""The largest number of unanswered messages of a sender."""
_RUN = 64


class Link:
    """A link, and the error that ended it."""

    def __init__(self, attached: aio.Sender | aio.Receiver | None = None) -> None:
        self.error: ClientError | None = None
        self._attached = attached

    def check(self) -> None:
        """Raise the error that ended the link."""
        if self.error is None and self._is_lost():
            self.error = ConnectionLost("the link was lost")
        if self.error is not None:
            raise self.error

    def noted(self, error: ClientError) -> ClientError:
        """Note an error that ends the link, and return it."""
        if self.error is None and (isinstance(error, ConnectionLost | LinkLost) or self._is_lost()):
            self.error = error
        return error

    def _is_lost(self) -> bool:
        return self._attached is not None and not self._attached.is_open and not self._attached.is_closed


class Client:
    """One connection."""

    def __init__(self, connection_string: str, *, container_id: str | None = None, timeout_s: float = 30.0) -> None:
        self.inner = sync.connect(connection_string, container_id=container_id, timeout=timeout_s)
        for connection in self.inner.inner._connections:
            connection.connect = partial(_stays_lost, connection)
        self.timeout_s = timeout_s

    @property
    def endpoint(self) -> Endpoint:
        return self.inner.endpoint

    def sender(self, entity: str, *, window: int = WINDOW) -> Sender:
        return Sender(self, entity, window)

    def receiver(
        self,
        entity: str,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        *,
        prefetch: int = 0,
        session: str | NextSession | None = None,
        session_wait_s: float = 0.0,
    ) -> Receiver:
        return Receiver(self, entity, mode, prefetch, session, session_wait_s)

    def request(
        self, entity: str | None, operation: str, body: Mapping[str, object], *, timeout: float | None = None
    ) -> dict[str, object]:
        return self.inner.request(entity, operation, body, timeout=timeout)

    def max_request_bytes(self, entity: str | None) -> int | None:
        return self.inner.max_request_bytes(entity)

    def rules(self, subscription: str) -> sync.Rules:
        return self.inner.rules(subscription)

    def management(self, entity: str | None = None) -> Management:
        """The node of an entity, or of the namespace for None, attached."""
        self.inner.max_request_bytes(entity or "")
        return Management(self, entity or "")

    def close(self) -> None:
        self.inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


async def _stays_lost(connection: Connection, protocol: asyncio.Protocol) -> None:
    raise ConnectionLost(connection.trouble or f"the connection to {connection.peer} was lost")


def connect(connection_string: str, *, container_id: str | None = None, timeout_s: float = 30.0) -> Client:
    """An open client. Raises `ConnectFailed`."""
    return Client(connection_string, container_id=container_id, timeout_s=timeout_s)


class Sender(Link):
    """A sender whose messages are counted as they are acknowledged."""

    def __init__(self, client: Client, entity: str, window: int) -> None:
        self._client = client
        self._window = window
        self._inner = client.inner.sender(entity)
        self._inner.open()
        super().__init__(self._inner.inner)
        self._room = threading.Condition()
        self._results: list[aio.Sending] = []
        self._unanswered = 0
        self.accepted = 0
        """Messages that the broker has stored."""

    @property
    def message_bytes_max(self) -> int | None:
        return self._inner.max_message_bytes

    @property
    def unanswered(self) -> int:
        return self._unanswered

    def send(self, messages: Iterable[OutgoingMessage | bytes], timeout_s: float | None = None) -> int:
        """Send, and wait for all answers. Raises `SendFailed`, or the error that ended the link."""
        self.flush(timeout_s)
        several = list(messages)
        self._submit(several, timeout_s)
        self.flush(timeout_s)
        return len(several)

    def send_nowait(self, messages: Iterable[OutgoingMessage | bytes]) -> None:
        """Send without waiting, except while the window is full."""
        several = list(messages)
        for start in range(0, len(several), _RUN):
            self._submit(several[start : start + _RUN], None)
            with self._room:
                full = self._unanswered >= self._window
                if full and not self._room.wait_for(self._has_room, self._client.timeout_s):
                    raise TimedOut(f"{self._unanswered} messages have no answer")
            self.check()

    def _has_room(self) -> bool:
        return self._unanswered <= max(0, self._window - _RUN) or self.error is not None

    def _submit(self, messages: list[OutgoingMessage | bytes], timeout_s: float | None) -> None:
        self.check()

        def submit() -> list[aio.Sending]:
            with self._room:
                self._unanswered += len(messages)
            sendings = self._inner.inner.send_now(messages, timeout_s)
            for sending in sendings:
                if sending.done():
                    sending.result()  # refused at the call
            for sending in sendings:
                sending.add_done_callback(self._answered)
            return sendings

        self._results += self._client.inner.call(submit)

    def _answered(self, sending: asyncio.Future[None]) -> None:
        with self._room:
            self._unanswered -= 1
            error = None if sending.cancelled() else sending.exception()
            if error is None:
                self.accepted += 1
            elif isinstance(error, ClientError):
                self.noted(error)
            self._room.notify_all()

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait for all answers. Raises as `send` does."""
        results, self._results = self._results, []

        async def gather() -> list[BaseException | None]:
            return await asyncio.gather(*results, return_exceptions=True)

        found = self._client.inner.run(gather())
        failures = [(index, error) for index, error in enumerate(found) if isinstance(error, ClientError)]
        for _, error in failures:
            if isinstance(error, ConnectionLost | LinkLost | TimedOut) and error.condition != "com.microsoft:timeout":
                raise error
        if failures:
            raise SendFailed(failures, len(found))
        self.check()

    def send_batch(self, messages: Iterable[OutgoingMessage | bytes], timeout_s: float | None = None) -> int:
        """Send one batch."""
        several = list(messages)
        try:
            sent = self._inner.send_batch(several, timeout=timeout_s) if several else 0
        except (ConnectionLost, LinkLost, TimedOut) as error:
            raise self.noted(error) from None
        except ClientError as error:
            raise SendFailed([(0, error)], 1) from error
        self.accepted += sent
        return sent

    def close(self) -> None:
        self._inner.close()


class Receiver(Link):
    """A receiver, attached."""

    def __init__(
        self,
        client: Client,
        entity: str,
        mode: ReceiveMode,
        prefetch: int,
        session: str | NextSession | None,
        session_wait_s: float,
    ) -> None:
        self._client = client
        self._mode = mode
        inner: sync.Receiver
        if session is None:
            inner = client.inner.receiver(entity, mode=mode, prefetch=prefetch)
        else:
            inner = client.inner.session_receiver(
                entity, session, mode=mode, prefetch=prefetch, max_wait=session_wait_s
            )
        self._inner = inner.open()
        super().__init__(inner.inner)
        self._unconfirmed: list[asyncio.Future[None]] = []

    @property
    def session_id(self) -> str | None:
        return self._inner.session_id if isinstance(self._inner, sync.SessionReceiver) else None

    def receive(self, max_messages: int = 1, timeout_s: float | None = None) -> list[IncomingMessage]:
        """Wait for the first message. Raises the error that ended the link."""
        self.check()
        try:
            return self._inner.receive(max_messages, self._client.timeout_s if timeout_s is None else timeout_s)
        except ClientError as error:
            raise self.noted(error) from None

    def settle(
        self,
        messages: Iterable[IncomingMessage],
        outcome: DeliveryState = COMPLETE,
        timeout_s: float | None = None,
    ) -> None:
        """Settle messages and wait for the answers. Raises the first refusal."""
        self.settle_nowait(messages, outcome)
        self.flush(timeout_s)

    def settle_nowait(self, messages: Iterable[IncomingMessage], outcome: DeliveryState = COMPLETE) -> None:
        """Settle messages; `flush` raises refusals."""
        self.check()
        if self._mode is not ReceiveMode.PEEK_LOCK:
            return
        several = list(messages)
        inner = self._inner.inner

        def settle() -> list[asyncio.Future[None]]:
            if outcome is RELEASE:
                for message in several:
                    inner.release(message)
                return []
            futures = [_settled(inner, message, outcome) for message in several]
            inner.flush()
            return futures

        self._unconfirmed += self._client.inner.call(settle)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every settlement is confirmed. Raises the first refusal."""
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        limit_s = self._client.timeout_s if timeout_s is None else timeout_s

        async def wait() -> list[BaseException | None]:
            try:
                async with asyncio.timeout(limit_s):
                    return await asyncio.gather(*unconfirmed, return_exceptions=True)
            except TimeoutError:
                raise TimedOut(f"{len(unconfirmed)} settlements have no answer within {limit_s:g} s") from None

        for error in self._client.inner.run(wait()):
            if isinstance(error, ClientError):
                raise self.noted(error)

    @property
    def unconfirmed(self) -> int:
        """Settlements without an answer; those at the head of the list are the oldest."""
        self._unconfirmed = [one for one in self._unconfirmed if not one.done() or one.exception() is not None]
        return len(self._unconfirmed)

    def close(self) -> None:
        self._inner.close()


def _settled(receiver: aio.Receiver, message: IncomingMessage, outcome: DeliveryState) -> asyncio.Future[None]:
    if outcome is COMPLETE:
        return receiver.complete(message)
    if isinstance(outcome, Rejected):
        info = (outcome.error.info if outcome.error is not None else None) or {}
        reason, description = info.get("DeadLetterReason"), info.get("DeadLetterErrorDescription")
        return receiver.dead_letter(message, *(None if text is None else str(text) for text in (reason, description)))
    assert isinstance(outcome, Modified), outcome
    return receiver.defer(message) if outcome is DEFER else receiver.abandon(message)


class Management:
    """The `$management` node of an entity."""

    def __init__(self, client: Client, entity: str) -> None:
        self._client = client
        self._entity = entity

    def request(self, operation: str, body: Mapping[str, object], timeout_s: float | None = None) -> dict[str, object]:
        return self._client.request(self._entity, operation, body, timeout=timeout_s)

    def peek(self, from_sequence: int = 1, count: int = 1, *, session: str | None = None) -> list[IncomingMessage]:
        return peeked_messages(self.request(PEEK, peek_arguments(from_sequence, count, session)))

    def receive_deferred(
        self, sequence_numbers: Sequence[int], *, delete: bool = False, session: str | None = None
    ) -> list[DeferredMessage]:
        return deferred_messages(self.request(RECEIVE_DEFERRED, deferred_arguments(sequence_numbers, delete, session)))

    def settle(
        self, lock_tokens: Sequence[UUID], status: str, *, reason: str | None = None, session: str | None = None
    ) -> None:
        self.request(SETTLE, settle_arguments(lock_tokens, status, reason=reason, session=session))
