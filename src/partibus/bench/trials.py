"""The scenarios of the guidance as trials: with the advice, with its opposite, and with each setting turned back.

Pure: `partibus.bench.trial_run` plays a trial, `judge` compares the results.

```text
 scenario            senders           receivers             measured by
 high-throughput     1 client          1 client              messages per second
 several-queues      4, one a queue    4, one a queue        messages per second
 low-latency         1, 50/s           1                     p50 from send to receipt
 many-senders        24, 40/s each     2                     messages per CPU second of all processes
 many-receivers      1                 24, 40/s each         messages per second, from a backlog
 few-subscriptions   1                 1 for each of 3       messages per second, of all subscriptions
 many-subscriptions  1                 1 for each of 30      messages per second, of all subscriptions
```
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from partibus.advice.profiles import LOCK_S, PREFETCH_FACTOR, SEVERAL_CONNECTIONS, Profile
from partibus.bench.measures import median

NOISE: Final = 0.10
"""The least difference that counts; a larger one between repeated runs counts instead."""


class Score(Enum):
    """The measure of a scenario."""

    RATE = "messages per second"
    LATENCY = "ms from send to receipt (p50)"
    CPU = "messages per CPU second"

    @property
    def higher_is_better(self) -> bool:
        """Whether larger values are better."""
        return self is not Score.LATENCY


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The number of clients of a scenario, and their work."""

    score: Score
    queues: int = 1
    subscriptions: int = 0
    """The number of subscriptions of the one topic; 0: there are queues."""
    senders: int = 1
    """Clients that send, of each entity."""
    receivers: int = 1
    """Clients that receive, of each queue or subscription."""
    rate_per_s: float = 0.0
    """Messages per second of each sender; 0: as many as possible."""
    work_per_s: float = 0.0
    """Messages per second that each receiver processes; 0: as many as possible."""
    expected_per_s: float = 100.0
    """The processing rate of a receiver that prefetch counts are computed from."""
    lock_s: float = LOCK_S
    """The lock duration of the entities."""
    backlog: bool = False
    """Whether all messages are there before the receivers begin."""


