"""Which ids were accepted inside of the window, with memory that is bounded (rows K7, K9)."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partibus.message import Message
from partibus.partition import duplicates
from partibus.partition.duplicates import BUCKETS, TRIM_IDS, DuplicateIds, id_of
from partibus.partition.events import IdsForgotten
from partibus.partition.step import Step

WINDOW_MS = 20_000


def name(number: int) -> bytes:
    item = id_of(Message(b"", message_id=str(number)))
    assert item is not None
    return item


@pytest.mark.row("K9")
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 9_000)), max_size=60))
def test_duplicate_is_what_was_accepted_less_than_a_window_ago(sends: list[tuple[int, int]]) -> None:
    ids = DuplicateIds(WINDOW_MS, is_known=True)
    accepted: dict[int, int] = {}
    now_ms = 1_000_000
    for number, later_ms in sends:
        now_ms += later_ms
        expected = number in accepted and now_ms - accepted[number] < WINDOW_MS
        if ids.needs_look(name(number), now_ms):  # the filter may only be wrong in this direction
            ids.answered[name(number)] = accepted.get(number)
        assert ids.is_duplicate(name(number), now_ms) == expected
        if not expected:
            ids.remember(name(number), now_ms)
            accepted[number] = now_ms


def test_filter_never_forgets_an_id_of_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids that have left the list of recent ones, over several growths of the filter."""
    monkeypatch.setattr(duplicates, "RECENT_MAX", 100)
    monkeypatch.setattr(duplicates, "CELLS_PER_ID", 64)
    ids = DuplicateIds(WINDOW_MS, is_known=True)
    now_ms = 7_000_000
    accepted = {}
    random = Random(5)
    for number in range(30_000):
        now_ms += random.randrange(2)
        ids.remember(name(number), now_ms)
        accepted[number] = now_ms
    inside = [number for number, at_ms in accepted.items() if now_ms - at_ms < WINDOW_MS]
    assert len(inside) > 10_000
    assert all(ids.is_duplicate(name(n), now_ms) or ids.needs_look(name(n), now_ms) for n in inside)


def test_new_ids_seldom_need_the_store() -> None:
    ids = DuplicateIds(WINDOW_MS, is_known=True)
    for number in range(50_000):
        ids.remember(name(number), 1_000_000)
    asked = sum(ids.needs_look(name(number), 1_000_000) for number in range(1_000_000, 1_010_000))
    assert asked < 1_000, f"{asked} of 10,000 new ids"


def test_filter_forgets_what_is_out_of_the_window() -> None:
    ids = DuplicateIds(WINDOW_MS, is_known=True)
    for number in range(40_000):
        ids.remember(name(number), 1_000_000)
    later_ms = 1_000_000 + WINDOW_MS + WINDOW_MS // BUCKETS + 1
    assert not any(ids.needs_look(name(number), later_ms) for number in range(7_000))


def test_memory_is_bounded_whatever_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "CELLS_MAX", 1 << 17)
    ids = DuplicateIds(WINDOW_MS, is_known=True)
    for number in range(60_000):
        ids.remember(name(number), 1_000_000)
    assert len(ids._cells) == 1 << 17
    assert len(ids._recent) == duplicates.RECENT_MAX


def test_after_a_restart_the_store_is_asked_until_every_id_was_seen() -> None:
    ids = DuplicateIds(WINDOW_MS, is_known=False)
    assert ids.needs_look(name(1), 50_000)
    ids.take_scanned([(ids.bucket(45_000), name(1), 45_000)], 50_000)
    ids.is_known = True
    assert ids.needs_look(name(1), 50_000)
    assert not ids.needs_look(name(2), 50_000)


def test_ids_out_of_the_window_are_removed_in_slices() -> None:
    ids = DuplicateIds(WINDOW_MS, is_known=True)
    for number in range(2 * TRIM_IDS + 1):
        ids.remember(name(number), 1_000_000)
    due_ms = ids.next_deadline_ms()
    assert due_ms is not None
    assert due_ms >= 1_000_000 + WINDOW_MS
    asked = 0
    while (due_ms := ids.next_deadline_ms()) is not None:
        step = Step()
        ids.trim(due_ms, step)
        asked += sum(event.most for event in step.events if isinstance(event, IdsForgotten))
    assert asked == 3 * TRIM_IDS


def test_the_key_is_part_of_the_identity() -> None:
    plain = Message(b"", message_id="1")
    keyed = Message(b"", message_id="1", partition_key="k")
    session = Message(b"", message_id="1", session_id="k", partition_key="k")
    assert len({id_of(plain), id_of(keyed)}) == 2
    assert id_of(keyed) == id_of(session)
    assert id_of(Message(b"", message_id="b", partition_key="a")) != id_of(Message(b"", message_id="ab"))
    assert id_of(Message(b"")) is None
