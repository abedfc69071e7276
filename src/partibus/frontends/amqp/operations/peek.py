"""`com.microsoft:peek-message`: look without effect (rows P16, P17, A8-A10).

A partitioned entity has no oldest message of all. A peek answers from one partition: the first, counted from the one
that ``from-sequence-number`` names, that has something; who goes on from the last number seen sees every partition.
"""

from typing import Any

from partibus.errors import PartibusError
from partibus.frontends.amqp.egress import encode_row, encoder_for
from partibus.frontends.amqp.node import Reply, Respond
from partibus.frontends.amqp.operations.arguments import integer
from partibus.frontends.amqp.operations.request import EntityRequest
from partibus.frontends.amqp.operations.status import failure, no_content, success
from partibus.namespace.broker import Entity
from partibus.partition.commands import Failed, Peek
from partibus.partition.ports import EntryRow
from partibus.routing.partitions import error_of

NAME = "com.microsoft:peek-message"
COUNT_MAX = 5_000
COUNTER_MAX = (1 << 48) - 1


def peek(request: EntityRequest) -> None:
    """Reply with ``messages``, or 204 when nothing is left."""
    arguments = request.arguments
    start = max(0, integer(arguments, "from-sequence-number", -(1 << 63), (1 << 63) - 1, 0))
    count = integer(arguments, "message-count", 1, 1 << 31, 1)
    partition_id, counter = start >> 48, start & COUNTER_MAX
    _peek_from(request.entity, request.kind, partition_id, counter, min(count, COUNT_MAX), request.respond, None)


def _peek_from(
    entity: Entity,
    kind: int,
    partition_id: int,
    counter: int,
    count: int,
    respond: Respond,
    trouble: PartibusError | None,
) -> None:
    """Try partitions from ``partition_id`` on; one whose store is away is passed over if another has something."""
    route = entity.route
    if partition_id >= len(route.partitions):
        respond(no_content() if trouble is None else failure(trouble))
        return

    def answered(reply: Any) -> None:
        if isinstance(reply, Failed):
            error = error_of(reply, entity.queue.name)
            _peek_from(entity, kind, partition_id + 1, 0, count, respond, error)
        elif not reply.rows:
            _peek_from(entity, kind, partition_id + 1, 0, count, respond, trouble)
        else:
            respond(_messages(entity, kind, partition_id, reply.rows))

    route.partitions[partition_id].submit(Peek(route.numbers.next(), kind, counter, count), answered)


def _messages(entity: Entity, kind: int, partition_id: int, rows: list[EntryRow]) -> Reply:
    encoder = encoder_for(entity, kind, partition_id)
    return success({"messages": [{"message": encode_row(encoder, row)} for row in rows]})
