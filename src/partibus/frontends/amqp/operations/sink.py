"""`partibus:sink` and `partibus:commit-sink`: store rows of a job, each once however often it is sent (row D5).

These are extensions for writers like Spark. One request carries many messages, and is answered when all of them are
durable. An error says that some may not be. Repeating the request stores what is missing, unless rows are not named.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from partibus.amqp.codec.types import Int
from partibus.errors import ArgumentError, InvalidOperation, PartibusError
from partibus.frontends.amqp.operations.request import EntityRequest, failure, integer, items, success
from partibus.message import Message
from partibus.partition.protocol.commands import SINK_ENDS
from partibus.partition.protocol.keys import SubqueueKind
from partibus.routing.entity import EntityRoute
from partibus.routing.send import send
from partibus.routing.sinks import ID_BYTES, commit_sink, put_by_id, put_by_position
from partibus.throttling.uses import Operation

PUT: Final = "partibus:sink"
COMMIT: Final = "partibus:commit-sink"
MESSAGES_MAX: Final = 10_000
REQUEST_BYTES_MAX: Final = 1 << 20
"""The bytes of messages in one request, even if the limit of one message is lower: the more rows a partition gets at a
time, the fewer commits.
"""
AT_ONCE_MAX: Final = 512
"""The messages of a request that are checked before others have their turn: some five milliseconds."""
_KEY_MAX: Final = (1 << 63) - 1


def put(request: EntityRequest) -> None:
    """Reply with the number of rows ``accepted`` now, and of ``duplicates`` that were stored before.

    Each row is charged as a sent message.
    """
    request.check_not_exhausted(Operation.SEND)
    arguments, route, respond = request.arguments, request.entity.route, request.respond
    _check(request)
    sink = _sink(arguments)
    if arguments.get("messages") == []:  # whether one may send is all that is asked
        respond(success({"accepted": Int(0), "duplicates": Int(0)}))
        return
    payloads = items(arguments, "messages", "messages", MESSAGES_MAX)
    count = len(payloads)
    messages: list[Message] = []

    def answered(result: int | PartibusError) -> None:
        if isinstance(result, PartibusError):
            respond(failure(result))
        else:
            respond(success({"accepted": Int(count - result), "duplicates": Int(result)}))

    def look_on() -> None:
        """Check the next messages; then send all."""
        try:
            _read(request, payloads, messages)
        except PartibusError as error:
            respond(failure(error))
            return
        if len(messages) < count:
            request.connection.call_later(0, look_on)
        else:
            request.when_sends_paid(count, go_on)

    send_rows = _sending(arguments, route, sink, messages, count, answered)

    def go_on() -> None:
        """Send the messages; the writer waits while the stores exceed their limits (D24)."""
        if route.overloaded:
            route.when_relieved(go_on)
        else:
            send_rows()

    look_on()


def _sending(
    arguments: Mapping[object, object],
    route: EntityRoute,
    sink: int,
    messages: list[Message],
    count: int,
    answered: Callable[[int | PartibusError], None],
) -> Callable[[], None]:
    """Return the call that sends the rows: by their positions in a source, by their ids, or without a name."""
    if arguments.get("source") is not None:
        source = integer(arguments, "source", -_KEY_MAX, -1)
        return partial(put_by_position, route, messages, source, _positions(arguments, count), answered)
    if arguments.get("ids") is not None:
        return partial(put_by_id, route, messages, sink, _ids(arguments, count), answered)
    return partial(send, route, [messages], lambda errors: answered(errors[0] or 0 if errors else 0))


def commit(request: EntityRequest) -> None:
    """Reply when every partition knows that the batch is committed."""
    arguments, respond = request.arguments, request.respond
    _check(request)

    def done(error: PartibusError | None) -> None:
        respond(success({}) if error is None else failure(error))

    commit_sink(request.entity.route, _sink(arguments), integer(arguments, "batch", 0, SINK_ENDS), done)


def _check(request: EntityRequest) -> None:
    if request.kind != SubqueueKind.ACTIVE:
        raise InvalidOperation(
            f"No client can send to a sub-queue of '{request.entity.queue.name}'. Send to the queue."
        )
    request.entity.check_send()


def _sink(arguments: Mapping[object, object]) -> int:
    return integer(arguments, "sink", -_KEY_MAX, _KEY_MAX)


def _read(request: EntityRequest, payloads: Sequence[object], found: list[Message]) -> None:
    """Decode the next messages into ``found``."""
    request.connection.ingress.begin()
    message_of, queue = request.connection.ingress.message_of, request.entity.queue
    for index in range(len(found), min(len(found) + AT_ONCE_MAX, len(payloads))):
        payload = payloads[index]
        if not isinstance(payload, bytes):
            raise ArgumentError("messages", f"{payload!r} at {index}", "a list of encoded messages")
        try:
            found.append(message_of(payload, queue))
        except PartibusError as error:
            error.message = f"Message {index} of the request: {error.message}"
            raise


def _positions(arguments: Mapping[object, object], count: int) -> list[int]:
    name = "positions"
    found: list[int] = []
    before = 0  # no message has that position
    for value in items(arguments, name, name, MESSAGES_MAX):
        if not isinstance(value, int) or isinstance(value, bool) or value <= before:
            raise ArgumentError(name, value, f"longs that rise, here one above {before}")
        before = int(value)
        found.append(before)
    _check_count(name, len(found), count)
    return found


def _ids(arguments: Mapping[object, object], count: int) -> list[bytes]:
    name = "ids"
    found: list[bytes] = []
    for value in items(arguments, name, name, MESSAGES_MAX):
        if not isinstance(value, bytes) or len(value) != ID_BYTES:
            raise ArgumentError(name, value, f"binaries of {ID_BYTES} bytes")
        found.append(value)
    _check_count(name, len(found), count)
    return found


def _check_count(name: str, found: int, messages: int) -> None:
    if found != messages:
        raise ArgumentError(name, f"{found} of them", f"one for each of the {messages} messages")
