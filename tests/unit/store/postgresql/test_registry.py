"""The brokers of a catalog as they tell each other, on a real server."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Event

import psycopg
import pytest

from partibus.errors import InvalidOperation, StartError, StoreUnavailable, UnusableFile
from partibus.namespace.catalog_database import FORMAT_VERSION, schema_steps
from partibus.store.acknowledged import Acknowledged, run_of
from partibus.store.postgresql import registry
from partibus.store.postgresql.catalog import CatalogSchema, prepare_catalog
from partibus.store.postgresql.connection import Address
from partibus.store.postgresql.registry import CHANGES_KEPT, Registry, Version, refuse_other_versions
from tests.contract.stores import new_address

Make = Callable[..., Registry]
OURS = Version("1.ours", "0.1")


@pytest.fixture
def address() -> Address:
    address = new_address()
    prepare_catalog(address, FORMAT_VERSION, partial(schema_steps, "postgresql"))
    return address


@pytest.fixture
def make(address: Address) -> Iterator[Make]:
    made: list[Registry] = []

    def make_one(broker: str, incarnation: str = "1") -> Registry:
        made.append(Registry(address, broker, incarnation, OURS))
        return made[-1]

    yield make_one
    for one in made:
        one.close()


def change(address: Address, statement: str) -> None:
    with psycopg.connect(address.conninfo, autocommit=True) as connection:
        connection.execute(f"SET search_path = {address.schema}".encode())
        connection.execute(statement.encode())


@contextmanager
def beating(one: Registry) -> Iterator[None]:
    """One of the brokers lives."""
    stopping = Event()

    def beat() -> None:
        while not stopping.is_set():
            one.beat(0, "{}", [], tell=False)

    with ThreadPoolExecutor(1) as pool:
        living = pool.submit(beat)
        try:
            yield
        finally:
            stopping.set()
            living.result()


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that writes nothing counts as lost soon."""
    monkeypatch.setattr(registry, "LEASE_S", 0.5)
    monkeypatch.setattr(registry, "_LOOK_S", 0.02)


