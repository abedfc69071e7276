"""The rules: facts about an entity in, advice out. Pure.

A rule speaks only where the traffic of the observation is large enough to prove its point (the constants below), and
only of a setting that a command or a line of client code changes.

```text
 rule                   speaks when                                                       significance
 partition-key          no two messages share a key, nothing needs keys                   50 keys
 low-volume             partitioned, below 1 message/s since its brokers count            10 min, 10 messages
 prefetch-lock          a receiver holds more than it can settle within the lock          100 deliveries, 1 % expired
 single-sends           each message comes alone, at a high rate                          100 messages, 50/s a sender
 factories              one connection carries a high rate                                1,000/s, or a backlog of 20 s
 shared-client          one client sends to several queues at high rates                  100 messages
 store-batching         writes wait, and share no commit                                  20 commits, 1 ms each
 no-store-batching      a high rate, and each write has a commit of its own               100 commits
 express                short-lived messages whose loss is bearable                       100 messages
 hot-key, hot-slots     one partition gets twice its share                                1,000 messages, 5 sigma
 session-backlog        one session has most of the backlog of the fullest partition      100 messages
```
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, sqrt
from shlex import quote
from typing import Any, Final

from partibus.advice import guidance
from partibus.advice.classes import Level
from partibus.advice.facts import SUBSCRIPTION, EntityFacts
from partibus.advice.guidance import Sentence, measured_gain
from partibus.advice.profiles import (
    LOCK_S,
    MANY_RECEIVERS,
    PREFETCH_FACTOR,
    PREFETCH_MAX,
    SEVERAL_CONNECTIONS,
    SEVERAL_QUEUES,
)

KEYS_MIN: Final = 50
DISTINCT_SHARE: Final = 0.95
LOW_VOLUME_MS: Final = 600_000
LOW_VOLUME_MIN: Final = 10
DELIVERED_MIN: Final = 100
EXPIRED_SHARE: Final = 0.01
SINGLE_MIN: Final = 100
SINGLE_PER_TRANSMISSION: Final = 1.5
SENDER_PER_S: Final = 50
"""Messages per second of one sender from which on two of them fall into the default batching interval of 20 ms."""
CONNECTION_PER_S: Final = 1_000
BACKLOG_S: Final = 20
COMMITS_MIN: Final = 20
HIGH_COMMITS_MIN: Final = 100
SHARED_OPERATIONS: Final = 1.5
WAIT_S: Final = 0.001
EXPRESS_MIN: Final = 100
DWELL_S: Final = 2.0
"""The mean time of a message in an express candidate: below the default loss bound of 3 s."""
EXPRESS_TTL_S: Final = 60.0
SKEW_MIN: Final = 1_000
SKEW_TIMES: Final = 2.0
SIGMAS: Final = 5.0
HOT_SLOT_SHARE: Final = 0.5
SESSION_BACKLOG_MIN: Final = 100
SESSION_SHARE: Final = 0.5


class Where(StrEnum):
    """The place of a change."""

    COMMAND = "command"
    """A command line of `partibus`."""
    CLIENT = "client"
    """A line of Python with `partibus.client`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One setting of one entity that departs from the guidance."""

    rule: str
    entity: str
    setting: str
    """The setting and its value."""
    evidence: str
    """The measurement behind the advice."""
    sentence: Sentence
    gain: str
    where: Where
    change: str
    """The command, or the line of Python."""
    caution: str = ""
    """The consequences of the change that an operator must know; "" for none."""

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "rule": self.rule,
            "entity": self.entity,
            "setting": self.setting,
            "evidence": self.evidence,
            "guidance": {"place": self.sentence.place, "text": self.sentence.text},
            "gain": self.gain,
            "where": self.where.value,
            "change": self.change,
            "caution": self.caution or None,
        }


Rule = Callable[[EntityFacts], Iterator[Advice]]


def advise(facts: EntityFacts) -> list[Advice]:
    """Return the advice for one entity, in the order of the rules."""
    return [one for rule in RULES for one in rule(facts)]


def _partition_key(facts: EntityFacts) -> Iterator[Advice]:
    """Find keys that order nothing: each is of one message."""
    keys = facts.keys
    needed = facts.sessions or facts.properties.get("RequiresDuplicateDetection") is True
    if not facts.partitioned or needed or facts.kind == SUBSCRIPTION or keys.messages < KEYS_MIN:
        return
    if keys.distinct < DISTINCT_SHARE * keys.messages:
        return
    yield Advice(
        rule="partition-key",
        entity=facts.name,
        setting="messages have a partition key",
        evidence=(
            f"Of {keys.messages:,} messages with a key {keys.distinct:,} have one that no other message has, so the "
            "keys keep no messages together and order nothing."
        ),
        sentence=guidance.KEY_PINS,
        gain=(
            f"While one of {facts.partitions} partitions is away, sends without a key go to another partition. "
            f"With keys {1 / facts.partitions:.0%} of the sends fail."
        ),
        where=Where.CLIENT,
        change="await sender.send(OutgoingMessage(body=body))  # without partition_key",
        caution="Keep the key of messages that one transaction sends together.",
    )


def _low_volume(facts: EntityFacts) -> Iterator[Advice]:
    """Find a partitioned queue with few messages (row A13)."""
    total, counted_ms = facts.after.received, facts.after.counted_ms
    fixed = not facts.properties.get("PartibusElasticPartitions") and not facts.properties.get("PartibusSqs")
    if not facts.partitioned or facts.kind != "queue" or facts.premium or not fixed:
        return
    if counted_ms < LOW_VOLUME_MS or total < LOW_VOLUME_MIN or facts.rate is not Level.SMALL:
        return
    per_s = total / (counted_ms / 1000)
    if per_s >= 1:
        return
    name = quote(facts.name)
    yield Advice(
        rule="low-volume",
        entity=facts.name,
        setting=f"the queue has {facts.partitions} partitions",
        evidence=f"{total:,} messages in {_hours(counted_ms)}: {_rate(per_s)}.",
        sentence=guidance.LOW_VOLUME,
        gain=f"A receive asks 1 partition instead of {facts.partitions}, and messages come in the order of sending.",
        where=Where.COMMAND,
        change=f"partibus entity delete {name} && {create_command(facts.name, facts.properties)}",
        caution=(
            f"Deleting the queue deletes its messages, {facts.after.messages:,} at present."
            if facts.after.messages
            else "Deleting the queue deletes messages that arrive meanwhile. Stop its senders first."
        ),
    )


def _prefetch_lock(facts: EntityFacts) -> Iterator[Advice]:
    """Find receivers that hold more messages than they settle within the lock."""
    delivered, expired = facts.rose("delivered"), facts.rose("locks_expired")
    receivers, held = facts.receivers - facts.after.deleting_links, facts.after.held_max
    if delivered < DELIVERED_MIN or receivers < 1 or expired < EXPIRED_SHARE * delivered:
        return
    per_s = facts.rose("completed") / facts.window_s / receivers
    within_lock = per_s * facts.lock_s
    if held <= within_lock:
        return
    small = facts.receiver_class is Level.LARGE
    right = 10 if small else min(PREFETCH_MAX, int(PREFETCH_FACTOR * per_s * min(1.0, facts.lock_s / LOCK_S)))
    sentence = MANY_RECEIVERS.sentences["prefetch"][0] if small else guidance.PREFETCH_LOCK
    yield Advice(
        rule="prefetch-lock",
        entity=facts.name,
        setting=f"a receiver holds {held:,} messages",
        evidence=(
            f"A receiver completes {_rate(per_s)}, that is {within_lock:,.0f} messages within the lock of "
            f"{facts.lock_s:g} s. {expired:,.0f} locks expired while {delivered:,.0f} messages were delivered."
        ),
        sentence=sentence,
        gain=f"{expired / delivered:.0%} fewer deliveries: no message expires in a cache and is delivered again."
        + measured_gain(MANY_RECEIVERS.name if small else facts.profile.name, "prefetch"),
        where=Where.CLIENT,
        change=f"client.receiver({facts.name!r}, prefetch={min(right, held)})",
    )


def _single_sends(facts: EntityFacts) -> Iterator[Advice]:
    """Find senders that send each message alone, at a high rate."""
    received, transmissions = facts.rose("received"), facts.rose("transmissions")
    if facts.kind == SUBSCRIPTION or received < SINGLE_MIN or not transmissions or facts.in_per_s < 100:
        return
    per_sender = facts.in_per_s / max(1, facts.senders)
    if received / transmissions >= SINGLE_PER_TRANSMISSION or per_sender < SENDER_PER_S:
        return
    interval_ms = (
        facts.profile.batch_flush_interval_several_ms if facts.senders > 1 else facts.profile.batch_flush_interval_ms
    ) or 20
    sentences = facts.profile.sentences.get("batching", ())
    fewer = facts.senders * 1000 / interval_ms if facts.senders else 1000 / interval_ms
    yield Advice(
        rule="single-sends",
        entity=facts.name,
        setting="messages are sent one at a time",
        evidence=(
            f"{_rate(facts.in_per_s)} came in {transmissions / facts.window_s:,.0f} transmissions per second, "
            f"{received / transmissions:.1f} messages in each."
        ),
        sentence=sentences[-1] if sentences else guidance.HIGH_INTERVAL,
        gain=f"At most {fewer:,.0f} transmissions per second at the same rate, and room for a higher one."
        + measured_gain(facts.profile.name, "overlapping"),
        where=Where.CLIENT,
        change=f"Client(connection_string, batch_flush_interval={interval_ms / 1000:g})",
        caution="Start the sends together, as with asyncio.gather: a sender that awaits each message still sends one.",
    )


def _factories(facts: EntityFacts) -> Iterator[Advice]:
    """Find a high rate on one connection."""
    if facts.rate is not Level.HIGH or (facts.kind == "topic" and facts.profile.connections == 1):
        return
    sending = facts.after.sender_connections == 1 and facts.in_per_s >= CONNECTION_PER_S
    batched = facts.rose("received") >= SINGLE_PER_TRANSMISSION * facts.rose("transmissions")
    backlog_s = facts.after.messages / facts.out_per_s if facts.out_per_s else 0.0
    receiving = facts.after.receiver_connections == 1 and facts.out_per_s >= 100 and backlog_s >= BACKLOG_S
    if not (sending and batched) and not receiving:
        return
    if sending and batched:
        setting, sentence = "senders share one connection", guidance.HIGH_SEND_FACTORIES
        evidence = f"One connection carries {_rate(facts.in_per_s)}."
    else:
        setting, sentence = "receivers share one connection", guidance.HIGH_RECEIVE_FACTORIES
        evidence = (
            f"One connection takes {_rate(facts.out_per_s)}, and {facts.after.messages:,} messages wait: "
            f"{backlog_s:,.0f} s of work."
        )
    yield Advice(
        rule="factories",
        entity=facts.name,
        setting=setting,
        evidence=evidence,
        sentence=sentence,
        gain="Several connections fill the time in which one waits for its peer."
        + measured_gain(facts.profile.name, "connections"),
        where=Where.CLIENT,
        change=f"Client(connection_string, connections={SEVERAL_CONNECTIONS})",
    )


def _shared_client(facts: EntityFacts) -> Iterator[Advice]:
    """Find a queue at a high rate whose senders share each connection with another queue (row C26)."""
    if facts.kind != "queue" or facts.queues < 2 or facts.in_per_s < 100 or facts.rose("received") < SINGLE_MIN:
        return
    if not facts.after.shared_connections or facts.after.shared_connections < facts.after.sender_connections:
        return
    yield Advice(
        rule="shared-client",
        entity=facts.name,
        setting="its senders share their connection with other queues",
        evidence=f"{_rate(facts.in_per_s)} come over a connection that also sends to another queue.",
        sentence=guidance.DEDICATED_CLIENTS,
        gain="One queue's messages no longer wait for another queue's in the same connection."
        + measured_gain(SEVERAL_QUEUES.name, "dedicated"),
        where=Where.CLIENT,
        change=f"Client(connection_string, profile={SEVERAL_QUEUES.name!r}).sender({facts.name!r})",
    )


def _store_batching(facts: EntityFacts) -> Iterator[Advice]:
    """Find writes that wait for others and share no commit, at a rate and with clients for low latency."""
    commits, operations = facts.rose("commits"), facts.rose("operations")
    few = facts.sender_class is Level.SMALL and facts.receiver_class is Level.SMALL
    if not facts.store_batching or not few or facts.rate is Level.HIGH or facts.kind == SUBSCRIPTION:
        return
    if commits < COMMITS_MIN or operations / commits >= SHARED_OPERATIONS:
        return
    wait_s = facts.rose("waited_s") / commits
    if wait_s < WAIT_S:
        return
    yield Advice(
        rule="store-batching",
        entity=facts.name,
        setting="EnableBatchedOperations is on",
        evidence=(
            f"A write waits {wait_s * 1000:.1f} ms for its commit, and a commit has {operations / commits:.1f} "
            "operations: writes wait and share nothing."
        ),
        sentence=guidance.LOW_STORE,
        gain=f"Up to {wait_s * 1000:.1f} ms less from a send to its answer."
        + measured_gain("low-latency", "store_batching"),
        where=Where.COMMAND,
        change=f"partibus entity update {quote(facts.name)} --no-batched-operations",
    )


def _no_store_batching(facts: EntityFacts) -> Iterator[Advice]:
    """Find an entity at a high rate whose writes may not share commits."""
    commits, operations = facts.rose("commits"), facts.rose("operations")
    if facts.store_batching or facts.rate is not Level.HIGH or facts.kind == SUBSCRIPTION:
        return
    if commits < HIGH_COMMITS_MIN or operations / commits >= 10 * SHARED_OPERATIONS:
        return
    yield Advice(
        rule="no-store-batching",
        entity=facts.name,
        setting="EnableBatchedOperations is off",
        evidence=f"{commits / facts.window_s:,.0f} commits per second have {operations / commits:.1f} operations each.",
        sentence=facts.profile.sentences["store_batching"][-1],
        gain="Fewer commits for the same messages, at most 20 ms later."
        + measured_gain(facts.profile.name, "store_batching"),
        where=Where.COMMAND,
        change=f"partibus entity update {quote(facts.name)} --batched-operations",
    )


def _express(facts: EntityFacts) -> Iterator[Advice]:
    """Find a queue whose messages leave within seconds and may be lost."""
    if facts.express or facts.premium or facts.kind != "queue":
        return
    if facts.properties.get("RequiresDuplicateDetection") is True or facts.rose("received") < EXPRESS_MIN:
        return
    if facts.in_per_s < 1 or facts.rose("completed") < 0.9 * facts.rose("received"):
        return
    dwell_s = facts.after.messages / facts.in_per_s  # Little's law
    if dwell_s > DWELL_S:
        return
    deleting = facts.after.receiver_links > 0 and facts.after.deleting_links == facts.after.receiver_links
    short = facts.ttl_s is not None and facts.ttl_s <= EXPRESS_TTL_S
    if deleting:
        bearable = "All receivers use receive-and-delete, so a crash of a receiver loses messages already."
    elif short:
        bearable = f"Messages live for {facts.ttl_s:g} s at most."
    else:
        return
    yield Advice(
        rule="express",
        entity=facts.name,
        setting="the queue stores every message",
        evidence=f"A message stays for {dwell_s:.1f} s on average, at {_rate(facts.in_per_s)}. {bearable}",
        sentence=guidance.EXPRESS,
        gain="Sends are answered from memory, and messages that leave within about 2 s are never written."
        + measured_gain(facts.profile.name, "express"),
        where=Where.COMMAND,
        change=f"partibus entity update {quote(facts.name)} --express",
        caution="A crash loses messages of the last 3 s. Senders can force single messages to the store.",
    )


def _skew(facts: EntityFacts) -> Iterator[Advice]:
    """Find a partition that gets far more than its share."""
    received = facts.partition_rose
    total = sum(received)
    if not facts.partitioned or facts.kind == SUBSCRIPTION or total < SKEW_MIN or len(received) < 2:
        return
    count = facts.partitions
    mean = total / count
    most = max(received)
    if most < SKEW_TIMES * mean or most < mean + SIGMAS * sqrt(mean):
        return
    partition = received.index(most)
    slot_share = facts.after.top_slot_load / facts.after.keyed_load if facts.after.keyed_load else 0.0
    hot_share = most / total
    evidence = f"Partition {partition} got {hot_share:.0%} of {total:,} messages, {most / mean:.1f} times its share."
    gain = f"Up to {most / mean:.1f} times the throughput, since {count} partitions share the load."
    if slot_share >= HOT_SLOT_SHARE * hot_share:
        key, key_share = facts.keys.top
        field = "session_id" if facts.sessions else "partition_key"
        named = f"The key {key!r} has {key_share:.0%} of the sampled messages." if key_share >= 0.1 else ""
        yield Advice(
            rule="hot-key",
            entity=facts.name,
            setting="one key has most of the load",
            evidence=f"{evidence} One slot of keys has {slot_share:.0%} of the keyed load. {named}".strip(),
            sentence=guidance.KEY_PINS,
            gain=gain,
            where=Where.CLIENT,
            change=f"await sender.send(OutgoingMessage(body=body, {field}=finer_key))",
            caution="A finer key keeps the order of its own messages only.",
        )
    elif facts.kind == "queue" and not facts.express and facts.after.keyed_load:
        any_order = "" if facts.sessions else " --any-order"
        yield Advice(
            rule="hot-slots",
            entity=facts.name,
            setting="many keys share one partition",
            evidence=evidence,
            sentence=guidance.KEY_PINS,
            gain=gain,
            where=Where.COMMAND,
            change=f"partibus partition rebalance {quote(facts.name)}{any_order}",
            caution="" if facts.sessions else "Messages of a moved key may be received before earlier ones.",
        )


def _session_backlog(facts: EntityFacts) -> Iterator[Advice]:
    """Find a session that has most of the backlog of the fullest partition."""
    waiting = list(facts.after.partition_messages)
    if not facts.sessions or facts.kind != "queue" or len(waiting) < 2 or facts.out_per_s <= 0:
        return
    most = max(waiting)
    partition = waiting.index(most)
    rest = (sum(waiting) - most) / (len(waiting) - 1)
    if most < SESSION_BACKLOG_MIN or most < SKEW_TIMES * rest + SIGMAS * sqrt(rest):
        return
    sampled = facts.keys.by_partition.get(partition, {})
    count = sum(sampled.values())
    if count < KEYS_MIN:
        return
    session = max(sampled, key=lambda one: sampled[one])
    share = sampled[session] / count
    others = len(sampled) - 1
    if share < SESSION_SHARE or not others:
        return
    yield Advice(
        rule="session-backlog",
        entity=facts.name,
        setting=f"the session {session!r} holds partition {partition} back",
        evidence=(
            f"{most:,} messages wait in partition {partition}, {rest:,.0f} in another one on average. The session has "
            f"{share:.0%} of the sampled messages there. {others} other {'waits' if others == 1 else 'wait'} beside it."
        ),
        sentence=guidance.KEY_PINS,
        gain="Other sessions of the partition move to partitions with less work.",
        where=Where.COMMAND,
        change=f"partibus partition rebalance {quote(facts.name)}",
        caution="One receiver at a time works on a session. A finer session id lets several do so.",
    )


RULES: Final[Sequence[Rule]] = (
    _partition_key,
    _low_volume,
    _prefetch_lock,
    _single_sends,
    _factories,
    _shared_client,
    _store_batching,
    _no_store_batching,
    _express,
    _skew,
    _session_backlog,
)

_FLAGS: Final[Mapping[str, str]] = {
    "RequiresSession": "session",
    "RequiresDuplicateDetection": "duplicate-detection",
    "DuplicateDetectionHistoryTimeWindow": "duplicate-window",
    "LockDuration": "lock-duration",
    "MaxDeliveryCount": "max-delivery-count",
    "DefaultMessageTimeToLive": "ttl",
    "DeadLetteringOnMessageExpiration": "dead-letter-on-expiration",
    "PartibusRedeliveryDelay": "redelivery-delay",
    "PartibusMaxRedeliveryDelay": "max-redelivery-delay",
    "AutoDeleteOnIdle": "auto-delete-on-idle",
    "EnableBatchedOperations": "batched-operations",
    "EnableExpress": "express",
    "PartibusExpressBoundInMilliseconds": "express-bound-ms",
    "MaxSizeInMegabytes": "max-size-mb",
    "Status": "status",
    "UserMetadata": "user-metadata",
    "ForwardTo": "forward-to",
    "ForwardDeadLetteredMessagesTo": "forward-dead-lettered-to",
}
_DEFAULTS: Final[Mapping[str, object]] = {
    "RequiresSession": False,
    "RequiresDuplicateDetection": False,
    "DuplicateDetectionHistoryTimeWindow": "PT10M",
    "LockDuration": "PT1M",
    "MaxDeliveryCount": 10,
    "DeadLetteringOnMessageExpiration": False,
    "PartibusRedeliveryDelay": "PT0S",
    "PartibusMaxRedeliveryDelay": "PT10M",
    "EnableBatchedOperations": True,
    "EnableExpress": False,
    "PartibusExpressBoundInMilliseconds": 3000,
    "MaxSizeInMegabytes": 1024,
    "Status": "Active",
}


def create_command(name: str, properties: Mapping[str, object]) -> str:
    """Return the command that creates a queue without partitions and with these properties."""
    words = ["partibus entity create queue", quote(name)]
    for prop, flag in _FLAGS.items():
        value = properties.get(prop)
        if value in (None, "") or value == _DEFAULTS.get(prop):
            continue
        if prop in ("DefaultMessageTimeToLive", "AutoDeleteOnIdle") and str(value).startswith("P106751"):
            continue  # the service's word for never
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", quote(str(value))]
    return " ".join(words)


def _rate(per_s: float) -> str:
    if per_s >= 10:
        return f"{per_s:,.0f} messages per second"
    return f"{per_s:.2g} messages per second" if per_s >= 0.01 else f"{ceil(per_s * 3600)} messages per hour"


def _hours(milliseconds: float) -> str:
    hours = milliseconds / 3_600_000
    return f"{hours:.1f} hours" if hours >= 1 else f"{milliseconds / 60_000:.0f} minutes"
