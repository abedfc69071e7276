"""GetQueueAttributes, SetQueueAttributes."""

from collections.abc import Callable, Container, Mapping
from typing import Any

from msgspec.structs import replace

from partibus.errors import StoreUnavailable
from partibus.frontends.sqs.actions.create_queue import checked_redrive
from partibus.frontends.sqs.attributes import (
    COUNTS,
    DEFAULTS,
    DELAY,
    DELAYED,
    MESSAGES,
    NOT_VISIBLE,
    READABLE,
    REDRIVE_POLICY,
    SCOPE,
    merged,
    normalised,
    read_redrive,
    unknown,
)
from partibus.frontends.sqs.calls import Call
from partibus.frontends.sqs.errors import SqsError, missing
from partibus.frontends.sqs.names import entity_name
from partibus.frontends.sqs.queues import SqsQueue, attributes_of, options_of, properties_for
from partibus.namespace.access import Right
from partibus.namespace.entities import EntityOptions
from partibus.partition.protocol.commands import DelayScheduled
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.replies import Failed
from partibus.routing.entity import Inspection, inspect_each
from partibus.routing.partitions import error_of

Change = Callable[[Mapping[str, str]], Mapping[str, str]]
"""Makes all set attributes of the present ones."""


def get_queue_attributes(call: Call) -> None:
    """Answer with the named attributes that are set; ``All`` names every one."""
    queue = call.queue()
    wanted: list[str] = call.members.get("AttributeNames", [])
    for name in wanted:
        if name != "All" and name not in READABLE:
            raise unknown(name)
    if not wanted:
        call.answer()
        return
    every = "All" in wanted

    def answer(values: Mapping[str, str]) -> None:
        shown = {name: value for name, value in values.items() if every or name in wanted}
        call.answer({"Attributes": shown} if shown else None)

    values = queue.describe(call.home)
    if not every and not any(name in wanted for name in COUNTS):
        answer(values)
        return

    def counted(inspection: Inspection) -> None:
        if not inspection.found:
            raise StoreUnavailable("No messaging store of the queue can be used now.")
        answer(values | counts_of(inspection))

    inspect_each(call.entity(queue).route, call.guarded(counted), count_scheduled=True)


def counts_of(inspection: Inspection) -> dict[str, str]:
    """Return the numbers of messages by attribute, summed over the partitions that have answered."""
    messages = locked = scheduled = 0
    for found in inspection.found.values():
        active = found.subqueues.get(SubqueueKind.ACTIVE)
        if active is not None:
            messages += active.messages
            locked += active.locked
        scheduled += found.scheduled
    visible = max(messages - locked - scheduled, 0)
    return {MESSAGES: str(visible), NOT_VISIBLE: str(locked), DELAYED: str(scheduled)}


def set_queue_attributes(call: Call) -> None:
    """Set all attributes of the request, or none."""
    queue = call.queue(Right.MANAGE)
    given: Mapping[str, str] = call.members.get("Attributes", {})
    if not given:
        raise missing("Attributes")
    changes = normalised(given, fifo=queue.fifo, creating=False)
    checked_redrive(call, queue.name, changes)
    former_s = "0"

    def change(old: Mapping[str, str]) -> Mapping[str, str]:
        nonlocal former_s
        former_s = old.get(DELAY, DEFAULTS[DELAY])
        return merged(old, changes, fifo=queue.fifo)

    change_queue(call, queue, change, changes)
    if queue.fifo and DELAY in changes:
        former_ms, delay_ms = int(former_s) * 1000, int(changes[DELAY]) * 1000
        call.broker.when_followed(call.guarded(lambda: _delay_waiting(call, queue, former_ms, delay_ms)))
    else:
        call.answer_when_followed()


def _delay_waiting(call: Call, queue: SqsQueue, former_ms: int, delay_ms: int) -> None:
    """Set the delay of the messages of a FIFO queue that are delayed already, then answer.

    Otherwise later messages of a group, with a shorter delay, would overtake them.
    """
    route = call.entity(queue).route
    partitions = list(route.partitions)
    left = len(partitions)

    def delayed(reply: Any) -> None:
        nonlocal left
        if isinstance(reply, Failed):
            raise error_of(reply, queue.queue.name)
        left -= 1
        if not left:
            call.answer()

    for partition in partitions:
        command = DelayScheduled(route.numbers.next(), int(SubqueueKind.ACTIVE), former_ms, delay_ms)
        partition.submit(command, call.guarded(delayed))


def change_queue(call: Call, queue: SqsQueue, change: Change, changed: Container[str]) -> None:
    """Give a queue the attributes that ``change`` makes of its present ones. Raises what ``change`` does.

    ``changed`` has the names of the attributes that may differ.
    """

    def properties(old: EntityOptions) -> dict[str, object]:
        attributes = change(attributes_of(old))
        try:
            redrive = read_redrive(call.home, attributes.get(REDRIVE_POLICY, ""), queue.name)
        except SqsError:  # changed by hand, or for another account: not this request's fault
            redrive = None
        options = options_of(old)
        if attributes.get(SCOPE) != options.attributes.get(SCOPE):
            now_ms = call.broker.clock.now_ms()
            until_ms = 0 if now_ms < options.scope_until_ms else now_ms + call.state.propagation_ms
            options = replace(options, scope_until_ms=until_ms)
        return properties_for(call.home, queue.name, attributes, options, redrive, changed, old.elastic_partitions)

    call.broker.update_by(entity_name(call.home, queue.name), properties)
