"""Brokers, clients that write down what they do, and a nemesis; at the end the rules are held against it all.

`make chaos SEED=7 SECONDS=120`, or ``python -m tests.kit.chaos 7 120 build/chaos``, prints a verdict and ends with 1
when a rule was broken. Then the history and the brokers' log are in the directory, and ``python -m tests.kit.chaos
--check FILE`` holds the rules against a history again.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

from msgspec import structs

from partibus.client.errors import ClientError
from partibus.clock import SystemClock
from partibus.namespace.connection_string import parse_connection_string
from partibus.namespace.durations import format_duration
from partibus.testing.broker_process import BrokerProcess
from tests.kit import altered_broker
from tests.kit.eventually import EVENTUALLY_S
from tests.kit.fault_proxy import FaultProxy
from tests.kit.history import History, Kind, Operation, add_epochs, read_history
from tests.kit.history_clients import Receiving, Sending, Worker, WorkingOnSessions, what_is_left
from tests.kit.history_process import RECEIVING, SENDING, SENDING_TO_SESSIONS, ClientProcess
from tests.kit.history_rules import Queues, Violation, check, forgotten_locks
from tests.kit.nemesis import Nemesis, Watch
from tests.kit.nemesis_database import Pair
from tests.kit.nemesis_ways import BadWays
from tests.kit.network_namespace import NetworkNamespace
from tests.kit.plain_client import connect
from tests.kit.postgresql_server import programs_of_system

BROKERS = 3
QUEUES = Queues("unkeyed", "keyed", "sessions")
UNAVAILABLE_MAX_MS = 10_000
"""The service's own bound is 15 s (docs/loss.md)."""
_LOCK_MS = 5_000
"""The shortest that there is: expiry is part of it."""
_LOOK_S = 0.1
NOTED_MIN = 0.9
"""The least share of deliveries that are noted. A process that is killed while it writes a note loses it."""
_DELIVERIES = 1_000
"""The deliveries before a message would be dead-lettered: more than there are."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The results of a run."""

    seed: int
    history: History
    violations: list[Violation]
    deeds: list[str]
    forgotten_locks: int
    judged: tuple[int, int]
    """How many deliveries have the epoch of their owner, and how many there are."""

    def __str__(self) -> str:
        count = Counter((one.kind, one.outcome) for one in self.history.operations)
        done = ", ".join(f"{number} {kind} {outcome}" for (kind, outcome), number in sorted(count.items()))
        lines = [
            f"seed {self.seed}: {len(self.deeds)} faults: {'; '.join(self.deeds)}",
            f"{done}; {self.forgotten_locks} locks forgotten with a broker",
            "owners noted the epochs of {} deliveries of {}".format(*self.judged),
            *(f"BROKEN {rule}: {text}" for rule, text in self.violations[:20]),
            f"{len(self.violations)} violations" if self.violations else "every rule holds",
        ]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Stage:
    """The brokers of a run."""

    brokers: int = BROKERS
    arguments: tuple[str, ...] = ()
    """More flags of `partibus serve`."""
    altered: str = ""
    """How the brokers differ from real ones (`tests.kit.altered_broker`). They always note what they hand out."""
    within_s: float = EVENTUALLY_S
    """The longest time at the end in which nothing may be received while something is left."""
    unavailable_max_ms: int = UNAVAILABLE_MAX_MS
    database: Pair | None = None
    """Its server is killed as well, and the ways to it are bad at times; ``arguments`` say that it has stores."""
    slowness: int = 1
    """A factor for the pauses of clients that send."""
    bad_ways: bool = False
    """Some clients have connections that are bad at times, and some are processes that are killed."""
    network: NetworkNamespace | None = None
    """Where these processes run, with a cable that is bad at times."""


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
    (notes := folder / "grants").mkdir()
    altered = f"notes_grants:{shlex.quote(str(notes))} {stage.altered}"
    with BrokerProcess(
        folder,
        arguments=("--brokers", str(stage.brokers), *stage.arguments),
        command=altered_broker.COMMAND,
        environment={altered_broker.VARIABLE: altered},
    ) as broker:
        settings = {
            "EnablePartitioning": True,
            "LockDuration": format_duration(_LOCK_MS),
            "MaxDeliveryCount": _DELIVERIES,
        }
        for queue in (QUEUES.unkeyed, QUEUES.keyed):
            broker.create_queue(queue, **settings)
        broker.create_queue(QUEUES.sessions, RequiresSession=True, **settings)
        nemesis = Nemesis(broker, QUEUES, history, random)
        with ExitStack() as ending:
            cast = Cast(broker, history, random, stage.slowness)
            if stage.database is not None:
                _endanger(stage.database, nemesis, random)
            if stage.bad_ways:
                way = ending.enter_context(FaultProxy(("127.0.0.1", broker.port)))
                cast.engage_more(way)
                door = None
                if stage.network is not None:
                    door = ending.enter_context(FaultProxy(("127.0.0.1", broker.port), (stage.network.host, 0)))
                    nemesis.chances += stage.network.deeds(random)
                cast.engage_processes(folder, door, stage.network.prefix if stage.network is not None else ())
                ways = BadWays("brokers", [way], nemesis, random, to_stores=False)
                nemesis.chances += ways.deeds()
                nemesis.chances += [cast.kill_client] * 4
            watch = Watch(broker, history)
            watch.start()
            cast.start()
            try:
                _load(history, nemesis, random, seconds, plan)
                cast.stop_sending()
                nemesis.undo()
                never_came = _receive_the_rest(broker, cast, stage.within_s)
            finally:
                cast.stop()
                watch.stop()
                history.write(folder / "history.jsonl")
        with connect(broker.connection_string) as client:
            for queue in QUEUES:
                what_is_left(client, queue, history)
    add_epochs(history.operations, notes)
    history.write(folder / "history.jsonl")
    delivered = [one for one in history.operations if one.kind is Kind.DELIVER]
    judged = sum(one.epoch > 0 for one in delivered), len(delivered)
    violations = [
        *never_came,
        *without_epochs(*judged),
        *check(history.operations, QUEUES, stage.unavailable_max_ms, _LOCK_MS),
    ]
    return Verdict(seed, history, violations, nemesis.deeds, forgotten_locks(history.operations, QUEUES), judged)


