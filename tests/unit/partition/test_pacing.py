"""When the pending commit starts."""

from __future__ import annotations

from random import Random

import pytest

from partibus.limits import StoreLimits
from partibus.partition.runtime.commit_queue import CommitPacing, CommitQueue, CommitSchedule
from tests.kit.simulated_host import SimulatedHost, Timeline

LIMITS = StoreLimits(hold_ms=2.0, hold_operations=8, lazy_ms=20.0)


def delay_ms(*added: tuple[bool, bool], operations: int = 1) -> float:
    """(waited for, holdable) of what was added to the pending commit."""
    queue = CommitQueue()
    queue.pending.operations = operations
    pacing = CommitPacing(LIMITS)
    for waited_for, holdable in added:
        pacing.add(waited_for=waited_for, holdable=holdable)
    return pacing.delay_ms(queue)


def test_rows_that_nobody_waits_for_travel_with_others() -> None:
    assert delay_ms((False, True)) == LIMITS.lazy_ms
    assert delay_ms((False, False)) == LIMITS.lazy_ms


def test_who_has_more_under_way_waits_for_company() -> None:
    assert delay_ms((True, True)) == LIMITS.hold_ms
    assert delay_ms((False, False), (True, True)) == LIMITS.hold_ms


def test_one_who_cannot_wait_hurries_all() -> None:
    assert delay_ms((True, False)) == 0
    assert delay_ms((True, True), (True, False), (True, True)) == 0


def test_company_enough_starts_the_commit() -> None:
    assert delay_ms((True, True), operations=7) == LIMITS.hold_ms
    assert delay_ms((True, True), operations=8) == 0


def test_next_commit_begins_without_hurry() -> None:
    pacing = CommitPacing(LIMITS)
    pacing.add(waited_for=True, holdable=False)
    pacing.begun()
    assert pacing.delay_ms(CommitQueue()) == LIMITS.lazy_ms


@pytest.mark.parametrize(
    ("arrivals", "commits"),
    [
        ([1], [1]),
        ([4, 3, 1], [8]),
        ([1, 0, 1], [1, 1]),
        ([1] * 10, [5, 5]),
        ([7, 1, 3], [8, 3]),
    ],
)
def test_a_commit_begins_when_a_round_of_the_loop_adds_nothing(arrivals: list[int], commits: list[int]) -> None:
    """``arrivals``: rows that clients wait for, by rounds. At most four rounds or eight rows are awaited."""
    timeline = Timeline()
    host = SimulatedHost(timeline, Random(1))
    queue = CommitQueue()
    begun: list[int] = []

    def start() -> None:
        schedule.started()
        if queue.pending.operations:
            begun.append(queue.pending.operations)
            queue.pending.operations = 0
            schedule.begun()

    schedule = CommitSchedule(host, LIMITS, queue, start)

    def arrive(rounds: list[int]) -> None:
        if rounds:
            queue.pending.operations += rounds[0]
            if rounds[0]:
                schedule.add(waited_for=True, holdable=False)
            host.call_soon(lambda: arrive(rounds[1:]))

    arrive(arrivals)
    while len(timeline):
        timeline.run_next()
    assert begun == commits
    assert timeline.time_ms == 1_000.0, "no timer delays a client that waits"
