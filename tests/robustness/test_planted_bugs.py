"""The rules of histories find bugs in real brokers, which `altered_broker` puts into them.

`make test` plants one bug, and holds the rules against brokers without one. `make soak` plants the others.
"""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from partibus.client.messages import OutgoingMessage
from partibus.store.postgresql.connection import DEFAULTS
from partibus.testing.broker_process import BrokerProcess
from tests.kit import altered_broker
from tests.kit.chaos import QUEUES, Stage, Verdict, run
from tests.kit.eventually import EVENTUALLY_S, eventually, pause
from tests.kit.history import History, Kind, Operation
from tests.kit.history_clients import Receiving
from tests.kit.history_rules import check
from tests.kit.nemesis import Nemesis
from tests.kit.plain_client import connect
from tests.kit.postgresql_server import PostgreSQLServer, new_schema
from tests.plugins.soak import SLOWNESS, seed_of
from tests.robustness.test_postgresql_losses import wait_for_replay

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

pytestmark = [pytest.mark.timeout(1_200), pytest.mark.seeded]
"""Bounds for several attempts on a machine that is busy otherwise."""

SEED = seed_of(5)
STUCK_S = 7.0
"""A bug leaves messages that no receiver gets; that is a verdict as well, and need not be waited for as long as where
there should be none."""
KILLS = 2
ATTEMPTS = 12
"""The bug that is seen the least is seen in two of three."""
LATE = "answers_late:0.1"
"""Clients wait for answers most of the time: a kill meets something that is done and not answered."""


def run_with(
    bugs: str,
    folder: Path,
    plan: Sequence[Callable[[Nemesis], str]],
    *arguments: str,
    within_s: float = EVENTUALLY_S,
    seed: int = SEED,
    slowness: int = 1,
) -> Verdict:
    """Two brokers with bugs, clients, and these deeds. How available they are on a busy machine is not asked here."""
    return run(seed, 0, folder, plan, Stage(2, arguments, bugs, within_s, unavailable_max_ms=60_000, slowness=slowness))


def runs_until_a_rule_is_broken(
    bugs: str, folder: Path, plan: Sequence[Callable[[Nemesis], str]], server: PostgreSQLServer | None = None
) -> Verdict:
    """The first of several runs in which one is, mostly the first of all: what clients have under way when a broker is
    killed is up to chance. The last if none is. ``server``: of the stores, if they are in one."""
    attempt = 0
    while True:
        attempt += 1
        (run_folder := folder / str(attempt)).mkdir()
        arguments = () if server is None else stores_of(server)
        verdict = run_with(bugs, run_folder, plan, *arguments, within_s=STUCK_S, seed=SEED + attempt)
        if rules_broken(verdict) or attempt == ATTEMPTS:
            return verdict


def stores_of(server: PostgreSQLServer) -> tuple[str, ...]:
    """Make sixteen unused stores."""
    return "--store", server.url(parameters=f"schema={new_schema()}&stores=16")


def kill_under_load(nemesis: Nemesis) -> str:
    """Once enough is under way for something to be lost."""
    nemesis.wait_for_sends(QUEUES.unkeyed, 150)
    return nemesis.kill_one()


def kill_while_answers_are_late(nemesis: Nemesis) -> str:
    """All clients wait for answers nearly all the time, and get few done."""
    nemesis.wait_for_sends(QUEUES.unkeyed, 40)
    return nemesis.kill_one()


def rules_broken(verdict: Verdict) -> set[str]:
    return {violation.rule for violation in verdict.violations}


def test_acknowledged_before_the_commit(tmp_path: Path) -> None:
    verdict = runs_until_a_rule_is_broken("acknowledges_before_the_commit", tmp_path, [kill_under_load] * KILLS)
    assert "lost" in rules_broken(verdict), str(verdict)


@pytest.mark.soak
def test_locks_forgotten(tmp_path: Path) -> None:
    verdict = runs_until_a_rule_is_broken("forgets_locks", tmp_path, [kill_under_load] * KILLS)
    assert rules_broken(verdict) == {"second live lock"}, str(verdict)


@pytest.mark.soak
def test_what_was_executed_is_denied(tmp_path: Path) -> None:
    """Messages with a key are refused; others go elsewhere. A completion that is denied leaves a message that its
    receiver believes to have, and that is gone."""
    bugs = f"{LATE} denies_what_was_executed"
    verdict = runs_until_a_rule_is_broken(bugs, tmp_path, [kill_while_answers_are_late] * KILLS)
    assert rules_broken(verdict), str(verdict)
    assert rules_broken(verdict) <= {"refused but stored", "stored twice", "lost"}, str(verdict)


