"""One request to the admin API, and the resource of its path (dialect section 9.2).

```text
 /                                       all queues and topics
 /name/with/slashes                      queue or topic
 /topic/Subscriptions                    the subscriptions of a topic
 /topic/Subscriptions/name
 /topic/Subscriptions/name/Rules         the rules of a subscription
 /topic/Subscriptions/name/Rules/name
 /$Resources/Queues, /$Resources/Topics
 /$namespaceinfo
```

Words compare without case, and a slash at the end is ignored (trap 29). Names are not checked here: no entity has an
invalid one.
"""

import re
from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from partibus.errors import ArgumentError, EntityChanged
from partibus.frontends.rest.atom.envelope import ENTRY_TYPE, FEED_TYPE, Entry, Page, entry_xml, feed_xml
from partibus.frontends.rest.atom.xml import ATOM, BODY_BYTES_MAX, SERVICE, Element, parse_xml
from partibus.frontends.rest.claims import Claims, host_of
from partibus.frontends.rest.requests import answer_of, read_body
from partibus.namespace.access import Grant
from partibus.namespace.broker import Broker
from partibus.namespace.names import RULES, SUBSCRIPTIONS
from partibus.namespace.sas import Path


class Kind(Enum):
    """Kinds of resources."""

    ROOT = auto()
    NAMESPACE_INFO = auto()
    QUEUES = auto()
    TOPICS = auto()
    ENTITY = auto()
    SUBSCRIPTIONS = auto()
    SUBSCRIPTION = auto()
    RULES = auto()
    RULE = auto()


class Resource(NamedTuple):
    """The resource of a path. Names that it does not have are empty."""

    kind: Kind
    claim_path: Path
    """The path that a claim must cover."""
    entity: str = ""
    subscription: str = ""
    rule: str = ""


_FIXED = {
    ("$namespaceinfo",): Kind.NAMESPACE_INFO,
    ("$resources", "queues"): Kind.QUEUES,
    ("$resources", "topics"): Kind.TOPICS,
}


def parse_path(path: str) -> Resource | None:
    """Return the resource of a decoded path; None when no resource has it."""
    segments = path.strip("/").split("/")
    if segments == [""]:
        return Resource(Kind.ROOT, ())
    folded = tuple(segment.lower() for segment in segments)
    fixed = _FIXED.get(folded)
    if fixed is not None:
        return Resource(fixed, folded)
    if SUBSCRIPTIONS.lower() not in folded:
        return Resource(Kind.ENTITY, folded, "/".join(segments))
    at = folded.index(SUBSCRIPTIONS.lower())
    topic, rest = "/".join(segments[:at]), segments[at + 1 :]
    if not topic or len(rest) > 3 or (len(rest) > 1 and rest[1].lower() != RULES.lower()):
        return None
    kind = (Kind.SUBSCRIPTIONS, Kind.SUBSCRIPTION, Kind.RULES, Kind.RULE)[len(rest)]
    subscription, rule = (rest[0] if rest else ""), (rest[2] if len(rest) == 3 else "")
    return Resource(kind, folded, topic, subscription, rule)


PAGE_MAX = 100
"""Entries of one page, which is also what clients ask for."""

_COUNT = re.compile(r"[0-9]{1,9}")


class Call(Struct):
    """A request whose claim is good for its resource."""

    broker: Broker
    claims: Claims
    request: Request
    resource: Resource
    grant: Grant

    @property
    def host(self) -> str:
        """The host of the request."""
        return host_of(self.request)

    @property
    def base(self) -> str:
        """The address of the namespace as the client has it."""
        return f"{self.request.url.scheme}://{self.host}"

    @property
    def if_match(self) -> str | None:
        """None: make it; else change it, if its tag is one of these."""
        return self.request.headers.get("if-match")

    def check_tag(self, name: str, tag: str) -> bool:
        """Tell whether the client named the state that it has seen.

        Raises EntityChanged when ``tag`` is of another one.
        """
        given = self.if_match
        if given is None or given.strip() == "*":
            return False
        if tag not in [one.strip().removeprefix("W/") for one in given.split(",")]:
            raise EntityChanged(name)
        return True

    async def followed(self) -> None:
        """Wait until every broker follows the latest change; await it right after the change."""

        def ask(answer: Callable[[None], None]) -> None:
            self.broker.when_followed(lambda: answer(None))

        await answer_of(ask)

    async def description(self, *names: str) -> Element:
        """Return the describing element of the body, one of ``names``. Raises `ArgumentError`, `BodyTooLarge`."""
        root = parse_xml(await read_body(self.request, BODY_BYTES_MAX))
        if (root.namespace, root.name) != (ATOM, "entry"):
            raise ArgumentError("The root of the body", root.name, f"entry, in the namespace {ATOM}")
        content = root.find("content")
        found = content.children if content is not None else []
        if len(found) != 1 or found[0].namespace != SERVICE or found[0].name not in names:
            shown = ", ".join(child.name for child in found) or "nothing"
            raise ArgumentError(
                "The content of the entry", shown, f"one {' or '.join(names)}, in the namespace {SERVICE}"
            )
        return found[0]

    def page(self) -> tuple[int, int]:
        """Return the number of entries to skip, and of those to show. Raises ArgumentError."""
        skip, top = self._count("$skip", 0), self._count("$top", PAGE_MAX)
        return skip, min(top, PAGE_MAX)

    def _count(self, name: str, default: int) -> int:
        given = self.request.query_params.get(name)
        if given is None:
            return default
        if not _COUNT.fullmatch(given):
            raise ArgumentError(name, given, "a whole number of at most 9 digits")
        return int(given)

    def show(self, entry: Entry, tag: str, status: int = 200) -> Response:
        """Return the answer that shows one resource."""
        return Response(entry_xml(entry, self.base), status, {"etag": tag}, ENTRY_TYPE)

    def show_page(self, title: str, path: str, entries: list[Entry], page: Page) -> Response:
        """Return the answer that shows a page of resources."""
        content = feed_xml(title, path, entries, page, self.base, self.broker.clock.now_ms())
        return Response(content, 200, None, FEED_TYPE)
