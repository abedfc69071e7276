"""`partibus:partitions`, `wait`, `read-range` and `read-fates`: an entity by partition and position, without locks.

These are extensions for readers that read everything in parallel: one request, one large answer, which is sent as the
store packed it (`partition.protocol.ports.RangeFrame`).
"""

from typing import Any

from partibus.amqp.codec.types import Array, Int
from partibus.errors import ArgumentError, InvalidOperation
from partibus.frontends.amqp.operations.request import (
    ANSWER_BYTES_MAX,
    EntityRequest,
    boolean,
    by_partition,
    failure,
    integer,
    optional_text,
    success,
    text,
)
from partibus.namespace.entities import EntityKind
from partibus.namespace.names import subqueue_path
from partibus.partition.protocol.commands import ReadDispositions, ReadRange
from partibus.partition.protocol.keys import POSITION_MAX
from partibus.partition.protocol.ports import DispositionRow
from partibus.partition.protocol.replies import DispositionsRead, Failed, Inspected, RangeRead
from partibus.routing.arrivals import end_of, passed_over_in
from partibus.routing.cursors import cursor_error
from partibus.routing.entity import inspect_all
from partibus.routing.partitions import PartitionHandle, error_of
from partibus.throttling.uses import Operation

PARTITIONS = "partibus:partitions"
WAIT = "partibus:wait"
READ_RANGE = "partibus:read-range"
READ_DISPOSITIONS = "partibus:read-fates"
WAIT_MAX_MS = 25_000
"""The longest wait, below the time after which clients and intermediaries take a silent request for lost."""
DISPOSITIONS_MAX = 50_000
"""The most lines in one answer: some 40 bytes each."""
LONG = 0x81


def partitions(request: EntityRequest) -> None:
    """Reply with the range of positions and the number of messages of every partition."""
    check_readable(request)
    name, respond = request.entity.queue.name, request.respond
    inspect_all(
        request.entity.route,
        lambda found: respond(success(_map(request, found))),
        lambda failed: respond(failure(error_of(failed, name))),
    )


def wait(request: EntityRequest) -> None:
    """Reply as `partitions`, once the end of a partition exceeds the request's ``positions``, or at the time-out."""
    check_readable(request)
    entity, kind = request.entity, request.kind
    positions = by_partition(request.arguments, "positions", len(entity.route.partitions), 0, POSITION_MAX)
    timeout_ms = min(integer(request.arguments, "timeout-ms", 0, 1 << 31, 0), WAIT_MAX_MS)

    def arrived(found: list[Inspected] | Failed) -> None:
        if isinstance(found, Failed):
            request.respond(failure(error_of(found, entity.queue.name)))
        else:
            request.respond(success(_map(request, found)))

    request.connection.broker.arrivals.wait(entity.route, kind, positions, timeout_ms, arrived)


def _map(request: EntityRequest, found: list[Inspected]) -> dict[object, object]:
    queue, kind = request.entity.queue, request.kind
    rows: list[dict[object, object]] = []
    for index, one in enumerate(found):
        retained, retained_bytes = one.retained.get(kind, (0, 0))
        subqueue = one.subqueues.get(kind)  # sub-queues for transfers exist only while they hold messages
        rows.append(
            {
                "partition-id": Int(index),
                "first-position": 0,
                "end-position": end_of(one, kind),
                "passed-over": Array(LONG, [pos for pair in passed_over_in(one, kind) for pos in pair]),
                "messages": 0 if subqueue is None else subqueue.messages,
                "retained": retained,
                "retained-bytes": retained_bytes,
            }
        )
    return {
        "entity": subqueue_path(queue.name, kind),
        # A namespace does not reuse an entity's number; two namespaces do not make one in the same millisecond.
        "entity-id": f"{queue.entity_id}-{queue.created_ms}" + (f"-{kind}" if kind else ""),
        "map-version": Int(1 + queue.slots.version),
        "partitions": rows,
    }


def read_range(request: EntityRequest) -> None:
    """Reply with the first part of a range: ``count`` messages in a ``frame``, and the next position.

    Each message is charged as a peeked one.
    """
    request.check_not_exhausted(Operation.PEEK)
    check_readable(request)
    entity, arguments, respond = request.entity, request.arguments, request.respond
    partition = partition_of(request)
    start = integer(arguments, "from-position", 0, POSITION_MAX)
    end = integer(arguments, "to-position", 0, POSITION_MAX + 1)
    if end < start:
        raise ArgumentError("to-position", end, f"at least from-position, {start}")
    size_bytes = min(integer(arguments, "max-bytes", 1, 1 << 31, ANSWER_BYTES_MAX), ANSWER_BYTES_MAX)
    cursor = optional_text(arguments, "cursor")

    def answered(reply: Any) -> None:
        if not isinstance(reply, RangeRead):
            respond(failure(cursor_error(reply, entity.queue.name, cursor or "")))
            return
        found: dict[object, object] = {
            "count": reply.count,
            "next-position": reply.next_pos,
            "complete-from": reply.complete_from,
            "frame": reply.data,
        }
        request.when_paid(Operation.PEEK, reply.count, lambda: respond(success(found)))

    number, is_finished = entity.route.numbers.next(), boolean(arguments, "finished")
    partition.submit(ReadRange(number, request.kind, start, end, size_bytes, is_finished, cursor), answered)


def read_dispositions(request: EntityRequest) -> None:
    """Reply with lines of the disposition log, in parallel arrays."""
    check_readable(request)
    entity, arguments, respond = request.entity, request.arguments, request.respond
    partition = partition_of(request)
    cursor = text(arguments, "cursor")
    start = integer(arguments, "from-number", 0, (1 << 63) - 1)
    most = min(integer(arguments, "most", 1, 1 << 31, DISPOSITIONS_MAX), DISPOSITIONS_MAX)

    def answered(reply: Any) -> None:
        if isinstance(reply, DispositionsRead):
            columns = list(zip(*reply.rows, strict=True)) or [()] * len(DispositionRow._fields)
            names = ("numbers", "positions", "sequences", "fates", "times", "delivery-counts")
            respond(success({name: Array(LONG, list(column)) for name, column in zip(names, columns, strict=True)}))
        else:
            respond(failure(cursor_error(reply, entity.queue.name, cursor)))

    partition.submit(ReadDispositions(entity.route.numbers.next(), request.kind, cursor, start, most), answered)


def check_readable(request: EntityRequest) -> None:
    """Raise `InvalidOperation` for a topic: its messages are in its subscriptions."""
    queue = request.entity.queue
    if queue.kind is EntityKind.TOPIC:
        raise InvalidOperation(f"'{queue.name}' is a topic. Read one of its subscriptions.")


def partition_of(request: EntityRequest) -> PartitionHandle:
    """Return the partition that a request names. Raises `ArgumentError`."""
    found = request.entity.route.partitions
    return found[integer(request.arguments, "partition-id", 0, len(found) - 1)]
