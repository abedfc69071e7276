"""Memory of a broker after many queues with a backlog were used once each, and the time that a cold one takes to wake.

    python -m bench.cold [--queues 1000] [--queue-kib 3000] [--message-kib 60] [--wakes 300]

A client sends a backlog to each queue, one queue after the other. Then it receives one message from queues chosen at
random, and completes it. Nearly all of them are cold: what they held went when later queues needed the memory.
"""

from __future__ import annotations

import argparse
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import median, quantiles

from bench.fill import fill_catalog
from partibus.bench.measures import rss_bytes
from partibus.bench.scenarios import TemporaryBroker
from partibus.client.messages import OutgoingMessage
from partibus.namespace.catalog import Catalog
from partibus.namespace.entities import EntityDescription, EntityOptions
from tests.kit.plain_client import connect

_MIB = 2**20
_WORK = Path("build/bench/cold")
_CONNECTION_QUEUES = 100
"""Queues that one connection sends to: it may show a thousand tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cold:
    """The measurements of a run."""

    scenario: str = "cold"
    queues: int
    queue_kib: int
    idle_mib: float
    """Memory of the broker before any queue was used."""
    highest_mib: float
    """While the backlogs were sent, looked at after each hundred queues."""
    used_mib: float
    """Memory after all of them were used."""
    wake_ms: float
    """The median time from opening a link at a queue to its first message."""
    wake_p99_ms: float
    """The time that 99 of 100 cold queues take at most."""
    warm_ms: float
    """The same at a queue that is in use."""

    def as_dict(self) -> dict[str, object]:
        """A row of the results."""
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(self).items()}

    def __str__(self) -> str:
        return (
            f"{self.queues:,} queues of {self.queue_kib:,} KiB: {self.idle_mib:.0f} MiB idle,"
            f" {self.highest_mib:.0f} MiB at most, {self.used_mib:.0f} MiB after; first message of a cold queue"
            f" {self.wake_ms:.1f} ms (p99 {self.wake_p99_ms:.1f} ms), of one in use {self.warm_ms:.1f} ms"
        )


def measure_cold(directory: Path, *, queues: int, queue_kib: int, message_kib: int, wakes: int) -> Cold:
    """Measure one broker, whose data stay in ``directory``."""
    shutil.rmtree(directory, ignore_errors=True)
    names = [f"queue-{number}" for number in range(queues)]
    with TemporaryBroker(directory) as broker:
        broker.stop()

    def create(catalog: Catalog) -> None:
        now_ms = int(time.time() * 1000)
        for name in names:
            catalog.create(EntityDescription(name, EntityOptions(max_size_mb=1024)), now_ms)

    fill_catalog(directory / "data", create)
    messages = [OutgoingMessage(body=bytes(message_kib * 1024)) for _ in range(queue_kib // message_kib)]
    with TemporaryBroker(directory) as broker, connect(broker.connection) as client:
        idle = highest = rss_bytes(broker.pid)
        for start in range(0, queues, _CONNECTION_QUEUES):
            with connect(broker.connection) as sending:
                for name in names[start : start + _CONNECTION_QUEUES]:
                    sender = sending.sender(name)
                    sender.send(messages, timeout_s=120)
                    sender.close()
            highest = max(highest, rss_bytes(broker.pid))
        used = rss_bytes(broker.pid)

        def first_ms(name: str) -> float:
            began = time.perf_counter()
            receiver = client.receiver(name)
            (message,) = receiver.receive(1, timeout_s=60)
            ended = time.perf_counter()
            receiver.settle([message])
            receiver.close()
            return (ended - began) * 1000

        chosen = Random(1).sample(names[: queues // 2], min(wakes, queues // 2))
        cold_ms = [first_ms(name) for name in chosen]
        warm_ms = [first_ms(chosen[-1]) for _ in range(10)]
    return Cold(
        queues=queues,
        queue_kib=queue_kib,
        idle_mib=idle / _MIB,
        highest_mib=max(highest, used) / _MIB,
        used_mib=used / _MIB,
        wake_ms=median(cold_ms),
        wake_p99_ms=quantiles(cold_ms, n=100, method="inclusive")[98],
        warm_ms=median(warm_ms),
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, default=1_000)
    parser.add_argument("--queue-kib", type=int, default=3_000)
    parser.add_argument("--message-kib", type=int, default=60)
    parser.add_argument("--wakes", type=int, default=300)
    parser.add_argument("--directory", type=Path, default=_WORK)
    asked = parser.parse_args()
    print(
        measure_cold(
            asked.directory,
            queues=asked.queues,
            queue_kib=asked.queue_kib,
            message_kib=asked.message_kib,
            wakes=asked.wakes,
        )
    )


if __name__ == "__main__":
    main()
