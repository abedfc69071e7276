"""The contract of stores for readers of whole partitions: cursors, kept messages, frames, dispositions."""

from typing import Any

import pytest

from partibus.partition.protocol import queries as q
from partibus.partition.protocol.keys import POSITION_MAX, body_key, entry_key, subqueue_key
from partibus.partition.protocol.ports import (
    FINISHED,
    CursorRow,
    Disposition,
    DispositionRow,
    EntryRow,
    EntryState,
    SessionLockRow,
    Snapshot,
    Store,
    StoreError,
    SubqueueCounts,
    Writes,
)
from tests.contract.frames import Packed, unpack
from tests.contract.stores import DEAD_LETTERS, PARTITION, QUEUE, Opener, enqueue, enqueued, positions

OTHER = subqueue_key(PARTITION + 1, 0)
COMPLETED = FINISHED + Disposition.COMPLETED
NAMES = ["", "\x00", "A", "a", "a\x00b", "é", "ﬀ", "𝄞", '","', "'; DROP TABLE cursor"]
"""Names in the order of their UTF-8 bytes, but for the last two."""


def finish(writes: Writes, *positions: int, state: int = COMPLETED, subqueue: int = QUEUE) -> Writes:
    """Messages leave while a cursor stands below them."""
    for pos in positions:
        key = entry_key(subqueue, pos)
        writes.entry_updates += [key, body_key(subqueue >> 2, pos), state, 1, None]
    return writes


def snapshot_of(store: Store, partition: int = PARTITION) -> Snapshot:
    snapshot = store.read(q.Partition(partition))
    assert snapshot is not None
    return snapshot


def read(
    store: Store, from_pos: int = 0, to_pos: int = 1 << 40, subqueue: int = QUEUE, *, finished: bool = True
) -> list[Packed]:
    """A whole range, frame by frame."""
    entries: list[Packed] = []
    while from_pos < to_pos:
        frame = store.read(q.Range(subqueue, from_pos, to_pos, 100, 4_000, finished=finished))
        entries += unpack(frame)
        assert frame.next_pos > from_pos
        from_pos = frame.next_pos
    assert from_pos == to_pos
    return entries


# -- cursors -----------------------------------------------------------------------------------------------------------


def test_a_cursor_comes_back_as_it_was_written_last(open_store: Opener) -> None:
    store = open_store()
    store.commit(enqueued(1))
    first = CursorRow(QUEUE, "etl", 0, -1, 0, 1 << 30, 1, 2, 0, 0)
    last = CursorRow(QUEUE, "etl", POSITION_MAX, 1 << 39, 7, 1 << 62, 1_700_000_000_000, 1 << 41, 1 << 40, 1 << 41)
    for cursor in (first, last):
        writes = Writes()
        writes.cursors[QUEUE, "etl"] = cursor
        store.commit(writes)
        assert snapshot_of(store).cursors == (cursor,)
    store.close()
    assert snapshot_of(open_store()).cursors == (last,)


def test_cursors_of_a_partition_by_sub_queue_and_name(store: Store) -> None:
    writes = enqueued(1)
    enqueue(writes, 1, subqueue=OTHER)
    rows = [
        CursorRow(subqueue, name, pos, -1, 0, 1, 2, 3, 4, 5)
        for subqueue in (QUEUE, DEAD_LETTERS)
        for pos, name in enumerate(sorted(NAMES, key=str.encode))
    ]
    elsewhere = CursorRow(OTHER, "a", 1, -1, 0, 1, 2, 3, 4, 5)
    for row in (*reversed(rows), elsewhere):
        writes.cursors[row.subqueue, row.name] = row
    store.commit(writes)
    assert list(snapshot_of(store).cursors) == rows
    assert snapshot_of(store, PARTITION + 1).cursors == (elsewhere,)
    writes = Writes()
    writes.cursors = {(DEAD_LETTERS, name): None for name in (*NAMES, "never seen")}
    store.commit(writes)
    assert list(snapshot_of(store).cursors) == rows[: len(NAMES)]


