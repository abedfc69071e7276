"""Several brokers behind one port: clients see one namespace whichever they hit, and lose nothing with one of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from azure.servicebus import ServiceBusClient as AzureClient
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import ServiceBusError

from partibus.client.errors import ClientError
from partibus.client.extensions.entities import Entities
from partibus.client.extensions.namespaces import Namespaces
from partibus.clock import SystemClock
from partibus.namespace.connection_string import parse_connection_string
from partibus.namespace.sas import make_token
from partibus.testing.broker_process import BrokerProcess, run_to_the_end
from tests.conformance.clients.interface import ClientTrouble, Outgoing, Trouble, receive_all
from tests.conformance.conftest import LIBRARIES
from tests.conformance.several import all_well, connections, is_running, pids, status
from tests.kit.eventually import EVENTUALLY_S, eventually
from tests.kit.plain_client import Client, connect
from tests.kit.reached import connections_of

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
"""The Python library leaves the sockets of broken connections to the garbage collector, which warns."""

BROKERS = 3
CONNECTIONS = 9
"""The kernel deals connections out by chance; with so many, each broker has one in all but a few of a hundred runs, and
the rest of them are no less right."""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("own"), arguments=("--brokers", str(BROKERS))) as broker:
        yield broker


@pytest.fixture
def broker(own: BrokerProcess) -> BrokerProcess:
    """Share a broker among tests in which processes end: all of them serve when a test begins."""
    eventually("all of them serve", lambda: all_well(own))
    return own


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Share a broker among tests in which no process ends."""
    with BrokerProcess(tmp_path_factory.mktemp("shared"), arguments=("--brokers", str(BROKERS))) as broker:
        yield broker


class Load:
    """Senders on connections of their own, until it ends; what was accepted is noted."""

    def __init__(self, broker: BrokerProcess, queue: str, senders: int, *, keyed: bool) -> None:
        self.accepted: list[str] = []
        self._connection_string = broker.connection_string
        self._queue = queue
        self._keyed = keyed
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(number,)) for number in range(senders)]

    def _send(self, number: int) -> None:
        with AzureClient.from_connection_string(self._connection_string) as client:
            sender = client.get_queue_sender(self._queue)
            count = 0
            while not self._stopping.is_set():
                body = f"{number}-{count}"
                count += 1
                key = str(count % 50) if self._keyed else None
                with suppress(ServiceBusError):  # not accepted
                    sender.send_messages(ServiceBusMessage(body, partition_key=key))
                    self.accepted.append(body)

    def wait_for_more(self, count: int = 20) -> None:
        goal = len(self.accepted) + count
        eventually(f"{count} more sends are accepted", lambda: len(self.accepted) >= goal)

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()


def drain(broker: BrokerProcess, queue: str) -> list[str]:
    """All messages of a queue, taken out; the counts say when that is all."""
    bodies: list[str] = []
    with AzureClient.from_connection_string(broker.connection_string) as client:
        receiver = client.get_queue_receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
        with receiver:
            while (came := receiver.receive_messages(500, max_wait_time=1)) or broker.describe(queue).messages:
                bodies += map(str, came)
    return bodies


def test_stores_and_partitions_are_spread_over_the_brokers(shared: BrokerProcess) -> None:
    assert [(one["id"], one["stores"]) for one in shared.ready["brokers"]] == [
        ("broker-0", 6),
        ("broker-1", 5),
        ("broker-2", 5),
    ]
    assert len({one["pid"] for one in shared.ready["brokers"]} | {shared.ready["pid"]}) == BROKERS + 1
    found = status(shared)
    assert {one.id: one.pid for one in found.brokers} == {one["id"]: one["pid"] for one in shared.ready["brokers"]}
    assert len({one.owner for one in found.stores[:BROKERS]}) == BROKERS


