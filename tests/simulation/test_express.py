"""Seeded histories in which every entity is express, with crashes and faults: a lost message was younger than the loss
bound when memory was lost, and no reader had forced it; and bugs planted to prove that the checks can fail."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from partibus.message import Message
from partibus.partition.core import write_behind
from partibus.partition.core.express import Express
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.runtime import commits
from partibus.partition.runtime.slot import Slot
from tests.kit import invariants, topic_simulation
from tests.kit.invariants import BrokenPromise
from tests.kit.simulation import CALM_CRASH_CHANCE, CALM_FAULTS, EXPRESS_BOUND_MS, Simulation
from tests.kit.topic_simulation import Publisher, TopicSimulation
from tests.plugins.soak import seeds

SEEDS = seeds(int(os.environ.get("PARTIBUS_SIMULATION_SEEDS", "10")))
STEPS = 3_000


@pytest.mark.row("C22", "C24")
@pytest.mark.timeout(0)
def test_every_history_loses_young_messages_only() -> None:
    happened: Counter[str] = Counter()
    for seed in SEEDS:
        simulation = Simulation(seed, EXPRESS_BOUND_MS)
        simulation.run(STEPS)
        happened["crashes"] += simulation.crashes
        happened.update(simulation.oracle.tally())
    for what, least in ENOUGH.items():
        assert happened[what] >= least * len(SEEDS), f"too little of {what} to prove anything: {happened}"


ENOUGH = {"crashes": 0.5, "deliveries": 100, "completed": 40, "lost young": 20, "deferred": 1, "transactions done": 3}
"""How often on average in one history."""


FIRST = {"writes too late": 13}
"""Bug -> the seed that is known to show it, where the first ones don't."""


def run_all(first: int) -> None:
    """Begin with that seed, and go on should a change of the product hide the bug there."""
    for seed in (*range(first, 40), *range(1, first)):
        Simulation(seed, EXPRESS_BOUND_MS).run(STEPS)


def never_low(express: Express, next_sequence: int, next_number: int) -> None:
    """Reserve no numbers."""


def does_not_wait(slot: Slot, load: Any, durable: int) -> int:
    """A load runs although what it is to see is not durable."""
    return 0


NEVER = property(lambda express: express.bound_ms * 3)
PLANTED: dict[str, tuple[Any, str, object, str]] = {
    "forced messages wait like others": (
        write_behind,
        "is_durable",
        lambda data: False,
        "acknowledged and are gone|could be",
    ),
    "writes too late": (Express, "_write_age_ms", NEVER, "acknowledged and are gone|could be|was lost before"),
    "reserves no numbers": (Express, "reserve", never_low, "durable|is that of|got number"),
    "closes with messages in memory": (commits, "write_all", lambda state, now_ms: None, "acknowledged and are gone"),
    "reads too early": (
        Slot,
        "needed_by",
        does_not_wait,
        "gone|overtaken|still holds|could be|finished|delivery count",
    ),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, planted, complaint = PLANTED[bug]
    monkeypatch.setattr(owner, name, planted)
    with pytest.raises(BrokenPromise, match=rf"(?s)({complaint}).*--steps {STEPS} --express-ms {EXPRESS_BOUND_MS}"):
        run_all(FIRST.get(bug, 1))


class ExpressTopic(TopicSimulation):
    """A topic that is express, for all its subscriptions."""

    crash_chance = CALM_CRASH_CHANCE

    def _draw_options(self) -> dict[int, PartitionOptions]:
        drawn = super()._draw_options()
        self.faults.faults = CALM_FAULTS
        return {
            row: replace(options, express_ms=EXPRESS_BOUND_MS, duplicate_window_ms=None)
            for row, options in drawn.items()
        }

    def crash(self) -> None:
        self.lose_memory()
        super().crash()

    def lose_memory(self) -> None:
        for oracle in self.oracles.values():
            oracle.express_lost(self.timeline.now_ms())


def accepted_from_memory(publisher: Publisher, sent: list[tuple[int, Message]], first_sequence: int) -> None:
    """Numbers are durable; the messages need not be."""
    world = publisher.world
    if world.disk.durable.partitions[topic_simulation.TOPIC][0] < first_sequence + len(sent):
        raise BrokenPromise(f"numbers from {first_sequence} on were given before they were durable")
    for name, message in sent:
        for row in world.wanted_by(message):
            world.oracles[row].accepted([name], row, None, world.timeline.now_ms())


@pytest.mark.row("C22")
def test_an_express_topic_loses_young_messages_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lose young messages in some of the subscriptions only, after a crash."""
    everywhere = invariants.i20_in_all_subscriptions_or_in_none
    lost = 0
    for seed in SEEDS:
        simulation = ExpressTopic(seed)

        def unless_young(name: int, copies: dict[int, bool], world: ExpressTopic = simulation) -> None:
            if not any(name in oracle.lost_young for oracle in world.oracles.values()):
                everywhere(name, copies)

        monkeypatch.setattr(invariants, "i20_in_all_subscriptions_or_in_none", unless_young)
        monkeypatch.setattr(Publisher, "_accepted", accepted_from_memory)
        simulation.run(STEPS)
        lost += simulation.tally()["lost young"]
    assert lost > 5 * len(SEEDS), "too little was in memory to prove anything"
