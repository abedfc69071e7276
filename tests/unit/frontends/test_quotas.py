"""Quotas of messages, batches, sessions and transactions (section 11.2), as the namespace has them at that moment."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from partibus.amqp import ACCEPTED, AmqpError, DeliveryState, Detached, Rejected, Source
from partibus.amqp import Limits as EngineLimits
from partibus.amqp.codec.types import Symbol
from partibus.amqp.section_encoding import encode_application_properties, encode_data, encode_properties
from partibus.namespace.namespace_options import NamespaceOptions
from partibus.namespace.tiers import Tier
from tests.unit.frontends.controller import Controller, error_of, send_in
from tests.unit.frontends.harness import Client, World, body_of, message

KIB = 1024
TOO_LARGE = "amqp:link:message-size-exceeded"
FULL = "amqp:resource-limit-exceeded"
ARGUMENT = "com.microsoft:argument-error"
BATCH_SIZE = Symbol("com.microsoft:max-message-batch-size")
PREMIUM = NamespaceOptions(tier=Tier.PREMIUM)
PARTITIONED_PREMIUM = NamespaceOptions(tier=Tier.PREMIUM, partition_count=4)


@pytest.fixture
def client(world: World) -> Client:
    return world.client()


def refused(state: DeliveryState | None) -> tuple[str, str]:
    """Condition and words of a rejection."""
    assert isinstance(state, Rejected), state
    assert isinstance(state.error, AmqpError)
    return str(state.error.condition), str(state.error.description)


def stored(world: World, queue: str) -> int:
    """Messages of another receiver."""
    client = world.client()
    return len(client.receive(client.receiver(queue, delete=True), 10_000))


def batch(count: int, size: int) -> Iterable[bytes]:
    return (message(bytes(size), message_id=str(number)) for number in range(count))


@pytest.mark.parametrize(
    ("options", "message_bytes", "batch_bytes"),
    [
        (NamespaceOptions(), 256 * KIB, 256 * KIB),
        (PARTITIONED_PREMIUM, 1024 * KIB, 1024 * KIB),
        (PREMIUM, 100 * 1024 * KIB, 1024 * KIB),
    ],
    ids=["standard", "premium in partitions", "premium"],
)
def test_largest_message_and_batch_of_the_tier(
    world: World, options: NamespaceOptions, message_bytes: int, batch_bytes: int
) -> None:
    world.become(options)
    large = {"MaxMessageSizeInKilobytes": message_bytes // KIB} if options is PREMIUM else {}
    world.queue("q", **large)
    client = world.client()
    sender = client.sender("q")
    assert sender.remote_max_message_size == message_bytes
    told = (sender.properties or {}).get(BATCH_SIZE)
    assert told == (batch_bytes if batch_bytes < message_bytes else None)
    if message_bytes <= 1024 * KIB:  # a hundred MiB through this harness take their time: see the next test
        assert client.send(sender, message(bytes(message_bytes - KIB))) == [ACCEPTED]
        (state,) = client.send(sender, message(bytes(message_bytes)))
        assert refused(state)[0] == TOO_LARGE
    half = batch_bytes // 2
    assert client.send_batch(sender, batch(2, half - KIB)) is ACCEPTED
    condition, words = refused(client.send_batch(sender, batch(2, half + 2 * KIB)))  # over the leeway, too
    assert condition == TOO_LARGE
    if batch_bytes < message_bytes:
        assert f"is over the {batch_bytes} bytes that 'q' takes. Send less in one batch" in words
    assert stored(world, "q") == 2 + (message_bytes <= 1024 * KIB)


def test_a_message_may_be_larger_than_all_that_a_connection_holds_otherwise(world: World) -> None:
    """Which is 2 MiB."""
    world.become(PREMIUM)
    world.queue("q", MaxMessageSizeInKilobytes=20 * 1024)
    client = world.client(limits=EngineLimits(max_message_size=32 << 20, partial_bytes_max=64 << 20))
    senders = [client.sender("q") for _ in range(2)]
    bodies = [bytes([number]) * (19 * 1024 * KIB) for number in range(2)]
    start = len(client.events)
    for sender, body in zip(senders, bodies, strict=True):
        client.send_raw(sender, message(body), 0)
    world.wait()
    for sender in senders:
        assert client.outcomes(sender, start) == {0: ACCEPTED}
    receiver = client.receiver("q")
    assert sorted(body_of(delivery) for delivery in client.receive(receiver, 2)) == bodies


def test_so_many_messages_are_a_batch(world: World, client: Client) -> None:
    world.queue("q")
    sender = client.sender("q")
    assert client.send_batch(sender, batch(4_500, 0)) is ACCEPTED
    condition, words = refused(client.send_batch(sender, batch(4_501, 0)))
    assert (condition, words.startswith("A batch to 'q' is at its quota of 4500 messages.")) == (FULL, True)
    world.become(NamespaceOptions(limits={"batch_messages": 4_501}))
    assert client.send_batch(sender, batch(4_501, 0)) is ACCEPTED, "the same link, the new limit"
    assert stored(world, "q") == 9_001


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"a": "x" * (32 * KIB)}, "property 'a' is '32774 bytes', but must be at most 32768 bytes with its name"),
        ({"x" * (32 * KIB): 1}, "but must be at most 32768 bytes with its name"),
        ({f"p{i}": "x" * (21 * KIB) for i in range(4)}, "properties and headers of a message is '"),
    ],
    ids=["a value", "a name", "all together"],
)
def test_properties_that_are_too_large(world: World, client: Client, properties: dict[str, object], says: str) -> None:
    world.queue("q")
    sender = client.sender("q")
    section = encode_application_properties(properties)
    condition, words = refused(client.send(sender, section + encode_data(b"x"))[0])
    assert condition == ARGUMENT
    assert says in words
    assert refused(client.send_batch(sender, [message(), section + encode_data(b"x")]))[0] == ARGUMENT
    world.become(NamespaceOptions(limits={"property_kb": 64, "properties_kb": 128}))
    assert client.send(sender, section + encode_data(b"x")) == [ACCEPTED]
    assert stored(world, "q") == 1


def test_properties_up_to_the_bounds_are_taken_whatever_the_body(world: World, client: Client) -> None:
    world.queue("q")
    sender = client.sender("q")
    name = "a"
    value = "x" * (32 * KIB - len(name) - 5)  # one byte of type, four of length
    section = encode_application_properties({name: value})
    assert client.send(sender, section + encode_data(bytes(150 * KIB))) == [ACCEPTED]
    header = encode_properties(message_id="m", subject="s" * (40 * KIB))
    condition, words = refused(client.send(sender, header + section + encode_data(b""))[0])
    assert (condition, "properties and headers of a message" in words) == (ARGUMENT, True)


@pytest.mark.parametrize("field", ["message_id", "group_id"])
def test_ids_of_128_characters(world: World, client: Client, field: str) -> None:
    world.queue("q")
    sender = client.sender("q")

    def sent(length: int) -> DeliveryState | None:
        text = "x" * length
        section = encode_properties(message_id=text) if field == "message_id" else encode_properties(group_id=text)
        (state,) = client.send(sender, section + encode_data(b""))
        return state

    assert sent(128) is ACCEPTED
    condition, words = refused(sent(129))
    assert (condition, "must be at most 128 characters long" in words) == (ARGUMENT, True)


def test_messages_of_a_transaction(world: World, client: Client) -> None:
    world.queue("q")
    controller = Controller(client)
    sender = client.sender("q")
    full = controller.declare()
    send_in(client, sender, full, *[message()] * 100)
    controller.commit(full)
    over = controller.declare()
    states = send_in(client, sender, over, *[message()] * 101)
    assert (error_of(states[-1]).condition, stored(world, "q")) == (FULL, 100)
    world.become(NamespaceOptions(limits={"transaction_messages": 2}))
    other = controller.declare()
    states = send_in(client, sender, other, *[message()] * 3)
    assert "quota of 2 messages" in str(error_of(states[-1]).description)


def test_basic_has_no_transactions(world: World, client: Client) -> None:
    world.become(NamespaceOptions(tier=Tier.BASIC))
    controller = Controller(client)
    (event,) = [event for event in client.events if isinstance(event, Detached) and event.link is controller.link]
    assert event.error is not None
    assert event.error.condition == "amqp:not-allowed"
    assert "tier basic has no transactions" in str(event.error.description)


def test_a_sessions_state_is_as_large_as_a_batch(world: World) -> None:
    world.become(NamespaceOptions(limits={"message_kb": 512}))
    world.queue("q", RequiresSession=True, MaxMessageSizeInKilobytes=512)
    client = world.client()
    named = Source("q", filter={Symbol("com.microsoft:session-filter"): "s"})
    assert client.receiver("q", source=named).is_open

    def set_state(size: int) -> object:
        body = {"session-id": "s", "session-state": bytes(size)}
        reply = client.request("q/$management", "com.microsoft:set-session-state", body)
        return reply.application_properties["statusCode"]

    assert set_state(256 * KIB) == 200
    assert set_state(256 * KIB + 1) != 200
