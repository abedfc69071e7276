"""`com.microsoft:schedule-message` and `cancel-scheduled-message`: messages that become active later."""

from typing import Any

from partibus.amqp.codec.types import Array
from partibus.errors import ArgumentError, InvalidOperation, MessageNotFound, PartibusError
from partibus.frontends.amqp.ingress import SCHEDULED_TIME
from partibus.frontends.amqp.operations.request import EntityRequest, failure, items, sequence_numbers, success
from partibus.frontends.amqp.operations.spread import ask_all, counters_by_partition, numbers_of
from partibus.message import Message
from partibus.partition.protocol.commands import CancelScheduled
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.replies import Accepted, Failed, NotFound
from partibus.routing.partitions import error_of
from partibus.routing.send import send_numbered
from partibus.throttling.uses import Operation
from partibus.tracing.tracer import OnEnded, Step

SCHEDULE = "com.microsoft:schedule-message"
CANCEL = "com.microsoft:cancel-scheduled-message"
LONG = 0x81
AT_ONCE_MAX = 512
"""The messages of a request that are checked before others have their turn: some eight milliseconds."""


def schedule_message(request: EntityRequest) -> None:
    """Reply with ``sequence-numbers``, in the order of the messages, once all are stored.

    A message that is due already becomes active at once. If some could not be stored, the reply is that error, and the
    others are cancelled again. In a transaction the numbers are returned now, and the messages stored at the commit.
    """
    request.check_not_exhausted(Operation.SEND)
    if request.transaction is None:
        _schedule(request)
        return
    transaction = request.connection.transactions.find(request.transaction)
    respond = request.respond
    with transaction.operation():
        messages: list[Message] = []
        payloads = _payloads(request)
        _read(request, payloads, messages, len(payloads))

        def numbered(reply: Any) -> None:
            if isinstance(reply, Accepted):
                first = reply.first_sequence
                _reply(request, numbers_of(partition, range(first, first + len(messages))))
            else:
                respond(failure(error_of(reply, request.entity.queue.name)))

        partition = transaction.schedule(request.entity, messages, numbered)
        traced = _trace(request, messages)
        if traced is not None:
            transaction.when_over(traced)
        request.note_sends(len(messages))
        if request.throttle.active:
            request.throttle.charge_sends(len(messages), request.entity.queue.rule_count)


def _schedule(request: EntityRequest) -> None:
    payloads = _payloads(request)
    messages: list[Message] = []

    def look_on() -> None:
        """Check the next messages; then send all."""
        try:
            _read(request, payloads, messages, AT_ONCE_MAX)
        except PartibusError as error:
            request.respond(failure(error))
            return
        if len(messages) < len(payloads):
            request.connection.call_later(0, look_on)
        else:
            request.when_sends_paid(len(messages), go_on)

    def go_on() -> None:
        traced = _trace(request, messages)

        def sent(numbers: list[int] | PartibusError) -> None:
            error = numbers if isinstance(numbers, PartibusError) else None
            if traced is not None:
                traced(error)
            if isinstance(numbers, PartibusError):
                request.respond(failure(numbers))
            else:
                _reply(request, numbers)

        send_numbered(request.entity.route, messages, sent)

    look_on()


def _trace(request: EntityRequest, messages: list[Message]) -> OnEnded | None:
    entity = request.entity
    if entity.tracer is None:
        return None
    return entity.tracer.beginning(Step.SEND, entity.queue.name, (message.data for message in messages))


def _reply(request: EntityRequest, numbers: list[int]) -> None:
    request.respond(success({"sequence-numbers": Array(LONG, numbers)}))


def _payloads(request: EntityRequest) -> list[object]:
    """Return the request's list of messages. Raises the error that refuses all of them."""
    entity = request.entity
    if request.kind != SubqueueKind.ACTIVE:
        raise InvalidOperation(
            f"No client can send to a sub-queue of '{entity.queue.name}'. Schedule at the queue itself."
        )
    entity.check_send()
    return items(request.arguments, "messages", "messages")


def _read(request: EntityRequest, payloads: list[object], found: list[Message], count: int) -> None:
    """Decode the next ``count`` messages into ``found``.

    Fields of the request that repeat a part of a message (its keys, for example) are ignored.
    """
    entity = request.entity
    request.connection.ingress.begin()
    for item in payloads[len(found) : len(found) + count]:
        payload = item.get("message") if isinstance(item, dict) else None
        if not isinstance(payload, bytes):
            raise ArgumentError("messages", item, "a list of maps with the encoded message under 'message'")
        message = request.connection.ingress.message_of(payload, entity.queue)
        if message.scheduled_ms is None:
            raise ArgumentError(
                SCHEDULED_TIME, None, "set in each message to schedule", "To send at once, use a sender link."
            )
        found.append(message)


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
