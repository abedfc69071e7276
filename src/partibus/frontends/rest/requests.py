"""Parts of every request over HTTP: a bounded body, the api-version (row P20), and the cost in credits (rows R3-R5)."""

import re
from collections.abc import Callable

from starlette.requests import Request

from partibus.errors import InvalidOperation
from partibus.frontends.rest.answers import answer_of
from partibus.namespace.broker import Broker
from partibus.namespace.entity import Entity
from partibus.throttling.throttle import OnKnown, Throttle
from partibus.throttling.uses import Operation


class BodyTooLarge(Exception):
    """More came than a request of this kind may have; the rest was not read."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self.bytes_max = bytes_max

    def __str__(self) -> str:
        return f"The body has more than {self.bytes_max} bytes, which is the most that this request may have."


async def read_body(request: Request, bytes_max: int) -> bytes:
    """Return the whole body.

    Raises `BodyTooLarge`, or starlette's ``ClientDisconnect`` when the client leaves meanwhile.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > bytes_max:
        raise BodyTooLarge(bytes_max)
    received = bytearray()
    async for chunk in request.stream():
        received += chunk
        if len(received) > bytes_max:
            raise BodyTooLarge(bytes_max)
    return bytes(received)


PARTITIONED_FROM = "2013-10"
"""Versions before know nothing of partitioned entities."""

_VERSION = re.compile(r"[0-9]{4}-[0-9]{2}")


def check_api_version(request: Request, name: str, *, partitioned: bool) -> None:
    """Check that the request's version knows entities like the one of that name. Raises `InvalidOperation`.

    No version, or one in another form, stands for the newest.
    """
    version = request.query_params.get("api-version", "")
    if partitioned and _VERSION.fullmatch(version) and version < PARTITIONED_FROM:
        raise InvalidOperation(
            f"'{name}' is partitioned, which the api-version {version} does not know. Ask for "
            f"{PARTITIONED_FROM} or later, or leave api-version out."
        )


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
