"""Shared state of SQS requests: queues by name, waiting work, and the intervals that an operator sets."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from partibus.frontends.sqs.attempts import Attempts
from partibus.frontends.sqs.movers import Movers
from partibus.frontends.sqs.names import Home
from partibus.frontends.sqs.queues import Queues
from partibus.frontends.sqs.runs import Runs
from partibus.namespace.broker import Broker
from partibus.namespace.namespaces import Namespaces
from partibus.routing.faulty_route import CallLater

KEPT_MAX: Final = 120_000
"""The number of messages that a queue may have in flight; some 20 MB."""


class FirstReceives:
    """Times of first receives, by partition and position."""

    def __init__(self) -> None:
        self._at_ms: OrderedDict[tuple[int, int], int] = OrderedDict()

    def of(self, row: int, pos: int, deliveries: int, now_ms: int) -> int:
        """Return when a message was first received; ``deliveries`` counts this one."""
        key = (row, pos)
        if deliveries > 1:
            known = self._at_ms.get(key)
            if known is not None:
                return known
        if len(self._at_ms) >= KEPT_MAX:
            self._at_ms.popitem(last=False)
        self._at_ms[key] = now_ms
        return now_ms

    def forget(self, row: int, pos: int) -> None:
        """Forget a deleted message."""
        self._at_ms.pop((row, pos), None)


class SqsState:
    """The state that the actions of all requests share."""

    def __init__(
        self,
        namespaces: Namespaces,
        home: Home,
        call_later: CallLater,
        soon: Callable[[Callable[[], None]], object],
        new_uuid: Callable[[], str],
        *,
        purge_interval_ms: int = 60_000,
        recreate_after_ms: int = 0,
        propagation_ms: int = 60_000,
    ) -> None:
        """Share the state of the queues of all namespaces.

        ``soon`` makes a call in the next round of the loop. ``purge_interval_ms`` lies between two purges of a queue,
        ``recreate_after_ms`` between deleting a queue and creating another one of its name. ``propagation_ms`` after a
        change of a queue's DeduplicationScope it takes effect.
        """
        self.namespaces = namespaces
        self.home = home
        self.call_later = call_later
        self.new_uuid = new_uuid
        self.purge_interval_ms = purge_interval_ms
        self.recreate_after_ms = recreate_after_ms
        self.propagation_ms = propagation_ms
        self.first_receives = FirstReceives()
        self.attempts = Attempts()
        self.runs = Runs(soon)
        self.movers = Movers(home, call_later, new_uuid)
        self.deleted_ms: dict[tuple[int, str], int] = {}
        """The time of deletion by namespace and folded name, within the interval."""
        self._queues: dict[int, Queues] = {}

    def queues_of(self, broker: Broker) -> Queues:
        """Return the queues of a namespace."""
        number = broker.namespace.record.namespace_id
        found = self._queues.get(number)
        if found is None:
            found = self._queues[number] = Queues(self.home)
        return found

    def look_for_tasks(self) -> None:
        """Begin message move tasks that are this broker's and not at work yet."""
        for broker in self.namespaces:
            self.movers.look(broker, self.queues_of(broker))
