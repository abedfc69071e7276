"""The server of stores that is killed again and again; a standby that takes its place; a broker that stands still."""

from __future__ import annotations

import os
import re
import signal
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner

from partibus.cli.main import main
from partibus.client.errors import ClientError
from partibus.store.postgresql.registry import LEASE_S
from partibus.testing.broker_process import BrokerProcess
from tests.kit.eventually import EVENTUALLY_S, eventually, pause
from tests.kit.fault_proxy import FaultProxy
from tests.kit.postgresql_server import PostgreSQLServer, new_schema
from tests.robustness.machines import Machines
from tests.robustness.ways import (
    KEYS,
    broker_with_distant_stores,
    client_of,
    drained,
    health_of,
    message,
    number_of,
    send_all,
)


@pytest.mark.row("S1", "P11")
@pytest.mark.parametrize("synchronous", [True, False])
def test_a_standby_takes_over_unless_it_lacks_what_was_acknowledged(tmp_path: Path, synchronous: bool) -> None:
    with PostgreSQLServer() as primary:
        standby = PostgreSQLServer.standby_of(primary, "other_room")
        try:
            standby.start()
            hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
            url = primary.url(parameters="schema=pair&stores=6").replace(f"127.0.0.1:{primary.port}", hosts)
            with BrokerProcess(tmp_path, arguments=("--store", url, "--store", "sqlite:10")) as broker:
                if synchronous:
                    primary.sql("ALTER SYSTEM SET synchronous_standby_names = 'other_room'")
                    primary.sql("SELECT pg_reload_conf()")
                broker.create_queue("orders", EnablePartitioning=True)
                assert send_all(broker) == list(range(64))
                if not synchronous:
                    # Everything is on the standby up to here, and what comes now is not.
                    wait_for_replay(primary, standby)
                    standby.stop()
                    with client_of(broker) as client:
                        sender = client.sender("orders")
                        sender.send([message(number, KEYS[number % 64]) for number in range(100, 164)])
                primary.kill()
                if not synchronous:
                    standby.start()
                standby.promote()
                if synchronous:
                    assert sorted(drained(broker, "orders", range(64))) == list(range(64))
                    assert send_all(broker) == list(range(64))
                else:
                    assert len(wait_for_trouble(broker, "the lease has run out")) == 6
                    assert 0 < len(send_all(broker)) < 64
                    trouble = wait_for_trouble(broker, "was acknowledged: the server lost commits")
                    assert len(trouble) == 6, trouble
                    with client_of(broker) as client:
                        client.sender("orders").send([message(number) for number in range(500, 520)])
        finally:
            standby.remove()


def wait_for_replay(primary: PostgreSQLServer, standby: PostgreSQLServer) -> None:
    (written,) = primary.sql("SELECT pg_current_wal_lsn()")
    query = f"SELECT pg_last_wal_replay_lsn() >= '{written}'"
    eventually("the standby has followed", lambda: standby.sql(query) == ["t"])


def wait_for_trouble(broker: BrokerProcess, words: str) -> dict[str, str]:
    """Stores in the database whose trouble has the words, once all of them have."""
    trouble: dict[str, str] = {}

    def is_known() -> bool:
        trouble.clear()
        trouble.update({name: text for name, text in health_of(broker).items() if words in text})
        return len(trouble) == 6

    eventually(f"six stores say: {words}", is_known)
    return trouble


@pytest.mark.row("R14")
def test_the_database_is_killed_again_and_again_while_clients_send(tmp_path: Path, server: PostgreSQLServer) -> None:
    """Kill it in any phase of its commits: acknowledged messages are there, and none twice that was sent once."""
    url = server.url(parameters=f"schema={new_schema()}&stores=16")
    with BrokerProcess(tmp_path, arguments=("--store", url)) as broker:
        broker.create_queue("orders", EnablePartitioning=True)
        accepted: set[int] = set()
        sent = 0
        stopping = threading.Event()

        def send() -> None:
            nonlocal sent
            while not stopping.is_set():
                with suppress(ClientError), client_of(broker) as client:
                    sender = client.sender("orders")
                    while not stopping.is_set():
                        number = sent
                        sent += 1
                        sender.send([message(number, KEYS[number % 64] if number % 2 else None)])
                        accepted.add(number)

        def has_accepted(more: int) -> bool:
            return len(accepted) >= more

        thread = threading.Thread(target=send)
        thread.start()
        for more in (30, 60, 90):
            eventually("enough are accepted", partial(has_accepted, more))
            server.kill()
            server.start()
        stopping.set()
        thread.join()
        found = drained(broker, "orders", accepted)
    assert set(found) <= set(range(sent))
    assert len(found) == len(set(found))


