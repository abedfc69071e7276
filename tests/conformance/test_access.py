"""Policies of the namespace and of entities, as unmodified clients meet them: what opens, what stays shut, and what
shuts while a client is connected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from partibus.amqp.codec.performatives import Attach, Detach
from partibus.amqp.section_encoding import encode_data
from partibus.client.extensions.entities import Entities, Policies
from partibus.namespace.connection_string import parse_connection_string
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.interface import (
    QUIET_S,
    WAIT_S,
    Client,
    ClientTrouble,
    Outgoing,
    Trouble,
    receive_all,
)
from tests.conformance.conftest import LIBRARIES
from tests.kit.eventually import eventually
from tests.kit.plain_client import connect
from tests.robustness.raw import RawPeer, transfer

# The libraries leave the sockets of refused connections to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

MakeQueue = Callable[..., str]
Open = Callable[..., Client]
MESSAGE = Outgoing(b"x")
NAME = "some of it"
"""A policy's name that has to be encoded in a token."""


@pytest.fixture(params=["python", "javascript", "rhea"])
def library(request: pytest.FixtureRequest) -> str:
    """Sign in by tokens, which two libraries spell differently, and by name and key in the clear."""
    return str(request.param)


@pytest.fixture
def open_as(broker: BrokerProcess, library: str) -> Iterator[Open]:
    """``open_as(policy, key)``: a client that shows these."""
    with ExitStack() as stack:

        def open_client(policy: str, key: str) -> Client:
            root = parse_connection_string(broker.connection_string)
            text = broker.connection_string.replace(root.key_name, policy).replace(root.key, key)
            return stack.enter_context(closing(LIBRARIES[library](text)))

        yield open_client


def make_policy(broker: BrokerProcess, entity: str, *rights: str) -> str:
    """The key of a new policy `NAME`."""
    with connect(broker.connection_string) as client:
        return Policies(client, entity).set(NAME, rights).primary_key


def refused(call: Callable[[], object]) -> bool:
    """Not authorized; what else goes wrong is an error of the test."""
    try:
        call()
    except ClientTrouble as trouble:
        if trouble.kind is not Trouble.UNAUTHORIZED:
            raise
        return True
    return False


def shut_out(call: Callable[[], object]) -> bool:
    """Tell whether the client is shut out. The library for Python first reports only a detached sending link.

    The library for JavaScript waits 20 seconds for the answer to a message that crosses the detach of its link.
    """
    try:
        return refused(call)
    except ClientTrouble as trouble:
        if "amqp:unknown-error" not in trouble.text and trouble.kind is not Trouble.TIMEOUT:
            raise
        return False


def test_a_policy_of_an_entity_opens_it_and_nothing_else(
    broker: BrokerProcess, make_queue: MakeQueue, open_as: Open
) -> None:
    mine, other = make_queue(), make_queue()
    client = open_as(NAME, make_policy(broker, mine, "Send"))
    client.send(mine, MESSAGE)
    assert refused(lambda: client.send(other, MESSAGE))
    assert refused(lambda: client.receive(mine, 1, wait_s=WAIT_S))


def test_a_policy_of_a_topic_opens_its_subscriptions(
    broker: BrokerProcess, make_queue: MakeQueue, open_as: Open
) -> None:
    topic = make_queue("topic")
    path = broker.create_subscription(topic, "sub")
    client = open_as(NAME, make_policy(broker, topic, "Send", "Listen"))
    client.send(topic, MESSAGE)
    assert [message.body for message in receive_all(client, path, 1)] == [b"x"]


def test_a_new_key_shuts_out_who_uses_the_old_one(broker: BrokerProcess, make_queue: MakeQueue, open_as: Open) -> None:
    queue = make_queue()
    client = open_as(NAME, make_policy(broker, queue, "Send"))
    client.send(queue, MESSAGE)
    with connect(broker.connection_string) as root:
        renewed = Policies(root, queue).regenerate(NAME)
    eventually("who sends is shut out", lambda: shut_out(lambda: client.send(queue, MESSAGE)))
    open_as(NAME, renewed.primary_key).send(queue, MESSAGE)
    open_as(NAME, renewed.secondary_key).send(queue, MESSAGE)


def test_a_policy_that_is_deleted_or_changed_is_felt_by_who_is_connected(
    broker: BrokerProcess, make_queue: MakeQueue, open_as: Open
) -> None:
    queue = make_queue()
    client = open_as(NAME, make_policy(broker, queue, "Send", "Listen"))
    client.send(queue, MESSAGE)
    assert receive_all(client, queue, 1)
    make_policy(broker, queue, "Listen")
    eventually("who sends is shut out", lambda: shut_out(lambda: client.send(queue, MESSAGE)))
    assert not refused(lambda: client.receive(queue, 1, wait_s=QUIET_S))
    with connect(broker.connection_string) as root:
        Policies(root, queue).delete(NAME)
    eventually("who receives is shut out", lambda: shut_out(lambda: client.receive(queue, 1, wait_s=WAIT_S)))


def test_links_are_detached_as_soon_as_their_policy_is_deleted(broker: BrokerProcess, make_queue: MakeQueue) -> None:
    """Also while they wait for messages, and whatever crosses the detach on its way."""
    queue = make_queue()
    key = make_policy(broker, queue, "Send", "Listen")
    with RawPeer(broker) as peer, connect(broker.connection_string) as root:
        peer.open(NAME, key)
        peer.attach(queue, sending=False)
        peer.attach(queue, sending=True, handle=1)
        peer.credit(1)
        for _ in range(2):
            peer.read_until(Attach)
        Policies(root, queue).delete(NAME)
        for _ in range(2):
            assert peer.read_until(Detach).error.condition == "amqp:unauthorized-access"
        peer.write(transfer(encode_data(b"crosses"), 0, handle=1))
        peer.credit(2)
        peer.say(Detach(handle=0, closed=True), Detach(handle=1, closed=True))
        for handle, sending in ((2, False), (3, True)):
            peer.attach(queue, sending=sending, handle=handle)
            refusal = peer.read_until(Attach)
            assert (refusal.target if sending else refusal.source) is None
            assert peer.read_until(Detach).error.condition == "amqp:unauthorized-access"
        assert Entities(root).get(queue).messages == 0


@pytest.mark.parametrize(("policy", "key"), [("nobody", "key"), (NAME, "wrong")])
def test_a_claim_that_is_none_opens_nothing(
    broker: BrokerProcess, make_queue: MakeQueue, open_as: Open, policy: str, key: str
) -> None:
    queue = make_queue()
    make_policy(broker, queue, "Send")
    assert refused(lambda: open_as(policy, key).send(queue, MESSAGE))
