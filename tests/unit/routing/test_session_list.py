"""Pages over the sessions of all partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from partibus.errors import PartibusError, StoreUnavailable
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.routing.partitions import Numbers
from partibus.routing.session_list import PAGE_MAX, REMEMBERED_MAX, SessionList
from tests.unit.routing.fakes import UNAVAILABLE, FakePartition


class Listing(FakePartition):
    """A partition that answers lists at once."""

    def __init__(self, partition_id: int, names: list[str]) -> None:
        super().__init__(partition_id)
        self.names = names
        self.asked = 0

    def submit(self, command: Any, on_reply: Callable[[Any], None] | None = None, *, more: bool = False) -> None:
        if self.fails is not None or not isinstance(command, c.ListSessions) or on_reply is None:
            super().submit(command, on_reply, more=more)
            return
        self.asked += 1
        assert command.top > 0
        names = [] if command.updated_after_ms == 99 else self.names
        on_reply(r.Sessions(command.request, names[command.skip : command.skip + command.top]))


def listing(*sizes: int) -> tuple[SessionList, list[Listing], list[str]]:
    partitions = [Listing(i, [f"{i}-{n}" for n in range(size)]) for i, size in enumerate(sizes)]
    names = [name for partition in partitions for name in partition.names]
    return SessionList("q", list(partitions), Numbers()), partitions, names


def page(sessions: SessionList, skip: int, top: int, updated_after_ms: int | None = None) -> list[str]:
    pages: list[list[str] | PartibusError] = []
    sessions.page(skip, top, updated_after_ms, pages.append)
    (found,) = pages
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("sizes", [(0,), (7,), (3, 4), (0, 5, 0, 0, 6, 0), (10, 10, 10), (2500, 1)])
@pytest.mark.parametrize("top", [1, 3, 5, 100])
def test_pages_come_to_all_names_once_and_then_to_nothing(sizes: tuple[int, ...], top: int) -> None:
    sessions, _, names = listing(*sizes)
    seen: list[str] = []
    while found := page(sessions, len(seen), top):
        assert len(found) <= top
        seen += found
    assert seen == names


@pytest.mark.parametrize("skip", range(14))
def test_a_page_begins_anywhere_without_the_ones_before(skip: int) -> None:
    sessions, _, names = listing(5, 0, 4, 3)
    assert page(sessions, skip, 4) == names[skip : skip + 4]


def test_counting_goes_on_past_one_page_of_names() -> None:
    sessions, _, names = listing(2 * PAGE_MAX + 3, 5)
    assert page(sessions, 2 * PAGE_MAX + 4, 10) == names[2 * PAGE_MAX + 4 :]


def test_who_pages_on_asks_no_partition_for_what_it_has_seen() -> None:
    sessions, partitions, names = listing(50, 50, 50)
    seen: list[str] = []
    while found := page(sessions, len(seen), 10):
        seen += found
    assert seen == names
    # 15 pages; each partition's end is noticed by the page that begins there.
    assert sum(partition.asked for partition in partitions) <= 15 + len(partitions) + 1


def test_only_so_many_ends_are_remembered() -> None:
    sessions, _, names = listing(200, 200)
    for skip in range(2 * REMEMBERED_MAX):
        page(sessions, skip, 1)
    ends = [seen for seen in range(1, 2 * REMEMBERED_MAX + 1) if sessions.place_of(None, seen) is not None]
    assert len(ends) == REMEMBERED_MAX
    assert page(sessions, 5, 2) == names[5:7]


def test_ends_of_lists_with_and_without_a_time_are_apart() -> None:
    sessions, _, _ = listing(10, 10)
    page(sessions, 0, 15)
    assert page(sessions, 15, 5, updated_after_ms=99) == []


def test_a_page_is_bounded() -> None:
    sessions, _, _ = listing(PAGE_MAX + 1)
    assert len(page(sessions, 0, 1 << 30)) == PAGE_MAX


def test_a_sick_partition_is_an_error_and_no_short_list() -> None:
    sessions, partitions, _ = listing(2, 2)
    partitions[1].fails = UNAVAILABLE
    pages: list[list[str] | PartibusError] = []
    sessions.page(0, 10, None, pages.append)
    (found,) = pages
    assert isinstance(found, StoreUnavailable)
