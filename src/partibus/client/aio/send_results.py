"""The sends of one sender that have no result: they are finished in the order of the calls."""

import asyncio
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final

from partibus.client.aio.link import Attachment
from partibus.client.aio.sending import STORED, Entry
from partibus.client.errors import ClientError, TimedOut, extended

_EXPIRY_PAUSE_S: Final = 0.05
"""The least time between two looks for expired messages."""


class SendResults:
    """Sends without a result, with their number, their bytes and their time limits."""

    def __init__(self, owner: Attachment) -> None:
        self.outstanding = 0
        """The number of messages without a result."""
        self.outstanding_bytes = 0
        """Encoded bytes of messages without a result."""
        self._owner = owner
        self._connection = owner.connection
        self._loop = owner.connection.loop()
        self.on_progress: Callable[[], None] | None = None
        """Called whenever sends have got their results, while messages or producers wait for room."""
        self._order: deque[Entry] = deque()
        """All messages without a result, in the order of the calls; and finished ones between them."""
        self._expiry: asyncio.TimerHandle | None = None
        self._expires_at = inf
        """When the timer is due, by the loop's clock."""

    @property
    def name(self) -> str:
        """The sender's name in errors."""
        return self._owner.name

    def add(self, sending: Entry) -> None:
        """Append a send, and watch its time limit. Hot path."""
        self._order.append(sending)
        self.outstanding += 1
        if sending.deadline < self._expires_at:
            self._watch(sending.deadline)

    async def all_done(self) -> None:
        """Wait until all sends so far have their results. Raises no error of theirs."""
        last = self._order[-1].number if self._order else 0
        # Results come in order, so the last one is enough; a cancelled one may come too early.
        while waiting := next((one for one in reversed(self._order) if one.number <= last and not one.done()), None):
            await asyncio.wait([waiting])

    def answer(self, sendings: list[Entry], error: ClientError) -> None:
        """Record a failure; `resolve` tells the callers, in order."""
        for sending in sendings:
            sending.answered = True
            sending.error = error
        self.resolve()

    def resolve(self) -> None:
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
        if self.on_progress is not None:
            self.on_progress()

    def release(self, sending: Entry) -> None:
        """Forget a cancelled or expired message; a batch without any is not sent."""
        self.outstanding -= 1
        self.outstanding_bytes -= len(sending.payload)
        # Its batch may be queued for as long as an outage lasts.
        sending.payload, sending.message = b"", None
        self.resolve()

    def fail_all(self, error: ClientError) -> None:
        """Fail all sends, and say of each whether it was sent."""
        for sending in list(self._order):
            if not sending.done():
                sending.set_exception(extended(error, sending.told))
                self.release(sending)

    def stop(self) -> None:
        """Watch no time limit from now on."""
        if self._expiry is not None:
            self._expiry.cancel()

    def _watch(self, deadline: float) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._expires_at = deadline
        self._expiry = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        """Fail the messages whose time is over, and say whether they were sent."""
        self._expiry = None
        self._expires_at = inf
        now = self._loop.time() + 0.001  # A timer may come a little early.
        earliest: float | None = None
        for sending in list(self._order):
            if sending.done():
                continue
            if sending.deadline <= now:
                trouble = self._connection.trouble or f"no answer from {self._connection.peer} in time"
                sending.set_exception(TimedOut(f"{self.name}: {trouble}; {sending.told}"))
                self.release(sending)
            elif earliest is None or sending.deadline < earliest:
                earliest = sending.deadline
        if earliest is not None:
            # All messages were looked at: those that expire soon share the next look.
            self._watch(max(earliest, now + _EXPIRY_PAUSE_S))
