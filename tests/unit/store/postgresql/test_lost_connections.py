"""A commit whose connection is lost: what happened is found out, or nobody says that it did or did not (D11, D19)."""

import re
import time

import pytest

from partibus.partition.protocol.ports import StoreError, StoreFenced
from partibus.store.postgresql import PostgreSQLSettings, PostgreSQLStore
from tests.contract.stores import enqueued, new_address, positions
from tests.unit.store.postgresql.places import THEY, open_store, sql, way_to_store

HASTY = PostgreSQLSettings(doubt_ms=200)
PATIENT = PostgreSQLSettings(doubt_ms=20_000)
END_CONNECTIONS = """
    SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'run-1 ' || current_schema()
"""


def test_a_commit_whose_answer_is_lost_has_happened_once() -> None:
    with way_to_store() as (way, address, _):
        store = open_store(address)
        store.commit(enqueued(1))
        way.lose_answer = True
        store.commit(enqueued(2))
        assert way.cuts == 1
        store.commit(enqueued(3))
        assert (positions(store), store.last_commit) == ([1, 2, 3], 3)
        store.close()


def test_a_commit_whose_request_is_lost_is_made_again() -> None:
    with way_to_store() as (way, address, _):
        store = open_store(address)
        store.commit(enqueued(1))
        way.lose_request = True
        store.commit(enqueued(2))
        assert way.cuts == 1
        assert (positions(store), store.last_commit) == ([1, 2], 2)
        store.close()


def test_nobody_can_tell_while_the_server_is_out_of_reach_but_the_next_opening_can() -> None:
    with way_to_store() as (way, address, _):
        store = open_store(address, settings=HASTY)
        store.commit(enqueued(1))
        way.lose_answer = True
        way.on_cut = lambda: setattr(way, "closed", True)
        with pytest.raises(StoreError) as caught:
            store.commit(enqueued(2))
        assert caught.value.executed is None
        with pytest.raises(StoreError, match="open it again"):
            store.commit(enqueued(3))
        with pytest.raises(StoreError, match="opening the store failed"):
            store.reopen()
        way.closed = False
        again = store.reopen()
        assert (again.last_commit, positions(again)) == (2, [1, 2])
        again.close()


def test_a_commit_that_happened_before_the_store_was_taken_is_no_failure_but_the_last() -> None:
    with way_to_store() as (way, address, direct):
        taken: list[PostgreSQLStore] = []

        def take_over() -> None:
            way.closed = True
            taken.append(open_store(direct, THEY, evict=True))
            way.closed = False

        store = open_store(address, settings=PATIENT)
        store.commit(enqueued(0))
        way.on_cut = take_over
        way.lose_answer = True
        store.commit(enqueued(1))
        with pytest.raises(StoreError, match="taken over by broker 'broker-2'"):
            store.commit(enqueued(2))
        assert positions(taken[0]) == [0, 1]
        store.close()
        taken[0].close()


def test_a_commit_that_did_not_happen_before_the_store_was_taken_is_refused() -> None:
    with way_to_store() as (way, address, direct):
        taken: list[PostgreSQLStore] = []

        def take_over() -> None:
            way.closed = True
            taken.append(open_store(direct, THEY, evict=True))
            way.closed = False

        store = open_store(address, settings=PATIENT)
        store.commit(enqueued(0))
        way.on_cut = take_over
        way.lose_request = True
        with pytest.raises(StoreFenced):
            store.commit(enqueued(1))
        assert positions(taken[0]) == [0]
        store.close()
        taken[0].close()


def test_connections_that_the_server_ended_are_made_anew() -> None:
    address = new_address()
    store = open_store(address)
    store.commit(enqueued(1))
    assert positions(store) == [1]
    assert sql(address, END_CONNECTIONS) == ["t", "t"]
    assert positions(store) == [1]
    store.commit(enqueued(2))
    assert positions(store) == [1, 2]
    store.close()


def test_a_server_that_lost_commits_is_not_gone_on_with() -> None:
    address = new_address()
    store = open_store(address)
    for pos in (1, 2, 3):
        store.commit(enqueued(pos))
    sql(address, "UPDATE owner SET last_commit = 1")
    sql(address, END_CONNECTIONS)
    with pytest.raises(
        StoreError, match="last commit is 1, while 3 was acknowledged: the server lost commits"
    ) as caught:
        store.commit(enqueued(4))
    assert caught.value.executed is False
    with pytest.raises(StoreError, match="last commit is 1, while 3 was acknowledged"):
        store.reopen()


def test_a_server_that_lost_commits_is_found_by_the_renewal_of_the_lease_of_an_idle_store_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with way_to_store() as (way, address, _):
        store = open_store(address, settings=PostgreSQLSettings(lease_ms=300))
        for pos in (1, 2, 3):
            store.commit(enqueued(pos))
        sql(address, "UPDATE owner SET last_commit = 1")
        way.closed = True
        sql(address, END_CONNECTIONS)
        with pytest.raises(StoreError):
            positions(store)
        way.closed = False
        for _ in range(500):
            if store.lease_left_ms == 0:
                break
            time.sleep(0.01)
        with pytest.raises(StoreError, match="last commit is 1, while 3 was acknowledged"):
            store.commit(enqueued(4))
        with pytest.raises(StoreError, match="last commit is 1, while 3 was acknowledged"):
            store.reopen()
        assert re.search("the lease of .* was not renewed: .*; the broker tries again every 0.1 s", caplog.text)


def test_nothing_is_read_from_a_server_that_lost_commits() -> None:
    address = new_address()
    store = open_store(address, settings=PostgreSQLSettings(lease_ms=60_000))
    for pos in (1, 2, 3):
        store.commit(enqueued(pos))
    assert positions(store) == [1, 2, 3]
    sql(address, "UPDATE owner SET last_commit = 1")
    sql(address, END_CONNECTIONS)
    with pytest.raises(StoreError, match="last commit is 1, while 3 was acknowledged"):
        positions(store)
    store.close()


def test_a_commit_before_two_take_overs_is_in_doubt() -> None:
    """The last owner says where it took the store, not where the one before it did."""
    with way_to_store() as (way, address, direct):

        def take_over_twice() -> None:
            way.closed = True
            for _ in range(2):
                open_store(direct, THEY, evict=True).close()
            way.closed = False

        store = open_store(address, settings=PATIENT)
        store.commit(enqueued(0))
        way.on_cut = take_over_twice
        way.lose_answer = True
        with pytest.raises(StoreError) as failed:
            store.commit(enqueued(1))
        assert failed.value.executed is None
        with pytest.raises(StoreError, match="taken"):
            store.commit(enqueued(2))
        store.close()
