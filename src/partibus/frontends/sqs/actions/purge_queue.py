"""PurgeQueue: every message of the queue goes, also those in flight and delayed."""

from typing import Any

from partibus.frontends.sqs.calls import Call
from partibus.frontends.sqs.errors import prefixed
from partibus.namespace.access import Right
from partibus.partition.protocol.commands import PurgeAll
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.replies import Failed
from partibus.routing.partitions import error_of


def purge_queue(call: Call) -> None:
    """Remove all messages and remembered deduplication ids, at most once in the interval."""
    queue = call.queue(Right.MANAGE)
    service, now_ms = call.service, call.broker.clock.now_ms()
    entity_id = queue.queue.entity_id
    last_ms = service.purged_ms.get(entity_id)
    if last_ms is not None and now_ms < last_ms + service.purge_interval_ms:
        raise prefixed(
            "PurgeQueueInProgress",
            f"Only one PurgeQueue operation on {queue.name.name} is allowed every "
            f"{service.purge_interval_ms // 1000} seconds.",
        )
    service.purged_ms[entity_id] = now_ms
    route = call.entity(queue).route
    open_parts = len(route.partitions)

    def purged(reply: Any) -> None:
        nonlocal open_parts
        if isinstance(reply, Failed):
            service.purged_ms.pop(entity_id, None)
            raise error_of(reply, queue.queue.name)
        open_parts -= 1
        if not open_parts:
            call.answer()

    for partition in route.partitions:
        partition.submit(PurgeAll(route.numbers.next(), SubqueueKind.ACTIVE), call.guarded(purged))