def test_what_is_retained_is_counted_apart(store: Store) -> None:
    writes = enqueued(1)
    writes.counts[QUEUE] = (3, 30)
    writes.retained[QUEUE] = (2, 20)
    writes.retained[DEAD_LETTERS] = (1, 1 << 50)
    store.commit(writes)
    writes = Writes()
    writes.counts[QUEUE] = (2, 20)
    store.commit(writes)
    assert snapshot_of(store).counts == {QUEUE: SubqueueCounts(2, 20)}
    assert snapshot_of(store).retained == {QUEUE: SubqueueCounts(2, 20), DEAD_LETTERS: SubqueueCounts(1, 1 << 50)}
    writes = Writes()
    writes.retained[QUEUE] = (3, 30)
    store.commit(writes)
    assert snapshot_of(store).counts == {QUEUE: SubqueueCounts(2, 20)}
    assert snapshot_of(store).retained[QUEUE] == SubqueueCounts(3, 30)
    assert store.read(q.Counts(9)) == {QUEUE: SubqueueCounts(2, 20)}
    assert store.read(q.Sizes([PARTITION])) == {PARTITION: 20}


# -- messages that have left ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("disposition", Disposition)
def test_nobody_but_readers_sees_what_has_left(store: Store, disposition: Disposition) -> None:
    writes = Writes()
    for subqueue in (QUEUE, DEAD_LETTERS):
        for number in range(10):
            pos = number + 20 * (subqueue == DEAD_LETTERS)
            enqueue(writes, pos, subqueue=subqueue, session="gone" if number % 2 else "stays", due_ms=50 + number)
        writes.lock_batches[entry_key(subqueue, 3)] = [(0, 99, b"\xff\xff\xff\xff")]
    store.commit(writes)
    for subqueue, start in ((QUEUE, 0), (DEAD_LETTERS, 20)):
        odd = range(start + 1, start + 10, 2)
        even = [*range(start, start + 10, 2)]
        store.commit(finish(Writes(), *odd, state=FINISHED + disposition, subqueue=subqueue))
        assert positions(store, subqueue) == even
        assert [row.pos for row in store.read(q.Page(subqueue, 0, 99, 9_999))] == even
        assert [row.pos for row in store.read(q.Peek(subqueue, 0, 99, 9_999))] == even
        assert [row.pos for row in store.read(q.Peek(subqueue, 0, 99, 9_999, "stays"))] == even
        assert store.read(q.Peek(subqueue, 0, 99, 9_999, "gone")) == []
        assert store.read(q.Page(subqueue, 0, 99, 9_999, "gone")) == []
        assert sorted(row.pos for row in store.read(q.BySequence(subqueue, range(40)))) == even
        assert store.read(q.SessionsBehind(subqueue, None, 9)) == ["stays"]
        assert store.read(q.SessionList(subqueue, 0, 9, None)) == ["stays"]
        assert [row.pos for row in store.read(q.Due(subqueue, 0, 1 << 40, 99, 9_999)).rows] == even
        assert store.read(q.DueCount(subqueue, 0)) == len(even)
        assert [entry.pos for entry in read(store, subqueue=subqueue, finished=False)] == even
        assert [(entry.pos, entry.state) for entry in read(store, subqueue=subqueue)] == [
            (pos, 0 if pos in even else FINISHED + disposition) for pos in range(start, start + 10)
        ]
        assert [row.state for row, _ in store.read(q.Scan(subqueue, start + 1, start + 3, 9))] == [
            FINISHED + disposition,
            0,
        ]
    locked = [(key, row.pos) for key, row, _ in snapshot_of(store).locked_entries]
    assert locked == [(QUEUE, pos) for pos in range(0, 10, 2)] + [(DEAD_LETTERS, pos) for pos in range(20, 30, 2)]


def test_what_waits_behind_many_that_have_left_is_found(store: Store) -> None:
    many = 20_000
    writes = enqueued(*range(many), data=b"")
    enqueue(writes, many, b"first")
    enqueue(writes, 2 * many, b"second")
    store.commit(writes)
    store.commit(finish(Writes(), *range(many)))
    for found in (
        store.read(q.Browse(QUEUE, 0, 1 << 40, 1, 99)),
        store.read(q.Peek(QUEUE, 0, 1, 99)),
        store.read(q.Page(QUEUE, 0, 1, 99)),
    ):
        assert [row.data for row in found] == [b"first"]
    assert [row.data for row in store.read(q.Browse(QUEUE, 0, 1 << 40, 9, 99))] == [b"first", b"second"]
    assert [row.data for row in store.read(q.Browse(QUEUE, 0, 1 << 40, 9, 10))] == [b"first"]
    frame = store.read(q.Range(QUEUE, 0, 1 << 40, 1, 99, finished=False))
    assert (unpack(frame)[0].data, frame.next_pos) == (b"first", many + 1)


