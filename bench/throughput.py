"""Throughput and latency runs on one running broker."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from bench.brokers import Peer
from bench.gil import GilSampler
from partibus.bench.load import Generator
from partibus.bench.measures import median
from partibus.bench.scenarios import Result, Target, both, latency, receive, send


@dataclass(frozen=True)
class Scale:
    """How much is measured. Counts are per run."""

    counts: dict[int, int]
    """Messages by size in bytes."""
    connections: tuple[int, ...]
    latency_s: int
    latency_runs: int
    latency_per_s: int = 1_000
    pairs: int = 4
    """Runs of each side where two things are compared."""
    pair_count: int = 100_000
    sustained: int = 1_000_000
    """Messages of one run over several windows of duplicate detection."""
    ids: tuple[int, ...] = (500_000, 1_000_000, 2_000_000)
    """Message ids in the window, one measurement each."""
    sessions_waiting: int = 100_000
    accepts: int = 20_000
    many_steps: int = 5_000
    """Accepts, or requests for deferred messages, among two million."""
    creating: int = 1_000
    """Entities, by an admin client."""
    existing: int = 10_000
    rounds: int = 3
    """The rounds of what is measured for a time, not for a number of messages."""
    steady_s: float = 10.0
    spark_messages: int = 1_000_000
    """Read by each run of Spark."""


FULL = Scale({128: 100_000, 1024: 100_000, 65_536: 4_000}, (1, 4), 10, 5)
QUICK = Scale(
    {1024: 40_000},
    (1,),
    4,
    1,
    pairs=2,
    pair_count=20_000,
    sustained=0,
    ids=(200_000,),
    sessions_waiting=20_000,
    accepts=2_000,
    many_steps=500,
    creating=100,
    existing=1_000,
    rounds=1,
    steady_s=5.0,
    spark_messages=200_000,
)

_MIDDLE_BYTES = 1024
"""Several connections, and fixed rates, are measured with this size only."""


def runs(peer: Peer, generator: Generator, scale: Scale) -> Iterator[Result]:
    """Send, receive, both for each kind of queue, size and number of connections."""
    for kind in peer.kinds:
        for size_bytes, count in scale.counts.items():
            for connections in scale.connections if size_bytes == _MIDDLE_BYTES else (1,):
                target = peer.queue(kind)
                how = {"count": count, "size_bytes": size_bytes, "connections": connections}
                yield send(target, generator, **how)
                yield receive(target, generator, **how)
                yield both(target, generator, **how)


def latencies(peer: Peer, kind: str, generator: Generator, scale: Scale) -> Result:
    """Fixed rate: the median over the runs of each percentile."""
    target = peer.queue(kind)
    found = [
        latency(target, generator, rate=scale.latency_per_s, seconds=scale.latency_s) for _ in range(scale.latency_runs)
    ]
    parts = [result.latency_ms for result in found if result.latency_ms is not None]
    merged = {key: median([part[key] for part in parts]) for key in parts[0]}
    cpu = [result.cpu_us for result in found if result.cpu_us is not None]
    return replace(found[0], latency_ms=merged, cpu_us=median(cpu) if cpu else None)


def gil_share(target: Target, generator: Generator, count: int) -> Result | None:
    """Both at once under a sampler, which slows it a little: only its CPU and GIL times count.

    None without the sampler; standard error has the reason.
    """
    assert target.pid is not None
    with GilSampler(target.pid) as sampler:
        result = both(target, generator, count=count)
    if sampler.held_s is None:
        print(f"bench: the share of the GIL is left out: {sampler.trouble}", file=sys.stderr)
        return None
    return replace(
        result,
        scenario="both, sampled",
        gil_us=sampler.held_s / count * 1e6,
        send_per_s=None,
        receive_per_s=None,
    )
