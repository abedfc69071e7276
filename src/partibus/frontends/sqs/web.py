"""SQS on the HTTP port: requests that speak it go to the service, all others to the port's own application."""

import asyncio
import re
from typing import Any, Final

from starlette.requests import ClientDisconnect
from starlette.requests import Request as WebRequest
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from partibus.frontends.origins import Origins
from partibus.frontends.sqs.calls import Call
from partibus.frontends.sqs.protocol import ASIDE_BYTES, BODY_BYTES_MAX, Answer, Parsed, Request, parse
from partibus.frontends.sqs.service import SqsService
from partibus.frontends.sqs.signature import ALGORITHM
from partibus.frontends.sqs.wire_json import TARGET_PREFIX
from partibus.namespace.broker import Broker
from partibus.units.account import CLAIMED

_QUEUE_PATH: Final = re.compile(r"(/.*)?/[0-9]{12}/[A-Za-z0-9_.-]{1,80}/?|/")
_ACTION: Final = re.compile(r"(?:^|&)Action=")


class WithSqs:
    """An application in front of another one."""

    def __init__(self, app: ASGIApp, service: SqsService, origins: Origins) -> None:
        self._app = app
        self._service = service
        self._origins = origins
        self._calls: set[Call] = set()
        """Requests under way."""
        self._is_stopping = False

    def stop(self) -> None:
        """End waiting receives empty, and those at once that begin later: the server cancels what takes longer."""
        self._is_stopping = True
        for call in list(self._calls):
            if call.end_early is not None:
                call.end_early()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of SQS, or hand it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            key, text = name.decode("latin-1"), value.decode("latin-1").strip()
            headers[key] = f"{headers[key]},{text}" if key in headers else text
        query = scope.get("query_string", b"").decode("latin-1")
        path = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
        if not speaks_sqs(scope["method"], path, query, headers):
            await self._app(scope, receive, send)
            return
        refusal = self._origins.sqs_refusal(headers)
        if refusal is not None:
            await self._rejection(403, refusal)(scope, receive, send)
            return
        try:
            body = await _read_body(WebRequest(scope, receive))
        except ClientDisconnect:
            return
        if body is None:
            text = f"The body of a request has at most {BODY_BYTES_MAX} bytes."
            await self._rejection(413, text)(scope, receive, send)
            return
        client = scope.get("client")
        request = Request(
            scope["method"], path, query, headers, body, client[0] if client else None, scope.get("scheme", "http")
        )
        response = await self._answer(request, scope, receive)
        if response is not None:
            await response(scope, receive, send)

    def _rejection(self, status: int, text: str) -> Response:
        """Return the answer to a request that does not get as far as the service."""
        headers = {"connection": "close", "x-amzn-RequestId": self._service.new_request_id()}
        return PlainTextResponse(text, status, headers)

    async def _answer(self, request: Request, scope: Scope, receive: Receive) -> Response | None:
        """Return the answer; None when the client has left before."""
        loop = asyncio.get_running_loop()
        parsed: Parsed
        if len(request.body) > ASIDE_BYTES:
            parsed = await loop.run_in_executor(None, parse, request)
        else:
            parsed = parse(request)
        answered: asyncio.Future[Answer] = loop.create_future()

        def respond(answer: Answer) -> None:
            if not answered.done():
                answered.set_result(answer)

        def claimed(broker: Broker) -> None:
            if (tell := scope.get(CLAIMED)) is not None:
                tell()

        call = self._service.handle(request, parsed, respond, claimed)
        if call is not None:
            self._calls.add(call)
            if self._is_stopping and call.end_early is not None:
                call.end_early()
            gone = asyncio.ensure_future(_left(receive))
            either: set[asyncio.Future[Any]] = {answered, gone}
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            finally:
                gone.cancel()
                self._calls.discard(call)
                if not answered.done():
                    call.leave()
            if not answered.done():
                return None
        answer = await answered
        shown = {"x-amzn-RequestId": answer.request_id}
        if answer.query_error:
            shown["x-amzn-query-error"] = answer.query_error
        return Response(answer.body, answer.status, shown, media_type=answer.content_type)


def speaks_sqs(method: str, path: str, query: str, headers: dict[str, str]) -> bool:
    """Tell whether a request to the HTTP port is one of SQS: by its target, its signature or its parameters."""
    if headers.get("x-amz-target", "").startswith(TARGET_PREFIX):
        return True
    if headers.get("authorization", "").startswith(ALGORITHM):
        return True
    if _QUEUE_PATH.fullmatch(path) is None:
        return False
    if _ACTION.search(query) is not None or "X-Amz-Signature=" in query:
        return True
    is_form = headers.get("content-type", "").startswith("application/x-www-form-urlencoded")
    return method == "POST" and is_form


async def _read_body(request: WebRequest) -> bytes | None:
    """Return the body; None for one over the bound. Raises ``ClientDisconnect``."""
    received = bytearray()
    async for chunk in request.stream():
        received += chunk
        if len(received) > BODY_BYTES_MAX:
            return None
    return bytes(received)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
