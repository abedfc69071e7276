"""`partibus:open-cursor`, `advance-cursor`, `close-cursor` and `cursors`: named readers of a sub-queue (D14).

These are extensions under the Listen right: a client that may receive messages may also retain and complete them.
"""

from collections.abc import Callable
from itertools import pairwise

from partibus.amqp.codec.types import Array, Int
from partibus.errors import ArgumentError, PartibusError
from partibus.frontends.amqp.operations.ranges import LONG, check_readable
from partibus.frontends.amqp.operations.request import (
    EntityRequest,
    boolean,
    by_partition,
    failure,
    integer,
    items,
    mapping,
    success,
    text,
)
from partibus.partition.protocol.commands import EARLIEST, LATEST
from partibus.partition.protocol.keys import POSITION_MAX
from partibus.partition.protocol.replies import CursorInfo, CursorOpened, Inspected
from partibus.routing.arrivals import end_of, passed_over_in
from partibus.routing.cursors import OpenAll, advance_all, close_all
from partibus.routing.entity import inspect_all
from partibus.routing.partitions import error_of

OPEN = "partibus:open-cursor"
ADVANCE = "partibus:advance-cursor"
CLOSE = "partibus:close-cursor"
LIST = "partibus:cursors"
NAME_MAX = 128
"""The longest name in characters."""
BOUND_BYTES = 1 << 30
LEASE_MAX_MS = 3_600_000
"""The longest lease: receivers wait for so long after a reader is lost."""
ONLY_MAX = 4_096
"""The most positions of each partition in one request."""
_NUMBER_MAX = (1 << 63) - 1
_STARTS = {"earliest": EARLIEST, "latest": LATEST}


def open_cursor(request: EntityRequest) -> None:
    """Make a cursor in every partition, or find it; reply with its positions."""
    check_readable(request)
    arguments, route = request.arguments, request.entity.route
    OpenAll(
        route,
        request.kind,
        _name(request),
        _start(request),
        by_partition(arguments, "epochs", len(route.partitions), 0, _NUMBER_MAX),
        lambda answer: _respond(request, answer),
        dispositions=boolean(arguments, "fates"),
        bound_bytes=_bound_bytes(request),
        lease_ms=integer(arguments, "lease-ms", 0, LEASE_MAX_MS, 0),
        revoke=boolean(arguments, "revoke"),
    ).start()


def advance_cursor(request: EntityRequest) -> None:
    """Reply with the cursor's positions in the named partitions, once they are durable."""
    check_readable(request)
    arguments, route = request.arguments, request.entity.route
    count = len(route.partitions)
    advance_all(
        route,
        request.kind,
        _name(request),
        by_partition(arguments, "positions", count, 0, POSITION_MAX + 1),
        by_partition(arguments, "fate-positions", count, 0, _NUMBER_MAX),
        by_partition(arguments, "epochs", count, 0, _NUMBER_MAX),
        lambda answer: _respond(request, answer),
        _only(request),
    )


def close_cursor(request: EntityRequest) -> None:
    """End a cursor's exclusive lease, or drop the cursor."""
    check_readable(request)
    arguments, route = request.arguments, request.entity.route

    def closed(error: PartibusError | None) -> None:
        request.respond(success() if error is None else failure(error))

    epochs = by_partition(arguments, "epochs", len(route.partitions), 0, _NUMBER_MAX)
    close_all(route, request.kind, _name(request), epochs, closed, drop=boolean(arguments, "drop"))


def cursors(request: EntityRequest) -> None:
    """Reply with the sub-queue's cursors by name, and their positions in the partitions that know them."""
    check_readable(request)
    entity, respond, clock = request.entity, request.respond, request.connection.broker.clock

    def inspected(found: list[Inspected]) -> None:
        named: dict[str, list[dict[object, object]]] = {}
        for index, one in enumerate(found):
            for cursor in one.cursors:
                if cursor.kind == request.kind:
                    named.setdefault(cursor.name, []).append(_partition(index, cursor, one))
        rows = [_cursor(name, request.kind, partitions) for name, partitions in sorted(named.items())]
        respond(success({"cursors": rows, "now-ms": int(clock.now_ms())}))

    inspect_all(entity.route, inspected, lambda failed: respond(failure(error_of(failed, entity.queue.name))))