def test_a_broker_that_stands_still_by_itself_goes_on(tmp_path: Path, server: PostgreSQLServer) -> None:
    """Leave its stores its own, since no broker took them meanwhile; locks that have ended are ended."""
    way = FaultProxy(("127.0.0.1", server.port))
    with broker_with_distant_stores(tmp_path, way, server) as broker:
        for seconds in (LEASE_S / 4, LEASE_S + 1):
            assert send_all(broker) == list(range(64))
            os.kill(broker.ready["pid"], signal.SIGSTOP)
            pause(seconds)
            os.kill(broker.ready["pid"], signal.SIGCONT)
            assert sorted(drained(broker, "orders", range(64))) == list(range(64))


# -- copies ----------------------------------------------------------------------------------------------------------


def test_a_dump_that_was_made_while_clients_sent_is_one_moment_of_each_store(
    tmp_path: Path, server: PostgreSQLServer
) -> None:
    """`pg_dump` of the stores' schemas, taken back into the server: each store is as it was at one commit, and what was
    acknowledged before the dump began is there (docs/loss.md)."""
    schema = new_schema()
    url = server.url(parameters=f"schema={schema}&stores=4")
    schemas = [f"{schema}_{index:02}" for index in range(4)]
    with BrokerProcess(tmp_path, arguments=("--store", url, "--store", "sqlite:12")) as broker:
        broker.create_queue("orders", EnablePartitioning=True)
        before = set(send_all(broker))
        with client_of(broker) as client:
            receiver = client.receiver("orders")
            taken = receiver.receive(10, timeout_s=EVENTUALLY_S)
            receiver.settle(taken)
        before -= {number_of(one) for one in taken}
        sent = threading.Event()

        def send_meanwhile() -> None:
            with client_of(broker) as client:
                sender = client.sender("orders")
                for number in range(1_000, 1_300):
                    sender.send([message(number, KEYS[number % 64])])
                    sent.set()

        thread = threading.Thread(target=send_meanwhile)
        thread.start()
        assert sent.wait(EVENTUALLY_S)
        dumps = [server.directory / schema for schema in schemas]
        for schema, dump in zip(schemas, dumps, strict=True):
            server.run("pg_dump", "--dbname", server.conninfo(), f"--schema={schema}", f"--file={dump}")
        thread.join()
        broker.stop()
        for schema, dump in zip(schemas, dumps, strict=True):
            server.sql(f"DROP SCHEMA {schema} CASCADE")
            server.psql(["--file", str(dump)])
        broker.start()
        accept_losses(broker)
        found = drained(broker, "orders", before)
    assert set(found) <= before | set(range(1_000, 1_300))
    assert len(found) == len(set(found))
    for key in range(64):
        of_key = [number for number in found if number >= 1_000 and number % 64 == key]
        assert of_key == list(range(1_000 + (key - 1_000) % 64, 1_300, 64))[: len(of_key)], "a hole"


REFUSED = re.compile(r"its last commit is (\d+), while (\d+) was.*accept-loss (\S+) .*commit (\d+)")


def accept_losses(broker: BrokerProcess) -> None:
    """Let every store go on that is behind what was acknowledged, as an operator does after restoring a dump."""
    for text in health_of(broker).values():
        if found := REFUSED.search(text):
            command = ["cluster", "accept-loss", found[3], "--data", str(broker.data), "--last-commit", found[4]]
            assert CliRunner().invoke(main, command).exit_code == 0
    eventually("every store goes on", lambda: set(health_of(broker).values()) == {"ok"})


