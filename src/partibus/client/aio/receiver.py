"""Receiving from one entity: messages, their settlements, their locks."""

import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

from partibus.amqp import Delivery, DeliveryState, Disposed, Source, Target
from partibus.amqp import Receiver as Link
from partibus.amqp.session import Session
from partibus.client.aio.connection import Connection
from partibus.client.aio.incoming import RECEIVE_MAX, Incoming
from partibus.client.aio.link import Attachment, repeat
from partibus.client.aio.lock_renewal import LockRenewal
from partibus.client.aio.settings import retriable, whole, within
from partibus.client.aio.settlement_results import Result
from partibus.client.aio.settlements import Settlements, Settling
from partibus.client.errors import ClientError, Closed, ConnectFailed, InvalidRequest
from partibus.client.management import (
    PEEK,
    RECEIVE_DEFERRED,
    SETTLE,
    deferred_arguments,
    deferred_messages,
    integers,
    outcome_arguments,
    peek_arguments,
    peeked_messages,
    token_array,
)
from partibus.client.messages import IncomingMessage
from partibus.client.outcomes import ABANDON, COMPLETE, DEFER, ReceiveMode, dead_letter

if TYPE_CHECKING:
    from partibus.client.aio.tracing import Tracing
    from partibus.client.aio.transaction import Transaction

_REASON_MAX: Final = 4_096


