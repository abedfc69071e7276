"""`com.microsoft:batch-delete-messages`: removes the oldest messages without receiving them.

A client's *purge* repeats it while the returned count equals the requested one. On a partitioned entity, where the
service has no such operation, every partition removes its oldest messages: no partition knows the oldest of all.
"""

from math import ceil
from typing import Any

from partibus.amqp.codec.types import Int
from partibus.errors import InvalidOperation
from partibus.frontends.amqp.operations.request import (
    SESSION_ID,
    EntityRequest,
    failure,
    integer,
    no_content,
    optional_text,
    success,
)
from partibus.frontends.amqp.operations.spread import ask_all
from partibus.partition.protocol.commands import Purge
from partibus.partition.protocol.replies import CursorHeld, Failed
from partibus.routing.partitions import PartitionHandle, error_of

NAME = "com.microsoft:batch-delete-messages"
COUNT_MAX = 4_000
"""The most messages in one request, the limit of the service. A client's purge requests that many at a time, on every
tier. The store reads and removes them in slices.
"""
_TIME_LEAST, _TIME_MOST = -(1 << 63), (1 << 63) - 1


def batch_delete(request: EntityRequest) -> None:
    """Reply with the ``message-count`` that was removed, or 204 if there was none.

    A lower count than requested means that there were fewer. If a partition fails, the reply is its error, and the
    messages removed from the others stay removed.
    """
    entity, arguments = request.entity, request.arguments
    count = integer(arguments, "message-count", 1, COUNT_MAX)
    now_ms = request.connection.broker.clock.now_ms()
    before_ms = integer(arguments, "enqueued-time-utc", _TIME_LEAST, _TIME_MOST, int(now_ms))
    session = optional_text(arguments, SESSION_ID)
    partitions = entity.route.partitions
    if session is not None:
        if not entity.queue.has_sessions:
            raise InvalidOperation(
                f"'{entity.queue.name}' does not require sessions. Delete from it without {SESSION_ID}."
            )
        partitions = [partitions[entity.route.partition_of(session)]]
    entity.route.give_back(request.kind)  # else what is cached for receivers that ask for nothing would escape
    _Deletion(request, before_ms, session).go_on(partitions, count)


class _Deletion:
    """A deletion in rounds: asks partitions for equal shares, then asks productive ones for what others lacked."""

    def __init__(self, request: EntityRequest, before_ms: int, session: str | None) -> None:
        self._request = request
        self._before_ms = before_ms
        self._session = session
        self._removed = 0

    def go_on(self, partitions: list[PartitionHandle], count: int) -> None:
        """Remove ``count`` more messages."""
        if not partitions or not count:
            self._reply()
            return
        asked = dict(zip(partitions, _shares(count, len(partitions)), strict=False))

        def answered(replies: list[Any]) -> None:
            failed = [reply for reply in replies if isinstance(reply, Failed | CursorHeld)]
            if failed:
                self._request.respond(failure(error_of(failed[0], self._request.entity.queue.name)))
                return
            removed = sum(reply.count for reply in replies)
            self._removed += removed
            # Only an empty reply shows that a partition has no messages left, not a short one.
            more = [partition for partition, reply in zip(asked, replies, strict=True) if reply.count]
            untried = [partition for partition in partitions if partition not in asked]
            self.go_on(untried + more, count - removed)

        numbers = self._request.entity.route.numbers
        ask_all(
            [
                (partition, Purge(numbers.next(), self._request.kind, share, self._before_ms, self._session))
                for partition, share in asked.items()
            ],
            answered,
        )

    def _reply(self) -> None:
        body: dict[object, object] = {"message-count": Int(self._removed)}
        self._request.respond(success(body) if self._removed else no_content())


def _shares(count: int, parts: int) -> list[int]:
    """Split ``count`` into at most ``parts`` non-empty parts, as equal as possible."""
    shares: list[int] = []
    for left in range(parts, 0, -1):
        share = ceil(count / left)
        if not share:
            break
        shares.append(share)
        count -= share
    return shares
