"""``POST /$partibus/clock/advance``: move the manual clock (D26)."""

import json
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from partibus.clock import SystemClock
from partibus.errors import ArgumentError, InvalidOperation, PartibusError, Unauthorized
from partibus.namespace.access import AccessPolicies, Right

BODY_BYTES_MAX = 1_024
ADVANCE_MAX_MS = 366 * 24 * 3_600_000


class AdvanceClock:
    """Body ``{"milliseconds": n}``; answered with ``{"now_ms", "advances"}`` when everything that fell due has run.

    ``Authorization: SharedAccessSignature …`` of a policy with the Manage right.
    """

    Advance = Callable[[int], int]
    """Moves the clock by so many ms and runs what is due; returns the new time."""

    def __init__(self, advance: Advance | None, access: AccessPolicies) -> None:
        self._advance = advance
        self._access = access
        self._wall_clock = SystemClock()
        self._advances = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            self._check_claim(request)
            response = JSONResponse(self._move(await _milliseconds(request)))
        except Unauthorized as error:
            response = JSONResponse({"error": str(error)}, 401)
        except PartibusError as error:
            response = JSONResponse({"error": str(error)}, 400)
        await response(scope, receive, send)

    def _move(self, milliseconds: int) -> dict[str, int]:
        if self._advance is None:
            raise InvalidOperation("The clock of this broker is the real one. Serve with --clock manual to move it.")
        now_ms = self._advance(milliseconds)
        self._advances += 1
        return {"now_ms": now_ms, "advances": self._advances}

    def _check_claim(self, request: Request) -> None:
        token = request.headers.get("authorization", "")
        now_s = self._wall_clock.now_ms() / 1000
        grant = self._access.check_token(token, str(request.url), now_s)
        if not grant.allows((), Right.MANAGE, now_s):
            raise Unauthorized("Moving the clock needs the Manage right on the namespace.")


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
