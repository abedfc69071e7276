"""Sending to one entity: messages gathered into batches, pipelined, answered in the order of the calls.

```text
 send() ─▶ open batch ─▶ cut by key and size ─▶ queue ─▶ in flight ─▶ results, in order
            20 ms, or full                       credit   transfers    stored: resolved
                                                                       refused: the batch once more, message by message
                                                                       busy or lost: again, after a delay
```
"""

import asyncio
from asyncio import get_running_loop
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING
from uuid import uuid4

from msgspec.structs import replace

from partibus.amqp import Disposed, EncodeError, Source, Target
from partibus.amqp import Sender as Link
from partibus.amqp.session import Session
from partibus.client.aio.batching import Batching
from partibus.client.aio.connection import Connection
from partibus.client.aio.link import Attachment, repeat
from partibus.client.aio.send_results import SendResults
from partibus.client.aio.sending import Batch, Entry, Sendable, Sending, batch_payload
from partibus.client.aio.settings import TIMEOUT_MAX_S, retriable, within
from partibus.client.aio.transfers import Transfers
from partibus.client.errors import Busy, ClientError, Closed, ConnectFailed, InvalidRequest, MessageTooLarge
from partibus.client.management import integers, number_array
from partibus.client.messages import OutgoingMessage, check_time
from partibus.errors import ArgumentError

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

    from partibus.client.aio.transaction import Transaction


