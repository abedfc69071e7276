"""The dispatch of the portal's requests, and the import of the portal with the first of them."""

from starlette.types import ASGIApp, Receive, Scope, Send

from partibus.frontends.rest.metrics import Ask
from partibus.frontends.rest.portal import PATH
from partibus.frontends.rest.requests import done_elsewhere
from partibus.namespace.namespaces import Namespaces

_TOKENS = (b"SharedAccessSignature", b"Bearer")


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
