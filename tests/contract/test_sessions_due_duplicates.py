"""The contract of sessions, due times, sequence numbers and remembered ids; see `partition.protocol.ports`."""

import pytest

from partibus.partition.protocol import queries as q
from partibus.partition.protocol.keys import POSITION_MAX, body_key, entry_key, subqueue_key
from partibus.partition.protocol.ports import (
    FINISHED,
    CursorRow,
    Disposition,
    DueRows,
    EntryState,
    Snapshot,
    Store,
    StoreError,
    Writes,
)
from tests.contract.stores import DEAD_LETTERS, PARTITION, QUEUE, Opener, complete, enqueue, enqueued

OTHER_QUEUE = subqueue_key(PARTITION + 1, 0)
IN_ORDER = ["", "\x00", "\x00\x00", " ", "A", "Z", "a", "a\x00", "a\x00b", "aa", "b", "é", "ﬀ", "𝄞"]
"""Names in the order of their UTF-8 bytes; in UTF-16, the last two would change places."""


def sessions_of(*sessions: str, subqueue: int = QUEUE, state: EntryState = EntryState.ACTIVE) -> Writes:
    """One message per session."""
    writes = Writes()
    for pos, session in enumerate(sessions):
        enqueue(writes, 100 * state + pos, session=session, subqueue=subqueue, state=state)
    return writes


def state_of(session: str, state: bytes | None, updated_ms: int = 1, partition: int = PARTITION) -> Writes:
    writes = Writes()
    writes.session_states[partition, session] = (state, updated_ms)
    return writes


def remembered(*ids: tuple[int, bytes, int], partition: int = PARTITION) -> Writes:
    """(bucket, id, accepted ms)."""
    writes = Writes()
    for row in ids:
        writes.duplicate_ids += (partition, *row, None)
    return writes


def snapshot_of(store: Store) -> Snapshot:
    snapshot = store.read(q.Partition(PARTITION))
    assert snapshot is not None
    return snapshot


