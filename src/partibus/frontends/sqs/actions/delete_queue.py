"""DeleteQueue: the queue and its messages are gone at once; waiting receives end empty."""

from partibus.frontends.sqs.calls import Call
from partibus.frontends.sqs.names import entity_name
from partibus.namespace.access import Right
from partibus.namespace.names import fold_name


def delete_queue(call: Call) -> None:
    """Delete the queue."""
    queue = call.queue(Right.MANAGE)
    state, now_ms = call.state, call.broker.clock.now_ms()
    name = entity_name(call.home, queue.name)
    call.broker.delete(name)
    if state.recreate_after_ms:
        for key in [key for key, at_ms in state.deleted_ms.items() if at_ms + state.recreate_after_ms <= now_ms]:
            del state.deleted_ms[key]
        state.deleted_ms[call.broker.namespace.namespace_id, fold_name(name)] = now_ms
    call.answer_when_followed()