@pytest.mark.row("P13", "A3")
def test_a_queue_is_the_same_through_every_connection(shared: BrokerProcess) -> None:
    with ExitStack() as stack:
        clients = connections(shared, "rhea", CONNECTIONS, stack)
        for partitioned in (False, True):
            queue = shared.create_queue(f"same-{partitioned}", EnablePartitioning=partitioned)
            for number, client in enumerate(clients):
                client.send(queue, *(Outgoing(b"%d.%d" % (number, count)) for count in range(8)))
            assert shared.describe(queue).messages == 8 * CONNECTIONS
            bodies = []
            for client in reversed(clients):
                found = receive_all(client, queue, 8)
                bodies += [message.body for message in found]
                for message in found:
                    client.complete(queue, message)
            assert sorted(bodies) == sorted(b"%d.%d" % (n, c) for n in range(CONNECTIONS) for c in range(8))
            eventually("all are completed", partial(is_empty, shared, queue))


def is_empty(broker: BrokerProcess, queue: str) -> bool:
    return broker.describe(queue).messages == 0


def test_a_change_is_answered_when_every_broker_goes_by_it(shared: BrokerProcess) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(shared.connection_string)) for _ in range(CONNECTIONS)]

        def ask(number: int, operation: str, **body: object) -> dict[str, Any]:
            return clients[number % CONNECTIONS].management().request(f"partibus:{operation}-entity", body)

        for number in range(CONNECTIONS):
            queue = f"changed-{number}"
            ask(number, "create", name=queue, properties={"EnablePartitioning": number % 2 == 0})
            for other in range(CONNECTIONS):
                assert ask(other, "get", name=queue)["name"] == queue
            ask(number + 1, "update", name=queue, properties={"MaxDeliveryCount": 3})
            ask(number + 2, "update", name=queue, properties={"UserMetadata": "x"})
            for other in range(CONNECTIONS):
                properties = ask(other, "get", name=queue)["properties"]
                assert (properties["MaxDeliveryCount"], properties["UserMetadata"]) == (3, "x")
            ask(number + 3, "delete", name=queue)
            for other in range(CONNECTIONS):
                with pytest.raises(ClientError, match="could not be found"):
                    ask(other, "get", name=queue)
            ask(number + 4, "create", name=queue, properties={})
            assert {ask(other, "get", name=queue)["partitions"] for other in range(CONNECTIONS)} == {1}


@pytest.mark.row("P4")
def test_a_session_is_held_once_whichever_broker_is_asked(shared: BrokerProcess) -> None:
    queue = shared.create_queue("sessions", EnablePartitioning=True, RequiresSession=True)
    with ExitStack() as stack:
        clients = connections(shared, "javascript", 5, stack)
        for number, client in enumerate(clients):
            client.send(queue, *(Outgoing(b"%d" % count, session_id=f"s{number}") for count in range(4)))
        held = [client.accept_session(queue, None) for client in clients]
        assert sorted(session.id for session in held) == [f"s{number}" for number in range(5)]
        with pytest.raises(ClientTrouble) as refused:
            clients[0].accept_session(queue, held[1].id)
        assert refused.value.kind is Trouble.SESSION_HELD
        for session in held:
            found = session.receive(4)
            assert [message.body for message in found] == [b"0", b"1", b"2", b"3"]
            session.complete(*found)
            assert session.nothing_left()


def test_nothing_accepted_is_lost_with_a_broker(broker: BrokerProcess, make_queue: Callable[..., str]) -> None:
    unkeyed = make_queue(EnablePartitioning=True)
    keyed = make_queue(EnablePartitioning=True)
    before = {one.id: one.restarts for one in status(broker).brokers}
    with Load(broker, unkeyed, 4, keyed=False) as free, Load(broker, keyed, 4, keyed=True) as bound:
        for victim in ("broker-1", "broker-2"):
            free.wait_for_more()
            bound.wait_for_more()
            os.kill(pids(broker)[victim], signal.SIGKILL)
            free.wait_for_more()
            bound.wait_for_more(200)
            eventually("the broker is back with its share", lambda: all_well(broker))
    after = {one.id: one.restarts for one in status(broker).brokers}
    assert after == {id_: restarts + (id_ != "broker-0") for id_, restarts in before.items()}
    for queue, load in ((unkeyed, free), (keyed, bound)):
        assert set(load.accepted) <= set(drain(broker, queue))


