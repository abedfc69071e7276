"""Two namespaces on one broker process: how much one that floods takes from the other (row R9).

The quiet one sends a message at a time at a steady rate and waits for the answer; times count from when the message was
due, so that one that waits makes those behind it late as well. The other one floods: as fast as the broker answers, or
at ten times the credits that it is held to, one by one or in batches, from one process that yields to everybody else.

A flood takes processor time and disk from whoever is on the machine, which no broker can give back. So the same flood
is sent to another broker process as well: what the quiet one sees then is what its own broker has to be compared with.
Runs take turns. At last it is done on a broker whose namespaces do not share the loop.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from bench.results import note
from partibus.bench.measures import cpu_s, cpu_s_when_quiet, percentiles
from partibus.bench.scenarios import TemporaryBroker
from partibus.client.errors import SendFailed
from partibus.client.extensions.entities import Entities
from partibus.client.extensions.namespaces import Namespaces
from partibus.client.messages import OutgoingMessage
from tests.kit.plain_client import connect

QUIET, FLOODING = "quiet-tenant", "flooding-tenant"
RATE = 100
"""Messages per second of the quiet one."""
BODY = b"x" * 200
FLOOD_CONNECTIONS = 4
FLOOD_BATCH = 250
CREDITS_PER_S = 1_000
TIMES = 10
"""The factor by which more is sent than credits pay for."""
UNSHARED = Path(__file__).parent / "unshared"
NONE, SINGLE, BATCHES, PLAIN = "none", "throttled, single", "throttled, batches", "plain"
FLOODS = (BATCHES, SINGLE, PLAIN)
NICE = 10
"""The niceness of the process that floods: on a machine of two cores the clients must not hinder one another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenants:
    """One flood at one place, all its rounds together."""

    scenario: str = "tenants"
    sharing: bool
    flood: str
    beside: bool
    """Whether the broker is that of the quiet tenant; else it is another one on the machine."""
    ack_ms: dict[str, float]
    """The latencies of the quiet tenant's messages, at the client."""
    per_s: float
    """The rate of the quiet tenant."""
    flood_per_s: float
    """Messages of the other one that were accepted."""
    refused_per_s: float
    """The rate of the other tenant's refused messages."""
    busy: float
    """Processor time per second of the quiet one's broker."""

    def as_dict(self) -> dict[str, object]:
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class Round:
    """The measurements of one round of a case."""

    latencies_ms: list[float]
    seconds: float
    flooded: int
    refused: int
    cpu_s: float


class _Place:
    """A broker with both tenants."""

    def __init__(self, broker: TemporaryBroker) -> None:
        self.broker = broker
        self.quiet, self.flooding = (_create(broker, name) for name in (QUIET, FLOODING))

    def set_credits(self, flood: str) -> None:
        with connect(self.broker.connection) as client:
            policy = "off" if flood == PLAIN else "enforce"
            Namespaces(client).update(FLOODING, {"throttling": policy, "credits-per-second": CREDITS_PER_S})


def measure_tenants(directory: Path, *, rounds: int, seconds: float) -> Iterator[Tenants]:
    """Measure with the sharing, then without."""
    shutil.rmtree(directory, ignore_errors=True)
    with TemporaryBroker(directory / "one") as one, TemporaryBroker(directory / "other") as other:
        place, elsewhere = _Place(one), _Place(other)
        cases = [(NONE, elsewhere), *((flood, where) for flood in FLOODS for where in (elsewhere, place))]
        yield from measure(place, cases, True, rounds, seconds)
    shutil.rmtree(directory)
    with TemporaryBroker(directory / "one", {"PYTHONPATH": str(UNSHARED)}) as one:
        place = _Place(one)
        yield from measure(place, [(flood, place) for flood in FLOODS], False, rounds, seconds)
    shutil.rmtree(directory)


