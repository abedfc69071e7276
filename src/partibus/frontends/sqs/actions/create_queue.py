"""CreateQueue: a new queue, or the one that exists if the named attributes are equal."""

from collections.abc import Mapping

from partibus.errors import EntityExists
from partibus.frontends.sqs.actions.tags import check_tags
from partibus.frontends.sqs.attributes import (
    DEFAULTS,
    FIFO_DEFAULTS,
    FIFO_QUEUE,
    REDRIVE_ALLOW_POLICY,
    REDRIVE_POLICY,
    SETTABLE,
    Redrive,
    merged,
    normalised,
    read_redrive,
    read_redrive_allow,
    same_value,
)
from partibus.frontends.sqs.calls import Call
from partibus.frontends.sqs.errors import SqsError, invalid_value, missing, prefixed
from partibus.frontends.sqs.names import FIFO_SUFFIX, QueueName, arn_of, check_queue_name, entity_name
from partibus.frontends.sqs.queues import SqsQueue, new_properties, properties_for
from partibus.namespace.access import Right
from partibus.namespace.entities import SqsOptions
from partibus.namespace.names import fold_name
from partibus.namespace.tier_rules import sizes_mb


def create_queue(call: Call) -> None:
    """Create the queue, or answer with the URL of one that has all named attributes."""
    short: str | None = call.members.get("QueueName")
    if short is None:
        raise missing("QueueName")
    given: Mapping[str, str] = call.members.get("Attributes", {})
    tags: Mapping[str, str] = call.members.get("tags", {})
    check_queue_name(short, fifo=given.get(FIFO_QUEUE, "").lower() == "true")
    name = QueueName(call.caller.region, short)
    fifo = short.endswith(FIFO_SUFFIX)
    attributes = normalised(given, fifo=fifo, creating=True)
    call.check(Right.MANAGE, name)
    check_tags(short, tags)
    redrive = checked_redrive(call, name, attributes)
    kept = merged({}, attributes, fifo=fifo)
    existing = _find(call, name)
    if existing is None:
        _check_recent(call, name)
        try:
            _create(call, name, kept, redrive, tags)
        except EntityExists:
            existing = _find(call, name)  # another request has created it meanwhile
            if existing is None:
                raise _taken(call, name) from None
    if existing is not None:
        _check_same(existing, attributes)
    call.answer_when_followed({"QueueUrl": call.url_of(name)})


def _find(call: Call, name: QueueName) -> SqsQueue | None:
    try:
        return call.state.queues_of(call.broker).find(call.broker, name)
    except SqsError:
        return None


def _taken(call: Call, name: QueueName) -> SqsError:
    """Return the error for a name that an entity has which is not this queue.

    Entities of Service Bus are compared without case, so two names that differ by case alone are one entity.
    """
    wanted = entity_name(call.home, name)
    holder = call.broker.namespace.find(wanted)
    held = wanted if holder is None else holder.name
    reason = (
        "an entity that is no queue of SQS has this name"
        if held == wanted
        else f"the entity '{held}' exists, and names of entities are compared without case"
    )
    return SqsError("QueueAlreadyExists", f"The name '{wanted}' is taken: {reason}. Choose another name.")


def _create(
    call: Call, name: QueueName, attributes: Mapping[str, str], redrive: Redrive | None, tags: Mapping[str, str]
) -> None:
    options = SqsOptions(tags=dict(tags))
    largest_mb = sizes_mb(call.broker.namespace.record.options, 1)[-1:]
    size: dict[str, object] = {"MaxSizeInMegabytes": largest_mb[0]} if largest_mb else {}
    properties = properties_for(call.home, name, attributes, options, redrive, SETTABLE) | new_properties(name) | size
    call.broker.create_queue(entity_name(call.home, name), properties)


def checked_redrive(call: Call, source: QueueName, attributes: Mapping[str, str]) -> Redrive | None:
    """Check the policies about dead letters among changed attributes; return the redrive policy. Raises `SqsError`."""
    read_redrive_allow(attributes.get(REDRIVE_ALLOW_POLICY, ""))
    text = attributes.get(REDRIVE_POLICY, "")
    redrive = read_redrive(call.home, text, source)
    if redrive is None:
        return None
    target = _find(call, redrive.target)
    if target is None:
        raise invalid_value(text, REDRIVE_POLICY, "Dead letter target does not exist.")
    if not read_redrive_allow(target.attributes.get(REDRIVE_ALLOW_POLICY, "")).allows(arn_of(call.home, source)):
        raise invalid_value(text, REDRIVE_POLICY, "Dead letter target does not allow this queue as a source queue.")
    call.check(Right.MANAGE, redrive.target)
    return redrive


def _check_same(queue: SqsQueue, wanted: Mapping[str, str]) -> None:
    current = (DEFAULTS | FIFO_DEFAULTS if queue.fifo else DEFAULTS) | queue.attributes
    for name, value in wanted.items():
        if not same_value(name, value, current.get(name, "")):
            raise SqsError(
                "QueueAlreadyExists",
                f"A queue already exists with the same name and a different value for attribute {name}",
            )


def _check_recent(call: Call, name: QueueName) -> None:
    deleted = call.state.deleted_ms
    key = (call.broker.namespace.namespace_id, fold_name(entity_name(call.home, name)))
    at_ms = deleted.get(key)
    if at_ms is None:
        return
    wait_ms = call.state.recreate_after_ms
    if call.broker.clock.now_ms() < at_ms + wait_ms:
        raise prefixed(
            "QueueDeletedRecently",
            f"You must wait {wait_ms // 1000} seconds after deleting a queue before you can create another with the "
            "same name.",
        )
    del deleted[key]
