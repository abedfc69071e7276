"""The admin API as one ASGI application: dispatch of requests, authorization, and refusals."""

from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from partibus.errors import EntityNotFound, PartibusError
from partibus.frontends.rest.atom import entities, lists, rules
from partibus.frontends.rest.atom.calls import Call, Kind, parse_path
from partibus.frontends.rest.atom.envelope import refusal, status_of
from partibus.frontends.rest.atom.lists import get_namespace_info
from partibus.frontends.rest.claims import Claims
from partibus.frontends.rest.requests import BodyTooLarge, pay
from partibus.namespace.access import Right
from partibus.namespace.namespaces import Namespaces
from partibus.namespace.requests import RequestKind
from partibus.throttling.uses import Operation

Handler = Callable[[Call], Awaitable[Response]]

HANDLERS: Mapping[Kind, Mapping[str, Handler]] = {
    Kind.ROOT: {"GET": lists.list_all},
    Kind.NAMESPACE_INFO: {"GET": get_namespace_info},
    Kind.QUEUES: {"GET": lists.list_queues},
    Kind.TOPICS: {"GET": lists.list_topics},
    Kind.ENTITY: {"GET": entities.get_entity, "PUT": entities.put_entity, "DELETE": entities.delete_entity},
    Kind.SUBSCRIPTIONS: {"GET": lists.list_subscriptions},
    Kind.SUBSCRIPTION: {
        "GET": entities.get_subscription,
        "PUT": entities.put_subscription,
        "DELETE": entities.delete_subscription,
    },
    Kind.RULES: {"GET": lists.list_rules},
    Kind.RULE: {"GET": rules.get_rule, "PUT": rules.put_rule, "DELETE": rules.delete_rule},
}


class AdminApi:
    """Answers every path that no other route has taken.

    The api-version is ignored: the clients' versions do not differ here (dialect section 9.1).
    """

    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request about entities."""
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except ClientDisconnect:
            return
        except BodyTooLarge as error:
            response = self._refuse(request, 413, 41300, str(error))
        except PartibusError as error:
            response = self._refuse(request, *status_of(error), str(error))
        broker = self._namespaces.of_host(request.headers.get("host"))
        broker.requests.answered_status(RequestKind.MANAGEMENT, response.status_code)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        path = request.scope["path"]
        resource = parse_path(path)
        broker = self._namespaces.of_host(request.headers.get("host"))
        claims = Claims(broker.access, broker.wall_clock)
        if resource is None:
            claims.check(request, (), Right.MANAGE)
            raise EntityNotFound(path)
        handlers = HANDLERS[resource.kind]
        grant = claims.check(request, resource.claim_path, Right.MANAGE)
        handler = handlers.get(request.method)
        if handler is None:
            known = ", ".join(handlers)
            response = self._refuse(request, 405, 40500, f"{request.method} is not one of {known}, which this takes.")
            response.headers["allow"] = known
            return response
        if resource.kind is not Kind.NAMESPACE_INFO:
            await pay(broker, Operation.MANAGEMENT)
        return await handler(Call(broker, claims, request, resource, grant))

    def _refuse(self, request: Request, status: int, sub_code: int, text: str) -> Response:
        return refusal(request, status, sub_code, text, self._namespaces.default.clock.now_ms())
