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
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from msgspec.structs import replace

from partibus.amqp import (
    Accepted,
    Disposed,
    EncodeError,
    Rejected,
    Source,
    Target,
    TransactionalState,
)
from partibus.amqp import Sender as Link
from partibus.amqp.section_encoding import encode_annotations, encode_properties
from partibus.amqp.sections import BATCH_FORMAT
from partibus.amqp.session import Session
from partibus.client.aio.connection import Connection
from partibus.client.aio.link import Attachment, repeat
from partibus.client.aio.settings import TIMEOUT_MAX_S, retriable, within
from partibus.client.errors import (
    AccessDenied,
    Busy,
    ClientError,
    Closed,
    ConnectFailed,
    EntityDisabled,
    InvalidRequest,
    LinkLost,
    MessageTooLarge,
    NotFound,
    TimedOut,
    error_from,
)
from partibus.client.management import integers, number_array
from partibus.client.messages import OutgoingMessage, check_time
from partibus.errors import ArgumentError

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

    from partibus.client.aio.transaction import Transaction

Sendable = OutgoingMessage | bytes
"""A message, or an encoded one."""
Key = tuple[str | None, str | None]
"""The session id and partition key of a message; a batch holds one key, because the service routes it as a whole."""

NOT_SENT: Final = "not sent"
UNKNOWN: Final = "unknown"
STORED: Final = "stored"
REFUSED: Final = "refused"

_NO_KEY: Final[Key] = (None, None)
_SECTION_BYTES: Final = 8
"""The head of a data section, which each message of a batch has."""
_ENVELOPE_BYTES: Final = 600
"""Room for the keys in the envelope of a batch: 128 characters each."""
_BATCH_SIZE: Final = "com.microsoft:max-message-batch-size"
_ENTITY_ERRORS: Final = (AccessDenied, NotFound, EntityDisabled, LinkLost)
"""Errors of the entity or the link: each message of a batch would meet them alone."""


class Sending(asyncio.Future[None]):
    """The result of one `Sender.send`: awaitable, done when the message is stored or has failed."""

    __slots__ = ("outcome",)

    outcome: str
    """The state of the message, also after a cancellation: the text "not sent", "unknown" (sent without an answer:
    stored or not), "stored" or "refused".
    """


