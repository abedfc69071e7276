"""The number of partitions that an elastic queue should have, from its measured load (ADR 0026).

Pure: time and load are arguments. One object belongs to one queue in one broker. It measures what this broker's clients
do, and hears what others have measured, so that each broker decides by the whole load.

```text
 use of a partition = the largest of requests/s : 300 and messages/s : 3,000, per action, over 10 s
 split  a partition has 80 % of its capacity in use or more, and no key has most of its load
 merge  for 5 minutes the whole load would fit into one partition less at under 50 %
```
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from math import ceil
from typing import NamedTuple

from partibus.limits import ElasticLimits
from partibus.partition.protocol.slots import Run, runs_of, slot_for_key, slots_in
from partibus.routing.slots import SlotMap

_BUCKET_MS = 1_000
_BUCKETS_MAX = 600
"""Seconds that a window remembers at most: more than any is long."""
EVERY = 7
"""One run of so many is counted, for the cost of a hash: a prime, since keys may come in turn."""
HOT_SAMPLES = 16
"""Counted keys from which on a slot may be called hot. Large batches are few runs, and few of those are counted."""
_NEVER_MS = 1 << 62
_AGED_AT = 100_000.0
"""Weight at which the loads of slots are halved, so that the last messages count most."""


class Action(IntEnum):
    """Actions with a budget of their own; a single call and its batch have the same one."""

    SEND = 0
    RECEIVE = 1
    DELETE = 2
    CHANGE = 3


class Use(NamedTuple):
    """The use of one partition by one action, per second."""

    requests: float
    messages: float


Told = Sequence[tuple[int, int, float, float]]
"""The use of a queue through one broker: partition, action, requests and messages per second."""
TOLD_MIN = 0.01
"""The least part of a partition's capacity that other brokers are told of."""


class Decision(NamedTuple):
    """A decision about a queue."""

    partitions: int
    """The number of partitions that should own slots."""
    why: str
    hot_slot: int | None = None
    """A slot that has most of a partition's load: nothing is changed, the operator is told."""


class SlotLoad:
    """The load of slots, from one key of each run of messages. Recent messages count most."""

    __slots__ = ("_passed", "_runs", "by_slot", "samples", "top_load", "top_slot", "total")

    def __init__(self) -> None:
        self.by_slot: dict[int, float] = {}
        self.total = 0.0
        """The load of all slots, nearly: tiny ones are dropped in time."""
        self.top_slot = -1
        """The slot with the most load; -1: there is none."""
        self.top_load = 0.0
        self.samples = 0
        """Keys that were counted."""
        self._runs = 0
        self._passed = 0

    def is_due(self) -> bool:
        """Tell whether the next run is counted: one of `EVERY`."""
        self._passed += 1
        return not self._passed % EVERY

    def note_run(self, key: str, messages: int) -> None:
        """Note a run that stands for those that were not counted."""
        self.note(key, EVERY * messages)

    def turn(self, messages: int) -> int:
        """Return which message of the next run counts: another place in each, since batches may be alike."""
        self._runs += 1
        return self._runs % messages

    def note(self, key: str, messages: int) -> None:
        """Note a run of messages, of which one has this key."""
        slot = slot_for_key(key)
        self.samples += 1
        load = self.by_slot[slot] = self.by_slot.get(slot, 0.0) + messages
        self.total += messages
        if load > self.top_load:
            self.top_slot, self.top_load = slot, load
        if self.total > _AGED_AT:
            self.by_slot = {slot: load / 2 for slot, load in self.by_slot.items() if load >= 1}
            self.total /= 2
            self.top_load /= 2


