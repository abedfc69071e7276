"""Updates of an entity: what the operation answers, and what those notice who use the entity right then."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from partibus.amqp import ACCEPTED, DeliveryState, Detached, Rejected
from partibus.client.messages import IncomingMessage
from partibus.namespace.namespace_options import NamespaceOptions
from tests.unit.frontends.harness import Client, World, body_of, message


@pytest.fixture
def client(world: World) -> Client:
    return world.client()


def update(client: Client, name: str, **properties: object) -> IncomingMessage:
    return client.request("$management", "partibus:update-entity", {"name": name, "properties": properties})


def updated(client: Client, name: str, **properties: object) -> dict[str, Any]:
    """The description that a granted update answers."""
    reply = update(client, name, **properties)
    assert reply.application_properties["statusCode"] == 200
    description = reply.body
    assert isinstance(description, dict)
    return description


def condition(state: DeliveryState | None) -> str:
    assert isinstance(state, Rejected)
    assert state.error is not None
    return str(state.error.condition)


def locked_for_ms(client: Client, address: str) -> int:
    """How long the next message is locked."""
    link = client.receiver(address)
    start_ms = client.world.timeline.now_ms()
    link.grant(1)
    client.world.wait(1)
    (delivery,) = client.deliveries(link)
    until_ms = IncomingMessage(delivery.payload).locked_until_ms
    assert until_ms is not None
    return until_ms - start_ms


def test_an_update_changes_what_it_names_and_answers_with_all(world: World, client: Client) -> None:
    world.queue("q", LockDuration="PT30S", UserMetadata="before")
    description = updated(client, "Q", UserMetadata="after", MaxDeliveryCount=3)
    assert (description["name"], description["messages"]) == ("q", 0)
    properties = description["properties"]
    assert (properties["LockDuration"], properties["UserMetadata"], properties["MaxDeliveryCount"]) == (
        "PT30S",
        "after",
        3,
    )
    assert world.namespace.queue("q").max_delivery_count == 3


@pytest.mark.parametrize(
    ("properties", "status", "condition", "words"),
    [
        ({"EnablePartitioning": True}, 400, "amqp:not-allowed", "EnablePartitioning of the queue 'q' is false"),
        ({"RequiresSession": True}, 400, "amqp:not-allowed", "RequiresSession of the queue 'q' is false for life"),
        (
            {"RequiresDuplicateDetection": True},
            400,
            "amqp:not-allowed",
            "RequiresDuplicateDetection of the queue 'q' is false for life",
        ),
        ({"LockDuration": "PT1S"}, 400, "com.microsoft:argument-error", "from 5 s to 5 min"),
        ({"AutoDeleteOnIdle": "PT4M"}, 400, "com.microsoft:argument-error", "of at least 5 min (PT5M)"),
        ({"Lockduration": "PT1M"}, 400, "com.microsoft:argument-error", "Did you mean LockDuration?"),
        ({"EnableExpress": "yes"}, 400, "com.microsoft:argument-error", "EnableExpress"),
        ({"ForwardTo": "r"}, 400, "com.microsoft:argument-error", "must be an existing queue or topic"),
    ],
)
@pytest.mark.row("P9")
def test_a_refused_update_changes_nothing(
    world: World, client: Client, properties: dict[str, object], status: int, condition: str, words: str
) -> None:
    world.queue("q")
    before = world.namespace.queue("q").description
    reply = update(client, "q", MaxDeliveryCount=3, **properties)
    assert reply.application_properties["statusCode"] == status
    assert reply.application_properties["errorCondition"] == condition
    assert words in str(reply.application_properties["statusDescription"])
    assert world.namespace.queue("q").description == before


def test_what_is_already_so_may_be_repeated(world: World, client: Client) -> None:
    world.queue("q", RequiresSession=True)
    assert updated(client, "q", RequiresSession=True, EnablePartitioning=False)["properties"]["RequiresSession"] is True


def test_an_update_of_nothing_that_exists_is_not_found(world: World, client: Client) -> None:
    reply = update(client, "nowhere", MaxDeliveryCount=3)
    assert reply.application_properties["statusCode"] == 404


def test_an_update_needs_manage(world: World) -> None:
    world.queue("q")
    reply = update(world.client(login="sender"), "q", MaxDeliveryCount=3)
    assert reply.application_properties["statusCode"] == 401
    assert world.namespace.queue("q").max_delivery_count == 10


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("status", ["Disabled", "ReceiveDisabled"])
def test_a_queue_that_is_closed_for_receivers_ends_their_links(
    world: World, client: Client, status: str, partitioned: bool
) -> None:
    world.queue("q", EnablePartitioning=partitioned)
    waiting, idle, dead = client.receiver("q"), client.receiver("q"), client.receiver("q/$DeadLetterQueue")
    waiting.grant(5)
    other = client.receiver(world.queue("other"))
    updated(world.client(), "q", Status=status)
    for link in (waiting, idle, dead):
        error = client.refusal(link)
        assert error.condition == "com.microsoft:entity-disabled"
        assert f"Status {status}" in str(error.description)
    assert not client.is_detached(other)
    assert client.refusal(client.receiver("q")).condition == "com.microsoft:entity-disabled"
    assert updated(client, "q", Status="Active")["status"] == "Active"
    assert not client.receiver("q").refused


def test_what_is_granted_to_a_closed_receiver_goes_back(world: World, client: Client) -> None:
    sender, receiver = client.sender(world.queue("q")), client.receiver("q")
    world.store_of("q").host.delay_ms = 20.0
    client.send_raw(sender, message(b"on its way"))
    receiver.grant(1)
    world.wait(1)
    world.broker.update("q", {"Status": "ReceiveDisabled"})
    world.wait()
    assert client.deliveries(receiver) == []
    updated(client, "q", Status="Active")
    (delivery,) = client.receive(client.receiver("q"), 1)
    assert (body_of(delivery), IncomingMessage(delivery.payload).delivery_count) == (b"on its way", 0)


@pytest.mark.parametrize("status", ["Disabled", "SendDisabled"])
def test_a_queue_that_is_closed_for_senders_rejects_what_they_send(world: World, client: Client, status: str) -> None:
    sender = client.sender(world.queue("q"))
    updated(client, "q", Status=status)
    (state,) = client.send(sender, message())
    assert condition(state) == "com.microsoft:entity-disabled"
    assert client.refusal(client.sender("q")).condition == "com.microsoft:entity-disabled"
    updated(client, "q", Status="Active")
    assert client.send(sender, message()) == [ACCEPTED]


def test_receivers_of_a_queue_that_only_takes_no_messages_go_on(world: World, client: Client) -> None:
    client.send(client.sender(world.queue("q")), message(b"stored before"))
    receiver = client.receiver("q")
    updated(client, "q", Status="SendDisabled")
    (delivery,) = client.receive(receiver, 1)
    assert body_of(delivery) == b"stored before"


def test_receivers_of_a_deleted_queue_end_at_once(world: World, client: Client) -> None:
    receiver = client.receiver(world.queue("q"))
    receiver.grant(1)
    world.wait()
    world.broker.delete("q")
    world.carry()
    assert client.refusal(receiver).condition == "amqp:not-found"


@pytest.mark.row("C18")
@pytest.mark.parametrize("partitioned", [False, True])
def test_a_lock_duration_holds_from_the_update_on(world: World, client: Client, partitioned: bool) -> None:
    world.queue("q", EnablePartitioning=partitioned)
    client.send(client.sender("q"), message(), message())
    assert locked_for_ms(client, "q") == 60_000
    updated(client, "q", LockDuration="PT5S")
    assert locked_for_ms(client, "q") == 5_000


@pytest.mark.row("C18")
def test_an_update_reaches_partitions_that_nobody_has_asked_for_yet(world: World, client: Client) -> None:
    world.queue("q")
    updated(client, "q", LockDuration="PT5M")
    client.send(client.sender("q"), message())
    assert locked_for_ms(client, "q") == 300_000


@pytest.mark.row("P21")
def test_a_full_partition_refuses_with_the_quota(world: World, client: Client) -> None:
    sender = client.sender(world.queue("q"))
    assert client.send(sender, message(bytes(1_000))) == [ACCEPTED]
    (partition,) = world.broker.entity("q").route.partitions
    partition.options = replace(partition.options, size_bytes_max=1_000)
    (state,) = client.send(sender, message())
    assert isinstance(state, Rejected)
    assert condition(state) == "amqp:resource-limit-exceeded"
    assert state.error is not None
    assert "raise MaxSizeInMegabytes" in str(state.error.description)


@pytest.mark.row("P21")
def test_the_size_of_a_queue_is_that_of_each_of_its_partitions(world: World, client: Client) -> None:
    world.queue("q", EnablePartitioning=True, MaxSizeInMegabytes=2048)
    partitions = world.broker.entity("q").route.partitions
    assert {partition.options.size_bytes_max for partition in partitions} == {2048 << 20}
    updated(client, "q", MaxSizeInMegabytes=5120)
    assert {partition.options.size_bytes_max for partition in partitions} == {5120 << 20}


def test_a_largest_message_may_change(world: World, client: Client) -> None:
    world.become(NamespaceOptions(limits={"message_kb": 512}))
    sender = client.sender(world.queue("q", MaxMessageSizeInKilobytes=512))
    assert client.send(sender, message(bytes(300 * 1024))) == [ACCEPTED]
    updated(client, "q", MaxMessageSizeInKilobytes=256)
    (state,) = client.send(sender, message(bytes(300 * 1024)))
    assert condition(state) == "amqp:link:message-size-exceeded"


def test_a_queue_that_was_made_again_with_sessions_refuses_what_the_link_sent_before(
    world: World, client: Client
) -> None:
    """The link knows the form of its last messages, which is not checked again for each of them."""
    sender = client.sender(world.queue("q"))
    assert client.send(sender, *[message()] * 4) == [ACCEPTED] * 4
    world.broker.delete("q")
    world.carry()
    world.queue("q", RequiresSession=True)
    assert [condition(state) for state in client.send(sender, message())] == ["amqp:not-allowed"]


def test_receivers_of_the_only_partition_attach_again_when_there_may_be_others(world: World, client: Client) -> None:
    world.queue("q", RequiresSession=True, PartibusElasticPartitions=0)
    waiting, idle = client.receiver("q/$DeadLetterQueue"), client.receiver("q/$DeadLetterQueue")
    waiting.grant(5)
    updated(world.client(), "q", MaxDeliveryCount=3)
    assert not any(map(client.is_detached, (waiting, idle)))
    updated(world.client(), "q", PartibusElasticPartitions=4)
    for link in (waiting, idle):
        assert client.refusal(link).condition == "amqp:link:detach-forced"
    client.receiver("q/$DeadLetterQueue").grant(1)
    updated(world.client(), "q", MaxDeliveryCount=4)
    assert sum(isinstance(event, Detached) for event in client.events) == 2
