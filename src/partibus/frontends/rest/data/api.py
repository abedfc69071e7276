"""Requests about messages: dispatch, authorization, and refusals."""

from collections.abc import Awaitable, Callable, Mapping

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from partibus import errors as core
from partibus.errors import PartibusError
from partibus.frontends.rest.atom.envelope import refusal, status_of
from partibus.frontends.rest.claims import Claims
from partibus.frontends.rest.data import receive, send
from partibus.frontends.rest.data.calls import DataCall, Place, parse_place, read_lock
from partibus.frontends.rest.data.message_in import MessageReader
from partibus.frontends.rest.requests import BodyTooLarge, check_api_version
from partibus.namespace.access import Right
from partibus.namespace.broker import Broker
from partibus.namespace.namespaces import Namespaces
from partibus.namespace.requests import RequestKind

Handler = Callable[[DataCall], Awaitable[Response]]

HANDLERS: Mapping[tuple[int, str], tuple[Right, Handler]] = {
    (0, "POST"): (Right.SEND, send.send_messages),
    (1, "POST"): (Right.LISTEN, receive.peek_lock),
    (1, "DELETE"): (Right.LISTEN, receive.receive_and_delete),
    (2, "DELETE"): (Right.LISTEN, receive.complete),
    (2, "PUT"): (Right.LISTEN, receive.unlock),
    (2, "POST"): (Right.LISTEN, receive.renew),
}
"""Handlers by the number of segments below ``messages``, and the method."""

_STATUS: Mapping[type[PartibusError], tuple[int, int]] = {
    core.EntityNotFound: (410, 41000),
    core.MessageLockLost: (404, 40400),
    core.MessageTooLarge: (403, 40300),
}
"""Errors whose statuses for messages differ from those for entities (dialect section 10)."""


class DataApi:
    """Answers requests about messages."""

    def __init__(self, namespaces: Namespaces, new_message_id: Callable[[], str]) -> None:
        self._namespaces = namespaces
        self._reader = MessageReader(new_message_id)

    def takes(self, scope: Scope) -> bool:
        """Tell whether a request is about messages, and not about an entity with such a name."""
        place = parse_place(scope["path"])
        if place is None or (len(place.below), scope["method"]) not in HANDLERS:
            return False
        if len(place.below) == 2 and scope["method"] != "POST" and read_lock(place) is None:
            return False  # an entity may be called so
        return self._broker(scope).namespace.find("/".join(place.claim_path)) is None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request about messages."""
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except ClientDisconnect:
            return
        except BodyTooLarge as error:
            response = self._refuse(request, 413, 41300, str(error))
        except PartibusError as error:
            response = self._refuse(request, *_STATUS.get(type(error), status_of(error)), str(error))
        self._broker(scope).requests.answered_status(RequestKind.HTTP, response.status_code)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        place = parse_place(request.scope["path"])
        assert place is not None, "`takes` was asked"
        right, handler = HANDLERS[len(place.below), request.method]
        address = place.address
        broker = self._broker(request.scope)
        _check_claim(broker, request, place, right)
        entity = broker.entity(address.entity_path)
        check_api_version(request, entity.queue.name, partitioned=entity.queue.partitioned)
        return await handler(DataCall(broker, self._reader, request, place, address, entity))

    def _broker(self, scope: Scope) -> Broker:
        return self._namespaces.of_host(Headers(scope=scope).get("host"))

    def _refuse(self, request: Request, status: int, sub_code: int, text: str) -> Response:
        return refusal(request, status, sub_code, text, self._namespaces.default.clock.now_ms())


def _check_claim(broker: Broker, request: Request, place: Place, right: Right) -> None:
    path, entity = place.claim_path, place.address.segments
    between = ("/".join(path[:length]) for length in range(len(entity) + 1, len(path) + 1))
    # An entity may be called `orders/messages`: its users may not use `orders` because of that.
    narrow = all(broker.namespace.find(name) is None for name in between)
    Claims(broker.access, broker.wall_clock).check_entity(request, path, entity, right, narrow=narrow)