def test_an_empty_store_answers_everything_with_nothing(store: Store) -> None:
    assert store.read(q.Page(QUEUE, 0, 9, 99, "s")) == []
    assert store.read(q.Peek(QUEUE, 0, 9, 99, "s")) == []
    assert store.read(q.Peek(DEAD_LETTERS, 0, 9, 99, "s")) == []
    assert store.read(q.Due(QUEUE, EntryState.SCHEDULED, 1 << 50, 9, 99)) == DueRows([], None)
    assert store.read(q.BySequence(QUEUE, [1])) == store.read(q.BySequence(DEAD_LETTERS, [1])) == []
    assert store.read(q.BySequence(QUEUE, [])) == []
    assert store.read(q.SessionsBehind(QUEUE, None, 9)) == store.read(q.SessionsBehind(QUEUE, "a", 9)) == []
    assert store.read(q.SessionList(QUEUE, 0, 9, None)) == store.read(q.SessionList(QUEUE, 0, 9, 0)) == []
    assert store.read(q.AbsentSessions(QUEUE, ["t", "s"])) == ["t", "s"]
    assert store.read(q.AbsentSessions(QUEUE, [])) == []
    assert store.read(q.SessionState(PARTITION, "s")) is None
    assert store.read(q.Duplicates(PARTITION, 0, [b"x" * 16])) == store.read(q.Duplicates(PARTITION, 0, [])) == {}
    assert store.read(q.DuplicatesBehind(PARTITION, (0, b""), 9)) == []


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_a_sessions_page_has_its_active_entries_in_order(store: Store) -> None:
    writes = Writes()
    for pos in range(20):
        enqueue(writes, pos, session=("a", "b", None)[pos % 3], state=EntryState(pos // 3 % 2))
    store.commit(writes)
    assert [row.pos for row in store.read(q.Page(QUEUE, 0, 99, 999, "a"))] == [0, 6, 12, 18]
    assert [row.pos for row in store.read(q.Page(QUEUE, 1, 2, 999, "a"))] == [6, 12]
    assert [row.pos for row in store.read(q.Page(QUEUE, 0, 99, 10, "b"))] == [1, 7]
    assert [row.pos for row in store.read(q.Page(QUEUE, 0, 99, 0, "b"))] == [1]
    assert store.read(q.Page(QUEUE, 0, 99, 999, "")) == store.read(q.Page(QUEUE, 19, 99, 999, "a")) == []
    assert store.read(q.Page(QUEUE, 0, 0, 999, "a")) == store.read(q.Page(QUEUE, POSITION_MAX + 1, 9, 999, "a")) == []


def test_a_peek_into_a_session_has_its_entries_in_any_state_in_order(store: Store) -> None:
    writes = Writes()
    for pos in range(12):
        enqueue(writes, pos, session="ab"[pos % 2], state=EntryState(pos // 2 % 4))
        enqueue(
            writes, pos, session="ab"[pos % 2], state=EntryState(pos // 2 % 4), subqueue=DEAD_LETTERS, sequence=99 - pos
        )
    store.commit(writes)
    assert [row.pos for row in store.read(q.Peek(QUEUE, 3, 99, 999, "a"))] == [4, 6, 8, 10]
    assert [row.pos for row in store.read(q.Peek(QUEUE, 3, 99, 10, "b"))] == [3, 5]
    assert [row.pos for row in store.read(q.Peek(QUEUE, 0, 3, 999, "b"))] == [1, 3, 5]
    assert [row.sequence for row in store.read(q.Peek(DEAD_LETTERS, 90, 3, 999, "a"))] == [91, 93, 95]
    assert (
        store.read(q.Peek(QUEUE, 1 << 60, 9, 999, "a")) == store.read(q.Peek(DEAD_LETTERS, 1 << 80, 9, 999, "a")) == []
    )


def test_absent_sessions_are_those_without_entries_in_any_state(store: Store) -> None:
    names = [f"{number:04}" for number in range(300)]
    writes = Writes()
    for number in range(0, 300, 2):
        for pos in (number, number + 1):
            enqueue(writes, pos, session=names[number], state=EntryState(number // 2 % 4))
    enqueue(writes, 999, session=names[1], subqueue=DEAD_LETTERS)
    enqueue(writes, 999, session=names[3], subqueue=OTHER_QUEUE)
    store.commit(writes)
    assert store.read(q.AbsentSessions(QUEUE, names)) == names[1::2]
    assert store.read(q.AbsentSessions(QUEUE, ["x", *names[:3], "x"])) == ["x", names[1], "x"]
    assert store.read(q.AbsentSessions(OTHER_QUEUE, names[:4])) == names[:3]


def test_sessions_with_active_entries_are_scanned_in_order_of_their_bytes(store: Store) -> None:
    store.commit(sessions_of(*reversed(IN_ORDER)))
    store.commit(sessions_of("b", "only deferred", state=EntryState.DEFERRED))
    store.commit(sessions_of("elsewhere", subqueue=OTHER_QUEUE))
    assert store.read(q.SessionsBehind(QUEUE, None, 99)) == IN_ORDER
    assert store.read(q.SessionsBehind(QUEUE, None, 99, EntryState.DEFERRED)) == ["b", "only deferred"]
    assert store.read(q.SessionsBehind(QUEUE, "b", 99, EntryState.DEFERRED)) == ["only deferred"]
    for number, session in enumerate(IN_ORDER):
        assert store.read(q.SessionsBehind(QUEUE, session, 2)) == IN_ORDER[number + 1 : number + 3]
    assert store.read(q.SessionsBehind(QUEUE, "a\x00a", 1)) == ["a\x00b"]
    assert store.read(q.SessionsBehind(QUEUE, None, 0)) == store.read(q.SessionsBehind(QUEUE, None, -1)) == []


def test_a_session_is_scanned_until_its_last_active_entry_is_gone(store: Store) -> None:
    store.commit(sessions_of("a", "a", "b"))
    store.commit(complete(Writes(), 0, 0))
    assert store.read(q.SessionsBehind(QUEUE, None, 9)) == ["a", "b"]
    writes = Writes()
    writes.entry_updates += [entry_key(QUEUE, 1), body_key(PARTITION, 1), int(EntryState.DEFERRED), 0, None]
    store.commit(complete(writes, 2, 2))
    assert store.read(q.SessionsBehind(QUEUE, None, 9)) == []
    writes = Writes()
    writes.entry_updates += [entry_key(QUEUE, 1), body_key(PARTITION, 1), int(EntryState.ACTIVE), 1, None]
    store.commit(writes)
    assert store.read(q.SessionsBehind(QUEUE, None, 9)) == ["a"]


def test_more_sessions_than_one_statement_finds(store: Store) -> None:
    names = [f"{number:05}" for number in range(5_000)]
    writes = Writes()
    for pos, name in enumerate(names):
        if pos % 2:
            enqueue(writes, pos, b"", session=name)
        else:
            writes.session_states[PARTITION, name] = (b"", pos)
    store.commit(writes)
    assert store.read(q.SessionsBehind(QUEUE, None, 10_000)) == names[1::2]
    assert store.read(q.SessionList(QUEUE, 0, 10_000, None)) == names
    assert store.read(q.SessionList(QUEUE, 4_095, 3, None)) == names[4_095:4_098]
    assert store.read(q.SessionList(QUEUE, 4_990, 99, None)) == names[4_990:]
    assert store.read(q.SessionList(QUEUE, 0, 10_000, 4_000)) == names[4_002::2]
    assert store.read(q.SessionList(QUEUE, 1, 3, None, names[4_095])) == names[4_097:4_100]
    assert store.read(q.SessionList(QUEUE, 0, 9, None, names[-1])) == []


def test_a_list_has_sessions_with_messages_or_a_state_or_those_set_after_a_time(store: Store) -> None:
    store.commit(sessions_of("messages", "both"))
    store.commit(sessions_of("deferred", state=EntryState.DEFERRED))
    store.commit(state_of("both", b"1", 100))
    store.commit(state_of("state", b"2", 200))
    store.commit(state_of("elsewhere", b"3", 300, PARTITION + 1))
    assert store.read(q.SessionList(QUEUE, 0, 9, None)) == ["both", "messages", "state"]
    assert store.read(q.SessionList(QUEUE, 1, 1, None)) == ["messages"]
    assert store.read(q.SessionList(QUEUE, 0, 9, 99)) == ["both", "state"]
    assert store.read(q.SessionList(QUEUE, 1, 9, 99)) == ["state"]
    assert store.read(q.SessionList(QUEUE, 0, 9, 100)) == ["state"]
    assert store.read(q.SessionList(QUEUE, 0, 9, 200)) == []
    assert store.read(q.SessionList(QUEUE, -1, 0, None)) == store.read(q.SessionList(QUEUE, 9, 9, None)) == []


@pytest.mark.parametrize("state", [b"", b"\x00", b"\xff" * 16_385, bytes(range(256)) * 1_024])
def test_a_sessions_state_is_any_bytes_and_none_removes_it(store: Store, state: bytes) -> None:
    store.commit(state_of("s", b"before"))
    store.commit(state_of("s", state))
    store.commit(state_of("t", b"another's"))
    assert store.read(q.SessionState(PARTITION, "s")) == state
    assert store.read(q.SessionState(PARTITION + 1, "s")) is None
    store.commit(state_of("s", None))
    store.commit(state_of("never set", None))
    assert store.read(q.SessionState(PARTITION, "s")) is None
    assert store.read(q.SessionState(PARTITION, "t")) == b"another's"
    assert store.read(q.SessionList(QUEUE, 0, 9, None)) == ["t"]


def test_many_states_in_one_commit(store: Store) -> None:
    for generation in (b"first", b"second"):
        writes = Writes()
        for number in range(600):
            gone = number % 3 == 0 and generation == b"second"
            writes.session_states[PARTITION, f"{number:03}"] = (None if gone else generation, number)
        store.commit(writes)
    assert store.read(q.SessionList(QUEUE, 0, 999, None)) == [f"{number:03}" for number in range(600) if number % 3]
    assert store.read(q.SessionState(PARTITION, "599")) == b"second"


# -- due times ---------------------------------------------------------------------------------------------------------


def test_due_entries_come_with_the_earliest_first_and_the_time_of_the_next(store: Store) -> None:
    writes = Writes()
    for pos, due_ms in enumerate((500, 100, None, 300, 100, 400)):
        enqueue(writes, pos, state=EntryState.SCHEDULED, due_ms=due_ms)
    enqueue(writes, 6, due_ms=50)
    enqueue(writes, 7, state=EntryState.SCHEDULED, due_ms=50, subqueue=OTHER_QUEUE)
    store.commit(writes)

    def due(until_ms: int, max_entries: int = 9, max_bytes: int = 999) -> tuple[list[int], int | None]:
        found = store.read(q.Due(QUEUE, EntryState.SCHEDULED, until_ms, max_entries, max_bytes))
        return [row.pos for row in found.rows], found.next_due_ms

    assert due(99) == ([], 100)
    assert due(100) == ([1, 4], 300)
    assert due(100, max_entries=1) == ([1], 100)
    assert due(400, max_bytes=15) == ([1, 4, 3], 400)
    assert due(400, max_bytes=0) == ([1], 100)
    assert due(1 << 70) == ([1, 4, 3, 5, 0], None)
    assert due(400, max_entries=0) == ([], 100)
    assert [store.read(q.DueCount(QUEUE, state)) for state in (EntryState.SCHEDULED, EntryState.ACTIVE)] == [5, 1]
    assert store.read(q.DueCount(OTHER_QUEUE, EntryState.SCHEDULED)) == 1
    assert store.read(q.DueCount(OTHER_QUEUE, EntryState.DEFERRED)) == 0
    assert store.read(q.Due(QUEUE, EntryState.DELAYED, 999, 9, 999)) == DueRows([], None)
    assert snapshot_of(store).next_due == {(QUEUE, EntryState.ACTIVE): 50, (QUEUE, EntryState.SCHEDULED): 100}


def test_an_update_moves_an_entry_to_another_time_state_and_body(store: Store) -> None:
    store.commit(enqueue(enqueue(Writes(), 1, b"old", due_ms=100), 2, b"new", due_ms=200))
    writes = Writes()
    writes.entry_updates += [entry_key(QUEUE, 1), body_key(PARTITION, 2), int(EntryState.DELAYED), 3, 150]
    writes.entry_updates += [entry_key(QUEUE, 2), body_key(PARTITION, 2), int(EntryState.ACTIVE), 0, None]
    store.commit(writes)
    assert store.read(q.Due(QUEUE, EntryState.ACTIVE, 999, 9, 999)) == DueRows([], None)
    (row,) = store.read(q.Due(QUEUE, EntryState.DELAYED, 150, 9, 999)).rows
    assert (row.pos, row.data, row.delivery_count, row.due_ms) == (1, b"new", 3, 150)
    assert snapshot_of(store).next_due == {(QUEUE, EntryState.DELAYED): 150}
    store.commit(complete(Writes(), 1, 1))
    assert snapshot_of(store).next_due == {}


def test_an_entry_without_its_body_keeps_nobody_waiting_for_its_time(store: Store) -> None:
    """Wake no partition for it: it can't be delivered, so the partition would ask again at once, for ever."""
    store.commit(enqueue(enqueue(Writes(), 1, due_ms=100), 2, due_ms=200))
    writes = Writes()
    writes.deleted_bodies.append((body_key(PARTITION, 1), body_key(PARTITION, 1)))
    store.commit(writes)
    assert store.read(q.Due(QUEUE, EntryState.ACTIVE, 150, 9, 999)) == DueRows([], 200)
    assert snapshot_of(store).next_due == {(QUEUE, EntryState.ACTIVE): 200}


# -- sequence numbers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("subqueue", [QUEUE, DEAD_LETTERS])
def test_entries_are_found_by_sequence_in_any_state_once_each(store: Store, subqueue: int) -> None:
    writes = Writes()
    for number in range(700):
        pos = number if subqueue == QUEUE else 1_000 - number
        enqueue(writes, pos, b"%d" % number, subqueue=subqueue, sequence=number, state=EntryState(number % 4))
    store.commit(writes)
    wanted = [*range(0, 700, 2), 4, 4, 800, -1, POSITION_MAX, POSITION_MAX + 1, 1 << 48, 1 << 70]
    found = store.read(q.BySequence(subqueue, wanted))
    assert sorted(row.sequence for row in found) == list(range(0, 700, 2))
    assert all(row.data == b"%d" % row.sequence for row in found)


def test_a_sequence_past_the_last_position_is_not_another_subqueues_entry(store: Store) -> None:
    store.commit(enqueued(1, subqueue=QUEUE + 1))
    assert store.read(q.BySequence(QUEUE, [POSITION_MAX + 2])) == []


# -- remembered ids ----------------------------------------------------------------------------------------------------

A, B, C = (bytes([number]) * 16 for number in (1, 2, 255))


def test_an_id_is_found_in_its_bucket_and_later_ones_with_the_last_time(store: Store) -> None:
    store.commit(remembered((5, A, 100), (6, A, 200), (5, B, 300)))
    store.commit(remembered((9, C, 1), partition=PARTITION + 1))
    assert accepted_ms(store, 5, [A, B, C]) == {A: 200, B: 300}
    assert accepted_ms(store, 6, [A, B, A]) == {A: 200}
    assert store.read(q.Duplicates(PARTITION, 7, [A])) == {}
    store.commit(remembered((5, B, 400), (5, B, 350)))
    assert accepted_ms(store, 0, [B]) == {B: 350}


def accepted_ms(store: Store, first_bucket: int, ids: list[bytes]) -> dict[bytes, int]:
    found = store.read(q.Duplicates(PARTITION, first_bucket, ids))
    assert {note for _, note in found.values()} <= {b""}
    return {message_id: when_ms for message_id, (when_ms, _) in found.items()}


def test_the_note_about_the_last_message_comes_with_an_id(store: Store) -> None:
    writes = Writes()
    for bucket, message_id, when_ms, note in ((5, A, 100, b"first"), (6, A, 200, b"second"), (6, B, 1, None)):
        writes.duplicate_ids += (PARTITION, bucket, message_id, when_ms, note)
    store.commit(writes)
    assert store.read(q.Duplicates(PARTITION, 5, [A, B])) == {A: (200, b"second"), B: (1, b"")}
    store.commit(remembered((6, A, 300)))
    assert store.read(q.Duplicates(PARTITION, 5, [A])) == {A: (300, b"")}


def test_more_ids_than_one_statement_takes(store: Store) -> None:
    ids = [number.to_bytes(16, "big") for number in range(1_500)]
    store.commit(remembered(*((number % 4, message_id, number) for number, message_id in enumerate(ids))))
    expected = {message_id: number for number, message_id in enumerate(ids)}
    assert accepted_ms(store, 0, [*ids, b"\xff" * 16]) == expected
    scanned = []
    after = (-1, b"")
    while page := store.read(q.DuplicatesBehind(PARTITION, after, 400)):
        scanned += page
        after = page[-1][:2]
    assert scanned == sorted((number % 4, message_id, number) for number, message_id in enumerate(ids))


def test_old_buckets_are_forgotten_from_the_first_on_and_no_more_than_asked(store: Store) -> None:
    rows = [(bucket, message_id, 7) for bucket in (1, 2, 3) for message_id in (A, B, C)]
    store.commit(remembered(*rows))
    store.commit(remembered((1, A, 8), partition=PARTITION + 1))

    def forget(bucket: int, most: int) -> list[tuple[int, bytes, int]]:
        writes = Writes()
        writes.forgotten_duplicates.append((PARTITION, bucket, most))
        store.commit(writes)
        return store.read(q.DuplicatesBehind(PARTITION, (0, b""), 99))

    assert forget(1, 99) == rows
    assert forget(3, 0) == rows
    assert forget(3, 4) == rows[4:]
    assert forget(3, 2) == rows[6:]
    assert forget(3, 9) == rows[6:]
    assert forget(4, 3) == []
    assert store.read(q.DuplicatesBehind(PARTITION + 1, (0, b""), 9)) == [(1, A, 8)]


def test_ids_of_a_commit_are_remembered_before_old_ones_are_forgotten(store: Store) -> None:
    writes = remembered((1, A, 1), (2, A, 1))
    writes.forgotten_duplicates.append((PARTITION, 2, 9))
    store.commit(writes)
    assert store.read(q.DuplicatesBehind(PARTITION, (0, b""), 9)) == [(2, A, 1)]


# -- all of it ---------------------------------------------------------------------------------------------------------


def everything(partition: int) -> Writes:
    subqueue = subqueue_key(partition, 0)
    writes = enqueue(Writes(), 1, session="s", due_ms=5, subqueue=subqueue)
    writes.counters[partition] = (2, 0, 5)
    writes.session_states[partition, "s"] = (b"state", 1)
    writes.duplicate_ids += (partition, 1, A, 1, None)
    return writes


def answers(store: Store, partition: int) -> list[object]:
    subqueue = subqueue_key(partition, 0)
    return [
        store.read(q.Partition(partition)),
        store.read(q.Page(subqueue, 0, 9, 99, "s")),
        store.read(q.Peek(subqueue, 0, 9, 99, "s")),
        store.read(q.Due(subqueue, EntryState.ACTIVE, 9, 9, 99)),
        store.read(q.BySequence(subqueue, [1])),
        store.read(q.SessionsBehind(subqueue, None, 9)),
        store.read(q.SessionList(subqueue, 0, 9, None)),
        store.read(q.SessionList(subqueue, 0, 9, 0)),
        store.read(q.SessionState(partition, "s")),
        store.read(q.Duplicates(partition, 0, [A])),
        store.read(q.DuplicatesBehind(partition, (0, b""), 9)),
    ]


NOTHING: list[object] = [None, [], [], DueRows([], None), [], [], [], [], None, {}, []]


def test_a_dropped_partition_leaves_nothing_and_its_neighbours_keep_all(store: Store) -> None:
    for partition in (PARTITION - 1, PARTITION, PARTITION + 1):
        store.commit(everything(partition))
    before = [answers(store, partition) for partition in (PARTITION - 1, PARTITION + 1)]
    dropping = Writes()
    dropping.session_states[PARTITION, "t"] = (b"set and dropped at once", 1)
    dropping.dropped_partitions.append(PARTITION)
    store.commit(dropping)
    assert answers(store, PARTITION) == NOTHING
    assert store.read(q.SessionState(PARTITION, "t")) is None
    assert [answers(store, partition) for partition in (PARTITION - 1, PARTITION + 1)] == before


def test_a_failed_commit_sets_no_state_and_remembers_no_id(store: Store) -> None:
    store.commit(enqueued(1))
    before = answers(store, PARTITION)
    with pytest.raises(StoreError):
        store.commit(everything(PARTITION))
    assert answers(store, PARTITION) == before


def test_committed_rows_survive_a_new_opening(open_store: Opener) -> None:
    first = open_store()
    first.commit(everything(PARTITION))
    before = answers(first, PARTITION)
    assert NOTHING not in ([answer] for answer in before)
    first.close()
    assert answers(open_store(), PARTITION) == before


def test_first_due_time_of_each_sub_queue_is_found(store: Store) -> None:
    assert store.read(q.TimedSubqueues()) == {}
    rows: list[tuple[int, list[tuple[EntryState, int | None]]]] = [
        (subqueue_key(PARTITION + 2, 0), [(EntryState.ACTIVE, 9), (EntryState.SCHEDULED, 8), (EntryState.DELAYED, 5)]),
        (subqueue_key(PARTITION, 0), [(EntryState.ACTIVE, 7), (EntryState.DEFERRED, 6), (EntryState.SCHEDULED, 8)]),
        (subqueue_key(PARTITION, 1), [(EntryState.ACTIVE, 1 << 40), (EntryState.ACTIVE, None)]),
        (subqueue_key(PARTITION + 1, 0), [(EntryState.ACTIVE, None), (EntryState.DEFERRED, None)]),
        (subqueue_key(PARTITION + 9, 3), [(EntryState.ACTIVE, 3), (EntryState.ACTIVE, 1), (EntryState.ACTIVE, 2)]),
    ]
    for subqueue, entries in rows:
        writes = Writes()
        for number, (state, due_ms) in enumerate(entries, 10 * (subqueue & 1)):
            enqueue(writes, number, state=state, due_ms=due_ms, subqueue=subqueue)
        store.commit(writes)
    assert store.read(q.TimedSubqueues()) == {
        subqueue_key(PARTITION, 0): 6,
        subqueue_key(PARTITION, 1): 1 << 40,
        subqueue_key(PARTITION + 2, 0): 5,
        subqueue_key(PARTITION + 9, 3): 1,
    }


def test_neither_finished_entries_nor_those_without_a_body_fall_due(store: Store) -> None:
    writes = Writes()
    for pos in range(4):
        enqueue(writes, pos, due_ms=pos)
    store.commit(writes)
    writes = Writes()
    body = body_key(PARTITION, 0)
    writes.entry_updates += [entry_key(QUEUE, 0), body, FINISHED + Disposition.COMPLETED, 0, 0]
    writes.deleted_bodies.append((body_key(PARTITION, 1), body_key(PARTITION, 1)))
    store.commit(writes)
    assert store.read(q.TimedSubqueues()) == {QUEUE: 2}


def test_partitions_with_cursors_are_found(store: Store) -> None:
    assert store.read(q.CursorPartitions(10)) == []
    writes = Writes()
    for partition, kind, name in ((2, 0, "a"), (0, 0, "a"), (0, 1, "a"), (0, 0, "b"), (9, 0, "c")):
        subqueue = subqueue_key(PARTITION + partition, kind)
        writes.cursors[subqueue, name] = CursorRow(subqueue, name, 1, -1, 0, 0, 0, 0, 0, 0)
    store.commit(writes)
    assert store.read(q.CursorPartitions(10)) == [PARTITION, PARTITION + 2, PARTITION + 9]
    assert store.read(q.CursorPartitions(2)) == [PARTITION, PARTITION + 2]
