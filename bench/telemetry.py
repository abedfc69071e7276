"""The cost of telemetry: the same messages through a broker without, with one in a hundred recorded, and with all."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.brokers import Partibus, attach
from bench.pairs import Pairs, Side, compare
from partibus.bench.measures import cpu_s_when_quiet
from partibus.bench.scenarios import TemporaryBroker, receive, send
from partibus.message import Message
from partibus.partition.protocol.keys import Entry
from partibus.partition.protocol.notes import COMPLETE, DELIVER, SEND
from partibus.telemetry.recorder import PackedRecorder

SAMPLE = 0.01
MODES = {
    "sampled": ("--telemetry", "sampled", "--telemetry-sample", f"{SAMPLE}"),
    "full": ("--telemetry", "full"),
}


BATCHES = (1, 10, 50)
PACKED = 10_000
ROUNDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterCost:
    """The CPU of the writer, a process of its own at a low priority."""

    scenario: str = "telemetry writer"
    mode: str
    messages: int
    """Sent, delivered and completed, each."""
    cpu_us: float
    """Per message."""
    bytes_per_message: float
    """Bytes in files."""

    def as_dict(self) -> dict[str, object]:
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(self).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """The broker's cost of recording alone, in the best of several rounds.

    It is less than pairs of runs can tell on a machine that does other things, too.
    """

    scenario: str = "telemetry packing"
    mode: str
    batch: int
    """Messages that were sent, delivered or completed together."""
    cpu_us: float
    """Per message: one that is sent, delivered and completed."""

    def as_dict(self) -> dict[str, object]:
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(self).items()}


def measure_telemetry(
    directory: Path, program: Path, *, pairs: int, count: int
) -> Iterator[Packing | Pairs | WriterCost]:
    """Recording alone; a plain and a partitioned queue, one connection; what the writer needs."""
    for mode in MODES:
        for batch in BATCHES:
            yield _packing(mode, batch)
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


def _packing(mode: str, batch: int) -> Packing:
    recorder = PackedRecorder(SAMPLE if mode == "sampled" else None)
    recorder.on_full = recorder.buffer.clear
    store = recorder.of_store()
    sent = []
    for start in range(0, PACKED, batch):
        messages = [Message(bytes(200), partition_key=f"key-{number % 100}") for number in range(start, start + batch)]
        entries = [
            Entry(start + n, 1, start + n, 1_900_000_000_000, 0, None, None, 200, message.data)
            for n, message in enumerate(messages)
        ]
        sent.append((entries, messages))
    best_s = float("inf")
    for _ in range(ROUNDS):
        began_s = time.process_time()
        for entries, messages in sent:
            store.noted(1, [(SEND, 0, entries, messages)], 1_900_000_000_000, 1)
            store.noted(1, [(DELIVER, 0, entries, None)], 1_900_000_000_000, 2)
            store.noted(1, [(COMPLETE, 0, entries, None)], 1_900_000_000_000, 3)
        best_s = min(best_s, time.process_time() - began_s)
    return Packing(mode=mode, batch=batch, cpu_us=best_s / PACKED * 1e6)


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
