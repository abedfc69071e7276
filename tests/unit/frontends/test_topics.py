"""Topics and subscriptions as links and the namespace's users see them."""

from pathlib import Path

import pytest

from partibus.amqp import ACCEPTED, Modified, Plain, Rejected
from partibus.amqp.section_encoding import encode_batch
from partibus.amqp.sections import BATCH_FORMAT
from partibus.errors import EntityDisabled, EntityNotFound, InvalidOperation
from partibus.filters.model import CorrelationFilter, Rule, SqlFilter
from partibus.namespace.access import Right, SasPolicy
from partibus.namespace.entities import EntityKind
from partibus.partition.protocol.ports import StoreError
from tests.unit.frontends.harness import Client, World, body_of, message
from tests.unit.frontends.node_requests import now_ms, peek, scheduled

PATH = "t/Subscriptions/s"
KEY = "mine-key-of-16-characters"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def client(world: World) -> Client:
    return world.client()


def topology(world: World, *, partitioned: bool = True, **properties: object) -> None:
    world.broker.create_topic("t", {"EnablePartitioning": partitioned})
    world.broker.create_subscription("t", "s", properties)


def bodies(client: Client, path: str, most: int = 50) -> list[bytes]:
    return sorted(body_of(delivery) for delivery in client.receive(client.receiver(path), most))


@pytest.mark.row("C38")
@pytest.mark.parametrize("partitioned", [False, True])
def test_each_subscription_gets_what_its_rules_select(world: World, client: Client, partitioned: bool) -> None:
    topology(world, partitioned=partitioned)
    world.broker.create_subscription("t", "x", {}, rule=Rule("r", CorrelationFilter(label="x")))
    sender = client.sender("t")
    client.send(sender, message(b"1", subject="x"), message(b"2", subject="y"), message(b"3", subject="x"))
    assert bodies(client, "T/subscriptions/S") == [b"1", b"2", b"3"]
    assert bodies(client, "t/Subscriptions/x") == [b"1", b"3"]


def test_a_subscription_made_while_the_topic_is_in_use_gets_what_is_published_then(
    world: World, client: Client
) -> None:
    topology(world, partitioned=False)
    sender = client.sender("t")
    client.send(sender, message(b"1"))
    world.broker.create_subscription("t", "later", {})
    client.send(sender, message(b"2"))
    assert bodies(client, PATH) == [b"1", b"2"]
    assert bodies(client, "t/Subscriptions/later") == [b"2"]


def test_a_rule_that_was_made_holds_for_what_is_published_then(world: World, client: Client) -> None:
    topology(world)
    sender = client.sender("t")
    client.send(sender, message(b"1", subject="x"))
    made = world.broker.create_rule(PATH, Rule("r", SqlFilter("sys.Label = 'y'")))
    world.broker.delete_rule(PATH, "$Default")
    client.send(sender, message(b"2", subject="x"), message(b"3", subject="y"))
    world.broker.replace_rule(PATH, Rule("R", SqlFilter("sys.Label = 'z'")))
    client.send(sender, message(b"4", subject="y"), message(b"5", subject="z"))
    assert bodies(client, PATH) == [b"1", b"3", b"5"]
    assert world.namespace.subscription("t", "s").rule("r").created_ms == made.created_ms


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_topic_goes_with_links_and_rows_of_its_subscriptions(world: World, client: Client, partitioned: bool) -> None:
    topology(world, partitioned=partitioned)
    world.broker.create_subscription("t", "unused", {})
    client.send(client.sender("t"), *[message(b"%d" % number) for number in range(20)])
    link = client.receiver(PATH)
    assert len(client.receive(link, 5)) == 5
    assert any(servant.disk.durable.entries for servant in world.stores)
    world.broker.delete("T")
    client.peer.tick(0.0)
    world.wait(5_000)
    assert client.refusal(link).condition == "amqp:not-found"
    assert len(world.namespace) == 0
    assert world.catalog.dropped_partitions() == []
    tables = [servant.disk.durable for servant in world.stores]
    assert not any(one.entries or one.bodies or one.counts or one.partitions for one in tables)