def test_answers_that_are_lost_with_their_owner(tmp_path: Path) -> None:
    """Plant no bug: each commit is done for some time before it is answered, so the next owner is asked about many."""
    verdict = run_with(LATE, tmp_path, [kill_while_answers_are_late] * KILLS)
    assert rules_broken(verdict) == set(), str(verdict)


AFTER_LEASES_MS, AWAKE_S = 500, 3.0


def wake_after_the_loss_of_all_stores(nemesis: Nemesis) -> str:
    """SIGSTOP until the others have its stores and its leases are over, then let it go on for a while, then SIGKILL.
    Its supervisor takes stores from owners that it has ended, and so need not wait for the end of leases; who wakes
    before that hands out what it may."""
    pid = nemesis.any_broker()
    began_ms = nemesis.now_ms()
    os.kill(pid, signal.SIGSTOP)
    try:
        eventually("the others take its stores", lambda: f"(process {pid}) has ended" in nemesis.log)
        pause(max(0, began_ms + DEFAULTS.lease_ms + AFTER_LEASES_MS - nemesis.now_ms()) / 1_000)
        nemesis.forgotten(began_ms, f"process {pid} has lost its stores")
        os.kill(pid, signal.SIGCONT)
        pause(AWAKE_S)
    finally:
        os.kill(pid, signal.SIGKILL)
    return f"stopped {pid} until it had lost its stores, and woke it"


def test_a_broker_that_wakes_after_its_stores_were_taken(tmp_path: Path, server: PostgreSQLServer) -> None:
    """The epoch in the store is enough, also if a silent broker is not ended."""
    plan = [wake_after_the_loss_of_all_stores]
    verdict = run_with("spares_the_silent", tmp_path, plan, *stores_of(server), slowness=SLOWNESS)
    assert verdict.deeds, "nobody was stopped"
    assert rules_broken(verdict) == set(), str(verdict)


def test_a_standby_that_lags_is_accepted(tmp_path: Path) -> None:
    """Numbers are given out again, what was completed comes again, and what was acknowledged is gone."""
    history = History()
    with PostgreSQLServer() as primary:
        standby = PostgreSQLServer.standby_of(primary, "behind")
        try:
            standby.start()
            hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
            url = primary.url(parameters="schema=pair").replace(f"127.0.0.1:{primary.port}", hosts)
            environment = {altered_broker.VARIABLE: "accepts_what_lags"}
            make = partial(
                BrokerProcess, tmp_path, arguments=("--store", url), command=altered_broker.COMMAND,
                environment=environment,
            )  # fmt: skip
            with make() as broker:
                broker.create_queue(QUEUES.unkeyed)
                send_each(broker, history, range(3))
                wait_for_replay(primary, standby)
                standby.stop()
                send_each(broker, history, range(3, 6))
                complete_all(broker, history, 6)
                send_each(broker, history, range(6, 9))
                broker.kill()
                primary.kill()
            standby.start()
            standby.promote()
            with make() as broker:
                send_each(broker, history, range(9, 12))
                complete_all(broker, history, 6)
        finally:
            standby.remove()
    broken = {one.rule for one in check(history.operations, QUEUES, 60_000, 60_000)}
    assert broken >= {"lost", "reissued", "delivered after complete"}


def send_each(broker: BrokerProcess, history: History, numbers: range) -> None:
    """Send messages one by one, and note that they were acknowledged."""
    with connect(broker.connection_string) as client:
        sender = client.sender(QUEUES.unkeyed)
        for number in numbers:
            sent = Operation(
                kind=Kind.SEND, began_ms=history.now_ms(), ended_ms=0, queue=QUEUES.unkeyed, body=f"m{number}"
            )
            sender.send([OutgoingMessage(body=sent.body.encode())])
            sent.ended_ms = history.now_ms()
            history.add(sent)


def complete_all(broker: BrokerProcess, history: History, count: int) -> None:
    """Receive so many messages, complete them, and note both."""
    worker = Receiving("r", broker.connection_string, QUEUES.unkeyed, history, Random(SEED))
    worker.calm.set()
    with connect(broker.connection_string) as client:
        receiver = client.receiver(QUEUES.unkeyed)
        while count > 0:
            messages = worker.take(receiver)
            worker.use(receiver, messages)
            count -= len(messages)


@pytest.mark.soak
def test_without_the_epoch_it_breaks_rules(tmp_path: Path, server: PostgreSQLServer) -> None:
    # The record of acknowledged commits would refuse the store before clients see anything of it (ADR 0024).
    bugs = "spares_the_silent forgets_the_epoch accepts_what_lags"
    deeds = [wake_after_the_loss_of_all_stores]
    assert rules_broken(runs_until_a_rule_is_broken(bugs, tmp_path, deeds, server))
