"""Entries and feeds: what stands around descriptions (dialect section 9.4).

JavaScript takes names from the ids, and wants ``Subscriptions`` and ``Rules`` spelled so in them; Python takes names
from the titles, and the address of the next page from the second of exactly two links.
"""

from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from partibus.frontends.rest.atom.values import date_text
from partibus.frontends.rest.atom.xml import ATOM, INSTANCE, SERVICE, element, text_element

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