class Sender(Attachment):
    """A link that sends messages, made by `Client.sender`."""

    def __init__(self, connection: Connection, entity: str, flush_interval: float) -> None:
        super().__init__(connection, entity, f"sender to '{entity}'")
        self._tracing = connection.settings.tracing
        self._link: Link | None = None
        self._results = SendResults(self)
        self._transfers = Transfers(self, self._results, self._reopen_unless_closed)
        self._batching = Batching(self, flush_interval, self._results, self._transfers, self._encode)
        self._numbers = count(1)
        self._id_prefix = uuid4().hex[:20]
        self._ids = count()

    @property
    def max_message_bytes(self) -> int | None:
        """The size of the largest message that the broker takes, once the link is open; None if it stated no limit."""
        return None if self._link is None else self._link.remote_max_message_size or None

    @property
    def outstanding(self) -> int:
        """The number of messages without a result."""
        return self._results.outstanding

    @property
    def outstanding_bytes(self) -> int:
        """Encoded bytes of messages without a result."""
        return self._results.outstanding_bytes

    # -- calls ---------------------------------------------------------------------------------------------------------

    def send(
        self, message: Sendable, *, transaction: "Transaction | None" = None, timeout: float | None = None
    ) -> Sending:
        """Send a message; the result is done when the broker has stored it durably.

        Messages of one flush interval travel together. Not a coroutine: the message is on its way, also if the result
        is awaited later or gathered with others. Results are done in the order of the calls.

        Raises `MessageTooLarge` and `InvalidRequest` at once. The result has other errors; those of an outage come
        after ``timeout`` seconds (default: the client's), as `TimedOut`.
        """
        try:
            is_usable = get_running_loop() is self._loop and not self._closing
        except RuntimeError:
            is_usable = False
        if not is_usable:
            self.check_usable()
        settings = self._connection.settings
        deadline = self._loop.time() + (settings.timeout if timeout is None else _time_limit(timeout))
        sending = Entry(self._results, self._loop, deadline, next(self._numbers))
        if transaction is not None:
            sending.txn = transaction.state_for(self._connection, self.name)
            self._encode(sending, message)
            self._send_at_once(sending)
            transaction.wait_for(sending)
            return sending
        self._batching.add(sending, message)
        self._results.add(sending)
        return sending

    def send_now(self, messages: Iterable[Sendable], timeout: float | None = None) -> list[Sending]:
        """Send messages as `send` does, without waiting for the flush interval.

        A message that `send` would refuse has a failed result; the others are sent.
        """
        sendings: list[Sending] = []
        for message in self._several(messages):
            try:
                sendings.append(self.send(message, timeout=timeout))
            except (InvalidRequest, MessageTooLarge) as error:
                sendings.append(Entry(self._results, self._loop, 0.0, 0))
                sendings[-1].set_exception(error)
        self._batching.close()
        return sendings

    def send_batch(self, messages: Iterable[Sendable], *, timeout: float | None = None) -> asyncio.Future[None]:
        """Send messages as one batch, at once: one transfer, one answer, all stored or none.

        On a partitioned entity all of them need the same key. Raises `MessageTooLarge` at once.
        """
        self.check_usable()
        settings = self._connection.settings
        deadline = self._loop.time() + (settings.timeout if timeout is None else _time_limit(timeout))
        parts: list[Entry] = []
        for message in self._several(messages):
            part = Entry(self._results, self._loop, deadline, 0)
            self._encode(part, message)
            parts.append(part)
        if not parts:
            raise InvalidRequest(f"{self.name}: the batch is empty; give at least one message")
        sending = Entry(self._results, self._loop, deadline, next(self._numbers))
        # A batch of one is a plain message, as its `count` says.
        sending.payload = batch_payload(parts) if len(parts) > 1 else parts[0].payload
        sending.count = len(parts)
        if len(sending.payload) > self._transfers.batch_bytes_max:
            raise self._transfers.too_large(len(sending.payload), self._transfers.batch_bytes_max)
        self._send_at_once(sending, [part.trace for part in parts])
        return sending

    def _send_at_once(self, sending: Entry, traces: "Sequence[SpanContext | None]" = ()) -> None:
        """Send something that joins no batch, behind all messages before it."""
        self._batching.close_all()
        self._results.outstanding_bytes += len(sending.payload)
        self._results.add(sending)
        self._transfers.queue.append(Batch([sending]))
        if self._tracing is not None:
            self._tracing.sending(self.entity, traces or [sending.trace], [sending])
        self._transfers.pump()

    async def flush(self) -> None:
        """Send the open batch now, and wait until every message sent so far has its result.

        Raises no error of theirs.
        """
        self._connection.loop()
        self._batching.close()
        await self._results.all_done()

    async def room(self) -> None:
        """Wait until the bytes without a result are fewer than ``buffer_bytes``. Raises `Closed`.

        For a producer that does not await each result. `send` takes messages meanwhile, but does not encode them.
        """
        self.check_usable()
        await self._batching.room()

    async def schedule(self, messages: Sequence[Sendable], enqueue_at_ms: int) -> list[int]:
        """Have the broker enqueue messages at a Unix time in milliseconds, and return their sequence numbers.

        The messages are all scheduled or none. Raises the error of the broker. After `ConnectionLost` they may or may
        not be scheduled.
        """
        self.check_usable()
        check_time("enqueue_at_ms", enqueue_at_ms)
        entries: list[object] = []
        for message in self._several(messages):
            if not isinstance(message, OutgoingMessage):
                raise InvalidRequest(f"{self.name}: only an OutgoingMessage can be scheduled, not encoded bytes")
            message_id = message.message_id or self._next_id()
            payload = self._payload_of(_at(message, enqueue_at_ms), str(message_id))
            entry: dict[str, object] = {"message-id": str(message_id), "message": payload}
            if message.session_id is not None:
                entry["session-id"] = message.session_id
            if message.partition_key is not None:
                entry["partition-key"] = message.partition_key
            entries.append(entry)
        if not entries:
            return []
        reply = await self._request("com.microsoft:schedule-message", {"messages": entries})
        return integers(reply, "sequence-numbers")

    async def cancel_scheduled(self, sequence_numbers: Sequence[int]) -> None:
        """Cancel scheduled messages by their numbers. Raises `NotFound` if one is not waiting."""
        self.check_usable()
        numbers = number_array(sequence_numbers)
        if numbers.items:
            await self._request("com.microsoft:cancel-scheduled-message", {"sequence-numbers": numbers})

    async def close(self) -> None:
        """Send what is open, wait for all results for the client's time limit, then detach. Idempotent.

        Sends from now on raise `Closed`. Messages without a result fail with it after the limit, or a cancelled wait.
        """
        if self._closed:
            return
        self._connection.loop()
        self._closing = True
        try:
            if self.outstanding:
                # A message may have a longer time limit of its own.
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._connection.settings.timeout):
                        await self.flush()
        finally:
            if not self._closed:
                self._closed = True
                self._transfers.fail_all(Closed(f"the {self.name} was closed"))
                self._batching.stop()
                self._results.stop()
                self._transfers.stop()
                self._end()

    # -- the way out ---------------------------------------------------------------------------------------------------

    def _several(self, messages: Iterable[Sendable]) -> Iterable[Sendable]:
        """Return messages of one call. Raises `InvalidRequest` for what is no list of them."""
        if isinstance(messages, OutgoingMessage | bytes | bytearray | str) or not isinstance(messages, Iterable):
            raise InvalidRequest(f"{self.name}: messages is {type(messages).__name__}; pass a list of messages")
        return messages

    def _next_id(self) -> str:
        return f"{self._id_prefix}{next(self._ids):012x}"

    def _payload_of(self, message: OutgoingMessage, otherwise_id: str) -> bytes:
        try:
            return message.encode(otherwise_id)
        except (ArgumentError, EncodeError, TypeError, ValueError) as error:
            raise InvalidRequest(f"{self.name}: {error}") from error

    def _encode(self, sending: Entry, message: Sendable) -> None:
        """Encode a message into its sending. The id is the same in each attempt, for duplicate detection."""
        if type(message) is bytes:
            payload = message
        elif type(message) is OutgoingMessage or isinstance(message, OutgoingMessage):
            if self._tracing is not None:
                message, sending.trace = self._tracing.message(message)
            payload = self._payload_of(message, f"{self._id_prefix}{next(self._ids):012x}")
            if message.session_id is not None or message.partition_key is not None:
                sending.key = (message.session_id, message.partition_key)
        else:
            raise InvalidRequest(
                f"{self.name}: a message is an OutgoingMessage or encoded bytes, not {type(message).__name__}"
            )
        if len(payload) > self._transfers.message_bytes_max:
            raise self._transfers.too_large(len(payload), self._transfers.message_bytes_max)
        sending.payload = payload

    # -- the link ------------------------------------------------------------------------------------------------------

    def on_credit(self) -> None:
        """Send what the broker has room for now."""
        self._transfers.pump()

    def on_disposed(self, event: Disposed) -> None:
        """Process the answers to batches."""
        self._losses = 0
        self._transfers.on_disposed(event)

    def _reopen_unless_closed(self) -> None:
        if not self._closed:
            self._reopen()

    def _on_open(self) -> None:
        link = self._link
        assert link is not None
        self._transfers.on_open(link)

    def _on_lost(self, error: ClientError) -> None:
        """Send batches without an answer again, ahead of the others."""
        self._link = None
        self._transfers.on_lost(error)

    def _on_open_failed(self, error: ClientError) -> None:
        """Fail all messages, except in an outage: then each waits for its own time limit."""
        if not retriable(error) or self._connection.settings.retry.attempts is not None:
            self._transfers.fail_all(error)
        elif self._results.outstanding:
            # The attempts had as long as the client's time limit; a message may have a longer one.
            self._loop.call_later(self._connection.settings.retry.delay(0, error), self._transfers.pump)

    def _attach(self, session: Session) -> None:
        name = self._connection.link_name(self.entity)
        self._link = session.attach_sender(name, source=Source(name), target=Target(self.entity), snd_settle_mode=0)
        self._link.user = self

    # -- other ---------------------------------------------------------------------------------------------------------

    async def _request(self, operation: str, body: dict[str, object]) -> dict[str, object]:
        connection = self._connection
        return await repeat(
            connection,
            f"{operation} on '{self.entity}'",
            lambda: connection.request(self.entity, operation, body),
            connection.settings.timeout,
            _surely_not_done,
        )


def _surely_not_done(error: BaseException) -> bool:
    """Tell whether a request was refused or not sent, so that it can be repeated without doing it twice."""
    return isinstance(error, Busy | ConnectFailed)


def _time_limit(timeout_s: float) -> float:
    return within("timeout", timeout_s, 0.0, TIMEOUT_MAX_S, "s")


def _at(message: OutgoingMessage, at_ms: int) -> OutgoingMessage:
    return replace(message, scheduled_ms=at_ms)