class _Entry(Sending):
    """A result, with what its sender knows of the message."""

    __slots__ = (
        "answered",
        "count",
        "deadline",
        "error",
        "key",
        "message",
        "number",
        "payload",
        "sender",
        "trace",
        "txn",
    )

    def __init__(self, sender: "Sender", loop: asyncio.AbstractEventLoop, deadline: float, number: int) -> None:
        super().__init__(loop=loop)
        self.sender = sender
        self.deadline = deadline
        self.number = number
        """The place in the order of this sender's results."""
        self.message: Sendable | None = None
        """The message while it is not encoded."""
        self.payload = b""
        self.count = 1
        """The number of messages; more than one in a batch of the caller's own."""
        self.key = _NO_KEY
        self.txn: TransactionalState | None = None
        self.trace: SpanContext | None = None
        """The span that the message names, if the client traces."""
        self.answered = False
        """Whether the broker has answered for good; the results before this one may be missing."""
        self.error: ClientError | None = None
        self.outcome = NOT_SENT

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the send. An unsent message is taken back; one in flight may be stored all the same."""
        if self.done():
            return False
        cancelled = super().cancel(msg or f"{self.sender.name}: {_told(self)}")
        self.sender._release(self)  # noqa: SLF001 (of one module)
        return cancelled


class _Batch:
    """Messages that travel in one transfer, and are answered together."""

    __slots__ = ("attempts", "sendings")

    def __init__(self, sendings: list[_Entry]) -> None:
        self.sendings = sendings
        self.attempts = 0


class Sender(Attachment):
    """A link that sends messages, made by `Client.sender`."""

    def __init__(self, connection: Connection, entity: str, flush_interval: float) -> None:
        super().__init__(connection, entity, f"sender to '{entity}'")
        self._tracing = connection.settings.tracing
        self._flush_interval = flush_interval
        self._link: Link | None = None
        self._open_batch: list[_Entry] = []
        self._open_bytes = 0
        self._batch_bytes_max = 1 << 62
        self._message_bytes_max = 1 << 62
        self._timer: asyncio.Handle | None = None
        self._queue: deque[_Batch] = deque()
        self._again: list[_Batch] = []
        """Batches that were refused for now, until `_resume`."""
        self._resuming: asyncio.TimerHandle | None = None
        self._in_flight: dict[_Batch, None] = {}
        """Batches without an answer, in the order in which they left."""
        self._order: deque[_Entry] = deque()
        """All messages without a result, in the order of the calls; and finished ones between them."""
        self._over_limit: deque[_Entry] = deque()
        """Messages that are not encoded yet, because `buffer_bytes` are in use."""
        self._waiting_for_room: deque[asyncio.Future[None]] = deque()
        self._expiry: asyncio.TimerHandle | None = None
        self._numbers = count(1)
        self._tag = 0
        self._id_prefix = uuid4().hex[:20]
        self._ids = count()
        self.outstanding = 0
        """The number of messages without a result."""
        self.outstanding_bytes = 0
        """Encoded bytes of messages without a result."""

    @property
    def max_message_bytes(self) -> int | None:
        """The size of the largest message that the broker takes, once the link is open; None if it stated no limit."""
        return None if self._link is None else self._link.remote_max_message_size or None

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
            self._check_usable()
        settings = self._connection.settings
        deadline = self._loop.time() + (settings.timeout if timeout is None else _time_limit(timeout))
        sending = _Entry(self, self._loop, deadline, next(self._numbers))
        if transaction is not None:
            sending.txn = transaction.state_for(self._connection, self.name)
            self._encode(sending, message)
            self._send_at_once(sending)
            return sending
        if self._over_limit or self.outstanding_bytes >= settings.buffer_bytes:
            sending.message = message
            self._over_limit.append(sending)
        else:
            self._encode(sending, message)
            self._add(sending)
        self._order.append(sending)
        self.outstanding += 1
        if self._expiry is None or deadline < self._expiry.when():
            self._watch(deadline)
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
                sendings.append(_Entry(self, self._loop, 0.0, 0))
                sendings[-1].set_exception(error)
        self._close_batch()
        return sendings

    def send_batch(self, messages: Iterable[Sendable], *, timeout: float | None = None) -> asyncio.Future[None]:
        """Send messages as one batch, at once: one transfer, one answer, all stored or none.

        On a partitioned entity all of them need the same key. Raises `MessageTooLarge` at once.
        """
        self._check_usable()
        settings = self._connection.settings
        deadline = self._loop.time() + (settings.timeout if timeout is None else _time_limit(timeout))
        parts: list[_Entry] = []
        for message in self._several(messages):
            part = _Entry(self, self._loop, deadline, 0)
            self._encode(part, message)
            parts.append(part)
        if not parts:
            raise InvalidRequest(f"{self.name}: the batch is empty; give at least one message")
        sending = _Entry(self, self._loop, deadline, next(self._numbers))
        # A batch of one is a plain message, as its `count` says.
        sending.payload = _batch_payload(parts) if len(parts) > 1 else parts[0].payload
        sending.count = len(parts)
        if len(sending.payload) > self._batch_bytes_max:
            raise self._too_large(len(sending.payload), self._batch_bytes_max)
        self._send_at_once(sending, [part.trace for part in parts])
        return sending

    def _send_at_once(self, sending: _Entry, traces: "Sequence[SpanContext | None]" = ()) -> None:
        """Send something that joins no batch, behind what is open."""
        self._close_batch()
        self.outstanding += 1
        self.outstanding_bytes += len(sending.payload)
        self._order.append(sending)
        self._queue.append(_Batch([sending]))
        if self._tracing is not None:
            self._tracing.sending(self.entity, traces or [sending.trace], [sending])
        self._watch(sending.deadline)
        self._pump()

    async def flush(self) -> None:
        """Send the open batch now, and wait until every message sent so far has its result.

        Raises no error of theirs.
        """
        self._connection.loop()
        self._close_batch()
        last = self._order[-1].number if self._order else 0
        # Results come in order, so the last one is enough; a cancelled one may come too early.
        while waiting := next((one for one in reversed(self._order) if one.number <= last and not one.done()), None):
            await asyncio.wait([waiting])

    async def room(self) -> None:
        """Wait until the bytes without a result are fewer than ``buffer_bytes``. Raises `Closed`.

        For a producer that does not await each result. `send` takes messages meanwhile, but does not encode them.
        """
        self._check_usable()
        while self._over_limit or self.outstanding_bytes >= self._connection.settings.buffer_bytes:
            waiter = self._loop.create_future()
            self._waiting_for_room.append(waiter)
            await waiter

    async def schedule(self, messages: Sequence[Sendable], enqueue_at_ms: int) -> list[int]:
        """Have the broker enqueue messages at a Unix time in milliseconds, and return their sequence numbers.

        The messages are all scheduled or none. Raises the error of the broker. After `ConnectionLost` they may or may
        not be scheduled.
        """
        self._check_usable()
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
        self._check_usable()
        numbers = number_array(sequence_numbers)
        if numbers.items:
            await self._request("com.microsoft:cancel-scheduled-message", {"sequence-numbers": numbers})

    async def close(self) -> None:
        """Send what is open, wait for all results for the client's time limit, then detach. Idempotent.

        Sends from now on raise `Closed`. If the wait is cancelled, messages without a result fail with it.
        """
        if self._closed:
            return
        self._connection.loop()
        self._closing = True
        try:
            if self.outstanding:
                await self.flush()
        finally:
            if not self._closed:
                self._closed = True
                self._fail_all(Closed(f"the {self.name} was closed"))
                for timer in (self._timer, self._expiry, self._resuming):
                    if timer is not None:
                        timer.cancel()
                self._end()

    # -- the way out ---------------------------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        self._connection.loop()
        self._check_not_closed()

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

    def _encode(self, sending: _Entry, message: Sendable) -> None:
        """Encode a message into its sending. The id is the same in each attempt, for duplicate detection."""
        if type(message) is bytes:
            payload = message
        elif isinstance(message, OutgoingMessage):
            if self._tracing is not None:
                message, sending.trace = self._tracing.message(message)
            payload = self._payload_of(message, f"{self._id_prefix}{next(self._ids):012x}")
            if message.session_id is not None or message.partition_key is not None:
                sending.key = (message.session_id, message.partition_key)
        else:
            raise InvalidRequest(
                f"{self.name}: a message is an OutgoingMessage or encoded bytes, not {type(message).__name__}"
            )
        if len(payload) > self._message_bytes_max:
            raise self._too_large(len(payload), self._message_bytes_max)
        sending.payload = payload

    def _too_large(self, size: int, most: int) -> MessageTooLarge:
        return MessageTooLarge(
            f"{self.name}: the message or batch has {size} bytes, the broker takes {most}; "
            "send a smaller body, or store it elsewhere and send a reference",
            "amqp:link:message-size-exceeded",
        )

    def _add(self, sending: _Entry) -> None:
        """Add an encoded message to the open batch, which leaves at once if the message would not fit. Hot path."""
        size = len(sending.payload)
        self.outstanding_bytes += size
        size += _SECTION_BYTES
        if self._open_bytes + size > self._batch_bytes_max and self._open_batch:
            self._close_batch()
        self._open_batch.append(sending)
        self._open_bytes += size
        if self._timer is not None:
            return
        if self._flush_interval:
            self._timer = self._loop.call_later(self._flush_interval, self._on_interval)
            return
        # Without batching the first message of a turn of the loop leaves at once. The others of the turn are separate
        # transfers of one write.
        self._timer = self._loop.call_soon(self._on_interval)
        self._close_open()
        self._connection.flush()

    def _on_interval(self) -> None:
        self._timer = None
        self._close_open()

    def _close_batch(self) -> None:
        """Send the open batch without waiting for the flush interval."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._close_open()

    def _close_open(self) -> None:
        if self._open_batch:
            sendings, self._open_batch, self._open_bytes = self._open_batch, [], 0
            self._enqueue(sendings)
        self._pump()

    def _enqueue(self, sendings: list[_Entry]) -> None:
        """Append messages to the queue, as batches of one key each."""
        if not self._flush_interval:
            batches = [_Batch([sending]) for sending in sendings]
        else:
            batches = []
            key = sendings[0].key
            first = 0
            for index, sending in enumerate(sendings):
                if sending.key is not key and sending.key != key:
                    batches.append(_Batch(sendings[first:index]))
                    first, key = index, sending.key
            batches.append(_Batch(sendings[first:] if first else sendings))
        self._queue.extend(batches)
        if self._tracing is not None:
            for batch in batches:
                self._tracing.sending(self.entity, [one.trace for one in batch.sendings], batch.sendings)

    def _pump(self) -> None:
        """Send queued batches for as long as there is credit. Hot path."""
        queue, link = self._queue, self._link
        if not queue or self._resuming is not None:
            return
        if link is None or not self.is_open:
            if not self._closed:
                self._reopen()
            return
        statistics = self._connection.statistics
        singles: list[tuple[bytes, bytes, object]] = []
        while queue and link.credit > len(singles):
            batch = queue[0]
            sendings = [sending for sending in batch.sendings if not sending.done()]
            if not self._fits(sendings):
                continue
            batch.sendings = sendings
            self._tag = (self._tag + 1) & 0xFFFFFFFF
            tag = self._tag.to_bytes(4)
            one = sendings[0]
            if len(sendings) == 1 and one.count == 1 and one.txn is None:
                singles.append((tag, one.payload, batch))
            else:
                link.send_many(singles)
                singles = []
                if one.count > 1 or len(sendings) > 1:
                    payload = one.payload if one.count > 1 else _batch_payload(sendings)
                    taken = link.send(tag, payload, batch, message_format=BATCH_FORMAT)
                else:
                    taken = link.send(tag, one.payload, batch, state=one.txn)
                if not taken:
                    break
            queue.popleft()
            batch.attempts += 1
            self._in_flight[batch] = None
            statistics.transfers_sent += 1
            statistics.messages_sent += len(sendings) - 1 + one.count
            for sending in sendings:
                sending.outcome = UNKNOWN
        link.send_many(singles)
        self._connection.flush_soon()

    def _fits(self, sendings: list[_Entry]) -> bool:
        """Tell whether the head of the queue, with these messages left, fits into a transfer; else replace it.

        A batch formed before the link was open may exceed the link's limit.
        """
        most = self._batch_bytes_max
        queue = self._queue
        if len(sendings) == 1:
            one = sendings[0]
            if len(one.payload) <= (self._message_bytes_max if one.count == 1 else most):
                return True
            queue.popleft()
            one.answered, one.error = True, self._too_large(len(one.payload), self._message_bytes_max)
            self._loop.call_soon(self._resolve)
        elif not sendings:
            queue.popleft()
        else:
            size = 0
            for index, sending in enumerate(sendings):
                size += len(sending.payload) + _SECTION_BYTES
                if size > most and index:
                    queue.popleft()
                    queue.appendleft(_Batch(sendings[index:]))
                    queue.appendleft(_Batch(sendings[:index]))
                    return False
            return True
        return False

    # -- the way back --------------------------------------------------------------------------------------------------

    def on_credit(self) -> None:
        """Send what the broker has room for now."""
        if self._queue:
            self._pump()

    def on_disposed(self, event: Disposed) -> None:
        """Process the answers to batches."""
        if not event.settled and self._link is not None:
            self._link.settle_many(event.delivery_ids, event.state)
        state: object = event.state
        if isinstance(state, TransactionalState):
            state = state.outcome
        error: ClientError | None = None
        if isinstance(state, Rejected):
            error = error_from(self.name, state.error)
        elif not isinstance(state, Accepted):
            # The dialect has no such answer; the standard says that the message was not stored.
            error = LinkLost(f"{self.name}: the broker did not take the message ({type(state).__name__.lower()})")
        for batch in event.contexts:
            assert isinstance(batch, _Batch)
            self._in_flight.pop(batch, None)
            if error is None:
                for sending in batch.sendings:
                    sending.answered = True
            else:
                self._refused(batch, error)
        self._resolve()
        if self._queue:
            self._pump()

    def _refused(self, batch: _Batch, error: ClientError) -> None:
        left = [sending for sending in batch.sendings if not sending.done()]
        for sending in left:
            sending.outcome = REFUSED
        one = left[0] if left else None
        repeatable = retriable(error) and not isinstance(error, TimedOut)
        if (
            one is not None
            and one.txn is None
            and repeatable
            and self._connection.settings.retry.allows(batch.attempts)
        ):
            self._retry(_Batch(left), batch.attempts, error)
        elif len(left) > 1 and not isinstance(error, _ENTITY_ERRORS):
            # The broker stores a batch as a whole. Each message is sent alone, so that only the guilty ones fail.
            self._again.extend([_Batch([sending]) for sending in left])
            if self._resuming is None:
                self._resume()
        else:
            self._answer(left, error)

    def _retry(self, batch: _Batch, attempts: int, error: ClientError) -> None:
        """Send a batch again after a delay; later batches wait, so that the order stays."""
        delay = self._connection.settings.retry.delay(max(0, attempts - 1), error)
        due = self._loop.time() + delay
        self._answer([sending for sending in batch.sendings if due >= sending.deadline], error)
        batch.attempts = attempts
        self._connection.statistics.retries += 1
        self._again.append(batch)
        if self._resuming is None:
            self._resuming = self._loop.call_later(delay, self._resume)

    def _resume(self) -> None:
        """Queue the batches that must be sent again, in the order of the calls."""
        if self._resuming is not None:
            self._resuming.cancel()
            self._resuming = None
        if self._again:
            again, self._again = self._again, []
            self._queue = deque(sorted([*again, *self._queue], key=_number))
        self._pump()

    def _answer(self, sendings: list[_Entry], error: ClientError) -> None:
        """Record a failure; `_resolve` tells the callers, in order."""
        for sending in sendings:
            sending.answered = True
            sending.error = error
        self._resolve()

    def _resolve(self) -> None:
        """Finish the sends at the head of the order that have their results. Hot path."""
        order = self._order
        while order:
            sending = order[0]
            if not sending.answered and not sending.done():
                break
            order.popleft()
            if sending.done():
                continue
            self.outstanding -= 1
            self.outstanding_bytes -= len(sending.payload)
            sending.payload = b""  # The caller may keep the result for long.
            error = sending.error
            if error is None:
                sending.outcome = STORED
                sending.set_result(None)
            else:
                sending.set_exception(error)
        if self._over_limit or self._waiting_for_room:
            self._make_room()

    def _release(self, sending: _Entry) -> None:
        """Forget a cancelled or expired message; a batch without any is not sent."""
        self.outstanding -= 1
        self.outstanding_bytes -= len(sending.payload)
        self._resolve()

    def _make_room(self) -> None:
        limit = self._connection.settings.buffer_bytes
        while self._over_limit and self.outstanding_bytes < limit:
            sending = self._over_limit.popleft()
            message, sending.message = sending.message, None
            if message is None or sending.done():
                continue
            try:
                self._encode(sending, message)
            except ClientError as error:
                self._answer([sending], error)
                continue
            self._add(sending)
        if self._waiting_for_room and self.outstanding_bytes < limit:
            _wake(self._waiting_for_room)
            self._waiting_for_room.clear()

    # -- time, losses --------------------------------------------------------------------------------------------------

    def _watch(self, deadline: float) -> None:
        if self._expiry is not None:
            if self._expiry.when() <= deadline:
                return
            self._expiry.cancel()
        self._expiry = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        """Fail the messages whose time is over, and say whether they were sent."""
        self._expiry = None
        now = self._loop.time() + 0.001  # A timer may come a little early.
        earliest: float | None = None
        for sending in list(self._order):
            if sending.done():
                continue
            if sending.deadline <= now:
                trouble = self._connection.trouble or f"no answer from {self._connection.peer} in time"
                sending.set_exception(TimedOut(f"{self.name}: {trouble}; {_told(sending)}"))
                self._release(sending)
            elif earliest is None or sending.deadline < earliest:
                earliest = sending.deadline
        if earliest is not None:
            self._watch(earliest)

    def _fail_all(self, error: ClientError) -> None:
        for sending in list(self._order):
            if not sending.done():
                sending.set_exception(type(error)(f"{error}; {_told(sending)}", error.condition))
                self._release(sending)
        self._queue.clear()
        self._again.clear()
        self._in_flight.clear()

    def _on_open(self) -> None:
        link = self._link
        assert link is not None
        self._message_bytes_max = link.remote_max_message_size or 1 << 62
        told = (link.properties or {}).get(_BATCH_SIZE)
        most = min(self._message_bytes_max, told) if isinstance(told, int) and told > 0 else self._message_bytes_max
        self._batch_bytes_max = max(most - _ENVELOPE_BYTES, most // 2)
        self._pump()

    def _on_lost(self, error: ClientError) -> None:
        """Send batches without an answer again, ahead of the others."""
        self._link = None
        lost, self._in_flight = self._in_flight, {}
        for batch in lost:
            # A transaction ends with its connection.
            left = [sending for sending in batch.sendings if not sending.done()]
            if left and left[0].txn is not None:
                left[0].outcome = REFUSED
                self._answer(left, error)
            elif not self._connection.settings.retry.allows(batch.attempts):
                self._answer(left, type(error)(f"{error}; {_told(left[0])}", error.condition) if left else error)
            else:
                self._again.append(batch)
        if self._closed:
            return
        if not retriable(error):
            self._fail_all(error)
        elif self._again or self._queue:
            self._connection.statistics.retries += 1
            attempts = max([batch.attempts for batch in self._again], default=0)
            if attempts < 2:
                self._resume()
            elif self._resuming is None:
                # A broker that ends the link over these messages again gets time.
                self._resuming = self._loop.call_later(
                    self._connection.settings.retry.delay(attempts - 2, error), self._resume
                )

    def _on_open_failed(self, error: ClientError) -> None:
        """Fail all messages, except in an outage: then each waits for its own time limit."""
        if not retriable(error) or self._connection.settings.retry.attempts is not None:
            self._fail_all(error)
        elif self.outstanding:
            # The attempts had as long as the client's time limit; a message may have a longer one.
            self._loop.call_later(self._connection.settings.retry.delay(0, error), self._pump)

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


def _batch_payload(sendings: list[_Entry]) -> bytes:
    """Return the payload of a batch: a data section for each message, behind the keys that route it."""
    parts: list[bytes] = []
    session_id, partition_key = sendings[0].key
    if partition_key is not None:
        parts.append(encode_annotations({"x-opt-partition-key": partition_key}))
    if session_id is not None:
        parts.append(encode_properties(group_id=session_id))
    for sending in sendings:
        payload = sending.payload
        parts.append(b"\x00Su\xb0" + len(payload).to_bytes(4))
        parts.append(payload)
    return b"".join(parts)


def _told(sending: _Entry) -> str:
    """Say whether the message was sent."""
    if sending.outcome == UNKNOWN:
        return "the message was sent, and may or may not be stored (unknown)"
    return "the message was not sent" if sending.outcome == NOT_SENT else "the broker refused the message"


def _number(batch: _Batch) -> int:
    return batch.sendings[0].number


def _wake(waiters: Iterable[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
