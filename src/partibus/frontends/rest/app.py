"""The routes of the HTTP port."""

from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

Health = Callable[[], tuple[bool, dict[str, Any]]]


def make_app(health: Health) -> Starlette:
    """``health`` tells whether sends and receives work, and the details."""

    async def get_health(request: Request) -> JSONResponse:
        """200 only when sends and receives work, else 503 with the reason per store."""
        healthy, details = health()
        return JSONResponse(details, status_code=200 if healthy else 503)

    return Starlette(routes=[Route("/health", get_health)])
