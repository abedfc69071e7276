"""`com.microsoft:peek-message`: reads messages without effect (rows P16, P17, A8-A10).

A partitioned entity has no oldest message of all. A peek answers from one partition: the first with a message, counted
from the one that ``from-sequence-number`` names. A client that continues after the last number sees every partition. A
peek skips partitions with unavailable stores, and fails only if all partitions that it asks are unavailable. A peek at
one session asks the session's partition alone.
"""

from typing import Any

from partibus.errors import InvalidOperation, PartibusError
from partibus.frontends.amqp.egress import encode_row, encoder_for
from partibus.frontends.amqp.operations.request import (
    SESSION_ID,
    EntityRequest,
    boolean,
    failure,
    integer,
    no_content,
    optional_text,
    success,
)
from partibus.frontends.amqp.operations.spread import COUNTER_MAX
from partibus.partition.protocol.commands import Peek
from partibus.partition.protocol.ports import EntryRow
from partibus.partition.protocol.replies import Failed
from partibus.routing.partitions import error_of
from partibus.routing.send import COUNTER_BITS
from partibus.throttling.uses import Operation

NAME = "com.microsoft:peek-message"
COUNT_MAX = 5_000


def peek(request: EntityRequest) -> None:
    """Reply with ``messages``, or 204 if none is left. The charge is for the returned messages (row R3)."""
    request.check_not_exhausted(Operation.PEEK)
    arguments, queue = request.arguments, request.entity.queue
    start = max(0, integer(arguments, "from-sequence-number", -(1 << 63), (1 << 63) - 1, 0))
    count = min(integer(arguments, "message-count", 1, 1 << 31, 1), COUNT_MAX)
    session = optional_text(arguments, SESSION_ID)
    with_body = not boolean(arguments, "omit-message-body")
    partition_id, counter = start >> COUNTER_BITS, start & COUNTER_MAX
    if session is None:
        last = len(request.entity.route.partitions) - 1
    else:
        if not queue.has_sessions:
            raise InvalidOperation(
                f"'{queue.name}' does not require sessions. Peek at it without one: leave {SESSION_ID} (--session) out."
            )
        last = request.entity.route.partition_of(session)
        if partition_id < last:
            partition_id, counter = last, 0
    _Peek(request, count, session, last, with_body=with_body).at(partition_id, counter)


class _Peek:
    """A peek that tries partitions one after the other."""

    def __init__(self, request: EntityRequest, count: int, session: str | None, last: int, *, with_body: bool) -> None:
        self._request = request
        self._count = count
        self._session = session
        self._last = last
        """The last partition to try."""
        self._with_body = with_body
        self._answered = False
        """Whether a partition was available."""
        self._trouble: PartibusError | None = None
        """The error of an unavailable partition."""

    def at(self, partition_id: int, counter: int) -> None:
        """Read from one partition."""
        request = self._request
        if partition_id > self._last:
            if self._trouble is None or self._answered:
                request.respond(no_content())
            else:
                request.respond(failure(self._trouble))
            return
        route = request.entity.route

        def answered(reply: Any) -> None:
            if isinstance(reply, Failed):
                self._trouble = error_of(reply, request.entity.queue.name)
            else:
                self._answered = True
                if reply.rows:
                    rows = reply.rows
                    request.when_paid(Operation.PEEK, len(rows), lambda: self._reply(partition_id, rows))
                    return
            self.at(partition_id + 1, 0)

        command = Peek(route.numbers.next(), request.kind, counter, self._count, self._session)
        route.partitions[partition_id].submit(command, answered)

    def _reply(self, partition_id: int, rows: list[EntryRow]) -> None:
        encoder = encoder_for(self._request.entity, self._request.kind, partition_id)
        messages = [{"message": encode_row(encoder, row, with_body=self._with_body)} for row in rows]
        self._request.respond(success({"messages": messages}))
