"""Receiving from one entity or session: a prefetch cache, settlements gathered into batches, locks kept alive."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from partibus.amqp import (
    Delivery,
    DeliveryState,
    Disposed,
    Modified,
    Rejected,
    Source,
    Target,
    TransactionalState,
)
from partibus.amqp import Receiver as Link
from partibus.amqp.codec.types import Symbol, UInt
from partibus.amqp.errors import DecodeError
from partibus.amqp.session import Session
from partibus.client.aio.connection import Connection
from partibus.client.aio.link import Attachment, repeat
from partibus.client.aio.settings import retriable, whole, within
from partibus.client.errors import (
    ClientError,
    Closed,
    ConnectFailed,
    InvalidRequest,
    LinkLost,
    LockLost,
    SessionHeld,
    TimedOut,
    error_from,
)
from partibus.client.management import (
    PEEK,
    RECEIVE_DEFERRED,
    SETTLE,
    deferred_arguments,
    deferred_messages,
    integer,
    integers,
    peek_arguments,
    peeked_messages,
    settle_arguments,
    token_array,
)
from partibus.client.messages import IncomingMessage
from partibus.client.outcomes import ABANDON, COMPLETE, DEFER, RELEASE, NextSession, ReceiveMode, dead_letter

if TYPE_CHECKING:
    from partibus.client.aio.tracing import Tracing
    from partibus.client.aio.transaction import Transaction

FILL_BYTES: Final = 256 * 1024
"""The most bytes that one fill of a prefetch cache asks for (row C16)."""
SETTLE_AT_ONCE: Final = 1_000
"""Completions that leave together without waiting for the flush interval."""
_RECEIVE_MAX: Final = 1_000_000
SESSION_WAIT_MAX_S: Final = 65.0
_REASON_MAX: Final = 4_096
_RENEW_BEFORE: Final = 0.5
"""The share of a lock's remaining time after which it is renewed."""
_DRAIN_S: Final = 5.0
_TICKS_OF_1970: Final = 621_355_968_000_000_000
"""Ticks of 100 ns between year 1 and 1970, as sessions state the end of their lock."""
_SESSION_FILTER: Final = Symbol("com.microsoft:session-filter")
_SESSION_WAIT: Final = Symbol("com.microsoft:timeout")
_LOCKED_UNTIL: Final = "com.microsoft:locked-until-utc"


_ByToken = dict[UUID, "asyncio.Future[None]"]
"""The callers' results of settlements, by lock token."""
_Settling = tuple[Delivery, DeliveryState, "asyncio.Future[None]"]
"""A settlement: the message, its outcome, the caller's result."""


class _Waiter:
    """A call of `receive` that waits for messages."""

    __slots__ = ("expired", "found", "future", "most")

    def __init__(self, future: "asyncio.Future[None]", most: int) -> None:
        self.future = future
        self.most = most
        self.found: list[Delivery] = []
        self.expired = False


class _Together(asyncio.Future[None]):
    """The result of several settlements: done with the last of them, and the first error is its own."""

    __slots__ = ("_first", "_left")

    def __init__(self, loop: asyncio.AbstractEventLoop, count: int) -> None:
        super().__init__(loop=loop)
        self._left = count
        self._first: BaseException | None = None

    def answered(self, error: BaseException | None) -> None:
        """Note the result of one settlement."""
        self._left -= 1
        if error is not None and self._first is None:
            self._first = error
        if not self._left and not self.done():
            if self._first is None:
                self.set_result(None)
            else:
                self.set_exception(self._first)

    def follow(self, result: "asyncio.Future[None]") -> None:
        """Note the result of a settlement that has a future of its own."""
        result.add_done_callback(self._followed)

    def _followed(self, result: "asyncio.Future[None]") -> None:
        self.answered(asyncio.CancelledError() if result.cancelled() else result.exception())


