"""Batches on their way to the broker: queued, in flight, refused, sent again."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from partibus.amqp import Accepted, Disposed, Rejected, TransactionalState
from partibus.amqp import Sender as Link
from partibus.amqp.sections import BATCH_FORMAT
from partibus.client.aio.link import Attachment
from partibus.client.aio.send_results import SendResults
from partibus.client.aio.sending import ENVELOPE_BYTES, REFUSED, SECTION_BYTES, UNKNOWN, Batch, Entry, batch_payload
from partibus.client.aio.settings import retriable
from partibus.client.errors import (
    AccessDenied,
    ClientError,
    EntityDisabled,
    LinkLost,
    MessageTooLarge,
    NotFound,
    TimedOut,
    error_from,
    extended,
)

_BATCH_SIZE: Final = "com.microsoft:max-message-batch-size"
_WHOLE_ERRORS: Final = (AccessDenied, NotFound, EntityDisabled, LinkLost, TimedOut)
"""Errors of no single message of a batch: those of the entity or the link, and a time-out, after which all may be
stored.
"""
_NO_LIMIT: Final = 1 << 62


class Transfers:
    """The batches of one sender that are queued or have no answer."""

    def __init__(self, owner: Attachment, results: SendResults, reopen: Callable[[], None]) -> None:
        """Call ``reopen`` when batches are queued and no link is attached."""
        self.queue: deque[Batch] = deque()
        self.batch_bytes_max = _NO_LIMIT
        self.message_bytes_max = _NO_LIMIT
        self._owner = owner
        self._results = results
        self._reopen = reopen
        self._connection = owner.connection
        self._loop = owner.connection.loop()
        self._link: Link | None = None
        """The link while it is attached."""
        self._again: list[Batch] = []
        """Batches that were refused for now, until `_resume`."""
        self._resuming: asyncio.TimerHandle | None = None
        self._in_flight: dict[Batch, None] = {}
        """Batches without an answer, in the order in which they left."""
        self._tag = 0

    def too_large(self, size: int, most: int) -> MessageTooLarge:
        """Return the error for a message or batch that exceeds a limit of the broker."""
        return MessageTooLarge(
            f"{self._results.name}: the message or batch has {size} bytes, the broker takes {most}; "
            "send a smaller body, or store it elsewhere and send a reference",
            "amqp:link:message-size-exceeded",
        )

    # -- the way out ---------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send queued batches for as long as there is credit. Hot path."""
        queue, link = self.queue, self._link
        if not queue or self._resuming is not None:
            return
        if link is None:
            while queue and all(sending.done() for sending in queue[0].sendings):
                queue.popleft()
            if queue:
                self._reopen()
            return
        singles: list[tuple[bytes, bytes, Batch]] = []
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
                queue.popleft()
                continue
            if not self._send_singles(link, singles):
                break
            if not _send(link, tag, batch):
                break
            queue.popleft()
            self._on_sent([batch])
        self._send_singles(link, singles)
        self._connection.flush_soon()

    def _send_singles(self, link: Link, singles: list[tuple[bytes, bytes, Batch]]) -> bool:
        """Send plain single messages and empty the list; return whether the link took all.

        Messages that it did not take return to the head of the queue.
        """
        taken = link.send_many(singles)
        self._on_sent([batch for _, _, batch in singles[:taken]])
        self.queue.extendleft([batch for _, _, batch in reversed(singles[taken:])])
        is_complete = taken == len(singles)
        singles.clear()
        return is_complete

    def _on_sent(self, batches: list[Batch]) -> None:
        statistics = self._connection.statistics
        statistics.transfers_sent += len(batches)
        for batch in batches:
            batch.attempts += 1
            self._in_flight[batch] = None
            sendings = batch.sendings
            statistics.messages_sent += len(sendings) - 1 + sendings[0].count
            for sending in sendings:
                sending.outcome = UNKNOWN

    def _fits(self, sendings: list[Entry]) -> bool:
        """Tell whether the head of the queue, with these messages left, fits into a transfer; else replace it.

        A batch formed before the link was open may exceed the link's limit.
        """
        most = self.batch_bytes_max
        queue = self.queue
        if len(sendings) == 1:
            one = sendings[0]
            if len(one.payload) <= (self.message_bytes_max if one.count == 1 else most):
                return True
            queue.popleft()
            one.answered, one.error = True, self.too_large(len(one.payload), self.message_bytes_max)
            self._loop.call_soon(self._results.resolve)
        elif not sendings:
            queue.popleft()
        else:
            size = 0
            for index, sending in enumerate(sendings):
                size += len(sending.payload) + SECTION_BYTES
                if size > most and index:
                    queue.popleft()
                    queue.appendleft(Batch(sendings[index:]))
                    queue.appendleft(Batch(sendings[:index]))
                    return False
            return True
        return False

    # -- the way back --------------------------------------------------------------------------------------------------

    def on_disposed(self, event: Disposed) -> None:
        """Process the answers to batches."""
        if not event.settled and self._link is not None:
            self._link.settle_many(event.delivery_ids, event.state)
        state: object = event.state
        if isinstance(state, TransactionalState):
            state = state.outcome
        error: ClientError | None = None
        if isinstance(state, Rejected):
            error = error_from(self._results.name, state.error)
        elif not isinstance(state, Accepted):
            # The dialect has no such answer; the standard says that the message was not stored.
            error = LinkLost(
                f"{self._results.name}: the broker did not take the message ({type(state).__name__.lower()})"
            )
        for batch in event.contexts:
            assert isinstance(batch, Batch)
            self._in_flight.pop(batch, None)
            if error is None:
                for sending in batch.sendings:
                    sending.answered = True
            else:
                self._refused(batch, error)
        self._results.resolve()
        if self.queue:
            self.pump()

    def _refused(self, batch: Batch, error: ClientError) -> None:
        left = [sending for sending in batch.sendings if not sending.done()]
        one = left[0] if left else None
        if isinstance(error, TimedOut) and one is not None:
            error = extended(error, one.told)
        else:
            for sending in left:
                sending.outcome = REFUSED
        repeatable = retriable(error) and not isinstance(error, TimedOut)
        if (
            one is not None
            and one.txn is None
            and repeatable
            and self._connection.settings.retry.allows(batch.attempts)
        ):
            self._retry(Batch(left), batch.attempts, error)
        elif len(left) > 1 and not isinstance(error, _WHOLE_ERRORS):
            # The broker stores a batch as a whole. Each message is sent alone, so that only the guilty ones fail.
            self._again.extend([Batch([sending]) for sending in left])
            if self._resuming is None:
                self._resume()
        else:
            self._results.answer(left, error)

    def _retry(self, batch: Batch, attempts: int, error: ClientError) -> None:
        """Send a batch again after a delay; later batches wait, so that the order stays."""
        delay = self._connection.settings.retry.delay(max(0, attempts - 1), error)
        due = self._loop.time() + delay
        self._results.answer([sending for sending in batch.sendings if due >= sending.deadline], error)
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
            self.queue = deque(sorted([*again, *self.queue], key=_number))
        self.pump()

    # -- the link, the end ---------------------------------------------------------------------------------------------

    def on_open(self, link: Link) -> None:
        """Send on an attached link, within its limits."""
        self._link = link
        self.message_bytes_max = link.remote_max_message_size or _NO_LIMIT
        told = (link.properties or {}).get(_BATCH_SIZE)
        most = min(self.message_bytes_max, told) if isinstance(told, int) and told > 0 else self.message_bytes_max
        self.batch_bytes_max = max(most - ENVELOPE_BYTES, most // 2)
        self.pump()

    def on_lost(self, error: ClientError) -> None:
        """Send batches without an answer again, ahead of the others."""
        self._link = None
        lost, self._in_flight = self._in_flight, {}
        for batch in lost:
            # A transaction ends with its connection.
            left = [sending for sending in batch.sendings if not sending.done()]
            if left and left[0].txn is not None:
                left[0].outcome = REFUSED
                self._results.answer(left, error)
            elif not self._connection.settings.retry.allows(batch.attempts):
                self._results.answer(left, extended(error, left[0].told) if left else error)
            else:
                self._again.append(batch)
        if self._owner.is_closed:
            return
        if not retriable(error):
            self.fail_all(error)
        elif self._again or self.queue:
            self._connection.statistics.retries += 1
            attempts = max([batch.attempts for batch in self._again], default=0)
            if attempts < 2:
                self._resume()
            elif self._resuming is None:
                # A broker that ends the link over these messages again gets time.
                self._resuming = self._loop.call_later(
                    self._connection.settings.retry.delay(attempts - 2, error), self._resume
                )

    def fail_all(self, error: ClientError) -> None:
        """Fail all sends and send nothing that is queued."""
        self._results.fail_all(error)
        self.queue.clear()
        self._again.clear()
        self._in_flight.clear()

    def stop(self) -> None:
        """Send nothing again from now on."""
        if self._resuming is not None:
            self._resuming.cancel()


def _send(link: Link, tag: bytes, batch: Batch) -> bool:
    """Send what is no plain single message; return whether the link took it."""
    one = batch.sendings[0]
    if one.count == 1 and len(batch.sendings) == 1:
        return link.send(tag, one.payload, batch, state=one.txn)
    payload = one.payload if one.count > 1 else batch_payload(batch.sendings)
    return link.send(tag, payload, batch, message_format=BATCH_FORMAT)


def _number(batch: Batch) -> int:
    return batch.sendings[0].number
