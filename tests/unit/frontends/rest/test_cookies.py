"""The portal's cookie among others, and headers that are made to be slow to read."""

from __future__ import annotations

import http.cookies
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from partibus.clock import ManualClock
from partibus.frontends.rest.portal.signing_in import grant_of, sign_in
from partibus.namespace.access import AccessPolicies, Right, SasPolicy

NAME = "partibus-portal-8080"
BROKER: Any = SimpleNamespace(
    access=AccessPolicies([SasPolicy("p", Right.LISTEN, "key", "")]), wall_clock=ManualClock(1_000_000)
)


def request(*cookies: str) -> Request:
    headers = [(b"host", b"localhost:8080"), *((b"cookie", cookie.encode("latin-1")) for cookie in cookies)]
    return Request({"type": "http", "scheme": "http", "path": "/portal", "query_string": b"", "headers": headers})


@pytest.fixture(scope="module")
def value() -> str:
    return sign_in(BROKER, request(), "", "p", "key")


@pytest.mark.parametrize(
    "cookies",
    [
        ("{0}={1}",),
        ("a=b; {0}={1}",),
        ("a=b;{0}={1};c=d",),
        (" {0} = {1} ; x",),
        ("a=b", "{0}={1}"),
        ('a="b; {0}={1}',),
        ("=;;; {0}={1}; {0}=other",),
    ],
)
def test_the_cookie_is_found_among_others(cookies: tuple[str, ...], value: str) -> None:
    grant = grant_of(BROKER, request(*(cookie.format(NAME, value) for cookie in cookies)))
    assert grant is not None
    assert grant.rights == Right.LISTEN


@pytest.mark.parametrize("cookies", [(), ("",), ("{0}",), ("{0}=",), ("x{0}={1}",), ("{0}=={1}",)])
def test_another_cookie_is_none(cookies: tuple[str, ...], value: str) -> None:
    assert grant_of(BROKER, request(*(cookie.format(NAME, value) for cookie in cookies))) is None


@pytest.mark.parametrize("header", [NAME + '="' + "\\" * 32_000 + '"', NAME + "=" + '"\\"' * 10_000, ";" * 32_000])
def test_quoted_values_are_not_taken_apart(monkeypatch: pytest.MonkeyPatch, header: str) -> None:
    """The standard library's way takes a second and a half for 32 KB of them (CVE-2024-7592)."""

    def quadratic(text: str) -> str:
        raise AssertionError(f"{len(text)} characters of a cookie were unquoted")

    monkeypatch.setattr(http.cookies, "_unquote", quadratic)
    assert grant_of(BROKER, request(header)) is None