def test_a_broker_that_stands_still_is_replaced(broker: BrokerProcess, make_queue: Callable[..., str]) -> None:
    queue = make_queue(EnablePartitioning=True)
    seen = len(broker.log)
    with Load(broker, queue, 6, keyed=False) as load:
        load.wait_for_more()
        stopped = pids(broker)["broker-0"]
        os.kill(stopped, signal.SIGSTOP)
        eventually("it is killed", lambda: not is_running(stopped))
        load.wait_for_more(60)
        eventually("another one runs in its place", lambda: all_well(broker))
    assert pids(broker)["broker-0"] != stopped
    assert "has not answered" in broker.log[seen:]
    assert set(load.accepted) <= set(drain(broker, queue))


def test_a_message_lock_outlives_the_owner_of_its_store(broker: BrokerProcess, make_queue: Callable[..., str]) -> None:
    queue = make_queue(EnablePartitioning=True, LockDuration="PT5M")
    with ExitStack() as stack:
        clients = connections(broker, "rhea", 4, stack)
        clients[0].send(queue, *(Outgoing(b"%d" % number, partition_key=str(number)) for number in range(60)))
        held = [(client, message) for client in clients for message in receive_all(client, queue, 15)]
        # Locks are written with the next commit: this is one for every store.
        clients[0].send(queue, *(Outgoing(b"later", partition_key=str(number)) for number in range(60)))
        # The kernel deals connections out by chance: all of them may be one broker's, which is not the victim then.
        victim = min(pids(broker).values(), key=lambda pid: len(connections_of(pid, broker.port)))
        os.kill(victim, signal.SIGKILL)
        eventually("its stores have another owner", lambda: all_well(broker))
        completed = set()
        for client, message in held:
            with suppress(ClientTrouble, OSError):  # the connection may have been the dead broker's
                client.complete(queue, message)
                completed.add(message.sequence_number)
    assert completed
    with closing(LIBRARIES["rhea"](broker.connection_string)) as another:
        left = {message.sequence_number for message in receive_all(another, queue, 60)}
    assert not left & {message.sequence_number for _, message in held}, "what is locked or completed came again"


def test_health_is_that_of_the_whole(shared: BrokerProcess) -> None:
    for _ in range(CONNECTIONS):
        with urlopen(f"{shared.http_url}/health", timeout=EVENTUALLY_S) as response:
            health = json.load(response)
        assert health["status"] == "healthy"
        assert list(health["stores"]) == [f"store-{number:02}" for number in range(16)]