def test_who_is_there_and_what_was_changed_is_heard(
    make: Make, address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = make("a"), make("b")
    assert a.register("host-a:1") == 0
    assert b.register("host-b:2") == 0
    a.beat(0, '{"owned": {"1": 5}}', [7, 7, 8], tell=False)
    catalog = CatalogSchema(address, "a test")
    catalog.begin(writing=True)
    catalog.note({"entity": "orders"})
    catalog.commit()
    catalog.close()
    a.announce({"rehearsals": [1]})
    heard = b.beat(0, "{}", [8, 9], tell=False)
    assert [(row.broker, row.incarnation, row.address) for row in heard.brokers] == [
        ("a", "1", "host-a:1"),
        ("b", "1", "host-b:2"),
    ]
    first = {row.broker: row.version for row in heard.brokers}
    assert json.loads(heard.brokers[0].facts) == {"owned": {"1": 5}}
    assert [(version, json.loads(body)) for version, body in heard.changes] == [
        (1, {"entity": "orders"}),
        (2, {"rehearsals": [1]}),
    ]
    assert heard.is_complete
    heard = b.beat(1, "{}", [], tell=False)
    assert [version for version, _ in heard.changes] == [2]
    assert {row.broker: row.followed for row in heard.brokers} == {"a": 0, "b": 1}
    changed = {row.broker for row in heard.brokers if row.version != first[row.broker]}
    assert changed == {"b"}, "each heartbeat changes the row of its broker"
    assert sorted(b.take_used()) == [7, 8, 9]
    assert a.take_used() == []
    with beating(a):
        assert json.loads(b.fault_injections() or "") == {"rehearsals": [1]}
    monkeypatch.setattr(registry, "LEASE_S", 0.0)
    assert b.fault_injections() is None


def test_the_last_commit_of_each_store_outlives_the_report_of_its_owner(make: Make, address: Address) -> None:
    a, b, c = make("a", "run-a"), make("b", "run-b"), make("c", "run-c")
    for one in (a, b, c):
        one.register(f"host-{one}:1")

    def report(one: Registry, last_commit: int | None, epoch: int | None) -> None:
        facts = {"stores": {"store-01": {"trouble": None, "last_commit": last_commit, "epoch": epoch}}}
        one.beat(0, json.dumps(facts), [], tell=False)

    report(a, None, None)
    assert a.acknowledged == {}
    report(a, 7, 2)
    report(b, 9, 3)
    report(a, 8, 2)  # it has lost the store and does not know yet
    a.leave()
    b.leave()
    c.beat(0, "{}", [], tell=False)
    assert c.acknowledged == {"store-01": Acknowledged(9, 3, run_of("run-b"))}


def test_more_changes_than_are_kept_are_not_passed_over_in_silence(make: Make, address: Address) -> None:
    a = make("a")
    a.register("host:1")
    change(address, f"UPDATE version SET version = {CHANGES_KEPT + 5}")
    change(address, f"INSERT INTO change SELECT n, '{{}}' FROM generate_series(1, {CHANGES_KEPT + 5}) n")
    a.announce({})
    assert a.beat(6, "{}", [], tell=False).is_complete
    assert not a.beat(5, "{}", [], tell=False).is_complete


def test_waiting_ends_when_somebody_tells(make: Make) -> None:
    a, b = make("a"), make("b")
    a.register("host:1")
    a.wait(0)
    with ThreadPoolExecutor(1) as pool:
        for tell in (
            lambda: b.register("host:2"),
            lambda: b.beat(0, "{}", [], tell=True),
            lambda: b.announce({}),
            b.leave,
            a.wake,
        ):
            a.wait(0)
            waiting = pool.submit(a.wait, 60)
            tell()
            waiting.result(30)


def test_waiting_works_with_descriptors_above_1023(make: Make) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with ExitStack() as files:
        for _ in range(1024):
            files.enter_context(open(os.devnull))
        registry = make("a")
        registry.register("host:1")
        registry.wait(0)
        registry.wake()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(registry.wait, 60).result(30)


@pytest.mark.usefixtures("short_lease")
@pytest.mark.parametrize("step", ["1 hour", "-1 hour"])
def test_a_name_belongs_to_one_run_until_that_is_silent_whatever_the_servers_clock_says(
    make: Make, address: Address, step: str
) -> None:
    """The end that is stored moves as the clock does not."""
    first = make("a", "1")
    first.register("host:1")
    change(address, f"UPDATE broker SET until = until - interval '{step}'")
    with beating(first), pytest.raises(StartError, match=r"'a' runs already, reached at host:1.*--broker-name"):
        make("a", "2").register("host:2")
    change(address, f"UPDATE broker SET until = until - interval '{step}'")
    third = make("a", "3")
    third.register("host:3")
    with pytest.raises(InvalidOperation, match="another run of the broker 'a'"):
        first.beat(0, "{}", [], tell=False)
    first.leave()  # says nothing about the third
    assert third.beat(0, "{}", [], tell=False).brokers[0].address == "host:3"
    third.leave()
    make("a", "4").register("host:4")


def test_an_earlier_run_that_has_surely_ended_is_replaced_at_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    make("a", "1").register("host:1")
    monkeypatch.setattr(registry, "LEASE_S", 1e6)
    make("a", "2").register("host:2", ["0", "1"])


@pytest.mark.usefixtures("short_lease")
def test_what_all_must_have_alike_can_be_changed_by_who_is_alone(make: Make) -> None:
    a, b = make("a"), make("b")
    was_new = a.is_new
    assert a.join("cluster", "s", "k") == "cluster"
    assert (was_new, a.is_new) == (True, False)
    a.register("host:1")
    assert b.join("another", "s", "k") == "cluster"
    with beating(a):
        with pytest.raises(UnusableFile, match=r"\(a\) have another secret than this one\. Copy cluster\.secret"):
            b.join("another", "other", "k")
        with pytest.raises(UnusableFile, match=r"\(a\) have other keys than this one\. Copy keys\.json"):
            b.join("another", "s", "other")
    assert b.join("another", "other", "other") == "cluster"


def test_one_starts_after_the_other(make: Make) -> None:
    a, b = make("a"), make("b")
    order: list[str] = []

    def start_b() -> None:
        with b.starting():
            order.append("b")

    with ThreadPoolExecutor(1) as pool:
        with a.starting():
            started = pool.submit(start_b)
            a.register("host:1")
            order.append("a")
        started.result()
    assert order == ["a", "b"]


def test_a_connection_that_is_lost_is_made_anew(make: Make, address: Address) -> None:
    a = make("a")
    a.register("host:1")
    change(address, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'partibus a'")
    with pytest.raises(StoreUnavailable, match="can't be used now"):
        a.beat(0, "{}", [], tell=False)
    a.wait(0)
    assert a.beat(0, "{}", [], tell=False).brokers
    a.announce({})
    a.wait(60)  # it listens again, too


@pytest.mark.usefixtures("short_lease")
@pytest.mark.parametrize("facts", ["{}", '{"speaks": "1.newer", "program": "9.9"}'])
@pytest.mark.parametrize("step", ["1 hour", "-1 hour"])
def test_brokers_of_another_version_are_not_joined(make: Make, address: Address, facts: str, step: str) -> None:
    a = make("a")
    a.register("host-a:1")
    refuse_other_versions(address, OURS)
    change(address, f"UPDATE broker SET facts = '{facts}'")
    stopping = Event()

    def beat() -> None:
        while not stopping.is_set():
            change(address, f"UPDATE broker SET until = clock_timestamp() - interval '{step}'")

    with ThreadPoolExecutor(1) as pool:
        living = pool.submit(beat)
        with pytest.raises(StartError, match="stop all of them first") as refused:
            refuse_other_versions(address, OURS)
        stopping.set()
        living.result()
    assert "a with " in str(refused.value)
    assert str(OURS) in str(refused.value)
    refuse_other_versions(address, OURS)


def test_where_there_is_no_catalog_yet_nobody_is_in_the_way(address: Address) -> None:
    refuse_other_versions(address._replace(schema="not_there_yet"), OURS)
