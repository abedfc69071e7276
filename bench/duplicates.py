"""Queues with duplicate detection beside plain ones: with few ids in the window, with as many as come in a window, and
with more than the filter is made for."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.brokers import Partibus, attach, partibus
from bench.fill import fill_ids
from bench.pairs import Pairs, Side, compare
from partibus.bench.measures import median, rss_bytes
from partibus.bench.scenarios import Result, Target, TemporaryBroker, send

WINDOW_S = 600
"""The service's default."""
_MIB = 2**20
_PAIRS_MAX = 3
"""The pairs with each number of ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """Sends to a partition that has many ids in its window."""

    scenario: str = "filled"
    ids: int
    messages: int
    """Per run."""
    restarted_per_s: float
    """The first run after a start, while the ids of the time before are read."""
    restarted_cpu_us: float | None
    send_per_s: float
    plain_per_s: float
    """The rate to a plain queue, in turn with the former."""
    rate_ratio: float
    cpu_us: float
    plain_cpu_us: float
    resident_mib: float

    def as_dict(self) -> dict[str, object]:
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(self).items()}


def measure_duplicates(
    directory: Path, program: Path, *, pairs: int, count: int, sustained: int, ids: Sequence[int]
) -> Iterator[Pairs | Filled]:
    """``sustained`` messages in one run fill several windows of 20 s; ``ids`` are in the window of 10 minutes."""
    with partibus(directory, program) as peer:
        yield from compare("duplicates", "duplicates", *_sides(peer, "duplicates"), pairs=pairs, count=count)
        if sustained:
            kind = "duplicates, 20 s"
            yield from compare("duplicates", kind, *_sides(peer, kind), pairs=1, count=sustained, runs=("send",))
    shutil.rmtree(directory)
    for number in ids:
        yield _filled(directory, program, number, pairs=min(pairs, _PAIRS_MAX), count=count)
        shutil.rmtree(directory)


def _sides(peer: Partibus, kind: str) -> tuple[Side, Side]:
    generator = peer.foreign.with_ids()
    return Side(lambda: peer.queue("plain"), generator), Side(lambda: peer.queue(kind), generator)


def _filled(directory: Path, program: Path, ids: int, *, pairs: int, count: int) -> Filled:
    shutil.rmtree(directory, ignore_errors=True)
    with TemporaryBroker(directory) as broker:
        peer = attach(broker, program)
        target, plain = peer.queue("duplicates"), peer.queue("plain")
        broker.stop()
        fill_ids(directory / "data", target.address, ids, WINDOW_S * 1000)
        broker.start()
        generator = attach(broker, program).foreign.with_ids()

        def once(queue: Target) -> Result:
            return send(queue._replace(pid=broker.pid), generator, count=count)

        restarted = once(target)
        found = [(once(plain), once(target)) for _ in range(pairs)]
        resident_mib = rss_bytes(broker.pid) / _MIB
    rates = [(base.send_per_s or 0.0, other.send_per_s or 0.0) for base, other in found]
    return Filled(
        ids=ids,
        messages=count,
        restarted_per_s=restarted.send_per_s or 0.0,
        restarted_cpu_us=restarted.cpu_us,
        send_per_s=median([other for _, other in rates]),
        plain_per_s=median([base for base, _ in rates]),
        rate_ratio=median([other / base for base, other in rates]),
        cpu_us=median([other.cpu_us or 0.0 for _, other in found]),
        plain_cpu_us=median([base.cpu_us or 0.0 for base, _ in found]),
        resident_mib=resident_mib,
    )
