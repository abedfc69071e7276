"""Signing in: a policy's name and key become a cookie that proves it; no broker keeps sessions of users.

The cookie holds a shared access signature that the server makes for ``/$portal`` of the namespace. Every broker can
check it, as it checks those of all clients, and it ends with its policy, or its key. It gives no other access: no
entity lies below that path. The key itself is not kept.
"""

import base64
import binascii
import re
from dataclasses import replace
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from partibus.errors import ArgumentError, PartibusError, Unauthorized, shown
from partibus.frontends.rest.claims import host_of, note_claim
from partibus.frontends.rest.portal import PATH
from partibus.namespace.access import Grant, Right
from partibus.namespace.broker import Broker
from partibus.namespace.connection_string import parse_connection_string
from partibus.namespace.sas import make_token

_NEXT = re.compile(re.escape(PATH) + r"(?:[/?][A-Za-z0-9._~!$&'()*+,;=:@%/?-]*)?")
_NEXT_MAX = 2_000


def comes_from_here(request: Request) -> bool:
    """Tell whether a page of the portal under this very name has sent it. A request without an origin has not."""
    site = request.headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        return False
    origin = request.headers.get("origin")
    if origin is None:
        return site is not None
    # A proxy that speaks TLS may stand in front: the scheme is the browser's, not ours.
    scheme, _, host = origin.lower().partition("://")
    return scheme in ("http", "https") and host == host_of(request).lower()


def is_private(request: Request) -> bool:
    """Tell whether the browser speaks TLS, to us or, as the origin of a form tells, to a proxy in front of us."""
    return request.scope["scheme"] == "https" or request.headers.get("origin", "").lower().startswith("https://")


def safe_next(wanted: str) -> str:
    """Return the page wanted before signing in, if it is one of the portal's; otherwise the first page."""
    path = wanted.partition("?")[0]
    if len(wanted) > _NEXT_MAX or not _NEXT.fullmatch(wanted) or "//" in path or "." in path or "%" in path:
        return PATH
    return wanted


SESSION_S: Final = 8 * 3_600
"""A day at work."""
_COOKIE = "partibus-portal"
_COOKIE_MAX = 4_096
_SEGMENT = "$portal"


def sign_in(broker: Broker, request: Request, connection_string: str, policy: str, key: str) -> str:
    """Return the value of the cookie, for a key in either form.

    Raises `ArgumentError`, never with the key in it, and `Unauthorized`.
    """
    if connection_string:
        parsed = parse_connection_string(connection_string)
        if parsed.signature:
            raise ArgumentError(
                "connection_string", "SharedAccessSignature=...", "one with SharedAccessKeyName and SharedAccessKey"
            )
        policy, key = parsed.key_name, parsed.key
    if not policy or not key:
        raise ArgumentError("policy", policy, "the name of an access policy, beside one of its keys")
    grant = broker.access.check_key(policy, key)
    if grant.owner:
        raise Unauthorized(
            f"The access policy {shown(policy)} is one of the entity '{'/'.join(grant.owner)}'. "
            "The portal shows the whole namespace: use a policy of the namespace."
        )
    if Right.LISTEN not in grant.rights:
        raise Unauthorized(
            f"The access policy {shown(policy)} has neither Manage nor Listen. The portal shows what is in entities: "
            "use a policy that may see it."
        )
    token = make_token(_audience(request), policy, key, int(_now_s(broker)) + SESSION_S)
    return base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


def grant_of(broker: Broker, request: Request) -> Grant | None:
    """Return the grant of a request's cookie in this namespace, if it is valid."""
    value = _cookie(request, _name(request))
    if not value or len(value) > _COOKIE_MAX:
        return None
    try:
        token = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).decode()
        grant = broker.access.check_token(token, _audience(request), _now_s(broker))
    except (PartibusError, binascii.Error, ValueError):
        return None
    note_claim(request)
    # On the portal's paths it stands for the policy, which is the namespace's.
    return None if grant.owner or Right.LISTEN not in grant.rights else replace(grant, path=())


def _cookie(request: Request, name: str) -> str:
    """Return the value of the first cookie of this name; empty without one.

    The portal's value is base64, so a value in quotes is invalid. `Request.cookies` takes quadratic time for such a
    value on Python before 3.11.10 (CVE-2024-7592).
    """
    for header in request.headers.getlist("cookie"):
        for pair in header.split(";"):
            key, _, value = pair.partition("=")
            if key.strip() == name:
                return value.strip()
    return ""


def remember(response: Response, request: Request, value: str) -> None:
    """Have the browser show it from now on."""
    secure = is_private(request)
    response.set_cookie(
        _name(request), value, max_age=SESSION_S, path=PATH, secure=secure, httponly=True, samesite="strict"
    )


def forget(response: Response, request: Request) -> None:
    """Sign out."""
    secure = is_private(request)
    response.delete_cookie(_name(request), path=PATH, secure=secure, httponly=True, samesite="strict")


def _name(request: Request) -> str:
    """Cookies know no ports: two servers on one machine must not sign each other out."""
    port = host_of(request).rpartition(":")[2]
    return f"{_COOKIE}-{port}" if port.isascii() and port.isdigit() else _COOKIE


def _audience(request: Request) -> str:
    return f"{request.scope['scheme']}://{host_of(request)}/{_SEGMENT}"


def _now_s(broker: Broker) -> float:
    return broker.wall_clock.now_ms() / 1000