class _Window:
    """Requests and messages of the last seconds, by partition and action."""

    __slots__ = ("_known", "buckets")

    def __init__(self) -> None:
        self.buckets: deque[tuple[int, dict[tuple[int, Action], list[int]]]] = deque()
        self._known: tuple[int, int, dict[tuple[int, Action], Use]] = (0, 0, {})
        """The last answer, with its second and the length of its window."""

    def add(self, partition: int, action: Action, requests: int, messages: int, now_ms: int) -> None:
        number = now_ms // _BUCKET_MS
        if not self.buckets or self.buckets[-1][0] != number:
            self.buckets.append((number, {}))
            if len(self.buckets) > _BUCKETS_MAX:  # a queue that does not decide never asks for its use
                self.buckets.popleft()
        counts = self.buckets[-1][1].setdefault((partition, action), [0, 0])
        counts[0] += requests
        counts[1] += messages

    def uses(self, window_ms: int, now_ms: int) -> dict[tuple[int, Action], Use]:
        """Return the use per second over the window, which changes once a second."""
        current = now_ms // _BUCKET_MS
        second, length_ms, known = self._known
        if second == current and length_ms == window_ms:
            return known
        while self.buckets and self.buckets[0][0] < current - window_ms // _BUCKET_MS:
            self.buckets.popleft()
        sums: dict[tuple[int, Action], list[int]] = {}
        for number, counts in self.buckets:
            if number == current:  # it is not over
                break
            for key, (requests, messages) in counts.items():
                total = sums.setdefault(key, [0, 0])
                total[0] += requests
                total[1] += messages
        seconds = window_ms / 1_000
        uses = {key: Use(requests / seconds, messages / seconds) for key, (requests, messages) in sums.items()}
        self._known = current, window_ms, uses
        return uses


def _sum(one: Use | None, other: Use) -> Use:
    return other if one is None else Use(one.requests + other.requests, one.messages + other.messages)


