"""The routes of the HTTP port; the portal is imported with its first request."""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from partibus.clock import Clock
from partibus.frontends.rest import openapi
from partibus.frontends.rest.atom.api import AdminApi
from partibus.frontends.rest.clock import Advance, AdvanceClock, ShowClock
from partibus.frontends.rest.data.api import DataApi
from partibus.frontends.rest.metrics import Ask, ShowMetrics
from partibus.frontends.rest.portal import PATH
from partibus.frontends.rest.requests import done_elsewhere
from partibus.namespace.namespaces import Namespaces

Health = Callable[[], Awaitable[tuple[bool, dict[str, Any]]]]
"""(sends and receives work, details)."""
_TOKENS = (b"SharedAccessSignature", b"Bearer")
"""Begins of the tokens that clients send and browsers do not."""


class GetHealth:
    """200 only when sends and receives work, else 503 with the reason per store."""

    def __init__(self, health: Health) -> None:
        self._health = health

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the health of every store."""
        healthy, details = await self._health()
        await JSONResponse(details, 200 if healthy else 503)(scope, receive, send)


class ServerRoute(Route):
    """A path of the server that is a valid name of an entity, too.

    A request with an api-version, which every library for entities sends, and any but a GET is about the entity.
    """

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Tell whether a request is for the server."""
        if b"api-version=" in scope.get("query_string", b""):
            return Match.NONE, {}
        return super().matches(scope)


def make_app(
    health: Health,
    metrics: Ask,
    clock: Clock,
    advance: Advance | None,
    namespaces: Namespaces,
    data: DataApi,
) -> Starlette:
    """Make the application of all routes.

    ``advance`` moves the manual clock; None under the real one. ``data`` answers requests about messages.
    """
    default = namespaces.default
    show = ShowClock(clock, default, manual=advance is not None)
    return Starlette(
        routes=[
            ServerRoute("/health", GetHealth(health), methods=["GET"]),
            ServerRoute("/metrics", ShowMetrics(metrics, namespaces), methods=["GET"]),
            Route("/$partibus/clock", show, methods=["GET"]),
            Route("/$partibus/clock/advance", AdvanceClock(advance, default), methods=["POST"]),
            Route(openapi.PATH, openapi.ShowDescription(), methods=["GET"]),
            # Entities are named by any path:
            Route(
                "/{path:path}",
                EntityPaths(data, AdminApi(namespaces), Portal(namespaces, metrics)),
            ),
        ]
    )


class Portal:
    """The pages, made when they are first asked for: a broker starts without them."""

    def __init__(self, namespaces: Namespaces, metrics: Ask) -> None:
        self._namespaces = namespaces
        self._metrics = metrics
        self._site: ASGIApp | None = None

    def takes(self, scope: Scope) -> bool:
        """Tell whether a request is the portal's.

        A browser sends no token. A client with a token means an entity that has the portal's name, or one whose name
        begins with it. A password that a proxy passes on is no token.
        """
        path: str = scope["path"]
        if not path.startswith(PATH) or path[len(PATH) :][:1] not in ("", "/"):
            return False
        return not any(name == b"authorization" and value.startswith(_TOKENS) for name, value in scope["headers"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the portal, which is imported with the first one."""
        if self._site is None:
            # It takes some 150 ms of a processor, and the loop must serve other clients meanwhile.
            self._site = await done_elsewhere(self._make)
        await self._site(scope, receive, send)

    def _make(self) -> ASGIApp:
        from partibus.frontends.rest.portal.site import Site

        return Site(self._namespaces, self._metrics)


class EntityPaths:
    """Requests about messages, requests about entities, and pages about them."""

    def __init__(self, data: DataApi, admin: AdminApi, portal: Portal) -> None:
        self._data = data
        self._admin = admin
        self._portal = portal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if self._portal.takes(scope):
            await self._portal(scope, receive, send)
            return
        await (self._data if self._data.takes(scope) else self._admin)(scope, receive, send)