def test_a_fresh_broker_refuses_a_standby_that_lacks_what_was_acknowledged(tmp_path: Path) -> None:
    """The broker that knew what it had acknowledged is dead as well; an operator decides that the rest goes on."""
    with PostgreSQLServer() as primary:
        standby = PostgreSQLServer.standby_of(primary, "another_room")
        try:
            standby.start()
            hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
            url = primary.url(parameters="schema=pair").replace(f"127.0.0.1:{primary.port}", hosts)
            arguments = ("--store", "sqlite:1", "--store", url)
            with BrokerProcess(tmp_path, arguments=arguments) as broker:
                for queue in ("in_the_file", "in_the_database"):  # plain queues take the stores in turns
                    broker.create_queue(queue)
                before = sequence_of(broker, queue)
                wait_for_replay(primary, standby)
                standby.stop()
                lost = [sequence_of(broker, queue) for _ in range(3)]
                assert before < min(lost)
                broker.kill()
                primary.kill()
            standby.start()
            standby.promote()
            with BrokerProcess(tmp_path, arguments=arguments) as broker:
                eventually("the store is refused", lambda: REFUSED.search(str(health_of(broker))) is not None)
                found = REFUSED.search(str(health_of(broker)))
                assert found is not None
                last, acknowledged, store, offered = found.groups()
                assert (int(last), last) == (int(acknowledged) - 3, offered)
                command = ["cluster", "accept-loss", store, "--data", str(broker.data)]
                runner = CliRunner()
                refused = runner.invoke(main, [*command, "--last-commit", acknowledged])
                assert refused.exit_code == 1
                assert "nothing is lost" in refused.output
                assert (
                    "3 acknowledged commits are lost" in runner.invoke(main, [*command, "--last-commit", last]).output
                )
                eventually("the store goes on", lambda: set(health_of(broker).values()) == {"ok"})
                assert sequence_of(broker, queue) > max(lost) + (1 << 30)
        finally:
            standby.remove()


def sequence_of(broker: BrokerProcess, queue: str) -> int:
    """Send a message and return the sequence number that it got."""
    with client_of(broker) as client:
        client.sender(queue).send([message(1)])
        return max(one.sequence_number or 0 for one in client.management(queue).peek(count=100))


def test_a_machine_that_never_owned_a_store_refuses_a_standby_that_lacks_what_the_owner_reported(
    tmp_path: Path, server: PostgreSQLServer
) -> None:
    """The server of the store and the machine of its owner are lost together; the catalog is on another server."""
    with PostgreSQLServer() as primary:
        standby = PostgreSQLServer.standby_of(primary, "a_third_room")
        try:
            standby.start()
            machines = Machines(tmp_path, primary, catalog=server)
            hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
            url = primary.url(parameters=f"schema={machines.schema}")
            machines.store_url = url.replace(f"127.0.0.1:{primary.port}", hosts)
            with machines:
                owner = machines.make("a")
                owner.start()
                owner.create_queue("orders")
                before = sequence_of(owner, "orders")
                wait_for_replay(primary, standby)
                standby.stop()
                lost = [sequence_of(owner, "orders") for _ in range(3)]
                assert before < min(lost)
                (store,) = machines.status("a").stores
                (schema,) = parse_qs(urlsplit(machines.catalog_url).query)["schema"]
                query = f"SELECT last_commit >= {store.last_commit} FROM {schema}.acknowledged"
                eventually("the owner has reported its last commit", lambda: server.sql(query) == ["t"])
                owner.kill()
                primary.kill()
                standby.start()
                standby.promote()
                other = machines.make("b")
                other.start()
                eventually("the store is refused", lambda: REFUSED.search(str(health_of(other))) is not None)
                found = REFUSED.search(str(health_of(other)))
                assert found is not None
                last, acknowledged, name, _ = found.groups()
                assert int(last) <= int(acknowledged) - 3
                command = ["cluster", "accept-loss", name, "--data", str(other.data), "--last-commit", last]
                assert CliRunner().invoke(main, command).exit_code == 0
                eventually("the store goes on", lambda: set(health_of(other).values()) == {"ok"})
                began = sequence_of(other, "orders")
                assert began > max(lost) + (1 << 30)
                owner.start()
                other.stop()
                eventually("the store is back", lambda: set(health_of(owner).values()) == {"ok"})
                # The loss need not be accepted on this machine, too, and no further generation begins.
                assert sequence_of(owner, "orders") == began + 1
        finally:
            standby.remove()
