"""The marks: below `paged_up_to` memory is the truth, from `tail_from` on the latest arrivals are at hand."""

from __future__ import annotations

from partibus.partition.entry import Entry
from partibus.partition.subqueue import Subqueue


def entries(*positions: int) -> list[Entry]:
    return [Entry(pos, pos, pos, 0, 0, None, None, 10, bytes(10)) for pos in positions]


def arrive(subqueue: Subqueue, *positions: int) -> None:
    subqueue.arrive(entries(*positions), 10 * len(positions), window_entries=4, window_bytes=1_000)


def marks(subqueue: Subqueue) -> tuple[int, int, int]:
    return subqueue.paged_up_to, subqueue.tail_from, subqueue.end_pos


def empty() -> Subqueue:
    return Subqueue(messages=0, size_bytes=0, end_pos=1)


def test_arrivals_are_ready_at_once_while_there_is_room() -> None:
    subqueue = empty()
    arrive(subqueue, 1, 2, 3)
    assert marks(subqueue) == (4, 4, 4)
    assert len(subqueue.ready) == 3
    assert not subqueue.tail


def test_arrivals_past_the_window_wait_at_the_tail() -> None:
    subqueue = empty()
    arrive(subqueue, 1, 2, 3, 4)
    arrive(subqueue, 5, 6)
    assert marks(subqueue) == (5, 5, 7)
    assert [e.pos for e in subqueue.tail] == [5, 6]
    assert subqueue.in_memory


def test_tail_drops_its_oldest_and_only_the_store_knows_them() -> None:
    subqueue = empty()
    arrive(subqueue, 1, 2, 3, 4)
    arrive(subqueue, 5, 6, 7, 8, 9, 10)
    assert marks(subqueue) == (5, 7, 11)
    assert [e.pos for e in subqueue.tail] == [7, 8, 9, 10]
    assert subqueue.tail_bytes == 40
    assert not subqueue.in_memory


def test_one_arrival_larger_than_the_window_is_not_kept() -> None:
    subqueue = empty()
    arrive(subqueue, 1, 2, 3, 4)
    large = [Entry(5, 5, 5, 0, 0, None, None, 5_000, bytes(5_000))]
    subqueue.arrive(large, 5_000, window_entries=4, window_bytes=1_000)
    assert marks(subqueue) == (5, 6, 6)
    assert (list(subqueue.tail), subqueue.tail_bytes) == ([], 0)


def test_page_that_reaches_the_tail_takes_nothing_twice() -> None:
    subqueue = empty()
    arrive(subqueue, 1, 2, 3, 4)
    arrive(subqueue, 5, 6, 7, 8, 9, 10)
    subqueue.page_in(entries(5, 6, 7, 8), up_to=9)
    assert marks(subqueue) == (7, 7, 11)
    subqueue.absorb_tail()
    assert marks(subqueue) == (11, 11, 11)
    assert [subqueue.ready.pop().pos for _ in range(10)] == list(range(1, 11))
    assert subqueue.ready.size_bytes == 0


def test_tail_may_drop_while_a_page_is_on_its_way() -> None:
    subqueue = empty()
    arrive(subqueue, 1, 2, 3, 4)
    arrive(subqueue, 5, 6, 7, 8, 9)
    asked_up_to = subqueue.tail_from
    arrive(subqueue, 10, 11)
    subqueue.page_in(entries(5), up_to=asked_up_to)
    assert marks(subqueue) == (6, 8, 12)
    assert not subqueue.in_memory, "6 and 7 are in the store only"


def test_pages_pass_over_what_was_found_under_lock() -> None:
    subqueue = Subqueue(messages=4, size_bytes=40, end_pos=5)
    subqueue.above = {2, 4}
    subqueue.page_in(entries(1, 2), up_to=3)
    assert subqueue.above == {4}
    subqueue.page_in(entries(3, 4), up_to=5)
    assert subqueue.above == set()
    assert [subqueue.ready.pop().pos for _ in range(2)] == [1, 3]
    assert not subqueue.ready


def test_restarted_subqueue_knows_nothing_below_its_end() -> None:
    assert marks(Subqueue(messages=3, size_bytes=30, end_pos=9)) == (0, 9, 9)
    assert Subqueue(messages=0, size_bytes=0, end_pos=9).in_memory
