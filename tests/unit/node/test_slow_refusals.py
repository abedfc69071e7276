"""Keys and tokens that are refused again and again over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from partibus.frontends.admission import FAILURES_BURST, SLOW_MAX, SLOW_S, SignIns
from partibus.node import http_scheduler
from partibus.units.account import CLAIMED


def test_refusals_over_http_are_counted_and_come_late(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    sign_ins = SignIns(lambda: 0.0)
    answers: list[int] = []
    good = b"SharedAccessSignature sr=a&sig=good&se=1&skn=p"

    async def app(scope: Any, receive: Any, send: Any) -> None:
        is_good = dict(scope["headers"])[b"authorization"] == good
        if is_good:
            scope["state"][CLAIMED]()
        await send({"type": "http.response.start", "status": 200 if is_good else 401, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> Any:
        raise AssertionError

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answers.append(message["status"])

    async def ask(token: bytes) -> None:
        scope = {"type": "http", "method": "GET", "path": "/q", "client": ("10.0.0.1", 1)}
        await http_scheduler.SlowRefusals(app, sign_ins)(
            {**scope, "headers": [(b"authorization", token)]}, receive, send
        )

    async def run() -> None:
        for _ in range(FAILURES_BURST + SLOW_MAX):
            await ask(good.replace(b"good", b"evil"))
        assert answers == [401] * len(answers)
        assert slept == [0.0] * FAILURES_BURST + [SLOW_S] * SLOW_MAX
        await ask(good)
        assert answers.pop() == 503
        sign_ins.succeeded("10.0.0.1", "p")
        await ask(good)
        assert answers.pop() == 200

    asyncio.run(run())


def test_a_guess_is_counted_for_its_policy_however_the_header_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    sign_ins = SignIns(lambda: 0.0)
    counted: list[str] = []

    def failed(host: str, policy: str) -> float:
        counted.append(policy)
        return 0.0

    monkeypatch.setattr(sign_ins, "failed", failed)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": []})

    async def receive() -> Any:
        raise AssertionError

    async def send(message: Any) -> None:
        pass

    async def ask(*tokens: bytes) -> None:
        scope = {"type": "http", "method": "GET", "path": "/q", "client": ("10.0.0.1", 1)}
        headers = [(b"authorization", b"SharedAccessSignature " + token) for token in tokens]
        await http_scheduler.SlowRefusals(app, sign_ins)({**scope, "headers": headers}, receive, send)

    async def run() -> None:
        await ask(b"sr=h&sig=evil&se=1&skn=root")
        await ask(b"sr=h&xskn=17&sig=evil&se=1&skn=root")
        await ask(b"sr=h&sig=evil&se=1&skn=%72oot")
        await ask(b"sr=h&sig=evil&se=1&skn=root", b"sr=h&sig=evil&se=1&skn=17")

    asyncio.run(run())
    assert counted == ["root"] * 4