class Elastic:
    """The measurement, the budgets and the decisions of one queue."""

    def __init__(self, load: SlotLoad, limits: ElasticLimits | None = None) -> None:
        """Begin without load."""
        self.limits = limits or ElasticLimits()
        self._load = load
        self._window = _Window()
        self._tokens: dict[tuple[int, Action], tuple[float, int]] = {}
        """Requests left and when they were counted, by partition and action."""
        self._elsewhere: dict[tuple[int, Action], Use] = {}
        """The use through other brokers, per second."""
        self._changed_ms = -_NEVER_MS
        self._busy_ms: int | None = None
        """When the load last needed all partitions."""
        self.throttled = 0
        """Requests that were refused."""

    # -- measuring ---------------------------------------------------------------------------------------------------

    def note(self, partition: int, action: Action, messages: int, now_ms: int, *, requests: int = 1) -> None:
        """Count requests to a partition."""
        self._window.add(partition, action, requests, messages, now_ms)

    def charge(self, action: Action, parts: Mapping[int, int], now_ms: int, *, enforce: bool) -> set[int]:
        """Count one request for each part (messages by partition); return the partitions without budget.

        With ``enforce`` a partition carries so many requests a second; the parts of the others go on. Refused requests
        count as load, so that the queue grows.
        """
        refused: set[int] = set()
        for partition, messages in parts.items():
            self.note(partition, action, messages, now_ms)
            if not enforce:
                continue
            left = self._left(partition, action, now_ms)
            if left < 1:
                refused.add(partition)
                self.throttled += 1
            else:
                self._tokens[partition, action] = (left - 1, now_ms)
        return refused

    def is_spent(self, partition: int, action: Action, now_ms: int) -> bool:
        """Tell whether a partition has no budget for another request."""
        return self._left(partition, action, now_ms) < 1

    def pay(self, action: Action, parts: Mapping[int, int], now_ms: int) -> None:
        """Charge a request that was carried out, also to partitions whose budget is used up.

        Receives are paid afterwards, since only their answer tells which partitions had messages.
        """
        for partition, messages in parts.items():
            self.note(partition, action, messages, now_ms)
            self._tokens[partition, action] = (self._left(partition, action, now_ms) - 1, now_ms)

    def _left(self, partition: int, action: Action, now_ms: int) -> float:
        """Return the requests that a partition's budget has left here; a second fills it.

        Of a partition whose load exceeds its capacity each broker gives out as much as its part of the load.
        """
        rate = float(self.limits.requests_per_s)
        if (elsewhere := self._elsewhere.get((partition, action))) is not None:
            here = self._window.uses(self.limits.window_ms, now_ms).get((partition, action))
            asked = 1.0 if here is None else here.requests + 1
            if (load := asked + elsewhere.requests) > rate:
                rate *= asked / load
        left, at_ms = self._tokens.get((partition, action), (rate, now_ms))
        return min(rate, left + max(0, now_ms - at_ms) * rate / 1_000)

    def told(self, now_ms: int) -> Told:
        """Return the use through this broker, for the others."""
        uses = self._window.uses(self.limits.window_ms, now_ms)
        return [(*key, use.requests, use.messages) for key, use in uses.items() if self._part_of(use) >= TOLD_MIN]

    def hear(self, elsewhere: Iterable[Told]) -> None:
        """Take what each of the other brokers has `told` last."""
        self._elsewhere = {}
        for told in elsewhere:
            for partition, action, requests, messages in told:
                key = (partition, Action(action))
                self._elsewhere[key] = _sum(self._elsewhere.get(key), Use(requests, messages))

    def _uses(self, now_ms: int) -> dict[tuple[int, Action], Use]:
        """Return the use through all brokers, per second."""
        uses = self._window.uses(self.limits.window_ms, now_ms)
        if self._elsewhere:
            uses = dict(uses)
            for key, use in self._elsewhere.items():
                uses[key] = _sum(uses.get(key), use)
        return uses

    def use_of(self, now_ms: int) -> dict[int, float]:
        """Return the use of each partition with load: 1 is its capacity."""
        found: dict[int, float] = {}
        for (partition, _), use in self._uses(now_ms).items():
            found[partition] = max(found.get(partition, 0.0), self._part_of(use))
        return found

    def _part_of(self, use: Use) -> float:
        return max(use.requests / self.limits.requests_per_s, use.messages / self.limits.messages_per_s)

    def _needed(self, now_ms: int) -> float:
        """Return the load of the busiest action in partitions."""
        totals: dict[Action, Use] = {}
        for (_, action), use in self._uses(now_ms).items():
            totals[action] = _sum(totals.get(action), use)
        return max((self._part_of(use) for use in totals.values()), default=0.0)

    # -- deciding ----------------------------------------------------------------------------------------------------

    def decide(
        self, slots: SlotMap, used: int, most: int, now_ms: int, changed_ms: int = -_NEVER_MS
    ) -> Decision | None:
        """Return what to do now, or None.

        ``used``: partitions that own slots; ``most``: the quota; ``changed_ms``: when a broker last changed them.
        """
        limits = self.limits
        changed_ms = max(self._changed_ms, changed_ms)
        self._busy_ms = now_ms if self._busy_ms is None else max(self._busy_ms, changed_ms)
        uses, needed = self.use_of(now_ms), self._needed(now_ms)
        if used > 1 and needed / (used - 1) >= limits.merge_below:
            self._busy_ms = now_ms
        if now_ms - changed_ms < limits.cool_ms:
            return None
        busiest = max(uses, key=uses.__getitem__, default=None)
        if busiest is not None and uses[busiest] >= limits.split_at and used < most:
            self._busy_ms = now_ms
            hot = self._hot_slot(slots, busiest)
            if hot is not None:
                return Decision(used, f"one slot has most of the load of partition {busiest}", hot)
            # Below the threshold again afterwards, with one step
            wanted = min(most, max(used + 1, ceil(needed / limits.split_at + 0.01)))
            return self._changed(
                Decision(wanted, f"partition {busiest} has {uses[busiest]:.0%} of its capacity in use"), now_ms
            )
        if used > most:
            return self._changed(Decision(most, f"the quota is {most}"), now_ms)
        if used > 1 and now_ms - self._busy_ms >= limits.calm_ms:
            wanted = min(used - 1, max(1, ceil(needed / limits.merge_below)))
            return self._changed(Decision(wanted, f"the load fills {needed:.2f} partitions"), now_ms)
        return None

    def _changed(self, decision: Decision, now_ms: int) -> Decision:
        self._changed_ms = self._busy_ms = now_ms
        return decision

    def _hot_slot(self, slots: SlotMap, partition: int) -> int | None:
        """Return the slot that has most of a partition's load; None as long as few keys were counted."""
        if self._load.samples < HOT_SAMPLES:
            return None
        loads = {slot: load for slot, load in self._load.by_slot.items() if slots.owner(slot) == partition}
        if not loads:
            return None
        hottest = max(loads, key=loads.__getitem__)
        return hottest if loads[hottest] > self.limits.hot_share * sum(loads.values()) else None


