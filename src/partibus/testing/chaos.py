"""Brokers, clients that write down what they do, and a nemesis; at the end the rules are held against it all.

`make chaos SEED=7 SECONDS=120`, or ``python -m partibus.testing.chaos 7 120 build/chaos``, prints a verdict and ends
with 1 when a rule was broken. Then the history and the brokers' log are in the directory, and
``python -m partibus.testing.chaos --check FILE`` holds the rules against a history again.
"""

from __future__ import annotations

import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from time import monotonic

from partibus.client import connect
from partibus.testing.broker_process import COMMAND, BrokerProcess
from partibus.testing.history import History, Kind, Operation, read_history
from partibus.testing.history_clients import Receiving, Sending, Worker, WorkingOnSessions, what_is_left
from partibus.testing.history_rules import Queues, Violation, check, forgotten_locks
from partibus.testing.nemesis import WELL_S, Nemesis, Watch, wait_until

BROKERS = 3
QUEUES = Queues("unkeyed", "keyed", "sessions")
UNAVAILABLE_MAX_MS = 10_000
"""The service's own bound is 15 s (docs/loss.md)."""
_LOCK = "PT5S"
"""The shortest that there is: expiry is part of it."""
_DELIVERIES = 1_000
"""Before a message would be dead-lettered: more than there are."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a run."""

    seed: int
    history: History
    violations: list[Violation]
    deeds: list[str]
    forgotten_locks: int

    def __str__(self) -> str:
        count = Counter((one.kind, one.outcome) for one in self.history.operations)
        done = ", ".join(f"{number} {kind} {outcome}" for (kind, outcome), number in sorted(count.items()))
        lines = [
            f"seed {self.seed}: {len(self.deeds)} faults: {'; '.join(self.deeds)}",
            f"{done}; {self.forgotten_locks} locks forgotten with a broker",
            *(f"BROKEN {rule}: {text}" for rule, text in self.violations[:20]),
            f"{len(self.violations)} violations" if self.violations else "every rule holds",
        ]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Stage:
    """Which brokers there are."""

    brokers: int = BROKERS
    arguments: tuple[str, ...] = ()
    """More flags of `partibus serve`."""
    command: tuple[str, ...] = COMMAND
    environment: Mapping[str, str] = field(default_factory=dict)
    patience_s: float = WELL_S
    """How long what is left at the end may take to be received."""


def run(
    seed: int,
    seconds: float,
    folder: Path,
    plan: Sequence[Callable[[Nemesis], str]] = (),
    stage: Stage = Stage(),
) -> Verdict:
    """Clients for so many seconds at least, then quiet until all is received. ``plan``: these deeds and no others,
    instead of what chance brings. Raises `BrokerFailed`, and AssertionError when brokers do not recover."""
    random = Random(seed)
    history = History()
    with BrokerProcess(
        folder,
        arguments=("--brokers", str(stage.brokers), *stage.arguments),
        command=stage.command,
        environment=stage.environment,
    ) as broker:
        settings = {"EnablePartitioning": True, "LockDuration": _LOCK, "MaxDeliveryCount": _DELIVERIES}
        for queue in (QUEUES.unkeyed, QUEUES.keyed):
            broker.create_queue(queue, **settings)
        broker.create_queue(QUEUES.sessions, RequiresSession=True, **settings)
        senders, receivers = _clients(broker, history, random)
        nemesis = Nemesis(broker, QUEUES, history, random)
        watch = Watch(broker, history)
        watch.start()
        for worker in (*senders, *receivers):
            worker.start()
        try:
            _load(history, nemesis, random, seconds, plan)
            _stop(senders)
            nemesis.undo()
            never_came = _receive_the_rest(broker, receivers, stage.patience_s)
        finally:
            _stop([*senders, *receivers])
            watch.stop()
            history.write(folder / "history.jsonl")
        with connect(broker.connection_string) as client:
            for queue in QUEUES:
                what_is_left(client, queue, history)
    history.write(folder / "history.jsonl")
    violations = [*never_came, *check(history.operations, QUEUES, UNAVAILABLE_MAX_MS)]
    return Verdict(seed, history, violations, nemesis.deeds, forgotten_locks(history.operations, QUEUES))


def _clients(broker: BrokerProcess, history: History, random: Random) -> tuple[list[Worker], list[Receiving]]:
    """Senders, receivers. Each has a chance of its own, since threads take turns as they like."""
    where = broker.connection_string

    def chance() -> Random:
        return Random(random.getrandbits(64))

    senders: list[Worker] = [Sending(f"u{n}", where, QUEUES.unkeyed, history, chance()) for n in range(3)]
    for n in range(2):
        keys = [f"k{n}.{key}" for key in range(6)]
        senders.append(Sending(f"k{n}", where, QUEUES.keyed, history, chance(), keys=keys))
        sessions = [f"s{n}.{session}" for session in range(5)]
        senders.append(Sending(f"s{n}", where, QUEUES.sessions, history, chance(), keys=sessions, sessions=True))
    receivers = [Receiving(f"r{n}", where, QUEUES.unkeyed, history, chance()) for n in range(3)]
    receivers.append(Receiving("o", where, QUEUES.keyed, history, chance()))
    receivers += [WorkingOnSessions(f"w{n}", where, QUEUES.sessions, history, chance()) for n in range(3)]
    return senders, receivers


def _load(
    history: History, nemesis: Nemesis, random: Random, seconds: float, plan: Sequence[Callable[[Nemesis], str]]
) -> None:
    pause = threading.Event()
    began_ms = history.now_ms()
    planned = list(plan)
    while True:
        pause.wait(random.uniform(0.3, 1) if plan else random.uniform(0.5, 3))
        if planned:
            nemesis.do(partial(planned.pop(0), nemesis))
        elif history.now_ms() - began_ms >= seconds * 1_000:
            break
        elif not plan:
            nemesis.act()
    history.add(Operation(kind=Kind.LOAD, began_ms=began_ms, ended_ms=history.now_ms()))


def _receive_the_rest(broker: BrokerProcess, receivers: list[Receiving], patience_s: float) -> list[Violation]:
    """Until every queue is empty; names those in which messages stay that nobody gets."""
    for receiver in receivers:
        receiver.calm.set()
    never_came = []
    give_up_s = monotonic() + patience_s
    for queue in QUEUES:
        try:
            wait_until(
                f"every message of '{queue}' is received",
                partial(_is_empty, broker, queue),
                max(1.0, give_up_s - monotonic()),
            )
        except AssertionError as error:
            never_came.append(Violation("never delivered", str(error)))
    return never_came


def _is_empty(broker: BrokerProcess, queue: str) -> bool:
    info = broker.describe(queue)
    return not info.messages and not info.partitions_away


def _stop(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.stopping.set()
    for worker in workers:
        worker.stop()


def main(arguments: list[str]) -> int:
    """The command; answers the exit code."""
    if arguments[:1] == ["--check"]:
        violations = check(read_history(Path(arguments[1])), QUEUES, UNAVAILABLE_MAX_MS)
        sys.stdout.write("".join(f"{rule}: {text}\n" for rule, text in violations) or "every rule holds\n")
        return bool(violations)
    seed, seconds, folder = int(arguments[0]), float(arguments[1]), Path(arguments[2])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    sys.stdout.write(f"seed {seed}, {seconds:g} s, in {folder}\n")
    sys.stdout.flush()
    verdict = run(seed, seconds, folder)
    sys.stdout.write(f"{verdict}\n")
    return bool(verdict.violations)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
