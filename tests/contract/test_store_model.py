"""Any sequence of commits: every store answers as the model does, before and after it is opened anew."""

import os
from copy import copy, deepcopy
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from partibus.partition.protocol import queries as q
from partibus.partition.protocol.keys import SHARED_BODY, body_key
from partibus.partition.protocol.ports import EntryRow, Store, StoreError, Writes
from partibus.store.postgresql import PostgreSQLStore
from partibus.store.sqlite import SQLiteStore
from tests.contract.frames import packed, unpack
from tests.contract.histories import IDS, PARTITIONS, SUBQUEUES, history
from tests.contract.model import Model
from tests.contract.stores import Opener, memory, postgresql, sqlite
from tests.kit.stores.memory import MemoryDisk, MemoryStore
from tests.plugins.soak import ROUND, seeds

PLACES = {"memory": (memory, 120), "sqlite": (sqlite, 25), "postgresql": (postgresql, 6)}
"""Stores, and so many histories of each; fewer where each makes a schema and opens it twice."""
TIMES = int(os.environ.get("PARTIBUS_PROPERTY_EXAMPLES", "1"))


def bounded(rows: list[EntryRow], max_entries: int, max_bytes: int) -> list[EntryRow]:
    """Return as many as both bounds allow, one at least."""
    fitting = [count for count in range(len(rows) + 1) if sum(len(row.data) for row in rows[:count]) <= max_bytes]
    return rows[: min(max_entries, max(1, fitting[-1]))]


def assert_answers_as(model: Model, store: Store, max_entries: int, max_bytes: int) -> None:
    bounds = (max_entries, max_bytes)
    for partition in PARTITIONS:
        assert store.read(q.Partition(partition)) == model.snapshot(partition)
    assert store.read(q.Sizes([*PARTITIONS, 9])) == model.sizes()
    filled = model.filled()
    assert store.read(q.Counts(99)) == filled
    assert list(store.read(q.Counts(2))) == sorted(filled)[:2]
    assert_ids_are_as_in(model, store)
    numbers = [number | flag for flag in (0, SHARED_BODY) for number in range(12)]
    wanted = [body_key(partition, number) for partition in PARTITIONS for number in numbers]
    assert store.read(q.Bodies(wanted)) == [model.bodies.get(key) for key in wanted]
    for subqueue in SUBQUEUES:
        assert_ranges_are_as_in(model, store, subqueue, max_entries, max_bytes)
        rows = model.rows(subqueue)
        by_sequence = rows if not subqueue & 3 else sorted(rows, key=lambda row: (row.sequence, row.pos))
        assert store.read(q.Browse(subqueue, 0, 1 << 40, 99, 9_999)) == rows
        for start in (0, 4):
            active = [row for row in rows if row.pos >= start and row.state == 0]
            assert store.read(q.Page(subqueue, start, *bounds)) == bounded(active, *bounds)
            following = [row for row in by_sequence if row.sequence >= start]
            assert store.read(q.Peek(subqueue, start, *bounds)) == bounded(following, *bounds)
            inside = [row for row in rows if start <= row.pos < start + 3]
            assert store.read(q.Browse(subqueue, start, start + 3, *bounds)) == bounded(inside, *bounds)
            for session in {row.session for row in rows} - {None}:
                of_it = [row for row in active if row.session == session]
                assert store.read(q.Page(subqueue, start, *bounds, session)) == bounded(of_it, *bounds)
                of_it = [row for row in following if row.session == session]
                assert store.read(q.Peek(subqueue, start, *bounds, session)) == bounded(of_it, *bounds)
            found = store.read(q.BySequence(subqueue, range(start, start + 3)))
            assert sorted(found) == sorted(row for row in rows if start <= row.sequence < start + 3)
        for state in range(4):
            for until_ms in (0, 3, 1 << 50):
                due = [row for row in model.due(subqueue, state) if row.due_ms is not None and row.due_ms <= until_ms]
                most = len(bounded(due, *bounds))
                assert store.read(q.Due(subqueue, state, until_ms, *bounds)) == model.due_rows(
                    subqueue, state, until_ms, most
                )
        assert_sessions_are_as_in(model, store, subqueue)


def assert_ranges_are_as_in(model: Model, store: Store, subqueue: int, max_entries: int, max_bytes: int) -> None:
    for finished in (False, True):
        readable = [row for row in model.readable(subqueue) if row.state != 2 and (finished or row.state < 16)]
        for from_pos, to_pos in ((0, 1 << 40), (4, 7)):
            inside = [packed(row) for row in readable if from_pos <= row.pos < to_pos]
            while from_pos < to_pos:
                frame = store.read(q.Range(subqueue, from_pos, to_pos, max_entries, max_bytes, finished=finished))
                entries = unpack(frame)
                assert len(entries) <= max_entries
                assert len(entries) <= 1 or sum(entry.size for entry in entries) <= max_bytes
                assert entries == inside[: len(entries)]
                assert frame.next_pos == to_pos or frame.next_pos == entries[-1].pos + 1
                inside = inside[len(entries) :]
                from_pos = frame.next_pos
            assert inside == []
    scanned = model.scanned(subqueue)
    assert store.read(q.Scan(subqueue, 0, 1 << 40, 99)) == scanned
    assert store.read(q.Scan(subqueue, 4, 8, 2)) == [row for row in scanned if 4 <= row[0].pos < 8][:2]
    log = model.log(subqueue)
    assert store.read(q.Dispositions(subqueue, 0, 99)) == log
    assert store.read(q.Dispositions(subqueue, 3, 2)) == [line for line in log if line.number >= 3][:2]


