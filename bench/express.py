"""Express queues beside durable ones: the same messages, which no reader forces; and the time of an answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from bench.brokers import Partibus, partibus
from bench.pairs import Pairs, Side, compare
from bench.yardstick import at_full_speed, piece_ns
from partibus.bench.load import Job, Mode
from partibus.bench.measures import median, percentiles
from partibus.bench.scenarios import TIMEOUT_S
from partibus.client.messages import OutgoingMessage
from tests.kit.plain_client import connect

RATE = 1_000
"""Messages a second, one at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """Times from a send to its answer, at a client that sends one at a time at a fixed rate while another receives.

    Medians of several rounds, in turn with the other kind.
    """

    scenario: str = "acknowledged"
    queue: str
    rate: int
    messages: int
    """Messages in each round."""
    rounds: int
    latency_ms: dict[str, float]
    full_speed_share: float
    """The share of sends beside which the machine was not slowed down from outside (`bench.yardstick`)."""
    full_speed_ms: dict[str, float]
    """The latencies of these sends."""

    def as_dict(self) -> dict[str, object]:
        return {key: _rounded(value) for key, value in asdict(self).items()}


def _rounded(value: object) -> object:
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return round(value, 3) if isinstance(value, float) else value


class _Round(NamedTuple):
    """One of them; milliseconds."""

    every: dict[str, float]
    full_speed: dict[str, float]
    full_speed_share: float


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
        found: dict[str, list[_Round]] = {kind: [] for kind in kinds}
        for number in range(pairs):
            for kind in kinds[:: -1 if number % 2 else 1]:
                found[kind].append(_answers(peer, kind, seconds))
        for kind, rounds in found.items():
            yield Acknowledged(
                queue=kind,
                rate=RATE,
                messages=round(RATE * seconds),
                rounds=pairs,
                latency_ms=_medians([one.every for one in rounds]),
                full_speed_share=median([one.full_speed_share for one in rounds]),
                full_speed_ms=_medians([one.full_speed for one in rounds]),
            )


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {key: median([one[key] for one in rounds]) for key in rounds[0]}


def _side(peer: Partibus, kind: str) -> Side:
    return Side(lambda: peer.queue(kind), peer.foreign.unforced())


def _answers(peer: Partibus, kind: str, seconds: float) -> _Round:
    address, count = peer.queue(kind).address, round(RATE * seconds)
    receiving = Job(mode=Mode.RECEIVE, address=address, count=count + 1)
    with peer.own.start(receiving) as running, connect(peer.broker.connection) as client:
        sender = client.sender(address)
        payload = OutgoingMessage(body=bytes(1024)).encode()
        sender.send([payload])  # the first makes the partition begin
        latencies_ms: list[float] = []
        pieces_ns: list[float] = []
        start_s = time.perf_counter()
        for number in range(count):
            time.sleep(max(0.0, start_s + number / RATE - time.perf_counter()))
            pieces_ns.append(piece_ns())
            began_s = time.perf_counter()
            sender.send([payload])
            latencies_ms.append((time.perf_counter() - began_s) * 1_000)
        pieces_ns.append(piece_ns())
        running.wait(TIMEOUT_S)
    full_speed_ms = at_full_speed(latencies_ms, pieces_ns)
    return _Round(percentiles(latencies_ms)._asdict(), percentiles(full_speed_ms)._asdict(), len(full_speed_ms) / count)
