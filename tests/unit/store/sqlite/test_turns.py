"""The statements of large commits run one after the other; small commits and syncs don't wait for them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from sqlite3 import Connection
from threading import Event, Thread

import pytest

from partibus.partition.protocol.ports import Writes
from partibus.store.sqlite import SQLiteStore, apply
from tests.contract.stores import enqueued, positions
from tests.unit.store.sqlite.places import open_store, open_with_writer

EVENTUALLY_S = 90.0
NEVER_S = 3_600.0


def large(first: int) -> Writes:
    writes = enqueued(*range(first, first + 10))
    writes.operations = 10
    return writes


class Statements:
    """Holds the statements of the first large commit until `go_on` is set, and notes the begin of each."""

    def __init__(self) -> None:
        self.begun: list[Writes] = []
        self.go_on = Event()
        self.first = Event()
        self._apply: Callable[[Writes, Connection], None] = apply.apply_writes

    def __call__(self, writes: Writes, connection: Connection) -> None:
        self.begun.append(writes)
        if len(self.begun) == 1:
            self.first.set()
            assert self.go_on.wait(EVENTUALLY_S)
        self._apply(writes, connection)


@contextmanager
def commit_beside(store: SQLiteStore, writes: Writes) -> Iterator[Thread]:
    thread = Thread(target=store.commit, args=(writes,))
    thread.start()
    try:
        yield thread
    finally:
        thread.join(EVENTUALLY_S)
        assert not thread.is_alive()


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[list[SQLiteStore]]:
    folders = [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        folder.mkdir()
    opened = [open_store(folder) for folder in folders]
    yield opened
    for store in opened:
        store.close()


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> Statements:
    held = Statements()
    monkeypatch.setattr(apply, "apply_writes", held)
    return held


def test_a_large_commit_waits_for_the_statements_of_another_store_and_a_small_one_does_not(
    stores: list[SQLiteStore], statements: Statements, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "TURN_S", NEVER_S)
    one, other = stores
    small = enqueued(1)
    small.operations = apply.SMALL_OPERATIONS
    with commit_beside(one, large(1)):
        assert statements.first.wait(EVENTUALLY_S)
        other.commit(small)
        assert positions(other) == [1]
        assert apply.turn.locked()
        with commit_beside(other, large(2)):
            statements.go_on.set()
    assert [writes.operations for writes in statements.begun] == [10, 10]
    assert positions(one) == list(range(1, 11))
    assert positions(other) == list(range(1, 12))
    assert not apply.turn.locked()


def test_a_commit_gives_its_turn_up_before_the_sync(tmp_path: Path) -> None:
    store, writer = open_with_writer(tmp_path)
    locked: list[bool] = []

    def see(text: str) -> None:
        if text == "COMMIT":
            locked.append(apply.turn.locked())

    writer.set_trace_callback(see)
    store.commit(large(1))
    assert locked == [False]
    store.close()


def test_a_store_that_hangs_in_a_statement_holds_up_no_other(
    stores: list[SQLiteStore], statements: Statements, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "TURN_S", 0)
    one, other = stores
    with commit_beside(one, large(1)):
        assert statements.first.wait(EVENTUALLY_S)
        other.commit(large(1))
        assert positions(other) == list(range(1, 11))
        assert apply.turn.locked(), "the turn of the first commit"
        statements.go_on.set()
    assert not apply.turn.locked()
    assert positions(one) == list(range(1, 11))


def test_a_failed_commit_gives_its_turn_up(stores: list[SQLiteStore], statements: Statements) -> None:
    statements.go_on.set()
    stores[0].commit(large(1))
    with pytest.raises(Exception, match="UNIQUE"):
        stores[0].commit(large(1))
    assert not apply.turn.locked()
