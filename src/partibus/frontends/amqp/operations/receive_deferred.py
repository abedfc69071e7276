"""`com.microsoft:receive-by-sequence-number`: the only way to a deferred message.

Several messages to be deleted at once are locked first and then completed, so that a request that ends in an error has
deleted none.
"""

from collections import deque
from typing import Any, Final

from partibus.errors import ArgumentError, InvalidOperation, MessageNotFound, PartibusError, SessionLockLost
from partibus.frontends.amqp.egress import encode_deferred, encoder_for
from partibus.frontends.amqp.operations.request import (
    ANSWER_BYTES_MAX,
    SESSION_ID,
    EntityRequest,
    failure,
    integer,
    optional_text,
    sequence_numbers,
    success,
)
from partibus.frontends.amqp.operations.spread import (
    ask_all,
    counters_by_partition,
    held_session,
    numbers_of,
)
from partibus.namespace.names import subqueue_path
from partibus.partition.protocol.commands import LockToken, Outcome, ReceiveDeferred, Settle
from partibus.partition.protocol.replies import DeferredGranted, Failed, NotFound, SessionLost
from partibus.routing.lock_tokens import token_uuid
from partibus.routing.partitions import PartitionHandle, error_of
from partibus.throttling.uses import Operation
from partibus.tracing.tracer import Held

NAME = "com.microsoft:receive-by-sequence-number"
DELETE, PEEK_LOCK = 0, 1
"""The values of ``receiver-settle-mode``."""
STEP_COUNT: Final = 32
"""The messages requested per step, so that too large a reply is noticed before all of it is in memory."""


def receive_deferred(request: EntityRequest) -> None:
    """Reply with all ``messages`` in the order of the numbers, or an error; after an error no lock remains.

    Messages that exceed the size of one reply are an error, too.
    """
    arguments = request.arguments
    request.entity.check_receive()
    numbers = sequence_numbers(arguments)
    delete = integer(arguments, "receiver-settle-mode", DELETE, PEEK_LOCK, PEEK_LOCK) == DELETE
    if delete and request.transaction is not None:  # row C7
        raise InvalidOperation(
            "Messages can't be received and deleted in a transaction. Receive them under lock, and complete them in it."
        )
    reception = _Reception(request, numbers, delete=delete)
    request.when_paid(Operation.RECEIVE, len(numbers), reception.go_on)


class _Reception:
    """One request, executed in steps."""

    def __init__(self, request: EntityRequest, numbers: list[int], *, delete: bool) -> None:
        entity = request.entity
        self._request = request
        self._numbers = numbers
        self._delete = delete
        held = held_session(request)
        groups = counters_by_partition(entity, "deferred", numbers)
        strange = [partition for partition in groups if held is not None and partition is not held.partition]
        if strange:
            raise MessageNotFound(entity.queue.name, "deferred", numbers_of(strange[0], groups[strange[0]]))
        self._session = 0 if held is None else held.lock_id
        self._steps = deque(
            (partition, counters[start : start + STEP_COUNT])
            for partition, counters in groups.items()
            for start in range(0, len(counters), STEP_COUNT)
        )
        self._granted: list[tuple[PartitionHandle, DeferredGranted]] = []
        self._size_bytes = 0

    def go_on(self) -> None:
        """Request the messages of the next step."""
        if not self._steps:
            self._finish()
            return
        partition, counters = self._steps.popleft()
        command = ReceiveDeferred(
            self._request.entity.route.numbers.next(),
            self._request.kind,
            counters,
            delete=self._delete and len(self._numbers) == 1,
            session=self._session,
        )
        partition.submit(command, lambda reply: self._answered(partition, reply))

    def _answered(self, partition: PartitionHandle, reply: Any) -> None:
        name = self._request.entity.queue.name
        match reply:
            case DeferredGranted():
                self._granted.append((partition, reply))
                self._size_bytes += sum(entry.size_bytes for entry in reply.entries)
                if self._size_bytes <= ANSWER_BYTES_MAX or len(self._numbers) == 1:
                    self.go_on()
                else:
                    self._fail(
                        ArgumentError(
                            "sequence-numbers",
                            f"{len(self._numbers)} messages of more than {self._size_bytes} bytes",
                            f"of messages with at most {ANSWER_BYTES_MAX} bytes together",
                            "Ask for fewer at a time.",
                        )
                    )
            case NotFound():
                self._fail(MessageNotFound(name, "deferred", numbers_of(partition, reply.sequences)))
            case SessionLost():
                self._fail(SessionLockLost(name, optional_text(self._request.arguments, SESSION_ID)))
            case _:
                self._fail(error_of(reply, name))

    def _fail(self, error: PartibusError) -> None:
        """Release the locks taken so far, without a trace of the request."""
        for partition, granted in self._granted:
            partition.submit(Settle(0, self._request.kind, Outcome.RELEASE, _tokens(granted)))
        self._request.respond(failure(error))

    def _finish(self) -> None:
        to_complete = [(partition, granted) for partition, granted in self._granted if self._delete and granted.lock_id]
        if not to_complete:
            self._reply()
            return
        numbers = self._request.entity.route.numbers

        def completed(replies: list[Any]) -> None:
            trouble: Failed | None = None
            for (partition, granted), reply in zip(to_complete, replies, strict=True):
                if isinstance(reply, Failed):
                    trouble = reply
                    self._granted.remove((partition, granted))
                elif reply.lost:
                    lost = set(reply.lost)
                    granted.entries = [entry for index, entry in enumerate(granted.entries) if index not in lost]
            if trouble is not None and not self._granted:
                self._request.respond(failure(error_of(trouble, self._request.entity.queue.name)))
            else:
                # Return deleted messages whatever happened to the others: they exist nowhere else.
                self._reply()

        ask_all(
            [
                (partition, Settle(numbers.next(), self._request.kind, Outcome.COMPLETE, _tokens(granted)))
                for partition, granted in to_complete
            ],
            completed,
        )

    def _trace(self, held: Held) -> None:
        for partition, granted in self._granted:
            traced = [(entry.pos, entry.data, entry.enqueued_ms, entry.delivery_count + 1) for entry in granted.entries]
            held.delivered(partition.row, granted.lock_id, traced, settles=not self._delete)

    def _reply(self) -> None:
        tracer = self._request.entity.tracer
        if tracer is not None:
            self._trace(tracer.held(subqueue_path(self._request.entity.queue.name, self._request.kind)))
        found: dict[int, dict[object, object]] = {}
        for partition, granted in self._granted:
            encoder = encoder_for(self._request.entity, self._request.kind, partition.partition_id)
            for entry in granted.entries:
                assert entry.data is not None, "a grant brings bodies"
                token = token_uuid(partition.partition_id, granted.lock_id, entry.pos)
                message = encode_deferred(
                    encoder,
                    entry.data,
                    sequence=entry.sequence,
                    enqueued_ms=entry.enqueued_ms,
                    delivery_count=entry.delivery_count,
                    token=None if self._delete else token,
                    locked_until_ms=None if self._delete else granted.until_ms,
                )
                found[encoder.sequence_number(entry.sequence)] = {"lock-token": token, "message": message}
        messages = [found[number] for number in self._numbers if number in found]
        self._request.respond(success({"messages": messages}))


def _tokens(granted: DeferredGranted) -> list[LockToken]:
    return [(granted.lock_id, entry.pos) for entry in granted.entries]
