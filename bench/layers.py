"""Where the processor time of a message goes, by layer. `python -m bench.layers REPORT serve ...` is the broker.

The broker wraps the functions at which a batch of messages passes from one layer to the next. Each gets the processor
time of its thread without what the wrapped functions inside it take. At SIGUSR2 the broker writes the sums to REPORT.
The rest of the processor time goes to the loop, the sockets and the hand-over between threads.

A floor is what the cheapest Python program would take for the same bytes: it keeps no state and checks nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import wraps
from importlib import import_module
from pathlib import Path
from threading import local
from typing import Any

from bench.held_broker import tell
from bench.proton import ProtonGenerator
from partibus.bench.load import BenchError
from partibus.bench.scenarios import Result, Target, receive, send
from partibus.namespace.connection_string import parse_connection_string
from partibus.testing.broker_process import BrokerProcess

FRONT, PARTITION = "partibus.frontends.amqp", "partibus.partition"
LAYERS: Mapping[str, tuple[str, ...]] = {
    "decode": ("partibus.amqp.connection:Connection.receive_data",),
    "ingress": (f"{FRONT}.incoming:IncomingLink.on_deliveries",),
    "route": (f"{FRONT}.incoming:IncomingLink._go_on", f"{FRONT}.outgoing:OutgoingLink.on_credit"),
    "settlements": (f"{FRONT}.settling:Settlements.on_disposed", f"{FRONT}.link_context:Completions.flush"),
    "runtime": (
        f"{PARTITION}.runtime.store_runtime:StoreRuntime.submit",
        f"{PARTITION}.runtime.commits:Commits.start",
        f"{PARTITION}.runtime.commits:Commits._committed",
    ),
    "machine": (f"{PARTITION}.core.machine:Partition.handle",),
    "journal": (f"{PARTITION}.runtime.commits:Commits.record",),
    "SQLite: commits": ("partibus.store.sqlite.store:SQLiteStore.commit",),
    "SQLite: loads": ("partibus.store.sqlite.store:SQLiteStore.read",),
    "SQLite: checkpoints": ("partibus.store.sqlite.checkpoint:Checkpoints._run",),
    "deliveries": (f"{FRONT}.outgoing:OutgoingLink._on_granted",),
    "replies": (f"{FRONT}.incoming:IncomingLink._finish", f"{FRONT}.settling:Settlements._answer"),
    "writes to the socket": (f"{FRONT}.server:PeerProtocol._flush",),
}
"""Layer -> the functions at which it begins, in the order of the route."""
REST = "the loop, reads, hand-overs"
_SIZE_BYTES = 1024
_BATCH = 1_000
"""Messages that the floor of the store appends with one sync."""
_ANSWER_S = 30
"""How long a broker may take to write its sums."""
_POLL_S = 0.005
"""The interval of looks for the report: a signal has no answer."""


@dataclass(frozen=True)
class Layer:
    """``us``: processor time of the broker per message."""

    run: str
    """``send`` or ``receive``."""
    layer: str
    us: float
    floor_us: float | None = None
    scenario: str = "layers"

    def as_dict(self) -> dict[str, object]:
        row = asdict(self) | {"us": round(self.us, 2)}
        if self.floor_us is not None:
            row["floor_us"] = round(self.floor_us, 2)
        return {key: value for key, value in row.items() if value is not None}


def measure_layers(directory: Path, program: Path, *, count: int) -> Iterator[Layer]:
    """Send ``count`` messages of 1 KB into a plain queue, then receive and settle them."""
    shutil.rmtree(directory, ignore_errors=True)
    (folder := directory / "broker").mkdir(parents=True)
    report = directory / "layers.json"
    floors = {"send": _floors_of_a_send(directory), "receive": {"deliveries": _floor_of_a_delivery()}}
    with BrokerProcess(folder, command=(sys.executable, "-m", "bench.layers", str(report))) as broker:
        broker.create_queue("layers", MaxSizeInMegabytes=5120)
        login = parse_connection_string(broker.connection_string)
        pid = int(broker.ready["pid"])
        generator = ProtonGenerator(program, int(broker.ready["amqp_port"]), login.key_name, login.key)
        target = Target("partibus", "plain", "layers", pid)
        for run in (send, receive):  # what is made on first use is there
            run(target, generator, count=_BATCH)
        for name, run in (("send", send), ("receive", receive)):
            _sums(report, pid)
            result: Result = run(target, generator, count=count)
            spent = {layer: ns / count / 1e3 for layer, ns in _sums(report, pid).items()}
            spent[REST] = (result.cpu_us or 0.0) - sum(spent.values())
            for layer in (*LAYERS, REST):
                if layer in spent:
                    yield Layer(name, layer, spent[layer], floors[name].get(layer))
    shutil.rmtree(directory)


def _sums(report: Path, pid: int) -> dict[str, int]:
    """Return the sums since the last call, in ns by layer."""
    report.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR2)
    deadline = time.monotonic() + _ANSWER_S
    while not report.exists():
        if time.monotonic() > deadline:
            raise BenchError(f"broker {pid} did not write {report} within {_ANSWER_S} s of SIGUSR2: has it ended?")
        time.sleep(_POLL_S)
    found: dict[str, int] = json.loads(report.read_text())
    return found


# The floors -----------------------------------------------------------------------------------------------------------


def _floors_of_a_send(directory: Path) -> dict[str, float]:
    """Return the floors: a slice of each frame after its size is read, and a file that only grows."""
    frame = struct.pack(">I4s12s", 20 + _SIZE_BYTES, b"head", b"transfer") + b"x" * _SIZE_BYTES
    data, read_head = frame * _BATCH, struct.Struct(">I4s12s").unpack_from

    def decode() -> list[bytes]:
        at, bodies = 0, []
        while at < len(data):
            size, _, _ = read_head(data, at)
            bodies.append(data[at + 20 : at + size])
            at += size
        return bodies

    parts = decode()
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:

        def append() -> None:
            file.write(b"".join(parts))
            os.fdatasync(file.fileno())

        return {"decode": _least_us(decode), "SQLite: commits": _least_us(append)}


def _floor_of_a_delivery() -> float:
    """Return the floor: a head of each message is packed, and head and body go to the socket."""
    pack, body = struct.Struct(">I4sI16sI").pack, b"x" * _SIZE_BYTES
    ours, theirs = socket.socketpair()

    def deliver() -> None:
        parts: list[bytes] = []
        for number in range(_BATCH // 10):
            parts += (pack(32 + _SIZE_BYTES, b"head", number, b"tag", 0), body)
        ours.sendall(b"".join(parts))

    def drain() -> None:
        left = (_BATCH // 10) * (32 + _SIZE_BYTES)
        while left:
            left -= len(theirs.recv(1 << 20))

    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        return 10 * _least_us(deliver, drain)


def _least_us(work: Callable[[], object], between: Callable[[], object] = lambda: None) -> float:
    """Return the processor time of ``work`` for one of its messages, the least of some runs."""
    found = []
    for _ in range(20):
        began_ns = time.thread_time_ns()
        work()
        found.append(time.thread_time_ns() - began_ns)
        between()
    return min(found) / _BATCH / 1e3


# The broker -----------------------------------------------------------------------------------------------------------


class Sums:
    """The processor time of each layer, over all threads."""

    def __init__(self, now_ns: Callable[[], int] = time.thread_time_ns) -> None:
        """Count by ``now_ns``, the processor time of the calling thread."""
        self._now_ns = now_ns
        self._threads = local()
        self._all: list[Counter[str]] = []

    def wrap(self, function: Callable[..., Any], layer: str) -> Callable[..., Any]:
        """Return the function with its time counted for ``layer``, and no longer for the layer that calls it."""
        now, threads = self._now_ns, self._threads

        @wraps(function)
        def counted(*arguments: Any, **named: Any) -> Any:
            if not hasattr(threads, "open"):
                threads.open, threads.since, threads.sums = [], 0, Counter()
                self._all.append(threads.sums)
            self._switch(now())
            threads.open.append(layer)
            try:
                return function(*arguments, **named)
            finally:
                self._switch(now())
                threads.open.pop()

        return counted

    def _switch(self, now_ns: int) -> None:
        threads = self._threads
        if threads.open:
            threads.sums[threads.open[-1]] += now_ns - threads.since
        threads.since = now_ns

    def take(self) -> dict[str, int]:
        """Return the sums, and begin anew."""
        found: Counter[str] = Counter()
        for sums in self._all:
            found.update(sums)
            sums.clear()
        return dict(found)


def function_at(place: str) -> tuple[type, str]:
    """Return the class and the method that ``module:Class.method`` names."""
    module, _, name = place.partition(":")
    owner, _, method = name.partition(".")
    return getattr(import_module(module), owner), method


def main(arguments: list[str]) -> None:
    sums, report = Sums(), Path(arguments[0])
    for layer, functions in LAYERS.items():
        for place in functions:
            owner, method = function_at(place)
            setattr(owner, method, sums.wrap(getattr(owner, method), layer))
    signal.signal(signal.SIGUSR2, lambda *_: tell(report, sums.take()))
    from partibus.cli.main import main as run

    sys.argv[1:] = arguments[1:]
    run()


if __name__ == "__main__":
    main(sys.argv[1:])