class Rebalanced(NamedTuple):
    """A plan to spread the load of slots."""

    moves: list[tuple[int, int, list[Run]]]
    """(source, target, runs)"""
    before: list[float]
    """The share of each partition now."""
    after: list[float]
    hot_slots: list[int]
    """Slots that alone have more than a partition's fair share; a move would not help."""


SPREAD = 1.1
"""A partition with at most so many times the mean load is left alone."""
MOVED_MAX = 256
"""Slots that one plan moves."""


def rebalance(
    slots: SlotMap, load: Mapping[int, float], may_move: Callable[[int, int], bool] = lambda slot, target: True
) -> Rebalanced:
    """Plan moves of the hottest slots from busy partitions to idle ones.

    ``may_move`` tells whether a slot may go to a partition now.
    """
    shares = [0.0] * slots.partitions
    by_partition: list[list[tuple[float, int]]] = [[] for _ in shares]
    for slot, weight in load.items():
        owner = slots.owner(slot)
        shares[owner] += weight
        by_partition[owner].append((weight, slot))
    total = sum(shares)
    before = [share / total if total else 0.0 for share in shares]
    mean = total / len(shares)
    chosen: dict[tuple[int, int], list[int]] = {}
    hot = [slot for slot, weight in load.items() if total and weight > mean * SPREAD]
    stuck: set[int] = set()
    moved = 0
    for one in by_partition:
        one.sort()
    while total and moved < MOVED_MAX:
        source = max((p for p in range(len(shares)) if p not in stuck), key=shares.__getitem__, default=None)
        if source is None or shares[source] <= mean * SPREAD:
            break
        target = min(range(len(shares)), key=shares.__getitem__)
        # A slot helps if the source keeps its fair share, and the target gets less than the source had.
        room = min(shares[source] - mean, (shares[source] - shares[target]) * 0.999)
        found = next(
            (i for i in reversed(range(len(by_partition[source])))
             if by_partition[source][i][0] <= room and may_move(by_partition[source][i][1], target)),
            None,
        )  # fmt: skip
        if found is None or by_partition[source][found][0] <= 0:
            stuck.add(source)
            continue
        weight, slot = by_partition[source].pop(found)
        shares[source] -= weight
        shares[target] += weight
        chosen.setdefault((source, target), []).append(slot)
        moved += 1
    moves = [(source, target, runs_of(sorted(some))) for (source, target), some in sorted(chosen.items())]
    return Rebalanced(moves, before, [share / total if total else 0.0 for share in shares], sorted(hot))


def shares_over(
    slots: SlotMap, load: Mapping[int, float], moves: Sequence[tuple[int, int, list[Run]]], partitions: int
) -> Rebalanced:
    """Return given moves with the shares of the load before and after them."""
    target_of = {slot: target for _, target, runs in moves for slot in slots_in(runs)}
    before, after = [0.0] * slots.partitions, [0.0] * max(partitions, slots.partitions)
    total = sum(load.values()) or 1.0
    for slot, weight in load.items():
        owner = slots.owner(slot)
        before[owner] += weight / total
        after[target_of.get(slot, owner)] += weight / total
    return Rebalanced(list(moves), before, after, [])


def owners_used(slots: SlotMap) -> int:
    """Return the number of partitions up to the last that owns slots."""
    counts = slots.counts()
    return max(index + 1 for index, count in enumerate(counts) if count)
