"""The pending commit, the one under way, and who waits for which."""

from __future__ import annotations

from typing import Any

import pytest

from partibus.partition.runtime.commit_queue import CommitQueue, Waiter


def nothing(value: Any) -> None:
    del value


def values(waiters: list[Waiter]) -> list[Any]:
    return [value for _, value in waiters]


def test_who_waits_for_the_commit_under_way_passes_when_it_ends() -> None:
    queue = CommitQueue()
    queue.wait(queue.number, nothing, "a")
    queue.take()
    queue.wait(queue.number, nothing, "later")
    queue.wait(queue.number - 1, nothing, "b")
    assert values(queue.end()) == ["a", "b"]
    assert len(queue) == 1
    queue.take()
    assert values(queue.end()) == ["later"]


def test_rows_gather_in_the_next_commit_while_one_is_under_way() -> None:
    queue = CommitQueue()
    queue.pending.operations, queue.pending.size_bytes = 3, 30
    taken = queue.take()
    queue.pending.operations, queue.pending.size_bytes = 4, 40
    assert taken is queue.under_way
    assert (queue.operations, queue.size_bytes) == (7, 70)
    queue.end()
    assert (queue.operations, queue.size_bytes) == (4, 40)


def test_failure_tells_apart_what_was_tried() -> None:
    queue = CommitQueue()
    queue.wait(queue.number, nothing, "tried")
    queue.take()
    queue.wait(queue.number, nothing, "not tried")
    touched, untouched = queue.fail()
    assert (values(touched), values(untouched)) == (["tried"], ["not tried"])
    assert len(queue) == 0
    assert queue.operations == 0


def test_numbers_are_not_used_again_after_a_failure() -> None:
    queue = CommitQueue()
    queue.take()
    given = queue.number
    queue.fail()
    assert queue.number > given
    assert queue.durable >= given, "whoever still holds an old number needn't wait for it"


def test_one_commit_at_a_time() -> None:
    queue = CommitQueue()
    queue.take()
    with pytest.raises(AssertionError):
        queue.take()
