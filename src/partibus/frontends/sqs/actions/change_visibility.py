"""ChangeMessageVisibility, ChangeMessageVisibilityBatch."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from partibus.frontends.sqs.actions.receipts import Receipt, expired, in_budget, not_available, receipt_of
from partibus.frontends.sqs.attributes import VISIBILITY_MAX_S
from partibus.frontends.sqs.batches import NOTHING, Errors, OnDone, Results, answer_single, entries_of
from partibus.frontends.sqs.calls import Call
from partibus.frontends.sqs.errors import SqsError, invalid_value, missing
from partibus.frontends.sqs.queues import SqsQueue
from partibus.namespace.access import Right
from partibus.namespace.entity import Entity
from partibus.partition.protocol.commands import ChangeLocks
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.replies import Failed
from partibus.routing.elastic import Action
from partibus.routing.partitions import error_of


class _Change(NamedTuple):
    receipt: Receipt
    timeout_ms: int


def change_visibility(call: Call) -> None:
    """End a message's visibility timeout so many seconds from now; 0 makes it visible at once."""
    queue = call.queue(Right.LISTEN)
    entity = call.entity(queue)
    change = _change(call, queue, entity, call.members)
    _apply(call, queue, entity, [(0, change)], answer_single(call))


def change_visibility_batch(call: Call) -> None:
    """Change up to ten visibility timeouts; those of each partition together."""
    queue = call.queue(Right.LISTEN)
    entity = call.entity(queue)
    entries = entries_of(call)
    results = Results(call, entries)
    good: list[tuple[int, _Change]] = []
    for index, entry in enumerate(entries):
        try:
            good.append((index, _change(call, queue, entity, entry)))
        except SqsError as error:
            results.failed(index, error)

    outputs = dict.fromkeys([index for index, _ in good], NOTHING)
    _apply(call, queue, entity, good, partial(results.end, outputs))


def _change(call: Call, queue: SqsQueue, entity: Entity, given: Any) -> _Change:
    seconds = given.get("VisibilityTimeout")
    receipt = receipt_of(queue, entity, given.get("ReceiptHandle"))
    if seconds is None:
        raise missing("VisibilityTimeout")
    if not 0 <= seconds <= VISIBILITY_MAX_S:
        raise invalid_value(
            seconds, "VisibilityTimeout", f"VisibilityTimeout must be an integer between 0 and {VISIBILITY_MAX_S}."
        )
    elapsed_ms = call.broker.clock.now_ms() - receipt.handle.received_ms
    if elapsed_ms + seconds * 1000 > VISIBILITY_MAX_S * 1000:
        raise invalid_value(
            seconds,
            "VisibilityTimeout",
            f"Total VisibilityTimeout for the message is beyond the limit [{VISIBILITY_MAX_S} seconds]",
        )
    return _Change(receipt, seconds * 1000)


def _apply(
    call: Call, queue: SqsQueue, entity: Entity, changes: Sequence[tuple[int, _Change]], on_done: OnDone
) -> None:
    errors: Errors = {}
    timeouts = {index: change.timeout_ms for index, change in changes}
    receipts = [(index, change.receipt) for index, change in changes]
    groups = in_budget(call, queue, entity, Action.CHANGE, receipts, errors)
    left = len(groups)
    if not left:
        on_done(errors)
        return

    def changed(members: list[tuple[int, Receipt]]) -> Callable[[Any], None]:
        def answered(reply: Any) -> None:
            nonlocal left
            if isinstance(reply, Failed):
                errors.update((index, error_of(reply, entity.queue.name)) for index, _ in members)
            else:
                for place in reply.lost:
                    index, receipt = members[place]
                    if place in reply.gone:
                        errors[index] = not_available(receipt.text)
                    elif queue.fifo:
                        errors[index] = expired(receipt)
            left -= 1
            if not left:
                on_done(errors)

        return answered

    for partition, members in groups:
        for _, receipt in members:
            call.state.attempts.changed(partition.row, receipt.handle.lock_id)
        command = ChangeLocks(
            entity.route.numbers.next(),
            int(SubqueueKind.ACTIVE),
            [receipt.token for _, receipt in members],
            [timeouts[index] for index, _ in members],
            late=not queue.fifo,
        )
        partition.submit(command, call.guarded(changed(members)))
