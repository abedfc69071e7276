"""Topics beside queues: one subscription, ten that all get everything, and two thousand of which one gets a message."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.brokers import Partibus, attach, partibus
from bench.fill import fill_catalog
from bench.pairs import Pairs, Side, compare
from partibus.bench.load import Job, Mode, merge
from partibus.bench.measures import cpu_s, cpu_s_when_quiet, median
from partibus.bench.scenarios import TIMEOUT_S, Target, TemporaryBroker, both
from partibus.client.extensions.entities import subscription_path
from partibus.filters.model import CorrelationFilter, Rule
from partibus.namespace.catalog import Catalog
from partibus.namespace.entities import EntityDescription, EntityKind, EntityOptions

SUBSCRIPTIONS = 10
FILTERS = 2_000
_LABEL = "label-0"
"""The label of every message that the generator sends with one label in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOut:
    """Messages of 1 KB sent to a topic and received from all of its subscriptions at once, beside a queue in turn."""

    scenario: str = "fan-out"
    subscriptions: int
    messages: int
    """Sent; each is delivered once for each subscription."""
    pairs: int
    deliveries_per_s: float
    queue_per_s: float
    ratio: float
    cpu_us: float
    """CPU time of the broker per delivery."""
    queue_cpu_us: float

    def as_dict(self) -> dict[str, object]:
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(self).items()}


def measure_topics(directory: Path, program: Path, *, pairs: int, count: int) -> Iterator[Pairs | FanOut]:
    """``count`` messages a run; fewer where each is delivered ten times."""
    with partibus(directory, program) as peer:
        for kind in peer.kinds:
            base = Side(lambda kind=kind: peer.queue(kind), peer.foreign)  # type: ignore[misc]
            other = Side(lambda kind=kind: peer.topic(kind), peer.foreign)  # type: ignore[misc]
            yield from compare("topics", kind, base, other, pairs=pairs, count=count)
        yield _fan_out(peer, pairs=pairs, count=count)
    yield from _correlation(directory, program, pairs=pairs, count=count)
    shutil.rmtree(directory)


def _fan_out(peer: Partibus, *, pairs: int, count: int) -> FanOut:
    found = []
    messages = count * 2 // SUBSCRIPTIONS
    for number in range(pairs):
        if number % 2:
            topic, queue = _deliver(peer, messages), both(peer.queue("plain"), peer.foreign, count=count)
        else:
            queue, topic = both(peer.queue("plain"), peer.foreign, count=count), _deliver(peer, messages)
        found.append((*topic, queue.receive_per_s or 0.0, queue.cpu_us or 0.0))
    return FanOut(
        subscriptions=SUBSCRIPTIONS,
        messages=messages,
        pairs=pairs,
        deliveries_per_s=median([rate for rate, *_ in found]),
        queue_per_s=median([rate for _, _, rate, _ in found]),
        ratio=median([topic / queue for topic, _, queue, _ in found]),
        cpu_us=median([cpu_us for _, cpu_us, *_ in found]),
        queue_cpu_us=median([cpu_us for *_, cpu_us in found]),
    )


def _deliver(peer: Partibus, count: int) -> tuple[float, float]:
    """Deliveries per second, and the broker's CPU for each, in microseconds."""
    target = peer.topic("plain", SUBSCRIPTIONS)
    before_s = cpu_s(peer.broker.pid)
    with ExitStack() as stack:
        receiving = [
            stack.enter_context(
                peer.foreign.start(
                    Job(mode=Mode.RECEIVE, address=subscription_path(target.address, f"s{number}"), count=count)
                )
            )
            for number in range(SUBSCRIPTIONS)
        ]
        sending = stack.enter_context(peer.foreign.start(Job(mode=Mode.SEND, address=target.address, count=count)))
        sending.wait(TIMEOUT_S)
        received = merge([running.wait(TIMEOUT_S) for running in receiving])
    return received.rate, (cpu_s_when_quiet(peer.broker.pid) - before_s) / received.messages * 1e6


def _correlation(directory: Path, program: Path, *, pairs: int, count: int) -> Iterator[Pairs]:
    """Topics on two brokers, so that none has more entities for the other's sake."""
    shutil.rmtree(directory, ignore_errors=True)
    with _filtered(directory / "one", 1) as one, _filtered(directory / "many", FILTERS) as many:
        sides = []
        for broker in (one, many):
            peer = attach(broker, program)
            target = Target(peer.name, "topic", _TOPIC, broker.pid, subscription_path(_TOPIC, "s0"))
            sides.append(Side(lambda target=target: target, peer.foreign.with_labels(1)))  # type: ignore[misc]
        queue = f"{FILTERS:,} correlation filters"
        # Received, too: so the next pair begins with empty subscriptions, and shows that one got everything.
        yield from compare("filters", queue, *sides, pairs=pairs, count=count, runs=("send", "receive"))


_TOPIC = "bench-filters"


def _filtered(directory: Path, subscriptions: int) -> TemporaryBroker:
    """A broker that has a topic, whose subscriptions each want another label."""
    with TemporaryBroker(directory) as broker:
        broker.stop()

    def create(catalog: Catalog) -> None:
        now_ms = int(time.time() * 1000)
        catalog.create(EntityDescription(_TOPIC, EntityOptions(max_size_mb=5120), EntityKind.TOPIC), now_ms)
        for number in range(subscriptions):
            path = subscription_path(_TOPIC, f"s{number}")
            wanted = CorrelationFilter(label=_LABEL if number == 0 else f"other-{number}")
            description = EntityDescription(path, EntityOptions(), EntityKind.SUBSCRIPTION)
            catalog.create(description, now_ms, rules=[Rule("wanted", wanted, created_ms=now_ms)])

    fill_catalog(directory / "data", create)
    return TemporaryBroker(directory)
