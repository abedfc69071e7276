"""Several `partibus serve` that share a catalog and stores in PostgreSQL: one namespace, whichever of them is lost."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from partibus.client.endpoint import endpoint_of
from partibus.client.errors import Busy, ClientError, SendFailed
from partibus.client.extensions.cluster import back_up
from partibus.client.extensions.entities import Entities
from partibus.client.extensions.namespaces import Namespaces
from partibus.client.management import RuleInfo
from partibus.client.messages import IncomingMessage, OutgoingMessage
from partibus.namespace.connection_string import parse_connection_string
from tests.conformance.test_metrics import Metrics
from tests.kit.azure_receiving import receive_exactly
from tests.kit.eventually import EVENTUALLY_S, eventually
from tests.kit.plain_client import connect
from tests.kit.postgresql_server import PostgreSQLServer
from tests.robustness.machines import Machines
from tests.robustness.ways import KEYS, drained, message, number_of


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory, server: PostgreSQLServer) -> Iterator[Machines]:
    """``a``, ``b`` and ``c``; each test leaves them running, and as it found them. A unit is a sixty-fourth of each:
    16 ms of each second for a premium namespace with one, wherever its clients are."""
    folder, units = tmp_path_factory.mktemp("machines"), ("--units-per-broker", "64")
    with Machines(folder, server, options=units).start("a", "b", "c") as machines:
        yield machines


@pytest.mark.row("A3")
def test_any_of_them_serves_the_whole_namespace(tmp_path: Path, machines: Machines) -> None:
    seen = [machines.status(name) for name in "abc"]
    assert len({tuple((store.name, store.owner, store.epoch) for store in one.stores) for one in seen}) == 1
    assert [[broker.id for broker in one.brokers] for one in seen] == [["a", "b", "c"]] * 3
    brokers = machines.brokers
    with machines.client("a") as client, pytest.raises(ClientError, match="PostgreSQL's own tools"):
        back_up(client, tmp_path / "backup")
    # An answer of one of them holds at the others, at once.
    for number in range(5):
        brokers["a"].create_queue(f"queue-{number}", EnablePartitioning=True)
        assert brokers["b"].describe(f"queue-{number}").partitions == 16
        brokers["b"].update_queue(f"queue-{number}", MaxDeliveryCount=3 + number)
        assert brokers["c"].describe(f"queue-{number}").properties["MaxDeliveryCount"] == 3 + number
    brokers["c"].delete_queue("queue-4")
    with pytest.raises(ClientError, match="could not be found"):
        brokers["a"].describe("queue-4")
    # An unmodified client sends through one and receives through another; each partition is at its own broker.
    with (
        ServiceBusClient.from_connection_string(brokers["a"].connection_string) as near,
        ServiceBusClient.from_connection_string(brokers["b"].connection_string) as far,
        near.get_queue_sender("queue-0") as sender,
        far.get_queue_receiver("queue-0") as receiver,
    ):
        sender.send_messages([ServiceBusMessage(b"x", partition_key=key) for key in KEYS])
        assert brokers["c"].describe("queue-0").messages == len(KEYS)
        got = receive_exactly(receiver, len(KEYS))
        for one in got:
            receiver.complete_message(one)
        assert sorted(one.partition_key or "" for one in got) == sorted(KEYS)
        assert brokers["a"].describe("queue-0").messages == 0


@pytest.mark.row("C38")
def test_a_rule_that_was_answered_holds_for_what_is_sent_through_any_of_them(machines: Machines) -> None:
    a, b = machines.brokers["a"], machines.brokers["b"]
    topic = a.create_topic("events", EnablePartitioning=True)
    everything = b.create_subscription(topic, "all")
    some = b.create_subscription(topic, "some")
    with machines.client("a") as client, machines.client("b") as other:
        for number in range(5):
            near, far = (client, other) if number % 2 else (other, client)
            rules = near.rules(some)
            rules.add(RuleInfo(f"only-{number}", sql=f"sys.Label = 'label-{number}'"))
            rules.remove("$Default" if number == 0 else f"only-{number - 1}")
            far.sender(topic).send([labelled(number, f"label-{one}", KEYS[one]) for one in range(16)])
    assert sorted(drained(a, some)) == [0, 1, 2, 3, 4]
    assert sorted(drained(b, everything)) == [number for number in range(5) for _ in range(16)]


def labelled(number: int, label: str, key: str) -> OutgoingMessage:
    return OutgoingMessage(body=b"%d" % number, subject=label, partition_key=key)


@contextmanager
def namespace(machines: Machines, name: str, options: dict[str, object]) -> Iterator[Callable[[str], str]]:
    """A namespace for a while; its connection strings by the broker that is connected to."""
    with machines.client("a") as operator:
        made = Namespaces(operator).create(name, options)
    try:
        yield lambda name: made.connection_string(
            endpoint_of(parse_connection_string(machines.brokers[name].connection_string))
        )
    finally:
        with machines.client("a") as operator:
            Namespaces(operator).delete(name)


@pytest.mark.row("C35")
def test_a_limit_of_connections_is_that_of_all_machines(machines: Machines) -> None:
    def is_let_in(string: str) -> bool:
        try:
            with connect(string, timeout_s=EVENTUALLY_S) as client:
                client.management()
        except ClientError as error:
            if "quota of 2 connections at a time" not in str(error):
                raise
            return False
        return True

    with (
        namespace(machines, "narrow-1", {"limits": {"connections": 2}}) as at,
        connect(at("a"), timeout_s=EVENTUALLY_S) as first,
        connect(at("b"), timeout_s=EVENTUALLY_S) as second,
    ):
        for client in (first, second):
            client.management()  # who has shown no key takes no place
        eventually("it is full", lambda: not any(is_let_in(at(name)) for name in "abc"))
        second.close()
        eventually("there is room", lambda: is_let_in(at("c")))


@pytest.mark.row("R11", "R13")
def test_units_are_a_part_of_all_machines_and_nobody_elses(machines: Machines) -> None:
    """A namespace with too much to do at one of them is refused at another, where a second one is not."""
    one = {"tier": "premium", "units": 1, "units-min": 1, "units-max": 1}
    many = {"tier": "premium", "units": 16, "units-min": 16, "units-max": 16}
    over = threading.Event()

    def flood(string: str) -> None:
        with connect(string, timeout_s=EVENTUALLY_S) as client:
            sender = client.sender("orders")
            while not over.is_set():
                with suppress(SendFailed):
                    sender.send([message(number) for number in range(500)])

    with ExitStack() as stack:
        busy = stack.enter_context(namespace(machines, "busy-1", one))
        calm = stack.enter_context(namespace(machines, "calm-1", many))
        near, other = (stack.enter_context(connect(at("b"), timeout_s=EVENTUALLY_S)) for at in (busy, calm))
        for client in (near, other):
            Entities(client).create_queue("orders", {})
        refused, served = near.sender("orders"), other.sender("orders")
        flooding = stack.enter_context(ThreadPoolExecutor(1)).submit(flood, busy("a"))
        stack.callback(over.set)

        def is_refused() -> bool:
            served.send([message(1)])
            try:
                refused.send([message(1)])
            except SendFailed as error:
                return all(isinstance(why, Busy) for _, why in error.failures)
            return False

        eventually("what it does at a counts at b", is_refused)
        metrics = Metrics(machines.brokers["c"])
        assert metrics.sum("namespace_throttled_requests_total", namespace="busy-1", operation="send", broker="b") >= 1
        assert metrics.sum("namespace_throttled_requests_total", namespace="calm-1") == 0
        for broker in "abc":
            assert metrics.sum("namespace_units", namespace="busy-1", broker=broker) == 1
        over.set()
        flooding.result(EVENTUALLY_S)


@pytest.mark.row("P1", "P11", "K2", "K12", "A1")
def test_a_machine_that_is_lost_costs_its_share_for_some_seconds_and_no_message(machines: Machines) -> None:
    queue = machines.brokers["a"].create_queue("machine-lost", EnablePartitioning=True)
    with machines.client("a") as client:
        sender = client.sender(queue)
        sender.send([message(number, KEYS[number % 64]) for number in range(200)])
        machines.brokers["c"].kill()
        # With a key the lost third is refused for the time being; without one another partition takes it.
        accepted, refused = set(range(200)), 0
        for number, key in enumerate(KEYS, start=2_000):
            try:
                sender.send([message(number, key)])
                accepted.add(number)
            except ClientError:
                refused += 1
                sender = client.sender(queue)
        assert 0 < refused < len(KEYS)
        for number in range(1_000, 1_020):
            sender.send([message(number)])
            accepted.add(number)
    machines.settle("a", "b")
    assert {broker.id: broker.state for broker in machines.status("b").brokers}["c"] == "away"
    for name in "ab":
        assert re.search(r"^c \(run \w+\) no longer sends heartbeats", machines.brokers[name].log, re.MULTILINE)
    found = drained(machines.brokers["b"], queue, accepted)
    assert len(found) == len(set(found))
    machines.brokers["c"].start()
    machines.settle("a", "b", "c")


def test_a_session_that_is_held_through_one_machine_outlives_the_owner_on_another(machines: Machines) -> None:
    with ExitStack() as stack:
        queue = machines.brokers["a"].create_queue("sessions", RequiresSession=True, LockDuration="PT5M")
        with machines.client("a") as client:
            client.sender(queue).send(
                [
                    OutgoingMessage(body=b"%d" % count, session_id=name)
                    for name in ("kept", "freed")
                    for count in range(3)
                ]
            )
        owner = machines.owner_of_messages()
        other = min({"a", "b", "c"} - {owner})
        client = stack.enter_context(machines.client(other))
        held = client.receiver(queue, session="kept")
        (first,) = held.receive(1, EVENTUALLY_S)
        dying = machines.client(owner)
        stack.callback(dying.close)
        assert number_of(dying.receiver(queue, session="freed").receive(1, EVENTUALLY_S)[0]) == 0
        client.sender(queue).send(
            [OutgoingMessage(body=b"3", session_id="kept")]
        )  # session locks go with the next commit
        machines.brokers[owner].kill()
        held.settle([first])  # for some seconds no broker can do it
        assert [number_of(held.receive(1, EVENTUALLY_S)[0]) for _ in range(3)] == [1, 2, 3]
        freed = client.receiver(queue, session="freed")
        assert [number_of(freed.receive(1, EVENTUALLY_S)[0]) for _ in range(3)] == [0, 1, 2]
    machines.brokers[owner].start()
    machines.settle("a", "b", "c")


@pytest.mark.row("P1", "P11")
def test_who_is_told_to_stop_hands_its_stores_over(machines: Machines) -> None:
    queue = machines.brokers["a"].create_queue("handed-over", EnablePartitioning=True)
    with machines.client("a") as client:
        sender = client.sender(queue)
        with ThreadPoolExecutor(1) as pool:
            stopped = pool.submit(machines.brokers["b"].stop)
            sent = 0
            while not stopped.done():
                sender.send([message(sent)])
                sent += 1
            stopped.result()
        # No lease had to end: the stores were given back.
        machines.settle("a", "c")
        assert [broker.id for broker in machines.status("a").brokers] == ["a", "c"]
    assert sorted(drained(machines.brokers["a"], queue, range(sent))) == list(range(sent))
    machines.brokers["b"].start()
    machines.settle("a", "b", "c")


@pytest.mark.row("A1", "K2")
def test_who_stood_still_for_longer_than_its_lease_has_nothing_to_say(machines: Machines) -> None:
    stores = {store.name: store for store in machines.status("a").stores}
    # Sixteen queues, one in each store; a third of them are b's.
    names = [machines.brokers["a"].create_queue(f"still-{number}") for number in range(16)]
    theirs = [store for store in stores.values() if store.owner == "b"]
    with machines.client("b") as stuck, machines.client("a") as other:
        senders = {name: stuck.sender(name) for name in names}
        receivers = {name: stuck.receiver(name) for name in names}
        held: dict[str, list[IncomingMessage]] = {}
        for name in names:
            senders[name].send([message(1)])
            held[name] = receivers[name].receive(1, timeout_s=EVENTUALLY_S)
            senders[name].send([message(2)])  # the lock is on the disk with it
        with ThreadPoolExecutor(1) as pool, stopped(machines.brokers["b"].ready["pid"]) as wake:
            # It finds these in its sockets when it wakes.
            late_send = pool.submit(lambda: [tried(senders[name].send, [message(3)]) for name in names])
            machines.settle("a", "c")
            # The locks are kept; what it had not handed out is handed out by its successor.
            for name in names:
                receiver = other.receiver(name)
                (second,) = receiver.receive(1, timeout_s=EVENTUALLY_S)
                assert number_of(second) == 2
                receiver.settle([second])
            wake()
            sent = late_send.result(EVENTUALLY_S)
            settled = [tried(receivers[name].settle, held[name]) for name in names]
    assert len(sent) == len(settled) == 16
    machines.settle("a", "b", "c")  # while a store is handed over no broker reports its epoch
    epochs = {store.name: store.epoch for store in machines.status("a").stores}
    assert all((epochs[store.name] or 0) > (store.epoch or 0) for store in theirs)
    # The new owner did all that it acknowledged after it woke; nothing comes twice, nothing comes back.
    with ThreadPoolExecutor(len(names)) as pool:
        awaited = [{3} if was_sent else set[int]() for was_sent in sent]
        left = pool.map(partial(drained, machines.brokers["a"]), names, awaited)
    for there, was_settled in zip(left, settled, strict=True):
        assert {*there} <= {1, 3}
        assert len(there) == len({*there})
        assert not (was_settled and 1 in there)


@dataclass(frozen=True)
class Apart:
    """Machines with half of the stores on a server of its own, and the catalog on another."""

    machines: Machines
    catalog: PostgreSQLServer
    stores: PostgreSQLServer


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory, server: PostgreSQLServer) -> Iterator[Apart]:
    folder = tmp_path_factory.mktemp("apart")
    with (
        PostgreSQLServer() as catalog,
        PostgreSQLServer() as stores,
        Machines(folder, server, catalog, stores).start("a", "b") as machines,
    ):
        yield Apart(machines, catalog, stores)
        catalog.kill()  # it need not end in good order


@pytest.mark.row("A4")
def test_a_database_that_is_away_limits_what_is_in_it_and_nobody_takes_it_over(apart: Apart) -> None:
    machines, second = apart.machines, apart.stores
    a, b = machines.brokers["a"], machines.brokers["b"]
    queue = a.create_queue("database-away", EnablePartitioning=True)
    owners = [(store.name, store.owner) for store in machines.status("a").stores]
    with machines.client("a") as client:
        client.sender(queue).send([message(number, KEYS[number]) for number in range(64)])
        second.kill()
        eventually("the queue is limited", lambda: b.describe(queue).availability == "Limited")
        client.sender(queue).send([message(number) for number in range(100, 120)])
        for name in "ab":
            eventually(
                "the stores are in trouble",
                partial(are_in_trouble, machines, name, {f"store-{number:02}" for number in range(8, 16)}),
            )
        with pytest.raises(ClientError, match=r"\d can't be used"):
            b.create_queue("another", EnablePartitioning=True)
        second.start()
        machines.settle("a", "b")
    assert len(drained(a, queue, {*range(64), *range(100, 120)})) == 84
    assert [(store.name, store.owner) for store in machines.status("b").stores] == owners


def are_in_trouble(machines: Machines, asked: str, stores: set[str]) -> bool:
    """These stores can't be used, as one of the brokers says, and all others can."""
    return stores == {store.name for store in machines.status(asked).stores if store.trouble is not None}