class Receiver(Attachment):
    """A link that receives messages, made by `Client.receiver`.

    Without a ``prefetch`` each `receive` asks for what it wants and gives back the rest, so no unwanted message is
    locked. With one, a `receive` that finds the cache empty asks for as many messages, of 256 KB together; others take
    from the cache. A cached message is locked. If its lock expires there, it is still returned, and its completion
    raises `LockLost`.
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
        self._flush_interval = flush_interval
        self._auto_renew = auto_renew
        self._link: Link | None = None
        self._error: ClientError | None = None
        """The reason why the receiver can not be attached again: the loss of its session."""
        self._cache: deque[Delivery] = deque()
        self._waiters: deque[_Waiter] = deque()
        self._draining = False
        self._drained: list[asyncio.Future[None]] = []
        self._fill_count = 0
        """Messages that this fill may still bring."""
        self._fill_bytes = 0
        self._message_bytes = FILL_BYTES
        """The size of messages, as the last ones had it: the first fill begins with one message."""
        self._settling: dict[int, _Settling] = {}
        """Settlements without an answer, by delivery id."""
        self._by_token: set[asyncio.Task[None]] = set()
        """Settlements under way that the management node carries out."""
        self._completing: list[Delivery] = []
        """Completions of the open batch."""
        self._timer: asyncio.TimerHandle | None = None
        self._renewing: dict[UUID, tuple[float, float]] = {}
        """When to renew the lock of a message, and until when at most (Unix seconds), by token."""
        self._renewal: asyncio.TimerHandle | None = None

    @property
    def cached(self) -> int:
        """The number of messages in the prefetch cache."""
        return len(self._cache)

    # -- receiving -----------------------------------------------------------------------------------------------------

    async def receive(self, max_messages: int = 1, max_wait: float = 60.0) -> list[IncomingMessage]:
        """Wait for the first message, then return the available ones, up to ``max_messages``.

        Returns [] after ``max_wait`` seconds without one. Raises `NotFound`, `AccessDenied`, and `TimedOut` or
        `ConnectFailed` when there is no connection for as long as the client's time limit. Several calls may wait at a
        time; they are served in turn.
        """
        if self._tracing is not None:
            return await self._receive_traced(self._tracing, max_messages, max_wait)
        if self._cache and not self._waiters:
            return self._take(max_messages)
        return await self._receive(max_messages, max_wait)

    async def _receive_traced(self, tracing: "Tracing", max_messages: int, max_wait: float) -> list[IncomingMessage]:
        began_ns = time.time_ns()
        messages = await self._receive(max_messages, max_wait)
        if messages:
            tracing.received(self.entity, messages, began_ns)
        return messages

    async def _receive(self, max_messages: int, max_wait: float) -> list[IncomingMessage]:
        if self._cache and not self._waiters:
            return self._take(max_messages)
        whole("max_messages", max_messages, 1, _RECEIVE_MAX)
        within("max_wait", max_wait, 0.0, 86_400.0, "s")
        self._check_usable()
        self._connection.loop()
        if not self.is_open:
            await self.open()
        if self._cache and not self._waiters:
            return self._take(max_messages)
        waiter = _Waiter(self._loop.create_future(), max_messages)
        self._waiters.append(waiter)
        timer = self._loop.call_later(max_wait, self._on_waited, waiter)
        self._ask()
        try:
            await waiter.future
        except BaseException:
            self._give_up(waiter)
            raise
        finally:
            timer.cancel()
        return self._hand_out(waiter.found)

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

    def _take(self, most: int) -> list[IncomingMessage]:
        if type(most) is not int or most < 1:
            whole("max_messages", most, 1, _RECEIVE_MAX)
        cache = self._cache
        return self._hand_out([cache.popleft() for _ in range(min(most, len(cache)))])

    def _hand_out(self, deliveries: list[Delivery]) -> list[IncomingMessage]:
        messages = [IncomingMessage(delivery.payload, delivery) for delivery in deliveries]
        if self._auto_renew and self.mode is ReceiveMode.PEEK_LOCK:
            for message in messages:
                self._keep_locked(message)
        return messages

    def _ask(self) -> None:
        """Grant credit for the receives that wait, or fill the empty cache."""
        link = self._link
        if link is None or not self.is_open or self._draining or not self._waiters:
            return
        if self.prefetch:
            if not self._cache:
                self._fill()
            return
        wanted = sum(waiter.most - len(waiter.found) for waiter in self._waiters if not waiter.expired)
        if wanted > link.credit:
            self._grant(link, wanted)

    def _fill(self) -> None:
        """Begin a fill: up to ``prefetch`` messages, of 256 KB together."""
        self._fill_count = self.prefetch
        self._fill_bytes = FILL_BYTES
        if self._go_on_filling(least=1):
            self._connection.statistics.fills += 1

    def _go_on_filling(self, least: int = 0) -> bool:
        """Grant the credit that the rest of the fill allows, as far as the size of messages is known.

        Returns whether it did. A flow frame is worth sending when the link has less than half of it.
        """
        link = self._link
        if link is None:
            return False
        wanted = min(self._fill_count, max(least, self._fill_bytes // max(1, self._message_bytes)))
        if link.credit < (wanted + 1) // 2 or wanted < link.credit:
            self._grant(link, wanted)
            return True
        return False

    def _grant(self, link: Link, credit: int) -> None:
        self._connection.statistics.flows_sent += 1
        link.grant(credit)
        self._connection.flush_soon()

    def on_deliveries(self, deliveries: list[Delivery]) -> None:
        """Serve the receives that wait, then fill the cache. Hot path."""
        self._connection.statistics.messages_received += len(deliveries)
        if self.prefetch:
            size = sum([len(delivery.payload) for delivery in deliveries])
            self._fill_count -= len(deliveries)
            self._fill_bytes -= size
            # One large message makes the estimate large at once; it sinks slowly.
            average = size // len(deliveries)
            known = self._message_bytes
            self._message_bytes = average if average > known or known == FILL_BYTES else (3 * known + average) // 4
            self._cache.extend(deliveries)
            self._serve()
            if self._fill_count > 0:
                self._go_on_filling()
            return
        waiters = self._waiters
        if len(deliveries) == 1 and waiters and waiters[0].most == 1 and not waiters[0].expired:
            waiter = waiters.popleft()
            waiter.found = deliveries
            _done(waiter)
            return
        self._deal(deliveries)

    def _serve(self) -> None:
        """Give cached messages to the receives that wait."""
        cache, waiters = self._cache, self._waiters
        while cache and waiters:
            waiter = waiters.popleft()
            if waiter.future.done():
                continue
            waiter.found = [cache.popleft() for _ in range(min(waiter.most, len(cache)))]
            _done(waiter)
        if waiters:
            self._ask()

    def _deal(self, deliveries: list[Delivery]) -> None:
        """Give messages to the receives that asked for them; take back what is left of their credit."""
        waiters = self._waiters
        left = deque(deliveries)
        while left and waiters:
            waiter = waiters[0]
            room = waiter.most - len(waiter.found)
            waiter.found += [left.popleft() for _ in range(min(room, len(left)))]
            if len(waiter.found) < waiter.most:
                break
            waiters.popleft()
            _done(waiter)
        if left:
            self._return(list(left))
        if waiters and waiters[0].found:
            self._drain()

    def _return(self, deliveries: list[Delivery]) -> None:
        """Release messages that no call wants; deleted ones exist nowhere else and stay for the next call."""
        link = self._link
        if self.mode is ReceiveMode.PEEK_LOCK and link is not None:
            link.settle_many(deliveries, RELEASE)
            self._connection.flush_soon()
        else:
            self._cache.extend(deliveries)
            self._serve()

    def _drain(self) -> None:
        """Ask the broker to return the credit, so that all messages sent for it are here."""
        link = self._link
        if self._draining or link is None or not self.is_open:
            return
        if not link.credit and link.partial is None:
            self._loop.call_soon(self.on_drained)
        else:
            link.drain()
            self._connection.flush_soon()
        self._draining = True

    def on_drained(self) -> None:
        """Finish the receives that have waited long enough, and ask for the others."""
        self._draining = False
        waiters = self._waiters
        while waiters and (waiters[0].found or waiters[0].expired):
            _done(waiters.popleft())
        for waiter in [one for one in waiters if one.expired]:
            waiters.remove(waiter)
            _done(waiter)
        for future in self._drained:
            if not future.done():
                future.set_result(None)
        self._drained.clear()
        self._ask()

    def _on_waited(self, waiter: _Waiter) -> None:
        """End a receive whose time is over, once no message can be on its way to it."""
        if waiter.future.done():
            return
        if not self.prefetch and self.is_open:
            if waiter.expired:
                self._waiters.remove(waiter)
                _done(waiter)
                return
            waiter.expired = True
            self._drain()
            self._loop.call_later(_DRAIN_S, self._on_waited, waiter)
            return
        self._waiters.remove(waiter)
        error = self._error
        if error is not None:
            waiter.future.set_exception(error)
        elif not self.is_open:
            waiter.future.set_exception(
                ConnectFailed(
                    f"{self.name}: there is no connection to {self._connection.peer}; it is being opened again"
                )
            )
        else:
            _done(waiter)

    def _give_up(self, waiter: _Waiter) -> None:
        """Forget a cancelled receive. Its messages go back, and so does its credit."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        if waiter.found:
            if self.prefetch:
                self._cache.extendleft(reversed(waiter.found))
                self._serve()
            else:
                self._return(waiter.found)
        if not self.prefetch and self._link is not None and self._link.credit:
            self._drain()

    # -- settling ------------------------------------------------------------------------------------------------------

    def complete(
        self, messages: IncomingMessage | Iterable[IncomingMessage], *, transaction: "Transaction | None" = None
    ) -> "asyncio.Future[None]":
        """Complete a message or several: the broker deletes them. The result is done when that is durable.

        Completions of one flush interval travel together, and those of one call without an interval, too. Not a
        coroutine: the completion is on its way, also if the result is awaited later. The result raises `LockLost` if
        the lock of a message has expired; the other messages of the call are completed all the same.
        """
        if isinstance(messages, IncomingMessage):
            return self._settle(messages, COMPLETE, transaction)
        return self._complete_together(messages, transaction)

    def _complete_together(
        self, messages: Iterable[IncomingMessage], transaction: "Transaction | None"
    ) -> "asyncio.Future[None]":
        """Complete several messages with one result for all of them. Hot path."""
        self._connection.loop()
        if self._closed:
            self._check_usable()
        messages = self._several(messages)
        together = _Together(self._loop, len(messages))
        if not messages:
            together.set_result(None)
        link, settling, completing = self._link, self._settling, self._completing
        plain = transaction is None and self._tracing is None and not self._renewing
        plain = plain and self.mode is ReceiveMode.PEEK_LOCK
        unsettled = link.session.inbound.unsettled if plain and link is not None else {}
        for message in messages:
            delivery = message.delivery
            number = -1 if delivery is None else delivery.delivery_id
            if delivery is not None and number in unsettled and delivery.link is link and number not in settling:
                settling[number] = (delivery, COMPLETE, together)
                completing.append(delivery)
                continue
            try:
                together.follow(self._settle(message, COMPLETE, transaction))
            except ClientError as error:
                together.answered(error)
        if completing:
            self._complete_soon()
        return together

    def _several(self, messages: object) -> list[IncomingMessage]:
        """Return the messages of one call as a list. Raises `InvalidRequest` for anything else."""
        several: list[Any] = list(messages) if isinstance(messages, Iterable) else [messages]
        if {type(one) for one in several} - {IncomingMessage}:
            for one in several:
                self._check_message(one)
        return several

    def _check_message(self, message: object) -> None:
        if not isinstance(message, IncomingMessage):
            raise InvalidRequest(f"{self.name}: a {type(message).__name__} has no lock; pass a received message")

    def _complete_soon(self) -> None:
        """Send the open completions after the flush interval, or now if they are many."""
        if not self._flush_interval or len(self._completing) >= SETTLE_AT_ONCE:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._flush_interval, self._flush_completions)

    def abandon(self, message: IncomingMessage, *, transaction: "Transaction | None" = None) -> "asyncio.Future[None]":
        """Unlock a message and count a failed delivery. Raises as `complete` does."""
        return self._settle(message, ABANDON, transaction)

    def defer(self, message: IncomingMessage, *, transaction: "Transaction | None" = None) -> "asyncio.Future[None]":
        """Defer a message until `receive_deferred` asks for its sequence number. Raises as `complete` does."""
        return self._settle(message, DEFER, transaction)

    def dead_letter(
        self,
        message: IncomingMessage,
        reason: str | None = None,
        description: str | None = None,
        *,
        transaction: "Transaction | None" = None,
    ) -> "asyncio.Future[None]":
        """Move a message to the dead-letter sub-queue. Raises as `complete` does.

        Reason and description have 4,096 characters at most.
        """
        for name, text in (("reason", reason), ("description", description)):
            if text is not None and len(text) > _REASON_MAX:
                raise InvalidRequest(f"{name} has {len(text)} characters, but must have {_REASON_MAX} at most; cut it")
        return self._settle(message, dead_letter(reason, description), transaction)

    def release(self, message: IncomingMessage) -> None:
        """Requeue a message in its place without counting a delivery. There is no answer."""
        self._connection.loop()
        self._check_message(message)
        delivery = self._delivery_of(message)
        if self._holds(delivery):
            assert self._link is not None
            self._link.settle_many([delivery], RELEASE)
            self._connection.flush_soon()
        self._forget_lock(message)

    def _settle(
        self, message: IncomingMessage, outcome: DeliveryState, transaction: "Transaction | None"
    ) -> "asyncio.Future[None]":
        if self.mode is not ReceiveMode.PEEK_LOCK:
            raise InvalidRequest(
                f"{self.name}: the message was deleted when it was received; settle messages of a peek-lock receiver"
            )
        self._connection.loop()
        self._check_message(message)
        delivery = message.delivery
        if self._renewing:
            self._forget_lock(message)
        future: asyncio.Future[None] = self._loop.create_future()
        if delivery is None or not self._holds(delivery):
            token = message.lock_token
            if token is None:
                raise InvalidRequest(f"{self.name}: a peeked message has no lock and can not be settled; receive it")
            if delivery is not None and delivery.link is self._link and self.is_open:
                raise InvalidRequest(f"{self.name}: the message was settled already")
            if transaction is not None:
                raise InvalidRequest(f"{self.name}: the message's link was lost; receive it again for a transaction")
            self._check_usable()
            if self._tracing is not None:
                self._tracing.settling(_operation(outcome), self.entity, message, future)
            self._begin_by_token({token: future}, outcome, lost=False)
            return future
        if delivery.delivery_id in self._settling:
            raise InvalidRequest(f"{self.name}: the message is being settled already")
        if transaction is not None:
            outcome = transaction.state_for(self._connection, self.name, outcome)
        if self._tracing is not None:
            self._tracing.settling(_operation(outcome), self.entity, message, future)
        self._settling[delivery.delivery_id] = (delivery, outcome, future)
        if outcome is COMPLETE and self._flush_interval:
            self._completing.append(delivery)
            self._complete_soon()
            return future
        assert self._link is not None
        self._connection.statistics.dispositions_sent += 1
        self._link.settle_many([delivery], outcome, settled=False)
        self._connection.flush_soon()
        return future

    def holds(self, message: IncomingMessage) -> bool:
        """Tell whether a message is under lock here, with no settlement under way."""
        delivery = message.delivery
        return delivery is not None and self._holds(delivery) and delivery.delivery_id not in self._settling

    def take_back(self, messages: Sequence[IncomingMessage]) -> None:
        """Put messages that were received last, and not settled, back into the cache for the next receives."""
        self._connection.loop()
        if not self._closing:
            self._cache.extendleft(message.delivery for message in reversed(messages) if message.delivery is not None)
            self._serve()

    def stop_waiting(self) -> None:
        """End the receives that wait, as if their time were over."""
        for waiter in list(self._waiters):
            self._on_waited(waiter)

    def _holds(self, delivery: Delivery | None) -> bool:
        link = self._link
        return (
            delivery is not None
            and link is not None
            and delivery.link is link
            and delivery.delivery_id in link.session.inbound.unsettled
        )

    def _delivery_of(self, message: IncomingMessage) -> Delivery:
        if message.delivery is None:
            raise InvalidRequest(f"{self.name}: a peeked or deferred message can not be released")
        return message.delivery

    def flush(self) -> None:
        """Send the completions of the open batch now."""
        if self._timer is not None:
            self._timer.cancel()
        self._flush_completions()

    def _flush_completions(self) -> None:
        self._timer = None
        completing, self._completing = self._completing, []
        link = self._link
        if link is None or not completing:
            return
        completing.sort(key=_delivery_id)
        self._connection.statistics.dispositions_sent += 1
        link.settle_many(completing, COMPLETE, settled=False)
        self._connection.flush_soon()

    def on_disposed(self, event: Disposed) -> None:
        """Finish settlements that the broker has answered. Hot path."""
        settling = self._settling
        state: object = event.state
        if isinstance(state, TransactionalState):
            state = state.outcome
        error: ClientError | None = None
        if isinstance(state, Rejected) and state.error is not None:
            error = error_from(self.name, state.error, LockLost)
        else:
            self._connection.statistics.settled += len(event.delivery_ids)
        for delivery_id in event.delivery_ids:
            found = settling.pop(delivery_id, None)
            if found is not None:
                _finish(found[2], error)
        if not event.settled and self._link is not None:
            held: list[Delivery] = [one for one in event.contexts if isinstance(one, Delivery)]
            self._link.settle_many(held, event.state)

    def _begin_by_token(self, left: "_ByToken", outcome: DeliveryState, *, lost: bool) -> None:
        """Settle messages by their tokens: those of a lost link, and deferred ones.

        ``lost``: the settlement was sent on the lost link, and may have been carried out.
        """
        task = self._connection.start(self._settle_by_token(left, outcome, lost=lost))
        self._by_token.add(task)

        def ended(task: "asyncio.Task[None]") -> None:
            self._by_token.discard(task)
            for future in left.values():  # the client was closed
                _finish(future, Closed(f"the {self.name} was closed; the settlement may be carried out (unknown)"))

        task.add_done_callback(ended)

    async def _settle_by_token(self, left: "_ByToken", outcome: DeliveryState, *, lost: bool) -> None:
        """Settle messages, and take each from ``left`` when its result is known."""
        reason = description = None
        status = "completed" if outcome is COMPLETE else "abandoned"
        if isinstance(outcome, Modified) and outcome.undeliverable_here:
            status = "defered"
        elif isinstance(outcome, Rejected):
            status = "suspended"
        if isinstance(outcome, Rejected) and outcome.error is not None and outcome.error.info:
            reason = outcome.error.info.get("DeadLetterReason")
            description = outcome.error.info.get("DeadLetterErrorDescription")
        wanted = list(left)
        arguments = settle_arguments(
            wanted,
            status,
            reason=None if reason is None else str(reason),
            description=None if description is None else str(description),
            session=self._session_of_requests,
        )
        error: ClientError | None = None
        try:
            await self._request(SETTLE, arguments)
        except ClientError as found:
            error = found
            if lost and isinstance(found, LockLost):
                error = LockLost(
                    f"{found}; the connection broke while the message was settled, so it may be settled (unknown)",
                    found.condition,
                )
        if error is not None and len(wanted) > 1:
            # One expired lock fails the whole request; the others are settled alone.
            for token in wanted:
                alone = {token: left[token]}
                await self._settle_by_token(alone, outcome, lost=lost)
                del left[token]
            return
        for token in wanted:
            if error is None:
                self._connection.statistics.settled += 1
            _finish(left.pop(token), error)

    # -- other operations ----------------------------------------------------------------------------------------------

    async def renew_lock(self, message: IncomingMessage) -> int:
        """Renew a message's lock and return its new end, as Unix time in milliseconds. Raises `LockLost`."""
        self._check_message(message)
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
        whole("count", count, 1, _RECEIVE_MAX)
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
        """Perform an operation of the entity's management node, with retries; also while the receiver closes."""
        self._connection.loop()
        if self._closed or self._error is not None:
            self._check_usable()
        connection = self._connection
        link_name = None if self._link is None else self._link.name
        return await repeat(
            connection,
            f"{operation} on '{self.entity}'",
            lambda: connection.request(self.entity, operation, body, link_name=link_name),
            connection.settings.timeout,
            repeatable,
        )

    # -- locks ---------------------------------------------------------------------------------------------------------

    def _keep_locked(self, message: IncomingMessage) -> None:
        """Renew the lock of a message that was handed out, until it is settled or ``auto_renew`` seconds are over."""
        token = message.lock_token
        try:
            until_ms = message.locked_until_ms
        except DecodeError:
            return  # The program sees the malformed message, and the others of the call.
        if token is not None and until_ms is not None:
            now = self._connection.wall()
            self._renewing[token] = (now + (until_ms / 1000 - now) * _RENEW_BEFORE, now + self._auto_renew)
            self._watch_locks()

    def _forget_lock(self, message: IncomingMessage) -> None:
        token = message.lock_token
        if token is not None:
            self._renewing.pop(token, None)

    def _watch_locks(self) -> None:
        if self._renewal is None and self._renewing:
            due = min(at for at, _ in self._renewing.values()) - self._connection.wall()
            self._renewal = self._loop.call_later(max(0.05, due), self._renew_due)

    def _renew_due(self) -> None:
        self._renewal = None
        now = self._connection.wall()
        for token in [token for token, (_, end) in self._renewing.items() if now >= end]:
            del self._renewing[token]
        # Locks of one receive end together: one request renews all that are due soon.
        due = [token for token, (at, _) in self._renewing.items() if at <= now + 0.5]
        if due:
            self._connection.start(self._renew_quietly(due))
        else:
            self._watch_locks()

    async def _renew_quietly(self, tokens: list[UUID]) -> None:
        """Renew locks; a lost one is told by the settlement of its message."""
        try:
            ends: list[int | None] = list(await self._renew(tokens))
        except LockLost:
            ends = []
            for token in tokens:
                try:
                    ends += await self._renew([token])
                except ClientError:
                    ends.append(None)
        except ClientError:
            ends = [None] * len(tokens)
        now = self._connection.wall()
        for token, until_ms in zip(tokens, ends, strict=False):
            kept = self._renewing.get(token)
            if kept is None:
                continue
            if until_ms is None:
                del self._renewing[token]
            else:
                self._renewing[token] = (now + (until_ms / 1000 - now) * _RENEW_BEFORE, kept[1])
        self._watch_locks()

    # -- life ----------------------------------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        self._check_not_closed()
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
        self._draining = False
        self._ask()

    def _on_lost(self, error: ClientError) -> None:
        """Settle by token what was being settled, and attach again if a call waits for messages.

        Cached messages stay: their locks outlive the link.
        """
        link, self._link = self._link, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for waiter in [one for one in self._waiters if one.found]:
            # It has waited for more of the lost link, and its locks run.
            self._waiters.remove(waiter)
            _done(waiter)
        unsent = {delivery.delivery_id for delivery in self._completing}
        self._completing = []
        settling, self._settling = self._settling, {}
        self._draining = False
        for future in self._drained:
            if not future.done():
                future.set_result(None)
        self._drained.clear()
        if link is not None and settling and not self._closed:
            self._settle_again(list(settling.values()), unsent, error)
        self._after_loss(error)

    def _settle_again(self, settling: list[_Settling], unsent: set[int], error: ClientError) -> None:
        """Settle by token what a lost link has not answered: completions together, others alone."""
        if not self._connection.settings.retry.allows(1):
            self._fail_settling(settling, unsent, type(error), str(error), error.condition)
            return
        groups: dict[bool, _ByToken] = {}
        for delivery, outcome, future in settling:
            if future.done():
                continue
            if isinstance(outcome, TransactionalState):
                _finish(future, LinkLost(f"{self.name}: the link was lost, and with it the transaction"))
                continue
            token = IncomingMessage(b"", delivery).lock_token
            if token is None:
                _finish(future, LinkLost(f"{self.name}: the link was lost, and the message has no lock token"))
                continue
            lost = delivery.delivery_id not in unsent
            if outcome is COMPLETE:
                groups.setdefault(lost, {})[token] = future
            else:
                self._begin_by_token({token: future}, outcome, lost=lost)
        for lost, wanted in groups.items():
            self._begin_by_token(wanted, COMPLETE, lost=lost)

    def _fail_settling(
        self, settling: list[_Settling], unsent: set[int], kind: type[ClientError], why: str, condition: str | None
    ) -> None:
        """Fail settlements without an answer, and say of each whether it was sent."""
        for delivery, _, future in settling:
            told = "was not sent" if delivery.delivery_id in unsent else "may have been carried out (unknown)"
            _finish(future, kind(f"{why}; the settlement {told}", condition))

    def _after_loss(self, error: ClientError) -> None:
        if self._closed:
            return
        if not retriable(error):
            self._fail_waiters(error)
        elif self._waiters:
            if self._connection.settings.retry.allows(1):
                self._reopen()
            else:
                self._fail_waiters(error)

    def _on_open_failed(self, error: ClientError) -> None:
        self._fail_waiters(error)

    def _fail_waiters(self, error: ClientError) -> None:
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            if waiter.found:
                _done(waiter)
            elif not waiter.future.done():
                waiter.future.set_exception(error)

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
            self._give_up_all(over)
            self.flush()
            await self._settled()
            self._release_cache()
        finally:
            if not self._closed:  # by another call, meanwhile
                self._closed = True
                self._cache.clear()
                self._renewing.clear()
                if self._renewal is not None:
                    self._renewal.cancel()
                settling, self._settling = self._settling, {}
                for _, _, future in settling.values():
                    _finish(future, over)
                for task in self._by_token:
                    task.cancel()
                self._end()
                self._link = None

    def _give_up_all(self, error: ClientError) -> None:
        """Fail the receives that wait; their messages go back."""
        found: list[Delivery] = []
        if self.mode is ReceiveMode.PEEK_LOCK:
            for waiter in self._waiters:
                found += waiter.found
                waiter.found = []
        self._fail_waiters(error)
        if found:
            self._return(found)

    async def _settled(self) -> None:
        """Wait until no message is on its way, and until all settlements have their results."""
        link = self._link
        if self.is_open and link is not None and (link.credit or link.partial is not None):
            # Messages on their way would stay locked.
            drained = self._loop.create_future()
            self._drained.append(drained)
            self._drain()
            await asyncio.wait([drained], timeout=_DRAIN_S)
        waiting: list[asyncio.Future[None]] = [future for _, _, future in self._settling.values()]
        deadline = self._loop.time() + self._connection.settings.timeout
        while waiting and (left_s := deadline - self._loop.time()) > 0:
            await asyncio.wait(waiting, timeout=left_s)
            # A loss of the link has settlements go on by their tokens.
            waiting = [one for one in [*waiting, *self._by_token] if not one.done()]
        if self._by_token and (left_s := deadline - self._loop.time()) > 0:
            await asyncio.wait(set(self._by_token), timeout=left_s)

    def _release_cache(self) -> None:
        """Requeue cached messages. Messages of a lost link can only wait for the end of their locks."""
        link = self._link
        if self.is_open and link is not None and self.mode is ReceiveMode.PEEK_LOCK:
            link.settle_many([delivery for delivery in self._cache if delivery.link is link], RELEASE)


