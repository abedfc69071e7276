"""Limits on web pages of other sites, which act through the browser of a user who can reach the broker.

A browser names the requesting page in ``Origin``, on every websocket and on every request that changes something.
Programs send no origin. A page is the broker's own if it was loaded under the requested host name. With the emulator's
public key that is not enough: a page can let its own name resolve to this machine (DNS rebinding), so the name must be
an address or ``localhost``.

A GET of SQS may change something, too, and browsers name no origin on it. With the public key it needs no signature, so
a GET of a browser must come from the address bar or one of the broker's own pages, which `Sec-Fetch-Site` tells.
"""

from collections.abc import Iterable, Mapping
from ipaddress import ip_address

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

READING = ("GET", "HEAD", "OPTIONS")
_FOREIGN_SITES = (b"cross-site", b"same-site")
_ANOTHER_SITE = "A page of another site may not use this broker. Allow it with serve --allow-origin."


class Origins:
    """The trusted pages."""

    def __init__(self, allowed: Iterable[str] = (), *, public_key: bool = False) -> None:
        """Trust the broker's own pages and ``allowed``: origins such as ``https://tools.example``.

        ``public_key``: the broker accepts the emulator's key.
        """
        self._allowed = frozenset(one.lower().rstrip("/") for one in allowed)
        self._public_key = public_key

    def refusal(self, origin: str | None, host: str | None) -> str | None:
        """Return why a request of a page of ``origin`` to ``host`` is refused; None if it is not."""
        if origin is None or origin.lower() in self._allowed:
            return None
        scheme, _, name = origin.lower().partition("://")
        if scheme not in ("http", "https") or name != (host or "").lower():
            return f"A page of {origin!r:.120} may not use this broker. Allow it with serve --allow-origin."
        if self._public_key and not _is_local_name(name):
            return (
                f"With the emulator's key pages must be got from an address or localhost, not from {name!r:.120}. "
                "Allow it with serve --allow-origin."
            )
        return None

    def sqs_refusal(self, headers: Mapping[str, str]) -> str | None:
        """Return why a request of SQS is refused, whatever its method; None if it is not.

        ``headers``: the values by name in lower case.
        """
        origin, host, site = headers.get("origin"), headers.get("host"), headers.get("sec-fetch-site")
        if origin is not None:
            return self.refusal(origin, host)
        if site is not None and site.encode() in _FOREIGN_SITES:
            return _ANOTHER_SITE
        if not self._public_key or not _is_of_browser(headers):
            return None
        if site is not None and _is_local_name((host or "").lower()):
            return None
        return (
            f"A browser's SQS request to {host!r:.120} is refused. With the emulator's key it must have an address or "
            "localhost as its host, and Sec-Fetch-Site. Use an SDK or curl."
        )


class RefuseForeignPages:
    """An ASGI application that accepts changing requests only from programs and trusted pages."""

    def __init__(self, app: ASGIApp, origins: Origins) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the application, or refuse it."""
        if scope["type"] == "http" and scope["method"] not in READING:
            found = {name: value for name, value in scope["headers"] if name in _LOOKED_AT}
            origin, host = (_text(found.get(name)) for name in (b"origin", b"host"))
            refusal = self._origins.refusal(origin, host)
            if origin is None and found.get(b"sec-fetch-site") in _FOREIGN_SITES:
                refusal = _ANOTHER_SITE
            if _is_of_portal(scope["path"]) and not _is_own(origin, host):
                refusal = None  # the portal refuses what its own pages have not sent, with a page that says so
            if refusal is not None:
                await PlainTextResponse(refusal, 403, {"connection": "close"})(scope, receive, send)
                return
        await self._app(scope, receive, send)


_LOOKED_AT = (b"origin", b"host", b"sec-fetch-site")


def _is_of_portal(path: str) -> bool:
    return path.startswith("/portal") and path[len("/portal") :][:1] in ("", "/")


def _is_own(origin: str | None, host: str | None) -> bool:
    return origin is not None and origin.lower().partition("://")[2] == (host or "").lower()


def _is_of_browser(headers: Mapping[str, str]) -> bool:
    """Tell whether a browser sends a request.

    A page can leave out `Referer`, but in few browsers change `User-Agent`. Programs send Mozilla in it, too, but no
    Gecko.
    """
    return "Gecko" in headers.get("user-agent", "") or "referer" in headers or "sec-fetch-site" in headers


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


def _is_local_name(host: str) -> bool:
    """Tell whether a host is an address or a name below ``localhost``: no other site can have either."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
