"""ReceiveMessage: up to ten messages, now or when they come."""

import logging
from collections.abc import Sequence
from hashlib import md5
from typing import Any, Final

from msgspec import Struct

from partibus.errors import InvalidOperation
from partibus.frontends.sqs.attempts import Attempt
from partibus.frontends.sqs.attributes import VISIBILITY_MAX_S
from partibus.frontends.sqs.calls import Call
from partibus.frontends.sqs.errors import SqsError, invalid_value
from partibus.frontends.sqs.handles import write_handles
from partibus.frontends.sqs.messages import Selection, check_id, md5_of_attributes, sequence_text, shown_attributes
from partibus.frontends.sqs.names import arn_of, queue_of_entity
from partibus.frontends.sqs.polls import Found, GroupPoll, StandardPoll
from partibus.frontends.sqs.queues import SqsQueue
from partibus.frontends.sqs.quotas import ReceiveBudget
from partibus.frontends.sqs.stored import Incoming, read_body, read_stored
from partibus.message import WIDE_ID, Message
from partibus.namespace.access import Right
from partibus.namespace.entity import Entity
from partibus.namespace.names import subqueue_path
from partibus.partition.protocol.commands import ChangeLocks, CheckIds, LockToken, Outcome, Peek, Settle
from partibus.partition.protocol.keys import Entry, SubqueueKind, body_number
from partibus.partition.protocol.ports import EntryRow
from partibus.partition.protocol.replies import Failed, IdsKnown, unpack_attempt
from partibus.routing.partitions import PartitionHandle

log = logging.getLogger(__name__)

COUNT_MAX: Final = 10
WAIT_MAX_S: Final = 20
EARLY_MS: Final = 300
"""A client that cuts after 20 s, as Celery's does, must have the answer to a wait of 20 s by then."""
SYSTEM_ATTRIBUTES: Final = (
    "SenderId",
    "SentTimestamp",
    "ApproximateReceiveCount",
    "ApproximateFirstReceiveTimestamp",
    "SequenceNumber",
    "MessageDeduplicationId",
    "MessageGroupId",
    "AWSTraceHeader",
    "DeadLetterQueueSourceArn",
)
_ACTIVE: Final = int(SubqueueKind.ACTIVE)


class _Wanted:
    """The checked parameters of a receive. Raises `SqsError`."""

    def __init__(self, call: Call, queue: SqsQueue) -> None:
        members = call.members
        self.count: int = members.get("MaxNumberOfMessages", 1)
        if not 1 <= self.count <= COUNT_MAX:
            raise invalid_value(self.count, "MaxNumberOfMessages", f"Must be between 1 and {COUNT_MAX}, if provided.")
        wait_s: int = members.get("WaitTimeSeconds", queue.wait_s)
        if not 0 <= wait_s <= WAIT_MAX_S:
            raise invalid_value(wait_s, "WaitTimeSeconds", f"Must be >= 0 and <= {WAIT_MAX_S}, if provided.")
        self.wait_ms = wait_s * 1000 - (EARLY_MS if wait_s == WAIT_MAX_S else 0)
        seconds: int | None = members.get("VisibilityTimeout")
        if seconds is not None and not 0 <= seconds <= VISIBILITY_MAX_S:
            raise invalid_value(
                seconds, "VisibilityTimeout", f"VisibilityTimeout must be an integer between 0 and {VISIBILITY_MAX_S}."
            )
        self.lock_ms = queue.visibility_ms if seconds is None else seconds * 1000
        system = [*members.get("MessageSystemAttributeNames", ()), *members.get("AttributeNames", ())]
        for name in system:
            if name not in SYSTEM_ATTRIBUTES and name not in ("All", "ALL"):
                raise SqsError("InvalidAttributeName", f"Unknown Attribute {name[:200]}.")
        self.system = set(SYSTEM_ATTRIBUTES if "All" in system or "ALL" in system else system)
        names: Sequence[str] | None = members.get("MessageAttributeNames")
        self.attributes = Selection(names) if names else None
        self.attempt: str | None = members.get("ReceiveRequestAttemptId")
        if self.attempt is not None:
            if not queue.fifo:
                raise invalid_value(
                    self.attempt[:200],
                    "ReceiveRequestAttemptId",
                    "The request include parameter that is not valid for this queue type.",
                )
            check_id("ReceiveRequestAttemptId", self.attempt)


def receive_message(call: Call) -> None:
    """Wait for messages and answer with them."""
    queue = call.queue(Right.LISTEN)
    wanted = _Wanted(call, queue)
    entity = call.entity(queue)
    entity.check_receive()
    refusal = entity.refusal_of_receivers(_ACTIVE)
    if refusal is not None:
        raise InvalidOperation(str(refusal))
    _Receive(call, queue, entity, wanted).start()


class _Part(Struct, frozen=True, eq=False):
    """The messages of an attempt in one partition, as that remembers them."""

    partition: PartitionHandle
    lock_id: int
    granted_ms: int
    positions: list[int]