@contextmanager
def stopped(process: int) -> Iterator[Callable[[], None]]:
    """A process stands still; what is given lets it go on, as does the end."""
    os.kill(process, signal.SIGSTOP)
    try:
        yield lambda: os.kill(process, signal.SIGCONT)
    finally:
        os.kill(process, signal.SIGCONT)


def tried(call: Callable[..., object], *arguments: object) -> bool:
    """Whether it was done."""
    try:
        call(*arguments)
    except ClientError:
        return False
    return True


@pytest.mark.row("A4")
def test_without_the_catalog_messages_go_on_and_administration_is_refused(apart: Apart) -> None:
    machines, catalog = apart.machines, apart.catalog
    queue = machines.brokers["a"].create_queue("catalog-away", EnablePartitioning=True)
    before = [(store.name, store.owner, store.epoch) for store in machines.status("a").stores]
    catalog.kill()
    for name, number in (("a", 0), ("b", 100)):
        with machines.client(name) as client:
            client.sender(queue).send([message(number + n, KEYS[n]) for n in range(64)])
        with pytest.raises(ClientError, match="catalog can't be"):
            machines.brokers[name].create_queue("another")
        with pytest.raises(ClientError, match="catalog can't be"):
            machines.brokers[name].delete_queue(queue)
    assert len(drained(machines.brokers["a"], queue, {*range(64), *range(100, 164)})) == 128
    catalog.start()

    def is_made() -> bool:
        try:
            machines.brokers["b"].create_queue("another")
        except ClientError as error:
            return "already exists" in str(error)
        return True

    eventually("a queue is made", is_made)
    assert machines.brokers["a"].describe("another").partitions == 1
    # All leases in the catalog had ended, and no broker took that for the end of the others.
    assert [(store.name, store.owner, store.epoch) for store in machines.status("b").stores] == before
