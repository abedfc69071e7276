"""Requests about messages: dispatch and authorization."""

from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Scope

from partibus import errors as core
from partibus.errors import PartibusError
from partibus.frontends.rest.claims import Claims
from partibus.frontends.rest.data import receive, send
from partibus.frontends.rest.data.calls import DataCall, Place, parse_place, read_lock
from partibus.frontends.rest.data.message_in import MessageReader
from partibus.frontends.rest.requests import Api, Handover, check_api_version
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


class DataApi(Api):
    """Answers requests about messages."""

    KIND = RequestKind.HTTP
    OWN_STATUS = _STATUS

    def __init__(self, namespaces: Namespaces, new_message_id: Callable[[], str]) -> None:
        super().__init__(namespaces)
        self._reader = MessageReader(new_message_id)
        self._stopping: Handover[None] = Handover()

    def stop(self) -> None:
        """End waiting receives empty, and those at once that begin later: the server cancels what takes longer."""
        self._stopping.give(None)

    def takes(self, scope: Scope) -> bool:
        """Tell whether a request is about messages, and not about an entity with such a name."""
        place = parse_place(scope["path"])
        if place is None or (len(place.below), scope["method"]) not in HANDLERS:
            return False
        if len(place.below) == 2 and scope["method"] != "POST" and read_lock(place) is None:
            return False  # an entity may be called so
        return self.broker_of(HTTPConnection(scope)).namespace.find("/".join(place.claim_path)) is None

    async def answer(self, request: Request) -> Response:
        """Answer a request about messages."""
        place = parse_place(request.scope["path"])
        assert place is not None, "`takes` was asked"
        right, handler = HANDLERS[len(place.below), request.method]
        address = place.address
        broker = self.broker_of(request)
        _check_claim(broker, request, place, right)
        entity = broker.entity(address.entity_path)
        check_api_version(request, entity.queue.name, partitioned=entity.queue.partitioned)
        return await handler(DataCall(broker, self._reader, request, place, address, entity, self._stopping))


def _check_claim(broker: Broker, request: Request, place: Place, right: Right) -> None:
    path, entity = place.claim_path, place.address.segments
    between = ("/".join(path[:length]) for length in range(len(entity) + 1, len(path) + 1))
    # An entity may be called `orders/messages`: its users may not use `orders` because of that.
    narrow = all(broker.namespace.find(name) is None for name in between)
    Claims(broker.access, broker.wall_clock).check_entity(request, path, entity, right, narrow=narrow)
