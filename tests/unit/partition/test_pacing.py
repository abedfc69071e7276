"""When the pending commit starts."""

from __future__ import annotations

from partibus.limits import StoreLimits
from partibus.partition.runtime.commit_queue import CommitPacing, CommitQueue

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
