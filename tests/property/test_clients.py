"""How many clients there are of a namespace whose brokers hear of one another now and then (rows C35, C36).

A small world: brokers that admit clients, lose them, hear what the others have, or are lost themselves, in any order.
The test records what each broker has admitted and released since another one heard of it: by so much that one may be
mistaken.
"""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partibus.errors import QuotaExceeded, ServerBusy
from partibus.namespace.catalog_entities import EntityRecord
from partibus.namespace.clients import Clients
from partibus.namespace.entities import EntityDescription
from partibus.namespace.namespace_options import Bounds, NamespaceOptions
from partibus.namespace.queues import Queue

BROKERS = range(3)
MOST = 4
BOUNDS = Bounds(NamespaceOptions(limits=dict.fromkeys(("connections", "entity_connections", "receivers"), MOST)))
ENTITY = Queue(EntityRecord(7, EntityDescription("q"), (), 0, 0))
OTHER = Queue(EntityRecord(8, EntityDescription("other"), (), 0, 0))


class Broker:
    """One of them, and who is there through it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.clients = Clients("acme", BOUNDS)
        self.there: list[object] = []
        self.clients.use(OTHER, self)  # nobody's business
        self.clients.add_receiver(OTHER)

    def admits(self) -> bool:
        who = object()
        try:
            match self.kind:
                case "connections":
                    self.clients.connect()
                case "users":
                    self.clients.use(ENTITY, who)
                case "receivers":
                    self.clients.add_receiver(ENTITY)
        except (QuotaExceeded, ServerBusy):
            return False
        self.there.append(who)
        return True

    def let_go(self) -> None:
        who = self.there.pop()
        match self.kind:
            case "connections":
                self.clients.disconnect()
            case "users":
                self.clients.leave(ENTITY, who)
            case "receivers":
                self.clients.remove_receiver(ENTITY)


class World:
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.brokers = [Broker(kind) for _ in BROKERS]
        self.admitted = Counter[tuple[int, int]]()
        """Admitted requests by broker, since another one heard of them."""
        self.gone = Counter[tuple[int, int]]()

    @property
    def total(self) -> int:
        return sum(len(broker.there) for broker in self.brokers)

    def note(self, changes: Counter[tuple[int, int]], source: int, count: int) -> None:
        for listener in BROKERS:
            if listener != source:
                changes[source, listener] += count

    def admit(self, number: int) -> None:
        others = [other for other in BROKERS if other != number]
        if self.brokers[number].admits():
            self.note(self.admitted, number, 1)
            assert self.total <= MOST + sum(self.admitted[other, number] for other in others)
        else:
            assert self.total + sum(self.gone[other, number] for other in others) >= MOST

    def let_go(self, number: int) -> None:
        if self.brokers[number].there:
            self.brokers[number].let_go()
            self.note(self.gone, number, 1)

    def hear(self, number: int) -> None:
        others = [other for other in BROKERS if other != number]
        told = json.loads(json.dumps([self.brokers[other].clients.told for other in others]))
        self.brokers[number].clients.hear([one for one in told if one is not None])
        for other in others:
            self.admitted[other, number] = self.gone[other, number] = 0

    def lose(self, number: int) -> None:
        """Another run of it begins, which hears of the others before it has clients."""
        self.note(self.gone, number, len(self.brokers[number].there))
        self.brokers[number] = Broker(self.kind)
        self.hear(number)


STEPS = st.tuples(st.sampled_from(["admit"] * 4 + ["let_go", "hear", "hear", "lose"]), st.sampled_from(BROKERS))


@pytest.mark.parametrize("kind", ["connections", "users", "receivers"])
@pytest.mark.row("C35", "C36")
@given(steps=st.lists(STEPS, max_size=60))
def test_there_are_more_only_by_what_others_have_not_told_yet(kind: str, steps: list[tuple[str, int]]) -> None:
    world = World(kind)
    for step, number in steps:
        getattr(world, step)(number)
    for number in BROKERS:
        world.hear(number)
    before = world.total
    for number in BROKERS:
        world.admit(number)
        for other in BROKERS:
            world.hear(other)
    assert world.total == max(before, min(MOST, before + len(BROKERS)))
    for broker in world.brokers:
        while broker.there:
            broker.let_go()
        broker.clients.leave(OTHER, broker)
        broker.clients.remove_receiver(OTHER)
        assert broker.clients.told is None, "nothing is kept of who is gone"


def test_entities_with_few_clients_are_not_told_of() -> None:
    clients = Clients("acme", Bounds(NamespaceOptions(limits={"entity_connections": 2_000, "receivers": 3_000})))
    clients.connect()
    clients.use(ENTITY, "one")
    clients.use(ENTITY, "one")
    clients.add_receiver(OTHER)
    clients.add_receiver(OTHER)
    assert clients.told == (1, {})
    clients.use(ENTITY, "another")
    assert clients.told == (1, {"7": (2, 0)})
    clients.add_receiver(OTHER)
    assert clients.told == (1, {"7": (2, 0), "8": (0, 3)})
