"""Plays a trial: entities of its own, a process that sends and one that receives, and the cost of the broker."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from typing import Final
from uuid import uuid4

from partibus.advice.profiles import PROFILES
from partibus.bench.load import BenchError
from partibus.bench.measures import cpu_s_when_quiet
from partibus.bench.trial_worker import Order, Report
from partibus.bench.trials import SHAPES, Judged, Measured, Plan, Shape, judge, variants
from partibus.client.admin_http import AdminOverHttp
from partibus.client.errors import ClientError
from partibus.client.extensions.entities import Entities, subscription_path
from partibus.client.extensions.traffic import observe
from partibus.client.sync import connect
from partibus.namespace.connection_string import parse_connection_string

_START_S: Final = 60.0
_SLACK_S: Final = 60.0
"""The time above the limit of a side until it counts as stuck."""
LATE_FACTOR: Final = 4
"""The time limit of receivers, in times of sending: a bad setting may keep them for minutes."""


class _Worker:
    """A process for one side."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._process = subprocess.Popen(
            [sys.executable, "-m", "partibus.bench.trial_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ,
        )
        self.tell(json.dumps(asdict(order)))

    def wait_ready(self) -> None:
        """Wait until the clients are connected. Raises `BenchError` with the process's error."""
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            _, error = self._process.communicate(timeout=_START_S)
            raise BenchError(error.strip().splitlines()[-1] if error.strip() else "a side of a trial did not start")

    def tell(self, line: str) -> None:
        """Write a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def report(self) -> Report:
        """Wait for the result. Raises `BenchError`."""
        try:
            out, error = self._process.communicate(timeout=self._order.seconds * LATE_FACTOR + _SLACK_S)
        except subprocess.TimeoutExpired:
            raise BenchError("a side of a trial did not end; use fewer --seconds") from None
        if self._process.returncode or not out.strip():
            raise BenchError(error.strip().splitlines()[-1] if error.strip() else "a side of a trial failed")
        return Report(**json.loads(out.strip().splitlines()[-1]))

    def stop(self) -> None:
        """Kill the process if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        with suppress(ValueError):
            self._process.communicate()


def play(
    scenario: str,
    connection: str,
    *,
    pid: int | None,
    seconds: float,
    admin: str | None = None,
    size_bytes: int = 1024,
    repeats: int = 1,
    on_run: Callable[[str], None] = lambda label: None,
) -> Judged:
    """Run a scenario with all its variants, and judge it.

    ``pid``: the broker's process, if it is on this machine. ``admin``: the address of the admin API of another service
    than partibus. ``on_run`` gets the label of each run when it begins. The advice runs first and last, so that a
    change of the machine shows. Raises `BenchError` and `ClientError`.
    """
    profile, shape = PROFILES[scenario], SHAPES[scenario]
    found: dict[str, list[Measured]] = {}
    chosen = variants(profile, shape)
    for round_ in range(repeats):
        for variant in (*chosen, chosen[0]) if round_ == repeats - 1 else chosen:
            on_run(variant.label)
            measured = run_once(
                shape, variant.plan, connection, pid=pid, seconds=seconds, admin=admin, size_bytes=size_bytes
            )
            found.setdefault(variant.name, []).append(measured)
    return judge(scenario, found, {variant.name: variant.label for variant in chosen})


