"""The marks: below `paged_up_to` memory is the truth, from `tail_from` on the latest arrivals are at hand."""

from __future__ import annotations

from partibus.partition.core.lane import Lane
from partibus.partition.protocol.entry import Entry


def entries(*positions: int) -> list[Entry]:
    return [Entry(pos, pos, pos, 0, 0, None, None, 10, bytes(10)) for pos in positions]


def arrive(lane: Lane, *positions: int) -> None:
    lane.arrive(entries(*positions), 10 * len(positions), window_entries=4, window_bytes=1_000)


def marks(lane: Lane) -> tuple[int, int, int]:
    return lane.paged_up_to, lane.tail_from, lane.end_pos


def empty() -> Lane:
    return Lane(0, end_pos=1, is_empty=True)


def test_arrivals_are_ready_at_once_while_there_is_room() -> None:
    lane = empty()
    arrive(lane, 1, 2, 3)
    assert marks(lane) == (4, 4, 4)
    assert len(lane.ready) == 3
    assert not lane.tail


def test_arrivals_past_the_window_wait_at_the_tail() -> None:
    lane = empty()
    arrive(lane, 1, 2, 3, 4)
    arrive(lane, 5, 6)
    assert marks(lane) == (5, 5, 7)
    assert [e.pos for e in lane.tail] == [5, 6]
    assert lane.in_memory


def test_tail_drops_its_oldest_and_only_the_store_knows_them() -> None:
    lane = empty()
    arrive(lane, 1, 2, 3, 4)
    arrive(lane, 5, 6, 7, 8, 9, 10)
    assert marks(lane) == (5, 7, 11)
    assert [e.pos for e in lane.tail] == [7, 8, 9, 10]
    assert lane.tail_bytes == 40
    assert not lane.in_memory


def test_one_arrival_larger_than_the_window_is_not_kept() -> None:
    lane = empty()
    arrive(lane, 1, 2, 3, 4)
    large = [Entry(5, 5, 5, 0, 0, None, None, 5_000, bytes(5_000))]
    lane.arrive(large, 5_000, window_entries=4, window_bytes=1_000)
    assert marks(lane) == (5, 6, 6)
    assert (list(lane.tail), lane.tail_bytes) == ([], 0)


def test_page_that_reaches_the_tail_takes_nothing_twice() -> None:
    lane = empty()
    arrive(lane, 1, 2, 3, 4)
    arrive(lane, 5, 6, 7, 8, 9, 10)
    lane.page_in(entries(5, 6, 7, 8), up_to=9)
    assert marks(lane) == (7, 7, 11)
    lane.absorb_tail()
    assert marks(lane) == (11, 11, 11)
    assert [lane.ready.pop().pos for _ in range(10)] == list(range(1, 11))
    assert lane.ready.size_bytes == 0


def test_tail_may_drop_while_a_page_is_on_its_way() -> None:
    lane = empty()
    arrive(lane, 1, 2, 3, 4)
    arrive(lane, 5, 6, 7, 8, 9)
    asked_up_to = lane.tail_from
    arrive(lane, 10, 11)
    lane.page_in(entries(5), up_to=asked_up_to)
    assert marks(lane) == (6, 8, 12)
    assert not lane.in_memory, "6 and 7 are in the store only"


def test_pages_pass_over_what_was_found_under_lock() -> None:
    lane = Lane(0, end_pos=5, is_empty=False)
    lane.above = {2, 4}
    lane.page_in(entries(1, 2), up_to=3)
    assert lane.above == {4}
    lane.page_in(entries(3, 4), up_to=5)
    assert lane.above == set()
    assert [lane.ready.pop().pos for _ in range(2)] == [1, 3]
    assert not lane.ready


def test_restarted_lane_knows_nothing_below_its_end() -> None:
    assert marks(Lane(0, end_pos=9, is_empty=False)) == (0, 9, 9)
    assert Lane(0, end_pos=9, is_empty=True).in_memory


def test_what_waits_is_ready_or_at_the_tail_or_in_the_gap() -> None:
    lane = empty()
    arrive(lane, 1, 2, 3, 4)
    arrive(lane, 5, 6, 7, 8, 9, 10)
    lane.ready.pop()  # 1 is handed out
    assert [e.pos for e in lane.waiting(entries(1, 2, 5, 9, 11))] == [2, 5, 9]


def test_what_is_taken_out_of_memory_is_gone_from_it() -> None:
    lane = empty()
    arrive(lane, 1, 2, 3, 4)
    arrive(lane, 5, 6)
    taken = lane.take_out(lane.waiting(entries(2, 4, 6)))
    assert sorted(e.pos for e in taken) == [2, 4, 6]
    assert (lane.ready.size_bytes, lane.tail_bytes) == (20, 10)
    assert not lane.edited, "pages have nothing to do with it"
    lane.ready.pop()
    lane.ready.pop()
    lane.absorb_tail()
    assert [e.pos for e in [lane.ready.pop()]] == [5]


def test_page_that_was_read_before_the_gap_was_changed_brings_nothing_back() -> None:
    lane = empty()
    arrive(lane, 1, 2, 3, 4)
    arrive(lane, 5, 6, 7, 8, 9, 10)
    lane.loading_page = True
    lane.take_out(lane.waiting(entries(5)))
    assert lane.edited, "the next page has to see it"
    lane.page_in(entries(5, 6), up_to=7)
    assert [lane.ready.pop().pos for _ in range(5)] == [1, 2, 3, 4, 6]
    assert not lane.ready


def test_lane_of_a_session_is_exhausted_when_nothing_was_found() -> None:
    lane = Lane(0, end_pos=9, is_empty=False, session="s", holder=3)
    assert not lane.is_exhausted
    lane.page_in([], up_to=9)
    assert lane.is_exhausted
