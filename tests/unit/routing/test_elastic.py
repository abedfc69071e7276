"""When an elastic queue gets partitions or loses them, by a clock in the hand of the test."""

from __future__ import annotations

from itertools import product

import pytest

from partibus.limits import ElasticLimits
from partibus.partition.protocol.slots import slot_for_key
from partibus.routing.elastic import EVERY, Action, Decision, Elastic, SlotLoad, owners_used, rebalance
from partibus.routing.slots import SlotMap
from tests.kit.memory import held_bytes

KEYS = [f"item{n}" for n in range(200)]
MOST = 8


class Queue:
    """A queue with load, whose decisions are carried out at once."""

    def __init__(self, **limits: float) -> None:
        self.load = SlotLoad()
        self.elastic = Elastic(self.load, ElasticLimits(**limits))  # type: ignore[arg-type]
        self.used = 1
        self.now_ms = 1_000_000
        self.decisions: list[Decision] = []

    def run(self, seconds: int, requests: int, messages: int = 1, keys: list[str] | None = None) -> None:
        """Send for so long, spread evenly, and decide every second."""
        keys = keys or KEYS
        for _ in range(seconds):
            for n in range(self.used):
                share = requests // self.used
                self.elastic.note(n, Action.SEND, share * messages, self.now_ms, requests=share)
            for key in keys:
                self.load.note(key, 1)
            self.now_ms += 1_000
            decision = self.elastic.decide(SlotMap(self.used), self.used, MOST, self.now_ms)
            if decision is not None:
                self.decisions.append(decision)
                self.used = decision.partitions


@pytest.mark.parametrize(("requests", "messages"), [(239, 1), (120, 19)])
def test_load_below_the_threshold_changes_nothing(requests: int, messages: int) -> None:
    queue = Queue()
    queue.run(60, requests, messages)
    assert queue.decisions == []


@pytest.mark.row("S3")
@pytest.mark.parametrize(("requests", "messages", "used"), [(250, 1, 2), (100, 25, 2), (600, 1, 3), (1_500, 1, 7)])
def test_partition_near_its_capacity_is_split_in_one_step(requests: int, messages: int, used: int) -> None:
    queue = Queue()
    queue.run(60, requests, messages)
    assert queue.used == used
    assert len(queue.decisions) <= 2, "the window fills once more at most"
    assert max(queue.elastic.use_of(queue.now_ms).values()) < 0.8


@pytest.mark.row("S3")
def test_number_of_partitions_stops_at_the_quota() -> None:
    queue = Queue()
    queue.run(120, 30_000)
    assert queue.used == MOST


@pytest.mark.row("S4")
def test_calm_queue_loses_partitions_after_a_while_and_not_before() -> None:
    queue = Queue()
    queue.run(60, 600)
    assert queue.used == 3
    queue.run(290, 10)
    assert queue.used == 3
    queue.run(40, 10)
    assert queue.used == 1


def test_load_that_needs_most_of_the_partitions_keeps_them() -> None:
    queue = Queue()
    queue.run(60, 600)
    queue.run(900, 330)  # two partitions would be used by 55 %
    assert queue.used == 3


def test_load_at_the_threshold_does_not_go_back_and_forth() -> None:
    queue = Queue()
    for _ in range(20):
        queue.run(60, 250)
        queue.run(60, 150)
    assert len(queue.decisions) == 1


@pytest.mark.row("S3")
def test_one_hot_group_is_reported_and_not_split() -> None:
    queue = Queue()
    queue.run(30, 290, keys=["hot"] * 20 + KEYS[:10])
    assert queue.used == 1
    assert {decision.hot_slot for decision in queue.decisions} == {slot_for_key("hot")}


def test_changes_keep_a_distance() -> None:
    queue = Queue()
    queue.run(11, 250)
    queue.run(3, 2_400)
    assert len(queue.decisions) == 1
    queue.run(20, 2_400)
    assert len(queue.decisions) == 2


@pytest.mark.row("S8")
@pytest.mark.row("S11")
def test_each_part_draws_on_the_budget_of_its_own_partition_and_action() -> None:
    elastic = Elastic(SlotLoad())
    now_ms = 5_000
    refused = [elastic.charge(Action.SEND, {0: 10, 1: 10}, now_ms, enforce=True) for _ in range(300)]
    assert not any(refused)
    assert elastic.charge(Action.SEND, {0: 1, 1: 1, 2: 1}, now_ms, enforce=True) == {0, 1}
    assert elastic.charge(Action.DELETE, {0: 1}, now_ms, enforce=True) == set()
    assert elastic.charge(Action.SEND, {0: 1}, now_ms, enforce=False) == set()
    assert elastic.throttled == 2
    now_ms += 10
    allowed = [elastic.charge(Action.SEND, {0: 1}, now_ms, enforce=True) for _ in range(4)]
    assert allowed == [set(), set(), set(), {0}], "300 a second are three in 10 ms"


def test_refused_requests_count_as_load() -> None:
    elastic = Elastic(SlotLoad())
    now_ms = 5_000
    for second in range(10):
        for _ in range(600):
            elastic.charge(Action.SEND, {0: 1}, now_ms + second * 1_000, enforce=True)
    decision = elastic.decide(SlotMap(1), 1, MOST, now_ms + 10_000)
    assert decision is not None
    assert decision.partitions == 3


