"""How many connections may use one entity at a time, and which of them count together."""

from collections.abc import Callable
from pathlib import Path

import pytest

from partibus.amqp import ACCEPTED, Rejected
from partibus.amqp.section_encoding import encode_application_properties, encode_value
from partibus.namespace.access import Grant, Right
from partibus.namespace.namespace_options import NamespaceOptions
from tests.unit.frontends.harness import Client, World, message

QUOTA = "amqp:resource-limit-exceeded"


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.become(NamespaceOptions(limits={"entity_connections": 2}))
    world.queue("q")
    world.broker.create_topic("t", {"EnablePartitioning": True})
    for name in ("a", "b"):
        world.broker.create_subscription("t", name, {})
    return world


def refused(client: Client, address: str, *, receive: bool) -> bool:
    """The link that this connection asks for, for the connections that are there. Other refusals are errors."""
    link = client.receiver(address) if receive else client.sender(address)
    if link.is_open:
        return False
    assert client.refusal(link).condition == QUOTA
    return True


@pytest.mark.row("C36")
def test_a_queue_counts_connections_that_send_and_those_that_receive_together(world: World) -> None:
    first, second, third = (world.client() for _ in range(3))
    assert not refused(first, "q", receive=False)
    assert not refused(second, "Q", receive=True)
    assert refused(third, "q", receive=False)
    assert refused(third, "q", receive=True)
    assert refused(third, "q/$DeadLetterQueue", receive=True)
    assert not refused(first, "q", receive=True), "one connection, however many links"


@pytest.mark.row("C36")
def test_a_topic_and_each_of_its_subscriptions_count_their_own(world: World) -> None:
    clients = [world.client() for _ in range(3)]
    uses = [("t", False), ("t/Subscriptions/a", True), ("t/Subscriptions/b", True)]
    for client in clients[:2]:
        assert not any(refused(client, address, receive=receive) for address, receive in uses)
    assert all(refused(clients[2], address, receive=receive) for address, receive in uses)


@pytest.mark.row("C36")
def test_a_connection_that_is_gone_or_has_closed_its_links_makes_room(world: World) -> None:
    first, second, third = (world.client() for _ in range(3))
    link = first.sender("q")
    assert not refused(second, "q", receive=True)
    assert refused(third, "q", receive=True)
    link.detach()
    world.wait()
    assert not refused(third, "q", receive=True)
    assert refused(first, "q", receive=False)
    second.lose()
    assert not refused(first, "q", receive=False)


def test_the_refusal_says_what_to_do(world: World) -> None:
    clients = [world.client() for _ in range(3)]
    links = [client.sender("q") for client in clients]
    assert str(clients[2].refusal(links[2]).description).startswith(
        "'q' is at its quota of 2 connections at a time. Share connections between senders and receivers."
    )


def test_a_receiver_that_is_refused_for_another_reason_holds_no_place(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.become(NamespaceOptions(limits={"entity_connections": 2, "receivers": 1}))
    world.queue("q")
    first, second, third = (world.client() for _ in range(3))
    assert first.receiver("q").is_open
    assert second.refusal(second.receiver("q")).condition == "com.microsoft:server-busy"
    assert third.sender("q").is_open


@pytest.mark.row("C35")
def test_a_namespace_has_so_many_connections_at_a_time(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.queue("q")
    world.become(NamespaceOptions(limits={"connections": 2}))
    first, _, third = (world.client() for _ in range(3))
    assert third.closed is not None
    error = third.closed.error
    assert error is not None
    assert error.condition == QUOTA
    assert "The namespace 'default' is at its quota of 2 connections at a time" in str(error.description)
    first.lose()
    assert not refused(world.client(), "q", receive=False)


@pytest.mark.row("C35")
def test_who_has_no_claim_takes_no_place_and_goes_after_a_while(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.queue("q")
    world.become(NamespaceOptions(limits={"connections": 1}))
    strangers = [world.client(login=None) for _ in range(3)]
    assert not refused(world.client(), "q", receive=False), "there is room for who has a key"
    for client in strangers:
        assert client.closed is None
    late = strangers[0]
    assert late.put_token("root", "sb://localhost/q", key="root-key") == 403
    world.wait()
    assert late.closed is not None
    assert late.closed.error is not None
    assert late.closed.error.condition == QUOTA
    waits_s = world.limits.connection.unclaimed_s
    for client in world.clients:
        for now_s in (20.0, 19.0 + waits_s, 20.0 + waits_s):
            assert client is late or client.closed is None
            client.peer.tick(now_s)
    world.wait()
    errors = [client.closed.error.condition for client in strangers if client.closed and client.closed.error]
    assert errors == [QUOTA, "amqp:connection:forced", "amqp:connection:forced"]
    assert [client.closed for client in world.clients if client not in strangers] == [None]


def test_a_connection_has_so_many_links(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.queue("q")
    world.become(NamespaceOptions(limits={"links": 2}))
    client = world.client()
    first = client.sender("q")
    assert not refused(client, "q", receive=True)
    assert refused(client, "q", receive=False)
    first.detach()
    world.wait()
    assert not refused(client, "q", receive=False)


@pytest.mark.row("C36")
def test_a_link_whose_queue_was_made_again_waits_for_a_place_there(world: World) -> None:
    client, second, third = (world.client() for _ in range(3))
    sender = client.sender("q")
    assert client.send(sender, message()) == [ACCEPTED]
    world.broker.delete("q")
    world.queue("q")
    links = [other.sender("q") for other in (second, third)]
    for _ in range(3):
        (state,) = client.send(sender, message())
        assert isinstance(state, Rejected), "two connections use the new queue"
    links[0].detach()
    world.wait()
    assert client.send(sender, message()) == [ACCEPTED]
    assert refused(second, "q", receive=False), "it is counted there now"
    sender.detach()
    world.wait()
    assert not refused(second, "q", receive=False)


def test_a_client_that_has_left_while_the_keys_of_its_token_were_read_takes_no_place(world: World) -> None:
    waiting: list[Callable[[], None]] = []

    class Identities:
        """An identity provider that reads its keys until the test says otherwise."""

        def grants(self, text: str) -> list[Grant]:
            return [Grant("app", Right.MANAGE, (), None, operates=False, sas=False)]

        def fetch_for(self, text: str, then: Callable[[], None]) -> bool:
            waiting.append(then)
            return True

    world.access.identities = Identities()
    left, stays = (world.client(login=None) for _ in range(2))
    for client in (left, stays):
        sender = client.sender("$cbs")
        request = encode_application_properties({"operation": "put-token", "name": "sb://h"}) + encode_value("e.e.e")
        client.send(sender, request)
    left.lose()
    for then in waiting:
        then()
    assert world.broker.clients.connections == 1
