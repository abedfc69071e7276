"""Two million messages that are not just waiting: each a session of its own, all deferred, or all scheduled.

The broker starts with them, does some work on them, and is asked for the most memory that it ever had.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.brokers import Partibus, attach
from bench.fill import fill_messages
from bench.sessions import accept_next
from partibus.amqp.codec.types import UInt
from partibus.bench.load import BenchError, Job, Mode
from partibus.bench.measures import percentiles
from partibus.bench.scenarios import TIMEOUT_S, Target, TemporaryBroker, send
from partibus.partition.protocol.ports import EntryState
from tests.kit.plain_client import Client, connect

_MIB = 2**20
_DAY_MS = 24 * 3600 * 1000
_PER_REQUEST = 10
"""Deferred messages that one request asks for."""
_SCHEDULED_DUE_PART = 20
"""The number of scheduled messages of which one becomes due while the broker is down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Many:
    """One plain queue full of messages of 1 KB in one of the three states."""

    scenario: str = "many"
    queue: str
    messages: int
    start_s: float
    """Seconds to readiness."""
    first_s: float
    """Seconds from readiness to the first session accepted, or deferred or scheduled message received."""
    work: str
    """The work that was done then."""
    work_per_s: float
    work_ms: dict[str, float] | None
    """Percentiles of one step of it, at the client, where it has steps."""
    peak_mib: float
    """The most memory that was resident since the start."""

    def as_dict(self) -> dict[str, object]:
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(self).items()}


def measure_many(directory: Path, program: Path, *, count: int, steps: int) -> Iterator[Many]:
    """``count`` messages, three times; ``steps`` accepts, or requests for deferred messages."""
    for measure in (_sessions, _deferred, _scheduled):
        shutil.rmtree(directory, ignore_errors=True)
        with TemporaryBroker(directory) as broker:
            yield measure(broker, program, count, steps)
    shutil.rmtree(directory)


def _sessions(broker: TemporaryBroker, program: Path, count: int, steps: int) -> Many:
    target = _queue(broker, program, "sessions")
    fill_messages(broker.directory / "data", target.address, count, session=lambda number: f"session-{number}")
    peer = _started(broker, program)
    first_s = _first_session_s(peer, target)
    accepts = accept_next(peer, target, waiting=count - 1, accepts=steps)
    send(target._replace(pid=None), peer.foreign.with_sessions(steps), count=steps)
    return Many(
        queue="sessions",
        messages=count,
        start_s=broker.start_s,
        first_s=first_s,
        work=f"{steps:,} sessions accepted one after the other",
        work_per_s=accepts.cycles_per_s,
        work_ms=accepts.accept_ms,
        peak_mib=peak_bytes(broker.pid) / _MIB,
    )


def _deferred(broker: TemporaryBroker, program: Path, count: int, steps: int) -> Many:
    target = _queue(broker, program, "plain")
    fill_messages(broker.directory / "data", target.address, count, state=EntryState.DEFERRED)
    _started(broker, program)
    steps = min(steps, count // _PER_REQUEST)
    numbers = random.Random(1).sample(range(1, count + 1), steps * _PER_REQUEST)
    started = time.monotonic()
    with connect(broker.connection) as client:
        _receive_deferred(client, target, numbers[:_PER_REQUEST])
        first_s = time.monotonic() - started
        times_ms = []
        for first in range(_PER_REQUEST, len(numbers), _PER_REQUEST):
            before = time.perf_counter()
            _receive_deferred(client, target, numbers[first : first + _PER_REQUEST])
            times_ms.append((time.perf_counter() - before) * 1000)
    return Many(
        queue="deferred",
        messages=count,
        start_s=broker.start_s,
        first_s=first_s,
        work=f"{steps:,} requests for {_PER_REQUEST} deferred messages anywhere, deleted",
        work_per_s=len(times_ms) * _PER_REQUEST * 1000 / sum(times_ms),
        work_ms={key: round(value, 3) for key, value in percentiles(times_ms)._asdict().items()},
        peak_mib=peak_bytes(broker.pid) / _MIB,
    )


def _scheduled(broker: TemporaryBroker, program: Path, count: int, _steps: int) -> Many:
    target = _queue(broker, program, "plain")
    due_count = count // _SCHEDULED_DUE_PART
    now_ms = int(time.time() * 1000)

    def due_ms(number: int) -> int:
        """The first ones are due when the broker is back, the others tomorrow, evenly."""
        return now_ms if number < due_count else now_ms + _DAY_MS + number * _DAY_MS // count

    fill_messages(broker.directory / "data", target.address, count, state=EntryState.SCHEDULED, due_ms=due_ms)
    ready_s, peer = _started_at(broker, program)
    with peer.foreign.start(Job(mode=Mode.RECEIVE, address=target.address, count=due_count)) as running:
        outcome = running.wait(TIMEOUT_S)
    return Many(
        queue="scheduled",
        messages=count,
        start_s=broker.start_s,
        first_s=outcome.first_s - ready_s,
        work=f"{due_count:,} that had become due activated, received and completed",
        work_per_s=outcome.rate,
        work_ms=None,
        peak_mib=peak_bytes(broker.pid) / _MIB,
    )


def _queue(broker: TemporaryBroker, program: Path, kind: str) -> Target:
    """A new one; then the broker stops."""
    target = attach(broker, program).queue(kind)
    broker.stop()
    return target


def _started(broker: TemporaryBroker, program: Path) -> Partibus:
    return _started_at(broker, program)[1]


def _started_at(broker: TemporaryBroker, program: Path) -> tuple[float, Partibus]:
    """When it was ready (seconds since 1970), and what is on it."""
    broker.start()
    ready_s = time.time()
    return ready_s, attach(broker, program)


def _first_session_s(peer: Partibus, target: Target) -> float:
    started_s = time.time()
    with peer.foreign.accept(target.address, 1) as running:
        return running.wait(TIMEOUT_S).last_s - started_s


def _receive_deferred(client: Client, target: Target, numbers: list[int]) -> None:
    body = {"sequence-numbers": numbers, "receiver-settle-mode": UInt(0)}
    found = client.management(target.address).request("com.microsoft:receive-by-sequence-number", body)
    messages = found.get("messages")
    if not isinstance(messages, list) or len(messages) != len(numbers):
        raise BenchError(f"the broker did not answer with the {len(numbers)} deferred messages asked for")


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had resident since its start."""
    return parse_peak(Path(f"/proc/{pid}/status").read_text())


def parse_peak(status: str) -> int:
    """Return the peak in the text of ``/proc/PID/status``."""
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no VmHWM: the process has ended")