def test_the_clock_moves_everywhere(tmp_path: Path) -> None:
    arguments = ("--brokers", str(BROKERS), "--clock", "manual")
    with BrokerProcess(tmp_path, arguments=arguments) as broker, ExitStack() as stack:
        # Plain ones, since what one front end caches of a partitioned queue others get when the clock moves on.
        queues = [broker.create_queue(f"q{number}", LockDuration="PT1M") for number in range(CONNECTIONS)]
        idle = broker.create_queue("idle", EnablePartitioning=True, AutoDeleteOnIdle="PT5M")
        used = broker.create_queue("used", EnablePartitioning=True, AutoDeleteOnIdle="PT5M")
        clients = connections(broker, "javascript", CONNECTIONS, stack)
        start_ms = broker.now_ms()
        for client, queue in zip(clients, queues, strict=True):
            client.send(queue, Outgoing(b"0"), Outgoing(b"1"))
            client.schedule(queue, [Outgoing(b"2")], start_ms + 30_000)
            assert len(receive_all(client, queue, 2)) == 2
        assert broker.advance(30_000) == start_ms + 30_000
        assert broker.advance(30_000) == start_ms + 60_000
        assert {broker.now_ms() for _ in range(CONNECTIONS)} == {start_ms + 60_000}
        for client, queue in zip(clients[1:] + clients[:1], queues, strict=True):
            found = receive_all(client, queue, 3)
            assert [(message.body, message.delivery_count) for message in found] == [(b"0", 1), (b"1", 1), (b"2", 0)]
        for client in clients:  # through one broker after the other, the last time four minutes before the end
            client.send(used, Outgoing(b"x"))
            broker.advance(60_000 // CONNECTIONS)
        broker.advance(4 * 60_000 - 1_000)
        with connect(broker.connection_string) as client_of_ours:
            listed = client_of_ours.management().request("partibus:list-entities", {})["entities"]
        assert isinstance(listed, list)
        names = {entity["name"] for entity in listed}
        assert idle not in names
        assert used in names
        os.kill(pids(broker)["broker-1"], signal.SIGKILL)
        eventually("it runs again", lambda: all_well(broker))
        assert len({broker.now_ms() for _ in range(CONNECTIONS)}) == 1


def test_a_graceful_stop_ends_all_and_a_start_finds_all(broker: BrokerProcess, make_queue: Callable[..., str]) -> None:
    queue = make_queue(EnablePartitioning=True)
    with closing(LIBRARIES["rhea"](broker.connection_string)) as client:
        client.send(queue, *(Outgoing(b"x") for _ in range(50)))
    children = pids(broker).values()
    broker.stop()
    assert not any(map(is_running, children))
    assert not list((broker.data / "stores").glob("*-wal")), "every store was closed"
    broker.start()
    assert broker.describe(queue).messages == 50


def test_children_end_with_their_supervisor(broker: BrokerProcess, make_queue: Callable[..., str]) -> None:
    queue = make_queue(EnablePartitioning=True)
    with closing(LIBRARIES["rhea"](broker.connection_string)) as client:
        client.send(queue, *(Outgoing(b"x") for _ in range(50)))
    children = list(pids(broker).values())
    broker.kill()
    eventually("they have ended", lambda: not any(map(is_running, children)))
    broker.start()
    assert broker.describe(queue).messages == 50


def test_one_broker_can_be_told_to_end_and_hands_over(broker: BrokerProcess, make_queue: Callable[..., str]) -> None:
    queue = make_queue(EnablePartitioning=True)
    with Load(broker, queue, 4, keyed=True) as load:
        load.wait_for_more()
        os.kill(pids(broker)["broker-1"], signal.SIGTERM)
        load.wait_for_more(100)
        eventually("it runs again", lambda: all_well(broker))
    assert set(load.accepted) <= set(drain(broker, queue))


def refusal(ask: Callable[[], object]) -> str:
    """The error that a client gets; empty: none."""
    try:
        ask()
    except ClientError as error:
        return f"{error.condition}: {error}"
    return ""


def connects(connection_string: str) -> None:
    """Connect and go again."""
    with connect(connection_string, timeout_s=EVENTUALLY_S) as client:
        client.management()


class AtEach:
    """A namespace with limits, and a connection to it at each of the brokers."""

    def __init__(self, stack: ExitStack, broker: BrokerProcess, name: str, limits: dict[str, int]) -> None:
        with connect(broker.connection_string, timeout_s=EVENTUALLY_S) as operator:
            made = Namespaces(operator).create(name, {"limits": limits})
            self.connection_string = made.connection_string(operator.endpoint)
        self.clients: dict[str, Client] = {}
        of_each = pids(broker)

        def has_all() -> bool:
            before = {id_: connections_of(pid, broker.port) for id_, pid in of_each.items()}
            with ExitStack() as trying:
                client = trying.enter_context(connect(self.connection_string, timeout_s=EVENTUALLY_S))
                client.management()  # it is let in
                more = [id_ for id_, pid in of_each.items() if connections_of(pid, broker.port) - before[id_]]
                if len(more) == 1 and more[0] not in self.clients:
                    self.clients[more[0]] = client
                    stack.push(trying.pop_all())
            return len(self.clients) == len(of_each)

        eventually("each broker has a connection", has_all)

    def expect_full(self) -> None:
        """Expect that every broker refuses another client, after a moment."""
        says = f"quota of {BROKERS} connections at a time"
        refused = partial(refusal, partial(connects, self.connection_string))
        eventually("nobody is let in", lambda: all(says in refused() for _ in range(CONNECTIONS)))


@pytest.mark.row("C35", "C36")
def test_limits_are_those_of_all_brokers_together(shared: BrokerProcess) -> None:
    limits = {"connections": BROKERS, "entity_connections": 2, "receivers": 1}
    with ExitStack() as stack:
        there = AtEach(stack, shared, "narrow-1", limits)
        there.expect_full()
        first, second, third = there.clients.values()
        Entities(first).create_queue("q", {})
        first.sender("q")
        second.sender("q")
        full = "amqp:resource-limit-exceeded: sender to 'q': 'q' is at its quota of 2 connections at a time"
        eventually("two connections use it", lambda: full in refusal(lambda: third.sender("q").close()))

        receiver = first.receiver("q")
        busy = "com.microsoft:server-busy: receiver of 'q': 'q' has 1 concurrent receive requests, its limit is 1"
        eventually("it has one receiver", lambda: busy in refusal(lambda: second.receiver("q").close()))
        shown = parse_connection_string(there.connection_string)
        token = make_token(f"http://{shown.host}", shown.key_name, shown.key, SystemClock().now_ms() // 1_000 + 3_600)
        url = f"{shared.http_url}/q/messages/head?timeout=0"
        request = Request(url, headers={"Host": shown.host, "Authorization": token}, method="DELETE")

        def is_refused() -> bool:
            try:
                urlopen(request, timeout=EVENTUALLY_S).close()
            except HTTPError as error:
                with error:
                    return error.code == 503
            return False

        eventually("HTTP is counted with AMQP", lambda: all(is_refused() for _ in range(CONNECTIONS)))
        receiver.close()
        eventually("there is room again", lambda: not refusal(lambda: second.receiver("q").close()))
        third.close()
        eventually("there is room for a connection", lambda: not refusal(lambda: connects(there.connection_string)))


@pytest.mark.row("C35")
def test_a_broker_that_is_lost_takes_its_clients_out_of_the_count(broker: BrokerProcess) -> None:
    with ExitStack() as stack:
        there = AtEach(stack, broker, "narrow-2", {"connections": BROKERS})
        there.expect_full()
        os.kill(pids(broker)["broker-1"], signal.SIGKILL)
        eventually("there is room for its client", lambda: not refusal(lambda: connects(there.connection_string)))
        for name in ("broker-0", "broker-2"):
            there.clients[name].management().request("partibus:list-entities", {})


def serve_beside(broker: BrokerProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_to_the_end("serve", *arguments, "--brokers", "2")


def test_a_second_supervisor_on_the_same_data_is_refused(shared: BrokerProcess) -> None:
    ended = serve_beside(shared, "--data", str(shared.data), "--amqp-port", "0", "--http-port", "0")
    assert ended.returncode == 1
    assert str(shared.ready["pid"]) in ended.stderr
    assert "Traceback" not in ended.stderr
    assert all_well(shared)


@pytest.mark.parametrize("brokers", ["1", "2"])
def test_ports_are_shared_with_nobody_else(shared: BrokerProcess, tmp_path: Path, brokers: str) -> None:
    data, port = str(tmp_path / "other"), str(shared.port)
    ended = run_to_the_end("serve", "--data", data, "--amqp-port", port, "--http-port", "0", "--brokers", brokers)
    assert ended.returncode == 1
    assert "in use" in ended.stderr
    assert "Traceback" not in ended.stderr


def damage(stores: Sequence[Path]) -> None:
    for store in stores:
        store.write_bytes(b"this is no database" * 1_000)


@pytest.mark.row("P3", "A4")
@pytest.mark.parametrize("brokers", ["1", "3"])
def test_a_damaged_store_holds_up_no_other(tmp_path: Path, brokers: str) -> None:
    with BrokerProcess(tmp_path, arguments=("--brokers", brokers)) as broker:
        queue = broker.create_queue("q", EnablePartitioning=True)
        broker.stop()
        good = (broker.data / "stores" / "store-03.db").read_bytes()
        damage([broker.data / "stores" / "store-03.db"])
        broker.start()
        with closing(LIBRARIES["rhea"](broker.connection_string)) as client:
            client.send(queue, *(Outgoing(b"x") for _ in range(40)))
        assert broker.describe(queue).availability == "Limited"
        troubled = {one.name: one.trouble for one in status(broker).stores if one.trouble is not None}
        assert list(troubled) == ["store-03"]
        assert "store-03.db" in troubled["store-03"]
        (broker.data / "stores" / "store-03.db").write_bytes(good)
        eventually("the store is used again", lambda: broker.describe(queue).availability == "Available")
        assert broker.describe(queue).messages == 40
