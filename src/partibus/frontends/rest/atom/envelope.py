"""Documents of the admin API (dialect section 9.4): entries and feeds around descriptions, and errors.

JavaScript takes names from the ids, and wants ``Subscriptions`` and ``Rules`` spelled so in them; Python takes names
from the titles, and the address of the next page from the second of exactly two links.

Core errors become status codes, sub-codes and documents. Clients choose their exception by the status; JavaScript looks
for two sub-codes in the text, too: 40901 means that something else is under way, 40301 that the operation is not
allowed, where 409 and 403 alone mean *exists* and *full*.
"""

import re
import uuid
from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import quote, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from partibus import errors as core
from partibus.errors import PartibusError
from partibus.frontends.rest.atom.values import date_text
from partibus.frontends.rest.atom.xml import ATOM, INSTANCE, SERVICE, element, text_element
from partibus.throttling.throttle import RETRY_AFTER_S

ENTRY_TYPE = "application/atom+xml;type=entry;charset=utf-8"
FEED_TYPE = "application/atom+xml;type=feed;charset=utf-8"


class Entry(NamedTuple):
    """One resource as it is shown."""

    path: str
    """Canonical; below the address of the namespace."""
    title: str
    kind: str
    """Name of the describing element."""
    content: str
    """The markup of the describing element."""
    created_ms: int
    updated_ms: int


class Page(NamedTuple):
    """The start and the size of a feed's page."""

    skip: int
    top: int
    more: bool


def entry_xml(entry: Entry, base: str) -> str:
    """Return a document; ``base`` is the client's address of the namespace, without a slash at its end."""
    return _entry(entry, base, {"xmlns": ATOM})


def feed_xml(title: str, path: str, entries: Iterable[Entry], page: Page, base: str, now_ms: int) -> str:
    """Return a document of all entries of one page."""
    address = _address(base, path)
    links = element("link", "", {"rel": "self", "href": f"{address}?$skip={page.skip}&$top={page.top}"})
    if page.more:
        following = f"{address}?$skip={page.skip + page.top}&$top={page.top}"
        links += element("link", "", {"rel": "next", "href": following})
    return element(
        "feed",
        text_element("title", title, {"type": "text"})
        + text_element("id", address)
        + text_element("updated", date_text(now_ms))
        + links
        + "".join(_entry(entry, base, {}) for entry in entries),
        {"xmlns": ATOM},
    )


def _entry(entry: Entry, base: str, attributes: dict[str, str]) -> str:
    address = _address(base, entry.path)
    description = element(entry.kind, entry.content, {"xmlns": SERVICE, "xmlns:i": INSTANCE})
    return element(
        "entry",
        text_element("id", address)
        + text_element("title", entry.title, {"type": "text"})
        + text_element("published", date_text(entry.created_ms))
        + text_element("updated", date_text(entry.updated_ms))
        + element("author", text_element("name", namespace_name(base)))
        + element("link", "", {"rel": "self", "href": address})
        + element("content", description, {"type": "application/xml"}),
        attributes,
    )


def namespace_name(base: str) -> str:
    """Return the first label of the host, which the service calls the namespace.

    Of an address, return all of it; empty for an invalid host.
    """
    try:
        host = urlsplit(base).hostname or ""
    except ValueError:
        return ""
    return host if host.replace(".", "").isdigit() or ":" in host else host.partition(".")[0]


def _address(base: str, path: str) -> str:
    return f"{base}/{quote(path, safe='/$')}"


STATUS: Final[dict[type[PartibusError], tuple[int, int]]] = {
    core.EntityNotFound: (404, 40400),
    core.EntityExists: (409, 40900),
    core.EntityChanged: (412, 41200),
    core.InvalidOperation: (400, 40000),
    core.ArgumentError: (400, 40000),
    core.MessageTooLarge: (413, 41300),
    core.QuotaExceeded: (403, 40300),
    core.MessageLockLost: (410, 41000),
    core.MessageNotFound: (404, 40400),
    core.SessionLockLost: (410, 41000),
    core.SessionCannotBeLocked: (409, 40901),
    core.ReadExclusively: (409, 40901),
    core.CursorHeld: (409, 40901),
    core.CursorLost: (410, 41000),
    core.TransactionUnknown: (400, 40000),
    core.TransactionRolledBack: (400, 40000),
    core.TransactionTimedOut: (400, 40000),
    core.EntityDisabled: (403, 40301),
    core.Unauthorized: (401, 40100),
    core.ServerBusy: (503, 50300),
    core.StoreUnavailable: (503, 50301),
    core.OutcomeUnknown: (504, 50400),
    core.Unsupported: (403, 40301),
    core.Timeout: (504, 50400),
    core.InternalError: (500, 50000),
}
"""Kind -> (status, sub-code)."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


def status_of(error: PartibusError) -> tuple[int, int]:
    """Return status and sub-code of an error, by its class or the nearest base class."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def tracking_id(request: Request) -> str:
    """Return the id that an answer and a log line share: the client's id of the request, or a new one."""
    theirs = request.headers.get("x-ms-client-request-id", "")
    return theirs if _REQUEST_ID.fullmatch(theirs) else str(uuid.uuid4())


def refusal(request: Request, status: int, sub_code: int, text: str, now_ms: int) -> Response:
    """Return the error document."""
    tracking = tracking_id(request)
    detail = (
        f"{text} SubCode={sub_code}. TrackingId:{tracking}, SystemTracker:{request.url.path}, "
        f"Timestamp:{date_text(now_ms)}"
    )
    content = element("Error", text_element("Code", str(status)) + text_element("Detail", detail))
    headers = {"x-ms-request-id": tracking}
    if status == 401:
        headers["www-authenticate"] = "SharedAccessSignature"
    if status == 503:
        headers["retry-after"] = str(RETRY_AFTER_S)
    return Response(content, status, headers, "application/xml; charset=utf-8")
