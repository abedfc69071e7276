"""The scenarios: each function makes one run and returns one result."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import NamedTuple

from partibus.bench.load import Generator, Job, Mode
from partibus.bench.measures import cpu_s, cpu_s_when_quiet, percentiles

TIMEOUT_S = 180.0
"""The time limit of one run."""


class Target(NamedTuple):
    """A queue of a broker."""

    broker: str
    queue: str
    """The words ``plain``, ``partitioned``."""
    address: str
    pid: int | None
    """The broker's process; None where it is not on this machine, and nothing is known about its CPU."""
    subscription: str = ""
    """The subscription of a topic from which messages to ``address`` are received."""

    @property
    def receive_address(self) -> str:
        """The address to receive from."""
        return self.subscription or self.address


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run. A field is None where it was not measured."""

    scenario: str
    broker: str
    queue: str
    generator: str
    size_bytes: int
    connections: int
    messages: int
    send_per_s: float | None = None
    receive_per_s: float | None = None
    cpu_us: float | None = None
    """Server CPU (user and system) per message."""
    gil_us: float | None = None
    """The part of the wall time per message in which a thread of the server held the GIL."""
    latency_ms: dict[str, float] | None = None
    """End to end: p50, p90, p99, p999, most."""

    def as_dict(self) -> dict[str, object]:
        """Return the measured fields, rounded to their precision."""
        return {key: _rounded(value) for key, value in asdict(self).items() if value is not None}


def send(target: Target, generator: Generator, *, count: int, size_bytes: int = 1024, connections: int = 1) -> Result:
    """Send into the queue; the messages stay there."""
    job = Job(mode=Mode.SEND, address=target.address, count=count, size_bytes=size_bytes, connections=connections)
    cpu_us = _cpu_per_message(target, count)
    with generator.start(job) as running:
        outcome = running.wait(TIMEOUT_S)
    return _result("send", target, generator, job, send_per_s=outcome.rate, cpu_us=cpu_us())


def receive(
    target: Target, generator: Generator, *, count: int, size_bytes: int = 1024, connections: int = 1
) -> Result:
    """Receive and settle the messages in the queue; ``size_bytes`` only describes them."""
    job = Job(
        mode=Mode.RECEIVE, address=target.receive_address, count=count, size_bytes=size_bytes, connections=connections
    )
    cpu_us = _cpu_per_message(target, count)
    with generator.start(job) as running:
        outcome = running.wait(TIMEOUT_S)
    return _result("receive", target, generator, job, receive_per_s=outcome.rate, cpu_us=cpu_us())


def both(target: Target, generator: Generator, *, count: int, size_bytes: int = 1024, connections: int = 1) -> Result:
    """Send and receive at once, ``connections`` each; CPU is per message that went through."""
    job = Job(mode=Mode.SEND, address=target.address, count=count, size_bytes=size_bytes, connections=connections)
    receiving = Job(
        mode=Mode.RECEIVE, address=target.receive_address, count=count, size_bytes=size_bytes, connections=connections
    )
    cpu_us = _cpu_per_message(target, count)
    with generator.start(receiving) as receiver, generator.start(job) as sender:
        sent = sender.wait(TIMEOUT_S)
        received = receiver.wait(TIMEOUT_S)
    return _result("both", target, generator, job, send_per_s=sent.rate, receive_per_s=received.rate, cpu_us=cpu_us())


def latency(target: Target, generator: Generator, *, rate: int, seconds: int, size_bytes: int = 1024) -> Result:
    """End to end at a fixed rate."""
    job = Job(
        mode=Mode.LATENCY,
        address=target.address,
        count=rate * seconds,
        size_bytes=size_bytes,
        rate=rate,
        seconds=seconds,
    )
    cpu_us = _cpu_per_message(target, job.count)
    with generator.start(job) as running:
        outcome = running.wait(TIMEOUT_S)
    found = percentiles([value / 1000 for value in outcome.latencies_us])
    return _result("latency", target, generator, job, cpu_us=cpu_us(), latency_ms=found._asdict())


def _cpu_per_message(target: Target, count: int) -> Callable[[], float | None]:
    """Return a function for after the run; call this one before it."""
    pid = target.pid
    if pid is None:
        return lambda: None
    before = cpu_s(pid)
    return lambda: (cpu_s_when_quiet(pid) - before) / count * 1e6


def _result(
    scenario: str,
    target: Target,
    generator: Generator,
    job: Job,
    *,
    send_per_s: float | None = None,
    receive_per_s: float | None = None,
    cpu_us: float | None = None,
    latency_ms: dict[str, float] | None = None,
) -> Result:
    return Result(
        scenario=scenario,
        broker=target.broker,
        queue=target.queue,
        generator=generator.name,
        size_bytes=job.size_bytes,
        connections=job.connections,
        messages=job.count,
        send_per_s=send_per_s,
        receive_per_s=receive_per_s,
        cpu_us=cpu_us,
        latency_ms=latency_ms,
    )


def _rounded(value: object) -> object:
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, float):
        return round(value) if abs(value) >= 1000 else round(value, 2)
    return value