def _cursor(name: str, kind: int, partitions: list[dict[object, object]]) -> dict[object, object]:
    def total(key: str) -> int:
        return sum(value for one in partitions if isinstance(value := one[key], int))

    return {
        "name": name,
        "kind": Int(kind),
        "partitions": partitions,
        "retained": total("retained"),
        "retained-bytes": total("retained-bytes"),
    }


def _partition(index: int, cursor: CursorInfo, inspected: Inspected) -> dict[object, object]:
    retained, retained_bytes = inspected.retained.get(cursor.kind, (0, 0))
    return {
        "partition-id": Int(index),
        "epoch": cursor.epoch,
        "until": cursor.until_ms,
        "position": cursor.position,
        "fate-position": cursor.disposition_position,
        "complete-from": cursor.complete_from,
        "moved": cursor.moved_ms,
        "end-position": end_of(inspected, cursor.kind),
        "passed-over": Array(LONG, [pos for pair in passed_over_in(inspected, cursor.kind) for pos in pair]),
        "bound-bytes": cursor.bound_bytes,
        "retained": retained,
        "retained-bytes": retained_bytes,
    }


def _respond(request: EntityRequest, answer: dict[int, CursorOpened] | PartibusError) -> None:
    if isinstance(answer, PartibusError):
        request.respond(failure(answer))
        return
    rows: list[dict[object, object]] = [
        {
            "partition-id": Int(index),
            "epoch": one.epoch,
            "until": one.until_ms,
            "position": one.position,
            "fate-position": one.disposition_position,
            "complete-from": one.complete_from,
            "end-position": one.end_pos,
        }
        for index, one in sorted(answer.items())
    ]
    request.respond(success({"cursors": rows}))


def _only(request: EntityRequest) -> dict[int, list[int]]:
    """Return the positions to complete one by one, in ascending order."""
    given = mapping(request.arguments, "only")
    by_partition({"only": dict.fromkeys(given, 0)}, "only", len(request.entity.route.partitions), 0, 0)
    found: dict[int, list[int]] = {}
    for key, value in given.items():
        positions = items({"only": value}, "only", "positions", ONLY_MAX)
        numbers = [integer({"only": position}, "only", 0, POSITION_MAX) for position in positions]
        if any(second <= first for first, second in pairwise(numbers)):
            raise ArgumentError("only", numbers, "positions that rise")
        found[int(key)] = numbers  # type: ignore[call-overload]
    return found


def _name(request: EntityRequest) -> str:
    name = text(request.arguments, "name")
    if not 1 <= len(name) <= NAME_MAX or not name.isprintable():
        raise ArgumentError("name", name, f"from 1 to {NAME_MAX} printable characters")
    return name


def _bound_bytes(request: EntityRequest) -> int:
    """Return the limit on retained bytes, which are no part of the entity's size.

    It limits how much of the disk a tenant may use for them.
    """
    most = request.connection.broker.namespace.bounds.limits.retained_mb << 20
    if request.arguments.get("bound-bytes") is None:
        return min(BOUND_BYTES, most)
    asked = integer(request.arguments, "bound-bytes", 0, (1 << 63) - 1)
    if asked > most:
        raise ArgumentError(
            "bound-bytes",
            asked,
            f"at most {most}, by the limit retained_mb of the namespace",
            "Keep less, or have the limit raised.",
        )
    return asked


def _start(request: EntityRequest) -> Callable[[int], int]:
    """Return where a new cursor begins in a partition; one missing in the map begins at the earliest message."""
    value = request.arguments.get("start")
    if isinstance(value, dict):
        count = len(request.entity.route.partitions)
        positions = by_partition(request.arguments, "start", count, 0, POSITION_MAX + 1)
        return lambda index: positions.get(index, EARLIEST)
    if value is None:
        return lambda _: EARLIEST
    start = _STARTS.get(value) if isinstance(value, str) else None
    if start is None:
        raise ArgumentError("start", value, "earliest, latest, or a map of positions by partition id")
    return lambda _: start
