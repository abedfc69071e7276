"""PurgeQueue: every message of the queue goes, also those in flight and delayed."""

from typing import Any

from msgspec.structs import replace

from partibus.frontends.sqs.calls import Call
from partibus.frontends.sqs.errors import prefixed
from partibus.frontends.sqs.queues import change_options
from partibus.namespace.access import Right
from partibus.namespace.entities import SqsOptions
from partibus.partition.protocol.commands import PurgeAll
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.replies import Failed
from partibus.routing.partitions import error_of


def purge_queue(call: Call) -> None:
    """Remove all messages and remembered deduplication ids, at most once in the interval."""
    queue = call.queue(Right.MANAGE)
    interval_ms, now_ms = call.state.purge_interval_ms, call.broker.clock.now_ms()
    route = call.entity(queue).route

    def note(old: SqsOptions) -> SqsOptions:
        if old.purged_ms and now_ms < old.purged_ms + interval_ms:
            raise prefixed(
                "PurgeQueueInProgress",
                f"Only one PurgeQueue operation on {queue.name.name} is allowed every {interval_ms // 1000} seconds.",
            )
        return replace(old, purged_ms=now_ms)

    if interval_ms:
        change_options(call.broker, call.home, queue, note)
    open_parts = len(route.partitions)

    def purged(reply: Any) -> None:
        nonlocal open_parts
        if isinstance(reply, Failed):
            if interval_ms:
                change_options(call.broker, call.home, queue, lambda old: replace(old, purged_ms=0))
            raise error_of(reply, queue.queue.name)
        open_parts -= 1
        if not open_parts:
            call.answer()

    for partition in route.partitions:
        partition.submit(PurgeAll(route.numbers.next(), SubqueueKind.ACTIVE), call.guarded(purged))
