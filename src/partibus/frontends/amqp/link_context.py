"""The context that a connection's delivering links share: completions to send, and links that wait for room.

`Completions` sends the completions of one read as one command for each partition instead of one for each link. A client
with a thousand sessions has a thousand links, and its completions arrive as a disposition for each. Only
completions are gathered: the broker must apply a requeue before the same link asks for more.

`CongestedLinks` have deliveries for their client but may not send them now. With a thousand receivers on a connection,
a turn of the loop that finds room again must not ask all of them. Only the registered links are told.
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct

from partibus.clock import Clock
from partibus.limits import ConnectionLimits
from partibus.partition.protocol.commands import LockToken, Outcome, Settle
from partibus.partition.protocol.replies import Failed, Settled
from partibus.routing.partitions import Numbers, PartitionHandle
from partibus.routing.transactions import Transactions
from partibus.throttling.throttle import Throttle

OnSettled = Callable[[Settled | Failed], None]
"""A callback that gets the answer to a `Settle` with the link's own tokens."""


class _Batch(Struct, eq=False):
    """The completions for one sub-queue of one partition."""

    tokens: list[LockToken] = []
    waiting: list[tuple[int, int, OnSettled]] = []
    """Index of a part's first token and of the first behind it, and the callback, for each part with a callback."""
    more: bool = False

    def answered(self, reply: Any) -> None:
        """Pass each callback the results of its tokens."""
        if isinstance(reply, Failed) or not reply.lost:
            for _, _, on_settled in self.waiting:
                on_settled(reply)
            return
        lost = sorted(reply.lost)
        for start, end, on_settled in self.waiting:
            mine = lost[bisect_left(lost, start) : bisect_left(lost, end)]
            on_settled(Settled(reply.request, [index - start for index in mine]))


class Completions:
    """The gathered completions of one connection and one read."""

    __slots__ = ("_numbers", "waiting")

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self.waiting: dict[tuple[PartitionHandle, int], _Batch] = {}

    def add(
        self,
        partition: PartitionHandle,
        kind: int,
        tokens: list[LockToken],
        on_settled: OnSettled | None = None,
        *,
        more: bool = False,
    ) -> None:
        """Complete messages when `flush` is called.

        ``on_settled`` is None for a client that has settled first and so awaits no answer. ``more``: the client that
        waits has other requests under way.
        """
        batch = self.waiting.get((partition, kind))
        if batch is None:
            batch = self.waiting[partition, kind] = _Batch()
        start = len(batch.tokens)
        batch.tokens += tokens
        if on_settled is not None:
            batch.waiting.append((start, len(batch.tokens), on_settled))
            batch.more = batch.more or more

    def flush(self) -> None:
        """Send all gathered completions to their partitions."""
        batches, self.waiting = self.waiting, {}
        for (partition, kind), batch in batches.items():
            if batch.waiting:
                command = Settle(self._numbers.next(), kind, Outcome.COMPLETE, batch.tokens)
                partition.submit(command, batch.answered, more=batch.more or len(batch.waiting) > 1)
            else:
                partition.submit(Settle(0, kind, Outcome.COMPLETE, batch.tokens), more=True)


class Resumable(Protocol):
    """A link on which a client receives."""

    def on_credit(self) -> None:
        """Try to send again: there may be room."""
        ...


class CongestedLinks:
    """The held-back links of one connection. ``congested`` tells whether too much is unsent on it."""

    __slots__ = ("_congested", "_links")

    def __init__(self, congested: Callable[[], bool]) -> None:
        self._congested = congested
        self._links: dict[Resumable, None] = {}

    def holds_back(self, link: Resumable) -> bool:
        """Tell whether too much is unsent to ask for more; if so, the link is told when that is over."""
        if not self._congested():
            return False
        self._links[link] = None
        return True

    def wait(self, link: Resumable) -> None:
        """Register a link whose client's window is shut, to be told when it may be open again."""
        self._links[link] = None

    def forget(self, link: Resumable) -> None:
        """Remove a detached link."""
        self._links.pop(link, None)

    def resume(self) -> None:
        """Tell the registered links that there is room again."""
        links, self._links = self._links, {}
        for link in links:
            link.on_credit()


class LinkContext(Struct):
    """The shared context: made once per connection to a namespace, and passed to each of its links."""

    transactions: Transactions
    """The transactions that settlements may be part of (section 8)."""
    throttle: Throttle
    """The throttle of the namespace's credits."""
    limits: ConnectionLimits
    clock: Clock
    """The clock of the stores, by which locks expire."""
    congested_links: CongestedLinks
    """Links that wait for room on the connection."""
    completions: Completions
    """Completions gathered over its links."""
    flush: Callable[[], None]
    """Requests that pending output is sent when this turn of the loop ends."""
