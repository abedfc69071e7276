"""``GET /health``: whether the broker can be used."""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

Health = Callable[[], Awaitable[tuple[bool, dict[str, Any]]]]
"""(sends and receives work, details)."""


class GetHealth:
    """200 only when sends and receives work, else 503 with the reason per store."""

    def __init__(self, health: Health) -> None:
        self._health = health

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the health of every store."""
        healthy, details = await self._health()
        if Request(scope).method not in ("GET", "HEAD"):
            await JSONResponse({"error": "only GET is answered here"}, 405)(scope, receive, send)
            return
        await JSONResponse(details, 200 if healthy else 503)(scope, receive, send)
