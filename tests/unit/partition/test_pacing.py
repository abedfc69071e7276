"""When the pending commit starts."""

from __future__ import annotations

from random import Random

from partibus.limits import StoreLimits
from partibus.partition.runtime.commit_queue import CommitQueue, CommitSchedule
from tests.kit.simulated_host import SimulatedHost, Timeline

LIMITS = StoreLimits(hold_ms=2.0, hold_operations=8, lazy_ms=20.0)


def delay_ms(*added: tuple[bool, bool], operations: int = 1) -> float:
    """(waited for, holdable) of what was added to the pending commit."""
    scheduled = Scheduled()
    scheduled.queue.pending.operations = operations
    for waited_for, holdable in added:
        scheduled.schedule.plan(waited_for=waited_for, holdable=holdable)
    return scheduled.schedule.delay_ms


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
    scheduled = Scheduled()
    scheduled.schedule.plan(waited_for=True, holdable=False)
    scheduled.schedule.begun()
    assert scheduled.schedule.delay_ms == LIMITS.lazy_ms


class Scheduled:
    """A commit queue with its schedule. A commit ends when the test says so."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.host = SimulatedHost(self.timeline, Random(1))
        self.queue = CommitQueue()
        self.schedule = CommitSchedule(self.host, LIMITS, self.queue, self._start)

    def _start(self) -> None:
        self.queue.take()
        self.schedule.begun()

    def arrive(self, rows: int) -> None:
        """Add rows that clients wait for."""
        self.queue.pending.operations += rows
        self.queue.pending.rows[1] = None
        self.schedule.plan(waited_for=True, holdable=False)

    def commit(self, *arrivals: int) -> tuple[int, int]:
        """Have rows arrive by rounds of the loop; end the commit that begins, and return its rows and the rounds."""
        rounds = 0
        for rows in arrivals:
            if rows:
                self.arrive(rows)
            self.timeline.run_next()
            rounds += 1
        while self.queue.under_way is None:
            self.timeline.run_next()
            rounds += 1
        assert self.timeline.time_ms == 1_000.0, "no timer delays a client that waits"
        rows = self.queue.under_way.operations
        self.queue.end()
        return rows, rounds


def test_one_client_that_waits_for_each_answer_never_waits_for_others() -> None:
    scheduled = Scheduled()
    assert [scheduled.commit(1) for _ in range(3)] == [(1, 1)] * 3


def test_clients_that_ask_again_share_the_next_commit() -> None:
    scheduled = Scheduled()
    assert scheduled.commit(6) == (6, 1)
    assert scheduled.commit(1, 0, 3, 0, 2) == (6, 5)
    assert scheduled.commit(6) == (6, 1)


def test_clients_of_two_commits_that_overlap_share_the_third() -> None:
    scheduled = Scheduled()
    scheduled.arrive(3)
    scheduled.timeline.run_next()
    scheduled.arrive(3)  # while the commit of the others is under way
    scheduled.queue.end()
    scheduled.schedule.plan()
    assert scheduled.commit(0, 2, 1) == (6, 3)


def test_enough_rows_are_waited_for_no_longer() -> None:
    scheduled = Scheduled()
    assert scheduled.commit(20) == (20, 1)
    assert scheduled.commit(4, 4) == (LIMITS.hold_operations, 2)


def test_clients_that_do_not_ask_again_are_waited_for_less_and_less() -> None:
    scheduled = Scheduled()
    rounds = []
    for _ in range(12):
        assert scheduled.commit(4)[0] == 4
        rounds.append(scheduled.commit(1)[1])
    waited = [count > 1 for count in rounds]
    assert (waited[0], max(rounds)) == (True, 1 + LIMITS.gather_rounds)
    assert sum(waited) == 3, "one commit is not waited for after the first time, then three, then seven"
