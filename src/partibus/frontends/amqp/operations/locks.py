"""Operations on lock tokens: `update-disposition` settles messages, `renew-lock` extends locks (row C18).

Clients settle so (section 5.3) when the link that delivered a message has ended, and always for deferred messages. On a
sub-queue without sessions any connection with Listen may use it.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from partibus.amqp.codec.types import Array, Timestamp
from partibus.errors import ArgumentError, InvalidOperation, MessageLockLost, SessionLockLost
from partibus.frontends.amqp.operations.request import (
    SESSION_ID,
    EntityRequest,
    failure,
    lock_tokens,
    mapping,
    optional_text,
    success,
    text,
)
from partibus.frontends.amqp.operations.spread import Ask, ask_all, held_session, tokens_by_partition
from partibus.frontends.amqp.outcomes import (
    COMPLETE,
    Settlement,
    abandon,
    check_delay,
    check_target,
    dead_letter,
    defer,
)
from partibus.namespace.names import subqueue_path
from partibus.partition.protocol.commands import RenewLocks, Settle
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.replies import Failed, LocksRenewed
from partibus.routing.lock_tokens import read_token, token_uuid
from partibus.routing.partitions import PartitionHandle, error_of
from partibus.tracing.tracer import OnEnded

UPDATE_DISPOSITION = "com.microsoft:update-disposition"
RENEW = "com.microsoft:renew-lock"
LOST_TOKENS = "partibus:lost-lock-tokens"
_TIMESTAMP = 0x83
_UUID = 0x98


def update_disposition(request: EntityRequest) -> None:
    """Reply when all are settled, durably; in a transaction, when the settlement is noted for the commit.

    If a lock is lost, the reply is that error, and the others are settled all the same. Its body names the lost tokens
    under `LOST_TOKENS`, so that a client knows which messages are settled.
    """
    if request.transaction is not None:
        transaction = request.connection.transactions.find(request.transaction)
        with transaction.operation():
            parts, _ = _read(request)
            for partition, command in parts:
                transaction.settle(request.entity, partition, command)
                traced = _trace(request, partition, command)
                if traced is not None:
                    transaction.when_over(traced)
        request.respond(success())
        return
    parts, lost = _read(request)
    entity, respond = request.entity, request.respond
    traces = [] if entity.tracer is None else [_trace(request, *part) for part in parts]

    def answered(replies: list[Any]) -> None:
        for traced, (_, command), reply in zip(traces, parts, replies, strict=False):
            if traced is not None:
                is_lost = not isinstance(reply, Failed) and len(reply.lost) == len(command.tokens)
                traced(error_of(reply, entity.queue.name) if isinstance(reply, Failed) else lost if is_lost else None)
        for reply in replies:
            if isinstance(reply, Failed):
                respond(failure(error_of(reply, entity.queue.name)))
                return
        tokens = _lost_tokens(parts, replies)
        respond(failure(lost, {LOST_TOKENS: Array(_UUID, tokens)}) if tokens else success())

    asks: list[Ask] = [*parts]
    ask_all(asks, answered)


def _lost_tokens(parts: list[tuple[PartitionHandle, Settle]], replies: list[Any]) -> list[UUID]:
    """Return the tokens whose locks were lost, according to the reply of each partition."""
    return [
        token_uuid(partition.partition_id, *command.tokens[index])
        for (partition, command), reply in zip(parts, replies, strict=True)
        for index in reply.lost
    ]


def _trace(request: EntityRequest, partition: PartitionHandle, command: Settle) -> OnEnded | None:
    """Return the trace of messages received by number or over HTTP; a link traces its own deliveries."""
    entity = request.entity
    if entity.tracer is None:
        return None
    held = entity.tracer.held(subqueue_path(entity.queue.name, request.kind))
    return held.settling(partition.row, command.tokens, command.outcome.name)


def _read(
    request: EntityRequest,
) -> tuple[list[tuple[PartitionHandle, Settle]], MessageLockLost | SessionLockLost]:
    """Return the commands per partition, and the error for a lost lock."""
    entity, arguments = request.entity, request.arguments
    held = held_session(request)
    settlement = _settlement(arguments)
    check_delay(settlement, entity.queue.name, ordered=held is not None)
    check_target(settlement, entity.queue.name, request.kind)
    lost = MessageLockLost() if held is None else SessionLockLost(entity.queue.name, text(arguments, SESSION_ID))
    groups = tokens_by_partition(entity, lock_tokens(arguments), held, lost)
    numbers = entity.route.numbers
    parts = [
        (partition, settlement.command(numbers.next(), request.kind, tokens)) for partition, tokens in groups.items()
    ]
    return parts, lost


def _settlement(arguments: Mapping[object, object]) -> Settlement:
    status = text(arguments, "disposition-status")
    changes = mapping(arguments, "properties-to-modify")
    match status.lower():
        case "completed":
            return COMPLETE
        case "abandoned":
            return abandon(changes)
        case "defered" | "deferred":  # the service's own spelling, and the dictionary's
            return defer(changes)
        case "suspended":
            reason = optional_text(arguments, "deadletter-reason")
            return dead_letter(changes, reason, optional_text(arguments, "deadletter-description"))
    raise ArgumentError("disposition-status", status, "one of completed, abandoned, defered, suspended")


def renew_lock(request: EntityRequest) -> None:
    """Extend locks by another LockDuration; reply with ``expirations``, in the order of the tokens.

    If a lock is no longer held, the reply is that error. Locks in other partitions are renewed all the same, without a
    report.
    """
    entity, kind, respond = request.entity, request.kind, request.respond
    if entity.queue.has_sessions and kind == SubqueueKind.ACTIVE:
        raise InvalidOperation(
            f"Messages of '{entity.queue.name}' are held by their session. Renew the session's lock instead."
        )
    tokens = lock_tokens(request.arguments)
    groups = tokens_by_partition(entity, tokens, None, MessageLockLost())

    def answered(replies: list[Any]) -> None:
        until_ms: dict[tuple[int, int, int], int] = {}
        for (partition, group), reply in zip(groups.items(), replies, strict=True):
            if isinstance(reply, Failed):
                respond(failure(error_of(reply, entity.queue.name)))
                return
            if not isinstance(reply, LocksRenewed):
                respond(failure(MessageLockLost(f"{len(reply.lost)} of {len(tokens)} locks")))
                return
            for token, time_ms in zip(group, reply.until_ms, strict=True):
                until_ms[partition.partition_id, *token] = time_ms

        def expiration(token: UUID) -> Timestamp:
            return Timestamp(until_ms[read_token(token)])

        respond(success({"expirations": Array(_TIMESTAMP, [expiration(token) for token in tokens])}))

    numbers = entity.route.numbers
    ask_all([(partition, RenewLocks(numbers.next(), kind, group)) for partition, group in groups.items()], answered)
