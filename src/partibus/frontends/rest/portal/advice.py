"""The section of an entity's page about its settings: advice on the traffic between two looks (rows K15, A13, C27).

No broker keeps a history. The first look's counters travel in the page's address, so that any broker can answer the
second one. They are the viewer's own: other numbers there change nothing but what this viewer reads.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from partibus.advice.facts import EntityFacts, KeySample, Traffic
from partibus.advice.rules import advise
from partibus.amqp.codec.decoder import decode
from partibus.errors import ArgumentError
from partibus.frontends.rest.answers import Ask, answers_of
from partibus.frontends.rest.portal.visit import Visit
from partibus.frontends.traffic import traffic_of
from partibus.message import StoredMessage
from partibus.namespace.durations import UNLIMITED_MS
from partibus.namespace.entity import Entity
from partibus.namespace.namespace import Topic
from partibus.namespace.properties import properties_of
from partibus.namespace.tiers import Tier
from partibus.partition.protocol.commands import Peek
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.ports import EntryRow
from partibus.partition.protocol.replies import Failed
from partibus.routing.partitions import PartitionHandle

BEGIN: Final = "now"
"""The parameter's value for the first look."""
WATCH_S: Final = 10
"""The shortest observation that gives advice."""
_NUMBERS: Final = (
    "received", "delivered", "completed", "locks_expired", "transmissions", "commits", "operations", "sender_links",
    "receiver_links",
)  # fmt: skip
_PARTITIONS_MAX: Final = 64
"""The most partitions whose counters travel in the address."""
_TEXT_MAX: Final = 4_000
_PEEKED: Final = 32
"""Messages of each partition whose keys are looked at; a partition answers with 256 KB at most."""


async def look(visit: Visit, entity: Entity, waiting: int) -> tuple[str, dict[str, Any] | None]:
    """Return the text of this look for the page's address, and the findings since an earlier one, if it names any.

    ``waiting``: active messages at present; measured ones are up to five seconds old. Raises `ArgumentError`
    for a text that no look has made.
    """
    namespace, name = visit.broker.namespace.name, entity.queue.name
    snapshot = await visit.metrics(namespace)
    now = traffic_of(snapshot.measured, namespace, name).get(name, Traffic())
    now = replace(now, messages=waiting)
    now_ms = visit.broker.wall_clock.now_ms()
    asked = visit.asked("watch")
    if asked == BEGIN:
        return _packed(now_ms, now), None
    began_ms, before = _unpacked(asked)
    window_s = max(0, now_ms - began_ms) / 1000
    data: dict[str, Any] = {"seconds": round(window_s), "watch": asked, "ready": window_s >= WATCH_S}
    if not data["ready"]:
        return asked, data | {"refresh_s": max(1, WATCH_S - int(window_s))}
    facts = _facts(visit, entity, window_s, before, now, await _keys(entity, now))
    return asked, data | {
        "in_per_s": facts.in_per_s,
        "out_per_s": facts.out_per_s,
        "rate_class": facts.rate.value,
        "senders": facts.senders,
        "sender_class": facts.sender_class.value,
        "receivers": facts.receivers,
        "receiver_class": facts.receiver_class.value,
        "profile": facts.profile.name,
        "findings": [one.as_dict() for one in advise(facts)],
    }


def _facts(
    visit: Visit, entity: Entity, window_s: float, before: Traffic, now: Traffic, keys: KeySample
) -> EntityFacts:
    queue = entity.queue
    options = queue.description.options
    return EntityFacts(
        name=queue.name,
        kind=queue.kind.value,
        partitions=len(queue.partitions),
        properties=properties_of(queue.kind, options),
        lock_s=options.lock_duration_ms / 1000,
        ttl_s=None if options.default_ttl_ms >= UNLIMITED_MS else options.default_ttl_ms / 1000,
        subscriptions=len(queue.subscriptions) if isinstance(queue, Topic) else 0,
        window_s=window_s,
        before=before,
        after=now,
        keys=keys,
        premium=visit.broker.namespace.record.options.tier is Tier.PREMIUM,
    )


async def _keys(entity: Entity, now: Traffic) -> KeySample:
    """Sample the keys of waiting messages. A peek would have an express entity store them."""
    route, queue = entity.route, entity.queue
    if len(route.partitions) < 2 or not now.messages or queue.description.options.express or isinstance(queue, Topic):
        return KeySample()
    asked = [partition for partition in route.partitions[:_PARTITIONS_MAX] if partition.available]

    def ask(partition: PartitionHandle) -> Ask[Any]:
        command = Peek(route.numbers.next(), int(SubqueueKind.ACTIVE), 0, _PEEKED)
        return lambda answer: partition.submit(command, answer)

    replies = await answers_of(map(ask, asked))
    counts: Counter[str] = Counter()
    by_partition: dict[int, Mapping[str, int]] = {}
    for partition, reply in zip(asked, replies, strict=True):
        keys = [] if isinstance(reply, Failed) else [_key_of(row) for row in reply.rows]
        found = Counter(key for key in keys if key is not None)
        counts += found
        by_partition[partition.partition_id] = dict(found)
    return KeySample(messages=counts.total(), distinct=len(counts), counts=dict(counts), by_partition=by_partition)


def _key_of(row: EntryRow) -> str | None:
    """Return the session id of a message, else its partition key."""
    if row.session is not None:
        return row.session
    stored, place = StoredMessage(row.data), 0
    for _ in range(stored.annotation_count):
        name, place = decode(stored.annotations, place)
        value, place = decode(stored.annotations, place)
        if name == "x-opt-partition-key" and isinstance(value, str):
            return value
    return None


def _packed(now_ms: int, traffic: Traffic) -> str:
    numbers: Sequence[int] = (
        now_ms,
        *(getattr(traffic, name) for name in _NUMBERS),
        int(traffic.waited_s * 1000),
        *traffic.partition_received[:_PARTITIONS_MAX],
    )
    return ".".join(map(str, numbers))


def _unpacked(text: str) -> tuple[int, Traffic]:
    parts = text.split(".") if len(text) <= _TEXT_MAX else []
    fixed = len(_NUMBERS) + 2
    if not fixed <= len(parts) <= fixed + _PARTITIONS_MAX or not all(
        part.isascii() and part.isdigit() and len(part) <= 18 for part in parts
    ):
        raise ArgumentError("watch", text[:80], f"{BEGIN!r}, or what a page of the portal has made of it")
    began_ms, *numbers = map(int, parts)
    named = dict(zip(_NUMBERS, numbers, strict=False))
    waited_ms, *received = numbers[len(_NUMBERS) :]
    return began_ms, Traffic.of({**named, "waited_s": waited_ms / 1000, "partition_received": tuple(received)})
