"""Settlements of one receiver's messages: gathered into batches, answered by the broker, repeated after a loss.

```text
 complete() ─▶ open batch ─▶ one disposition per range ─▶ without an answer ─▶ result
               20 ms, or 1,000                             link lost: by lock token, at the management node
 others ────────────────────▶ at once
```
"""

import asyncio
from collections.abc import Iterable
from functools import partial
from itertools import takewhile
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from partibus.amqp import Delivery, DeliveryState, Disposed, Rejected, TransactionalState
from partibus.amqp import Receiver as Link
from partibus.client.aio.link import Attachment
from partibus.client.aio.lock_renewal import LockRenewal
from partibus.client.aio.settings import retriable
from partibus.client.aio.settlement_results import (
    ByToken,
    Result,
    Settle,
    Together,
    TokenSettlements,
    finish,
    operation_of,
)
from partibus.client.errors import Busy, ClientError, InvalidRequest, LinkLost, LockLost, error_from, extended
from partibus.client.messages import IncomingMessage
from partibus.client.outcomes import COMPLETE, RELEASE, ReceiveMode

if TYPE_CHECKING:
    from partibus.client.aio.transaction import Transaction

_DELIVERY_ID: Final = attrgetter("delivery_id")
SETTLE_AT_ONCE: Final = 1_000
"""Completions that leave together without waiting for the flush interval."""

_EXPIRY_PAUSE_S: Final = 0.05
"""The least time between two looks for settlements whose time is over."""

Settling = tuple[Delivery, DeliveryState, Result, float]
"""A settlement: the message, its outcome, the caller's result, and its time limit by the loop's clock."""