def test_rebalance_moves_the_hottest_slots_of_busy_partitions() -> None:
    slots = SlotMap(4)
    load = dict.fromkeys(range(0, 16384, 16), 1.0) | dict.fromkeys((1, 2, 3, 5), 100.0)
    plan = rebalance(slots, load)
    assert plan.before[0] > 0.4
    assert max(plan.after) < 0.28
    assert sum(plan.after) == pytest.approx(1)
    assert {source for source, _, _ in plan.moves} == {0}
    assert rebalance(slots, dict.fromkeys(range(16384), 1.0)).moves == []
    assert rebalance(slots, {}).moves == []


def test_rebalance_leaves_a_slot_that_would_overload_any_partition() -> None:
    plan = rebalance(SlotMap(4), {7: 1_000.0})
    assert plan.moves == []
    assert plan.hot_slots == [7]
    plan = rebalance(SlotMap(4), {7: 1_000.0, 8: 50.0, 9: 40.0})
    moved = {slot for _, _, runs in plan.moves for first, last in runs for slot in range(first, last + 1)}
    assert moved <= {8, 9}


def test_rebalance_respects_slots_that_may_not_move() -> None:
    load = {1: 10.0, 2: 10.0, 3: 10.0, 9000: 1.0}
    assert rebalance(SlotMap(2), load, lambda slot, target: False).moves == []


def test_partitions_in_use_are_counted_up_to_the_last_owner() -> None:
    assert owners_used(SlotMap(4)) == 4
    assert owners_used(SlotMap(1).moved([(0, 5)], 2, 4)) == 3


def test_loads_of_slots_are_of_late() -> None:
    load = SlotLoad()
    for _ in range(200):
        load.note("old", 1_000)
    for _ in range(300):
        load.note("new", 1_000)
    assert load.by_slot[slot_for_key("new")] > 2 * load.by_slot.get(slot_for_key("old"), 0)
    assert (load.top_slot, load.top_load) == (slot_for_key("new"), max(load.by_slot.values()))
    assert load.total == pytest.approx(sum(load.by_slot.values()))


def test_runs_that_are_alike_are_counted_at_each_place() -> None:
    load = SlotLoad()
    run = ["a", "b", "c"]
    for _ in range(30):
        load.note(run[load.turn(3)], 3)
    assert {load.by_slot[slot_for_key(key)] for key in run} == {30.0}


@pytest.mark.row("S3")
def test_few_large_batches_of_many_keys_are_no_hot_slot() -> None:
    queue = Queue()
    decision = None
    for second in range(12):
        queue.elastic.note(0, Action.SEND, 6_000, queue.now_ms)
        if second % EVERY == 0:
            queue.load.note_run(KEYS[second], 6_000)
        queue.now_ms += 1_000
        decision = queue.elastic.decide(SlotMap(1), 1, MOST, queue.now_ms)
        if decision is not None:
            break
    assert decision is not None
    assert (decision.partitions > 1, decision.hot_slot) == (True, None)


def test_a_queue_that_does_not_decide_remembers_the_last_minutes_only() -> None:
    """One with budgets for each partition and a fixed number of partitions."""
    elastic = Elastic(SlotLoad())
    held: list[int] = []
    for second in range(5_000):
        elastic.charge(Action.SEND, {0: 1}, second * 1_000, enforce=True)
        if second in (600, 4_999):
            held.append(held_bytes(elastic))
    assert held[1] < 1.1 * held[0]
    assert elastic.use_of(5_000_000)


def test_two_brokers_that_hear_each_other_decide_the_same_and_once() -> None:
    """Each has half of the load, below the threshold; the one that looks second sees that the first has begun."""
    near, far = Elastic(SlotLoad()), Elastic(SlotLoad())
    now_ms, changed_ms, used = 1_000_000, 0, 1
    decisions: list[tuple[Elastic, Decision]] = []
    for _ in range(40):
        for one, partition in product((near, far), range(used)):
            one.note(partition, Action.SEND, 130 // used, now_ms, requests=130 // used)
        now_ms += 1_000
        near.hear([far.told(now_ms)])
        far.hear([near.told(now_ms)])
        for one in (near, far):
            decision = one.decide(SlotMap(used), used, MOST, now_ms, changed_ms)
            if decision is not None:
                decisions.append((one, decision))
                used, changed_ms = decision.partitions, now_ms
    assert used == 2
    assert len(decisions) == 1
    near.hear([])
    assert near.use_of(now_ms) == {0: pytest.approx(65 / 300), 1: pytest.approx(65 / 300)}


def test_other_brokers_are_not_told_of_a_hundredth_of_the_capacity() -> None:
    elastic = Elastic(SlotLoad())
    elastic.note(0, Action.SEND, 20, 1_000_000, requests=20)
    elastic.note(1, Action.DELETE, 400, 1_000_000, requests=40)
    assert elastic.told(1_001_000) == [(1, Action.DELETE, 4.0, 40.0)]


def test_brokers_share_the_budget_of_a_partition_by_their_load() -> None:
    """One broker's clients ask three times as much as the other's; both together ask for twice the capacity."""
    brokers = {450: Elastic(SlotLoad()), 150: Elastic(SlotLoad())}
    now_ms = 1_000_000
    taken = dict.fromkeys(brokers, 0)
    for second in range(30):
        for rate, one in brokers.items():
            one.hear([other.told(now_ms) for other in brokers.values() if other is not one])
            passed = sum(not one.charge(Action.SEND, {0: 1}, now_ms + n, enforce=True) for n in range(rate))
            taken[rate] += passed if second >= 20 else 0
        now_ms += 1_000
    assert taken == {450: pytest.approx(2_250, rel=0.02), 150: pytest.approx(750, rel=0.02)}
