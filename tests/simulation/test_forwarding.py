"""Seeded histories of entities that forward to one another, over crashes at any commit, lost answers and owners that do
not know yet that they are none; and bugs planted to prove that the checks can fail.

PARTIBUS_SIMULATION_SEEDS runs more of them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from partibus.amqp.codec.encoder import encode
from partibus.forwarding import pump as pump_module
from partibus.forwarding.destination import Destination, Outgoing, Undeliverable, prepare
from partibus.forwarding.pump import Pump
from partibus.message import Message, pack
from partibus.partition.core import enqueue, forwarding, grants, range_scans
from partibus.partition.core.events import Event
from partibus.partition.core.forwarding import new_ones
from partibus.partition.core.journal import record
from partibus.partition.core.ready_list import ReadyList
from partibus.partition.core.state import REFUSALS_KEY, PartitionState
from partibus.partition.core.step import Step
from partibus.partition.core.subqueue import Subqueue
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.generations import NO_SERIES, Generation, History, Series, origin_key, origin_of
from partibus.partition.protocol.ports import Writes
from partibus.partition.runtime import commits
from tests.kit.forwarding_simulation import (
    ENTITY_OF,
    HUB,
    INBOX,
    ROWS,
    SINK,
    STEPS,
    STORE_OF,
    Distant,
    ForwardingSimulation,
)
from tests.kit.invariants import BrokenPromise, body_of, name_in
from tests.kit.stores.faulty import NO_FAULTS
from tests.kit.stores.memory import MemoryDisk
from tests.plugins.soak import seeds

SEEDS = seeds(int(os.environ.get("PARTIBUS_SIMULATION_SEEDS", "20")))
FOUND_SEEDS = (300_020, 300_083, 300_269)
"""They lost messages that a receiver had set aside when forwarding began."""
CANARY_SEEDS = range(1, 160)
INBOX_ROW = ROWS[INBOX][0]


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


class QuietWorld(ForwardingSimulation):
    """A world in which no client sends or receives, and nothing fails, unless a test says so."""

    def __init__(self) -> None:
        super().__init__(1)
        self.faults.faults = NO_FAULTS
        self.backups.clear()

    def _produce(self, producer: int) -> None:
        pass

    def _refuse(self, random: Random) -> None:
        pass

    _consume_inbox = _dead_letter = begin_forwarding = lambda self: None

    def submit(self, command: c.Command) -> r.Reply:
        """Have the first partition of the inbox do a command."""
        replies: list[r.Reply] = []
        runtime = self.processes[STORE_OF[INBOX_ROW]].runtime
        runtime.register(command.receiver, replies.append) if isinstance(command, c.Receive) else None
        runtime.submit(INBOX_ROW, self.options[INBOX], command, replies.append)
        self.run_until(lambda: bool(replies))
        return replies[0]

    def run_until(self, done: Callable[[], bool]) -> None:
        while not done():
            assert len(self.timeline), "everything is at rest"
            self.timeline.run_next()


SET_ASIDE = [c.Settle(9, 0, c.Outcome.ABANDON, [], delay_ms=60_000), c.Settle(9, 0, c.Outcome.DEFER, [])]


@pytest.mark.row("R14")
@pytest.mark.parametrize("set_aside", SET_ASIDE, ids=["delayed", "deferred"])
def test_a_message_that_was_set_aside_is_forwarded_from_a_copy_where_it_was_not(set_aside: c.Settle) -> None:
    pass_over_and_restore(set_aside)


def test_a_mark_that_counts_for_what_was_passed_over_loses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump_module, "origin_of", counts_for_what_was_there_before)
    with pytest.raises(AssertionError, match="at rest"):
        pass_over_and_restore(SET_ASIDE[1])


def pass_over_and_restore(set_aside: c.Settle) -> None:
    """Forward messages but the first one, which a receiver sets aside; then put a copy back in which it has not."""
    world = QuietWorld()
    names = range(1, 9)  # some later one goes to the same partition as the first
    world.sent = dict.fromkeys(names, (None, 0))
    messages = [Message(pack(properties=b"\x00\x53\x73" + encode([str(n)]), rest=body_of(n))) for n in names]
    assert isinstance(world.submit(c.Enqueue(7, messages)), r.Accepted)
    granted = world.submit(c.Receive(0, 8, 1, 5_000))
    assert isinstance(granted, r.Granted)
    store = STORE_OF[INBOX_ROW]
    world.backups[store] = world.disks[store].backup()

    ForwardingSimulation.begin_forwarding(world)
    set_aside = replace(set_aside, tokens=[(granted.lock_id, granted.entries[0].pos)])
    assert isinstance(world.submit(set_aside), r.Settled)
    world.run_until(lambda: len(world.places_of(SINK)) == len(names) - 1)
    world.restore(store)
    world.run_until(lambda: {name for name, _ in world.places_of(SINK)} == {*names})


def test_the_histories_that_lost_what_was_set_aside_keep_it() -> None:
    """`pass_over_and_restore` always shows the loss: one history in two hundred has it, and not always the same."""
    run_all(FOUND_SEEDS)


@pytest.mark.row("R14")
def test_a_message_that_was_refused_is_forwarded_from_a_copy_where_it_was_not(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_and_restore(monkeypatch, {1}, set())


@pytest.mark.row("R14")
def test_a_copy_that_refuses_another_message_forwards_those_that_were_refused_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The restored copy has then as many refusals as the destination knows, but of other messages."""
    refuse_and_restore(monkeypatch, {1, 5}, {2})


