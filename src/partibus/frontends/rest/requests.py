"""Parts of every request over HTTP: a bounded body, api-version (row P20), cost in credits (rows R3-R5), errors.

Answers come from the core. The core knows no tasks: it calls when a change is durable, or a result is found. A route is
a task, and waits here.
"""

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from partibus.errors import InvalidOperation, PartibusError
from partibus.frontends.rest.atom.envelope import refusal, status_of
from partibus.namespace.broker import Broker
from partibus.namespace.entity import Entity
from partibus.namespace.namespaces import Namespaces
from partibus.namespace.requests import RequestKind
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


T = TypeVar("T")
Ask = Callable[[Callable[[T], None]], None]
"""A call to the core, which calls its argument once, now or later."""


async def answer_of(ask: Ask[T]) -> T:
    """Return the value that ``ask`` calls its argument with. After a cancellation the core goes on, unheard."""
    return await _asked(ask)


async def answers_of(asks: Iterable[Ask[T]]) -> list[T]:
    """Return several answers in the order of ``asks``, as `answer_of` does; all are asked at once."""
    under_way = [_asked(ask) for ask in asks]
    return [await answer for answer in under_way]


def _asked(ask: Ask[T]) -> "asyncio.Future[T]":
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def take(value: T) -> None:
        if not answer.done():
            answer.set_result(value)

    ask(take)
    return answer


async def done_elsewhere(call: Callable[[], T]) -> T:
    """Return the result of ``call``, run on another thread because it would block the loop."""
    return await asyncio.get_running_loop().run_in_executor(None, call)


class Handover(Generic[T]):
    """One value that is given and awaited, in any order. Made where a task runs."""

    def __init__(self) -> None:
        self.value: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        """Done when the value is given."""

    def give(self, value: T) -> bool:
        """Give the value. Return False when there was one before, which stays."""
        if self.value.done():
            return False
        self.value.set_result(value)
        return True

    def look(self) -> T | None:
        """Return the value, if it was given."""
        return self.value.result() if self.value.done() else None

    async def wait(self) -> T:
        """Wait until there is an answer."""
        return await asyncio.shield(self.value)

    async def wait_with(self, request: Request, timeout_s: float, stopping: "Handover[None]") -> bool:
        """Wait until there is an answer, the client has left, the time is over or the broker stops.

        Return whether the client has left.
        """
        gone = asyncio.ensure_future(_left(request))
        try:
            either: set[asyncio.Future[Any]] = {self.value, gone, stopping.value}
            await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            return gone.done()
        finally:
            gone.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def others_first() -> None:
    """Let what else waits for the loop have its turn."""
    await asyncio.sleep(0)


class Api(ABC):
    """An ASGI application for requests of one kind, whose errors become documents. A subclass answers."""

    KIND: ClassVar[RequestKind]
    """The kind under which the namespace counts its requests."""
    OWN_STATUS: ClassVar[Mapping[type[PartibusError], tuple[int, int]]] = {}
    """Errors whose status and sub-code differ from those of `status_of`."""

    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, also one that is refused. A client that has left gets nothing."""
        request = Request(scope, receive)
        try:
            response = await self.answer(request)
        except ClientDisconnect:
            return
        except BodyTooLarge as error:
            response = self.refuse(request, 413, 41300, str(error))
        except PartibusError as error:
            response = self.refuse(request, *self.OWN_STATUS.get(type(error), status_of(error)), str(error))
        self.broker_of(request).requests.answered_status(self.KIND, response.status_code)
        await response(scope, receive, send)

    @abstractmethod
    async def answer(self, request: Request) -> Response:
        """Return the answer. Raises `PartibusError` and `BodyTooLarge` for a refusal."""

    def broker_of(self, request: HTTPConnection) -> Broker:
        """Return the broker of the namespace that the host name chooses."""
        return self._namespaces.of_host(request.headers.get("host"))

    def refuse(self, request: Request, status: int, sub_code: int, text: str) -> Response:
        """Return the error document of a refusal at this time."""
        return refusal(request, status, sub_code, text, self._namespaces.default.clock.now_ms())
