"""Express queues beside durable ones: the same messages, which nobody forces; and how long an answer takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.brokers import Partibus, partibus
from bench.pairs import Pairs, Side, compare
from partibus.bench.load import Job, Mode
from partibus.bench.scenarios import TIMEOUT_S
from partibus.bench.statistics import median, percentiles
from partibus.client import OutgoingMessage, connect

RATE = 1_000
"""Messages a second, one at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """From the send of a message to its answer, at a client that sends one at a time at a fixed rate, while
    another receives. Medians of several rounds, in turn with the other kind."""

    scenario: str = "acknowledged"
    queue: str
    rate: int
    messages: int
    """In each round."""
    rounds: int
    latency_ms: dict[str, float]

    def as_dict(self) -> dict[str, object]:
        rounded = {key: round(value, 3) for key, value in self.latency_ms.items()}
        return asdict(self) | {"latency_ms": rounded}


def measure_express(
    directory: Path, program: Path, *, pairs: int, count: int, seconds: float
) -> Iterator[Pairs | Acknowledged]:
    """Plain and partitioned, one connection; then answers."""
    with partibus(directory, program) as peer:
        for base, other in (("plain", "express"), ("partitioned", "partitioned, express")):
            yield from compare(
                "express", base, _side(peer, base), _side(peer, other), pairs=pairs, count=count, runs=("send", "both")
            )
        kinds = ("plain", "express")
        found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
        for number in range(pairs):
            for kind in kinds[:: -1 if number % 2 else 1]:
                found[kind].append(_answers(peer, kind, seconds))
        for kind, rounds in found.items():
            middle = {key: median([one[key] for one in rounds]) for key in rounds[0]}
            yield Acknowledged(queue=kind, rate=RATE, messages=round(RATE * seconds), rounds=pairs, latency_ms=middle)


def _side(peer: Partibus, kind: str) -> Side:
    return Side(lambda: peer.queue(kind), peer.foreign.unforced())


def _answers(peer: Partibus, kind: str, seconds: float) -> dict[str, float]:
    address, count = peer.queue(kind).address, round(RATE * seconds)
    receiving = Job(mode=Mode.RECEIVE, address=address, count=count + 1)
    with peer.own.start(receiving) as running, connect(peer.broker.connection) as client:
        sender = client.sender(address)
        payload = OutgoingMessage(body=bytes(1024)).encode()
        sender.send([payload])  # the first makes the partition begin
        latencies_ms: list[float] = []
        start_s = time.perf_counter()
        for number in range(count):
            time.sleep(max(0.0, start_s + number / RATE - time.perf_counter()))
            began_s = time.perf_counter()
            sender.send([payload])
            latencies_ms.append((time.perf_counter() - began_s) * 1_000)
        running.wait(TIMEOUT_S)
    return percentiles(latencies_ms)._asdict()