# -- frames ------------------------------------------------------------------------------------------------------------


def test_every_column_is_in_a_frame(store: Store) -> None:
    writes = enqueue(Writes(), 7, b"\x00body\xff", enqueued_ms=1_700_000_000_123, delivery_count=4, due_ms=1 << 41)
    enqueue(writes, 8, b"", enqueued_ms=0)
    enqueue(writes, 9, bytes(range(256)), state=EntryState.DEFERRED, session="s", delivery_count=(1 << 31) - 1)
    enqueue(writes, POSITION_MAX, b"x", subqueue=DEAD_LETTERS, sequence=(1 << 38) - 1, state=EntryState.DELAYED)
    store.commit(writes)
    frame = store.read(q.Range(QUEUE, 0, 1 << 40, 99, 9_999, finished=False))
    assert (frame.count, frame.next_pos) == (3, 1 << 40)
    assert unpack(frame) == [
        Packed(7, 7, 1_700_000_000_123, 1 << 41, 4, 6, EntryState.ACTIVE, b"\x00body\xff"),
        Packed(8, 8, 0, -1, 0, 0, EntryState.ACTIVE, b""),
        Packed(9, 9, 1_700_000_000_000, -1, (1 << 31) - 1, 256, EntryState.DEFERRED, bytes(range(256))),
    ]
    frame = store.read(q.Range(DEAD_LETTERS, POSITION_MAX, POSITION_MAX + 1, 99, 9_999, finished=False))
    assert unpack(frame) == [Packed(POSITION_MAX, (1 << 38) - 1, 1_700_000_000_000, -1, 0, 1, EntryState.DELAYED, b"x")]


RUN = 1 << 20
"""Positions whose higher bits are alike: a store may have a way for those."""
BEGUN_MS = 1_700_000_000_000


