"""SendMessage, SendMessageBatch."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final
from uuid import UUID

from msgspec import Struct

from partibus.errors import PartibusError
from partibus.frontends.sqs.attributes import MESSAGE_BYTES_MAX
from partibus.frontends.sqs.batches import Entry, Errors, OnDone, Results, answer_single, entries_of
from partibus.frontends.sqs.calls import Call
from partibus.frontends.sqs.errors import SqsError, invalid_value, missing, prefixed
from partibus.frontends.sqs.messages import (
    are_ids,
    body_bytes,
    check_id,
    check_size,
    content_id,
    hex_md5,
    hex_md5s,
    md5_of_attributes,
    read_attributes,
    read_trace,
    sequence_text,
    size_of,
    utf8_of,
)
from partibus.frontends.sqs.queues import SqsQueue
from partibus.frontends.sqs.quotas import over_budget, throttled
from partibus.frontends.sqs.runs import Stored
from partibus.frontends.sqs.stored import grouped_forms, plain_forms, stored_form
from partibus.message import WIDE_ID, Message, id_text
from partibus.namespace.access import Right
from partibus.namespace.entity import Entity
from partibus.routing.elastic import Action

DELAY_MAX_S: Final = 900
_PLAIN_MEMBERS: Final = 2
"""The members of a message that has nothing but a body: the other one is its queue, or its id in the batch."""
_GROUPED_MEMBERS: Final = 4
"""The same with a group and a deduplication id."""
TAG_BYTES: Final = 16
"""A tag is a MessageId."""
TRACE_HEADER: Final = "x-amzn-trace-id"


class Prepared(Struct, gc=False):
    """A checked message, and its part of the answer."""

    message: Message
    output: dict[str, Any]


def send_message(call: Call) -> None:
    """Store one message."""
    queue = call.queue(Right.SEND)
    entity = call.entity(queue)
    entity.check_send()
    usual = _usual(call, queue, [call.members])
    prepared = usual[0] if usual else _prepared(call, queue, call.members, in_batch=False)
    on_done = answer_single(call, prepared.output)
    call.admit_sends(entity, 1, lambda: _store(call, queue, entity, [(0, prepared)], on_done))


def send_message_batch(call: Call) -> None:
    """Store up to ten messages; each one stands or falls alone, but for those of one FIFO partition."""
    queue = call.queue(Right.SEND)
    entity = call.entity(queue)
    entity.check_send()
    entries = entries_of(call)
    usual = _usual(call, queue, entries)
    if queue.fifo and not usual:
        for entry in entries:  # one of them refuses the batch
            _check_fifo(queue, entry, in_batch=True)
    if len(call.request.body) + len(call.request.query) > MESSAGE_BYTES_MAX:  # both protocols only lengthen texts
        total = sum(map(_raw_size, entries))
        if total > MESSAGE_BYTES_MAX:
            raise prefixed(
                "BatchRequestTooLong",
                f"Batch requests cannot be longer than {MESSAGE_BYTES_MAX} bytes. You have sent {total} bytes.",
            )
    results = Results(call, entries)
    good = [*enumerate(usual or ())]
    for index, entry in enumerate(() if usual else entries):
        try:
            good.append((index, _prepared(call, queue, entry, in_batch=True)))
        except SqsError as error:
            results.failed(index, error)
    on_done = partial(results.end, {index: prepared.output for index, prepared in good})
    if good:
        call.admit_sends(entity, len(good), lambda: _store(call, queue, entity, good, on_done))
    else:
        on_done({})


def _raw_size(entry: Entry) -> int:
    body = entry.get("MessageBody", "")
    size = len(body) if body.isascii() else len(utf8_of(body))
    for name, value in entry.get("MessageAttributes", {}).items():
        size += len(utf8_of(name)) + len(utf8_of(value.get("DataType", "")))
        size += len(utf8_of(value.get("StringValue", ""))) + len(value.get("BinaryValue", b""))
    return size


def _check_fifo(queue: SqsQueue, given: Mapping[str, Any], *, in_batch: bool) -> None:
    if not given.get("MessageGroupId"):
        error = missing("MessageGroupId")
        raise SqsError("InvalidParameterValue", error.message) if in_batch else error
    if given.get("MessageDeduplicationId") is None and not queue.content_based:
        raise SqsError(
            "InvalidParameterValue",
            "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided "
            "explicitly",
        )


def _prepared(call: Call, queue: SqsQueue, given: Mapping[str, Any], *, in_batch: bool) -> Prepared:
    """Check one message. Raises `SqsError`."""
    body = body_bytes(given.get("MessageBody"), is_plain=call.parsed.is_plain)
    trace, system_md5 = call.request.headers.get(TRACE_HEADER), None
    raw_attributes = given.get("MessageAttributes")
    attributes = read_attributes(raw_attributes) if raw_attributes else {}
    raw_system = given.get("MessageSystemAttributes")
    if raw_system:
        trace, system_md5 = read_trace(raw_system, trace)
    check_size(size_of(body, attributes), queue.message_bytes_max, in_batch=in_batch)
    group, deduplication_id = given.get("MessageGroupId"), given.get("MessageDeduplicationId")
    if queue.fifo:
        if not in_batch:
            _check_fifo(queue, given, in_batch=False)
    elif deduplication_id is not None:
        raise invalid_value(
            deduplication_id[:200],
            "MessageDeduplicationId",
            "The request include parameter that is not valid for this queue type.",
        )
    if group is not None:
        check_id("MessageGroupId", group)
    if deduplication_id is not None:
        check_id("MessageDeduplicationId", deduplication_id)
    elif queue.fifo:
        deduplication_id = content_id(body)
    delay_ms = _delay_ms(queue, given.get("DelaySeconds"))
    message_id, now_ms = call.state.new_uuid(), call.broker.clock.now_ms()
    message = Message(
        stored_form(message_id, call.caller.name, body, attributes, group, deduplication_id, trace),
        message_id=_key(queue, deduplication_id, now_ms) if queue.fifo else None,
        session_id=group,
        scheduled_ms=now_ms + delay_ms if delay_ms else None,
        enqueued_ms=now_ms if delay_ms else None,
        tag=bytes.fromhex(message_id.replace("-", "")) if queue.fifo else b"",
    )
    if not queue.fifo and queue.queue.requires_duplicate_detection:
        message.message_id = message_id
    output: dict[str, Any] = {"MessageId": message_id, "MD5OfMessageBody": hex_md5(body)}
    if attributes:
        output["MD5OfMessageAttributes"] = md5_of_attributes(attributes)
    if system_md5 is not None:
        output["MD5OfMessageSystemAttributes"] = system_md5
    return Prepared(message, output)


def _usual(call: Call, queue: SqsQueue, entries: Sequence[Entry]) -> list[Prepared] | None:
    """Return the messages of a request that have nothing but a body, and in a FIFO queue a group and an id.

    None for any other request, and for those that are to be refused: they take the way of `_prepared`. A request that
    may be too long does so as well: the sum of its sizes is checked before anything is hashed. Each step takes all
    messages at once: nine calls for a batch of ten, where `_prepared` would make sixty. Hot path.
    """
    if (
        not (queue.fifo or queue.takes_plain)
        or not call.parsed.is_plain
        or TRACE_HEADER in call.request.headers
        or len(call.request.body) > MESSAGE_BYTES_MAX
        or max(map(len, entries)) > (_GROUPED_MEMBERS if queue.fifo else _PLAIN_MEMBERS)
    ):
        return None
    texts: list[str | None] = [entry.get("MessageBody") for entry in entries]
    bodies = [text.encode("ascii") for text in texts if text]
    if len(bodies) < len(entries) or max(map(len, bodies)) > queue.message_bytes_max:
        return None
    return _grouped(call, queue, entries, bodies) if queue.fifo else _plain(call, bodies)


def _plain(call: Call, bodies: list[bytes]) -> list[Prepared]:
    """Return messages that have nothing but a body."""
    ids = call.state.new_uuids(len(bodies))
    forms = plain_forms(ids, call.caller.name, bodies)
    return [
        Prepared(Message(form), {"MessageId": message_id, "MD5OfMessageBody": digest})
        for form, message_id, digest in zip(forms, ids, hex_md5s(bodies), strict=True)
    ]


def _grouped(call: Call, queue: SqsQueue, entries: Sequence[Entry], bodies: list[bytes]) -> list[Prepared] | None:
    """Return messages of a FIFO queue that have a body, a group and an id; None if one lacks them."""
    groups: list[str] = [entry.get("MessageGroupId", "") for entry in entries]
    keys: list[str] = [entry.get("MessageDeduplicationId", "") for entry in entries]
    if not (are_ids(groups) and are_ids(keys)):
        return None
    now_ms = call.broker.clock.now_ms()
    wide = "" if queue.dedup_by_group(now_ms) else WIDE_ID
    # The difference tells a delay from a time that a client of AMQP has chosen.
    scheduled_ms, enqueued_ms = (now_ms + queue.delay_ms, now_ms) if queue.delay_ms else (None, None)
    ids = call.state.new_uuids(len(bodies))
    forms = grouped_forms(ids, call.caller.name, bodies, groups, keys)
    return [
        Prepared(
            Message(
                form,
                message_id=f"{wide}{key}",
                session_id=group,
                scheduled_ms=scheduled_ms,
                enqueued_ms=enqueued_ms,
                tag=bytes.fromhex(message_id.replace("-", "")),
            ),
            {"MessageId": message_id, "MD5OfMessageBody": digest},
        )
        for form, key, group, message_id, digest in zip(forms, keys, groups, ids, hex_md5s(bodies), strict=True)
    ]


def _key(queue: SqsQueue, deduplication_id: str | None, now_ms: int) -> str:
    """Return the id for duplicate detection: unique within the group, or within the queue."""
    return id_text(deduplication_id) if queue.dedup_by_group(now_ms) else f"{WIDE_ID}{deduplication_id}"


def _delay_ms(queue: SqsQueue, given: int | None) -> int:
    if given is None:
        return queue.delay_ms
    if queue.fifo:
        if given:
            raise invalid_value(
                given, "DelaySeconds", "The request include parameter that is not valid for this queue type."
            )
        return queue.delay_ms
    if not 0 <= given <= DELAY_MAX_S:
        raise invalid_value(given, "DelaySeconds", f"DelaySeconds must be >= 0 and <= {DELAY_MAX_S}.")
    return given * 1000


# -- storing -----------------------------------------------------------------------------------------------------------


def _store(call: Call, queue: SqsQueue, entity: Entity, good: Sequence[tuple[int, Prepared]], on_done: OnDone) -> None:
    if call.is_answered:  # the client has left while it waited for credits
        return
    if queue.fifo:
        _store_by_group(call, queue, entity, good, on_done)
        return

    def sent(errors: Sequence[PartibusError | None] | None) -> None:
        if errors is None:
            on_done({})
            return
        on_done({index: error for (index, _), error in zip(good, errors, strict=True) if error is not None})

    call.state.runs.send(entity, [prepared.message for _, prepared in good], call.guarded(sent))


def _store_by_group(
    call: Call, queue: SqsQueue, entity: Entity, good: Sequence[tuple[int, Prepared]], on_done: OnDone
) -> None:
    """Store the messages of each partition together, all or none; a part that fails fails alone."""
    failed: Errors = {}
    measured = entity.elastic is not None and queue.queue.enforces_throughput
    if measured:
        good = _in_budget(call, queue, entity, good, failed)
        if not good:
            on_done(failed)
            return

    messages = [prepared.message for _, prepared in good]
    traced = None
    if entity.tracer is not None:
        traced = entity.tracer.sending(entity.queue.name, [[message.data] for message in messages], lambda errors: None)

    def stored(outcomes: Sequence[Stored | PartibusError]) -> None:
        if traced is not None:
            traced([outcome if isinstance(outcome, PartibusError) else None for outcome in outcomes])
        for (index, prepared), outcome in zip(good, outcomes, strict=True):
            if isinstance(outcome, PartibusError):
                failed[index] = outcome
                continue
            output = prepared.output
            if len(outcome.tag) == TAG_BYTES:
                output["MessageId"] = str(UUID(bytes=outcome.tag))
            output["SequenceNumber"] = sequence_text(outcome.counter, outcome.partition_id)
        on_done(failed)

    unique = len(entity.route.partitions) > 1 and not queue.dedup_by_group(call.broker.clock.now_ms())
    call.state.runs.send_by_group(entity, messages, call.guarded(stored), measured=measured, unique=unique)


def _in_budget(
    call: Call, queue: SqsQueue, entity: Entity, good: Sequence[tuple[int, Prepared]], errors: Errors
) -> list[tuple[int, Prepared]]:
    """Return the messages within the budgets of their partitions; put the others into ``errors`` instead."""
    places = [entity.route.partition_of(prepared.message.session_id or "") for _, prepared in good]
    refused = over_budget(call, queue, entity, Action.SEND, Counter(places))
    errors.update((index, throttled()) for (index, _), place in zip(good, places, strict=True) if place in refused)
    return [one for one, place in zip(good, places, strict=True) if place not in refused]
