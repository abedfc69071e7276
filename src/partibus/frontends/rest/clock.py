"""The broker's clock over HTTP (D26): ``GET /$partibus/clock`` shows it, ``POST /$partibus/clock/advance`` moves it.

Both want ``Authorization: SharedAccessSignature …`` of a policy with the Manage right, and answer a refusal with
``{"error": text}``.
"""

import json
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from partibus.clock import Clock
from partibus.errors import ArgumentError, InvalidOperation, PartibusError, Unauthorized
from partibus.namespace.access import NOT_OPERATOR, Right
from partibus.namespace.broker import Broker

BODY_BYTES_MAX = 1_024
ADVANCE_MAX_MS = 366 * 24 * 3_600_000

Advance = Callable[[int], Awaitable[int]]
"""Moves the clock by so many ms; the new time, once what fell due has run and is durable."""


class ClockRoute:
    """The authorization and the refusals of both routes."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Authorize and answer a request."""
        request = Request(scope, receive)
        try:
            self._check_claim(request)
            response = JSONResponse(await self.answer(request))
        except Unauthorized as error:
            response = JSONResponse({"error": str(error)}, 401)
        except PartibusError as error:
            response = JSONResponse({"error": str(error)}, 400)
        await response(scope, receive, send)

    async def answer(self, request: Request) -> dict[str, object]:
        """Return the body of the answer."""
        raise NotImplementedError

    def _check_claim(self, request: Request) -> None:
        token = request.headers.get("authorization", "")
        now_s = self._broker.wall_clock.now_ms() / 1000
        grant = self._broker.access.check_token(token, str(request.url), now_s)
        if not grant.allows((), Right.MANAGE, now_s):
            raise Unauthorized("The clock needs the Manage right on the namespace.")
        if not grant.operates:
            raise Unauthorized(NOT_OPERATOR)


class ShowClock(ClockRoute):
    """Answers ``{"now_ms": ms since 1970, "clock": "manual" or "real"}``."""

    def __init__(self, clock: Clock, broker: Broker, *, manual: bool) -> None:
        super().__init__(broker)
        self._clock = clock
        self._kind = "manual" if manual else "real"

    async def answer(self, request: Request) -> dict[str, object]:
        """Return the time."""
        return {"now_ms": self._clock.now_ms(), "clock": self._kind}


class AdvanceClock(ClockRoute):
    """Body ``{"milliseconds": n}``; answers ``{"now_ms", "advances"}``, the second the number of this move."""

    def __init__(self, advance: Advance | None, broker: Broker) -> None:
        """``advance``: None under the real clock."""
        super().__init__(broker)
        self._advance = advance
        self._advances = 0

    async def answer(self, request: Request) -> dict[str, object]:
        """Move the clock, and return the new time."""
        milliseconds = await _milliseconds(request)
        if self._advance is None:
            raise InvalidOperation("The clock of this broker is the real one. Serve with --clock manual to move it.")
        now_ms = await self._advance(milliseconds)
        self._advances += 1
        return {"now_ms": now_ms, "advances": self._advances}


async def _milliseconds(request: Request) -> int:
    received = bytearray()
    async for chunk in request.stream():
        received += chunk
        if len(received) > BODY_BYTES_MAX:
            raise ArgumentError("body", f"{len(received)} bytes and more", f"at most {BODY_BYTES_MAX} bytes")
    try:
        body = json.loads(received)
    except ValueError:
        body = None
    value = body.get("milliseconds") if isinstance(body, dict) else None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= ADVANCE_MAX_MS:
        raise ArgumentError("milliseconds", value, f"a whole number from 0 to {ADVANCE_MAX_MS}")
    return value
