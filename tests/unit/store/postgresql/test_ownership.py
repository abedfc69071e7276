"""The right to commit (D19)."""

import time
from collections.abc import Callable
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from partibus.partition.protocol.ports import StoreError, StoreFenced, Writes
from partibus.store.generations import Owner
from partibus.store.postgresql import OwnerWatch, PostgreSQLSettings, generations, watch_owner
from partibus.store.postgresql import store as postgresql_store
from partibus.store.postgresql.connection import Connection
from partibus.store.postgresql.ownership import OwnerRow
from partibus.store.postgresql.readers import Readers
from partibus.store.postgresql.store import LeaseKeeper
from partibus.store.postgresql.writer import Writer
from tests.contract.stores import PARTITION, enqueued, new_address, positions
from tests.kit.eventually import eventually
from tests.unit.store.postgresql.places import THEY, US, open_store, sql


def test_each_opening_raises_the_epoch_and_names_its_owner() -> None:
    address = new_address()
    for epoch in (1, 2, 3):
        store = open_store(address, Owner(f"broker-{epoch}", f"run-{epoch}"))
        assert store.epoch == epoch
        assert sql(address, "SELECT broker, incarnation, epoch FROM owner") == [f"broker-{epoch}|run-{epoch}|{epoch}"]
        store.close()


def test_the_number_of_the_last_commit_is_stored_with_it() -> None:
    address = new_address()
    store = open_store(address)
    for pos in range(1, 4):
        store.commit(enqueued(pos))
        assert sql(address, "SELECT last_commit FROM owner") == [str(store.last_commit)] == [str(pos)]
    with pytest.raises(StoreError):
        store.commit(enqueued(3))
    assert sql(address, "SELECT last_commit FROM owner") == ["3"]
    again = store.reopen()
    assert (again.last_commit, again.epoch, positions(again)) == (3, 2, [1, 2, 3])
    again.close()


def test_a_valid_lease_keeps_other_brokers_out_until_it_is_given_back() -> None:
    address = new_address()
    first = open_store(address)
    with pytest.raises(
        StoreError, match=r"in use by broker 'broker-1', incarnation 'run-1', whose lease ends in \d+ ms"
    ):
        open_store(address, THEY)
    first.commit(enqueued(1))
    first.close()
    second = open_store(address, THEY)
    assert (second.epoch, positions(second)) == (2, [1])
    second.close()


LONG = PostgreSQLSettings(lease_ms=600_000)
"""Settings without a renewal in between, so that a test decides about time by itself."""


