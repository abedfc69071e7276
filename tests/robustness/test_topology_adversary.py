"""Brokers are lost while messages go through queues, a topic, its subscriptions and on: each message that was accepted
arrives once at each end, in order, transactions are whole, and in the end every entity is empty."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import cycle, pairwise
from random import Random
from typing import TYPE_CHECKING

import pytest

from partibus.client.errors import ClientError
from partibus.client.extensions.cluster import cluster_status
from partibus.client.management import RuleInfo
from partibus.client.messages import OutgoingMessage
from partibus.client.outcomes import COMPLETE, dead_letter
from partibus.namespace.connection_string import parse_connection_string
from partibus.store.postgresql.registry import LEASE_S
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.interface import Outgoing
from tests.kit.eventually import eventually, pause
from tests.kit.history import History, Kind, Outcome, outcome_of
from tests.kit.history_clients import Receiving, Sending, Worker, WorkingOnSessions, what_is_left
from tests.kit.history_rules import Queues
from tests.kit.nemesis import Nemesis, is_well
from tests.kit.plain_client import connect
from tests.kit.postgresql_server import PostgreSQLServer
from tests.plugins.soak import seed_of
from tests.robustness.machines import Machines

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from partibus.client.messages import IncomingMessage
    from tests.conformance.clients.proton_transactions import TransactionalProton
    from tests.kit.history import Operation
    from tests.kit.plain_client import Client, Receiver

SOURCE, HUB, LAST, DEAD, STEPS = "source", "hub", "last", "dead", "steps"
PASSING, SESSIONS, SOME = (f"{HUB}/Subscriptions/{name}" for name in ("passing", "sessions", "some"))
SETTINGS = {"LockDuration": "PT5S", "MaxDeliveryCount": 1_000}
SEEDS = 400
KEY = "k"
BROKERS = 3
ROUNDS = 1
"""The number of kills of each broker."""
LONGER_THAN_A_LEASE_S = LEASE_S + 1


def build(broker: BrokerProcess) -> None:
    """source ─▶ hub ─▶ passing ─▶ last; hub ─▶ sessions; hub ─▶ some, whose dead letters go to dead."""
    broker.create_queue(LAST, EnablePartitioning=True, **SETTINGS)
    broker.create_queue(DEAD, EnablePartitioning=True, **SETTINGS)
    broker.create_queue(STEPS, EnablePartitioning=True, **SETTINGS)
    broker.create_topic(HUB, EnablePartitioning=True)
    broker.create_subscription(HUB, "passing", ForwardTo=LAST)
    broker.create_subscription(HUB, "sessions", RequiresSession=True, **SETTINGS)
    broker.create_subscription(HUB, "some", ForwardDeadLetteredMessagesTo=DEAD, **SETTINGS)
    broker.create_queue(SOURCE, EnablePartitioning=True, ForwardTo=HUB, **SETTINGS)
    with connect(broker.connection_string) as client:
        rules = client.rules(SOME)
        rules.add(RuleInfo("odd-sessions", sql="sys.SessionId LIKE '%1' OR sys.SessionId LIKE '%3'"))
        rules.remove("$Default")
        seeds = [OutgoingMessage(body=b"seed-%d" % number, partition_key=KEY) for number in range(SEEDS)]
        client.sender(STEPS).send(seeds)


def for_some(one: Operation) -> bool:
    """The rule of `SOME` lets it pass."""
    return one.key[-1] in "13"


def is_poison(body: str) -> bool:
    """The most messages that a consumer gives up at once."""
    return int(body.rpartition("-")[2]) % 3 == 0


class Discarding(Receiving):
    """Completes messages, or dead-letters them, by what is in them."""

    def settle(self, receiver: Receiver, message: IncomingMessage, *, give_back: bool = False) -> None:
        settlement = self._note(message, Kind.SETTLE, self.history.now_ms())
        poison = is_poison(settlement.body)
        settlement.action = "dead-letter" if poison else "complete"
        try:
            receiver.settle([message], dead_letter("poison") if poison else COMPLETE)
        except ClientError as error:
            settlement.outcome, settlement.note = outcome_of(error, receiver), str(error)
            if settlement.outcome is Outcome.UNKNOWN:
                raise
        finally:
            settlement.ended_ms = self.history.now_ms()
            self.history.add(settlement)


class Stepping(Worker):
    """Transactions: each completes a seed and sends two messages."""

    def __init__(self, name: str, connection_string: str, queue: str, history: History, random: Random) -> None:
        super().__init__(name, connection_string, queue, history, random)
        self.acknowledged: set[bytes] = set()

    def work(self, client: Client) -> None:
        from proton import ProtonException

        from tests.conformance.clients.proton_transactions import TransactionalProton

        where = parse_connection_string(self._connection_string)
        assert where.port is not None
        with suppress(ProtonException, OSError, AssertionError):
            connection = TransactionalProton(where.host, where.port, where.key_name, where.key)
            while not self.stopping.is_set():
                self._step(connection)

    def _step(self, connection: TransactionalProton) -> None:
        ((body, delivery),) = connection.receive(STEPS, 1)
        if not body.startswith(b"seed-"):
            self.stopping.wait(0.2)
            return
        number = body.removeprefix(b"seed-")
        outcome = connection.begin()
        connection.accept(outcome, [delivery])
        connection.send(outcome, STEPS, *(Outgoing(b"done-" + number, partition_key=KEY) for _ in range(2)))
        connection.commit(outcome)
        if outcome.committed:
            self.acknowledged.add(number)
        self.stopping.wait(0.02)


def is_empty(broker: BrokerProcess, entity: str) -> bool:
    info = broker.describe(entity)
    return not info.partitions_away and not info.messages


def bodies_of(broker: BrokerProcess, entity: str) -> Counter[str]:
    """Return the messages of an entity, locked or not."""
    found = History()
    with connect(broker.connection_string) as client:
        what_is_left(client, entity, found)
    return Counter(one.body for one in found.operations)


def kill_in_turns(broker: BrokerProcess, history: History) -> None:
    """Each broker of a supervisor, and each third one stands still before."""
    nemesis = Nemesis(broker, Queues(SOURCE, LAST, SOME), history, Random(seed_of(3)))
    for turn in range(ROUNDS * BROKERS):
        with connect(broker.connection_string) as client:
            pid = next(one.pid for one in cluster_status(client).brokers if one.id == f"broker-{turn % BROKERS}")
        assert pid is not None
        if turn % 3 == 2:
            os.kill(pid, signal.SIGSTOP)
            pause(0.5)
            os.kill(pid, signal.SIGCONT)
            pause(0.02)
        os.kill(pid, signal.SIGKILL)
        nemesis.wait_for_sends(SOURCE, 20)
        eventually("every broker is back", lambda: is_well(broker))


def travel(folder: Path, broker: BrokerProcess, doors: Sequence[str], hunt: Callable[[History], None]) -> None:
    """Messages on long ways during a hunt, until everything is empty. ``doors``: connection strings of brokers that
    may be lost; ``broker`` may not."""
    history, random = History(), Random(seed_of(5))
    build(broker)
    doors_in_turn = cycle(doors)

    def about(name: str, entity: str) -> tuple[str, str, str, History, Random]:
        return name, next(doors_in_turn), entity, history, Random(random.getrandbits(64))

    senders = [
        Sending(*about(name, entity), keys=[f"{name}.{n}" for n in range(5)], sessions=True)
        for name, entity in (("x", SOURCE), ("y", SOURCE), ("z", HUB))
    ]
    receivers = [
        Receiving(*about("o", LAST)),
        Discarding(*about("c", SOME)),
        *(WorkingOnSessions(*about(f"w{n}", SESSIONS)) for n in range(2)),
    ]
    steps = [Stepping(*about("t", STEPS))] if importlib.util.find_spec("proton") else []
    for worker in (*senders, *receivers, *steps):
        worker.start()
    try:
        hunt(history)
        for step in steps:
            eventually("a transaction is acknowledged", partial(bool, step.acknowledged))
        for worker in (*senders, *steps):
            worker.stop()
        for receiver in receivers:
            receiver.calm.set()
        for entity in (SOURCE, PASSING, LAST, SESSIONS, SOME):
            eventually(f"'{entity}' is empty", partial(is_empty, broker, entity))
    finally:
        for worker in (*senders, *steps, *receivers):
            worker.stopping.set()
        for worker in receivers:
            worker.stop()
        history.write(folder / "history.jsonl")
    dead = bodies_of(broker, DEAD)
    assert mistakes(history.operations, dead) == []
    found = bodies_of(broker, STEPS)
    for step in steps:
        for number in range(SEEDS):
            pair = (found[f"seed-{number}"], found[f"done-{number}"])
            assert pair in {(1, 0), (0, 2)}, f"transaction {number} was done in part: {pair}"
            assert b"%d" % number not in step.acknowledged or pair == (0, 2), f"transaction {number} is lost"
    # The rules see what they are to see, when it is forged.
    came = next(one for one in history.operations if one.kind is Kind.DELIVER and one.queue == LAST)
    others = [one for one in history.operations if one.kind is not Kind.DELIVER or one.body != came.body]
    assert mistakes([one for one in history.operations if one.queue != LAST or one.body != came.body], dead)
    assert mistakes([*others, came], dead)
    assert mistakes([*history.operations, replace(came, sequence=came.sequence + 1)], dead)


@pytest.mark.seeded
@pytest.mark.row("C38", "F1")
def test_messages_on_long_ways_while_brokers_are_killed_in_turns(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, arguments=("--brokers", str(BROKERS))) as broker:
        travel(tmp_path, broker, [broker.connection_string], partial(kill_in_turns, broker))


@pytest.mark.soak
@pytest.mark.row("C38", "F1")
def test_messages_on_long_ways_while_machines_are_lost(tmp_path: Path, server: PostgreSQLServer) -> None:
    with Machines(tmp_path, server).start("a", "b", "c") as machines:
        lost = [machines.brokers[name] for name in "ab"]

        def hunt(history: History) -> None:
            nemesis = Nemesis(machines.brokers["c"], Queues(SOURCE, LAST, SOME), history, Random(seed_of(3)))
            lost[1].kill()
            pause(1)
            lost[1].start()
            machines.settle("a", "b", "c")
            nemesis.wait_for_sends(SOURCE, 20)
            pid = int(lost[0].ready["pid"])
            os.kill(pid, signal.SIGSTOP)
            pause(LONGER_THAN_A_LEASE_S)
            os.kill(pid, signal.SIGCONT)
            machines.settle("a", "b", "c")
            nemesis.wait_for_sends(SOURCE, 20)

        doors = [broker.connection_string for broker in machines.brokers.values()]
        travel(tmp_path, machines.brokers["c"], doors, hunt)


def mistakes(operations: Sequence[Operation], dead: Counter[str]) -> list[str]:
    """Describe the messages that did not come to each destination once and in order."""
    sent = {one.body: one for one in operations if one.kind is Kind.SEND}
    came: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for one in operations:
        if one.kind is Kind.DELIVER:
            came[one.queue][one.body].add(one.sequence)
    wrong: list[str] = []
    for body, one in sent.items():
        ends = {LAST, SESSIONS} | ({SOME} if for_some(one) else set())
        got = {end for end in (LAST, SESSIONS, SOME) if body in came[end]}
        if one.outcome is Outcome.OK and got != ends:
            wrong.append(f"{body} was accepted and came to {got}, not to {ends}")
        elif one.outcome is Outcome.FAIL and got:
            wrong.append(f"{body} was refused and came to {got}: {one.note}")
        elif got not in (set(), ends):
            wrong.append(f"{body} came to {got} only")
        twice = [end for end in got if len(came[end][body]) > 1]
        wrong += [f"{body} ({one.outcome}) came to {end} as {came[end][body]}" for end in twice]
        if dead[body] != (SOME in got and is_poison(body)):
            wrong.append(f"{body} is {dead[body]} times in {DEAD}; it came to {got}")
    for end in (LAST, SESSIONS):
        by_key: dict[str, list[int]] = defaultdict(list)
        sequences = {body: min(numbers) for body, numbers in came[end].items()}
        for body in sorted(sequences, key=lambda body: sequences[body]):
            by_key[sent[body].key].append(int(body.rpartition("-")[2]))
        for key, numbers in by_key.items():
            wrong += [f"{end}: {key} has {a} before {b}" for a, b in pairwise(numbers) if a > b]
    return wrong