class Settlements:
    """The settlements of one receiver that have no answer yet."""

    def __init__(
        self,
        owner: Attachment,
        mode: ReceiveMode,
        flush_interval: float,
        locks: LockRenewal,
        by_token: Settle,
    ) -> None:
        self._owner = owner
        self._mode = mode
        self._flush_interval = flush_interval
        self._locks = locks
        self._by_token = TokenSettlements(owner, by_token)
        self._connection = owner.connection
        self._tracing = owner.connection.settings.tracing
        self._loop = owner.connection.loop()
        self._link: Link | None = None
        """The link while it is attached."""
        self._settling: dict[int, Settling] = {}
        """Settlements without an answer, by delivery id, in the order of the calls, which is that of their limits."""
        self._completing: list[Delivery] = []
        """Completions of the open batch."""
        self._timer: asyncio.TimerHandle | None = None
        self._limit_s = owner.connection.settings.timeout
        self._expiry: asyncio.TimerHandle | None = None
        """The timer for the oldest settlement at the time when it was set: one timer, however many settlements."""

    # -- calls ---------------------------------------------------------------------------------------------------------

    def settle(self, message: IncomingMessage, outcome: DeliveryState, transaction: "Transaction | None") -> Result:
        """Settle a message on its link, or by its token if that link was lost. Raises `InvalidRequest`."""
        if self._mode is not ReceiveMode.PEEK_LOCK:
            raise InvalidRequest(
                f"{self._owner.name}: the message was deleted when it was received; "
                "settle messages of a peek-lock receiver"
            )
        self._connection.loop()
        self.check(message)
        delivery = message.delivery
        if self._locks.kept and transaction is None:
            self._locks.forget(message)
        future: Result = self._loop.create_future()
        if delivery is None or not self._is_locked(delivery):
            self._settle_without_link(message, outcome, transaction, future)
            return future
        if delivery.delivery_id in self._settling:
            raise self._settled_already()
        if transaction is not None:
            outcome = transaction.state_for(self._connection, self._owner.name, outcome)
            transaction.tell_at_end(partial(self._discharged, message))
        if self._tracing is not None:
            self._tracing.settling(operation_of(outcome), self._owner.entity, message, future)
        message.settled = True
        self._settling[delivery.delivery_id] = (delivery, outcome, future, self._limit())
        if outcome is COMPLETE and self._flush_interval:
            self._completing.append(delivery)
            self._complete_soon()
            return future
        assert self._link is not None
        self._connection.statistics.dispositions_sent += 1
        self._link.settle_many([delivery], outcome, settled=False)
        self._connection.flush_soon()
        return future

    def _discharged(self, message: IncomingMessage, is_committed: bool) -> None:
        """Note the end of a transaction: without its commit the message stays locked, and may be settled again."""
        if is_committed:
            self._locks.forget(message)
        else:
            message.settled = False

    def _settle_without_link(
        self, message: IncomingMessage, outcome: DeliveryState, transaction: "Transaction | None", future: Result
    ) -> None:
        """Begin to settle a message by its token: a deferred one, one of a lost link or of a roll-back."""
        delivery, token, name = message.delivery, message.lock_token, self._owner.name
        if token is None:
            raise InvalidRequest(f"{name}: a peeked message has no lock and can not be settled; receive it")
        if delivery is not None and delivery.link is self._link and message.settled:
            raise InvalidRequest(f"{name}: the message was settled already")
        if transaction is not None:
            raise InvalidRequest(
                f"{name}: the message's link was lost, or its transaction rolled back; "
                "receive it again for a transaction"
            )
        self._owner.check_usable()
        if self._tracing is not None:
            self._tracing.settling(operation_of(outcome), self._owner.entity, message, future)
        message.settled = True
        self._by_token.begin({token: (future, self._limit())}, outcome, lost=False)

    def complete_together(self, messages: Iterable[IncomingMessage], transaction: "Transaction | None") -> Result:
        """Complete several messages with one result for all of them. Hot path."""
        self._connection.loop()
        if self._owner.is_closed:
            self._owner.check_usable()
        messages = self._several(messages)
        together = Together(self._loop, len(messages))
        if not messages:
            together.set_result(None)
        link, settling, completing = self._link, self._settling, self._completing
        plain = transaction is None and self._tracing is None and not self._locks.kept
        plain = plain and self._mode is ReceiveMode.PEEK_LOCK
        unsettled = link.inbound.unsettled if plain and link is not None else {}
        limit = self._limit()
        for message in messages:
            delivery = message.delivery
            number = -1 if delivery is None else delivery.delivery_id
            if delivery is not None and number in unsettled and delivery.link is link and number not in settling:
                message.settled = True
                settling[number] = (delivery, COMPLETE, together, limit)
                completing.append(delivery)
                continue
            try:
                together.follow(self.settle(message, COMPLETE, transaction))
            except ClientError as error:
                together.answered(error)
        if completing:
            self._complete_soon()
        return together

    def release(self, message: IncomingMessage) -> None:
        """Requeue a message in its place. Raises `InvalidRequest`."""
        self._connection.loop()
        self.check(message)
        delivery = message.delivery
        if delivery is None:
            raise InvalidRequest(f"{self._owner.name}: a peeked or deferred message can not be released")
        is_locked = self._is_locked(delivery)
        if is_locked and delivery.delivery_id in self._settling:
            raise self._settled_already()
        message.settled = True
        if is_locked:
            assert self._link is not None
            self._link.settle_many([delivery], RELEASE)
            self._connection.flush_soon()
        self._locks.forget(message)

    def _settled_already(self) -> InvalidRequest:
        return InvalidRequest(f"{self._owner.name}: the message is being settled already")

    def holds(self, message: IncomingMessage) -> bool:
        """Tell whether a message is under lock here, with no settlement under way."""
        delivery = message.delivery
        return delivery is not None and self._is_locked(delivery) and delivery.delivery_id not in self._settling

    def flush(self) -> None:
        """Send the completions of the open batch now."""
        if self._timer is not None:
            self._timer.cancel()
        self._send_completions()

    def check(self, message: object) -> None:
        """Raise `InvalidRequest` for what is no message."""
        if not isinstance(message, IncomingMessage):
            raise InvalidRequest(f"{self._owner.name}: a {type(message).__name__} has no lock; pass a received message")

    def _several(self, messages: object) -> list[IncomingMessage]:
        """Return the messages of one call as a list. Raises `InvalidRequest` for anything else."""
        several: list[Any] = list(messages) if isinstance(messages, Iterable) else [messages]
        if {type(one) for one in several} - {IncomingMessage}:
            for one in several:
                self.check(one)
        return several

    def _is_locked(self, delivery: Delivery) -> bool:
        """Tell whether the attached link has a delivery unsettled."""
        link = self._link
        return link is not None and delivery.link is link and delivery.delivery_id in link.inbound.unsettled

    # -- the open batch ------------------------------------------------------------------------------------------------

    def _complete_soon(self) -> None:
        """Send the open completions after the flush interval, or now if they are many."""
        if not self._flush_interval or len(self._completing) >= SETTLE_AT_ONCE:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._flush_interval, self._send_completions)

    def _send_completions(self) -> None:
        self._timer = None
        completing, self._completing = self._completing, []
        link = self._link
        if link is None or not completing:
            return
        completing.sort(key=_DELIVERY_ID)
        self._connection.statistics.dispositions_sent += 1
        link.settle_many(completing, COMPLETE, settled=False)
        self._connection.flush_soon()

    # -- answers -------------------------------------------------------------------------------------------------------

    def on_disposed(self, event: Disposed) -> None:
        """Finish settlements that the broker has answered. Hot path."""
        settling = self._settling
        state: object = event.state
        if isinstance(state, TransactionalState):
            state = state.outcome
        error: ClientError | None = None
        if isinstance(state, Rejected) and state.error is not None:
            error = error_from(self._owner.name, state.error, LockLost)
            if self._worth_repeating(error, event.state):
                self._repeat(event, error)
                return
        else:
            self._connection.statistics.settled += len(event.delivery_ids)
        together: Together | None = None
        count = 0
        for delivery_id in event.delivery_ids:
            found = settling.pop(delivery_id, None)
            if found is None:
                continue
            future = found[2]
            if future is together:
                count += 1
                continue
            if together is not None:
                together.answered(error, count)
            together, count = (future, 1) if type(future) is Together else (None, 0)
            if together is None:
                finish(future, error)
        if together is not None:
            together.answered(error, count)
        self._end_deliveries(event)

    def _end_deliveries(self, event: Disposed) -> None:
        """Settle the deliveries of an answer on this side, too."""
        if not event.settled and self._link is not None:
            held: list[Delivery] = [one for one in event.contexts if isinstance(one, Delivery)]
            self._link.settle_many(held, event.state)

    def _worth_repeating(self, error: ClientError, state: object) -> bool:
        """Tell whether a refused settlement may succeed at the next attempt, outside of a transaction."""
        return (
            retriable(error) and not isinstance(state, TransactionalState) and self._connection.settings.retry.allows(1)
        )

    def _repeat(self, event: Disposed, error: ClientError) -> None:
        """Repeat refused settlements by token after a delay: the link has forgotten their deliveries."""
        self._connection.statistics.retries += 1
        found = [self._settling.pop(number) for number in event.delivery_ids if number in self._settling]
        # A busy broker has done nothing. After other errors the settlement may be carried out.
        unsent = {delivery.delivery_id for delivery, *_ in found} if isinstance(error, Busy) else set[int]()
        self.settle_again(found, unsent, error, self._connection.settings.retry.delay(0, error))
        self._end_deliveries(event)

    # -- losses --------------------------------------------------------------------------------------------------------

    def on_open(self, link: Link) -> None:
        """Settle messages of an attached link on it."""
        self._link = link

    def on_lost(self) -> tuple[list[Settling], set[int]]:
        """Go on without a link. Return the settlements without an answer, and the delivery ids of unsent ones."""
        self._link = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        unsent = {delivery.delivery_id for delivery in self._completing}
        self._completing = []
        settling, self._settling = self._settling, {}
        return list(settling.values()), unsent

    def settle_again(
        self, settling: list[Settling], unsent: set[int], error: ClientError, delay_s: float = 0.0
    ) -> None:
        """Settle by token what the link has not answered, or not carried out: completions together, others alone.

        Each settlement keeps the time limit of its call.
        """
        if not self._connection.settings.retry.allows(1):
            self.fail(settling, unsent, error)
            return
        begins = self._loop.time() + delay_s
        groups: dict[bool, ByToken] = {}
        for one in settling:
            delivery, outcome, future, limit = one
            if future.done():
                continue
            if limit <= begins:
                self.fail([one], unsent, error)
                continue
            if isinstance(outcome, TransactionalState):
                finish(future, LinkLost(f"{self._owner.name}: the link was lost, and with it the transaction"))
                continue
            token = IncomingMessage(b"", delivery).lock_token
            if token is None:
                finish(future, LinkLost(f"{self._owner.name}: the link was lost, and the message has no lock token"))
                continue
            lost = delivery.delivery_id not in unsent
            if outcome is COMPLETE:
                groups.setdefault(lost, {})[token] = (future, limit)
            else:
                self._by_token.begin({token: (future, limit)}, outcome, lost=lost, delay_s=delay_s)
        for lost, wanted in groups.items():
            self._by_token.begin(wanted, COMPLETE, lost=lost, delay_s=delay_s)

    def fail(self, settling: list[Settling], unsent: set[int], error: ClientError) -> None:
        """Fail settlements without a result, and say of each whether it may have been carried out."""
        for delivery, _, future, _ in settling:
            told = "was not carried out" if delivery.delivery_id in unsent else "may have been carried out (unknown)"
            finish(future, extended(error, f"the settlement {told}"))

    # -- time limits ---------------------------------------------------------------------------------------------------

    def _limit(self) -> float:
        """Return the time limit of a settlement that begins now, and watch it. Hot path."""
        limit = self._loop.time() + self._limit_s
        if self._expiry is None:
            self._expiry = self._loop.call_at(limit, self._expire)
        return limit

    def _expire(self) -> None:
        """Fail settlements whose time is over, and watch the oldest of the others."""
        self._expiry = None
        now = self._loop.time() + 0.001  # A timer may come a little early.
        over = list(takewhile(lambda one: one[1][3] <= now, self._settling.items()))
        for number, (_, _, future, _) in over:
            del self._settling[number]
            finish(future, self._by_token.timed_out())
        oldest = next(iter(self._settling.values()), None)
        earliest = min(inf if oldest is None else oldest[3], self._by_token.expire(now))
        if earliest < inf:
            # In an outage there may be thousands, each with a limit of its own.
            self._expiry = self._loop.call_at(max(earliest, now + _EXPIRY_PAUSE_S), self._expire)

    # -- the end -------------------------------------------------------------------------------------------------------

    async def settled(self) -> None:
        """Wait until all settlements have their results, for the client's time limit."""
        tasks = self._by_token.tasks
        waiting: list[Result] = [future for _, _, future, _ in self._settling.values()]
        deadline = self._loop.time() + self._connection.settings.timeout
        while waiting and (left_s := deadline - self._loop.time()) > 0:
            await asyncio.wait(waiting, timeout=left_s)
            # After a loss of the link, settlements go on by their tokens.
            waiting = [one for one in [*waiting, *tasks] if not one.done()]
        if tasks and (left_s := deadline - self._loop.time()) > 0:
            await asyncio.wait(set(tasks), timeout=left_s)

    def end(self, error: ClientError) -> None:
        """Fail what has no result."""
        if self._expiry is not None:
            self._expiry.cancel()
        settling, self._settling = self._settling, {}
        for _, _, future, _ in settling.values():
            finish(future, error)
        for task in self._by_token.tasks:
            task.cancel()
