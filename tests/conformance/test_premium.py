"""Premium namespaces: throttled by the load of their units, and brokers that come and go with units (rows R11, R12)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import cast
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from azure.servicebus import ServiceBusReceivedMessage

from partibus.amqp.codec.types import Array
from partibus.client.errors import SendFailed, Throttled
from partibus.client.extensions.entities import Entities
from partibus.client.extensions.namespaces import Namespaces
from partibus.client.messages import OutgoingMessage
from partibus.client.outcomes import ReceiveMode
from partibus.clock import SystemClock
from partibus.namespace.connection_string import parse_connection_string
from partibus.namespace.sas import make_token
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.interface import Outgoing, ServiceBusClient, receive_all
from tests.conformance.conftest import LIBRARIES
from tests.conformance.several import Holder, Leaving, all_well, status
from tests.conformance.test_metrics import Metrics
from tests.kit.eventually import EVENTUALLY_S, eventually
from tests.kit.plain_client import connect

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

NAME = "acme-plant"
MESSAGES = 3_000
HOLDERS = 3
SAYS = "its messaging units have no more processor time. Error code: 50009. Please wait 2 seconds and try again."


@pytest.fixture
def small(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A unit of it is a sixty-fourth part of a process: 16 ms of each second."""
    with BrokerProcess(tmp_path, arguments=("--units-per-broker", "64")) as broker:
        yield broker


def create(broker: BrokerProcess, units: int) -> str:
    """The connection string of a new namespace."""
    options = {"tier": "premium", "units": units, "units-min": units, "units-max": units}
    with connect(broker.connection_string) as client:
        return Namespaces(client).create(NAME, options).connection_string(client.endpoint)


@pytest.mark.row("R11", "R13")
def test_units_that_have_too_much_to_do_refuse_more_and_nothing_is_lost_or_doubled(small: BrokerProcess) -> None:
    connection = create(small, 1)
    small.create_queue("orders")
    sent = Counter[str]()
    refusals: list[Exception] = []
    with connect(connection) as client, connect(small.connection_string) as other:
        Entities(client).create_queue("orders", {})
        sender = client.sender("orders")
        # 20 us and more for each message: a second's part is used up by 800 at most.
        while sent.total() < MESSAGES or not refusals:
            bodies = [b"%d" % number for number in range(sent.total(), sent.total() + 500)]
            accepted = set(range(len(bodies)))
            try:
                sender.send([OutgoingMessage(body=body) for body in bodies])
            except SendFailed as error:
                refusals += [why for _, why in error.failures]
                accepted -= {index for index, _ in error.failures}
            sent.update(bodies[index].decode() for index in accepted)
            # The broker serves namespaces without units all the time.
            other.sender("orders").send([OutgoingMessage(body=b"mine")])
        assert {(type(why), str(why).endswith(SAYS)) for why in refusals} == {(Throttled, True)}
        metrics = Metrics(small)
        assert metrics.sum("namespace_throttled_requests_total", namespace=NAME, operation="send") == len(refusals)
        assert metrics.sum("namespace_throttled_requests_total", namespace="default") == 0
        assert metrics.sum("namespace_credits_used_total", namespace=NAME) == 0
        assert metrics.sum("namespace_units", namespace=NAME) == 1
        # Receivers are withheld now and then, and get it all.
        receiver = client.receiver("orders", ReceiveMode.RECEIVE_AND_DELETE)
        received = Counter[str]()
        while received.total() < sent.total():
            received.update(cast(bytes, message.body).decode() for message in receiver.receive(1_000, 1.0))
        assert received == sent


