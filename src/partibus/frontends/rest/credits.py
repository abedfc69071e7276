"""The cost of requests over HTTP (rows R3-R5): paid before any work, or `ServerBusy` is raised."""

from collections.abc import Callable

from partibus.frontends.rest.answers import answer_of
from partibus.namespace.broker import Broker
from partibus.namespace.entity import Entity
from partibus.throttling.throttle import OnKnown, Throttle
from partibus.throttling.uses import Operation

HTTP = "http"
"""Stands for the clients that come without connections of their own."""


async def pay(broker: Broker, operation: Operation, entity: str = "") -> None:
    """Ask for one unit. ``entity``: the path of the entity, if the request is about one."""
    if broker.throttle.uses is not None:
        broker.throttle.uses.add(entity, HTTP, operation, 1, 1)
    if broker.throttle.active:
        await _paid(broker.throttle, lambda then: broker.throttle.admit(operation, 1, then))


async def pay_for_sends(broker: Broker, entity: Entity, count: int) -> None:
    """Ask for the units of messages that are sent together."""
    uses, queue = broker.throttle.uses, entity.queue
    if uses is not None:
        uses.add(queue.name, HTTP, Operation.SEND, 1, count)
        if queue.rule_count:
            uses.add(queue.name, HTTP, Operation.FILTER, 1, count * queue.rule_count)
    if broker.throttle.active:
        await _paid(broker.throttle, lambda then: broker.throttle.admit_send(count, entity.queue.rule_count, then))


def check_not_exhausted(broker: Broker, operation: Operation) -> None:
    """Refuse a request early if no credits are left in this period."""
    if broker.throttle.enforces and broker.throttle.refuses(operation):
        broker.throttle.refused(operation)
        raise broker.throttle.refusal()


async def _paid(throttle: Throttle, admit: Callable[[OnKnown], bool | None]) -> None:
    def ask(answer: OnKnown) -> None:
        at_once = admit(answer)
        if at_once is not None:
            answer(at_once)

    if not await answer_of(ask):
        raise throttle.refusal()
