"""The open batch of one sender, and the bound on bytes without a result."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from math import inf

from partibus.client.aio.link import Attachment
from partibus.client.aio.send_results import SendResults
from partibus.client.aio.sending import SECTION_BYTES, Batch, Entry, Sendable
from partibus.client.aio.transfers import Transfers
from partibus.client.errors import ClientError


class Batching:
    """Messages that wait for others of their flush interval, or for room."""

    def __init__(
        self,
        owner: Attachment,
        flush_interval: float,
        results: SendResults,
        transfers: Transfers,
        encode: Callable[[Entry, Sendable], None],
    ) -> None:
        self._owner = owner
        self._flush_interval = flush_interval
        self._results = results
        self._transfers = transfers
        self._encode = encode
        self._connection = owner.connection
        self._tracing = owner.connection.settings.tracing
        self._bytes_max = owner.connection.settings.buffer_bytes
        self._loop = owner.connection.loop()
        self._open_batch: list[Entry] = []
        self._open_bytes = 0
        self._timer: asyncio.Handle | None = None
        self._over_limit: deque[Entry] = deque()
        """Messages that are not encoded yet, because `buffer_bytes` are in use."""
        self._waiting_for_room: deque[asyncio.Future[None]] = deque()

    def add(self, sending: Entry, message: Sendable) -> None:
        """Encode a message and add it to the open batch, or keep it until there is room. Hot path."""
        if self._over_limit or self._results.outstanding_bytes >= self._bytes_max:
            sending.message = message
            self._over_limit.append(sending)
            self._results.on_progress = self._make_room
            return
        self._encode(sending, message)
        self._append(sending)

    def _append(self, sending: Entry) -> None:
        """Append an encoded message to the open batch, which leaves at once if it would not fit. Hot path."""
        size = len(sending.payload)
        self._results.outstanding_bytes += size
        size += SECTION_BYTES
        if self._open_bytes + size > self._transfers.batch_bytes_max and self._open_batch:
            self.close()
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

    def close(self) -> None:
        """Send the open batch without waiting for the flush interval."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._close_open()

    def close_all(self) -> None:
        """Send all messages given so far, those over the limit included, for something that must not overtake them.

        Results come in the order of the calls: messages that waited for room behind it would never get any.
        """
        results = self._results
        progress, results.on_progress = results.on_progress, None
        refused = self._encode_more(inf)
        self.close()
        results.on_progress = progress
        if refused:
            results.resolve()

    def _close_open(self) -> None:
        if self._open_batch:
            sendings, self._open_batch, self._open_bytes = self._open_batch, [], 0
            self._enqueue(sendings)
        self._transfers.pump()

    def _enqueue(self, sendings: list[Entry]) -> None:
        """Append messages to the queue, as batches of one key each."""
        if not self._flush_interval:
            batches = [Batch([sending]) for sending in sendings]
        else:
            batches = []
            key = sendings[0].key
            first = 0
            for index, sending in enumerate(sendings):
                if sending.key is not key and sending.key != key:
                    batches.append(Batch(sendings[first:index]))
                    first, key = index, sending.key
            batches.append(Batch(sendings[first:] if first else sendings))
        self._transfers.queue.extend(batches)
        if self._tracing is not None:
            for batch in batches:
                self._tracing.sending(self._owner.entity, [one.trace for one in batch.sendings], batch.sendings)

    # -- room ----------------------------------------------------------------------------------------------------------

    async def room(self) -> None:
        """Wait until the bytes without a result are fewer than the limit."""
        while self._over_limit or self._results.outstanding_bytes >= self._bytes_max:
            waiter = self._loop.create_future()
            self._waiting_for_room.append(waiter)
            self._results.on_progress = self._make_room
            await waiter

    def _make_room(self) -> None:
        """Encode messages over the limit, and wake up producers, as results come."""
        results = self._results
        results.on_progress = None  # Results of this call do not begin another one inside of it.
        while self._encode_more(self._bytes_max):
            results.resolve()  # It may free bytes of messages behind the refused ones.
        if self._waiting_for_room and results.outstanding_bytes < self._bytes_max:
            _wake(self._waiting_for_room)
            self._waiting_for_room.clear()
        if self._over_limit or self._waiting_for_room:
            results.on_progress = self._make_room

    def _encode_more(self, bytes_max: float) -> bool:
        """Encode messages over the limit up to so many bytes; return whether one of them was refused."""
        refused = False
        while self._over_limit and self._results.outstanding_bytes < bytes_max:
            sending = self._over_limit.popleft()
            message, sending.message = sending.message, None
            if message is None or sending.done():
                continue
            try:
                self._encode(sending, message)
            except ClientError as error:
                sending.answered, sending.error = True, error
                refused = True
            else:
                self._append(sending)
        return refused

    def stop(self) -> None:
        """Send no batch from now on."""
        if self._timer is not None:
            self._timer.cancel()


def _wake(waiters: Iterable[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