class Clock:
    """A broker's own clock."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000.0

    def watch(self, *ended: str) -> OwnerWatch:
        return OwnerWatch(ended, lambda: self.now_ms)


def test_a_broker_that_stood_still_for_longer_than_its_lease_is_fenced_off() -> None:
    address, clock = new_address(), Clock()
    watch = clock.watch()
    first = open_store(address, settings=LONG)
    first.commit(enqueued(1))
    assert first.lease_left_ms > 0
    with pytest.raises(StoreError, match="in use"):
        open_store(address, THEY, LONG, watch=watch)
    clock.now_ms += 606_000
    second = open_store(address, THEY, LONG, watch=watch)

    with pytest.raises(StoreFenced, match=r"taken over by broker 'broker-2', incarnation 'run-9', epoch 2") as caught:
        first.commit(enqueued(2))
    assert caught.value.executed is False
    assert "give up the store" in str(caught.value)
    assert first.lease_left_ms == 0
    with pytest.raises(StoreError, match="taken over"):
        first.commit(enqueued(3))
    with pytest.raises(StoreError, match="taken over"):
        positions(first)
    first.close()

    second.commit(enqueued(4))
    assert positions(second) == [1, 4]
    second.close()


def test_a_broker_that_is_known_to_be_dead_loses_its_store_at_once_with_its_connections() -> None:
    address = new_address()
    first = open_store(address)
    first.commit(enqueued(1))
    positions(first)
    second = open_store(address, THEY, evict=True)
    theirs = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'run-1 ' || current_schema()"
    assert sql(address, theirs) == ["0"]
    # Fenced at this commit, or already by the keeper of its lease.
    with pytest.raises(StoreError, match="taken over by broker 'broker-2'"):
        first.commit(enqueued(2))
    assert positions(second) == [1]
    first.close()
    second.close()


@pytest.mark.parametrize("step_ms", [3_600_000, -3_600_000])
def test_a_step_of_the_databases_clock_neither_ends_a_lease_nor_prolongs_it(step_ms: int) -> None:
    """The end that is stored moves as the clock does not: a step forward by an hour is an end that is an hour past."""
    address, clock = new_address(), Clock()
    first = open_store(address, settings=LONG)
    sql(address, f"UPDATE owner SET until_ms = until_ms - {step_ms}")
    watch = clock.watch()
    with pytest.raises(StoreError, match=r"in use by broker 'broker-1'.* ends in 606000 ms"):
        open_store(address, THEY, LONG, watch=watch)
    clock.now_ms += 605_999
    with pytest.raises(StoreError, match=r"ends in 1 ms"):
        open_store(address, THEY, LONG, watch=watch)
    assert first.lease_left_ms > 0
    first.commit(enqueued(1))
    clock.now_ms += 1
    with pytest.raises(StoreError, match=r"ends in 606000 ms"):
        open_store(address, THEY, LONG, watch=watch)
    clock.now_ms += 606_000
    second = open_store(address, THEY, LONG, watch=watch)
    assert second.epoch == 2
    first.close()
    second.close()


def test_looking_at_an_owner_begins_the_wait() -> None:
    """A broker that is not heard of may be lost: another one that looks at once has waited when that is sure."""
    address, clock = new_address(), Clock()
    first = open_store(address, settings=LONG)
    watch = clock.watch()
    watch_owner(address, watch, LONG)
    clock.now_ms += 606_000
    second = open_store(address, THEY, LONG, watch=watch)
    assert second.epoch == 2
    first.close()
    second.close()


def test_another_server_begins_the_wait_anew() -> None:
    """Wait anew, since it may lack the owner's last renewal."""
    clock = Clock()
    watch = clock.watch()
    row = OwnerRow("broker-1", "run-1", 1, 0, 0, "700 since Monday", is_released=False)
    assert watch.see(row, 1_000, clock.now_ms) == 1_010
    clock.now_ms += 1_000
    assert watch.see(row, 1_000, clock.now_ms) == 10
    assert watch.see(row._replace(version="700 since Tuesday"), 1_000, clock.now_ms) == 1_010


def test_time_in_which_a_broker_stood_still_while_it_read_does_not_count() -> None:
    clock = Clock()
    watch = clock.watch()
    row = OwnerRow("broker-1", "run-1", 1, 0, 0, "700 since Monday", is_released=False)
    watch.see(row, 1_000, clock.now_ms)
    asked_ms = clock.now_ms
    clock.now_ms += 60_000
    assert watch.see(row, 1_000, asked_ms) == 1_010
    assert watch.see(row._replace(version="701 since Monday"), 1_000, asked_ms) > 1_010


def test_an_earlier_run_of_the_same_broker_is_not_waited_for() -> None:
    address, clock = new_address(), Clock()
    first = open_store(address, settings=LONG)
    second = open_store(address, THEY, LONG, watch=clock.watch("run-1"))
    with pytest.raises(StoreFenced):
        first.commit(enqueued(1))
    first.close()
    second.close()


def test_an_owner_that_wakes_while_another_one_takes_its_store_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    address, clock = new_address(), Clock()
    watch = clock.watch()
    first = open_store(address, settings=LONG)
    watch_owner(address, watch, LONG)
    clock.now_ms += 606_000
    timeline_of = generations.timeline_of

    def wake(connection: Connection) -> str:
        first.commit(enqueued(1))
        return timeline_of(connection)

    monkeypatch.setattr(generations, "timeline_of", wake)
    with pytest.raises(StoreError, match="in use by broker 'broker-1'"):
        open_store(address, THEY, LONG, watch=watch)
    monkeypatch.undo()
    assert first.lease_left_ms > 0
    first.commit(enqueued(2))
    first.close()


def test_an_idle_store_keeps_its_lease() -> None:
    address = new_address()
    store = open_store(address, settings=PostgreSQLSettings(lease_ms=600))
    taken = sql(address, "SELECT until_ms FROM owner")
    give_up = time.monotonic() + 20
    while sql(address, "SELECT until_ms FROM owner") == taken:
        assert time.monotonic() < give_up, "renewed by the store itself"
    store.close()
    assert sql(address, "SELECT until_ms FROM owner") == ["0"]


