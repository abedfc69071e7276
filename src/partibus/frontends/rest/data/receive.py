"""Receive the next message, under lock or deleted; complete, unlock and renew it by its lock token.

A request waits at most as long as it says, and not while the broker stops. A message that arrives when its client has
disconnected goes back uncounted; a deleted one is lost, as receive-and-delete means.

The number or id before the lock token in an address is ignored: the token names its message.
"""

import re
from functools import partial
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from partibus.errors import (
    ArgumentError,
    EntityDisabled,
    EntityNotFound,
    InvalidOperation,
    MessageLockLost,
    PartibusError,
    ServerBusy,
)
from partibus.frontends.rest.claims import host_of
from partibus.frontends.rest.data.calls import DataCall, read_lock
from partibus.frontends.rest.data.message_out import body_of, date_text, headers_of, sequence_number
from partibus.frontends.rest.requests import HTTP, Handover, answer_of, check_not_exhausted, pay
from partibus.namespace.names import subqueue_path
from partibus.partition.protocol.commands import Command, LockToken, Outcome, RenewLocks, Settle
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.replies import Failed, Granted, LocksRenewed
from partibus.routing.lock_tokens import read_token, token_uuid
from partibus.routing.partitions import PartitionHandle, error_of
from partibus.throttling.uses import Operation
from partibus.tracing.tracer import Tracer

TIMEOUT_S = 60
"""How long is waited where the request says nothing."""
TIMEOUT_MAX_S = 300
LEAST_WAIT_S = 0.25
"""Partitions are asked and answer within it; with no time at all nothing would ever be found."""

_SECONDS = re.compile(r"[0-9]{1,9}")
_Found = tuple[PartitionHandle, Granted] | PartibusError


async def receive_and_delete(call: DataCall) -> Response:
    """200 with the message, or 204."""
    return await _receive(call, delete=True)


async def peek_lock(call: DataCall) -> Response:
    """201 with the message and the address of its lock, or 204."""
    return await _receive(call, delete=False)


async def _receive(call: DataCall, *, delete: bool) -> Response:
    entity = call.entity
    entity.check_receive()
    refusal = entity.refusal_of_receivers(call.kind)
    if refusal is not None:
        raise refusal
    if entity.queue.has_sessions and call.kind == SubqueueKind.ACTIVE:
        raise InvalidOperation(f"'{entity.queue.name}' requires sessions, which HTTP does not have. Receive over AMQP.")
    timeout_s = _timeout_s(call.request.query_params.get("timeout"))
    check_not_exhausted(call.broker, Operation.RECEIVE)
    receiver = _Receiver(call, delete=delete)
    try:
        found = await receiver.receive(timeout_s)
    finally:
        receiver.close()
    if found is None:
        return Response(None, 204)
    if isinstance(found, PartibusError):
        raise found
    await receiver.pay(*found)
    if entity.tracer is not None:
        _trace(call, entity.tracer, *found, delete=delete)
    return _answer(call, *found, delete=delete)


def _trace(call: DataCall, tracer: Tracer, partition: PartitionHandle, granted: Granted, *, delete: bool) -> None:
    held = tracer.held(subqueue_path(call.entity.queue.name, call.kind))
    traced = [(entry.pos, entry.data, entry.enqueued_ms, entry.delivery_count + 1) for entry in granted.entries]
    held.delivered(partition.row, granted.lock_id, traced, settles=not delete)


def _timeout_s(given: str | None) -> int:
    if given is None:
        return TIMEOUT_S
    if not _SECONDS.fullmatch(given):
        raise ArgumentError("timeout", given, "a whole number of seconds")
    return min(int(given), TIMEOUT_MAX_S)


