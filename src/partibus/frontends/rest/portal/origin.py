"""Checks that requests come from the portal's own pages, and that redirections stay there.

Changes are POST requests. Other sites' requests come without the cookie (``SameSite=Strict``), but other ports and
names of this host are the same site. So each POST must state its origin: browsers send ``Sec-Fetch-Site`` on the
connections that they trust, and ``Origin`` on all.
"""

import re

from starlette.requests import Request

from partibus.frontends.rest.claims import host_of
from partibus.frontends.rest.portal import PATH

_NEXT = re.compile(re.escape(PATH) + r"(?:[/?][A-Za-z0-9._~!$&'()*+,;=:@%/?-]*)?")
_NEXT_MAX = 2_000


def comes_from_here(request: Request) -> bool:
    """Whether a page of the portal under this very name has sent it. One that says nothing has not."""
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
    """Whether the browser speaks TLS, to us or, as the origin of a form tells, to a proxy in front of us."""
    return request.scope["scheme"] == "https" or request.headers.get("origin", "").lower().startswith("https://")


def safe_next(wanted: str) -> str:
    """Return the page wanted before signing in, if it is one of the portal's; otherwise the first page."""
    path = wanted.partition("?")[0]
    if len(wanted) > _NEXT_MAX or not _NEXT.fullmatch(wanted) or "//" in path or "." in path or "%" in path:
        return PATH
    return wanted
