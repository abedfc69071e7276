"""Shared state of SQS requests: queues by name, waiting work, and the intervals that an operator sets."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from partibus.frontends.sqs.attempts import Attempts
from partibus.frontends.sqs.movers import Movers
from partibus.frontends.sqs.names import Home
from partibus.frontends.sqs.polls import Ends
from partibus.frontends.sqs.queues import Queues
from partibus.frontends.sqs.runs import Runs
from partibus.namespace.broker import Broker
from partibus.namespace.namespaces import Namespaces
from partibus.partition.protocol.keys import Entry
from partibus.partition.protocol.ports import EntryRow
from partibus.routing.fault_injections import CallLater

KEPT_MAX: Final = 120_000
"""The number of messages that a queue may have in flight; some 20 MB."""


class Ids(Protocol):
    """A source of random UUIDs in text."""

    def next(self) -> str:
        """Return another one."""
        ...

    def some(self, count: int) -> list[str]:
        """Return others, at least one."""
        ...


class FirstReceives:
    """Times of first receives, by partition and position."""

    def __init__(self) -> None:
        self._at_ms: OrderedDict[tuple[int, int], int] = OrderedDict()

    def of(self, row: int, entries: Sequence[Entry | EntryRow], now_ms: int) -> list[int]:
        """Return when messages were first received; their entries do not count the present receive."""
        at_ms, found = self._at_ms, []
        for entry in entries:
            key = (row, entry.pos)
            known = at_ms.get(key) if entry.delivery_count else None
            if known is None:
                if len(at_ms) >= KEPT_MAX:
                    at_ms.popitem(last=False)
                at_ms[key] = known = now_ms
            found.append(known)
        return found

    def forget(self, row: int, positions: Iterable[int]) -> None:
        """Forget deleted messages."""
        forget = self._at_ms.pop
        for pos in positions:
            forget((row, pos), None)


class SqsState:
    """The state that the actions of all requests share."""

    def __init__(
        self,
        namespaces: Namespaces,
        home: Home,
        call_later: CallLater,
        now_ms: Callable[[], float],
        soon: Callable[[Callable[[], None]], object],
        ids: Ids,
        *,
        purge_interval_ms: int = 60_000,
        recreate_after_ms: int = 0,
        propagation_ms: int = 60_000,
    ) -> None:
        """Share the state of the queues of all namespaces.

        ``now_ms`` is the time of ``call_later``, from any origin. ``soon`` makes a call in the next round of the loop.
        ``purge_interval_ms`` lies between two purges of a queue, ``recreate_after_ms`` between deleting a queue and
        creating another one of its name. ``propagation_ms`` after a change of a queue's DeduplicationScope it takes
        effect.
        """
        self.namespaces = namespaces
        self.home = home
        self.call_later = call_later
        self.ends = Ends(call_later, now_ms)
        self.new_uuid, self.new_uuids = ids.next, ids.some
        self.purge_interval_ms = purge_interval_ms
        self.recreate_after_ms = recreate_after_ms
        self.propagation_ms = propagation_ms
        self.first_receives = FirstReceives()
        self.attempts = Attempts()
        self.runs = Runs(soon)
        self.movers = Movers(home, call_later, self.ends, ids.next)
        self.deleted_ms: dict[tuple[int, str], int] = {}
        """The time of deletion by namespace and folded name, within the interval."""
        self._queues: dict[int, Queues] = {}

    def queues_of(self, broker: Broker) -> Queues:
        """Return the queues of a namespace."""
        number = broker.namespace.namespace_id
        found = self._queues.get(number)
        if found is None:
            found = self._queues[number] = Queues(self.home)
        return found

    def look_for_tasks(self) -> None:
        """Begin message move tasks that are this broker's and not at work yet."""
        for broker in self.namespaces:
            self.movers.look(broker, self.queues_of(broker))
