"""One queue, topic or subscription: its properties, its messages, their partitions, and advice (rows K15, A13, C27).

The advice is on the traffic between two looks. No broker keeps a history. The first look's counters travel in the
page's address, so that any broker can answer the second one. They are the viewer's own: other numbers there change
nothing but what this viewer reads.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from partibus.advice.facts import EntityFacts, KeySample, Traffic
from partibus.advice.rules import advise
from partibus.amqp.codec.decoder import decode
from partibus.errors import ArgumentError
from partibus.filters.model import CorrelationFilter, FalseFilter, Filter, Rule, TrueFilter
from partibus.frontends.rest.atom.counts import ask_counts
from partibus.frontends.rest.portal.fields import LABELS, property_text
from partibus.frontends.rest.portal.overview import ROWS, pages_of, row_of, rows_of
from partibus.frontends.rest.portal.visit import MovedOn, Page, Visit, address
from partibus.frontends.rest.requests import Ask, answer_of, answers_of, others_first, pay
from partibus.frontends.traffic import traffic_of
from partibus.message import StoredMessage
from partibus.namespace.durations import UNLIMITED_MS
from partibus.namespace.entity import Entity
from partibus.namespace.namespace import Queue, Subscription, Topic
from partibus.namespace.properties import EXPRESS_BOUND, properties_of
from partibus.namespace.tiers import Tier
from partibus.partition.protocol.commands import Peek
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.ports import EntryRow
from partibus.partition.protocol.replies import Failed, Inspected
from partibus.routing.entity import Inspection
from partibus.routing.partitions import PartitionHandle
from partibus.throttling.uses import Operation

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


DONE: Final = {"created": "Created.", "changed": "Changed."}
"""The notices that a page shows once, after a form."""
MOVES: Final = 20
"""Moves of slots that a page shows, the unfinished ones first."""
_CORRELATION: Final = (
    *(("CorrelationId", "correlation_id"), ("MessageId", "message_id"), ("To", "to"), ("ReplyTo", "reply_to")),
    *(("Label", "label"), ("SessionId", "session_id"), ("ReplyToSessionId", "reply_to_session_id")),
    ("ContentType", "content_type"),
)


async def show_entity(visit: Visit) -> Page | MovedOn:
    """Show an entity. ``path``: its name, or the path of a subscription. ``watch``: an earlier look (`look`).

    Raises EntityNotFound.
    """
    entity = visit.broker.entity(visit.asked("path"))
    number = visit.page_number()
    await pay(visit.broker, Operation.MANAGEMENT)
    inspection = await answer_of(ask_counts(entity.route))
    queue = entity.queue
    data = describe(entity, inspection)
    data["settings"] = None
    if visit.asked("watch"):
        watch, data["settings"] = await look(visit, entity, data["active"])
        if data["settings"] is None:
            return MovedOn(address("entity", path=entity.queue.name, watch=watch))
    data["done"] = DONE.get(visit.asked("done"), "")
    listed = queue.subscriptions if isinstance(queue, Topic) else queue.rules if isinstance(queue, Subscription) else ()
    number = min(number, pages_of(listed))
    first = (number - 1) * ROWS
    if isinstance(queue, Topic):
        data["subscription_rows"] = await rows_of(queue.subscriptions[first : first + ROWS], visit.broker)
        data["page"], data["pages"] = number, pages_of(listed)
    elif isinstance(queue, Subscription):
        data["rule_rows"] = []
        for rule in queue.rules[first : first + ROWS]:
            data["rule_rows"].append(rule_of(rule))
            await others_first()
        data["page"], data["pages"] = number, pages_of(listed)
    return Page("entity", queue.short_name if isinstance(queue, Subscription) else queue.name, data)


def describe(entity: Entity, inspection: Inspection) -> dict[str, Any]:
    """Describe an entity: all but the subscriptions of a topic and the rules of a subscription."""
    queue = entity.queue
    data = row_of(entity, inspection)
    data |= {
        "created_ms": queue.created_ms,
        "updated_ms": queue.updated_ms,
        "express_bound_ms": queue.express_ms or None,
        "properties": _properties(queue),
        "partition_size_max_bytes": queue.partition_size_max_bytes,
        "partition_rows": [
            _partition(partition.partition_id, inspection, index)
            for index, partition in enumerate(entity.route.partitions)
        ],
    }
    moves = [(move, None) for move in queue.slots.moves] + [(past, past.ended_ms) for past in queue.slots.history[::-1]]
    data["slot_moves"] = [
        {
            "source": move.source,
            "target": move.target,
            "slots": move.slots,
            "began_ms": move.began_ms,
            "ended_ms": ended_ms,
            "why": move.why,
        }
        for move, ended_ms in moves[:MOVES]
    ]
    counts = entity.route.slots.counts()
    data["slot_counts"] = counts if queue.slots.version else []
    if isinstance(queue, Subscription):
        data["topic"] = queue.topic.name
    return data


def rule_of(rule: Rule) -> dict[str, str]:
    """Return a rule for display."""
    return {
        "name": rule.name,
        "kind": type(rule.filter).__name__.removesuffix("Filter"),
        "filter": filter_text(rule.filter),
        "action": "" if rule.action is None else rule.action.expression,
    }


def filter_text(chosen: Filter) -> str:
    """Return a filter for display; of an SQL filter the text itself."""
    if isinstance(chosen, TrueFilter):
        return "every message"
    if isinstance(chosen, FalseFilter):
        return "no message"
    if isinstance(chosen, CorrelationFilter):
        named = [(name, getattr(chosen, field)) for name, field in _CORRELATION]
        terms = [f"{name} = {value!r}" for name, value in [*named, *chosen.properties.items()] if value is not None]
        return " and ".join(terms) or "every message"
    return chosen.expression


def _properties(queue: Queue) -> list[dict[str, str]]:
    values = properties_of(queue.kind, queue.description.options)
    if not queue.express_ms:
        values.pop(EXPRESS_BOUND, None)
    return [
        {
            "name": name,
            "label": LABELS[name].label,
            "value": str(value).lower() if isinstance(value, bool) else str(value),
            "text": property_text(name, value, len(queue.partitions)),
        }
        for name, value in values.items()
    ]


def _partition(partition_id: int, inspection: Inspection, index: int) -> dict[str, Any]:
    row: dict[str, Any] = {"partition": partition_id, "available": index in inspection.found}
    if index not in inspection.found:
        return row | {"trouble": inspection.failed[index].message}
    found = inspection.found[index]
    return row | {
        "active": max(0, _messages(found, SubqueueKind.ACTIVE) - found.scheduled),
        "dead_letter": _messages(found, SubqueueKind.DEAD_LETTER),
        "scheduled": found.scheduled,
        "locked": sum(subqueue.locked for subqueue in found.subqueues.values()),
        "size_bytes": sum(subqueue.size_bytes for subqueue in found.subqueues.values()) + found.subscriptions_bytes,
    }


def _messages(found: Inspected, kind: SubqueueKind) -> int:
    subqueue = found.subqueues.get(kind)
    return 0 if subqueue is None else subqueue.messages
