"""SQS: calls and messages a second of 16 connections, answers at a fixed rate, long polls, and a split under load.

    python -m bench.sqs [PART ...]    (or: python -m bench --only sqs)

The client runs on the same machine. So CPU of the broker per call tells more than calls per second.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

from bench.holds import Watched
from bench.sqs_load import Connections
from partibus.bench.load import BenchError
from partibus.bench.measures import cpu_s, cpu_s_when_quiet, median, percentiles, rss_bytes
from partibus.bench.scenarios import TemporaryBroker
from partibus.client.extensions.cluster import Partitions
from partibus.namespace.connection_string import parse_connection_string
from tests.kit.plain_client import connect
from tests.kit.sqs_requests import Signer

CALLING_CONNECTIONS = 16
CONNECTIONS = 8
"""The connections of the other parts."""
ROUNDS = 3
CALLS = 3_000
BATCH = 10
BODY = "x" * 1024
GROUPS = 1_000
RATE = 500
WORK_US = 500
"""About what the broker computes for a send that is a commit of its own."""
LATENCY_S = 10.0
POLLS = 1_000
POLL_S = 20
"""The length of each poll; the broker ends it 0.3 s early."""
POLLS_S = 25.0
"""How long they are watched: more than a poll of each connection."""
IDLE_S = 10.0
ANSWERS = 200
SPLIT_S = 25.0
_HIGH = {"FifoQueue": "true", "DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """The median of rounds of one kind of call, with one call under way on each connection."""

    scenario: str = "sqs"
    what: str
    connections: int
    calls: int
    """Per round."""
    calls_per_s: float
    messages_per_s: float
    cpu_us: float
    """CPU time of the broker, user and system, per call."""
    message_cpu_us: float
    cores: float
    """That the broker used meanwhile."""

    def as_dict(self) -> dict[str, object]:
        return _rounded(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The other work of the machine."""

    scenario: str = "sqs load"
    load: float
    """The average number of running programs in the minute before."""

    def as_dict(self) -> dict[str, object]:
        return _rounded(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Answers to single sends that begin at a fixed rate, from the time at which they are due."""

    scenario: str = "sqs latency"
    """The server: a broker, or the program `bench.sync_server`; for `sqs machine` that one computes, too."""
    rate: int
    latency_ms: dict[str, float]
    cpu_us: float

    def as_dict(self) -> dict[str, object]:
        return _rounded(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Polls:
    """Long polls of one queue that wait, each one on a connection of its own and asked again when it ends."""

    scenario: str = "sqs polls"
    polls: int
    cpu_share: float
    """The share of a core, beside that of the idle broker before."""
    mib: float
    """Resident memory beside that before."""
    answer_ms: dict[str, float]
    """Time from the begin of a send to the answer of one of them."""

    def as_dict(self) -> dict[str, object]:
        return _rounded(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A FIFO queue of high throughput under batches of ten from eight connections, from its first message."""

    scenario: str = "sqs split"
    partitions: int
    """That own slots at the end; one did at the begin."""
    requests: int
    latency_ms: dict[str, float]
    held_ms: float
    """The longest processor time of one call on the broker's loop, in a second run."""

    def as_dict(self) -> dict[str, object]:
        return _rounded(asdict(self))


def _rounded(row: dict[str, Any]) -> dict[str, object]:
    return {
        key: _rounded(value) if isinstance(value, dict) else round(value, 3) if isinstance(value, float) else value
        for key, value in row.items()
    }


class Bench:
    """A broker with queues, and a client."""

    def __init__(self, ready: Mapping[str, Any], directory: Path) -> None:
        """``ready``: the content of the broker's ready file. ``directory``: where the broker's files are."""
        self.directory = directory
        self.connection = str(ready["connection_string"])
        login = parse_connection_string(self.connection)
        self.pid = int(ready["pid"])
        self.port = int(ready["sqs_port"])
        self._signer = Signer(self.port, login.key_name, login.key)
        self._numbers = count(1)
        self.standard = self.create("standard")
        self.fifo = self.create("fifo.fifo", {"FifoQueue": "true"})

    def create(self, name: str, attributes: dict[str, str] | None = None) -> str:
        """Make a queue; return its URL."""
        with Connections(self.port, 1) as connections:
            answer = connections.call(self.request("CreateQueue", QueueName=name, Attributes=attributes or {}))
        return str(json.loads(answer)["QueueUrl"])

    def request(self, action: str, **members: object) -> bytes:
        return self._signer.request(action, members)

    def send(self, url: str) -> bytes:
        """A send of one message."""
        number = next(self._numbers)
        return self.request("SendMessage", QueueUrl=url, MessageBody=BODY, **self._grouped(url, number, 0))

    def send_batch(self, url: str) -> bytes:
        """A send of ten messages, of one group on a FIFO queue."""
        number = next(self._numbers)
        entries = [{"Id": str(n), "MessageBody": BODY, **self._grouped(url, number, n)} for n in range(BATCH)]
        return self.request("SendMessageBatch", QueueUrl=url, Entries=entries)

    @staticmethod
    def _grouped(url: str, number: int, entry: int) -> dict[str, str]:
        if not url.endswith(".fifo"):
            return {}
        return {"MessageGroupId": f"g{number % GROUPS}", "MessageDeduplicationId": f"{number}-{entry}"}

    def receive(self, url: str, wait_s: int = 1, most: int = BATCH) -> bytes:
        return self.request("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=most, WaitTimeSeconds=wait_s)

    def delete(self, url: str, received: bytes) -> bytes | None:
        """A delete of what a receive gave; None if that was nothing."""
        messages = json.loads(received).get("Messages", ())
        if not messages:
            return None
        entries = [{"Id": str(n), "ReceiptHandle": one["ReceiptHandle"]} for n, one in enumerate(messages)]
        return self.request("DeleteMessageBatch", QueueUrl=url, Entries=entries)


Row = Load | Calls | Latency | Polls | Split


def measure_sqs(directory: Path, parts: tuple[str, ...] = ()) -> Iterator[Row]:
    """Measure all parts, or some: calls, latency, polls, split."""
    shutil.rmtree(directory, ignore_errors=True)
    yield Load(load=os.getloadavg()[0])
    measures: dict[str, Callable[[Bench], Iterator[Row]]] = {
        "calls": _calls, "latency": _latency, "polls": _polls, "split": _split,
    }  # fmt: skip
    for name, measure in measures.items():
        if name in (parts or measures):
            with TemporaryBroker(directory / name, arguments=("--sqs-port", "0")) as broker:
                yield from measure(Bench(broker.ready, directory / name))
    shutil.rmtree(directory)


# -- calls a second ----------------------------------------------------------------------------------------------------


def _calls(bench: Bench) -> Iterator[Calls]:
    standard, fifo = bench.standard, bench.fifo
    one = bench.send(standard)
    ten = bench.send_batch(standard)
    yield _sends(bench, "SendMessage", lambda: one, CALLS, 1)
    yield _sends(bench, "SendMessageBatch of 10", lambda: ten, CALLS // 3, BATCH)
    yield _receives(bench, "ReceiveMessage of 10, DeleteMessageBatch", standard, CALLS // 3)
    yield _sends(bench, "SendMessage, FIFO", lambda: bench.send(fifo), CALLS // 2, 1)
    yield _sends(bench, "SendMessageBatch of 10, FIFO", lambda: bench.send_batch(fifo), CALLS // 6, BATCH)
    yield _receives(bench, "ReceiveMessage of 10, DeleteMessageBatch, FIFO", fifo, CALLS // 6)


def _sends(bench: Bench, what: str, make: Callable[[], bytes], calls: int, messages: int) -> Calls:
    """Send; requests are made while others are under way."""
    with Connections(bench.port, CALLING_CONNECTIONS) as connections:

        def run(most: int) -> int:
            left = most

            def following(_: int, answer: bytes) -> bytes | None:
                nonlocal left
                if b'"Failed"' in answer:
                    raise BenchError(f"the broker has refused a part: {answer.decode()[:500]}")
                left -= 1
                return make() if left >= CALLING_CONNECTIONS else None

            connections.run([make() for _ in range(CALLING_CONNECTIONS)], following)
            return most

        run(calls // 10)
        return _measured(bench, what, calls, lambda: (run(calls), calls * messages))


def _receives(bench: Bench, what: str, url: str, calls: int) -> Calls:
    """Receive and delete by ten until so many of both calls were made, or the queue is empty."""
    with Connections(bench.port, CALLING_CONNECTIONS) as connections:
        receive = bench.receive(url)

        def run(most: int) -> tuple[int, int]:
            made = messages = 0
            is_delete = [False] * CALLING_CONNECTIONS

            def following(number: int, answer: bytes) -> bytes | None:
                nonlocal made, messages
                made += 1
                if not is_delete[number]:
                    request = bench.delete(url, answer)
                    is_delete[number] = request is not None
                    return request
                is_delete[number] = False
                messages += BATCH
                return receive if made < most else None

            connections.run([receive] * CALLING_CONNECTIONS, following)
            return made, messages

        run(calls // 10)
        return _measured(bench, what, calls, lambda: run(calls))


def _measured(bench: Bench, what: str, calls: int, run: Callable[[], tuple[int, int]]) -> Calls:
    rounds = []
    for _ in range(ROUNDS):
        before_s, began_s = cpu_s_when_quiet(bench.pid), time.perf_counter()
        made, messages = run()
        took_s = time.perf_counter() - began_s
        used_s = cpu_s_when_quiet(bench.pid) - before_s
        rounds.append((made / took_s, messages / took_s, used_s / made * 1e6, used_s / messages * 1e6, used_s / took_s))
    calls_per_s, messages_per_s, cpu_us, message_cpu_us, cores = (
        median(values) for values in zip(*rounds, strict=True)
    )
    return Calls(
        what=what,
        connections=CALLING_CONNECTIONS,
        calls=calls,
        calls_per_s=calls_per_s,
        messages_per_s=messages_per_s,
        cpu_us=cpu_us,
        message_cpu_us=message_cpu_us,
        cores=cores,
    )


# -- at a fixed rate ---------------------------------------------------------------------------------------------------


def _latency(bench: Bench) -> Iterator[Latency]:
    request = bench.send(bench.standard)
    yield _at_rate("sqs latency", bench.port, bench.pid, request)
    with tempfile.TemporaryDirectory(dir=bench.directory) as folder:  # on the disk of the broker's store
        for scenario, work_us in (("sqs disk", 0), ("sqs machine", WORK_US)):
            command = (sys.executable, "-m", "bench.sync_server", f"{folder}/synced", str(work_us))
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
                try:
                    assert server.stdout is not None, "a pipe"
                    yield _at_rate(scenario, int(server.stdout.readline()), server.pid, request)
                finally:
                    server.kill()


def _at_rate(scenario: str, port: int, pid: int, request: bytes) -> Latency:
    with Connections(port, CONNECTIONS) as connections:
        _paced(connections, request, 1.0)
        before_s = cpu_s_when_quiet(pid)
        found = _paced(connections, request, LATENCY_S)
        used_s = cpu_s_when_quiet(pid) - before_s
    return Latency(
        scenario=scenario, rate=RATE, latency_ms=percentiles(found)._asdict(), cpu_us=used_s / len(found) * 1e6
    )


def _paced(connections: Connections, request: bytes, seconds: float) -> list[float]:
    """Send at the rate on whichever connection is free; return ms from when each send was due."""
    found: list[float] = []
    free = list(range(CONNECTIONS))
    due_s: dict[int, float] = {}
    began_s, begun, total = time.perf_counter(), 0, round(RATE * seconds)
    while len(found) < total:
        now_s = time.perf_counter()
        next_s = began_s + begun / RATE
        while free and begun < total and next_s <= now_s:
            number = free.pop()
            due_s[number] = next_s
            connections.send(number, request)
            begun += 1
            next_s = began_s + begun / RATE
        wait_s = max(0.0, next_s - time.perf_counter()) if free and begun < total else 1.0
        for number, _ in connections.answers(wait_s):
            found.append((time.perf_counter() - due_s[number]) * 1000)
            free.append(number)
    return found


# -- long polls --------------------------------------------------------------------------------------------------------


def _polls(bench: Bench) -> Iterator[Polls]:
    url = bench.create("polled")
    pid = bench.pid
    with Connections(bench.port, 1) as warm:
        warm.call(bench.send(url))
        warm.call(bench.receive(url, 0))
        before_s, began_s = cpu_s_when_quiet(pid), time.perf_counter()
        time.sleep(IDLE_S)
        idle_share = (cpu_s(pid) - before_s) / (time.perf_counter() - began_s)
        before_bytes = rss_bytes(pid)
        with Connections(bench.port, 0) as connections:
            for number in range(POLLS):  # over a whole poll's time, so that they do not end together
                connections.add()
                connections.send(number, bench.receive(url, POLL_S, 1))
                _again(bench, connections, url, POLL_S / POLLS)
            before_s, began_s = cpu_s(pid), time.perf_counter()
            while (left_s := began_s + POLLS_S - time.perf_counter()) > 0:
                _again(bench, connections, url, left_s)
            share = (cpu_s(pid) - before_s) / (time.perf_counter() - began_s) - idle_share
            grown_bytes = rss_bytes(pid) - before_bytes
            found = _answered(bench, connections, url)
    yield Polls(polls=POLLS, cpu_share=share, mib=grown_bytes / 2**20, answer_ms=percentiles(found)._asdict())


def _answered(bench: Bench, polls: Connections, url: str) -> list[float]:
    """Return ms from the begin of a send to the answer of a poll, again and again."""
    found = []
    send = bench.send(url)
    with Connections(bench.port, 1) as sender:
        for _ in range(ANSWERS):
            began_s = time.perf_counter()
            sender.send(0, send)
            while not any(b"Messages" in body for body in _again(bench, polls, url, 1.0)):
                pass
            found.append((time.perf_counter() - began_s) * 1000)
            while not sender.answers(1.0):
                pass
    return found


def _again(bench: Bench, connections: Connections, url: str, wait_s: float) -> list[bytes]:
    """Wait for answers; ask again on their connections."""
    answers = connections.answers(wait_s)
    if answers:
        request = bench.receive(url, POLL_S, 1)
        for number, _ in answers:
            connections.send(number, request)
    return [body for _, body in answers]


# -- a split -----------------------------------------------------------------------------------------------------------


def _split(bench: Bench) -> Iterator[Split]:
    found, partitions = _split_under_load(bench)
    with tempfile.TemporaryDirectory() as folder:
        watched = Watched(Path(folder) / "held")
        with watched.broker as broker:
            again = Bench(broker.ready, Path(folder))
            watched.longest()
            _split_under_load(again)
            held_ms, _ = watched.longest()
    yield Split(partitions=partitions, requests=len(found), latency_ms=percentiles(found)._asdict(), held_ms=held_ms)


def _split_under_load(bench: Bench) -> tuple[list[float], int]:
    """Return ms of each request, and the partitions at the end."""
    url = bench.create("split.fifo", _HIGH)
    found: list[float] = []
    with Connections(bench.port, CONNECTIONS) as connections:
        ends_s = time.perf_counter() + SPLIT_S
        sent_s = [0.0] * CONNECTIONS

        def following(number: int, answer: bytes) -> bytes | None:
            now_s = time.perf_counter()
            found.append((now_s - sent_s[number]) * 1000)
            if b'"Failed"' in answer:
                raise BenchError(f"the broker has refused a part: {answer.decode()[:500]}")
            if now_s >= ends_s:
                return None
            request = bench.send_batch(url)
            sent_s[number] = time.perf_counter()
            return request

        requests = [bench.send_batch(url) for _ in range(CONNECTIONS)]
        sent_s = [time.perf_counter()] * CONNECTIONS
        connections.run(requests, following)
    with connect(bench.connection) as client:
        shown: dict[str, Any] = Partitions(client).of("split.fifo")
    return found, sum(bool(one["slots"]) for one in shown["partitions"])


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        for row in measure_sqs(Path(folder) / "sqs", tuple(sys.argv[1:])):
            print(json.dumps(row.as_dict()), flush=True)


if __name__ == "__main__":
    main()
