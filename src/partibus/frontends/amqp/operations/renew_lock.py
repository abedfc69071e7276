"""`com.microsoft:renew-lock`: extends locks by another LockDuration (row C18)."""

from typing import Any
from uuid import UUID

from partibus.amqp.codec.types import Array, Timestamp
from partibus.errors import InvalidOperation, MessageLockLost
from partibus.frontends.amqp.operations.request import EntityRequest, failure, lock_tokens, success
from partibus.frontends.amqp.operations.spread import ask_all, tokens_by_partition
from partibus.partition.protocol.commands import RenewLocks
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.replies import Failed, LocksRenewed
from partibus.routing.lock_tokens import read_token
from partibus.routing.partitions import error_of

NAME = "com.microsoft:renew-lock"
TIMESTAMP = 0x83


def renew_lock(request: EntityRequest) -> None:
    """Reply with ``expirations``, in the order of the tokens.

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

        respond(success({"expirations": Array(TIMESTAMP, [expiration(token) for token in tokens])}))

    numbers = entity.route.numbers
    ask_all([(partition, RenewLocks(numbers.next(), kind, group)) for partition, group in groups.items()], answered)
