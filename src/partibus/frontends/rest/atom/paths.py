"""The resources of URL paths (dialect section 9.2).

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

from enum import Enum, auto
from typing import NamedTuple

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
