"""The admin API as one ASGI application: dispatch of requests and authorization."""

from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response

from partibus.errors import EntityNotFound
from partibus.frontends.rest.atom import entities, lists, rules
from partibus.frontends.rest.atom.calls import Call, Kind, parse_path
from partibus.frontends.rest.atom.lists import get_namespace_info
from partibus.frontends.rest.claims import Claims
from partibus.frontends.rest.requests import Api, pay
from partibus.namespace.access import Right
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


class AdminApi(Api):
    """Answers every path that no other route has taken.

    The api-version is ignored: the clients' versions do not differ here (dialect section 9.1).
    """

    KIND = RequestKind.MANAGEMENT

    async def answer(self, request: Request) -> Response:
        """Answer a request about entities."""
        path = request.scope["path"]
        resource = parse_path(path)
        broker = self.broker_of(request)
        claims = Claims(broker.access, broker.wall_clock)
        if resource is None:
            claims.check(request, (), Right.MANAGE)
            raise EntityNotFound(path)
        handlers = HANDLERS[resource.kind]
        grant = claims.check(request, resource.claim_path, Right.MANAGE)
        handler = handlers.get(request.method)
        if handler is None:
            known = ", ".join(handlers)
            response = self.refuse(request, 405, 40500, f"{request.method} is not one of {known}, which this takes.")
            response.headers["allow"] = known
            return response
        if resource.kind is not Kind.NAMESPACE_INFO:
            await pay(broker, Operation.MANAGEMENT)
        return await handler(Call(broker, claims, request, resource, grant))
