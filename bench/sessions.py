"""Queues with sessions beside plain ones, and how fast the next session is accepted."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.brokers import Partibus, partibus
from bench.pairs import Pairs, Side, compare
from partibus.bench.measures import cpu_s_when_quiet, percentiles
from partibus.bench.scenarios import TIMEOUT_S, Target, send

SESSIONS = 1_000
WARM_UP = 1_000
_MORE_CONNECTIONS_PAIRS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepts:
    """Sessions accepted one after the other by one client: attach, receive one, complete, detach."""

    scenario: str = "accept"
    queue: str
    sessions_waiting: int
    """When it began; each accept takes one of them."""
    accepts: int
    accept_ms: dict[str, float]
    """Time from the attach to its answer, at the client."""
    cycles_per_s: float
    cpu_us: float
    """CPU time of the broker per cycle."""

    def as_dict(self) -> dict[str, object]:
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(self).items()}


def measure_sessions(directory: Path, program: Path, *, pairs: int, count: int) -> Iterator[Pairs]:
    """The same messages, each in one of a thousand sessions, through a plain queue, and through a queue with sessions
    on a link per session."""
    with partibus(directory, program) as peer:
        base = Side(lambda: peer.queue("plain"), peer.foreign.with_sessions(SESSIONS, held=False))
        other = Side(lambda: peer.queue("sessions"), peer.foreign.with_sessions(SESSIONS))
        for connections, most in ((1, pairs), (4, min(pairs, _MORE_CONNECTIONS_PAIRS))):
            yield from compare("sessions", "sessions", base, other, pairs=most, count=count, connections=connections)
    shutil.rmtree(directory)


def measure_accept(directory: Path, program: Path, *, waiting: int, accepts: int) -> Iterator[Accepts]:
    """``waiting`` sessions with a message each."""
    with partibus(directory, program) as peer:
        for kind in ("sessions", "partitioned, sessions"):
            target = peer.queue(kind)
            send(target, peer.foreign.with_sessions(waiting), count=waiting)
            accept_next(peer, target, waiting=waiting, accepts=WARM_UP)
            yield accept_next(peer, target, waiting=waiting - WARM_UP, accepts=accepts)
    shutil.rmtree(directory)


def accept_next(peer: Partibus, target: Target, *, waiting: int, accepts: int) -> Accepts:
    """One receiver after the other."""
    pid = peer.broker.pid
    before_s = cpu_s_when_quiet(pid)
    with peer.foreign.accept(target.address, accepts) as running:
        outcome = running.wait(TIMEOUT_S)
    found = percentiles([value / 1000 for value in outcome.latencies_us])
    return Accepts(
        queue=target.queue,
        sessions_waiting=waiting,
        accepts=accepts,
        accept_ms={key: round(value, 3) for key, value in found._asdict().items()},
        cycles_per_s=outcome.rate,
        cpu_us=(cpu_s_when_quiet(pid) - before_s) / accepts * 1e6,
    )
