"""The traffic of entities and the keys of their messages, and the advice about settings that rests on them."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from partibus.advice.classes import Level
from partibus.advice.facts import EntityFacts, KeySample, Traffic
from partibus.advice.rules import Advice, advise
from partibus.client.extensions.entities import GET_ENTITY, EntityInfo, entity_in
from partibus.client.management import PEEK, Requests, maps, peek_arguments, peeked_messages, text
from partibus.client.messages import IncomingMessage
from partibus.namespace.durations import UNLIMITED_MS, parse_duration

Request = Callable[[str, str, Mapping[str, object]], Awaitable[dict[str, object]]]
"""A function that performs an operation of an entity's management node, or of the namespace's for ""."""

TRAFFIC: Final = "partibus:traffic"

KEYS_AT_ONCE: Final = 250
"""Messages of one request for keys; a reply has 256 KB at most."""
KEYS_MAX: Final = 1_000
"""Messages of a sample: a share of one half is known within 3 percent."""
KEPT: Final = 20
"""The most frequent keys that a sample names, of the entity and of each partition."""


class Observed(NamedTuple):
    """The traffic of a namespace at one moment."""

    entities: dict[str, Traffic]
    """Traffic by path, the busiest first. Entities that no client has used since the brokers started are missing."""
    premium: bool
    """Whether the namespace is of the tier premium."""
    namespace: str = "default"


def traffic_arguments(entity: str | None = None, skip: int = 0) -> dict[str, object]:
    """Return the body of a request for the traffic of all entities, or of one."""
    return {"skip": skip} if entity is None else {"skip": skip, "entity": entity}


def traffic_in(answer: Mapping[str, object]) -> Observed:
    """Read a reply's traffic."""
    found = {text(one, "entity"): Traffic.of(one) for one in maps(answer, "entities")}
    return Observed(found, answer.get("tier") == "premium", str(answer.get("namespace")))


def observe(client: Requests, entity: str | None = None) -> Observed:
    """Return the traffic of all entities, or of one. Needs the Manage right. Raises the error of the broker's reply."""
    found = Observed({}, False)
    while True:
        answer = client.request("", TRAFFIC, traffic_arguments(entity, len(found.entities)))
        page = traffic_in(answer)
        found = page._replace(entities=found.entities | page.entities)
        if not page.entities or not answer.get("more"):
            return found


def facts_of(
    infos: Mapping[str, EntityInfo],
    before: Observed,
    after: Observed,
    window_s: float,
    keys: Mapping[str, KeySample],
) -> dict[str, EntityFacts]:
    """Return the facts about the entities that clients have used, by name.

    ``infos`` are read at the end: the messages of `observe` are up to five seconds old.
    """
    facts: dict[str, EntityFacts] = {}
    for name, traffic in after.entities.items():
        info = infos.get(name)
        if info is not None:
            facts[name] = EntityFacts(
                name=name,
                kind=info.kind,
                partitions=info.partitions,
                properties=info.properties,
                lock_s=_seconds(info, "LockDuration") or 60.0,
                ttl_s=_seconds(info, "DefaultMessageTimeToLive"),
                subscriptions=info.subscriptions or 0,
                window_s=window_s,
                before=before.entities.get(name, Traffic()),
                after=replace(traffic, messages=info.messages),
                keys=keys.get(name, KeySample()),
                premium=after.premium,
            )
    busy = sum(one.kind == "queue" and one.rate is not Level.SMALL for one in facts.values())
    return {name: replace(one, queues=max(1, busy)) for name, one in facts.items()}


def _seconds(info: EntityInfo, name: str) -> float | None:
    """Return a duration of an entity; None where it has none, or no limit."""
    value = info.properties.get(name)
    if not isinstance(value, str):
        return None
    milliseconds = parse_duration(value)
    return None if milliseconds >= UNLIMITED_MS else milliseconds / 1000


def has_keys_to_sample(info: EntityInfo, traffic: Traffic | None) -> bool:
    """Tell whether a peek shows keys that matter. A peek would have an express entity store its messages."""
    if info.partitions < 2 or info.kind == "topic" or info.properties.get("EnableExpress") is True:
        return False
    return traffic is not None and info.messages > 0


class _Sampling:
    """The requests for a sample of an entity's keys, and what their replies have shown."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._start = 1
        self._keys: list[tuple[int, str]] = []

    def arguments(self) -> dict[str, object] | None:
        """Return the arguments of the next peek; None: the sample is complete."""
        return peek_arguments(self._start, min(KEYS_AT_ONCE, self._left), None) if self._left > 0 else None

    def take(self, reply: Mapping[str, object]) -> None:
        """Add the keys of the messages in a reply. One without messages is the last."""
        messages = peeked_messages(reply)
        self._left = self._left - len(messages) if messages else 0
        self._start = max((message.sequence_number or 0 for message in messages), default=0) + 1
        self._keys += keys_in(messages)

    def found(self) -> KeySample:
        """Return the sample."""
        return sample_of(self._keys)


def sample_keys(client: Requests, entity: str, most: int = KEYS_MAX) -> KeySample:
    """Peek at up to ``most`` waiting messages, and count their keys."""
    sampling = _Sampling(most)
    while (arguments := sampling.arguments()) is not None:
        sampling.take(client.request(entity, PEEK, arguments))
    return sampling.found()


def keys_in(messages: Iterable[IncomingMessage]) -> list[tuple[int, str]]:
    """Return the partition and key of each message with one: its session id, else its partition key."""
    found = [(message.partition_id or 0, message.session_id or message.partition_key) for message in messages]
    return [(partition, key) for partition, key in found if isinstance(key, str)]


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


async def watch(request: Request, name: str, seconds: float) -> list[Advice]:
    """Watch the traffic of an entity for so long, and return the settings that depart from the guidance."""
    loop = asyncio.get_running_loop()
    before, began_s = traffic_in(await request("", TRAFFIC, traffic_arguments(name))), loop.time()
    await asyncio.sleep(seconds)
    after, window_s = traffic_in(await request("", TRAFFIC, traffic_arguments(name))), loop.time() - began_s
    info = entity_in(await request("", GET_ENTITY, {"name": name}))
    keys = KeySample()
    if has_keys_to_sample(info, after.entities.get(info.name)):
        keys = await _sample_keys(request, info.name)
    facts = facts_of({info.name: info}, before, after, window_s, {info.name: keys})
    return advise(facts[info.name]) if info.name in facts else []


async def _sample_keys(request: Request, entity: str) -> KeySample:
    """Do what `sample_keys` does, without blocking."""
    sampling = _Sampling(KEYS_MAX)
    while (arguments := sampling.arguments()) is not None:
        sampling.take(await request(entity, PEEK, arguments))
    return sampling.found()