def measure(
    place: _Place, cases: Sequence[tuple[str, _Place]], sharing: bool, rounds: int, seconds: float
) -> Iterator[Tenants]:
    """Yield each case as soon as its last round is over."""
    found: dict[tuple[str, _Place], list[Round]] = {case: [] for case in cases}
    for number in range(1, rounds + 1):
        for (flood, where), results in found.items():
            results.append(measure_round(place, flood, where, seconds))
            where_it_floods = "the same" if where is place else "another"
            note(f"tenants, flood '{flood}' on {where_it_floods} broker: round {number} of {rounds}")
            if number == rounds:
                yield _sum_up(sharing, flood, where is place, results)


def _sum_up(sharing: bool, flood: str, beside: bool, rounds: list[Round]) -> Tenants:
    latencies = [value for one in rounds for value in one.latencies_ms]
    seconds = sum(one.seconds for one in rounds)
    return Tenants(
        sharing=sharing,
        flood=flood,
        beside=beside,
        ack_ms={key: round(value, 3) for key, value in percentiles(latencies)._asdict().items()},
        per_s=len(latencies) / seconds,
        flood_per_s=sum(one.flooded for one in rounds) / seconds,
        refused_per_s=sum(one.refused for one in rounds) / seconds,
        busy=sum(one.cpu_s for one in rounds) / seconds,
    )


def _create(broker: TemporaryBroker, name: str) -> str:
    with connect(broker.connection) as client:
        text = Namespaces(client).create(name, {}).connection_string(client.endpoint)
    with connect(text) as client:
        Entities(client).create_queue("orders", {})
    return text


def measure_round(place: _Place, flood: str, where: _Place, seconds: float) -> Round:
    """Measure the other tenant while one floods ``where``."""
    with _flooding(where, flood) as flooded:
        before_s = cpu_s(place.broker.pid)
        began_s = time.perf_counter()
        latencies = _send_steadily(place.quiet, seconds)
        lasted_s = time.perf_counter() - began_s
        spent_s = cpu_s(place.broker.pid) - before_s
    for one in (place, where):
        cpu_s_when_quiet(one.broker.pid)
    return Round(latencies, lasted_s, flooded[0], flooded[1], spent_s)


@contextmanager
def _flooding(where: _Place, flood: str) -> Iterator[list[int]]:
    """Flood for that time; at its end what is yielded has how many messages were accepted and how many refused."""
    found: list[int] = []
    if flood == NONE:
        yield found
        found.extend((0, 0))
        return
    where.set_credits(flood)
    context = multiprocessing.get_context("spawn")
    pipe, end = context.Pipe()
    ready, over = context.Event(), context.Event()
    child = context.Process(target=_flood, args=(where.flooding, flood, ready, over, end))
    child.start()
    try:
        ready.wait()
        yield found
        over.set()
        found.extend(pipe.recv())
    finally:
        over.set()
        child.join()


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
    """Send bounded messages at a steady rate, in a process of its own, from one connection after the other."""
    os.nice(NICE)
    gc.disable()
    clients = [connect(connection) for _ in range(FLOOD_CONNECTIONS)]
    senders = [client.sender("orders") for client in clients]
    messages = [OutgoingMessage(body=BODY).encode()] * FLOOD_BATCH
    pause_s = 0.0 if flood == PLAIN else FLOOD_BATCH / (CREDITS_PER_S * TIMES)
    ready.set()
    sent = refused = 0
    due_s = time.perf_counter()
    for sender in cycle(senders):
        if over.is_set():
            break
        if flood == BATCHES:
            refused += FLOOD_BATCH * _refused(partial(sender.send_batch, messages))
        else:  # each is asked for its answers when its turn comes again
            refused += _refused(sender.flush)
            sender.send_nowait(messages)
        sent += FLOOD_BATCH
        due_s = max(due_s + pause_s, time.perf_counter())
        time.sleep(max(0.0, due_s - time.perf_counter()))
    for sender in senders:
        refused += _refused(sender.flush)
    for client in clients:
        client.close()
    end.send((sent - refused, refused))


def _refused(work: Callable[[], object]) -> int:
    try:
        work()
    except SendFailed as error:
        return len(error.failures)
    return 0