class _Receiver:
    """Waits for one message, as a link of AMQP would."""

    def __init__(self, call: DataCall, *, delete: bool) -> None:
        """Begin to receive. Raises `ServerBusy` when the entity has as many receivers as it takes."""
        entity = self._entity = call.entity
        call.broker.clients.add_receiver(entity.queue)
        self._call = call
        self._delete = delete
        self._closed = False
        self._found: Handover[_Found] = Handover()
        self._most_bytes = call.broker.limits.connection.outgoing_bytes
        self._source = entity.route.source(call.kind, delete=delete, on_granted=self._granted, on_failed=self._failed)
        entity.join(self)

    @property
    def waiting(self) -> bool:
        """Whether the request waits for messages; the entity is not idle meanwhile."""
        return True

    def on_entity_changed(self) -> None:
        """Check again whether the entity is open for receivers."""
        queue = self._entity.queue
        refusal: PartibusError | None = self._entity.refusal_of_receivers(self._call.kind)
        if queue.deleted:
            refusal = EntityNotFound(queue.name)
        elif not queue.can_receive:
            refusal = EntityDisabled(queue.name, queue.description.options.status.value)
        if refusal is not None:
            self._found.give(refusal)

    async def receive(self, timeout_s: float) -> _Found | None:
        """Receive a message. Return None when none came in time, or the client has left."""
        self._ask()
        has_left = await self._found.wait_with(self._call.request, max(timeout_s, LEAST_WAIT_S), self._call.stopping)
        if self._found.look() is None:
            stopped: Handover[None] = Handover()
            self._source.stop(partial(_tell, stopped))
            await stopped.wait()
        found = self._found.look()
        if has_left and isinstance(found, tuple):
            self._release(*found)
            return None
        return found

    async def pay(self, partition: PartitionHandle, granted: Granted) -> None:
        """Charge for the message that came. Raises `ServerBusy`; then the message was requeued."""
        throttle = self._call.broker.throttle
        if self._delete:
            if throttle.uses is not None:
                throttle.uses.add(self._entity.queue.name, HTTP, Operation.RECEIVE, 1, 1)
            if throttle.active:
                throttle.charge(Operation.RECEIVE, 1)  # no other copy of it exists
            return
        try:
            await pay(self._call.broker, Operation.RECEIVE, self._entity.queue.name)
        except ServerBusy:
            self._release(partition, granted)
            raise

    def close(self) -> None:
        """End the receiver."""
        self._closed = True
        self._entity.leave(self)
        self._call.broker.clients.remove_receiver(self._entity.queue)
        self._source.close()

    def _failed(self, error: PartibusError) -> None:
        self._found.give(error)

    def _ask(self) -> None:
        self._source.ask(1, self._most_bytes)

    def _granted(self, partition: PartitionHandle, granted: Granted) -> None:
        if not granted.entries:
            # The reservation had lapsed.
            if granted.ended and not self._closed:
                self._ask()
        elif self._closed or not self._found.give((partition, granted)):
            self._release(partition, granted)

    def _release(self, partition: PartitionHandle, granted: Granted) -> None:
        if not self._delete:
            tokens = [(granted.lock_id, entry.pos) for entry in granted.entries]
            partition.submit(Settle(0, self._call.kind, Outcome.RELEASE, tokens))


def _tell(stopped: Handover[None]) -> None:
    stopped.give(None)


def _answer(call: DataCall, partition: PartitionHandle, granted: Granted, *, delete: bool) -> Response:
    (entry,) = granted.entries
    data = entry.data
    assert data is not None, "a grant brings bodies"
    partition_id = partition.partition_id
    token = None if delete else token_uuid(partition_id, granted.lock_id, entry.pos)
    locked_until_ms = None if delete else granted.until_ms
    headers = headers_of(entry, data, partition_id, token=token, locked_until_ms=locked_until_ms)
    if token is not None:
        base = f"{call.request.url.scheme}://{host_of(call.request)}"
        number = sequence_number(partition_id, entry)
        headers["Location"] = f"{base}/{quote(call.address.path, safe='/$')}/messages/{number}/{token}"
    return Response(body_of(data), 200 if delete else 201, headers)


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
