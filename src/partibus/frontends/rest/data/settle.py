"""Complete, unlock, renew, by the lock token.

The number or id before it in the address is ignored: the token names its message.
"""

from functools import partial
from typing import Any

from starlette.responses import Response

from partibus.errors import InvalidOperation, MessageLockLost, PartibusError
from partibus.frontends.rest.answers import answer_of
from partibus.frontends.rest.data.calls import DataCall, read_lock
from partibus.frontends.rest.data.message_out import date_text
from partibus.namespace.names import subqueue_path
from partibus.partition.protocol.commands import Command, LockToken, Outcome, RenewLocks, Settle
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.replies import Failed, LocksRenewed
from partibus.routing.lock_tokens import read_token
from partibus.routing.partitions import PartitionHandle, error_of


async def complete(call: DataCall) -> Response:
    """Complete the message."""
    return await _settle(call, Outcome.COMPLETE)


async def unlock(call: DataCall) -> Response:
    """Return the message to its place, with one more delivery counted."""
    return await _settle(call, Outcome.ABANDON)


async def renew(call: DataCall) -> Response:
    """Lock the message for another LockDuration; the header ``LockedUntilUtc`` has the end."""
    partition, token = _locked(call)
    reply = await _ask(call, partition, RenewLocks(call.entity.route.numbers.next(), call.kind, [token]))
    if not isinstance(reply, LocksRenewed):
        raise MessageLockLost
    return Response(None, 200, {"LockedUntilUtc": date_text(reply.until_ms[0])})


async def _settle(call: DataCall, outcome: Outcome) -> Response:
    partition, token = _locked(call)
    traced, tracer, name = None, call.entity.tracer, call.entity.queue.name
    if tracer is not None:
        traced = tracer.held(subqueue_path(name, call.kind)).settling(partition.row, [token], outcome.name)
    try:
        reply = await _ask(call, partition, Settle(call.entity.route.numbers.next(), call.kind, outcome, [token]))
        if reply.lost:
            raise MessageLockLost
    except PartibusError as error:
        if traced is not None:
            traced(error)
        raise
    if traced is not None:
        traced(None)
    return Response(None, 200)


def _locked(call: DataCall) -> tuple[PartitionHandle, LockToken]:
    """Return the partition of a token, and the partition's own token.

    Raises `MessageLockLost` without such a partition.
    """
    queue = call.entity.queue
    if queue.has_sessions and call.kind == SubqueueKind.ACTIVE:
        raise InvalidOperation(f"Messages of '{queue.name}' are their session's. Settle and renew over AMQP.")
    lock = read_lock(call.place)
    if lock is None:
        raise MessageLockLost
    partition_id, lock_id, pos = read_token(lock)
    partitions = call.entity.route.partitions
    if partition_id >= len(partitions):
        raise MessageLockLost
    return partitions[partition_id], (lock_id, pos)


async def _ask(call: DataCall, partition: PartitionHandle, command: Command) -> Any:
    reply: Any = await answer_of(partial(partition.submit, command))
    if isinstance(reply, Failed):
        raise error_of(reply, call.entity.queue.name)
    return reply
