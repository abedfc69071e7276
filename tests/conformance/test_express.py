"""Express queues and topics, as clients see them (docs/express.md)."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpMessageHeader

from partibus.client.errors import ClientError
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.admin import Http
from tests.conformance.clients.interface import Client, Outgoing, receive_all
from tests.conformance.clients.python_sync import PythonSync
from tests.conformance.conftest import CountMessages
from tests.conformance.test_metrics import Metrics

CLOCK = "manual"
PAIRED = True
MakeQueue = Callable[..., str]
BOUND_MS = 3_000


def writes(broker: BrokerProcess) -> tuple[float, ...]:
    """Commits, operations and bytes that stores have written."""
    metrics = Metrics(broker)
    names = ("store_commit_seconds_count", "store_operations_total", "store_written_bytes_total")
    return tuple(metrics.sum(name) for name in names)


def warm(client: Client, queue: str) -> None:
    """The first message of a partition reserves numbers, in a commit of its own."""
    for key in range(64):
        client.send(queue, Outgoing(b"first", partition_key=str(key)))
    for message in receive_all(client, queue, 64):
        client.complete(queue, message)


@pytest.mark.row("C22", "C23")
def test_what_is_consumed_in_time_is_never_written(
    broker: BrokerProcess, sdk: Client, make_queue: MakeQueue, messages_in: CountMessages
) -> None:
    queue = make_queue(EnableExpress=True, EnablePartitioning=True)
    warm(sdk, queue)
    broker.advance(BOUND_MS)
    before = writes(broker)
    for number in range(40):
        sdk.send(queue, Outgoing(b"%d" % number, partition_key=str(number)))
    assert messages_in(queue) == 40
    broker.advance(BOUND_MS // 2)
    received = receive_all(sdk, queue, 40)
    assert {int(message.body) for message in received} == set(range(40))
    for message in received:
        sdk.complete(queue, message)
    broker.advance(BOUND_MS)
    assert writes(broker) == before
    assert Metrics(broker).sum("entity_never_written_messages_total", entity=queue) == 40 + 64
    assert messages_in(queue) == 0


@pytest.mark.row("C22")
def test_what_waits_is_written_within_the_bound(
    broker: BrokerProcess, python: PythonSync, make_queue: MakeQueue
) -> None:
    queue = make_queue(EnableExpress=True)
    warm(python, queue)
    broker.advance(BOUND_MS)
    before = writes(broker)
    for number in range(5):
        python.send(queue, Outgoing(b"%d" % number))
    metrics = Metrics(broker)
    assert (metrics.sum("store_express_messages"), metrics.sum("entity_express_bound_seconds", entity=queue)) == (5, 3)
    assert writes(broker) == before
    broker.advance(BOUND_MS)
    assert Metrics(broker).sum("store_express_messages") == 0
    assert writes(broker)[1] == before[1] + 5
    for message in receive_all(python, queue, 5):
        python.complete(queue, message)


@pytest.mark.row("C24")
def test_a_forced_message_is_stored_at_once(broker: BrokerProcess, python: PythonSync, make_queue: MakeQueue) -> None:
    """Force by the durable field of the header over AMQP, and by ForcePersistence over HTTP."""
    queue = make_queue(EnableExpress=True)
    http = Http(broker)
    warm(python, queue)
    broker.advance(BOUND_MS)
    before = writes(broker)[1]
    forced = ServiceBusMessage(b"forced")
    forced.raw_amqp_message.header = AmqpMessageHeader(durable=True)
    with python.azure.get_queue_sender(queue) as sender:
        sender.send_messages(forced)
    assert writes(broker)[1] == before + 1
    properties = json.dumps({"ForcePersistence": True})
    assert http("POST", f"{queue}/messages", b"forced", BrokerProperties=properties).status == 201
    assert writes(broker)[1] == before + 2
    assert http("POST", f"{queue}/messages", b"not").status == 201
    assert writes(broker)[1] == before + 2
    refused = http("POST", f"{queue}/messages", b"x", BrokerProperties=json.dumps({"ForcePersistence": "yes"}))
    assert refused.status == 400
    assert b"ForcePersistence" in refused.body
    assert [message.body for message in receive_all(python, queue, 3)] == [b"forced", b"forced", b"not"]


@pytest.mark.row("C25")
def test_the_description_says_so(broker: BrokerProcess, make_queue: MakeQueue) -> None:
    queue, other = make_queue(EnableExpress=True, PartibusExpressBoundInMilliseconds=1_500), make_queue()
    http = Http(broker)
    assert b"<PartibusExpressBoundInMilliseconds>1500</" in http("GET", queue).body
    assert b"<EnableExpress>true</" in http("GET", queue).body
    assert b"PartibusExpress" not in http("GET", other).body
    for bound, allowed in ((0, False), (500, True), (60_000, True), (60_001, False)):
        name = f"{queue}-{bound}"
        if allowed:
            broker.create_queue(name, PartibusExpressBoundInMilliseconds=bound)
        else:
            with pytest.raises(ClientError, match=f"PartibusExpressBoundInMilliseconds.*{bound}.*500.*60000"):
                broker.create_queue(name, PartibusExpressBoundInMilliseconds=bound)


@pytest.mark.row("C22", "C23")
def test_a_topic_is_express_for_all_its_subscriptions(broker: BrokerProcess, python: PythonSync) -> None:
    broker.create_topic("express", EnableExpress=True)
    paths = [broker.create_subscription("express", name) for name in ("a", "b")]
    http = Http(broker)
    assert http("POST", "express/messages", b"first").status == 201
    for path in paths:
        assert http("DELETE", f"{path}/messages/head?timeout=5").body == b"first"
    broker.advance(BOUND_MS)
    before = writes(broker)
    assert http("POST", "express/messages", b"x").status == 201
    assert http("DELETE", f"{paths[0]}/messages/head?timeout=5").body == b"x"
    assert writes(broker) == before
    broker.advance(BOUND_MS)
    assert writes(broker)[1] == before[1] + 1
    assert http("DELETE", f"{paths[1]}/messages/head?timeout=5").body == b"x"


@pytest.mark.row("C23")
def test_what_is_forwarded_is_durable_where_it_arrives(
    broker: BrokerProcess, python: PythonSync, make_queue: MakeQueue
) -> None:
    """An express entity that forwards writes nothing itself; one that gets what is forwarded writes it at once."""
    end = make_queue(EnableExpress=True)
    start = make_queue(EnableExpress=True, ForwardTo=end)
    python.send(start, Outgoing(b"first"))
    (first,) = receive_all(python, end, 1)
    python.complete(end, first)
    broker.advance(BOUND_MS)
    python.send(start, Outgoing(b"x"))
    (got,) = receive_all(python, end, 1)
    metrics = Metrics(broker)
    assert metrics.sum("store_express_messages") == 0
    assert metrics.sum("entity_never_written_messages_total", entity=start) == 2
    python.complete(end, got)
    assert Metrics(broker).sum("entity_never_written_messages_total", entity=end) == 0


def test_a_peek_shows_what_only_memory_has(broker: BrokerProcess, python: PythonSync, make_queue: MakeQueue) -> None:
    queue = make_queue(EnableExpress=True)
    python.send(queue, *[Outgoing(b"%d" % number) for number in range(20)])
    with python.azure.get_queue_receiver(queue) as receiver:
        peeked = receiver.peek_messages(max_message_count=20)
    assert {int(str(message)) for message in peeked} == set(range(20))
    assert len(receive_all(python, queue, 20)) == 20