class Receiver(Attachment):
    """A link that receives messages, made by `Client.receiver`.

    Without a ``prefetch`` each `receive` asks for what it wants and gives back the rest, so no unwanted message is
    locked. With one, a `receive` that finds the cache empty asks for as many messages, of 256 KB together; others take
    from the cache. While several calls wait, two such fills may be under way, within the count. A cached message is
    locked. If its lock expires there, it is still returned, and its completion raises `LockLost`.
    """

    def __init__(
        self,
        connection: Connection,
        entity: str,
        *,
        mode: ReceiveMode,
        prefetch: int,
        auto_renew: float,
        flush_interval: float,
        name: str | None = None,
    ) -> None:
        super().__init__(connection, entity, name or f"receiver of '{entity}'")
        self.mode = mode
        self.prefetch = prefetch
        self._tracing = connection.settings.tracing
        self._link: Link | None = None
        self._error: ClientError | None = None
        """The reason why the receiver can not be attached again: the loss of its session."""
        self._incoming = Incoming(self, mode, prefetch)
        self._locks = LockRenewal(connection, auto_renew, self._renew)
        self._settlements = Settlements(self, mode, flush_interval, self._locks, self._settle_tokens)

    @property
    def cached(self) -> int:
        """The number of messages in the prefetch cache."""
        return len(self._incoming.cache)

    # -- receiving -----------------------------------------------------------------------------------------------------

    async def receive(self, max_messages: int = 1, max_wait: float = 60.0) -> list[IncomingMessage]:
        """Wait for the first message, then return the available ones, up to ``max_messages``.

        Returns [] after ``max_wait`` seconds without one. Raises `NotFound`, `AccessDenied`, and `TimedOut` or
        `ConnectFailed` when there is no connection for as long as the client's time limit. Several calls may wait at a
        time; they are served in turn.
        """
        if self._tracing is not None:
            return await self._receive_traced(self._tracing, max_messages, max_wait)
        incoming = self._incoming
        if incoming.cache and not incoming.waiters:
            return self._hand_out(incoming.take(max_messages))
        return await self._receive(max_messages, max_wait)

    async def _receive_traced(self, tracing: "Tracing", max_messages: int, max_wait: float) -> list[IncomingMessage]:
        began_ns = time.time_ns()
        messages = await self._receive(max_messages, max_wait)
        if messages:
            tracing.received(self.entity, messages, began_ns)
        return messages

    async def _receive(self, max_messages: int, max_wait: float) -> list[IncomingMessage]:
        incoming = self._incoming
        if incoming.cache and not incoming.waiters:
            return self._hand_out(incoming.take(max_messages))
        whole("max_messages", max_messages, 1, RECEIVE_MAX)
        within("max_wait", max_wait, 0.0, 86_400.0, "s")
        self.check_usable()
        while not self.is_open:  # The link may be lost again before this call resumes.
            await self.open()
        if incoming.cache and not incoming.waiters:
            return self._hand_out(incoming.take(max_messages))
        return self._hand_out(await incoming.wait(max_messages, max_wait))

    async def __aiter__(self) -> AsyncIterator[IncomingMessage]:
        """Receive messages one after the other, until the receiver is closed."""
        while not self._closing:
            try:
                messages = await self.receive()
            except Closed:
                return
            # One at a time: what a loop leaves behind stays in the cache, for the next call.
            for message in messages:
                yield message

    def _hand_out(self, deliveries: list[Delivery]) -> list[IncomingMessage]:
        messages = [IncomingMessage(delivery.payload, delivery) for delivery in deliveries]
        if self._locks.limit_s and self.mode is ReceiveMode.PEEK_LOCK:
            for message in messages:
                self._locks.keep(message)
        return messages

    def take_back(self, messages: Sequence[IncomingMessage]) -> None:
        """Put messages that were received last, and not settled, back into the cache for the next receives."""
        self._connection.loop()
        if not self._closing:
            self._incoming.put_back([message.delivery for message in messages if message.delivery is not None])

    def stop_waiting(self) -> None:
        """End the receives that wait, as if their time were over."""
        self._incoming.stop_waiting()

    def on_deliveries(self, deliveries: list[Delivery]) -> None:
        """Serve the receives that wait, then fill the cache."""
        self._losses = 0
        self._incoming.on_deliveries(deliveries)

    def on_drained(self) -> None:
        """Finish the receives that have waited long enough."""
        self._incoming.on_drained()

    # -- settling ------------------------------------------------------------------------------------------------------

    def complete(
        self, messages: IncomingMessage | Iterable[IncomingMessage], *, transaction: "Transaction | None" = None
    ) -> Result:
        """Complete a message or several: the broker deletes them. The result is done when that is durable.

        Completions of one flush interval travel together, and those of one call without an interval, too. Not a
        coroutine: the completion is on its way, also if the result is awaited later. The result raises `LockLost` if
        the lock of a message has expired; the other messages of the call are completed all the same.
        """
        if isinstance(messages, IncomingMessage):
            return self._settlements.settle(messages, COMPLETE, transaction)
        return self._settlements.complete_together(messages, transaction)

    def abandon(self, message: IncomingMessage, *, transaction: "Transaction | None" = None) -> Result:
        """Unlock a message and count a failed delivery. Raises as `complete` does."""
        return self._settlements.settle(message, ABANDON, transaction)

    def defer(self, message: IncomingMessage, *, transaction: "Transaction | None" = None) -> Result:
        """Defer a message until `receive_deferred` asks for its sequence number. Raises as `complete` does."""
        return self._settlements.settle(message, DEFER, transaction)

    def dead_letter(
        self,
        message: IncomingMessage,
        reason: str | None = None,
        description: str | None = None,
        *,
        transaction: "Transaction | None" = None,
    ) -> Result:
        """Move a message to the dead-letter sub-queue. Raises as `complete` does.

        Reason and description have 4,096 characters at most.
        """
        for name, text in (("reason", reason), ("description", description)):
            if text is not None and len(text) > _REASON_MAX:
                raise InvalidRequest(f"{name} has {len(text)} characters, but must have {_REASON_MAX} at most; cut it")
        return self._settlements.settle(message, dead_letter(reason, description), transaction)

    def release(self, message: IncomingMessage) -> None:
        """Requeue a message in its place without counting a delivery. There is no answer.

        Raises `InvalidRequest` while a settlement of the message is under way.
        """
        self._settlements.release(message)

    def holds(self, message: IncomingMessage) -> bool:
        """Tell whether a message is under lock here, with no settlement under way."""
        return self._settlements.holds(message)

    def flush(self) -> None:
        """Send the completions of the open batch now."""
        self._settlements.flush()

    def on_disposed(self, event: Disposed) -> None:
        """Finish settlements that the broker has answered."""
        self._settlements.on_disposed(event)

    async def _settle_tokens(self, tokens: list[UUID], outcome: DeliveryState) -> None:
        await self._ask(SETTLE, outcome_arguments(tokens, outcome, self._session_of_requests))

    # -- other operations ----------------------------------------------------------------------------------------------

    async def renew_lock(self, message: IncomingMessage) -> int:
        """Renew a message's lock and return its new end, as Unix time in milliseconds. Raises `LockLost`."""
        self._settlements.check(message)
        token = message.lock_token
        if token is None:
            raise InvalidRequest(f"{self.name}: the message has no lock to renew")
        return (await self._renew([token]))[0]

    async def _renew(self, tokens: list[UUID]) -> list[int]:
        reply = await self._request("com.microsoft:renew-lock", {"lock-tokens": token_array(tokens)})
        return integers(reply, "expirations")

    async def peek(self, count: int = 1, from_sequence_number: int = 1) -> list[IncomingMessage]:
        """Return up to ``count`` messages from a sequence number on, without locks; locked ones are among them.

        [] when none is left. The answer may have fewer: 256 KB at most.
        """
        whole("count", count, 1, RECEIVE_MAX)
        arguments = peek_arguments(from_sequence_number, count, self._session_of_requests)
        return peeked_messages(await self._request(PEEK, arguments))

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> list[IncomingMessage]:
        """Lock (or delete, by the receiver's mode) deferred messages by their numbers, all or none.

        Raises `NotFound` if any is missing.
        """
        delete = self.mode is ReceiveMode.RECEIVE_AND_DELETE
        arguments = deferred_arguments(sequence_numbers, delete, self._session_of_requests)
        if not sequence_numbers:
            return []
        reply = await self._request(RECEIVE_DEFERRED, arguments, _not_done)
        return [found.message for found in deferred_messages(reply)]

    @property
    def _session_of_requests(self) -> str | None:
        return None

    async def _request(
        self,
        operation: str,
        body: dict[str, object],
        repeatable: Callable[[BaseException], bool] = retriable,
    ) -> dict[str, object]:
        """Perform an operation of the entity's management node, with retries."""
        connection = self._connection
        return await repeat(
            connection,
            f"{operation} on '{self.entity}'",
            lambda: self._ask(operation, body),
            connection.settings.timeout,
            repeatable,
        )

    async def _ask(self, operation: str, body: dict[str, object]) -> dict[str, object]:
        """Perform an operation of the entity's management node in one attempt; also while the receiver closes."""
        self._connection.loop()
        if self._closed or self._error is not None:
            self.check_usable()
        link_name = None if self._link is None else self._link.name
        return await self._connection.request(self.entity, operation, body, link_name=link_name)

    # -- life ----------------------------------------------------------------------------------------------------------

    def check_usable(self) -> None:
        """Raise `Closed` after `close`, `InvalidRequest` in another event loop, and `LockLost` after a lost session."""
        super().check_usable()
        if self._error is not None:
            raise self._error

    def _attach(self, session: Session) -> None:
        name = self._connection.link_name(self.entity)
        snd_settle_mode, rcv_settle_mode = self.mode.value
        self._link = session.attach_receiver(
            name,
            source=Source(self.entity, filter=self._filter()),
            target=Target(name),
            snd_settle_mode=snd_settle_mode,
            rcv_settle_mode=rcv_settle_mode,
            properties=self._properties(),
        )
        self._link.user = self

    def _filter(self) -> dict[object, object] | None:
        return None

    def _properties(self) -> dict[object, object] | None:
        return None

    def _on_open(self) -> None:
        link = self._link
        assert link is not None
        self._settlements.on_open(link)
        self._incoming.on_open(link)

    def _on_lost(self, error: ClientError) -> None:
        """Settle by token what was being settled, and attach again if a call waits for messages."""
        self._link = None
        self._incoming.on_lost()
        settling, unsent = self._settlements.on_lost()
        if settling and not self._closed:
            self._settle_again(settling, unsent, error)
        self._after_loss(error)

    def _settle_again(self, settling: list[Settling], unsent: set[int], error: ClientError) -> None:
        """Settle what a lost link has not answered."""
        self._settlements.settle_again(settling, unsent, error)

    def _after_loss(self, error: ClientError) -> None:
        if self._closed:
            return
        if not retriable(error):
            self._incoming.fail(error)
        elif self._incoming.waiters:
            if self._connection.settings.retry.allows(1):
                self._reopen()
            else:
                self._incoming.fail(error)

    def _on_open_failed(self, error: ClientError) -> None:
        self._incoming.fail(error)

    async def close(self) -> None:
        """Send open completions and wait for their answers, release cached messages, then detach. Idempotent.

        Receives that wait, and all calls from now on, raise `Closed`. The wait has the client's time limit.
        """
        if self._closed:
            return
        self._connection.loop()
        self._closing = True
        over = Closed(f"the {self.name} was closed")
        try:
            self._incoming.give_up_all(over)
            self._settlements.flush()
            await self._incoming.drained()
            await self._settlements.settled()
            self._incoming.release_cache()
        finally:
            if not self._closed:  # by another call, meanwhile
                self._closed = True
                self._incoming.cache.clear()
                self._locks.stop()
                self._settlements.end(over)
                self._end()
                self._link = None


def _not_done(error: BaseException) -> bool:
    return isinstance(error, ConnectFailed)