def run_once(
    shape: Shape,
    plan: Plan,
    connection: str,
    *,
    pid: int | None,
    seconds: float,
    admin: str | None = None,
    size_bytes: int = 1024,
) -> Measured:
    """Make one run on entities of its own."""
    with ExitStack() as stack:
        to, addresses = stack.enter_context(_entities(connection, shape, plan, admin))
        copies = max(1, shape.subscriptions)
        count = int(shape.work_per_s * shape.receivers * seconds) if shape.backlog else 0
        sending = Order(
            sends=True,
            connection=connection,
            addresses=to,
            clients=shape.senders,
            dedicated=plan.dedicated,
            connections=plan.connections,
            interval_ms=plan.interval_ms,
            overlapping=plan.overlapping,
            per_s=shape.rate_per_s / plan.connections,
            seconds=seconds,
            count=count,
            size_bytes=size_bytes,
        )
        receiving = Order(
            sends=False,
            connection=connection,
            addresses=addresses,
            clients=shape.receivers,
            dedicated=plan.dedicated,
            connections=plan.connections,
            interval_ms=plan.interval_ms,
            prefetch=plan.prefetch,
            per_s=shape.work_per_s / plan.connections,
            seconds=seconds * LATE_FACTOR,
        )
        if shape.backlog:
            sent = _alone(stack, sending)
            cpu_s = None if pid is None else cpu_s_when_quiet(pid)
            receiver = _begun(stack, receiving)
            receiver.tell("go")
        else:
            receiver, sender = _begun(stack, receiving), _begun(stack, sending)
            cpu_s = None if pid is None else cpu_s_when_quiet(pid, 1.0)
            receiver.tell("go")
            sender.tell("go")
            sent = sender.report()
        receiver.tell(str(sent.messages * copies))
        got = receiver.report()
        broker_cpu_s = None if pid is None or cpu_s is None else cpu_s_when_quiet(pid) - cpu_s
        if not got.messages:
            raise BenchError("the receivers of a trial got no message; use more --seconds")
        begun_ns = got.first_ns if shape.backlog else sent.first_ns
        return Measured(
            messages=got.messages,
            seconds=(got.last_ns - begun_ns) / 1e9,
            p50_ms=got.p50_ms,
            p99_ms=got.p99_ms,
            connections=sent.connections + got.connections,
            sender_cpu_s=0.0 if shape.backlog else sent.cpu_s,
            receiver_cpu_s=got.cpu_s,
            broker_cpu_s=broker_cpu_s,
            transmissions=sent.transmissions,
            fills=got.fills,
            expired=_expired(connection, addresses),
            wasted=max(0, got.wasted),
        )


def _begun(stack: ExitStack, order: Order) -> _Worker:
    worker = _Worker(order)
    stack.callback(worker.stop)
    worker.wait_ready()
    return worker


def _alone(stack: ExitStack, order: Order) -> Report:
    worker = _begun(stack, order)
    worker.tell("go")
    return worker.report()


@contextmanager
def _entities(connection: str, shape: Shape, plan: Plan, admin: str | None) -> Iterator[tuple[list[str], list[str]]]:
    """Create the entities of one run; yield the addresses to send to and to receive from."""
    name = f"partibus-trial-{uuid4().hex[:10]}"
    properties: dict[str, object] = {
        "EnablePartitioning": plan.partitioned,
        "EnableBatchedOperations": plan.store_batching,
        "EnableExpress": plan.express,
    }
    lock: dict[str, object] = {"LockDuration": f"PT{shape.lock_s:g}S"}
    names = [f"{name}-{number}" for number in range(shape.queues)]
    made: list[str] = []
    addresses = list(names)
    try:
        with _administration(connection, admin) as entities:
            if shape.subscriptions:
                entities.create_topic(names[0], properties)
                made.append(names[0])
                addresses = []
                batched: dict[str, object] = {"EnableBatchedOperations": plan.store_batching}
                for number in range(shape.subscriptions):
                    entities.create_subscription(names[0], f"s{number}", lock | batched)
                    addresses.append(subscription_path(names[0], f"s{number}"))
            else:
                for queue in names:
                    entities.create_queue(queue, properties | lock)
                    made.append(queue)
        yield names, addresses
    finally:
        with _administration(connection, admin) as entities:
            for queue in made:
                entities.delete(queue)


@contextmanager
def _administration(connection: str, admin: str | None) -> Iterator[Entities | AdminOverHttp]:
    """Yield the administration of a broker: over AMQP of partibus, else over HTTP."""
    if admin is not None:
        yield AdminOverHttp(parse_connection_string(connection), admin)
        return
    with connect(connection) as client:
        yield Entities(client)


def _expired(connection: str, addresses: Sequence[str]) -> int:
    """Return how many locks have expired; 0 where the broker does not tell."""
    with suppress(ClientError), connect(connection) as client:
        found = observe(client).entities
        return sum(found[name].locks_expired for name in addresses if name in found)
    return 0


def machine_load() -> float:
    """Return the mean number of running processes of the last minute per core, without this one's."""
    return max(0.0, os.getloadavg()[0] / (os.cpu_count() or 1))
