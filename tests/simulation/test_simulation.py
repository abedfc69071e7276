"""Seeded histories of a store's runtime with crashes and faults, and bugs planted to prove that the checks can fail.

PARTIBUS_SIMULATION_SEEDS runs more of them: ``PARTIBUS_SIMULATION_SEEDS=20000 pytest tests/simulation``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from partibus.partition import runtime, settlement
from partibus.partition.commands import Accepted, Granted
from partibus.partition.commit_queue import CommitQueue
from partibus.partition.entry import Entry
from partibus.partition.events import Event
from partibus.partition.journal import record
from partibus.partition.ports import Writes
from partibus.partition.state import PartitionState
from partibus.partition.subqueue import Subqueue
from partibus.store.faulty import FaultSource
from partibus.testing.oracle import BrokenPromise
from partibus.testing.simulation import Simulation

SEEDS = int(os.environ.get("PARTIBUS_SIMULATION_SEEDS", "200"))
STEPS = 1_200
CANARY_SEEDS = range(1, 60)


@pytest.mark.row("R14")
@pytest.mark.timeout(0)
def test_every_history_keeps_what_was_promised() -> None:
    crashes = deliveries = 0
    faults: set[str] = set()
    for seed in range(SEEDS):
        simulation = Simulation(seed)
        simulation.run(STEPS)
        crashes += simulation.crashes
        deliveries += sum(simulation.oracle.delivered.values())
        faults.update(simulation.faults.happened)
    assert crashes > SEEDS, "too few crashes to prove anything"
    assert deliveries > 50 * SEEDS, "too few deliveries to prove anything"
    assert faults >= {"refused", "forgotten", "torn", "unanswered", "unsynced", "load_fails"}


def test_seed_decides_everything() -> None:
    def history() -> tuple[int, int, dict[int, int], dict[str, int]]:
        simulation = Simulation(11)
        simulation.run(STEPS)
        return simulation.names, simulation.crashes, simulation.oracle.delivered, simulation.faults.happened

    assert history() == history()


def waits_for_nothing(kind: type[Any]) -> Callable[[CommitQueue, int, Callable[[Any], None], Any], None]:
    """A gate that lets replies of one kind pass before they are durable."""
    wait = CommitQueue.wait

    def planted(queue: CommitQueue, number: int, call: Callable[[Any], None], value: Any) -> None:
        if isinstance(value, kind):
            call(value)
        else:
            wait(queue, number, call, value)

    return planted


def forgets(*attributes: str) -> Callable[[int, Iterable[Event], Writes], bool]:
    """A journal that leaves rows out."""

    def planted(partition_row: int, events: Iterable[Event], writes: Writes) -> bool:
        waited = record(partition_row, events, writes)
        for attribute in attributes:
            getattr(writes, attribute).clear()
        return waited

    return planted


def reads_again(subqueue: Subqueue, entries: list[Entry], up_to: int) -> None:
    """A mark that lags behind: the next page brings back what this one did, whatever became of it."""
    subqueue.ready.extend(entries, sum(entry.size_bytes for entry in entries))
    subqueue.paged_up_to = min(up_to, subqueue.tail_from)
    if len(entries) > 1:
        subqueue.paged_up_to = entries[-1].pos


def used_up_is_unknown(state: PartitionState, kind: int, entry: Entry) -> bool:
    """Delivered without end; counted wrongly below."""
    entry.delivery_count = 0
    return False


def run_all(seeds: Iterable[int]) -> None:
    for seed in seeds:
        Simulation(seed).run(STEPS)


PLANTED: dict[str, tuple[object, str, object, str]] = {
    "acknowledges before the commit": (CommitQueue, "wait", waits_for_nothing(Accepted), "acknowledged before"),
    "delivers before the commit": (CommitQueue, "wait", waits_for_nothing(Granted), "durable"),
    "drops lock rows": (runtime, "record", forgets("lock_batches"), "lock"),
    "drops delivery counts": (runtime, "record", forgets("entry_updates"), "delivery count"),
    "forgets delivery counts": (settlement, "is_used_up", used_up_is_unknown, "delivery count"),
    "a page resurrects an entry": (
        Subqueue,
        "page_in",
        reads_again,
        "delivered while under lock|after it was finished|two places|expected",
    ),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, planted, complaint = PLANTED[bug]
    monkeypatch.setattr(owner, name, planted)
    with pytest.raises(BrokenPromise, match=rf"(?s)({complaint}).*seed \d+.*--seed \d+ --steps {STEPS}"):
        run_all(CANARY_SEEDS)


def test_store_that_failed_is_used_again() -> None:
    simulation = Simulation(3)
    simulation.faults.faults = simulation.faults.faults._replace(
        refused=1.0, forgotten=0, torn=0, unanswered=0, unsynced=0
    )
    while simulation.runtime.commits == 0 and not simulation.faults.happened:
        simulation.timeline.run_next()
    failed_ms = simulation.timeline.now_ms()
    simulation.faults.faults = FaultSource(0).faults
    before = sum(simulation.oracle.delivered.values())
    while sum(simulation.oracle.delivered.values()) == before:
        simulation.timeline.run_next()
        assert simulation.timeline.now_ms() < failed_ms + 10_000, "nothing is delivered any more"
    assert simulation.runtime.failure is None
    simulation.run(200)