class SessionReceiver(Receiver):
    """A receiver that holds one session, made by `Client.session_receiver`; `open` waits for the session.

    The loss of the link ends the lock of the session. Every call raises `LockLost` then.
    """

    def __init__(
        self,
        connection: Connection,
        entity: str,
        session_id: str | NextSession,
        *,
        mode: ReceiveMode,
        prefetch: int,
        auto_renew: float,
        flush_interval: float,
        max_wait: float,
    ) -> None:
        wanted = "the next session" if isinstance(session_id, NextSession) else f"session '{session_id}'"
        super().__init__(
            connection,
            entity,
            mode=mode,
            prefetch=prefetch,
            auto_renew=0.0,
            flush_interval=flush_interval,
            name=f"receiver of {wanted} of '{entity}'",
        )
        self._wanted = session_id
        self._max_wait = max_wait
        self._wait_until = 0.0
        self._keep_session_s = auto_renew
        self._keeping: asyncio.TimerHandle | None = None
        self._keep_until = 0.0
        self.session_id: str | None = None if isinstance(session_id, NextSession) else session_id
        """The session that the receiver holds; None before the next one is found."""
        self.locked_until_ms: int | None = None
        """When the lock of the session ends, as Unix time in milliseconds."""

    async def renew_session_lock(self) -> int:
        """Renew the lock of the session and return its new end, as Unix time in milliseconds. Raises `LockLost`."""
        reply = await self._request("com.microsoft:renew-session-lock", self._named())
        self.locked_until_ms = integer(reply, "expiration")
        return self.locked_until_ms

    async def get_state(self) -> bytes | None:
        """Return the state of the session, None if it has none. Raises `LockLost`."""
        state = (await self._request("com.microsoft:get-session-state", self._named())).get("session-state")
        return state if isinstance(state, bytes) else None

    async def set_state(self, state: bytes | None) -> None:
        """Set the state of the session; None removes it. Raises `LockLost`."""
        await self._request("com.microsoft:set-session-state", self._named() | {"session-state": state})

    def _named(self) -> dict[str, object]:
        if self.session_id is None:
            raise InvalidRequest(f"{self.name}: there is no session yet; await open()")
        return {"session-id": self.session_id}

    @property
    def _session_of_requests(self) -> str | None:
        return self.session_id

    def _open_timeout(self) -> float:
        return self._max_wait + self._connection.settings.timeout

    async def _open(self) -> None:
        """Wait for the session. The broker has the shorter time limit: then no session stays locked."""
        deadline = self._wait_until = self._loop.time() + self._max_wait

        def worth_repeating(error: BaseException) -> bool:
            if isinstance(error, TimedOut | SessionHeld) and deadline - self._loop.time() < 1.0:
                return False
            return retriable(error)

        await repeat(self._connection, f"opening the {self.name}", self._attempt, self._open_timeout(), worth_repeating)

    def _filter(self) -> dict[object, object] | None:
        return {_SESSION_FILTER: None if isinstance(self._wanted, NextSession) else self._wanted}

    def _properties(self) -> dict[object, object] | None:
        if not isinstance(self._wanted, NextSession):
            return None
        left_s = max(0.0, self._wait_until - self._loop.time())
        return {_SESSION_WAIT: UInt(int(min(left_s, SESSION_WAIT_MAX_S) * 1000))}

    def _on_open(self) -> None:
        link = self._link
        assert link is not None
        source = link.source
        found = source.filter.get(_SESSION_FILTER) if isinstance(source, Source) and source.filter else None
        if isinstance(found, str):
            self.session_id = str(found)
            self.name = f"receiver of session '{found}' of '{self.entity}'"
        ticks = (link.properties or {}).get(_LOCKED_UNTIL)
        if isinstance(ticks, int):
            self.locked_until_ms = (ticks - _TICKS_OF_1970) // 10_000
        self._keep_until = self._connection.wall() + self._keep_session_s
        self._watch_session()
        super()._on_open()

    def _watch_session(self) -> None:
        if not self._keep_session_s or self.locked_until_ms is None or self._closed or self._error is not None:
            return
        now = self._connection.wall()
        if now < self._keep_until:
            due = max(0.05, (self.locked_until_ms / 1000 - now) * _RENEW_BEFORE)
            self._keeping = self._loop.call_later(due, self._keep_session)

    def _keep_session(self) -> None:
        self._connection.start(self._keep())

    async def _keep(self) -> None:
        try:
            await self.renew_session_lock()
        except ClientError:
            return  # The broker detaches the link of a lost session.
        self._watch_session()

    def _settle_again(self, settling: list[_Settling], unsent: set[int], error: ClientError) -> None:
        """Fail settlements without an answer: their locks have ended with the link."""
        why = f"{self.name}: the link was lost and the session's lock with it"
        self._fail_settling(settling, unsent, LockLost, why, "com.microsoft:session-lock-lost")

    def _after_loss(self, error: ClientError) -> None:
        self._error = LockLost(
            f"the {self.name} has lost its lock: {error}; open a new receiver", "com.microsoft:session-lock-lost"
        )
        self._cache.clear()
        self._fail_waiters(self._error)

    async def close(self) -> None:
        """Detach, which ends the lock of the session. Otherwise as `Receiver.close`."""
        if self._keeping is not None:
            self._keeping.cancel()
        await super().close()


def _finish(future: "asyncio.Future[None]", error: ClientError | None) -> None:
    """Give one settlement its result. Hot path."""
    if type(future) is _Together:
        future.answered(error)
    elif not future.done():
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


def _done(waiter: _Waiter) -> None:
    if not waiter.future.done():
        waiter.future.set_result(None)


def _operation(outcome: DeliveryState) -> str:
    """Return the name of a settlement, as spans have it."""
    if isinstance(outcome, TransactionalState):
        outcome = outcome.outcome or COMPLETE
    if isinstance(outcome, Rejected):
        return "dead-letter"
    if isinstance(outcome, Modified):
        return "defer" if outcome.undeliverable_here else "abandon"
    return "complete"


def _delivery_id(delivery: Delivery) -> int:
    return delivery.delivery_id


def _not_done(error: BaseException) -> bool:
    return isinstance(error, ConnectFailed)
