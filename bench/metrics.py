"""The cost of ``GET /metrics``: a broker with a thousand partitioned queues in use, asked as Prometheus asks.

The broker runs in this process, so that the longest stay of its loop in one place can be told: as processor time of
the loop's thread, which other programs on the machine do not add to.
"""

from __future__ import annotations

import asyncio
import gc
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.request import urlopen

import uvloop

from bench.fill import fill_catalog
from partibus.amqp.section_encoding import encode_data, encode_properties
from partibus.message import Message, pack
from partibus.namespace.catalog import Catalog
from partibus.namespace.entities import EntityDescription, EntityOptions
from partibus.node.node import Broker
from partibus.node.settings import Settings
from partibus.node.single_process import make_broker
from partibus.partition.protocol.commands import Enqueue

PARTITIONS = 16
AT_ONCE = 2_000
"""Messages under way while queues are filled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """The median of several requests; the longest stall of several others."""

    scenario: str = "scrape"
    entities: int
    partitions: int
    """Partitions of each."""
    counted: bool
    """Whether the messages in the stores were counted for it, which is done every five seconds at most."""
    series: int
    mib: float
    answer_ms: float
    """Time until the last byte."""
    cpu_ms: float
    """CPU time of the loop's thread."""
    stall_ms: float
    """Processor time of the loop's thread between two turns of everybody else, at most."""

    def as_dict(self) -> dict[str, object]:
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(self).items()}


def measure_metrics(directory: Path, *, entities: int, rounds: int) -> Iterator[Scrape]:
    """Every queue has a message in each of its partitions."""
    shutil.rmtree(directory, ignore_errors=True)
    settings = Settings(directory / "data", amqp_port=0, http_port=0)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_once(settings))
        fill_catalog(settings.data, lambda catalog: _create(catalog, entities))
        yield from runner.run(_measure(settings, entities, rounds))
    shutil.rmtree(directory)


def _create(catalog: Catalog, entities: int) -> None:
    now_ms = int(time.time() * 1000)
    for number in range(entities):
        description = EntityDescription(f"queue-{number}", EntityOptions(partitioned=True, max_size_mb=5120))
        catalog.create(description, now_ms)


async def _once(settings: Settings) -> None:
    """Have the data directory made."""
    broker = make_broker(settings, asyncio.get_running_loop())
    await broker.start()
    await broker.stop()


async def _measure(settings: Settings, entities: int, rounds: int) -> list[Scrape]:
    broker = make_broker(settings, asyncio.get_running_loop())
    await broker.start()
    try:
        await _fill(broker)
        gc.collect()
        gc.freeze()
        url = f"http://127.0.0.1:{broker.ready['http_port']}/metrics"
        found = []
        for counted in (True, False):
            # Who watches takes every turn that is free: time and cost are of those that nobody watches.
            by_watched: dict[bool, list[Scrape]] = {True: [], False: []}
            for _ in range(rounds):
                for watched in by_watched:
                    if counted:
                        broker.front.measuring.forget()
                    by_watched[watched].append(await _scrape(url, entities, counted=counted, watched=watched))
            found.append(_median(by_watched[False], max(one.stall_ms for one in by_watched[True])))
        return found
    finally:
        await broker.stop()


async def _fill(broker: Broker) -> None:
    loop = asyncio.get_running_loop()
    message = Message(pack(durable=True, properties=encode_properties(), rest=encode_data(b"x" * 200)))
    entities = broker.front.broker
    handles = [partition for queue in entities.namespace for partition in entities.entity_of(queue).route.partitions]
    for first in range(0, len(handles), AT_ONCE):
        some = handles[first : first + AT_ONCE]
        answers = [loop.create_future() for _ in some]
        for handle, answer in zip(some, answers, strict=True):
            handle.submit(Enqueue(entities.numbers.next(), [message]), answer.set_result)
        await asyncio.gather(*answers)


async def _scrape(url: str, entities: int, *, counted: bool, watched: bool) -> Scrape:
    longest_s = 0.0
    running = True

    async def watch() -> None:
        nonlocal longest_s
        since_s = time.thread_time()
        while running:
            await asyncio.sleep(0)
            now_s = time.thread_time()
            longest_s, since_s = max(longest_s, now_s - since_s), now_s

    before_s = time.thread_time()
    watching = asyncio.create_task(watch()) if watched else None
    seconds, series, size_bytes = await asyncio.to_thread(_get, url)
    running = False
    if watching is not None:
        await watching
    return Scrape(
        entities=entities,
        partitions=PARTITIONS,
        counted=counted,
        series=series,
        mib=size_bytes / 2**20,
        answer_ms=seconds * 1e3,
        cpu_ms=(time.thread_time() - before_s) * 1e3,
        stall_ms=longest_s * 1e3,
    )


def _get(url: str) -> tuple[float, int, int]:
    began = time.perf_counter()
    with urlopen(url, timeout=60) as response:
        pieces = []
        while piece := response.read(1 << 20):
            pieces.append(piece)
    seconds = time.perf_counter() - began
    text = b"".join(pieces)
    return seconds, text.count(b"\n"), len(text)


def _median(scrapes: list[Scrape], stall_ms: float) -> Scrape:
    by_time = sorted(scrapes, key=lambda one: one.answer_ms)
    middle = by_time[len(by_time) // 2]
    return Scrape(**(asdict(middle) | {"stall_ms": stall_ms}))
