"""Lowest position first, whichever way an entry came."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from partibus.partition.core.fair_queue import ReadyQueue
from partibus.partition.protocol.keys import Entry


def entry(pos: int, data: bytes | None = b"data") -> Entry:
    return Entry(pos, pos, pos, 0, 0, None, None, 4, data)


def filled(*positions: int) -> ReadyQueue:
    queue = ReadyQueue()
    queue.extend([entry(pos) for pos in positions], 4 * len(positions))
    return queue


def test_returned_entry_goes_before_later_arrivals() -> None:
    queue = filled(1, 2, 5)
    first = queue.pop()
    queue.requeue(entry(4))
    queue.requeue(first)
    assert [queue.pop().pos for _ in range(len(queue))] == [1, 2, 4, 5]


def test_entries_may_be_taken_in_order_unless_one_has_returned() -> None:
    queue = filled(1, 2)
    assert len(queue.in_order or ()) == 2
    first = queue.pop()
    queue.requeue(first)
    assert not queue.in_order
    assert queue.pop() is first
    assert len(queue.in_order or ()) == 1


def test_head_is_what_pop_takes_and_empty_has_none() -> None:
    queue = filled(3)
    queue.requeue(entry(2))
    for pos in (2, 3):
        head = queue.head()
        assert head is not None
        assert head.pos == pos
        assert queue.pop() is head
    assert queue.head() is None
    assert not queue


def test_entries_without_body_weigh_nothing_until_it_is_back() -> None:
    queue = filled(1)
    bodyless = entry(2, None)
    queue.requeue(bodyless)
    assert queue.size_bytes == 4
    assert queue.bodyless(5) == [bodyless]
    queue.attach_body(bodyless, b"data")
    assert queue.size_bytes == 8
    assert queue.bodyless(5) == []


def test_bodyless_answers_the_lowest_first() -> None:
    queue = ReadyQueue()
    for pos in (9, 3, 6):
        queue.requeue(entry(pos, None))
    assert [e.pos for e in queue.bodyless(2)] == [3, 6]


def test_removed_entries_take_their_bytes_along() -> None:
    queue = ReadyQueue()
    for pos in (9, 3, 6):
        queue.requeue(entry(pos))
    assert sorted(e.pos for e in queue.remove({3, 9, 77})) == [3, 9]
    assert queue.size_bytes == 4
    assert queue.pop().pos == 6
    assert queue.size_bytes == 0


@given(st.lists(st.booleans(), max_size=30), st.randoms(use_true_random=False))
def test_any_mixture_comes_out_in_order(moves: list[bool], random: object) -> None:
    queue = filled(*range(15))
    out: list[Entry] = []
    for take in moves:
        if take and queue:
            out.append(queue.pop())
        elif out:
            queue.requeue(out.pop(random.randrange(len(out))))  # type: ignore[attr-defined]
    rest = [queue.pop().pos for _ in range(len(queue))]
    assert rest == sorted(set(range(15)) - {e.pos for e in out})
