"""`com.microsoft:cancel-scheduled-message`: cancels scheduled messages."""

from typing import Any

from partibus.errors import MessageNotFound, PartibusError
from partibus.frontends.amqp.operations.request import EntityRequest, failure, sequence_numbers, success
from partibus.frontends.amqp.operations.spread import ask_all, counters_by_partition, numbers_of
from partibus.partition.protocol.commands import CancelScheduled
from partibus.partition.protocol.replies import Failed, NotFound
from partibus.routing.partitions import error_of

NAME = "com.microsoft:cancel-scheduled-message"


def cancel_scheduled(request: EntityRequest) -> None:
    """Reply when all are cancelled.

    In one partition all are cancelled or none. If one of them is not (or no longer) scheduled, the reply is that error,
    and the messages of other partitions are cancelled all the same: repeating the request for the rest is safe.
    """
    entity, kind, respond = request.entity, request.kind, request.respond
    groups = counters_by_partition(entity, "scheduled", sequence_numbers(request.arguments))

    def answered(replies: list[Any]) -> None:
        missing: list[int] = []
        trouble: PartibusError | None = None
        for partition, reply in zip(groups, replies, strict=True):
            if isinstance(reply, Failed):
                trouble = error_of(reply, entity.queue.name)
            elif isinstance(reply, NotFound):
                missing += numbers_of(partition, reply.sequences)
        if trouble is not None:
            respond(failure(trouble))
        elif missing:
            respond(failure(MessageNotFound(entity.queue.name, "scheduled", missing)))
        else:
            respond(success())

    numbers = entity.route.numbers
    ask_all(
        [(partition, CancelScheduled(numbers.next(), kind, group)) for partition, group in groups.items()], answered
    )