def test_a_mark_that_counts_in_spite_of_refusals_loses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "keys_of", counts_in_spite_of_refusals)
    with pytest.raises(AssertionError, match="at rest"):
        refuse_and_restore(monkeypatch, {1}, set())


def test_a_mark_that_counts_in_a_copy_with_refusals_of_its_own_loses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionState, "count_refusal", counts_only)
    with pytest.raises(AssertionError, match="at rest"):
        refuse_and_restore(monkeypatch, {1, 5}, {2})


def refuse_and_restore(monkeypatch: pytest.MonkeyPatch, before: set[int], after: set[int]) -> None:
    """Forward messages but those that the destination refuses; then put back a copy in which they are at their places.

    From then on the destination refuses other messages, ``after``.
    """
    refused = {*before}
    monkeypatch.setattr(pump_module, "prepare", refusing(refused))
    world = QuietWorld()
    names = range(1, 21)
    world.sent = dict.fromkeys((*names, 50), (None, 0))
    ForwardingSimulation.begin_forwarding(world)
    assert isinstance(world.submit(c.Enqueue(6, named(50))), r.Accepted)
    world.run_until(lambda: len(world.places_of(SINK)) == 1)
    assert isinstance(world.submit(c.Enqueue(7, named(*names))), r.Accepted)
    store = STORE_OF[INBOX_ROW]
    world.backups[store] = world.disks[store].backup()
    assert {name for name, _ in world.places(store, world.backups[store])} >= {*names}, "copied before they left"

    def arrived() -> set[int]:
        return {name for name, _ in world.places_of(SINK)} - {50}

    world.run_until(lambda: arrived() == {*names} - before)
    refused.clear()
    refused |= after
    world.restore(store)
    world.run_until(lambda: arrived() >= {*names} - after and not world.left())


