"""Seeded histories in which every entity is express, with crashes and faults: what is gone was younger than the loss
bound when memory was lost, and nobody had forced it; and bugs planted to prove that the checks can fail."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest

from partibus.partition import runtime, write_behind
from partibus.partition.express import Express
from partibus.partition.slot import Slot
from partibus.testing.invariants import BrokenPromise
from partibus.testing.simulation import EXPRESS_BOUND_MS, Simulation

SEEDS = int(os.environ.get("PARTIBUS_SIMULATION_SEEDS", "25"))
STEPS = 3_000


@pytest.mark.row("C22", "C24")
@pytest.mark.timeout(0)
def test_every_history_loses_young_messages_only() -> None:
    happened: Counter[str] = Counter()
    for seed in range(SEEDS):
        simulation = Simulation(seed, EXPRESS_BOUND_MS)
        simulation.run(STEPS)
        happened["crashes"] += simulation.crashes
        happened.update(simulation.oracle.tally())
    for what, least in ENOUGH.items():
        assert happened[what] >= least * SEEDS, f"too little of {what} to prove anything: {happened}"


ENOUGH = {"crashes": 1, "deliveries": 100, "completed": 40, "lost young": 20, "deferred": 1, "transactions done": 3}
"""How often on average in one history."""


def run_all() -> None:
    for seed in range(1, 40):
        Simulation(seed, EXPRESS_BOUND_MS).run(STEPS)


def never_low(express: Express, next_sequence: int, next_number: int) -> None:
    """No numbers are reserved."""


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
    "writes too late": (Express, "_write_age_ms", NEVER, "acknowledged and are gone|could be"),
    "reserves no numbers": (Express, "reserve", never_low, "durable|is that of|got number"),
    "closes with messages in memory": (runtime, "write_all", lambda state, now_ms: None, "acknowledged and are gone"),
    "reads too early": (Slot, "needed_by", does_not_wait, "gone|overtaken|still holds|could be|finished"),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, planted, complaint = PLANTED[bug]
    monkeypatch.setattr(owner, name, planted)
    with pytest.raises(BrokenPromise, match=rf"(?s)({complaint}).*--steps {STEPS} --express-ms {EXPRESS_BOUND_MS}"):
        run_all()
