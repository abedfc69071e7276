"""The cost of counting credits: the same messages through a namespace whose policy is off, observe, and enforce at a
rate that is never reached."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.brokers import Partibus, partibus
from bench.pairs import Pairs, Side, compare
from partibus.bench.scenarios import Target
from partibus.client.extensions.namespaces import Namespaces
from partibus.clock import SystemClock
from partibus.throttling.settings import ThrottlingPolicy, ThrottlingSettings
from partibus.throttling.throttle import Throttle
from partibus.throttling.uses import Operation
from tests.kit.plain_client import connect

HIGH_PER_S = 10_000_000
POLICIES = (ThrottlingPolicy.OBSERVE, ThrottlingPolicy.ENFORCE)
BATCHES = (1, 10, 50)
COUNTED = 20_000
ROUNDS = 20
_RECEIVE = Operation.RECEIVE
"""The operation as the front end has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """The broker's cost of counting alone, in the best of several rounds: less than pairs of runs can tell on a
    machine that does other things, too."""

    scenario: str = "metering"
    policy: str
    batch: int
    """Messages that came, or were delivered, together."""
    cpu_us: float
    """Per message: one that is sent and delivered."""

    def as_dict(self) -> dict[str, object]:
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(self).items()}


def measure_metering(directory: Path, program: Path, *, pairs: int, count: int) -> Iterator[Counting | Pairs]:
    """Counting alone; a plain and a partitioned queue, one connection."""
    for policy in POLICIES:
        for batch in BATCHES:
            yield _counting(policy, batch)
    with partibus(directory, program) as peer:
        for kind in ("plain", "partitioned"):
            for policy in POLICIES:
                off, on = _side(peer, kind, ThrottlingPolicy.OFF), _side(peer, kind, policy)
                yield from compare(f"metering, {policy}", kind, off, on, pairs=pairs, count=count)
    shutil.rmtree(directory)


def _counting(policy: ThrottlingPolicy, batch: int) -> Counting:
    """A link has its deliveries admitted, another one is paid for; nothing is ever refused."""
    throttle = Throttle(ThrottlingSettings(policy, credits_per_s=1_000_000_000), SystemClock())
    messages = [1] * batch
    best_s = float("inf")
    for _ in range(ROUNDS):
        start_s = time.process_time()
        for _ in range(COUNTED // batch):
            if throttle.enforces:
                throttle.admit_sends(messages, 0, _unheard)
                throttle.admit(_RECEIVE, batch, _unheard)
            elif throttle.active:
                throttle.observe_sends(messages, 0)
                throttle.charge(_RECEIVE, batch)
        best_s = min(best_s, time.process_time() - start_s)
    return Counting(policy=policy.value, batch=batch, cpu_us=best_s / COUNTED * 1e6)


def _unheard(admitted: int) -> None:
    raise AssertionError(f"the allocator is here and answers at once, not later with {admitted}")


def _side(peer: Partibus, kind: str, policy: ThrottlingPolicy) -> Side:
    def new_queue() -> Target:
        with connect(peer.broker.connection) as client:
            Namespaces(client).update("default", {"throttling": policy.value, "credits-per-second": HIGH_PER_S})
        return peer.queue(kind)

    return Side(new_queue, peer.foreign)