def test_who_can_not_is_told_why(world: World, client: Client) -> None:
    topology(world, partitioned=False)
    topic, subscription = world.broker.topic("t"), world.broker.entity(PATH)
    with pytest.raises(InvalidOperation, match="Receive from one of its subscriptions"):
        topic.check_receive()
    with pytest.raises(InvalidOperation, match="Send to the topic"):
        subscription.check_send()
    assert client.refusal(client.receiver("t")).condition == "amqp:not-allowed"
    assert client.refusal(client.sender(PATH)).condition == "amqp:not-allowed"
    assert client.refusal(client.receiver("t/Subscriptions/other")).condition == "amqp:not-found"
    world.broker.update("t", {"Status": "SendDisabled"})
    with pytest.raises(EntityDisabled):
        topic.check_send()
    world.broker.update(PATH, {"Status": "ReceiveDisabled"})
    with pytest.raises(EntityDisabled):
        subscription.check_receive()
    world.broker.delete("t")
    for entity in (topic, subscription):
        with pytest.raises(EntityNotFound):
            entity.check_send()


def test_a_store_that_is_away_limits_topic_and_subscription(world: World, client: Client) -> None:
    topology(world)
    topic, subscription = world.broker.entity("t"), world.broker.entity(PATH)
    assert (topic.status(), subscription.status(), topic.away) == ("Available", "Available", [])
    servant = world.store_of(PATH, 3)
    servant.stays_away = True
    servant.fails = StoreError("the disk is away", executed=False)
    sender = client.sender("t")
    for _ in range(16):
        client.send(sender, message())
    assert (topic.status(), subscription.status()) == ("Limited", "Limited")
    assert topic.away == subscription.away == [3]


@pytest.mark.row("P9")
def test_an_update_changes_what_it_names_or_all(world: World) -> None:
    topology(world, RequiresSession=True, MaxDeliveryCount=3, LockDuration="PT5S")
    queue = world.namespace.queue(PATH)
    world.broker.update(PATH, {"MaxDeliveryCount": 4})
    assert (queue.max_delivery_count, queue.lock_duration_ms) == (4, 5_000)
    world.broker.update(PATH, {"MaxDeliveryCount": 5}, whole=True)
    assert (queue.max_delivery_count, queue.lock_duration_ms, queue.requires_session) == (5, 60_000, True)
    assert queue.partitioned
    with pytest.raises(InvalidOperation, match=r"RequiresSession of the subscription '.*' is true for life"):
        world.broker.update(PATH, {"RequiresSession": False}, whole=True)
    with pytest.raises(InvalidOperation, match="'t' is a topic, not a queue"):
        world.broker.update("t", {}, kind=EntityKind.QUEUE)
    with pytest.raises(InvalidOperation, match="is a subscription, not a topic"):
        world.broker.delete(PATH, kind=EntityKind.TOPIC)


def test_a_policy_of_a_deleted_entity_opens_none_that_is_made_again(world: World) -> None:
    world.queue("q")
    world.broker.policies.set("q", SasPolicy("mine", Right.MANAGE, KEY, "other-key-of-16-chars"))
    client = Client(world, Plain("mine", KEY))
    client.open()
    sender = client.sender("q")
    assert client.send(sender, message()) == [ACCEPTED]
    world.broker.delete("q")
    world.queue("q")
    client.peer.check_claims()  # as the server does after each change of policies
    client.send_raw(sender, message(), 1)
    world.wait()
    assert client.refusal(sender).condition == "amqp:unauthorized-access"
    assert client.refusal(client.receiver("q")).condition == "amqp:unauthorized-access"
    assert peek(world.client(), "q") == []


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_batch_of_too_many_copies_is_refused_and_a_run_is_cut(
    world: World, monkeypatch: pytest.MonkeyPatch, partitioned: bool
) -> None:
    for module in ("partition.runtime.topic", "partition.runtime.loading", "frontends.amqp.incoming"):
        monkeypatch.setattr(f"partibus.{module}.COPIES_MAX", 20)
    monkeypatch.setattr("partibus.frontends.amqp.incoming.RUN_MIN", 5)
    world.broker.create_topic("t", {"EnablePartitioning": partitioned})
    for name in ("a", "b"):
        world.broker.create_subscription("t", name, {})
    client = world.client()
    sender = client.sender("t")
    numbers = [b"%02d" % number for number in range(50)]
    bodies = [message(number, partition_key="k") for number in numbers]
    assert client.send(sender, *bodies) == [ACCEPTED] * 50
    for name in ("a", "b"):
        assert [one.body for one in peek(client, f"t/Subscriptions/{name}")] == numbers
    for count, is_refused in ((10, False), (11, True)):
        client.send_raw(sender, encode_batch(bodies[:count]), count, message_format=BATCH_FORMAT)
        world.wait()
        state = client.outcomes(sender)[count]
        assert isinstance(state, Rejected) is is_refused
        if isinstance(state, Rejected):
            assert state.error is not None
            assert state.error.condition == "amqp:resource-limit-exceeded"
            assert "Send it in several parts" in str(state.error.description)
    assert len(peek(client, "t/Subscriptions/a")) == 60


