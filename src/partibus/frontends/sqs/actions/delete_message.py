"""DeleteMessage, DeleteMessageBatch."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from partibus.frontends.sqs.actions.receipts import MessageGone, Receipt, expired, in_budget, receipt_of, receipts_of
from partibus.frontends.sqs.batches import NOTHING, Errors, OnDone, Results, answer_single, entries_of
from partibus.frontends.sqs.calls import Call
from partibus.frontends.sqs.errors import SqsError
from partibus.frontends.sqs.queues import SqsQueue
from partibus.namespace.access import Right
from partibus.namespace.entity import Entity
from partibus.partition.protocol.replies import Failed
from partibus.routing.elastic import Action
from partibus.routing.partitions import error_of


def delete_message(call: Call) -> None:
    """Delete a message by its receipt handle."""
    queue = call.queue(Right.LISTEN)
    entity = call.entity(queue)
    try:
        receipt = receipt_of(queue, entity, call.members.get("ReceiptHandle"))
    except MessageGone:
        call.answer()
        return
    _delete(call, queue, entity, [(0, receipt)], answer_single(call))


def delete_message_batch(call: Call) -> None:
    """Delete up to ten messages; the receipts of each partition are settled together."""
    queue = call.queue(Right.LISTEN)
    entity = call.entity(queue)
    entries = entries_of(call)
    results = Results(call, entries)
    outputs: dict[int, Mapping[str, Any]] = {}
    good: list[tuple[int, Receipt]] = []
    for index, found in enumerate(receipts_of(queue, entity, [entry.get("ReceiptHandle") for entry in entries])):
        if isinstance(found, SqsError) and not isinstance(found, MessageGone):
            results.failed(index, found)
            continue
        outputs[index] = NOTHING
        if not isinstance(found, SqsError):
            good.append((index, found))
    _delete(call, queue, entity, good, partial(results.end, outputs))


def _delete(
    call: Call, queue: SqsQueue, entity: Entity, receipts: Sequence[tuple[int, Receipt]], on_done: OnDone
) -> None:
    """Complete messages. A standard queue deletes also those whose visibility timeout has ended."""
    errors: Errors = {}
    groups = in_budget(call, queue, entity, Action.DELETE, receipts, errors)
    left = len(groups)
    if not left:
        on_done(errors)
        return

    def settled(
        members: list[tuple[int, Receipt]],
        failed: Failed | None,
        lost: Sequence[int],
        gone: Sequence[int],
    ) -> None:
        nonlocal left
        if failed is not None:
            errors.update((index, error_of(failed, entity.queue.name)) for index, _ in members)
        else:
            if queue.fifo:
                for _, receipt in members:
                    call.state.attempts.deleted(receipt.partition.row, receipt.handle.lock_id)
                for place in set(lost).difference(gone):
                    index, receipt = members[place]
                    errors[index] = expired(receipt)
            deleted = [receipt.handle.pos for index, receipt in members if index not in errors]
            call.state.first_receives.forget(members[0][1].partition.row, deleted)
        left -= 1
        if not left:
            on_done(errors)

    runs, on_settled = call.state.runs, call.guarded(settled)
    for partition, members in groups:
        tokens = [receipt.token for _, receipt in members]
        runs.delete(entity.route, partition, tokens, partial(on_settled, members), late=not queue.fifo)
