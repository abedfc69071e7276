"""Receipt handles of a request, and the partitions that they lead to."""

from collections.abc import Sequence
from typing import NamedTuple

from partibus.frontends.sqs.batches import Errors
from partibus.frontends.sqs.calls import Call
from partibus.frontends.sqs.errors import SqsError, invalid_value, missing
from partibus.frontends.sqs.handles import Handle, read_handles
from partibus.frontends.sqs.queues import SqsQueue
from partibus.frontends.sqs.quotas import over_budget, throttled
from partibus.namespace.entity import Entity
from partibus.partition.protocol.commands import LockToken
from partibus.routing.elastic import Action
from partibus.routing.partitions import PartitionHandle

_SHOWN_MAX = 200


class Receipt(NamedTuple):
    """A good handle of this queue, and its text."""

    text: str
    handle: Handle
    partition: PartitionHandle
    token: LockToken


def receipt_of(queue: SqsQueue, entity: Entity, text: str | None) -> Receipt:
    """Return what a text names in this queue. Raises `SqsError`."""
    (found,) = receipts_of(queue, entity, (text,))
    if isinstance(found, SqsError):
        raise found
    return found


def receipts_of(queue: SqsQueue, entity: Entity, texts: Sequence[str | None]) -> list[Receipt | SqsError]:
    """Return what each text names in this queue, or why it names nothing. Hot path."""
    found: list[Receipt | SqsError] = []
    of_queue = queue.queue.entity_id, queue.queue.created_ms
    partition: PartitionHandle | None = None
    place = -1
    for text, handle in zip(texts, read_handles(texts), strict=True):
        if handle is None or not text:
            found.append(_no_handle(text))
            continue
        if handle[:2] != of_queue:
            found.append(_unknown(text, "valid for this queue"))
            continue
        if handle.partition_id != place:  # they mostly come from one
            place = handle.partition_id
            partition = entity.route.partition(place)
        if partition is None:  # it was merged away, which only an empty one is
            found.append(not_available(text))
        else:
            found.append(tuple.__new__(Receipt, (text, handle, partition, (handle.lock_id, handle.pos))))
    return found


def _no_handle(text: str | None) -> SqsError:
    return _unknown(text, "a valid receipt handle") if text else missing("ReceiptHandle")


def _unknown(text: str, what: str) -> SqsError:
    return SqsError("ReceiptHandleIsInvalid", f'The input receipt handle "{text[:_SHOWN_MAX]}" is not {what}.')


Part = tuple[PartitionHandle, list[tuple[int, Receipt]]]
"""The receipts of one partition, with their indexes."""


def in_budget(
    call: Call,
    queue: SqsQueue,
    entity: Entity,
    action: Action,
    receipts: Sequence[tuple[int, Receipt]],
    errors: Errors,
) -> list[Part]:
    """Return the parts of a request, one for each partition; put those over their budgets into ``errors`` instead."""
    parts: dict[int, Part] = {}
    for index, receipt in receipts:
        place = receipt.partition.partition_id
        parts.setdefault(place, (receipt.partition, []))[1].append((index, receipt))
    if entity.elastic is None or not parts:
        return list(parts.values())
    sizes = {place: len(members) for place, (_, members) in parts.items()}
    for place in list(over_budget(call, queue, entity, action, sizes)):
        _, members = parts.pop(place)
        errors.update((index, throttled()) for index, _ in members)
    return list(parts.values())


def expired(receipt: Receipt) -> SqsError:
    """Return the error for a FIFO queue's message whose visibility timeout has ended."""
    return invalid_value(receipt.text, "ReceiptHandle", "The receipt handle has expired.")


class MessageGone(SqsError):
    """The error for a message that does not exist: it was deleted, or its partition was, which had to be empty."""


def not_available(text: str) -> MessageGone:
    """Return the error for a handle whose message does not exist."""
    error = invalid_value(
        text, "ReceiptHandle", "Message does not exist or is not available for visibility timeout change."
    )
    return MessageGone(error.code, error.message)
