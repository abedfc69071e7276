"""Fair scheduling of HTTP requests with all other work of namespaces (`partibus.units.fair_scheduler`).

Requests wait before the application sees them. Their cost is charged to the namespace that their host names when they
have shown a claim in it, and otherwise to the default one. Or a client that only knows a namespace's name could use up
its messaging units.
"""

import asyncio
from collections.abc import Awaitable, Generator
from time import perf_counter_ns
from typing import Any, Final

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from partibus.frontends.admission import SLOW_S, SignIns, policy_of
from partibus.namespace.namespaces import Namespaces
from partibus.units.account import CLAIMED, Account, Bill
from partibus.units.fair_scheduler import FairScheduler

_FORM: Final = "(a form)"
"""Stands for the policy of a key that is typed into a form."""
REQUEST_BYTES: Final = 2_048
"""The bytes over AMQP that cost as much as the loop's work for a request, without its application."""


class HttpScheduler:
    """An application whose requests begin when the scheduler serves their namespace."""

    def __init__(self, app: ASGIApp, namespaces: Namespaces, scheduler: FairScheduler) -> None:
        self._app = app
        self._namespaces = namespaces
        self._scheduler = scheduler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request once the scheduler begins it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        account = self._namespaces.of_host(_header(scope, b"host")).account
        if self._scheduler.begin(account):
            self._scheduler.end(account, 0)
        else:
            waiting = _Waiting(account)
            self._scheduler.add(waiting)
            await waiting.turn
        bill = Bill(REQUEST_BYTES)
        on_claimed = scope.get("state", {}).get(CLAIMED)

        def claimed() -> None:
            bill.charge(account)
            if on_claimed is not None:
                on_claimed()

        scope[CLAIMED] = claimed
        try:
            await _Timed(self._app(scope, receive, send), bill)
        finally:
            bill.charge(self._namespaces.default.account)


class SlowRefusals:
    """An application whose refusals of keys and tokens come late where there are many (`SignIns`)."""

    def __init__(self, app: ASGIApp, sign_ins: SignIns) -> None:
        self._app = app
        self._sign_ins = sign_ins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; delay a refusal of keys and tokens where there are many."""
        shown = _header(scope, b"authorization") if scope["type"] == "http" else None
        is_form = scope["type"] == "http" and scope["method"] == "POST" and scope["path"].startswith("/portal")
        if shown is None and not is_form:
            await self._app(scope, receive, send)
            return
        host = scope["client"][0] if scope.get("client") else None
        policy = policy_of(shown.removeprefix("Bearer ")) if shown is not None else _FORM
        if not self._sign_ins.may_try(host, policy):
            text = "Too many keys or tokens of this policy were refused from your address. Try again later."
            await PlainTextResponse(text, 503, {"retry-after": str(int(SLOW_S))})(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        on_claimed = state.get(CLAIMED)
        is_good = False

        def claimed() -> None:
            nonlocal is_good
            is_good = True
            self._sign_ins.succeeded(host, policy)
            if on_claimed is not None:
                on_claimed()

        async def send_late(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 401 and not is_good:
                await asyncio.sleep(self._sign_ins.failed(host, policy))
            await send(message)

        state[CLAIMED] = claimed
        await self._app(scope, receive, send_late)


def _header(scope: Scope, wanted: bytes) -> str | None:
    """Return the first value of a header, which is the one that the application reads."""
    for name, value in scope["headers"]:
        if name == wanted:
            text: str = value.decode("latin-1")
            return text
    return None


class _Waiting:
    """A request that waits for its turn; see `partibus.units.account.Reader`."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def read_piece(self) -> bool:
        if not self.turn.done():
            self.turn.set_result(None)
        return False


class _Timed(Generator[Any, None, None]):
    """An awaitable whose steps are charged."""

    def __init__(self, work: Awaitable[None], bill: Bill) -> None:
        self._steps = work.__await__()
        self._bill = bill

    def __await__(self) -> Generator[Any, None, None]:
        return self

    def send(self, value: None) -> Any:
        """Advance it by one step."""
        began_ns = perf_counter_ns()
        try:
            return self._steps.send(value)
        finally:
            self._bill.spend(perf_counter_ns() - began_ns)

    def throw(self, *error: Any) -> Any:
        """Pass an exception, mostly a cancellation, to the application."""
        began_ns = perf_counter_ns()
        try:
            return self._steps.throw(*error)
        finally:
            self._bill.spend(perf_counter_ns() - began_ns)
