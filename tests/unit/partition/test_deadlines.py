"""Deadlines in order, in a heap that does not grow with what has ended."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partibus.partition.core.deadlines import DeadlineHeap, Deadlines
from partibus.partition.core.machine import Partition
from partibus.partition.core.sessions import Session, Sessions
from partibus.partition.protocol.commands import AcceptSession
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.load_requests import BodyLoad, Load, PageLoad
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.runtime.slot import Slot
from tests.kit.memory import held_bytes
from tests.kit.simulated_host import SimulatedHost, SimulatedTimer, Timeline

MANY = 20_000
FEW_BYTES = 20_000
"""More than a hundred deadlines take, and much less than `MANY` would."""


class ForgetfulHost(SimulatedHost):
    """Keeps no timers, which never fire: all that is in memory is their owner's."""

    def call_later(self, delay_ms: float, call: Callable[[], object]) -> SimulatedTimer:
        return SimulatedTimer(call)


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 50), st.integers(0, 50)), max_size=80))
def test_it_is_a_dictionary_in_order_of_its_values(steps: list[tuple[int, int | None, int]]) -> None:
    heap, plain = DeadlineHeap(), dict[int, int]()
    for key, deadline_ms, now_ms in steps:
        if deadline_ms is None:
            heap.discard(key)
            plain.pop(key, None)
        else:
            heap.set(key, deadline_ms)
            plain[key] = deadline_ms
        assert heap.earliest_ms() == min(plain.values(), default=None)
        if now_ms < 10:
            due = sorted((deadline, key) for key, deadline in plain.items() if deadline <= now_ms)
            assert heap.take_due(now_ms) == due
            for _, over in due:
                del plain[over]


def test_rows_are_at_most_twice_the_deadlines() -> None:
    heap, random = DeadlineHeap(), Random(3)
    for key in range(500):
        heap.set(key, 1_000_000 + key)
    for _ in range(MANY):
        heap.set(random.randrange(500), random.randrange(2_000_000))
    assert len(heap) <= 2 * 500 + 64
    for key in range(499):
        heap.discard(key)
        assert len(heap) <= 2 * (499 - key) + 64
    assert heap.of(499) is not None


def test_a_session_that_is_held_for_long_keeps_no_deadline_of_others() -> None:
    sessions = Sessions(may_have_more=False)
    first = Session("first", 1, 0, AcceptSession(1, 1, "first"), edited=False)
    other = Session("other", 2, 0, AcceptSession(2, 2, "other"), edited=False)
    for session in (first, other):
        sessions.open(session)
    sessions.hold(first, 1_000)
    before = held_bytes(sessions)
    for until_ms in range(2_000, 2_000 + MANY):
        sessions.hold(other, until_ms)
    assert held_bytes(sessions) < before + FEW_BYTES
    assert sessions.expired(1_000) == [first]


def test_a_partition_whose_deadline_comes_nearer_has_one() -> None:
    host = ForgetfulHost(Timeline(), Random(1))
    due: list[int] = []
    deadlines = Deadlines(host, lambda: due.append(1))
    before = held_bytes(deadlines)
    for by_ms in range(MANY):
        deadlines.add(1_000_000 - by_ms, 7, 0)
    assert held_bytes(deadlines) < before + FEW_BYTES
    assert deadlines.due(1_000_000) == [(1_000_000 - MANY + 1, 7)]


def test_a_slot_remembers_the_ends_of_the_last_commits_only() -> None:
    """A queue whose receivers keep up never reads a page."""
    slot = Slot(7, PartitionOptions())
    slot.machine = Partition(7, PartitionOptions())
    for commit in range(1, MANY):
        slot.wrote(commit, waited_for=True)
    assert list(slot.ends) == [MANY - 3, MANY - 2, MANY - 1]


@pytest.mark.parametrize(
    ("load", "needed"),
    [
        (BodyLoad(SubqueueKind.ACTIVE, [1], [1]), 1),
        (BodyLoad(SubqueueKind.DEAD_LETTER, [1], [1]), 2),
        (PageLoad(SubqueueKind.DEAD_LETTER, 0, 9, 10, 1_000), 2),
        (PageLoad(SubqueueKind.DEAD_LETTER, 0, 9, 10, 1_000, edited=True), 2),
    ],
)
def test_a_load_of_dead_letters_sees_those_that_a_step_without_a_waiter_has_moved(load: Load, needed: int) -> None:
    slot = Slot(7, PartitionOptions())
    slot.machine = Partition(7, PartitionOptions())
    slot.wrote(1, waited_for=True)
    slot.wrote(2, waited_for=False)
    assert slot.needed_by(load, durable=0) == needed