@pytest.mark.parametrize("change", ["key", "rights", "deleted", "unrelated"])
def test_links_end_with_what_they_live_by(world: World, change: str) -> None:
    topology(world, partitioned=False)
    policy = SasPolicy("mine", Right.LISTEN, KEY, "other-key-of-16-chars")
    world.broker.policies.set("t", policy)
    client = Client(world, Plain("mine", KEY))
    client.open()
    link = client.receiver(PATH)
    client.receive(link, 1)
    match change:
        case "key":
            world.broker.policies.regenerate_key("t", "mine")
        case "rights":
            world.broker.policies.set("t", SasPolicy("mine", Right.SEND, KEY, "other-key-of-16-chars"))
        case "deleted":
            world.broker.policies.delete("t", "mine")
        case "unrelated":
            world.broker.policies.regenerate_key("t", "mine", secondary=True)
    client.peer.tick(0.0)
    world.wait()
    if change == "unrelated":
        assert not client.is_detached(link)
    else:
        assert client.refusal(link).condition == "amqp:unauthorized-access"
    assert client.closed is None


@pytest.mark.parametrize("expression", ["sys.PartitionKey = 'k'", "sys.ScheduledEnqueueTimeUtc IS NOT NULL"])
@pytest.mark.parametrize("forwarded", [False, True])
def test_rules_read_key_and_time_of_a_message_that_was_scheduled(
    world: World, client: Client, expression: str, *, forwarded: bool
) -> None:
    topology(world)
    world.broker.create_subscription("t", "x", {}, rule=Rule("r", SqlFilter(expression)))
    if forwarded:
        world.forward()
        world.queue("q", ForwardTo="t")
    client.send(client.sender("q" if forwarded else "t"), scheduled(now_ms(world) + 60_000, b"1", key="k"))
    world.wait(70_000)
    assert bodies(client, PATH) == bodies(client, "t/Subscriptions/x") == [b"1"]


@pytest.mark.parametrize("updated", [False, True])
def test_the_topics_time_to_live_holds_after_a_delay(world: World, client: Client, *, updated: bool) -> None:
    world.broker.create_topic("t", {} if updated else {"DefaultMessageTimeToLive": "PT1M"})
    world.broker.create_subscription("t", "s", {"PartibusRedeliveryDelay": "PT5S"})
    link = client.receiver(PATH)
    client.send(client.sender("t"), message(b"before"))
    client.settle(link, client.receive(link, 1), ACCEPTED)
    if updated:
        world.broker.update("t", {"DefaultMessageTimeToLive": "PT1M"})
    assert world.broker.entity(PATH).route.partitions[0].options.default_ttl_ms == 60_000
    client.send(client.sender("t"), message(b"1"))
    client.settle(link, client.receive(link, 1), Modified(delivery_failed=True))
    world.wait(10_000)
    (found,) = peek(client, PATH)
    assert found.state == "active"
    world.wait(120_000)
    assert peek(client, PATH) == []