SHAPES: Final[Mapping[str, Shape]] = {
    "high-throughput": Shape(score=Score.RATE, expected_per_s=500),
    "several-queues": Shape(score=Score.RATE, queues=4, expected_per_s=200),
    "low-latency": Shape(score=Score.LATENCY, rate_per_s=50, expected_per_s=50),
    "many-senders": Shape(score=Score.CPU, senders=24, receivers=2, rate_per_s=40, expected_per_s=480),
    "many-receivers": Shape(score=Score.RATE, receivers=24, work_per_s=40, expected_per_s=40, lock_s=5, backlog=True),
    "few-subscriptions": Shape(score=Score.RATE, subscriptions=3, expected_per_s=500),
    "many-subscriptions": Shape(score=Score.RATE, subscriptions=30, expected_per_s=100),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings of one run."""

    partitioned: bool
    store_batching: bool
    express: bool
    connections: int
    interval_ms: int
    prefetch: int
    overlapping: bool
    """Whether a sender goes on before the answer to its last message."""
    dedicated: bool
    """Whether each queue has a client of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One run of a scenario."""

    name: str
    """``advice``, ``opposite``, or the setting that is turned back."""
    label: str
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The results of one run."""

    messages: int
    """Messages received and completed, of all subscriptions."""
    seconds: float
    p50_ms: float
    p99_ms: float
    connections: int
    sender_cpu_s: float
    receiver_cpu_s: float
    broker_cpu_s: float | None
    """None: the broker runs elsewhere."""
    transmissions: int
    """Transfers that the senders have sent."""
    fills: int
    """Requests of the receivers for messages."""
    expired: int
    """Messages whose locks expired before they were completed."""
    wasted: int
    """Messages that came to a client and went back, expired ones included."""

    @property
    def per_s(self) -> float:
        """Completed messages per second."""
        return self.messages / self.seconds if self.seconds > 0 else 0.0

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all processes."""
        return self.sender_cpu_s + self.receiver_cpu_s + (self.broker_cpu_s or 0.0)

    def score(self, score: Score) -> float:
        """Return the measure of a scenario."""
        if score is Score.LATENCY:
            return self.p50_ms
        return self.per_s if score is Score.RATE else self.messages / self.cpu_s if self.cpu_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The effect of one setting: the advice compared with the setting turned back."""

    setting: str
    factor: float
    """How many times better the advice is; below 1: worse."""
    verdict: str
    """``holds``, ``no difference``, ``does not hold``, or ``for bearable losses`` of express entities."""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A scenario with all its runs."""

    profile: str
    score: Score
    noise: float
    runs: Mapping[str, Measured]
    labels: Mapping[str, str]
    effects: Sequence[Effect] = field(default_factory=tuple)
    sentence: str = ""

    @property
    def gain(self) -> float:
        """How many times better the advice is than its opposite."""
        return _factor(self.runs["advice"], self.runs["opposite"], self.score)


def plan_of(profile: Profile, shape: Shape) -> Plan:
    """Return the settings that a profile has for a shape."""
    clients = shape.senders
    settings = profile.settings(
        rate_per_s=shape.expected_per_s, senders=clients, receivers=shape.receivers, lock_s=shape.lock_s
    )
    return Plan(
        partitioned=profile.partitioned,
        store_batching=profile.store_batching,
        express=profile.express,
        connections=settings.connections,
        interval_ms=settings.batch_flush_interval_ms,
        prefetch=settings.prefetch,
        overlapping=profile.name not in ("low-latency",),
        dedicated=True,
    )


def variants(profile: Profile, shape: Shape) -> list[Variant]:
    """Return the runs of a scenario: the advice, its opposite, and each setting turned back."""
    advice = plan_of(profile, shape)
    turned = turned_back(advice, shape)
    opposite: dict[str, Any] = {name: value for name, value in turned.items() if name != "express"}
    found = [Variant(name="advice", label="as advised", plan=advice)]
    found.append(Variant(name="opposite", label="the opposite", plan=replace(advice, **opposite)))
    for name, value in turned.items():
        changed: dict[str, Any] = {name: value}
        found.append(Variant(name=name, label=_LABELS[name](value), plan=replace(advice, **changed)))
    return found


def turned_back(advice: Plan, shape: Shape) -> dict[str, Any]:
    """Return the opposite value of each setting that a scenario has."""
    large = int(PREFETCH_FACTOR * shape.expected_per_s * shape.receivers)
    turned: dict[str, Any] = {
        "partitioned": not advice.partitioned,
        "connections": 1 if advice.connections > 1 else SEVERAL_CONNECTIONS,
        "interval_ms": 0 if advice.interval_ms else 20,
        "store_batching": not advice.store_batching,
        "prefetch": large if advice.prefetch <= 10 else 0,
        "express": not advice.express,
    }
    if advice.overlapping and not shape.rate_per_s and not shape.backlog:
        turned["overlapping"] = False
    if shape.queues > 1:
        turned["dedicated"] = False
    return turned


_LABELS: Final[Mapping[str, Any]] = {
    "partitioned": lambda value: "partitioned" if value else "not partitioned",
    "connections": lambda value: f"{value} connection{'s' if value > 1 else ''} per client",
    "interval_ms": lambda value: f"batches every {value} ms" if value else "no client-side batching",
    "store_batching": lambda value: "batched store access" if value else "no batched store access",
    "prefetch": lambda value: f"prefetch {value:,}" if value else "no prefetch",
    "express": lambda value: "express" if value else "not express",
    "overlapping": lambda value: "overlapping sends" if value else "each send awaited",
    "dedicated": lambda value: "a client for each queue" if value else "one client for all queues",
}
SETTINGS: Final[Mapping[str, str]] = {
    "partitioned": "partitions",
    "connections": "number of connections",
    "interval_ms": "batching interval",
    "store_batching": "store batching",
    "prefetch": "prefetch",
    "express": "express",
    "overlapping": "asynchronous sends",
    "dedicated": "a client for each queue",
}
"""The names of settings in sentences."""


def judge(profile: str, runs: Mapping[str, Sequence[Measured]], labels: Mapping[str, str]) -> Judged:
    """Compare the runs of a scenario, each of which may be repeated."""
    score = SHAPES[profile].score
    typical = {name: typical_of(some, score) for name, some in runs.items()}
    noise = max(NOISE, _spread([one.score(score) for one in runs["advice"]]))
    advice = typical["advice"]
    effects = []
    for name, measured in typical.items():
        if name in ("advice", "opposite"):
            continue
        factor = _factor(advice, measured, score)
        if name == "express":
            verdict = "for bearable losses"
        elif factor >= 1 + noise:
            verdict = "holds"
        else:
            verdict = "no difference" if factor > 1 / (1 + noise) else "does not hold"
        reason = "" if verdict == "holds" else _reason(name, advice, measured, score)
        effects.append(Effect(setting=name, factor=factor, verdict=verdict, reason=reason))
    judged = Judged(profile=profile, score=score, noise=noise, runs=typical, labels=labels, effects=effects)
    return replace(judged, sentence=_sentence(judged))


def typical_of(runs: Sequence[Measured], score: Score) -> Measured:
    """Return the run with the median score."""
    ordered = sorted(runs, key=lambda one: one.score(score))
    return ordered[(len(ordered) - 1) // 2]


def _spread(values: Sequence[float]) -> float:
    middle = median(values)
    return (max(values) - min(values)) / 2 / middle if middle else 0.0


def _factor(advice: Measured, other: Measured, score: Score) -> float:
    mine, theirs = advice.score(score), other.score(score)
    if not mine or not theirs:
        return 0.0 if not mine else float("inf")
    return mine / theirs if score.higher_is_better else theirs / mine


def _reason(setting: str, advice: Measured, other: Measured, score: Score) -> str:
    """Say why a setting changes nothing here, or harms, from what was measured."""
    each = advice.messages / advice.transmissions if advice.transmissions else 0.0
    busy = _busiest(advice)
    if setting == "express":
        return "an express entity may lose the messages of its last seconds in a crash"
    if setting == "partitioned":
        return f"one broker process runs all partitions, and each of them has commits of its own; {busy}"
    if setting == "connections":
        return f"a round trip on one machine is short, so one connection hardly waits; {busy}"
    if setting == "store_batching":
        if score is Score.LATENCY:
            return "a single message finds no other to wait for"
        if each < 2:
            return "writes that share a commit wait for it"
        return f"senders bring {each:,.0f} messages in a transmission, which fill a commit already"
    if setting == "prefetch":
        return f"receivers asked for messages {advice.fills:,} times with the advice and {other.fills:,} times without"
    return busy


def _busiest(measured: Measured) -> str:
    parts = {
        "the broker": measured.broker_cpu_s or 0.0,
        "the sending process": measured.sender_cpu_s,
        "the receiving process": measured.receiver_cpu_s,
    }
    name = max(parts, key=lambda one: parts[one])
    return f"{name} used {parts[name] / max(measured.seconds, 1e-9):.0%} of a core"


def _sentence(judged: Judged) -> str:
    judgeable = [one for one in judged.effects if one.setting != "express"]

    def named(verdict: str, *, why: bool = False) -> list[str]:
        some = sorted((one for one in judgeable if one.verdict == verdict), key=lambda one: -one.factor)
        return [
            f"{SETTINGS[one.setting]} ({times(one.factor)}{f': {one.reason}' if why and one.reason else ''})"
            for one in some
        ]

    parts = []
    if held := named("holds"):
        parts.append(f"advice that holds here: {_listed(held)}")
    if same := named("no difference"):
        parts.append(f"advice without a difference: {_listed(same)}")
    if broken := named("does not hold", why=True):
        parts.append(f"advice that does not hold here: {_listed(broken)}")
    return f"The advice is {times(judged.gain)} as good as its opposite; {'; '.join(parts)}."


def times(factor: float) -> str:
    """Return a factor in words."""
    if factor == float("inf"):
        return "without bound"
    return f"{factor:,.0f} times" if factor >= 10 else f"{factor:.2f} times"


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