@pytest.mark.row("R11")
def test_other_ways_in_are_refused_as_well(small: BrokerProcess) -> None:
    connection = parse_connection_string(create(small, 1))
    host = f"{NAME}.localhost"
    uri = f"http://{host}"
    token = make_token(uri, connection.key_name, connection.key, SystemClock().now_ms() // 1_000 + 600)

    def ask(path: str, method: str, body: bytes | None = None) -> tuple[int, str | None]:
        request = Request(f"{small.http_url}{path}", body, {"Authorization": token, "Host": host}, method=method)
        try:
            with urlopen(request, timeout=EVENTUALLY_S) as response:
                return int(response.status), None
        except HTTPError as error:
            with error:
                return error.code, error.headers.get("Retry-After")

    entry = b'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"/></content></entry>'
    assert ask("/orders?api-version=2021-05", "PUT", entry)[0] == 201
    for path, method in (("/orders/messages", "POST"), ("/orders?api-version=2021-05", "GET")):
        answers = Counter[tuple[int, str | None]]()
        for _ in range(2_000):
            answers[ask(path, method, b"body" if method == "POST" else None)] += 1
            if (503, "2") in answers:
                break
        assert (503, "2") in answers, answers


@pytest.mark.row("R12")
def test_units_follow_the_load_and_every_broker_goes_by_it(tmp_path: Path) -> None:
    arguments = ("--brokers", "2", "--units-per-broker", "64", "--clock", "manual")
    with BrokerProcess(tmp_path, arguments=arguments) as broker:
        with connect(broker.connection_string) as operator:
            made = Namespaces(operator).create(NAME, {"tier": "premium", "units-max": 2})
            with connect(made.connection_string(operator.endpoint)) as client:
                Entities(client).create_queue("orders", {})
                sender = client.sender("orders")

                def scaled() -> bool:
                    for _ in range(5):
                        with suppress(SendFailed):
                            sender.send([OutgoingMessage(body=b"body")] * 500)
                    broker.advance(500)
                    return Namespaces(operator).get(NAME).options["units"] == 2

                eventually("there are two", scaled)
        # Each of the brokers is asked by some of so many connections.
        for _ in range(8):
            with connect(broker.connection_string) as operator:
                assert Namespaces(operator).get(NAME).options["units"] == 2


@pytest.mark.row("P4")
def test_brokers_come_and_go_with_units_and_locks_and_sessions_stay(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, arguments=("--brokers", "1-2")) as broker, ExitStack() as stack:
        assert len(status(broker).brokers) == 1
        orders = broker.create_queue("orders", EnablePartitioning=True, LockDuration="PT5M")
        sessions = broker.create_queue("sessions", EnablePartitioning=True, RequiresSession=True, LockDuration="PT5M")
        names = [f"s{number}" for number in range(HOLDERS)]
        client = stack.enter_context(closing(cast(ServiceBusClient, LIBRARIES["python"](broker.connection_string))))
        client.send(orders, *(Outgoing(b"%d" % count, partition_key=str(count)) for count in range(60)))
        client.send(sessions, *(Outgoing(b"%d" % count, session_id=name) for name in names for count in range(4)))
        done = Counter[bytes]()

        held = client.receive(orders, 20)
        holders = [Holder(stack, broker, "python", sessions, name) for name in names]
        first = {holder.name: holder.session.receive(1) for holder in holders}
        for holder in holders:
            holder.session.state = b"begun"

        create(broker, 4)
        eventually("there are two", lambda: len(status(broker).brokers) == 2 and all_well(broker))
        for message in held:
            client.complete(orders, message)
            done[message.body] += 1
        for holder in holders:
            assert holder.session.state == b"begun"
            holder.session.complete(*first[holder.name])
            first[holder.name] = holder.session.receive(1)
            assert [message.body for message in first[holder.name]] == [b"1"]

        more = [Leaving(cast(ServiceBusClient, LIBRARIES["python"](broker.connection_string))) for _ in range(4)]
        others = [stack.enter_context(one) for one in more]
        locked = [message for other in others for message in receive_all(other, orders, 4)]
        with connect(broker.connection_string) as operator:
            Namespaces(operator).delete(NAME)
        eventually("there is one again", lambda: len(status(broker).brokers) == 1 and all_well(broker))
        # The connections of some have ended, so locks are named by their tokens.
        tokens = {message.body: cast(ServiceBusReceivedMessage, message.token).lock_token for message in locked}
        assert len(tokens) == len(locked)
        with connect(broker.connection_string) as plain:
            body = {"disposition-status": "completed", "lock-tokens": Array(0x98, tokens.values())}
            plain.management(orders).request("com.microsoft:update-disposition", body)
        done.update(list(tokens))
        for holder in holders:
            holder.session.complete(*first[holder.name])
            rest = holder.session.receive(2)
            assert [message.body for message in rest] == [b"2", b"3"]
            holder.session.complete(*rest)
        while done.total() < 60:
            for message in client.receive(orders, 10):
                client.complete(orders, message)
                done[message.body] += 1
        assert done == Counter(b"%d" % count for count in range(60))
        with connect(broker.connection_string) as operator:
            assert {one.name: one.messages for one in Entities(operator).list()} == {orders: 0, sessions: 0}
