"""DeleteQueue: the queue and its messages are gone at once; waiting receives end empty."""

from partibus.frontends.sqs.calls import Call
from partibus.frontends.sqs.names import entity_name
from partibus.namespace.access import Right
from partibus.namespace.names import fold_name


def delete_queue(call: Call) -> None:
    """Delete the queue."""
    queue = call.queue(Right.MANAGE)
    service, now_ms = call.service, call.broker.clock.now_ms()
    name = entity_name(call.home, queue.name)
    call.broker.delete(name)
    service.queues_of(call.broker).forget(queue.queue)
    if service.recreate_after_ms:
        for key in [key for key, at_ms in service.deleted_ms.items() if at_ms + service.recreate_after_ms <= now_ms]:
            del service.deleted_ms[key]
        service.deleted_ms[call.broker.namespace.record.namespace_id, fold_name(name)] = now_ms
    call.answer()
