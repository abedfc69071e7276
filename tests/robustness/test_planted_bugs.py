"""The rules of histories find bugs in real brokers, which `altered_broker` puts into them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from partibus.testing.chaos import QUEUES, Stage, Verdict, run
from partibus.testing.nemesis import Nemesis
from partibus.testing.patience import eventually, pause
from partibus.testing.postgresql_server import PostgreSQLServer
from tests.robustness import altered_broker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

pytestmark = pytest.mark.timeout(300)
"""For a machine that has a lot else to do."""

SEED = 5
PATIENCE_S = 7.0


def run_with(bugs: str, folder: Path, plan: Sequence[Callable[[Nemesis], str]], *arguments: str) -> Verdict:
    """Three brokers with bugs, clients, and these deeds. Messages that nobody gets are a verdict as well, but need not
    be waited for as long as where there should be none."""
    environment = {altered_broker.VARIABLE: bugs}
    return run(SEED, 0, folder, plan, Stage(3, arguments, altered_broker.COMMAND, environment, PATIENCE_S))


def kill_under_load(nemesis: Nemesis) -> str:
    """Once enough is under way for something to be lost."""
    nemesis.wait_for_sends(QUEUES.unkeyed, 150)
    return nemesis.kill_one()


def rules_broken(verdict: Verdict) -> set[str]:
    return {violation.rule for violation in verdict.violations}


def test_acknowledged_before_the_commit(tmp_path: Path) -> None:
    verdict = run_with("acknowledges_before_the_commit", tmp_path, [kill_under_load] * 4)
    assert "lost" in rules_broken(verdict), str(verdict)


def test_locks_forgotten(tmp_path: Path) -> None:
    verdict = run_with("forgets_locks", tmp_path, [kill_under_load] * 4)
    assert rules_broken(verdict) == {"second live lock"}, str(verdict)


def test_what_was_executed_is_denied(tmp_path: Path) -> None:
    """What has a key is refused; what has none is sent elsewhere. A completion that is denied leaves a message that its
    receiver believes to have, and that is gone."""
    verdict = run_with("answers_late:0.05 denies_what_was_executed", tmp_path, [kill_under_load] * 4)
    assert rules_broken(verdict), str(verdict)
    assert rules_broken(verdict) <= {"refused but stored", "stored twice", "lost"}, str(verdict)


@pytest.mark.row("K6")
def test_answers_that_are_lost_with_their_owner(tmp_path: Path) -> None:
    """No bug: each commit is done for some time before it is answered, so the next owner is asked about many."""
    verdict = run_with("answers_late:0.05", tmp_path, [kill_under_load] * 4)
    assert rules_broken(verdict) == set(), str(verdict)


TAKING_S, AWAKE_S = 1.0, 3.0


def wake_after_the_loss_of_all_stores(nemesis: Nemesis) -> str:
    """SIGSTOP until the others have its stores, then let it go on for a while, then SIGKILL."""
    pid = nemesis.any_broker()
    began_ms = nemesis.now_ms()
    os.kill(pid, signal.SIGSTOP)
    try:
        eventually("the others take its stores", lambda: f"(process {pid}) has ended" in nemesis.log)
        pause(TAKING_S)
        nemesis.forgotten(began_ms, f"process {pid} has lost its stores")
        os.kill(pid, signal.SIGCONT)
        pause(AWAKE_S)
    finally:
        os.kill(pid, signal.SIGKILL)
    return f"stopped {pid} until it had lost its stores, and woke it"


@pytest.mark.row("P11")
@pytest.mark.parametrize("bugs", ["spares_the_silent", "spares_the_silent forgets_the_epoch"])
def test_a_broker_that_wakes_after_its_stores_were_taken(tmp_path: Path, bugs: str) -> None:
    """The epoch in the store is enough, also where nobody ends a broker that is silent; without it rules are broken."""
    with PostgreSQLServer() as server:
        url = server.url(parameters="schema=epoch&stores=16")
        verdict = run_with(bugs, tmp_path, [wake_after_the_loss_of_all_stores], "--store", url)
    assert verdict.deeds, "nobody was stopped"
    assert bool(rules_broken(verdict)) == ("forgets_the_epoch" in bugs), str(verdict)