def without_epochs(noted: int, delivered: int) -> list[Violation]:
    """Report a run in which owners noted too few of their deliveries: its losses would excuse every second lock."""
    if noted > delivered * NOTED_MIN:
        return []
    return [Violation("not noted", f"owners noted {noted} of {delivered} deliveries; {NOTED_MIN:.0%} are needed")]


class Cast:
    """The clients."""

    def __init__(self, broker: BrokerProcess, history: History, random: Random, slowness: int = 1) -> None:
        """Each has a chance of its own, since threads take turns as they like."""
        self._slowness = slowness
        self._broker = broker
        self._history = history
        self._random = random
        self._senders: list[Worker] = []
        self._receivers: list[Receiving] = []
        self.processes: list[ClientProcess] = []
        """May be killed."""
        self._engage(range(3), range(2), broker.connection_string)
        where = broker.connection_string
        self._receivers.append(Receiving("o", where, QUEUES.keyed, history, self._chance()))

    def engage_more(self, way: FaultProxy) -> None:
        """One of each kind over a bad way."""
        self._engage(range(3, 4), range(2, 3), self._over(way))

    def engage_processes(self, folder: Path, door: FaultProxy | None, prefix: Sequence[str]) -> None:
        """Some that may be killed; ``door`` leads to the brokers from where ``prefix`` runs them."""
        where = self._broker.connection_string if door is None else self._over(door)
        made = folder / "clients"
        made.mkdir()
        for kind, name, queue, keys in (
            (SENDING, "pu", QUEUES.unkeyed, []),
            (SENDING, "pk", QUEUES.keyed, [f"pk.{key}" for key in range(6)]),
            (SENDING_TO_SESSIONS, "ps", QUEUES.sessions, [f"ps.{session}" for session in range(5)]),
            (RECEIVING, "pr", QUEUES.unkeyed, []),
        ):
            seed = self._random.getrandbits(32)
            self.processes.append(ClientProcess(kind, name, where, queue, seed, made, keys, prefix))

    def kill_client(self) -> str:
        """One of those that are processes."""
        return self._random.choice(self.processes).kill()

    def start(self) -> None:
        for worker in (*self._senders, *self._receivers):
            worker.start()
        for process in self.processes:
            process.start()

    def stop_sending(self) -> None:
        _stop(self._senders)
        for process in self.processes:
            if process.sends:
                process.stop()

    def calm(self) -> None:
        """Receivers complete everything, at once."""
        for receiver in self._receivers:
            receiver.calm.set()
        for process in self.processes:
            process.calm()

    def stop(self) -> None:
        """All of them, and write down what processes have done. Raises what went wrong in them."""
        processes, self.processes = self.processes, []
        try:
            for process in processes:
                process.stop()
        finally:
            _stop([*self._senders, *self._receivers])
            for process in processes:
                self._history.add(*process.history())

    def _over(self, way: FaultProxy) -> str:
        """The connection string by way of a proxy."""
        place = parse_connection_string(self._broker.connection_string)
        assert isinstance(way.address, tuple), "TCP"
        host, port = way.address
        return structs.replace(place, host=host, port=port).text

    def _engage(self, unkeyed: range, keyed: range, where: str) -> None:
        history = self._history
        sending = partial(Sending, slowness=self._slowness)
        self._senders += [sending(f"u{n}", where, QUEUES.unkeyed, history, self._chance()) for n in unkeyed]
        for n in keyed:
            keys = [f"k{n}.{key}" for key in range(6)]
            self._senders.append(sending(f"k{n}", where, QUEUES.keyed, history, self._chance(), keys=keys))
            keys = [f"s{n}.{session}" for session in range(5)]
            self._senders.append(
                sending(f"s{n}", where, QUEUES.sessions, history, self._chance(), keys=keys, sessions=True)
            )
        self._receivers += [Receiving(f"r{n}", where, QUEUES.unkeyed, history, self._chance()) for n in unkeyed]
        self._receivers += [
            WorkingOnSessions(f"w{n}", where, QUEUES.sessions, history, self._chance()) for n in unkeyed
        ]

    def _chance(self) -> Random:
        return Random(self._random.getrandbits(64))


