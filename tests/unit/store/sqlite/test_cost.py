"""The cost of a load does not grow with rows outside of its answer: counted in steps of SQLite's machine."""

import sqlite3
from collections.abc import Callable

import pytest

from partibus.partition.protocol.keys import body_key, entry_key, subqueue_key
from partibus.partition.protocol.ports import FINISHED, Disposition, EntryState, Writes
from partibus.store.sqlite import apply, ranges, reader, sessions
from partibus.store.sqlite.apply import apply_writes
from partibus.store.sqlite.sql import schema
from tests.contract.stores import DEAD_LETTERS, PARTITION, QUEUE, enqueue

FEW, MANY = 300, 3_000
LARGE = "one with all the others' messages"
IDS = [number.to_bytes(16, "little") for number in range(MANY)]


def filled(rows: int) -> sqlite3.Connection:
    """Fill a store with so many entries of each kind, and so many session states, ids and dispositions.

    The kinds: active in one session and in each its own, deferred, scheduled for the same time, expiring,
    dead-lettered, and kept for a cursor after it was dead-lettered.
    """
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.executescript(schema())
    for number in range(rows):
        writes = Writes()
        at = 10 * number
        enqueue(writes, at, session=LARGE)
        enqueue(writes, at + 1, session=f"{number:06}")
        enqueue(writes, at + 2, session=f"{number:06}", state=EntryState.DEFERRED)
        enqueue(writes, at + 3, session=LARGE, state=EntryState.SCHEDULED, due_ms=1_000)
        enqueue(writes, at + 4, due_ms=2_000 + number)
        enqueue(writes, at, subqueue=DEAD_LETTERS, sequence=at + 5)
        writes.session_states[PARTITION, f"{number:06}"] = (b"state", number)
        writes.duplicate_ids += [PARTITION, number % 3, IDS[number], number, None]
        enqueue(writes, at + 1, subqueue=DEAD_LETTERS, sequence=at + 6)
        left = FINISHED + Disposition.COMPLETED
        writes.entry_updates += [entry_key(DEAD_LETTERS, at + 1), body_key(PARTITION, at + 6), left, 1, None]
        writes.dispositions += [entry_key(DEAD_LETTERS, number), at + 1, at + 6, Disposition.COMPLETED, number, 1]
        writes.sink_ids += [PARTITION, 7, IDS[number], number % 3]
        apply_writes(writes, connection)
    return connection


@pytest.fixture(scope="module")
def few() -> sqlite3.Connection:
    return filled(FEW)


@pytest.fixture(scope="module")
def many() -> sqlite3.Connection:
    return filled(MANY)


def steps(connection: sqlite3.Connection, load: Callable[[sqlite3.Connection], object]) -> int:
    """Instructions that SQLite's virtual machine takes."""
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    connection.set_progress_handler(count, 1)
    load(connection)
    connection.set_progress_handler(None, 0)
    return counted


def forget(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN")
    assert apply.forget_duplicates(connection, PARTITION, 2, 20) == 20
    connection.execute("ROLLBACK")


def forget_of_sink(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN")
    apply.forget_sink_ids(connection, PARTITION, 7, 2, 20)
    connection.execute("ROLLBACK")


def remember_of_sink(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN")
    apply.remember_sink_ids(connection, [PARTITION, 7, IDS[1], 2, PARTITION, 7, bytes(16), 2])
    connection.execute("ROLLBACK")


LOADS: dict[str, Callable[[sqlite3.Connection], object]] = {
    "the state of a partition": lambda c: reader.read_partition(c, PARTITION),
    "a session's page": lambda c: reader.read_page(c, QUEUE, 0, 9, 999, LARGE),
    "a session's page in the middle": lambda c: reader.read_page(c, QUEUE, 1_500, 9, 999, LARGE),
    "the page of one of many sessions": lambda c: reader.read_page(c, QUEUE, 0, 9, 999, "000100"),
    "a peek into a session": lambda c: reader.read_from_sequence(c, QUEUE, 0, 9, 999, LARGE),
    "a peek among dead letters": lambda c: reader.read_from_sequence(c, DEAD_LETTERS, 0, 9, 999),
    "some that are due": lambda c: reader.read_due(c, QUEUE, EntryState.SCHEDULED, 1_000, 9, 999),
    "none that is due": lambda c: reader.read_due(c, QUEUE, EntryState.ACTIVE, 1_999, 9, 999),
    "by sequence": lambda c: reader.read_sequences(c, QUEUE, [2, 12, 1_002]),
    "by sequence among dead letters": lambda c: reader.read_sequences(c, DEAD_LETTERS, [5, 15, 1_005]),
    "the next sessions": lambda c: sessions.scan_sessions(c, QUEUE, "000050", 9),
    "a list of sessions": lambda c: sessions.list_sessions(c, QUEUE, 20, 9, None, None),
    "a state": lambda c: sessions.session_state(c, PARTITION, "000100"),
    "ids": lambda c: apply.find_duplicates(c, PARTITION, 1, [IDS[8], IDS[9], bytes(16)]),
    "the next ids": lambda c: apply.scan_duplicates(c, PARTITION, (1, IDS[8]), 9),
    "forgetting ids": forget,
    "a frame": lambda c: ranges.read_range(c, QUEUE, 0, 1 << 40, 9, 999, finished=True),
    "a frame of what is waiting": lambda c: ranges.read_range(c, DEAD_LETTERS, 500, 1 << 40, 9, 999, finished=False),
    "a frame in bytes": lambda c: ranges.read_range(c, QUEUE, 0, 1 << 40, 1 << 30, 999, finished=True),
    "a scan": lambda c: ranges.scan(c, DEAD_LETTERS, 500, 1 << 40, 9),
    "fates": lambda c: ranges.read_dispositions(c, DEAD_LETTERS, 50, 9),
    "a sink's ids": lambda c: apply.find_sink_ids(c, PARTITION, 7, [IDS[8], IDS[9], bytes(16)]),
    "a sink's new ids": remember_of_sink,
    "forgetting a sink's ids": forget_of_sink,
}


@pytest.mark.parametrize("name", LOADS)
def test_ten_times_the_rows_cost_a_load_nothing(few: sqlite3.Connection, many: sqlite3.Connection, name: str) -> None:
    load = LOADS[name]
    assert steps(many, load) <= 1.05 * steps(few, load)


def test_the_largest_session_costs_the_scan_of_all_as_much_as_any_other() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.executescript(schema())
    before = steps(connection, lambda c: sessions.scan_sessions(c, QUEUE, None, 99))
    for pos in range(MANY):
        apply_writes(enqueue(Writes(), pos, session="the only one"), connection)
    after = steps(connection, lambda c: sessions.scan_sessions(c, QUEUE, None, 99))
    assert sessions.scan_sessions(connection, QUEUE, None, 99) == ["the only one"]
    assert after < before + 100


def test_a_snapshot_looks_for_due_entries_in_every_state_and_subqueue() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.executescript(schema())
    writes = Writes()
    expected = {}
    for kind in range(4):
        subqueue = subqueue_key(PARTITION, kind)
        for state in EntryState:
            due_ms = 100 * kind + state
            enqueue(
                writes, 10 * state + kind, subqueue=subqueue, sequence=100 * kind + state, state=state, due_ms=due_ms
            )
            expected[subqueue, int(state)] = due_ms
    apply_writes(writes, connection)
    snapshot = reader.read_partition(connection, PARTITION)
    assert snapshot is not None
    assert snapshot.next_due == expected
