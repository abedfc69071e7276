"""`partibus:browse`: read an entity by partition and position, without locks, as messages are delivered.

An operation of our own. The one of `partibus.frontends.amqp.operations.ranges` is faster: readers encode.
"""

from typing import Any

from partibus.amqp.codec.types import Array
from partibus.errors import ArgumentError
from partibus.frontends.amqp.egress import encode_row, encoder_for
from partibus.frontends.amqp.operations.arguments import integer
from partibus.frontends.amqp.operations.request import EntityRequest
from partibus.frontends.amqp.operations.status import failure, success
from partibus.partition.commands import Browse
from partibus.partition.keys import POSITION_MAX
from partibus.partition.replies import Failed
from partibus.routing.partitions import error_of
from partibus.throttling.counters import Operation

BROWSE = "partibus:browse"
BROWSE_BYTES_MAX = 8 << 20
LONG = 0x81


def browse(request: EntityRequest) -> None:
    """Reply with the messages of a range: ``positions``, ``messages`` in parallel, and where to go on. Each is paid for
    as one that is peeked at."""
    request.check_not_exhausted(Operation.PEEK)
    entity, kind, arguments, respond = request.entity, request.kind, request.arguments, request.respond
    count = len(entity.route.partitions)
    partition_id = integer(arguments, "partition-id", 0, count - 1)
    start = integer(arguments, "from-position", 0, POSITION_MAX)
    end = integer(arguments, "to-position", 0, POSITION_MAX)
    size_bytes = integer(arguments, "max-bytes", 1, 1 << 31, BROWSE_BYTES_MAX)
    if end < start:
        raise ArgumentError("to-position", end, f"at least from-position, {start}")
    partition = entity.route.partitions[partition_id]
    encoder = encoder_for(entity, kind, partition_id)

    def answered(reply: Any) -> None:
        if isinstance(reply, Failed):
            respond(failure(error_of(reply, entity.queue.name)))
            return
        rows = reply.rows
        found: dict[object, object] = {
            "positions": Array(LONG, [row.pos for row in rows]),
            "messages": [encode_row(encoder, row) for row in rows],
            "next-position": rows[-1].pos + 1 if rows else end,
        }
        request.when_paid(Operation.PEEK, len(rows), lambda: respond(success(found)))

    command = Browse(entity.route.numbers.next(), kind, start, end, min(size_bytes, BROWSE_BYTES_MAX))
    partition.submit(command, answered)
