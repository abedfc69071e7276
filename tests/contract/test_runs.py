"""Frames of many undelivered entries, and of some that differ: a store may take a shorter way to the first ones, with
the same answer."""

from typing import Any

import pytest

from partibus.partition.protocol import queries as q
from partibus.partition.protocol.keys import body_key, entry_key, subqueue_key
from partibus.partition.protocol.ports import FINISHED, Disposition, EntryState, Store, Writes
from tests.contract.frames import Packed, packed, unpack
from tests.contract.stores import PARTITION, complete, enqueue

COUNT = 300
NOW_MS = 1_800_000_000_000
WRAP_MS = NOW_MS - NOW_MS % (1 << 32) + (1 << 32)
"""When the upper bits of the time change."""
EXPIRED = FINISHED + Disposition.EXPIRED
ODD: dict[str, dict[int, dict[str, Any]]] = {
    "none": {},
    "another delivery": {150: {"delivery_count": 3}},
    "the first one delivered": {0: {"delivery_count": 3}},
    "a deferred one": {299: {"state": EntryState.DEFERRED}},
    "a scheduled one": {150: {"state": EntryState.SCHEDULED, "due_ms": NOW_MS}},
    "one that expires": {77: {"due_ms": NOW_MS + 5}},
    "a large one": {200: {"data": bytes(1 << 20)}},
    "an empty one": {200: {"data": b""}},
    "another number": {299: {"sequence": 7_000}},
    "the first one's number": {0: {"sequence": 7_000}},
    "earlier than others": {150: {"enqueued_ms": NOW_MS - (1 << 33)}},
}
COMMON: dict[str, dict[str, Any]] = {
    "untouched": {},
    "deferred": {"state": EntryState.DEFERRED},
    "delivered": {"delivery_count": 1 << 20},
}
TTLS_MS = {"for ever": None, "for 5 ms": 5, "for 35 years": 1 << 40}
CASES = [(odd, "untouched", "for ever") for odd in ODD]
CASES += [(odd, common, ttl) for odd in ("none", "one that expires") for common in COMMON for ttl in TTLS_MS]
"""Each in a partition of its own."""
RANGES = ((0, 1 << 40), (1_000, 1_300), (1_010, 1_290), (1_200, 9_999))
BOUNDS = ((16_384, 4 << 20), (16_384, 500), (100, 4 << 20))
"""Bounds of a frame: entries and bytes."""


def fill(
    writes: Writes, subqueue: int, common: dict[str, Any], odd: dict[int, dict[str, Any]], ttl_ms: int | None = None
) -> None:
    """Entries at positions from 1,000 on, of which some are different."""
    size_bytes = 0
    for number in range(COUNT):
        enqueued_ms = NOW_MS + number // 7
        entry: dict[str, Any] = {
            "data": b"%d" % number * (1 + number % 5),
            "enqueued_ms": enqueued_ms,
            "due_ms": None if ttl_ms is None else enqueued_ms + ttl_ms,
            **common,
            **odd.get(number, {}),
        }
        enqueue(writes, 1_000 + number, subqueue=subqueue, **entry)
        size_bytes += len(entry["data"])
    writes.counts[subqueue] = (COUNT, size_bytes)


def filled(store: Store, odd: dict[int, dict[str, Any]]) -> int:
    """The sub-queue."""
    subqueue, writes = subqueue_key(PARTITION, 0), Writes()
    fill(writes, subqueue, {}, odd)
    store.commit(writes)
    return subqueue


def frames(
    store: Store,
    subqueue: int,
    from_pos: int = 0,
    to_pos: int = 1 << 40,
    max_entries: int = 16_384,
    max_bytes: int = 4 << 20,
    *,
    finished: bool = False,
) -> list[Packed]:
    """All of a range, checked against the bounds."""
    entries: list[Packed] = []
    at = from_pos
    while at < to_pos:
        frame = store.read(q.Range(subqueue, at, to_pos, max_entries, max_bytes, finished=finished))
        found = unpack(frame)
        assert frame.next_pos > at
        assert len(found) <= max_entries
        assert len(found) <= 1 or sum(entry.size for entry in found) <= max_bytes
        at = frame.next_pos
        entries += found
    assert at == to_pos
    return entries


def browsed(store: Store, subqueue: int) -> list[Packed]:
    """Return all entries but the scheduled ones, read in another way."""
    rows = store.read(q.Browse(subqueue, 0, 1 << 40, 100_000, 1 << 40))
    return [packed(row) for row in rows if row.state != EntryState.SCHEDULED]


def test_a_frame_has_what_browsing_finds(store: Store) -> None:
    writes = Writes()
    for number, (odd, common, ttl) in enumerate(CASES):
        fill(writes, subqueue_key(PARTITION + number, 0), COMMON[common], ODD[odd], TTLS_MS[ttl])
    store.commit(writes)
    for number, case in enumerate(CASES):
        subqueue = subqueue_key(PARTITION + number, 0)
        there = browsed(store, subqueue)
        assert len(there) >= COUNT - 1
        for from_pos, to_pos in RANGES:
            expected = [entry for entry in there if from_pos <= entry.pos < to_pos]
            for bounds in BOUNDS:
                assert frames(store, subqueue, from_pos, to_pos, *bounds) == expected, (case, from_pos, bounds)


def test_times_around_a_change_of_their_upper_bits(store: Store) -> None:
    subqueue = filled(store, {number: {"enqueued_ms": WRAP_MS - 100 + number} for number in range(COUNT)})
    there = browsed(store, subqueue)
    assert frames(store, subqueue) == there
    assert frames(store, subqueue, 1_150, 1_250) == there[150:250]


def test_holes_between_entries(store: Store) -> None:
    subqueue = filled(store, {})
    for first, last, left in ((1_000, 1_009, 290), (1_100, 1_100, 289), (1_299, 1_299, 288)):
        store.commit(complete(Writes(), first, last, subqueue))
        found = frames(store, subqueue)
        assert len(found) == left
        assert found == browsed(store, subqueue)


@pytest.mark.parametrize("left", [range(1_000, 1_300), range(1_100, 1_200)], ids=["all", "a third"])
def test_entries_that_have_left_and_are_kept(store: Store, left: range) -> None:
    subqueue, writes = filled(store, {}), Writes()
    before = browsed(store, subqueue)
    for pos in left:
        writes.entry_updates += [entry_key(subqueue, pos), body_key(PARTITION, pos), EXPIRED, 0, None]
    store.commit(writes)
    after = [entry._replace(state=EXPIRED) if entry.pos in left else entry for entry in before]
    assert frames(store, subqueue, finished=True) == after
    assert frames(store, subqueue) == [entry for entry in after if entry.pos not in left]
