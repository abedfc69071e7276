"""Seeded histories of entities that forward to one another, over crashes at any commit, lost answers and owners that do
not know yet that they are none; and bugs planted to prove that the checks can fail.

PARTIBUS_SIMULATION_SEEDS runs more of them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from partibus.forwarding import pump as pump_module
from partibus.forwarding.destination import Destination, Outgoing, Undeliverable, prepare
from partibus.forwarding.pump import Pump
from partibus.message import Message
from partibus.partition.core import enqueue, grants, range_scans
from partibus.partition.core.events import Event
from partibus.partition.core.forwarding import new_ones
from partibus.partition.core.journal import record
from partibus.partition.core.ready_list import ReadyList
from partibus.partition.core.state import PartitionState
from partibus.partition.core.step import Step
from partibus.partition.core.subqueue import Subqueue
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.generations import Generation
from partibus.partition.protocol.ports import Writes
from partibus.partition.runtime import commits
from partibus.store.memory import MemoryDisk
from tests.kit.forwarding_simulation import STEPS, ForwardingSimulation
from tests.kit.invariants import BrokenPromise
from tests.plugins.soak import seeds

SEEDS = seeds(int(os.environ.get("PARTIBUS_SIMULATION_SEEDS", "20")))
CANARY_SEEDS = range(1, 80)


@pytest.mark.row("F1", "F3", "R14")
@pytest.mark.timeout(0)
def test_every_message_is_forwarded_once() -> None:
    happened: Counter[str] = Counter()
    for seed in SEEDS:
        simulation = ForwardingSimulation(seed)
        simulation.run(STEPS)
        happened.update(simulation.happened)
        happened.update(simulation.faults.happened)
    for what, least in {"crashes": 4, "fenced": 2, "restored": 2, "forwarded": 200, "locked before": 10}.items():
        assert happened[what] >= least * len(SEEDS), f"too little of {what} to prove anything: {happened}"


def forgets_marks(partition_row: int, events: Iterable[Event], writes: Writes) -> bool:
    """Marks are kept in memory only."""
    waited = record(partition_row, events, writes)
    writes.inbound_marks.clear()
    return waited


def knows_nothing(
    state: PartitionState, command: c.Enqueue, ids: Iterator[bytes | None] | None, step: Step
) -> list[Message]:
    """Everything that is sent again is stored again."""
    return command.messages


def knows_the_last_only(
    state: PartitionState, command: c.Enqueue, ids: Iterator[bytes | None] | None, step: Step
) -> list[Message]:
    """A command of which a part has come is taken for one that has come."""
    new = new_ones(state, command, ids, step)
    return new if len(new) == len(command.messages) else []


def passes_over(ready_list: ReadyList) -> int:
    """What others hold does not hold up what comes after it."""
    return ready_list.paged_up_to


def back_to_its_place(state: PartitionState, subqueue: Subqueue, entries: list[Any], step: Step) -> None:
    """What comes back from a delay lies where it was, which has been forwarded."""
    range_scans._return(state, subqueue, entries, step)


def settles_early(pump: Pump, way: Any) -> None:
    """The source is told before the destination has answered."""
    send(pump, way)
    if way.sent is not None:
        pump._submit(c.Forwarded(0, pump._source.kind, way.tokens))


def goes_on(pump: Pump, way: Any, reply: Any) -> None:
    """What was not stored is left for later, and what comes after it is sent."""
    if isinstance(reply, r.Failed) and pump._alive:
        way.waiting += way.tokens
        way.messages += way.sent.messages
        way.sent, way.tokens = None, []
        pump._call_later(50.0, lambda: pump._send(way))
        return
    answered(pump, way, reply)


def another_partition(
    data: bytes, pos: int, number: int, source: str | None, turn: int, destination: Destination
) -> Outgoing | Undeliverable:
    """Messages without a key go wherever they go."""
    anywhere["turn"] += 1
    return prepare(data, pos, number, source, turn + anywhere["turn"], destination)


def hops_stand_still(
    data: bytes, pos: int, number: int, source: str | None, turn: int, destination: Destination
) -> Outgoing | Undeliverable:
    """Nobody counts."""
    outgoing = prepare(data, pos, number, source, turn, destination)
    if isinstance(outgoing, Outgoing):
        outgoing.message.data = data
    return outgoing


def never_went_back(disk: MemoryDisk) -> MemoryDisk:
    """A backup is served like the store that it was made of."""
    copy = backup(disk)
    copy.is_copy = False
    return copy


def of_the_store_alone(subqueue: int, generation: Generation) -> int:
    """Marks know nothing of generations."""
    return subqueue


send = Pump._send
backup = MemoryDisk.backup
answered = Pump._answered
anywhere: Counter[str] = Counter()


@pytest.mark.parametrize(
    ("where", "name", "planted"),
    [
        (commits, "record", forgets_marks),
        (enqueue, "new_ones", knows_nothing),
        (enqueue, "new_ones", knows_the_last_only),
        (grants, "barrier", passes_over),
        (range_scans, "to_the_end", back_to_its_place),
        (Pump, "_send", settles_early),
        (Pump, "_answered", goes_on),
        (pump_module, "prepare", another_partition),
        (pump_module, "prepare", hops_stand_still),
        (pump_module, "origin_key", of_the_store_alone),
        (MemoryDisk, "backup", never_went_back),
    ],
)
def test_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, where: Any, name: str, planted: Callable[..., Any]
) -> None:
    monkeypatch.setattr(where, name, planted)
    with pytest.raises(BrokenPromise):
        run_all(CANARY_SEEDS[FIRST.get(planted, 1) - 1 :])


FIRST = {back_to_its_place: 7, of_the_store_alone: 15}
"""The seed to begin with, where that of the first history that shows a bug is known."""


def run_all(seeds: Iterable[int]) -> None:
    """One history after the other."""
    for seed in seeds:
        ForwardingSimulation(seed).run(STEPS)
