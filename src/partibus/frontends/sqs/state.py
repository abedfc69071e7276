"""Shared state of SQS requests: queues by name, waiting work, and the intervals that an operator sets."""

from collections.abc import Callable

from partibus.frontends.sqs.attempts import Attempts
from partibus.frontends.sqs.first_receives import FirstReceives
from partibus.frontends.sqs.movers import Movers
from partibus.frontends.sqs.names import Home
from partibus.frontends.sqs.queues import Queues
from partibus.frontends.sqs.runs import Runs
from partibus.namespace.broker import Broker
from partibus.namespace.namespaces import Namespaces
from partibus.routing.faulty_route import CallLater


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

        ``soon`` makes a call in the next round of the loop.
        ``purge_interval_ms`` lies between two purges of a queue, ``recreate_after_ms`` between deleting a queue and
        creating another one of its name. ``propagation_ms`` after a change of a queue's DeduplicationScope it takes
        effect.
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

    def look_for_tasks(self, new_task: str = "") -> None:
        """Begin message move tasks that are this broker's and not at work yet."""
        for broker in self.namespaces:
            self.movers.look(broker, self.queues_of(broker), new_task)
