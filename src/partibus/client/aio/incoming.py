"""Messages between a receiver's link and its callers: credit, the prefetch cache, the calls that wait."""

import asyncio
from collections import deque
from typing import Final

from partibus.amqp import Delivery
from partibus.amqp import Receiver as Link
from partibus.client.aio.link import Attachment
from partibus.client.aio.settings import whole
from partibus.client.errors import ClientError, ConnectFailed
from partibus.client.outcomes import RELEASE, ReceiveMode

FILL_BYTES: Final = 256 * 1024
"""The most bytes that one fill of a prefetch cache asks for (row C16)."""
_FILLS_MAX: Final = 2
"""Fills under way while several calls wait: the broker prepares the second while the client reads the first."""
RECEIVE_MAX: Final = 1_000_000
_DRAIN_S: Final = 5.0


class Waiter:
    """A call of `receive` that waits for messages."""

    __slots__ = ("expired", "found", "future", "most")

    def __init__(self, future: "asyncio.Future[None]", most: int) -> None:
        self.future = future
        self.most = most
        self.found: list[Delivery] = []
        self.expired = False

    def done(self) -> None:
        """Wake the call up."""
        if not self.future.done():
            self.future.set_result(None)


class Incoming:
    """The prefetch cache of one receiver and the calls that wait for messages."""

    def __init__(self, owner: Attachment, mode: ReceiveMode, prefetch: int) -> None:
        self.cache: deque[Delivery] = deque()
        self.waiters: deque[Waiter] = deque()
        self.prefetch = prefetch
        self._owner = owner
        self._connection = owner.connection
        self._loop = owner.connection.loop()
        self._locks = mode is ReceiveMode.PEEK_LOCK
        self._link: Link | None = None
        """The link while it is attached."""
        self._draining = False
        self._drained: list[asyncio.Future[None]] = []
        self._fill_count = 0
        """Messages that this fill may still bring."""
        self._fill_bytes = 0
        self._message_bytes = FILL_BYTES
        """The size of messages, as the last ones had it: the first fill begins with one message."""

    # -- calls ---------------------------------------------------------------------------------------------------------

    def take(self, most: int) -> list[Delivery]:
        """Take messages from the cache. Raises `ArgumentError`."""
        if type(most) is not int or most < 1:
            whole("max_messages", most, 1, RECEIVE_MAX)
        cache = self.cache
        return [cache.popleft() for _ in range(min(most, len(cache)))]

    async def wait(self, most: int, limit_s: float) -> list[Delivery]:
        """Wait for messages; return [] when the time is over. Raises the error that ended the wait."""
        waiter = Waiter(self._loop.create_future(), most)
        self.waiters.append(waiter)
        timer = self._loop.call_later(limit_s, self._on_waited, waiter)
        self._ask()
        try:
            await waiter.future
        except BaseException:
            self._give_up(waiter)
            raise
        finally:
            timer.cancel()
        return waiter.found

    def put_back(self, deliveries: list[Delivery]) -> None:
        """Put messages that were taken last in front of the cache."""
        self.cache.extendleft(reversed(deliveries))
        self._serve()

    def stop_waiting(self) -> None:
        """End the calls that wait, as if their time were over."""
        for waiter in list(self.waiters):
            self._on_waited(waiter)

    # -- the link ------------------------------------------------------------------------------------------------------

    def on_open(self, link: Link) -> None:
        """Ask the attached link for messages."""
        self._link = link
        self._draining = False
        self._ask()

    def on_lost(self) -> None:
        """Go on without a link. Cached messages stay: their locks outlive it."""
        self._link = None
        for waiter in [one for one in self.waiters if one.found]:
            # It has waited for more of the lost link, and its locks run.
            self.waiters.remove(waiter)
            waiter.done()
        self._draining = False
        self._wake_drained()

    def on_deliveries(self, deliveries: list[Delivery]) -> None:
        """Serve the calls that wait, then fill the cache. Hot path."""
        if not deliveries:
            self._ask()  # the broker has aborted some
            return
        self._connection.statistics.messages_received += len(deliveries)
        if self.prefetch:
            self._measure(deliveries)
            self.cache.extend(deliveries)
            self._serve()
            if self._fill_count > 0:
                self._go_on_filling()
            return
        waiters = self.waiters
        if len(deliveries) == 1 and waiters and waiters[0].most == 1 and not waiters[0].expired:
            waiter = waiters.popleft()
            waiter.found = deliveries
            waiter.done()
            return
        self._deal(deliveries)

    def on_drained(self) -> None:
        """Finish the calls that have waited long enough, and ask for the others."""
        self._draining = False
        waiters = self.waiters
        while waiters and (waiters[0].found or waiters[0].expired):
            waiters.popleft().done()
        for waiter in [one for one in waiters if one.expired]:
            waiters.remove(waiter)
            waiter.done()
        self._wake_drained()
        self._ask()

    # -- credit --------------------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Grant credit for the calls that wait, or fill the empty cache."""
        link = self._link
        if link is None or self._draining or not self.waiters:
            return
        if self.prefetch:
            if not self.cache:
                self._fill()
            return
        wanted = sum(waiter.most - len(waiter.found) for waiter in self.waiters if not waiter.expired)
        if wanted > link.credit:
            self._grant(link, wanted)

    def _fill(self) -> None:
        """Begin a fill of the empty cache: up to ``prefetch`` messages, of 256 KB for each of two calls that wait."""
        self._fill_count = self.prefetch
        # Bytes of a second fill that are still to come remain allowed when one call has been served.
        self._fill_bytes = max(self._fill_bytes, FILL_BYTES * min(_FILLS_MAX, len(self.waiters)))
        if self._go_on_filling(least=1):
            self._connection.statistics.fills += 1

    def _go_on_filling(self, least: int = 0) -> bool:
        """Grant the credit that the rest of the fill allows, as far as the size of messages is known.

        Returns whether it did. A flow frame is worth sending when a third of the credit is used up. Half would be too
        late for two fills: one read has 256 KB with the heads of frames, a little less than the first of them.
        """
        link = self._link
        if link is None:
            return False
        wanted = min(self._fill_count, max(least, self._fill_bytes // max(1, self._message_bytes)))
        if (wanted and 3 * link.credit <= 2 * wanted) or wanted < link.credit:
            self._grant(link, wanted)
            return True
        return False

    def _measure(self, deliveries: list[Delivery]) -> None:
        """Count messages against the fill, and learn their size."""
        size = sum([len(delivery.payload) for delivery in deliveries])
        self._fill_count -= len(deliveries)
        self._fill_bytes -= size
        # One large message makes the estimate large at once; it sinks slowly.
        average = size // len(deliveries)
        known = self._message_bytes
        self._message_bytes = average if average > known or known == FILL_BYTES else (3 * known + average) // 4

    def _grant(self, link: Link, credit: int) -> None:
        self._connection.statistics.flows_sent += 1
        link.grant(credit)
        self._connection.flush_soon()

    def _drain(self) -> None:
        """Ask the broker to return the credit, so that all messages sent for it are here."""
        link = self._link
        if self._draining or link is None:
            return
        if not link.credit and link.partial is None:
            self._loop.call_soon(self.on_drained)
        else:
            link.drain()
            self._connection.flush_soon()
        self._draining = True

    # -- calls that wait -----------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Give cached messages to the calls that wait."""
        cache, waiters = self.cache, self.waiters
        while cache and waiters:
            waiter = waiters.popleft()
            if waiter.future.done():
                continue
            waiter.found = [cache.popleft() for _ in range(min(waiter.most, len(cache)))]
            waiter.done()
        if waiters:
            self._ask()

    def _deal(self, deliveries: list[Delivery]) -> None:
        """Give messages to the calls that asked for them; take back what is left of their credit."""
        waiters = self.waiters
        left = deque(deliveries)
        while left and waiters:
            waiter = waiters[0]
            room = waiter.most - len(waiter.found)
            waiter.found += [left.popleft() for _ in range(min(room, len(left)))]
            if len(waiter.found) < waiter.most:
                break
            waiters.popleft()
            waiter.done()
        if left:
            self._return(list(left))
        if waiters and waiters[0].found:
            self._drain()

    def _return(self, deliveries: list[Delivery]) -> None:
        """Release messages that no call wants; deleted ones exist nowhere else and stay for the next call."""
        if self._locks and self._link is not None:
            self._release(deliveries)
        else:
            self.cache.extend(deliveries)
            self._serve()

    def _release(self, deliveries: list[Delivery]) -> None:
        """Requeue messages under lock. Those of a lost link can only wait for the end of their locks."""
        link = self._link
        if link is not None:
            link.settle_many([delivery for delivery in deliveries if delivery.link is link], RELEASE)
            self._connection.flush_soon()

    def _on_waited(self, waiter: Waiter) -> None:
        """End a call whose time is over, once no message can be on its way to it."""
        if waiter.future.done():
            return
        if not self.prefetch and self._link is not None and not waiter.expired:
            waiter.expired = True
            self._drain()
            self._loop.call_later(_DRAIN_S, self._on_waited, waiter)
            return
        self.waiters.remove(waiter)
        if self._link is not None:
            waiter.done()
            return
        waiter.future.set_exception(
            ConnectFailed(
                f"{self._owner.name}: there is no connection to {self._connection.peer}; it is being opened again"
            )
        )

    def _give_up(self, waiter: Waiter) -> None:
        """Forget a cancelled call. Its messages go back, and so does its credit."""
        if waiter in self.waiters:
            self.waiters.remove(waiter)
        if waiter.found:
            if self.prefetch:
                self.put_back(waiter.found)
            else:
                self._return(waiter.found)
        if not self.prefetch and self._link is not None and self._link.credit:
            self._drain()

    # -- the end -------------------------------------------------------------------------------------------------------

    def fail(self, error: ClientError) -> None:
        """Fail the calls that wait; those with messages return them."""
        waiters, self.waiters = self.waiters, deque()
        for waiter in waiters:
            if waiter.found:
                waiter.done()
            elif not waiter.future.done():
                waiter.future.set_exception(error)

    def give_up_all(self, error: ClientError) -> None:
        """Fail the calls that wait; their messages go back."""
        found: list[Delivery] = []
        if self._locks:
            for waiter in self.waiters:
                found += waiter.found
                waiter.found = []
        self.fail(error)
        if found:
            self._return(found)

    async def drained(self) -> None:
        """Wait until no message is on its way: it would stay locked."""
        link = self._link
        if link is not None and (link.credit or link.partial is not None):
            drained = self._loop.create_future()
            self._drained.append(drained)
            self._drain()
            await asyncio.wait([drained], timeout=_DRAIN_S)

    def release_cache(self) -> None:
        """Requeue cached messages, and forget them."""
        if self._locks:
            self._release(list(self.cache))
        self.cache.clear()

    def _wake_drained(self) -> None:
        for future in self._drained:
            if not future.done():
                future.set_result(None)
        self._drained.clear()
