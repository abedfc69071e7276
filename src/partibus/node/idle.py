"""Deletion of entities that were idle for as long as their AutoDeleteOnIdle says (dialect section 11.3).

A queue is in use when a message is sent, received, peeked or settled, while a receiver waits or a message is scheduled,
when a scheduled message becomes active, and when the queue is created or updated. A topic is in use the same way, and
is deleted with its subscriptions, whose use does not keep it. A subscription is not used by the messages that its topic
gives it, but by a new rule. Reading properties and counts does not count as use.

No work is done per message: a command marks its partition as used (`PartitionHandle.used`), and `note` collects the
marks from time to time. It assumes the latest possible time of use. So an entity lives up to one interval longer than
its limit, and never shorter. A clock that is moved by hand stands still in between: a note before each move makes it
exact. When the broker starts every entity counts as just used.

One of several brokers deletes, and learns which queues were used through the others (`IdleQueues.take_used` of each).
A queue that seems to be idle is deleted once all of them have reported their use until then (`Coordinator.used`).
"""

import logging
from collections.abc import Iterable
from functools import partial
from typing import Protocol

from partibus.clock import Clock
from partibus.errors import PartibusError
from partibus.namespace.entities import EntityKind
from partibus.namespace.namespace import Queue
from partibus.namespace.namespaces import Namespaces
from partibus.partition.protocol.replies import Inspected
from partibus.routing.entity import inspect_all

log = logging.getLogger(__name__)

INTERVAL_S = 20.0
"""How often to `check_all`: a fifteenth of the shortest AutoDeleteOnIdle. A look at 10,000 entities takes 10 ms."""
AT_A_TIME = 200
"""Entities that one check deletes at most: the catalog commits each while the loop waits, in about a disk sync."""


class OtherBrokers(Protocol):
    """The use of queues through the other brokers; `partibus.node.coordinator.Coordinator` knows it."""

    async def used(self, *, surely: bool = False) -> Iterable[int] | None:
        """Return ids of the queues used since the last call (`partibus.node.coordinator.Coordinator.used`)."""
        ...


class IdleQueues:
    """Knows since when each entity with an AutoDeleteOnIdle is idle."""

    def __init__(self, namespaces: Namespaces, clock: Clock) -> None:
        self._namespaces = namespaces
        self._clock = clock
        self._started_ms = clock.now_ms()
        self._used_ms: dict[int, int] = {}
        """Last use by entity id."""
        self._ends: dict[int, list[int]] = {}
        """The ends of the partitions of each watched queue, by entity id."""
        self.asking = 0
        """Queues that may be idle and whose partitions have not answered yet, and deleted ones that not all brokers
        know of yet.
        """

    def begin(self) -> None:
        """Let this broker delete from now on. Earlier use is not known here, so every entity counts as just used."""
        self._started_ms = self._clock.now_ms()
        self._used_ms = {}

    def take_used(self) -> list[int]:
        """Return the ids of the queues that were used through this broker since the last call."""
        return [queue.entity_id for queue in self._bounded() if self._is_used(queue)]

    def note(self, elsewhere: Iterable[int] = ()) -> list[Queue]:
        """Note the queues used until now, here and, by their ids, ``elsewhere``; return those that have expired."""
        used_elsewhere = set(elsewhere)
        now_ms = self._clock.now_ms()
        noted_ms: dict[int, int] = {}
        over = []
        for queue in self._bounded():
            used_ms = max(self._used_ms.get(queue.entity_id, self._started_ms), queue.touched_ms)
            if self._is_used(queue) or queue.entity_id in used_elsewhere:
                used_ms = now_ms
            noted_ms[queue.entity_id] = used_ms
            if _is_over(queue, used_ms, now_ms):
                over.append(queue)
        self._used_ms = noted_ms
        return over

    def check(self, most: int | None = None, elsewhere: Iterable[int] = ()) -> None:
        """Delete at most ``most`` idle queues; `asking` tells whether that is under way."""
        for queue in self.note(elsewhere)[:most]:
            if not queue.deleted:  # with its topic
                self._ask(queue)

    async def check_all(self, others: OtherBrokers) -> None:
        """Delete idle queues if the other brokers, too, have reported no use of them."""
        used = await others.used()
        if used is not None and (over := self.note(used)):
            self.watch(over[:AT_A_TIME])
            used = await others.used(surely=True)
            if used is not None:
                self.check(AT_A_TIME, used)

    def watch(self, over: Iterable[Queue]) -> None:
        """Note where queues that have expired end now, so that `check` keeps those that get a message meanwhile.

        It may come through another broker, which reports it only later.
        """
        self._ends = {}
        for queue in over:
            if queue.kind is EntityKind.QUEUE:  # a subscription is not used by messages
                inspect_all(self._namespaces.entity_of(queue).route, partial(self._watched, queue), lambda _: None)

    def _watched(self, queue: Queue, found: list[Inspected]) -> None:
        self._ends[queue.entity_id] = _ends_of(found)

    def _bounded(self) -> list[Queue]:
        """Return the entities that have an AutoDeleteOnIdle."""
        return [queue for broker in self._namespaces for queue in broker.namespace.deleted_on_idle]

    def _is_used(self, queue: Queue) -> bool:
        entity = self._namespaces.in_use(queue)
        return entity is not None and (entity.route.take_used() or entity.awaited)

    def _ask(self, queue: Queue) -> None:
        """Ask the partitions of a queue for scheduled messages. A partition that can't answer may have some."""
        self.asking += 1
        inspect_all(
            self._namespaces.entity_of(queue).route,
            lambda found: self._inspected(queue, found),
            lambda _: self._asked(),
        )

    def _asked(self) -> None:
        self.asking -= 1

    def _inspected(self, queue: Queue, found: list[Inspected]) -> None:
        self._asked()
        if queue.deleted:
            return
        now_ms = self._clock.now_ms()
        used_ms = max(self._used_ms.get(queue.entity_id, now_ms), queue.touched_ms)
        ends = _ends_of(found)
        has_grown = self._ends.pop(queue.entity_id, ends) != ends
        if self._is_used(queue) or has_grown or any(one.has_scheduled for one in found):
            used_ms = now_ms
        self._used_ms[queue.entity_id] = max([used_ms, *(one.activated_ms for one in found)])
        if not _is_over(queue, self._used_ms[queue.entity_id], now_ms):
            return
        broker = self._namespaces.broker_of(queue)
        try:
            broker.delete(queue.name)
        except PartibusError as error:  # the next check tries again
            log.warning("the idle %s '%s' could not be deleted: %s", queue.kind.value, queue.name, error)
        else:
            self.asking += 1
            broker.when_followed(self._asked)
            log.info("the %s '%s' was idle for its AutoDeleteOnIdle and is deleted", queue.kind.value, queue.name)


def _ends_of(found: list[Inspected]) -> list[int]:
    return [one.end_pos for one in found]


def _is_over(queue: Queue, used_ms: int, now_ms: int) -> bool:
    """Tell whether an entity has an AutoDeleteOnIdle and was idle for that long."""
    return queue.auto_delete_on_idle_ms is not None and now_ms - used_ms >= queue.auto_delete_on_idle_ms