def test_two_that_take_the_store_at_once_do_not_both_get_it() -> None:
    address = new_address()
    stores = [open_store(address, Owner(f"broker-{n}", f"run-{n}"), evict=True) for n in range(3)]
    assert [store.epoch for store in stores] == [1, 2, 3]
    for store in stores[:2]:
        with pytest.raises(StoreFenced):
            store.commit(enqueued(1))
    stores[2].commit(enqueued(1))
    for store in stores:
        store.close()


def test_the_same_run_opens_its_store_anew_without_waiting_for_its_own_lease() -> None:
    address = new_address()
    first = open_store(address, US)
    second = open_store(address, US)
    with pytest.raises(StoreFenced):
        first.commit(enqueued(1))
    second.commit(enqueued(2))
    assert positions(second) == [2]
    first.close()
    second.close()


class TakenMeanwhile(list[Any]):
    """Idle connections of which a load takes the last one between a look and a pop."""

    def __bool__(self) -> bool:
        return True


def test_a_load_that_takes_the_last_idle_connection_stops_no_renewal_of_them() -> None:
    readers = Readers(None, "run-1", PostgreSQLSettings(), lambda: 0)  # type: ignore[arg-type]
    readers._idle = TakenMeanwhile()
    readers.close()


def test_an_error_in_a_renewal_keeps_neither_the_store_nor_the_next_renewal_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A lock that stays held would keep every commit waiting, and the close.

    The error is that of the readers, which follow a writer that has connected again.
    """
    address = new_address()
    errors = []

    def connect_again(writer: Writer) -> None:
        writer.reconnected += 1

    def fail(_readers: Readers) -> None:
        errors.append(True)
        raise ZeroDivisionError

    with monkeypatch.context() as broken:
        broken.setattr(Writer, "renew", connect_again)
        broken.setattr(Readers, "renew", fail)
        store = open_store(address, settings=PostgreSQLSettings(lease_ms=600))
        eventually("the lease is renewed again", lambda: len(errors) > 1)
    store.commit(enqueued(1))
    assert positions(store) == [1]
    store.close()
    assert f"the lease of {address.name} was not renewed" in caplog.text


def test_the_keeper_of_a_lease_logs_the_first_error_of_each_outage(caplog: pytest.LogCaptureFixture) -> None:
    lost = StoreError("the server is gone", executed=False)
    results = iter([lost, lost, None, lost])
    done = Event()

    def renew() -> None:
        try:
            error = next(results)
        except StopIteration:
            done.set()
            return
        if error is not None:
            raise error

    keeper = LeaseKeeper(renew, 1, "a store")
    assert done.wait(20)
    keeper.stop()
    line = "the lease of a store was not renewed: the server is gone; the broker tries again every 0.001 s"
    assert caplog.messages == [line] * 2


def test_a_large_deletion_renews_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its slices hold the lock of commits nearly all the time, so the keeper does not get it."""
    monkeypatch.setattr(postgresql_store, "LeaseKeeper", lambda *_: SimpleNamespace(stop=lambda: None))
    monkeypatch.setattr(postgresql_store, "SLICE_ROWS", 1)
    address = new_address()
    store = open_store(address, settings=PostgreSQLSettings(lease_ms=600))
    store.commit(enqueued(*range(1_000)))
    deletion = Writes()
    deletion.dropped_partitions.append(PARTITION)
    store.commit(deletion)
    taken = sql(address, "SELECT until_ms FROM owner")
    give_up = time.monotonic() + 20
    while sql(address, "SELECT until_ms FROM owner") == taken:
        assert time.monotonic() < give_up, "renewed by the deletion"
    assert store.is_held
    store.close()
    assert sql(address, "SELECT count(*) > 0 FROM body") == ["t"], "the deletion was under way"


class EndedMeanwhile(list[Any]):
    """Idle connections of a pool whose ``end`` is called between a load's look and its append."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end

    def append(self, connection: Any) -> None:
        self._end()
        super().append(connection)


@pytest.mark.parametrize("end", [Readers.close, Readers.renew])
def test_a_load_that_ends_as_its_pool_is_emptied_leaves_no_connection(end: Callable[[Readers], None]) -> None:
    readers = Readers(None, "run-1", PostgreSQLSettings(), lambda: 0)  # type: ignore[arg-type]
    readers._idle = EndedMeanwhile(lambda: end(readers))
    closed: list[bool] = []
    connection: Any = SimpleNamespace(close=lambda: closed.append(True))
    assert readers._load(connection, lambda _: "rows", 0) == "rows"
    assert (readers._idle, closed) == ([], [True])
