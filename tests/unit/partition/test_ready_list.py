"""The marks: below `paged_up_to` memory is the truth, from `tail_from` on the latest arrivals are at hand."""

from __future__ import annotations

from partibus.partition.core.ready_list import ReadyList
from partibus.partition.protocol.keys import Entry


def entries(*positions: int) -> list[Entry]:
    return [Entry(pos, pos, pos, 0, 0, None, None, 10, bytes(10)) for pos in positions]


def arrive(ready_list: ReadyList, *positions: int) -> None:
    ready_list.arrive(entries(*positions), 10 * len(positions), window_entries=4, window_bytes=1_000)


def marks(ready_list: ReadyList) -> tuple[int, int, int]:
    return ready_list.paged_up_to, ready_list.tail_from, ready_list.end_pos


def empty() -> ReadyList:
    return ReadyList(0, end_pos=1, is_empty=True)


def test_arrivals_are_ready_at_once_while_there_is_room() -> None:
    ready_list = empty()
    arrive(ready_list, 1, 2, 3)
    assert marks(ready_list) == (4, 4, 4)
    assert len(ready_list.ready) == 3
    assert not ready_list.tail


def test_arrivals_past_the_window_wait_at_the_tail() -> None:
    ready_list = empty()
    arrive(ready_list, 1, 2, 3, 4)
    arrive(ready_list, 5, 6)
    assert marks(ready_list) == (5, 5, 7)
    assert [e.pos for e in ready_list.tail] == [5, 6]
    assert ready_list.in_memory


def test_tail_drops_its_oldest_and_only_the_store_knows_them() -> None:
    ready_list = empty()
    arrive(ready_list, 1, 2, 3, 4)
    arrive(ready_list, 5, 6, 7, 8, 9, 10)
    assert marks(ready_list) == (5, 7, 11)
    assert [e.pos for e in ready_list.tail] == [7, 8, 9, 10]
    assert ready_list.tail_bytes == 40
    assert not ready_list.in_memory


def test_one_arrival_larger_than_the_window_is_not_kept() -> None:
    ready_list = empty()
    arrive(ready_list, 1, 2, 3, 4)
    large = [Entry(5, 5, 5, 0, 0, None, None, 5_000, bytes(5_000))]
    ready_list.arrive(large, 5_000, window_entries=4, window_bytes=1_000)
    assert marks(ready_list) == (5, 6, 6)
    assert (list(ready_list.tail), ready_list.tail_bytes) == ([], 0)


def test_page_that_reaches_the_tail_takes_nothing_twice() -> None:
    ready_list = empty()
    arrive(ready_list, 1, 2, 3, 4)
    arrive(ready_list, 5, 6, 7, 8, 9, 10)
    ready_list.page_in(entries(5, 6, 7, 8), up_to=9)
    assert marks(ready_list) == (7, 7, 11)
    ready_list.absorb_tail()
    assert marks(ready_list) == (11, 11, 11)
    assert [ready_list.ready.pop().pos for _ in range(10)] == list(range(1, 11))
    assert ready_list.ready.size_bytes == 0


def test_tail_may_drop_while_a_page_is_on_its_way() -> None:
    ready_list = empty()
    arrive(ready_list, 1, 2, 3, 4)
    arrive(ready_list, 5, 6, 7, 8, 9)
    asked_up_to = ready_list.tail_from
    arrive(ready_list, 10, 11)
    ready_list.page_in(entries(5), up_to=asked_up_to)
    assert marks(ready_list) == (6, 8, 12)
    assert not ready_list.in_memory, "6 and 7 are in the store only"


def test_pages_pass_over_what_was_found_under_lock() -> None:
    ready_list = ReadyList(0, end_pos=5, is_empty=False)
    ready_list.above = {2, 4}
    ready_list.page_in(entries(1, 2), up_to=3)
    assert ready_list.above == {4}
    ready_list.page_in(entries(3, 4), up_to=5)
    assert ready_list.above == set()
    assert [ready_list.ready.pop().pos for _ in range(2)] == [1, 3]
    assert not ready_list.ready


def test_restarted_lane_knows_nothing_below_its_end() -> None:
    assert marks(ReadyList(0, end_pos=9, is_empty=False)) == (0, 9, 9)
    assert ReadyList(0, end_pos=9, is_empty=True).in_memory


def test_what_waits_is_ready_or_at_the_tail_or_in_the_gap() -> None:
    ready_list = empty()
    arrive(ready_list, 1, 2, 3, 4)
    arrive(ready_list, 5, 6, 7, 8, 9, 10)
    ready_list.ready.pop()  # 1 is handed out
    assert [e.pos for e in ready_list.waiting(entries(1, 2, 5, 9, 11))] == [2, 5, 9]


def test_what_is_taken_out_of_memory_is_gone_from_it() -> None:
    ready_list = empty()
    arrive(ready_list, 1, 2, 3, 4)
    arrive(ready_list, 5, 6)
    taken = ready_list.take_out(ready_list.waiting(entries(2, 4, 6)))
    assert sorted(e.pos for e in taken) == [2, 4, 6]
    assert (ready_list.ready.size_bytes, ready_list.tail_bytes) == (20, 10)
    assert not ready_list.edited, "pages have nothing to do with it"
    ready_list.ready.pop()
    ready_list.ready.pop()
    ready_list.absorb_tail()
    assert [e.pos for e in [ready_list.ready.pop()]] == [5]


def test_page_that_was_read_before_the_gap_was_changed_brings_nothing_back() -> None:
    ready_list = empty()
    arrive(ready_list, 1, 2, 3, 4)
    arrive(ready_list, 5, 6, 7, 8, 9, 10)
    ready_list.loading_page = True
    ready_list.take_out(ready_list.waiting(entries(5)))
    assert ready_list.edited, "the next page has to see it"
    ready_list.page_in(entries(5, 6), up_to=7)
    assert [ready_list.ready.pop().pos for _ in range(5)] == [1, 2, 3, 4, 6]
    assert not ready_list.ready


def test_lane_of_a_session_is_exhausted_when_nothing_was_found() -> None:
    ready_list = ReadyList(0, end_pos=9, is_empty=False, session="s", holder=3)
    assert not ready_list.is_exhausted
    ready_list.page_in([], up_to=9)
    assert ready_list.is_exhausted