def assert_sessions_are_as_in(model: Model, store: Store, subqueue: int) -> None:
    def in_order(sessions: set[str]) -> list[str]:
        return sorted(sessions, key=str.encode)

    waiting = in_order(model.sessions(subqueue))
    assert store.read(q.SessionsBehind(subqueue, None, 99)) == waiting
    for after in ("", "a", "b", "\x7f"):
        behind = [session for session in waiting if session.encode() > after.encode()]
        assert store.read(q.SessionsBehind(subqueue, after, 2)) == behind[:2]
    row = subqueue >> 2
    named = in_order(model.sessions(subqueue) | model.updated(row, -1))
    assert store.read(q.SessionList(subqueue, 0, 99, None)) == named
    assert store.read(q.SessionList(subqueue, 1, 2, None)) == named[1:3]
    for after_ms in (0, 2):
        updated = in_order(model.updated(row, after_ms))
        assert store.read(q.SessionList(subqueue, 0, 99, after_ms)) == updated
        assert store.read(q.SessionList(subqueue, 1, 2, after_ms)) == updated[1:3]
    asked = [*reversed(named), "never seen", "", "\x7f"]
    present = {row.session for row in model.rows(subqueue)}
    assert store.read(q.AbsentSessions(subqueue, asked)) == [one for one in asked if one not in present]
    for session in {*named, "never seen"}:
        state = model.states.get((row, session))
        assert store.read(q.SessionState(row, session)) == (state and state[0])


def assert_ids_are_as_in(model: Model, store: Store) -> None:
    for partition in PARTITIONS:
        for first_bucket in (0, 2):
            expected = model.accepted(partition, first_bucket, IDS[1:])
            found = store.read(q.Duplicates(partition, first_bucket, IDS[1:]))
            assert {message_id: when_ms for message_id, (when_ms, _) in found.items()} == expected
        ids = sorted((bucket, *key, ms) for (row, bucket, *key), ms in model.ids.items() if row == partition)
        assert store.read(q.DuplicatesBehind(partition, (-1, b""), 99)) == ids
        for sink in (-1, 7):
            batches = {key[2]: batch for key, batch in model.sink_ids.items() if key[:2] == (partition, sink)}
            assert store.read(q.SinkIds(partition, sink, IDS[1:])) == batches.keys() & {*IDS[1:]}
            for last in (0, 2, 3):
                assert store.read(q.SinkIdCount(partition, sink, last)) == sum(
                    batch <= last for batch in batches.values()
                )
        after = (1, IDS[2])
        assert store.read(q.DuplicatesBehind(partition, after, 3)) == [row for row in ids if row[:2] > after][:3]


@pytest.mark.parametrize("place", PLACES)
def test_a_store_answers_as_the_model(place: str) -> None:
    """The same histories each time; PARTIBUS_PROPERTY_EXAMPLES is how many times as many are searched."""
    make, count = PLACES[place]
    commits = 0
    for seed in range(count * TIMES) if ROUND is None else seeds(count):
        random = Random(-seed)
        try:
            commits += assert_history_is_kept(make, history(seed), (random.randint(1, 6), random.randint(0, 60)))
        except Exception as error:
            error.add_note(f"in the history of seed {seed}")
            raise
    assert commits > count, "most were refused"


DRAWN = {
    name
    for seed in range(8)
    for writes in history(seed)
    for name in Writes.__struct_fields__
    if getattr(writes, name) != getattr(Writes(), name)
}
"""All kinds of writes that there are in these histories."""


@pytest.mark.parametrize("left_out", sorted(DRAWN))
def test_a_store_that_leaves_something_out_is_found(left_out: str) -> None:
    def forgetful(_directory: Path) -> Opener:
        disk = MemoryDisk()
        return lambda: Forgetful(left_out, disk)

    with pytest.raises((AssertionError, StoreError, pytest.fail.Exception)):  # noqa: PT012 (some history of many)
        for seed in range(PLACES["memory"][1]):
            assert_history_is_kept(forgetful, history(seed), (6, 60))


class Forgetful(MemoryStore):
    """Passes over one kind of write."""

    def __init__(self, left_out: str, disk: MemoryDisk) -> None:
        super().__init__(disk)
        self._left_out = left_out

    def commit(self, writes: Writes) -> None:
        shortened = copy(writes)
        setattr(shortened, self._left_out, getattr(Writes(), self._left_out))
        super().commit(shortened)


def assert_history_is_kept(place: Any, commits: list[Writes], bounds: tuple[int, int]) -> int:
    """How many of the commits were accepted."""
    accepted = 0
    with TemporaryDirectory() as directory:
        open_store = place(Path(directory))
        store = open_store()
        model = Model()
        for writes in commits:
            after = deepcopy(model)
            try:
                after.commit(writes)
            except KeyError:
                with pytest.raises(StoreError) as caught:
                    store.commit(writes)
                assert caught.value.executed is False
            else:
                store.commit(writes)
                model = after
                accepted += 1
                if writes.dropped_partitions and isinstance(store, SQLiteStore | PostgreSQLStore):
                    store.wait_until_swept()  # of what a dropped partition names elsewhere nothing is hidden at once
            assert_answers_as(model, store, *bounds)
        store.close()
        store = open_store()
        assert_answers_as(model, store, *bounds)
        store.close()
    return accepted
