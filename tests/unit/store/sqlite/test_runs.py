"""Frames of entries that are alike: which statements SQLite takes for them, and what may change in between."""

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from partibus.partition.protocol.ports import EntryState, RangeFrame, Writes
from partibus.store.sqlite import ranges
from partibus.store.sqlite.apply import apply_writes
from partibus.store.sqlite.sql import schema, statement
from tests.contract.frames import unpack
from tests.contract.stores import QUEUE, complete, enqueue

COUNT = 200
LONG, SHORT = statement("select_frame"), statement("select_run")


class Between(sqlite3.Connection):
    """Notes what is run, and lets something happen before one of it is."""

    before: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.run: list[str] = []

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql == SHORT:
            self.before()
        self.run.append(sql)
        return super().execute(sql, parameters)


@pytest.fixture
def connection() -> Between:
    """Connect to a store with entries that are alike."""
    made = sqlite3.connect(":memory:", isolation_level=None, factory=Between)
    made.executescript(schema())
    writes = Writes()
    for pos in range(COUNT):
        enqueue(writes, pos, bytes(100))
    writes.counts[QUEUE] = (COUNT, 100 * COUNT)
    apply_writes(writes, made)
    made.run.clear()
    return made


def read(connection: Between) -> RangeFrame:
    return ranges.read_range(connection, QUEUE, 0, COUNT, 16_384, 1 << 20, finished=False)


def change(connection: Between, state: EntryState, pos: int = 50) -> None:
    writes = Writes()
    enqueue(writes, pos, bytes(100), state=state, delivery_count=1)
    connection.execute("DELETE FROM entry WHERE key = ?", (writes.entries[0],))
    connection.execute("DELETE FROM body WHERE key = ?", (writes.bodies[0],))
    apply_writes(writes, connection)


def test_entries_that_are_alike_are_counted_and_read(connection: Between) -> None:
    assert read(connection).count == COUNT
    assert connection.run.count(SHORT) == 1
    assert LONG not in connection.run


def test_others_are_not_read_twice(connection: Between) -> None:
    change(connection, EntryState.DEFERRED)
    assert unpack(read(connection))[50].state == EntryState.DEFERRED
    assert SHORT not in connection.run


def test_who_leaves_after_the_count_is_not_there(connection: Between) -> None:
    connection.before = lambda: apply_writes(complete(Writes(), 50, 50), connection)
    assert [entry.pos for entry in unpack(read(connection))] == [pos for pos in range(COUNT) if pos != 50]
    assert LONG in connection.run


def test_all_leave_after_the_count(connection: Between) -> None:
    connection.before = lambda: apply_writes(complete(Writes(), 0, COUNT - 1), connection)
    assert read(connection) == (0, COUNT, b"")


def test_another_state_after_the_count_is_seen_by_the_next_read(connection: Between) -> None:
    connection.before = lambda: change(connection, EntryState.DEFERRED)
    frame = read(connection)
    assert frame.count == COUNT
    assert unpack(frame)[50][-2:] == (EntryState.ACTIVE, bytes(100))
    assert unpack(read(connection))[50][-2:] == (EntryState.DEFERRED, bytes(100))


def test_what_is_much_larger_than_others_is_in_no_long_blob(connection: Between) -> None:
    large = bytes(3 << 20)
    connection.execute("UPDATE body SET data = ? WHERE key = (SELECT body FROM entry ORDER BY key LIMIT 1)", (large,))
    frame = read(connection)
    assert (frame.count, frame.next_pos) == (1, 1)
    assert unpack(frame)[0].data == large
    assert connection.run.count(SHORT) == 1
