"""Seeded histories of a topic with subscriptions, and bugs planted to prove that the checks can fail.

PARTIBUS_SIMULATION_SEEDS runs more of them, as in `test_simulation`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from partibus.partition.core import journal, machine, publish, range_scans
from partibus.partition.core.state import PartitionState
from partibus.partition.core.step import Step
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.fan_out import Plan, Planned
from partibus.partition.protocol.keys import Entry
from partibus.partition.protocol.ports import Writes
from partibus.partition.runtime import topic
from partibus.partition.runtime.commit_queue import CommitQueue
from tests.kit.invariants import BrokenPromise
from tests.kit.stores.tables import Tables
from tests.kit.topic_simulation import TopicSimulation
from tests.plugins.soak import seeds
from tests.simulation.test_simulation import waits_for_nothing

SEEDS = seeds(int(os.environ.get("PARTIBUS_SIMULATION_SEEDS", "12")))
STEPS = 2_000
CANARY_SEEDS = range(1, 60)
ENOUGH = {
    "crashes": 2,
    "deliveries": 100,
    "completed": 40,
    "cancelled": 1,
    "deferred": 3,
    "duplicates dropped": 2,
    "sessions accepted": 5,
    "subscriptions deleted": 0.3,
    "refused": 0.5,
    "went cold": 5,
    "windows dropped": 3,
}
"""How often on average in one history."""


@pytest.mark.row("C38", "R14", "K9")
@pytest.mark.timeout(0)
def test_every_history_of_a_topic_keeps_what_was_promised() -> None:
    happened: Counter[str] = Counter()
    for seed in SEEDS:
        simulation = TopicSimulation(seed)
        simulation.run(STEPS)
        happened["crashes"] += simulation.crashes
        happened.update(simulation.faults.happened)
        happened.update(simulation.tally())
        happened.update(simulation.went_cold)
    for what, least in ENOUGH.items():
        assert happened[what] >= least * len(SEEDS), f"too little of {what} to prove anything: {happened}"
    assert happened >= Counter(("refused", "forgotten", "torn", "unanswered", "unsynced", "load_fails"))


def never_shared(first: int, last: int, writes: Writes) -> None:
    """A subscription that is done with a body takes it from the others."""
    writes.deleted_bodies.append((first, last))


def always_kept(first: int, last: int, writes: Writes) -> None:
    """Bodies that were shared stay for ever."""
    DELETE_BODY_RANGE(first, last, writes)
    writes.deleted_shared_bodies.clear()


DELETE_BODY_RANGE = journal._delete_body_range


def forgets_one(
    state: PartitionState, plan: Plan, keys: dict[int, int], bodies: list[int | bytes], step: Step, **more: Any
) -> None:
    """Give the last of several subscriptions nothing."""
    if len(plan.shares) > 2:
        plan.shares.popitem()
    SHARE(state, plan, keys, bodies, step, **more)


SHARE = publish._share


def stays_scheduled(
    state: PartitionState, entries: list[Entry], planned: list[Planned] | None, now_ms: int, step: Step
) -> None:
    """A due message is shared out, and still waits for its time."""
    PUBLISH_DUE(state, entries, planned, now_ms, step)
    step.events.pop()


PUBLISH_DUE = publish.publish_due


def planned_together(command: c.Command, fan_out: Any, now_ms: int, *, one_by_one: bool) -> Iterator[None]:
    """Duplicates have their copies shared out with the others'."""
    return PLAN(command, fan_out, now_ms, one_by_one=False)


PLAN = topic.plan


def in_a_later_commit(state: PartitionState, command: c.Arrive, now_ms: int, step: Step) -> None:
    """One subscription in three learns of messages when it gets the next."""
    late = LATE.pop((id(state), state.row), None)
    if late is not None:
        publish.arrive(state, late, now_ms, step)
    if state.row % 3 == 0:
        LATE[id(state), state.row] = command
    else:
        publish.arrive(state, command, now_ms, step)


LATE: dict[tuple[int, int], c.Arrive] = {}


def takes_all_with_it(tables: Tables, body: int) -> None:
    """A deleted subscription, or whoever is done, takes bodies that others name."""
    tables.bodies.pop(body, None)


PLANTED: dict[str, tuple[object, str, object, str]] = {
    "deletes a body that others name": (journal, "_delete_body_range", never_shared, "which are gone"),
    "never deletes a shared body": (journal, "_delete_body_range", always_kept, "nobody names the bodies"),
    "marks no body as shared": (publish, "SHARED_BODY", 0, "which are gone"),
    "a store that does not look for other names": (Tables, "_delete_if_unnamed", takes_all_with_it, "which are gone"),
    "forgets a subscription": (publish, "_share", forgets_one, "acknowledged (before subscription|and are gone)"),
    "shares out what was known": (topic, "plan", planned_together, "was kept at"),
    "leaves what was due": (
        range_scans,
        "publish_due",
        stays_scheduled,
        "more than once|after it was finished|while under lock",
    ),
    "acknowledges before the commit": (CommitQueue, "wait_all", waits_for_nothing(r.Accepted), "acknowledged before"),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bug_of_a_topic_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, planted, complaint = PLANTED[bug]
    monkeypatch.setattr(owner, name, planted)
    with pytest.raises(BrokenPromise, match=rf"(?s)({complaint}).*seed \d+.*--seed \d+ --steps {STEPS}"):
        run_all()


def test_copies_in_different_commits_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: Mapping[type, Any] = machine._HANDLERS
    monkeypatch.setitem(handlers, c.Arrive, in_a_later_commit)
    with pytest.raises(BrokenPromise, match=r"nobody names the bodies|acknowledged before"):
        run_all()


def run_all() -> None:
    for seed in CANARY_SEEDS:
        TopicSimulation(seed).run(STEPS)
