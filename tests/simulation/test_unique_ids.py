"""Ids that are unique in all partitions of a queue: every order of the steps of simultaneous sends.

Slots move meanwhile, and partitions are loaded again.

The partitions and the front ends' way to them are the broker's own. Between them a schedule decides which command is
carried out next. Each run of a schedule is repeatable, so all schedules of two sends are tried, and many of three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from partibus.message import WIDE_ID, Message
from partibus.partition.core.intents import INTENT_MS, Intents
from partibus.partition.core.machine import Partition
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.slots import slot_for_key
from partibus.routing.elastic import SlotLoad
from partibus.routing.partitions import Numbers
from partibus.routing.placing import KeyedParts

OPTIONS = PartitionOptions(requires_session=True, duplicate_window_ms=300_000)
WINDOW_END_MS = 10_000_000
GROUPS = {0: "group-0", 1: "group-1", 2: "group-2"}
"""A group for each partition."""
ID = f"{WIDE_ID}the id"

Action = Callable[[], None]


class Twice(AssertionError):
    """An id was stored in two partitions."""


class World:
    """Partitions, and the commands on their way to them."""

    def __init__(self, partitions: int) -> None:
        self.machines = [Partition(row, OPTIONS, None, epoch=1) for row in range(partitions)]
        self.pending: list[tuple[str, Action]] = []
        """The next possible steps."""
        self.stored: list[tuple[int, bytes]] = []
        """Partition and tag of every message that was stored."""
        self.now_ms = 1_000
        self.waiting: dict[int, Callable[[Any], None]] = {}
        self.numbers = Numbers()

    def handle(self, place: int, command: Any) -> None:
        """Carry a command out; its replies reach their askers at once."""
        messages = command.messages if isinstance(command, c.Enqueue) else []
        step = self.machines[place].handle(command, self.now_ms)
        for reply in step.replies:
            if isinstance(reply, r.Accepted) and isinstance(command, c.Enqueue):
                known = {*reply.known, *(command.screened or ())}
                self.stored += [(place, one.tag) for n, one in enumerate(messages) if n not in known]
        assert not step.loads, "the partitions have no past"
        for reply in step.replies:
            answered = self.waiting.pop(r.request_of(reply), None)
            if answered is not None:
                answered(reply)

    def load_again(self, place: int) -> None:
        """Lose what the store does not have."""
        state = self.machines[place].state
        assert state.duplicates is not None
        state.duplicates.intents = Intents()
        state.epoch += 1
        state.next_reservation = 1
        for request in [request for request, answered in self.waiting.items() if _place_of(answered) == place]:
            self.waiting.pop(request)(r.Failed(request, False, False, "the partition is loaded again"))

    def check(self) -> None:
        """Every tag names the one message that was stored."""
        if len(self.stored) > 1:
            raise Twice(str(self.stored))


def _place_of(answered: Any) -> int:
    place: int = answered.place
    return place


class Handle:
    """A partition as a front end has it: commands wait until the schedule lets them go."""

    def __init__(self, world: World, place: int, name: str) -> None:
        self.partition_id = place
        self._world = world
        self._name = name

    def submit(self, command: Any, on_reply: Callable[[Any], None], *, more: bool = False) -> None:
        world, place = self._world, self.partition_id

        def answered(reply: Any) -> None:
            on_reply(reply)

        answered.place = place  # type: ignore[attr-defined]

        def go() -> None:
            world.waiting[command.request] = answered
            world.handle(place, command)

        world.pending.append((f"{self._name}: {type(command).__name__} at {place}", go))


class FrontEnd:
    """A front end that knows so many partitions, and learns of others when one names them."""

    def __init__(self, world: World, name: str, known: int, owners: dict[str, int]) -> None:
        self.world = world
        self.name = name
        self.partitions = [Handle(world, place, name) for place in range(known)]
        self.slots = SimpleNamespace(partition_of=lambda key: owners[key])
        self.numbers = world.numbers
        self.load = SlotLoad()
        self.on_sent = None
        self.answers: list[Any] = []

    def partition(self, place: int) -> Handle | None:
        if place >= len(self.world.machines):
            return None
        while place >= len(self.partitions):
            self.partitions.append(Handle(self.world, len(self.partitions), self.name))
        return self.partitions[place]

    def send(self, group: str) -> None:
        """Send a message with the id that all have, of a tag of its own; a failed send is tried again."""
        tag = self.name.encode().ljust(16)
        messages = [Message(b"x", message_id=ID, session_id=group, tag=tag)]
        route: Any = self
        parts: KeyedParts

        def make(request: int, indexes: list[int]) -> c.Enqueue:
            return c.Enqueue(request, [messages[index] for index in indexes])

        def answered(partition: Any, indexes: list[int], reply: Any) -> None:
            if not isinstance(reply, r.Accepted):
                self.world.pending.append((f"{self.name}: again", lambda: self.send(group)))
                return
            known = reply.known.get(0)
            former = parts.known.get(0)
            self.answers.append(known[1] if known is not None else former[2] if former is not None else tag)

        parts = KeyedParts(route, messages, make, answered, unique=len(self.partitions) > 1)
        parts.send_by_key([0], measured=True)


class Schedule:
    """Choices that are given, then the first; it notes between how many each was."""

    def __init__(self, choices: list[int]) -> None:
        self.choices = choices
        self.options: list[int] = []

    def choose(self, count: int) -> int:
        place = len(self.options)
        self.options.append(count)
        if place == len(self.choices):
            self.choices.append(0)
        return self.choices[place]


def schedules(most: int) -> Iterator[Schedule]:
    """Every schedule, each after the run of the one before has shown its choices."""
    choices: list[int] = []
    for _ in range(most):
        schedule = Schedule(choices)
        yield schedule
        while schedule.choices and schedule.choices[-1] + 1 >= schedule.options[len(schedule.choices) - 1]:
            schedule.choices.pop()
        if not schedule.choices:
            return
        choices = [*schedule.choices[:-1], schedule.choices[-1] + 1]
    raise AssertionError("there are more schedules")


def run(world: World, senders: list[FrontEnd], choose: Callable[[int], int]) -> list[str]:
    """Carry everything out in the order of a schedule; then each sender has the one answer."""
    told = []
    while world.pending:
        name, action = world.pending.pop(choose(len(world.pending)))
        told.append(name)
        action()
        world.check()
        assert len(told) < 500, "the sends get nowhere"
    # A front end that has gone leaves its announcement to the clock.
    while world.waiting:
        world.now_ms += INTENT_MS
        for place in range(len(world.machines)):
            world.handle(place, c.Tick())
        while world.pending:
            world.pending.pop(0)[1]()
            world.check()
    (stored,) = world.stored
    assert [sender.answers for sender in senders] == [[stored[1]]] * len(senders), told
    return told


def two_sends() -> tuple[World, list[FrontEnd]]:
    world = World(2)
    owners = {GROUPS[0]: 0, GROUPS[1]: 1}
    senders = [FrontEnd(world, f"sender-{place}", 2, owners) for place in (0, 1)]
    for place, sender in enumerate(senders):
        sender.send(GROUPS[place])
    return world, senders


def moved_slot() -> tuple[World, list[FrontEnd]]:
    """The slot of a group has moved to a second partition, of which one front end does not know."""
    world = World(2)
    _move(world, GROUPS[1])
    late = FrontEnd(world, "late", 1, {GROUPS[0]: 0, GROUPS[1]: 0})
    new = FrontEnd(world, "new", 2, {GROUPS[0]: 0, GROUPS[1]: 1})
    late.send(GROUPS[0])
    new.send(GROUPS[1])
    return world, [late, new]


def _take(world: World, group: str, source: int = 0, target: int = 1) -> None:
    run = (slot_for_key(group), slot_for_key(group) + 1)
    world.handle(target, c.TakeSlots(world.numbers.next(), source, 1, [run], WINDOW_END_MS, 1 << 20))


def _give(world: World, group: str, source: int = 0, target: int = 1) -> None:
    run = (slot_for_key(group), slot_for_key(group) + 1)
    world.handle(source, c.GiveSlots(world.numbers.next(), target, 1, [run], 1 << 20))


def _move(world: World, group: str) -> None:
    _take(world, group)
    _give(world, group)


def moving_slot(random: Random) -> tuple[World, list[FrontEnd]]:
    """Three front ends send the id while the slot of a group moves; each begins at any time, and knows what it may."""
    world = World(2)
    owners = {GROUPS[0]: 0, GROUPS[1]: 0, GROUPS[2]: 0}
    given: list[bool] = []
    senders: list[FrontEnd] = []

    def begin(name: str, group: str, *, late: bool) -> Action:
        sender = FrontEnd(world, name, 1, owners)
        senders.append(sender)

        def go() -> None:
            if given and not late:  # it has the new map
                sender.slots = SimpleNamespace(partition_of=lambda key: int(key == GROUPS[1]))
                sender.partition(1)
            sender.send(group)

        return go

    def move() -> None:
        _take(world, GROUPS[1])
        world.pending.append(("mover: give", give))

    def give() -> None:
        _give(world, GROUPS[1])
        given.append(True)

    for number in range(3):
        group, late = random.choice((GROUPS[0], GROUPS[1], GROUPS[1])), random.random() < 0.4
        world.pending.append((f"{number} begins", begin(f"{number}", group, late=late)))
    world.pending.append(("mover: take", move))
    for place in (0, 1):
        if random.random() < 0.3:
            world.pending.append((f"loads {place} again", partial(world.load_again, place)))
    return world, senders


@pytest.mark.parametrize("scene", [two_sends, moved_slot], ids=["two partitions", "a moved slot"])
def test_of_two_sends_of_an_id_one_is_stored_in_every_order(
    scene: Callable[[], tuple[World, list[FrontEnd]]],
) -> None:
    orders = set()
    for schedule in schedules(5_000):
        world, senders = scene()
        orders.add(tuple(run(world, senders, schedule.choose)))
    assert len(orders) >= 15


def test_an_id_is_stored_once_while_slots_move_and_partitions_are_loaded_again() -> None:
    for seed in range(1_500):
        random = Random(seed)
        world, senders = moving_slot(random)
        try:
            run(world, senders, random.randrange)
        except AssertionError as error:
            raise type(error)(f"seed {seed}: {error}") from error


def test_three_sends_to_three_partitions_store_one_message() -> None:
    for seed in range(1_000):
        random = Random(seed)
        world = World(3)
        owners = {group: place for place, group in GROUPS.items()}
        senders = [FrontEnd(world, str(place), 3, owners) for place in GROUPS]
        for place, sender in enumerate(senders):
            sender.send(GROUPS[place])
        for place in GROUPS:
            if random.random() < 0.2:
                world.pending.append(("loads again", partial(world.load_again, place)))
        run(world, senders, random.randrange)


def test_the_announcement_of_a_front_end_that_has_gone_ends_by_the_clock() -> None:
    world = World(2)
    gone, other = (FrontEnd(world, name, 2, {GROUPS[0]: 0, GROUPS[1]: 1}) for name in ("gone", "other"))
    gone.send(GROUPS[0])
    world.pending.pop()[1]()  # announced
    del world.pending[:]
    other.send(GROUPS[1])
    while world.pending:
        world.pending.pop()[1]()
    assert other.answers == [], "it waits at the lower partition"
    assert world.machines[0].next_deadline_ms() == world.now_ms + INTENT_MS
    assert not world.machines[0].may_go_cold
    world.now_ms += INTENT_MS
    world.handle(0, c.Tick())
    while world.pending:
        world.pending.pop()[1]()
    assert other.answers == [b"other".ljust(16)]
    assert world.stored == [(1, b"other".ljust(16))]


@pytest.mark.parametrize("bug", ["none is revoked", "none waits", "any token is good", "no announcement is asked for"])
def test_planted_bugs_are_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    match bug:
        case "none is revoked":
            monkeypatch.setattr(Intents, "revoke", lambda self, ids: None)
        case "none waits":
            monkeypatch.setattr(Intents, "park", lambda self, command, ids: False)
        case "any token is good":
            monkeypatch.setattr(Intents, "take", lambda self, token, ids, now_ms: True)
        case _:
            monkeypatch.setattr("partibus.partition.core.enqueue._unannounced", lambda *_: None)
    scene = moved_slot if bug == "no announcement is asked for" else two_sends
    with pytest.raises(Twice):
        test_of_two_sends_of_an_id_one_is_stored_in_every_order(scene)