@pytest.mark.parametrize("first", [0, 0xD7FE, 0xDFFE, 0xFFFE, RUN - 3, 5 * RUN + 0xD7FE, (1 << 38) - RUN - 2])
@pytest.mark.parametrize("life_ms", [None, 9_000])
def test_entries_that_are_alike_and_others_between_them(store: Store, first: int, life_ms: int | None) -> None:
    """Most of a frame's entries are like each other; each of the others differs in something else."""
    others: list[dict[str, Any]] = [
        {"delivery_count": 1}, {"state": EntryState.DEFERRED}, {"due_ms": 1 << 42}, {"due_ms": None},
        {"enqueued_ms": BEGUN_MS | 0xFFFF_FFFF}, {"enqueued_ms": (BEGUN_MS | 0xFFFF_FFFF) + 1}, {"enqueued_ms": 7},
        {"sequence": (1 << 39) - 1},
    ]  # fmt: skip
    writes, expected = Writes(), []
    for number in range(3 * len(others)):
        # Times go over every bound of two bytes; a message of some bytes tells who it is.
        row: dict[str, Any] = {"sequence": first + number, "enqueued_ms": BEGUN_MS + 0x7FFF * number, "due_ms": None}
        if life_ms is not None:
            row["due_ms"] = row["enqueued_ms"] + life_ms
        row |= others[number // 3] if number % 3 == 1 else {}
        data = b"%d" % number * (number % 5)
        enqueue(writes, first + number, data, **row)
        due_ms = -1 if row["due_ms"] is None else row["due_ms"]
        state, deliveries = row.get("state", EntryState.ACTIVE), row.get("delivery_count", 0)
        times = row["enqueued_ms"], due_ms
        expected.append(Packed(first + number, row["sequence"], *times, deliveries, len(data), state, data))
    store.commit(writes)
    assert read(store, first) == expected
    assert read(store, first + 1) == expected[1:], "the first one is one of the others"


def test_a_message_that_is_larger_than_a_mebibyte_beside_small_ones(store: Store) -> None:
    writes = Writes()
    bodies = [b"small", b"x" * (0x10FFFE), b"y" * 0x10FFFF, b"z" * 0x110000, b"last"]
    for pos, data in enumerate(bodies):
        enqueue(writes, pos, data)
    store.commit(writes)
    frame = store.read(q.Range(QUEUE, 0, 9, 9, 1 << 30, finished=False))
    assert [entry.data for entry in unpack(frame)] == bodies


def test_what_is_scheduled_is_in_no_frame(store: Store) -> None:
    writes = Writes()
    for pos, state in enumerate(EntryState):
        enqueue(writes, pos, state=state)
    store.commit(writes)
    assert [entry.state for entry in read(store)] == [EntryState.ACTIVE, EntryState.DEFERRED, EntryState.DELAYED]


def test_an_empty_range(store: Store) -> None:
    store.commit(enqueued(5))
    for from_pos, to_pos in ((0, 5), (6, 1 << 40), (5, 5), (POSITION_MAX + 1, POSITION_MAX + 9), (-3, 0)):
        frame = store.read(q.Range(QUEUE, from_pos, to_pos, 9, 99, finished=True))
        assert (frame.count, frame.next_pos, frame.data) == (0, to_pos, b"")
    assert store.read(q.Range(OTHER, 0, 9, 9, 99, finished=True)) == (0, 9, b"")
    assert store.read(q.Range(QUEUE, -3, 9, 9, 99, finished=True))[:2] == (1, 9)


def test_a_frame_keeps_to_its_bounds_and_the_next_goes_on_behind_it(store: Store) -> None:
    sizes = [0, 1, 500, 7, 7, 3_000, 1, 0, 90, 90, 90] * 30
    writes = Writes()
    for number, size in enumerate(sizes):
        enqueue(writes, 3 * number, b"%d" % (number % 10) * size)
    store.commit(writes)
    for max_entries, max_bytes in ((1, 9_999), (7, 9_999), (1_000, 600), (1_000, 0), (1_000, 1 << 30), (64, 1 << 30)):
        seen: list[int] = []
        at = 0
        while at < 1_000:
            frame = store.read(q.Range(QUEUE, at, 1_000, max_entries, max_bytes, finished=True))
            entries = unpack(frame)
            assert len(entries) <= max_entries
            assert len(entries) <= 1 or sum(entry.size for entry in entries) <= max_bytes
            assert frame.next_pos in (entries[-1].pos + 1 if entries else 1_000, 1_000)
            seen += [entry.pos for entry in entries]
            at = frame.next_pos
        assert at == 1_000
        assert seen == [*range(0, 3 * len(sizes), 3)]
    frame = store.read(q.Range(QUEUE, 0, 1_000, 1_000, 1 << 30, finished=True))
    assert (frame.count, frame.next_pos) == (len(sizes), 1_000), "nothing is left, so it says so"


def test_a_range_ends_where_it_was_asked_to(store: Store) -> None:
    store.commit(enqueued(*range(300)))
    for from_pos, to_pos in ((0, 1), (0, 300), (100, 250), (299, 1 << 40)):
        frame = store.read(q.Range(QUEUE, from_pos, to_pos, 999, 1 << 20, finished=False))
        assert [entry.pos for entry in unpack(frame)] == [*range(from_pos, min(300, to_pos))]
        assert frame.next_pos == to_pos


def test_far_apart_entries_are_all_read(store: Store) -> None:
    places = [0, 16_383, 16_384, 16_385, 40_000, 1 << 39, POSITION_MAX]
    writes = Writes()
    for number, pos in enumerate(places):
        enqueue(writes, pos, sequence=number)
    store.commit(writes)
    assert [entry.pos for entry in read(store)] == places


def test_an_entry_without_a_body_is_in_no_frame_but_scanned(store: Store) -> None:
    writes = enqueued(1, 2, 3)
    writes.deleted_bodies.append((body_key(PARTITION, 2), body_key(PARTITION, 2)))
    store.commit(writes)
    assert [entry.pos for entry in read(store)] == [1, 3]
    assert [(row.pos, size) for row, size in store.read(q.Scan(QUEUE, 0, 9, 9))] == [(1, 5), (2, 0), (3, 5)]


def test_a_scan_answers_entries_in_any_state_without_their_data(store: Store) -> None:
    writes = enqueue(Writes(), 1, b"12345", enqueued_ms=3, delivery_count=2, session="ü\x00", due_ms=9)
    enqueue(writes, 2, b"", state=EntryState.SCHEDULED, due_ms=8)
    enqueue(writes, 3, b"123")
    enqueue(writes, 4)
    store.commit(finish(writes, 3))
    rows = store.read(q.Scan(QUEUE, 1, 4, 99))
    assert rows == [
        (EntryRow(1, body_key(PARTITION, 1), 1, 3, EntryState.ACTIVE, 2, "ü\x00", 9, b""), 5),
        (EntryRow(2, body_key(PARTITION, 2), 2, 1_700_000_000_000, EntryState.SCHEDULED, 0, None, 8, b""), 0),
        (EntryRow(3, body_key(PARTITION, 3), 3, 1_700_000_000_000, COMPLETED, 1, None, None, b""), 3),
    ]
    assert store.read(q.Scan(QUEUE, 0, 99, 2)) == rows[:2]
    assert (
        store.read(q.Scan(QUEUE, 4, 4, 2))
        == store.read(q.Scan(QUEUE, 0, 99, 0))
        == store.read(q.Scan(QUEUE, 1 << 41, 1 << 42, 2))
        == []
    )


# -- the log of fates --------------------------------------------------------------------------------------------------


def log(writes: Writes, *numbers: int, subqueue: int = QUEUE) -> Writes:
    """A line per number, telling it in its columns."""
    for number in numbers:
        writes.dispositions += [entry_key(subqueue, number), number + 1, number + 2, number % 8, number + 3, number + 4]
    return writes


def line(number: int) -> DispositionRow:
    return DispositionRow(number, number + 1, number + 2, number % 8, number + 3, number + 4)


def test_lines_of_the_log_come_in_order(open_store: Opener) -> None:
    store = open_store()
    numbers = [0, 5, 6, 900, POSITION_MAX - 1, POSITION_MAX]
    store.commit(log(log(enqueued(1), *reversed(numbers)), 7, subqueue=DEAD_LETTERS))
    assert store.read(q.Dispositions(QUEUE, 0, 99)) == [line(number) for number in numbers]
    assert store.read(q.Dispositions(QUEUE, 6, 2)) == [line(6), line(900)]
    assert store.read(q.Dispositions(QUEUE, 7, 1)) == [line(900)]
    assert store.read(q.Dispositions(QUEUE, POSITION_MAX + 1, 9)) == store.read(q.Dispositions(QUEUE, 0, 0)) == []
    assert store.read(q.Dispositions(DEAD_LETTERS, 0, 9)) == [line(7)]
    store.close()
    assert store_lines(open_store()) == numbers


def store_lines(store: Store) -> list[int]:
    return [row.number for row in store.read(q.Dispositions(QUEUE, 0, 10_000))]


def test_ranges_of_the_log_are_forgotten_after_what_came_with_the_commit(store: Store) -> None:
    store.commit(log(enqueued(1), *range(1_000)))
    writes = log(Writes(), 1_000, 1_001)
    writes.forgotten_dispositions += [
        (entry_key(QUEUE, 0), entry_key(QUEUE, 899)),
        (entry_key(QUEUE, 950), entry_key(QUEUE, 950)),
        (entry_key(QUEUE, 1_001), entry_key(QUEUE, POSITION_MAX)),
    ]
    store.commit(writes)
    assert store_lines(store) == [*range(900, 950), *range(951, 1_001)]


def test_a_line_that_is_there_already_is_refused(store: Store) -> None:
    store.commit(log(enqueued(1), 1))
    writes = log(enqueued(2), 2, 1)
    with pytest.raises(StoreError, match="failed") as caught:
        store.commit(writes)
    assert caught.value.executed is False
    assert store_lines(store) == [1]
    assert positions(store) == [1]


# -- who holds sessions ------------------------------------------------------------------------------------------------


def test_session_locks_come_back_until_they_are_given_up(open_store: Opener) -> None:
    store = open_store()
    locks = [
        SessionLockRow(session, number, 1_700_000_000_000 + number, f"run-{number}-ü")
        for number, session in enumerate(sorted(NAMES, key=str.encode))
    ]
    writes = enqueued(1)
    enqueue(writes, 1, subqueue=OTHER)
    for lock in reversed(locks):
        writes.session_locks[PARTITION, lock.session] = lock
    elsewhere = SessionLockRow("a", POSITION_MAX, 1 << 50, "")
    writes.session_locks[PARTITION + 1, "a"] = elsewhere
    store.commit(writes)
    assert list(snapshot_of(store).session_locks) == locks
    renewed = locks[2]._replace(until_ms=5, holder="another")
    writes = Writes()
    writes.session_locks = {
        (PARTITION, locks[0].session): None,
        (PARTITION, locks[1].session): None,
        (PARTITION, renewed.session): renewed,
        (PARTITION, "never seen"): None,
    }
    store.commit(writes)
    store.close()
    store = open_store()
    assert list(snapshot_of(store).session_locks) == [renewed, *locks[3:]]
    assert snapshot_of(store, PARTITION + 1).session_locks == (elsewhere,)
