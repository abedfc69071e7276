"""What telemetry costs: the same messages through a broker without, with one in a hundred recorded, and with all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.brokers import Partibus, attach
from bench.pairs import Pairs, Side, compare
from partibus.bench.process import cpu_s_when_quiet
from partibus.bench.scenarios import receive, send
from partibus.bench.temporary import TemporaryBroker

MODES = {
    "sampled": ("--telemetry", "sampled", "--telemetry-sample", "0.01"),
    "full": ("--telemetry", "full"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterCost:
    """What the writer, a process of its own at a low priority, takes besides."""

    scenario: str = "telemetry writer"
    mode: str
    messages: int
    """Sent, delivered and completed, each."""
    cpu_us: float
    """Per message."""
    bytes_per_message: float
    """In files."""

    def as_dict(self) -> dict[str, object]:
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(self).items()}


def measure_telemetry(directory: Path, program: Path, *, pairs: int, count: int) -> Iterator[Pairs | WriterCost]:
    """A plain and a partitioned queue, one connection; then what the writer needs."""
    shutil.rmtree(directory, ignore_errors=True)
    with ExitStack() as stack:
        brokers = {"off": TemporaryBroker(directory / "off")}
        for mode, arguments in MODES.items():
            brokers[mode] = TemporaryBroker(directory / mode, arguments=(*arguments, "--telemetry-roll", "1s"))
        peers = {mode: attach(stack.enter_context(broker), program) for mode, broker in brokers.items()}
        for kind in ("plain", "partitioned"):
            for mode in MODES:
                what = f"telemetry, {mode}"
                yield from compare(
                    what, kind, _side(peers["off"], kind), _side(peers[mode], kind), pairs=pairs, count=count
                )
        for mode in MODES:
            yield _writer_cost(peers[mode], mode, directory / mode / "data" / "telemetry", count)
    shutil.rmtree(directory)


def _side(peer: Partibus, kind: str) -> Side:
    return Side(lambda: peer.queue(kind), peer.foreign)


def _writer_cost(peer: Partibus, mode: str, folder: Path, count: int) -> WriterCost:
    pid = _child_of(peer.broker.pid)
    target = peer.queue("partitioned")
    cpu_before_s, bytes_before = cpu_s_when_quiet(pid), _bytes_in(folder)
    send(target, peer.foreign, count=count)
    receive(target, peer.foreign, count=count)
    cpu_s = cpu_s_when_quiet(pid, 10.0) - cpu_before_s
    return WriterCost(
        mode=mode,
        messages=count,
        cpu_us=cpu_s / count * 1e6,
        bytes_per_message=(_bytes_in(folder) - bytes_before) / count,
    )


def _child_of(pid: int) -> int:
    """The only one of a broker that is alone."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.parquet"))
