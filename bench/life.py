"""Start, idle and backlog: what a broker needs while it holds many messages, and how fast it is back."""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.brokers import attach
from partibus.bench.load import BenchError, Job, Mode
from partibus.bench.measures import median, rss_bytes
from partibus.bench.scenarios import Result, TemporaryBroker, both
from tests.kit.plain_client import connect

_MIB = 2**20
_STARTS = 5
_FILL_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """Seconds, MiB of resident memory, and microseconds of server CPU per message through."""

    broker: str = "partibus"
    scenario: str = "life"
    start_s: float
    """Median time to readiness with an empty directory."""
    idle_mib: float
    backlog_messages: int
    backlog_mib: float
    """Memory with the backlog in the queue, after the fill."""
    fill_per_s: float
    cpu_us_empty: float | None
    cpu_us_backlog: float | None
    restart_s: float
    """Seconds to readiness with the backlog on disk."""
    first_message_s: float
    """Seconds from readiness to the first message received."""

    def as_dict(self) -> dict[str, object]:
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(self).items()}


def measure_life(directory: Path, program: Path, backlog: int, count: int) -> Life:
    """``backlog`` messages of 1 KB in one plain queue; ``count`` messages go through before and behind them."""
    starts = [_start_once(directory) for _ in range(_STARTS)]
    with TemporaryBroker(directory) as broker:
        idle_mib = rss_bytes(broker.pid) / _MIB
        peer = attach(broker, program)
        target = peer.queue("plain")
        both(target, peer.foreign, count=count)
        empty = both(target, peer.foreign, count=count)
        with peer.own.start(Job(mode=Mode.SEND, address=target.address, count=backlog)) as running:
            filled = running.wait(_FILL_S)
        full = both(target, peer.foreign, count=count)
        backlog_mib = rss_bytes(broker.pid) / _MIB
        broker.stop()
        broker.start()
        first_message_s = _first_message_s(broker.connection, target.address)
        restart_s = broker.start_s
    shutil.rmtree(directory)
    return Life(
        start_s=median(starts),
        idle_mib=idle_mib,
        backlog_messages=backlog,
        backlog_mib=backlog_mib,
        fill_per_s=filled.rate,
        cpu_us_empty=_cpu(empty),
        cpu_us_backlog=_cpu(full),
        restart_s=restart_s,
        first_message_s=first_message_s,
    )


def _start_once(directory: Path) -> float:
    shutil.rmtree(directory, ignore_errors=True)
    with TemporaryBroker(directory) as broker:
        started = broker.start_s
    shutil.rmtree(directory)
    return started


def _first_message_s(connection: str, address: str) -> float:
    started = time.monotonic()
    with connect(connection) as client:
        receiver = client.receiver(address)
        if not receiver.receive(1, timeout_s=60):
            raise BenchError("no message came after the restart")
    return time.monotonic() - started


def _cpu(result: Result) -> float | None:
    return result.cpu_us
