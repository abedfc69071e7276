"""Receipt handles of a request, and the partitions that they lead to."""

from collections.abc import Sequence
from typing import NamedTuple

from partibus.frontends.sqs.errors import SqsError, invalid_value, missing
from partibus.frontends.sqs.handles import Handle, read_handle
from partibus.frontends.sqs.queues import SqsQueue
from partibus.namespace.entity import Entity
from partibus.partition.protocol.commands import LockToken
from partibus.routing.partitions import PartitionHandle

_SHOWN_MAX = 200


class Receipt(NamedTuple):
    """A good handle of this queue, and its text."""

    text: str
    handle: Handle
    partition: PartitionHandle

    @property
    def token(self) -> LockToken:
        """The lock token."""
        return self.handle.lock_id, self.handle.pos


def receipt_of(queue: SqsQueue, entity: Entity, text: str | None) -> Receipt:
    """Return what a text names in this queue. Raises `SqsError`."""
    if not text:
        raise missing("ReceiptHandle")
    handle = read_handle(text)
    if handle is None:
        raise SqsError(
            "ReceiptHandleIsInvalid", f'The input receipt handle "{text[:_SHOWN_MAX]}" is not a valid receipt handle.'
        )
    partition = entity.route.partition(handle.partition_id)
    same = (handle.entity_id, handle.created_ms) == (queue.queue.entity_id, queue.queue.created_ms)
    if not same or partition is None:
        raise SqsError(
            "ReceiptHandleIsInvalid", f'The input receipt handle "{text[:_SHOWN_MAX]}" is not valid for this queue.'
        )
    return Receipt(text, handle, partition)


def by_partition(receipts: Sequence[tuple[int, Receipt]]) -> list[tuple[PartitionHandle, list[tuple[int, Receipt]]]]:
    """Group the receipts of a batch, with their indexes, by partition."""
    groups: dict[int, tuple[PartitionHandle, list[tuple[int, Receipt]]]] = {}
    for index, receipt in receipts:
        place = receipt.partition.partition_id
        groups.setdefault(place, (receipt.partition, []))[1].append((index, receipt))
    return list(groups.values())


def expired(receipt: Receipt) -> SqsError:
    """Return the error for a FIFO queue's message whose visibility timeout has ended."""
    return invalid_value(receipt.text, "ReceiptHandle", "The receipt handle has expired.")


def not_available(receipt: Receipt) -> SqsError:
    """Return the error for a message that does not exist."""
    return invalid_value(
        receipt.text,
        "ReceiptHandle",
        "Message does not exist or is not available for visibility timeout change.",
    )
