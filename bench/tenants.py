"""Two namespaces on one broker process: how much one that floods takes from the other (row R9).

The quiet one sends a message at a time at a steady rate and waits for the answer; times count from when the message was
due, so that one that waits makes those behind it late as well. The other one floods: as fast as the broker answers, or
at ten times the credits that it is held to. Runs with and without the flood take turns on the same broker, and the same
is done on one whose namespaces do not share the loop.
"""

from __future__ import annotations

import multiprocessing
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from partibus.bench.process import cpu_s_when_quiet
from partibus.bench.statistics import percentiles
from partibus.bench.temporary import TemporaryBroker
from partibus.client import connect
from partibus.client.entities import Entities
from partibus.client.errors import SendFailed
from partibus.client.messages import OutgoingMessage
from partibus.client.namespaces import Namespaces

QUIET, FLOODING = "quiet-tenant", "flooding-tenant"
RATE = 100
"""Messages per second of the quiet one."""
BODY = b"x" * 200
FLOOD_CONNECTIONS = 4
FLOOD_BATCH = 250
CREDITS_PER_S = 1_000
TIMES = 10
"""What is sent of what credits pay for."""
UNSHARED = Path(__file__).parent / "unshared"
FLOODS = ("none", "plain", "throttled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenants:
    """One flood, all its rounds together."""

    scenario: str = "tenants"
    sharing: bool
    flood: str
    ack_ms: dict[str, float]
    """Of the quiet one's messages, at the client."""
    per_s: float
    """Of the quiet one."""
    flood_per_s: float
    """Messages of the other one that were accepted."""
    busy: float
    """The broker's processor time per second."""

    def as_dict(self) -> dict[str, object]:
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(self).items()}


def measure_tenants(directory: Path, *, rounds: int, seconds: float) -> Iterator[Tenants]:
    """With the sharing and without."""
    for sharing in (True, False):
        shutil.rmtree(directory, ignore_errors=True)
        environment = {} if sharing else {"PYTHONPATH": str(UNSHARED)}
        with TemporaryBroker(directory, environment) as broker:
            tenants = {name: _create(broker, name) for name in (QUIET, FLOODING)}
            found: dict[str, list[_Round]] = {flood: [] for flood in FLOODS}
            for _ in range(rounds):
                for flood in FLOODS:
                    found[flood].append(_round(broker, tenants, flood, seconds))
        for flood, all_rounds in found.items():
            yield _sum_up(sharing, flood, all_rounds)
    shutil.rmtree(directory)


@dataclass(frozen=True, slots=True)
class _Round:
    latencies_ms: list[float]
    seconds: float
    flooded: int
    cpu_s: float


def _sum_up(sharing: bool, flood: str, rounds: list[_Round]) -> Tenants:
    latencies = [value for one in rounds for value in one.latencies_ms]
    seconds = sum(one.seconds for one in rounds)
    return Tenants(
        sharing=sharing,
        flood=flood,
        ack_ms={key: round(value, 3) for key, value in percentiles(latencies)._asdict().items()},
        per_s=len(latencies) / seconds,
        flood_per_s=sum(one.flooded for one in rounds) / seconds,
        busy=sum(one.cpu_s for one in rounds) / seconds,
    )


def _create(broker: TemporaryBroker, name: str) -> str:
    with connect(broker.connection) as client:
        text = Namespaces(client).create(name, {}).connection_string(client.endpoint)
    with connect(text) as client:
        Entities(client).create_queue("orders", {})
    return text


def _round(broker: TemporaryBroker, tenants: dict[str, str], flood: str, seconds: float) -> _Round:
    with connect(broker.connection) as client:
        policy = "enforce" if flood == "throttled" else "off"
        options = {"throttling": policy, "credits-per-second": CREDITS_PER_S}
        Namespaces(client).update(FLOODING, options)
    before_s = cpu_s_when_quiet(broker.pid)
    context = multiprocessing.get_context("spawn")
    pipe, end = context.Pipe()
    ready, over = context.Event(), context.Event()
    child = context.Process(target=_flood, args=(tenants[FLOODING], flood, ready, over, end))
    if flood != "none":
        child.start()
        ready.wait()
    began_s = time.perf_counter()
    latencies = _send_steadily(tenants[QUIET], seconds)
    lasted_s = time.perf_counter() - began_s
    over.set()
    flooded = 0
    if flood != "none":
        flooded = pipe.recv()
        child.join()
    return _Round(latencies, lasted_s, flooded, cpu_s_when_quiet(broker.pid) - before_s)


def _send_steadily(connection: str, seconds: float) -> list[float]:
    latencies = []
    with connect(connection) as client:
        sender = client.sender("orders")
        sender.send([OutgoingMessage(body=BODY)])
        began_s = time.perf_counter()
        for number in range(round(seconds * RATE)):
            due_s = began_s + number / RATE
            time.sleep(max(0.0, due_s - time.perf_counter()))
            sender.send([OutgoingMessage(body=BODY)])
            latencies.append((time.perf_counter() - due_s) * 1_000)
    return latencies


def _flood(connection: str, flood: str, ready: Any, over: Any, end: Any) -> None:
    """A process of its own."""
    clients = [connect(connection) for _ in range(FLOOD_CONNECTIONS)]
    senders = [client.sender("orders") for client in clients]
    messages = [OutgoingMessage(body=BODY)] * FLOOD_BATCH
    pause_s = FLOOD_CONNECTIONS * FLOOD_BATCH / (CREDITS_PER_S * TIMES) if flood == "throttled" else 0.0
    ready.set()
    accepted = 0
    while not over.is_set():
        round_ends_s = time.perf_counter() + pause_s
        for sender in senders:
            with suppress(SendFailed):
                sender.send_nowait(messages)
        for sender in senders:
            accepted += FLOOD_BATCH - _refused(sender.flush)
        time.sleep(max(0.0, round_ends_s - time.perf_counter()))
    for client in clients:
        client.close()
    end.send(accepted)


def _refused(work: Callable[[], None]) -> int:
    try:
        work()
    except SendFailed as error:
        return len(error.failures)
    return 0
