"""Pages of other sites."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from partibus.frontends.origins import Origins, RefuseForeignPages


@pytest.mark.parametrize(
    ("origin", "host", "public_key", "is_refused"),
    [
        (None, "localhost:5300", True, False),
        ("http://localhost:5300", "localhost:5300", True, False),
        ("https://acme.localhost:5343", "acme.localhost:5343", True, False),
        ("http://127.0.0.1:5300", "127.0.0.1:5300", True, False),
        ("http://[::1]:5300", "[::1]:5300", True, False),
        ("https://tools.example", "localhost:5300", True, False),
        ("https://broker.example", "broker.example", False, False),
        ("https://evil.example", "localhost:5300", False, True),
        ("http://localhost:3000", "localhost:5300", False, True),
        ("null", "localhost:5300", False, True),
        ("null", None, False, True),
        ("file://localhost:5300", "localhost:5300", False, True),
        ("http://rebound.example:5300", "rebound.example:5300", True, True),
        ("http://1.2.3.4.example", "1.2.3.4.example", True, True),
        ("http://evillocalhost", "evillocalhost", True, True),
    ],
)
def test_which_pages_are_refused(origin: str | None, host: str | None, *, public_key: bool, is_refused: bool) -> None:
    refusal = Origins(["https://tools.example/"], public_key=public_key).refusal(origin, host)
    assert (refusal is not None) is is_refused
    assert refusal is None or "--allow-origin" in refusal


@pytest.mark.parametrize(
    ("path", "method", "headers", "status"),
    [
        ("/portal/create", "POST", {"host": "localhost", "origin": "http://evil.example"}, 200),
        ("/portal/create", "POST", {"host": "evil.example", "origin": "http://evil.example"}, 403),
        ("/portals", "POST", {"host": "localhost", "origin": "http://evil.example"}, 403),
        ("/q", "POST", {"host": "localhost"}, 200),
        ("/q", "POST", {"host": "localhost", "origin": "http://localhost"}, 200),
        ("/q", "POST", {"host": "localhost", "origin": "http://evil.example"}, 403),
        ("/q", "DELETE", {"host": "localhost", "origin": "null"}, 403),
        ("/q", "PUT", {"host": "localhost", "sec-fetch-site": "cross-site"}, 403),
        ("/q", "PUT", {"host": "localhost", "sec-fetch-site": "same-origin"}, 200),
        ("/q", "GET", {"host": "localhost", "origin": "http://evil.example"}, 200),
    ],
)
def test_requests_that_change_something_come_from_no_other_site(
    path: str, method: str, headers: dict[str, str], status: int
) -> None:
    said: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            said.append(message["status"])

    async def receive() -> Any:
        raise AssertionError("nothing of the body is read")

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
    }
    asyncio.run(RefuseForeignPages(app, Origins(public_key=True))(scope, receive, send))
    assert said == [status]


BROWSER = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"


@pytest.mark.parametrize(
    ("headers", "public_key", "is_refused"),
    [
        ({"host": "sqs.example:9324", "user-agent": "aws-cli/2.17"}, True, False),
        ({"host": "partibus:9324", "user-agent": "curl/8.9"}, True, False),
        ({"host": "partibus:9324"}, True, False),
        ({"host": "partibus:9324", "user-agent": "node", "sec-fetch-mode": "cors"}, True, False),
        ({"host": "partibus", "user-agent": "Mozilla/5.0 (Windows NT) WindowsPowerShell/5.1"}, True, False),
        ({"host": "partibus", "user-agent": "Mozilla/5.0 (compatible; pycurl)"}, True, False),
        ({"host": "localhost:9324", "user-agent": BROWSER, "sec-fetch-site": "none"}, True, False),
        ({"host": "127.0.0.1", "user-agent": BROWSER, "sec-fetch-site": "same-origin"}, True, False),
        ({"host": "localhost", "origin": "https://tools.example", "sec-fetch-site": "cross-site"}, True, False),
        ({"host": "sqs.example", "origin": "https://sqs.example"}, False, False),
        ({"host": "sqs.example", "user-agent": BROWSER}, False, False),
        ({"host": "localhost", "sec-fetch-site": "cross-site"}, True, True),
        ({"host": "localhost", "sec-fetch-site": "cross-site"}, False, True),
        ({"host": "localhost", "origin": "http://evil.example"}, False, True),
        ({"host": "evil.example:9324", "origin": "http://evil.example:9324"}, True, True),
        ({"host": "evil.example:9324", "referer": "http://evil.example:9324/"}, True, True),
        ({"host": "evil.example:9324", "sec-fetch-site": "same-origin"}, True, True),
        ({"host": "evil.example:9324", "user-agent": BROWSER}, True, True),
        ({"host": "192.168.1.5:9324", "user-agent": BROWSER}, True, True),
        ({"user-agent": BROWSER}, True, True),
    ],
)
def test_which_requests_of_sqs_are_refused(headers: dict[str, str], *, public_key: bool, is_refused: bool) -> None:
    refusal = Origins(["https://tools.example"], public_key=public_key).sqs_refusal(headers)
    assert (refusal is not None) is is_refused