def _endanger(database: Pair, nemesis: Nemesis, random: Random) -> None:
    """Have things happen to a database and the ways to it."""
    ways = BadWays("the database", database.ways, nemesis, random, to_stores=True)
    nemesis.chances += ways.deeds()
    nemesis.chances += [partial(database.restart, nemesis)] * 2
    if database.has_standby:
        nemesis.chances += [partial(database.fail_over, nemesis)] * 2


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


def _receive_the_rest(broker: BrokerProcess, cast: Cast, within_s: float) -> list[Violation]:
    """Receive until every queue is empty; return the queues in which messages stay that no receiver gets."""
    cast.calm()
    with ThreadPoolExecutor(len(QUEUES)) as pool:
        left = list(pool.map(partial(_left_in, broker, within_s=within_s), QUEUES))
    return [
        Violation("never delivered", f"'{queue}' keeps {messages} messages; none was received for {within_s:g} s")
        for queue, messages in zip(QUEUES, left, strict=True)
        if messages != 0
    ]


def _left_in(broker: BrokerProcess, queue: str, within_s: float) -> int | None:
    """How many messages a queue keeps when for so long it did not get less; None when it is unknown. Where locks or
    completions are done twice it may be less than none."""
    clock, pause = SystemClock(), threading.Event()
    fewest: int | None = None
    give_up_ms = clock.now_ms() + within_s * 1_000
    while (fewest is None or fewest > 0) and clock.now_ms() < give_up_ms:
        pause.wait(_LOOK_S)
        with suppress(OSError, ClientError):
            info = broker.describe(queue)
            if not info.partitions_away and (fewest is None or info.messages < fewest):
                fewest, give_up_ms = info.messages, clock.now_ms() + within_s * 1_000
    return fewest


def _stop(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.stopping.set()
    for worker in workers:
        worker.stop()


def _largest_stage(ending: ExitStack) -> tuple[Stage, list[str]]:
    """All that can be had here, and what can't."""
    left_out = ["several machines: all brokers run on this one"]
    stage = Stage(bad_ways=True)
    try:
        network = ending.enter_context(NetworkNamespace())
        stage = replace(stage, network=network)
        if not network.loses:
            left_out.append("lost packets: this system has no netem; cables are pulled only")
    except OSError as error:
        left_out.append(f"a network of its own for client processes: {error}")
    try:
        programs = programs_of_system()
        if programs is None:
            left_out.append("PostgreSQL of the system: none is installed; that of the test requirements serves")
        database = ending.enter_context(Pair(standby=True, programs=programs))
        arguments = ("--store", database.url("schema=chaos&stores=8"), "--store", "sqlite:8")
        stage = replace(stage, arguments=arguments, database=database)
    except LookupError as error:
        left_out.append(f"stores in PostgreSQL: {error}")
    return stage, left_out


def main(arguments: list[str]) -> int:
    """The command; answers the exit code."""
    if arguments[:1] == ["--check"]:
        violations = check(read_history(Path(arguments[1])), QUEUES, UNAVAILABLE_MAX_MS, _LOCK_MS)
        sys.stdout.write("".join(f"{rule}: {text}\n" for rule, text in violations) or "every rule holds\n")
        return bool(violations)
    seed, seconds, folder = int(arguments[0]), float(arguments[1]), Path(arguments[2])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    sys.stdout.write(f"seed {seed}, {seconds:g} s, in {folder}\n")
    sys.stdout.flush()
    with ExitStack() as ending:
        stage, left_out = _largest_stage(ending)
        for what in left_out:
            sys.stdout.write(f"left out: {what}\n")
        sys.stdout.flush()
        verdict = run(seed, seconds, folder, (), stage)
    sys.stdout.write(f"{verdict}\n")
    return bool(verdict.violations)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