class _Receive:
    """One receive under way."""

    def __init__(self, call: Call, queue: SqsQueue, entity: Entity, wanted: _Wanted) -> None:
        self._call = call
        self._queue = queue
        self._entity = entity
        self._wanted = wanted
        self._budget: ReceiveBudget | None = None

    def start(self) -> None:
        self._call.check_receives()
        wanted = self._wanted
        if wanted.attempt is not None:
            attempt = self._call.state.attempts.find(self._attempt_key, self._call.broker.clock.now_ms())
            if attempt is not None:
                self._repeat(attempt)
            elif self._call.state.attempts.was_changed(self._attempt_key, self._call.broker.clock.now_ms()):
                self._poll()
            else:
                self._look_up(list(self._entity.route.partitions), [])
            return
        self._poll()

    def _poll(self) -> None:
        if self._call.is_answered:  # the client has left: messages would be in flight for nobody
            return
        kind = GroupPoll if self._queue.fifo else StandardPoll
        wanted = self._wanted
        poll = kind(self._call, self._entity, wanted.count, wanted.wait_ms, wanted.lock_ms, self._answer)
        if isinstance(poll, GroupPoll) and self._entity.elastic is not None:
            self._budget = ReceiveBudget(self._call, self._queue, self._entity)
            poll.is_closed = self._budget.is_spent
        if isinstance(poll, GroupPoll):
            poll.attempt = self._stored_attempt
        poll.start()

    # -- attempts ------------------------------------------------------------------------------------------------------

    @property
    def _attempt_key(self) -> tuple[int, str]:
        return self._queue.queue.entity_id, self._wanted.attempt or ""

    @property
    def _stored_attempt(self) -> str | None:
        """The name of the attempt among the ids of the queue, which no deduplication id can have."""
        attempt = self._wanted.attempt
        return None if attempt is None else f"{WIDE_ID}attempt\0{attempt}"

    def _look_up(self, left: list[PartitionHandle], found: list[_Part]) -> None:
        """Ask each partition for an attempt that this process does not know: of another broker, or before a restart."""
        if self._call.is_answered:  # the client has left
            return
        if not left:
            wanted = [(part, pos) for part in found for pos in part.positions]
            self._read_again(found, wanted, {})
            return
        partition = left.pop(0)

        def told(reply: Any) -> None:
            original = reply.originals.get(0) if isinstance(reply, IdsKnown) else None
            if original is not None:
                found.append(_Part(partition, original[0], *unpack_attempt(original[1])))
            self._look_up(left, found)

        question = CheckIds(self._entity.route.numbers.next(), [Message(b"", message_id=self._stored_attempt)])
        partition.submit(question, self._call.guarded(told))

    def _read_again(
        self, parts: list[_Part], left: list[tuple[_Part, int]], rows: dict[tuple[_Part, int], EntryRow]
    ) -> None:
        """Read the messages of an attempt. Then repeat it, or receive anew if it has none or a message was deleted."""
        if not left:
            self._repeat_read(parts, rows)
            return
        part, pos = left.pop(0)

        def read(reply: Any) -> None:
            row = None if isinstance(reply, Failed) or not reply.rows else reply.rows[0]
            if row is None or row.pos != pos:
                self._poll()
            else:
                rows[part, pos] = row
                self._read_again(parts, left, rows)

        part.partition.submit(Peek(self._entity.route.numbers.next(), _ACTIVE, pos, 1), self._call.guarded(read))

    def _repeat_read(self, parts: list[_Part], rows: dict[tuple[_Part, int], EntryRow]) -> None:
        if not rows:
            self._poll()
            return
        messages = []
        for (part, _), row in rows.items():
            messages += self._messages(part.partition, part.lock_id, [row], part.granted_ms)
        tokens: list[tuple[PartitionHandle, list[LockToken]]] = [
            (part.partition, [(part.lock_id, pos) for pos in part.positions]) for part in parts
        ]
        granted_ms, size = min(part.granted_ms for part in parts), sum(len(row.data) for row in rows.values())
        attempt = Attempt(granted_ms, messages, tokens, size)
        self._call.state.attempts.keep(self._attempt_key, attempt)
        self._repeat(attempt)

    def _repeat(self, attempt: Attempt) -> None:
        """Give the same messages again, if all of them are still locked; else receive anew."""
        if self._call.is_answered:  # the client has left
            return
        attempts, key = self._call.state.attempts, self._attempt_key
        left, is_whole = len(attempt.tokens), True

        def changed(reply: Any) -> None:
            nonlocal left, is_whole
            is_whole = is_whole and not isinstance(reply, Failed) and not reply.lost
            left -= 1
            if left:
                return
            if is_whole:
                self._call.charge_receives(self._entity, len(attempt.messages))
                self._call.answer({"Messages": attempt.messages})
            else:
                attempts.forget(key)
                self._poll()

        for partition, tokens in attempt.tokens:
            command = ChangeLocks(
                self._entity.route.numbers.next(), _ACTIVE, tokens, [self._wanted.lock_ms] * len(tokens)
            )
            partition.submit(command, self._call.guarded(changed))

    # -- the answer ----------------------------------------------------------------------------------------------------

    def _answer(self, found: Found) -> None:
        messages: list[dict[str, Any]] = []
        tokens: list[tuple[PartitionHandle, list[LockToken]]] = []
        now_ms = self._call.broker.clock.now_ms()
        tracer = self._entity.tracer
        if self._budget is not None:
            self._budget.pay({partition.partition_id: len(entries) for partition, _, _, entries in found})
        for partition, lock_id, until_ms, entries in found:
            if self._queue.fifo and self._wanted.lock_ms:
                now_ms = until_ms - self._wanted.lock_ms  # as the partition remembers it
            messages += self._messages(partition, lock_id, entries, now_ms)
            locked: list[LockToken] = [(lock_id, entry.pos) for entry in entries]
            if not self._wanted.lock_ms and not self._queue.fifo:
                # The messages stay visible; the receive counts.
                partition.submit(Settle(0, _ACTIVE, Outcome.ABANDON, locked))
            tokens.append((partition, locked))
            if tracer is not None:
                traced = [(entry.pos, entry.data, entry.enqueued_ms, entry.delivery_count + 1) for entry in entries]
                held = tracer.held(subqueue_path(self._entity.queue.name, _ACTIVE))
                held.delivered(partition.row, lock_id, traced, settles=True)
        if messages and self._wanted.attempt is not None and self._wanted.lock_ms:
            size = sum(entry.size_bytes for _, _, _, entries in found for entry in entries)
            self._call.state.attempts.keep(self._attempt_key, Attempt(now_ms, messages, tokens, size))
        if messages:
            self._call.charge_receives(self._entity, len(messages))
        self._call.answer({"Messages": messages} if messages else None)

    def _messages(
        self, partition: PartitionHandle, lock_id: int, entries: Sequence[Entry | EntryRow], now_ms: int
    ) -> list[dict[str, Any]]:
        """Return messages of one grant as an answer has them. Hot path."""
        entity, wanted = self._queue.queue, self._wanted
        positions = [entry.pos for entry in entries]
        handles = write_handles(entity.entity_id, entity.created_ms, partition.partition_id, lock_id, positions, now_ms)
        first_ms = self._call.state.first_receives.of(partition.row, entries, now_ms)
        found: list[dict[str, Any]] = []
        for number, entry in enumerate(entries):
            assert entry.data is not None, "a grant brings bodies"
            try:
                stored = read_stored(entry.data)
            except Exception:  # a bug of ours: it ends no delivery of the other messages
                log.exception("an error inside of the broker leaves a message of %s with its body only", entity.name)
                stored = read_body(entry.data)
            message: dict[str, Any] = {
                "MessageId": stored.message_id,
                "ReceiptHandle": handles[number],
                "MD5OfBody": md5(stored.raw, usedforsecurity=False).hexdigest(),
                "Body": stored.body,
            }
            if wanted.system:
                system = self._system_attributes(stored, partition, entry, first_ms[number])
                if system:
                    message["Attributes"] = system
            if wanted.attributes is not None and stored.attributes:
                attributes = wanted.attributes.of(stored.attributes)
                if attributes:
                    message["MessageAttributes"] = shown_attributes(attributes)
                    message["MD5OfMessageAttributes"] = md5_of_attributes(attributes)
            found.append(message)
        return found

    def _system_attributes(
        self, stored: Incoming, partition: PartitionHandle, entry: Entry | EntryRow, first_ms: int
    ) -> dict[str, str]:
        wanted = self._wanted.system
        found: dict[str, str | None] = {
            "SenderId": stored.sender or None,
            "SentTimestamp": str(entry.enqueued_ms),
            "ApproximateReceiveCount": str(stored.receives + entry.delivery_count + 1),
            "ApproximateFirstReceiveTimestamp": str(first_ms),
            "MessageGroupId": stored.group,
            "AWSTraceHeader": stored.trace,
        }
        if self._queue.fifo:
            is_dead_letter = stored.dead_letter_source is not None
            found["MessageDeduplicationId"] = (not is_dead_letter and stored.deduplication_id) or stored.message_id
            # A delayed message has got a second, higher number since its send was answered. Its body has the first one.
            counter = min(entry.sequence, body_number(entry.body))
            found["SequenceNumber"] = sequence_text(counter, partition.partition_id)
        if stored.dead_letter_source is not None:
            home = self._call.home
            source = queue_of_entity(home, stored.dead_letter_source)
            found["DeadLetterQueueSourceArn"] = None if source is None else arn_of(home, source)
        return {name: value for name, value in found.items() if name in wanted and value is not None}