@pytest.mark.row("F1")
def test_no_message_leaves_before_the_refusal_of_an_earlier_one_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a crash puts the refused message back below the mark of the destination, which then takes it."""
    refused = {1}
    monkeypatch.setattr(pump_module, "prepare", refusing(refused))
    world = QuietWorld()
    names = range(1, 21)
    world.sent = dict.fromkeys(names, (None, 0))
    ForwardingSimulation.begin_forwarding(world)
    runtime = world.processes[STORE_OF[INBOX_ROW]].runtime
    submit = runtime.submit
    lost: list[c.Forwarded] = []

    def loses_refusals(row: int, options: Any, command: c.Command, *args: Any, **more: Any) -> None:
        if isinstance(command, c.Forwarded) and command.reason is not None:
            lost.append(command)
        else:
            submit(row, options, command, *args, **more)

    monkeypatch.setattr(runtime, "submit", loses_refusals)
    submit(INBOX_ROW, world.options[INBOX], c.Enqueue(7, named(*names)), lambda _: None)
    world.run_until(lambda: bool(lost))
    for _ in range(200):
        if len(world.timeline):
            world.timeline.run_next()
    refused.clear()
    world.crash(STORE_OF[INBOX_ROW])
    world.run_until(lambda: {name for name, _ in world.places_of(SINK)} == {*names})


def test_a_batch_to_a_topic_with_many_subscriptions_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    world = QuietWorld()
    names = range(1, 21)
    world.sent = dict.fromkeys(names, (None, 0))
    process = world.processes[STORE_OF[INBOX_ROW]]
    find = process.find
    monkeypatch.setattr(process, "find", lambda name: find(name)._replace(batch_messages=3))
    sizes: list[int] = []
    submit = Distant.submit

    def counts(distant: Distant, row: int, options: Any, command: c.Enqueue, *args: Any, **more: Any) -> None:
        if ENTITY_OF[row] == HUB:
            sizes.append(len(command.messages))
        submit(distant, row, options, command, *args, **more)

    monkeypatch.setattr(Distant, "submit", counts)
    ForwardingSimulation.begin_forwarding(world)
    world.submit(c.Enqueue(7, named(*names)))
    world.run_until(lambda: {name for name, _ in world.places_of(SINK)} == {*names})
    assert max(sizes) == 3
    assert sum(sizes) >= len(names)


def named(*names: int) -> list[Message]:
    """Return messages with these names."""
    return [Message(pack(properties=b"\x00\x53\x73" + encode([str(n)]), rest=body_of(n))) for n in names]


def refusing(refused: set[int]) -> Callable[..., Outgoing | Undeliverable]:
    """Return a `prepare` for destinations that refuse some messages."""

    def prepare_but_for(data: bytes, *args: Any) -> Outgoing | Undeliverable:
        return Undeliverable("MessageSizeExceeded", "too long") if name_in(data) in refused else prepare(data, *args)

    return prepare_but_for


def counts_in_spite_of_refusals(source: int, history: History | None, _marks: Any) -> list[int]:
    """A mark from before a restore always counts."""
    return [source, history.before] if history is not None and history.before else [source]


def counts_only(state: PartitionState, kind: int, step: Step) -> None:
    """Marks from before a restore go on to count after a refusal in the copy."""
    state.raise_mark(REFUSALS_KEY + kind, state.refusals(kind) + 1, step)


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
    """Messages under lock do not delay those behind them."""
    return ready_list.paged_up_to


def back_to_its_place(state: PartitionState, subqueue: Subqueue, entries: list[Any], step: Step) -> None:
    """A message that returns from a delay lies at its old place, which has been passed."""
    range_scans._return(state, subqueue, entries, step)


def settles_early(pump: Pump, way: Any) -> None:
    """The source is told before the destination has answered."""
    send(pump, way)
    if way.sent is not None:
        pump._submit(c.Forwarded(0, pump._source.kind, way.tokens))


def goes_on(pump: Pump, way: Any, reply: Any) -> None:
    """A message that was not stored is left for later, and those behind it are sent."""
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
    """Count no hop."""
    outgoing = prepare(data, pos, number, source, turn, destination)
    if isinstance(outgoing, Outgoing):
        outgoing.message.data = data
    return outgoing


def never_went_back(disk: MemoryDisk) -> MemoryDisk:
    """A backup is served like the store that it was made of."""
    copy = backup(disk)
    copy.is_copy = False
    return copy


def counts_for_what_was_there_before(generations: Any, _series: Series, pos: int) -> tuple[Generation, int]:
    """A mark counts for messages from before its series."""
    return origin_of(generations, NO_SERIES, pos)


def of_the_store_alone(subqueue: int, generation: Generation, series: Series) -> int:
    """Marks know nothing of generations."""
    return origin_key(subqueue, Generation(1, 0), series)


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
        (forwarding, "keys_of", counts_in_spite_of_refusals),
        (MemoryDisk, "backup", never_went_back),
    ],
)
def test_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, where: Any, name: str, planted: Callable[..., Any]
) -> None:
    monkeypatch.setattr(where, name, planted)
    with pytest.raises(BrokenPromise):
        run_all(CANARY_SEEDS[FIRST.get(planted, 1) - 1 :])


FIRST = {
    forgets_marks: 3,
    knows_nothing: 3,
    back_to_its_place: 8,
    another_partition: 3,
    of_the_store_alone: 42,
    counts_in_spite_of_refusals: 156,
    never_went_back: 5,
}
"""The seed to begin with, where that of the first history that shows a bug is known."""


def run_all(seeds: Iterable[int]) -> None:
    """One history after the other."""
    for seed in seeds:
        ForwardingSimulation(seed).run(STEPS)
