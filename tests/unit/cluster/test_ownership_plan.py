"""The steps by which stores find owners: one owner at a time, whatever happens in between."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from partibus.cluster.assignment import GiveUp, OwnershipPlan, Take

STORES = 7
BROKERS = ("a", "b", "c", "d")


class World:
    """The open stores of brokers. A broker answers what it was asked, some time or, when it ends, never."""

    def __init__(self) -> None:
        self.plan = OwnershipPlan(STORES)
        self.open: dict[int, str] = {}
        self.asked: list[Take | GiveUp] = []
        self.present: set[str] = set()

    def go_on(self) -> None:
        self.asked += self.plan.next_steps()
        self.check()

    def join(self, broker: str) -> None:
        if broker not in self.present:
            self.present.add(broker)
            self.plan.joined(broker)
            self.go_on()

    def end(self, broker: str) -> None:
        if broker in self.present:
            self.present.discard(broker)
            self.open = {store: owner for store, owner in self.open.items() if owner != broker}
            self.asked = [step for step in self.asked if step.broker != broker]
            self.plan.left(broker)
            self.go_on()

    def answer(self, index: int) -> None:
        if not self.asked:
            return
        step = self.asked.pop(index % len(self.asked))
        if isinstance(step, Take):
            assert step.store_no not in self.open, "two brokers would have it open"
            self.open[step.store_no] = step.broker
            self.plan.taken(step.store_no, step.broker)
        else:
            assert self.open.pop(step.store_no) == step.broker
            self.plan.released(step.store_no, step.broker)
        self.go_on()

    def check(self) -> None:
        stores = [step.store_no for step in self.asked]
        assert len(stores) == len(set(stores)), "one step at a time for each store"
        assert all(step.broker in self.present for step in self.asked)
        for store, owner in enumerate(self.plan.owners):
            assert owner is None or self.open.get(store) == owner, "said to own what it has not opened"


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["join", "end"]), st.sampled_from(BROKERS)),
            st.tuples(st.just("answer"), st.integers(0, 20)),
        ),
        max_size=60,
    )
)
def test_a_store_never_has_two_owners_and_all_have_one_in_the_end(events: list[tuple[str, object]]) -> None:
    world = World()
    for what, argument in events:
        getattr(world, what)(argument)
    world.join("a")
    while world.asked:
        world.answer(0)
    assert world.plan.settled
    assert set(world.open) == set(range(STORES))
    sizes = [list(world.open.values()).count(broker) for broker in world.present]
    assert max(sizes) - min(sizes) <= 1


def test_late_news_of_the_dead_change_nothing() -> None:
    plan = OwnershipPlan(1)
    plan.joined("a")
    plan.next_steps()
    plan.left("a")
    plan.joined("b")
    assert plan.next_steps() == [Take(0, "b")]
    plan.taken(0, "a")
    plan.released(0, "a")
    assert plan.owners == [None]
    plan.taken(0, "b")
    assert plan.owners == ["b"]


def test_a_store_on_the_move_has_no_owner() -> None:
    plan = OwnershipPlan(2)
    plan.joined("a")
    for step in plan.next_steps():
        plan.taken(step.store_no, "a")
    plan.joined("b")
    assert plan.next_steps() == [GiveUp(1, "a")]
    assert plan.owners == ["a", None]
    assert not plan.settled
    plan.released(1, "a")
    assert plan.next_steps() == [Take(1, "b")]
    assert plan.owners == ["a", None]
    plan.taken(1, "b")
    assert plan.owners == ["a", "b"]


def test_who_is_to_end_gives_up_everything_and_gets_nothing() -> None:
    plan = OwnershipPlan(3)
    for broker in "ab":
        plan.joined(broker)
    for step in plan.next_steps():
        plan.taken(step.store_no, step.broker)
    plan.leaving("b")
    (step,) = plan.next_steps()
    assert step == GiveUp(1, "b")
    assert plan.has_any("b")
    plan.released(1, "b")
    assert not plan.has_any("b")
    assert plan.next_steps() == [Take(1, "a")]
    plan.taken(1, "a")
    assert plan.settled
    plan.left("b")
    plan.joined("b")
    assert not plan.settled
