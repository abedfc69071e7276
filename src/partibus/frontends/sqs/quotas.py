"""Throughput quotas of FIFO queues (rows S8, S11): which parts of a request are over the budgets of their partitions.

```text
 high throughput   each partition has a budget of requests per action; each part of a batch costs one request
 otherwise         the whole queue has the budget of one partition; a request costs one
```

The budgets are enforced where the queue's property PartibusEnforceThroughput says so. Without it requests are counted
as load, by which elastic queues get partitions.
"""

from collections.abc import Collection, Mapping
from typing import Final

from partibus.frontends.sqs.calls import Call
from partibus.frontends.sqs.errors import THROTTLED, SqsError
from partibus.frontends.sqs.queues import SqsQueue
from partibus.namespace.entity import Entity
from partibus.routing.elastic import Action

_WHOLE: Final = 0
"""The key of the budget of a queue without high throughput."""


def throttled() -> SqsError:
    """Return the error of a request, or of a part of one, over its budget."""
    return SqsError("RequestThrottled", THROTTLED)


def over_budget(
    call: Call, queue: SqsQueue, entity: Entity, action: Action, parts: Mapping[int, int]
) -> Collection[int]:
    """Charge a request for its parts, messages by partition; return the partitions whose parts are refused."""
    elastic = entity.elastic
    if elastic is None:
        return ()
    now_ms = call.broker.clock.now_ms()
    enforce = queue.queue.enforces_throughput
    if queue.high_throughput or not enforce:
        return elastic.charge(action, parts, now_ms, enforce=enforce)
    refused = elastic.charge(action, {_WHOLE: sum(parts.values())}, now_ms, enforce=True)
    return parts.keys() if refused else ()


class ReceiveBudget:
    """The budget of one receive of a FIFO queue. It is charged when the answer is known."""

    def __init__(self, call: Call, queue: SqsQueue, entity: Entity) -> None:
        """Begin a receive. Raises `SqsError` if no partition has a budget."""
        self._clock = call.broker.clock
        self._entity = entity
        self._enforces = entity.elastic is not None and queue.queue.enforces_throughput
        self._each = queue.high_throughput
        if self._enforces and all(self.is_spent(partition.partition_id) for partition in entity.route.partitions):
            over_budget(call, queue, entity, Action.RECEIVE, {self._paying(): 0})
            raise throttled()

    def is_spent(self, partition_id: int) -> bool:
        """Tell whether a partition gives this receive no messages now."""
        elastic = self._entity.elastic
        if not self._enforces or elastic is None:
            return False
        return elastic.is_spent(partition_id if self._each else _WHOLE, Action.RECEIVE, self._clock.now_ms())

    def pay(self, parts: Mapping[int, int]) -> None:
        """Charge the partitions that gave messages; an empty answer costs one request at one partition."""
        elastic = self._entity.elastic
        if elastic is None:
            return
        parts = parts or {self._paying(): 0}
        if not self._each:
            parts = {_WHOLE: sum(parts.values())}
        elastic.pay(Action.RECEIVE, parts, self._clock.now_ms())

    def _paying(self) -> int:
        """Return the partition that an empty answer is charged to: one with a budget, if there is one."""
        ids = [partition.partition_id for partition in self._entity.route.partitions]
        return next((one for one in ids if not self.is_spent(one)), ids[0])
