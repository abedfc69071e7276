"""The traffic of entities and the keys of their messages, which advice about settings rests on."""

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from partibus.advice.facts import KeySample, Traffic
from partibus.client.client import Client
from partibus.client.values import maps, text

KEYS_AT_ONCE: Final = 250
"""Messages of one request for keys; a reply has 256 KB at most."""
KEYS_MAX: Final = 1_000
"""Messages of a sample: a share of one half is known within 3 percent."""
KEPT: Final = 20
"""The most frequent keys that a sample names, of the entity and of each partition."""


class Observed(NamedTuple):
    """The traffic of a namespace at one moment."""

    entities: dict[str, Traffic]
    """By path, the busiest first. Entities that no client has used since the brokers started are missing."""
    premium: bool
    """Whether the namespace is of the tier premium."""


def observe(client: Client, entity: str | None = None) -> Observed:
    """Return the traffic of all entities, or of one. Needs the Manage right. Raises the error of the broker's reply."""
    node, found, premium = client.management(), dict[str, Traffic](), False
    while True:
        body: dict[str, object] = {"skip": len(found)}
        if entity is not None:
            body["entity"] = entity
        answer = node.request("partibus:traffic", body)
        page = maps(answer, "entities")
        found |= {text(one, "entity"): Traffic.of(one) for one in page}
        premium = answer.get("tier") == "premium"
        if not page or not answer.get("more"):
            return Observed(found, premium)


def sample_keys(client: Client, entity: str, most: int = KEYS_MAX) -> KeySample:
    """Peek at up to ``most`` waiting messages, and count their keys: session ids, else partition keys."""
    node, from_number, left = client.management(entity), 1, most
    keys: list[tuple[int, str]] = []
    while left > 0:
        messages = node.peek(from_number, min(KEYS_AT_ONCE, left))
        if not messages:
            break
        left -= len(messages)
        from_number = max(message.sequence_number or 0 for message in messages) + 1
        for message in messages:
            key = message.session_id or message.partition_key
            if isinstance(key, str):
                keys.append((message.partition_id or 0, key))
    return sample_of(keys)


def sample_of(keys: Iterable[tuple[int, str]]) -> KeySample:
    """Make a sample of the partition and the key of each message."""
    counts: Counter[str] = Counter()
    by_partition: dict[int, Counter[str]] = {}
    for partition, key in keys:
        counts[key] += 1
        by_partition.setdefault(partition, Counter())[key] += 1
    return KeySample(
        messages=counts.total(),
        distinct=len(counts),
        counts=dict(counts.most_common(KEPT)),
        by_partition={partition: dict(of.most_common(KEPT)) for partition, of in by_partition.items()},
    )
