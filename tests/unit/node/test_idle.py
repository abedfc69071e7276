"""Idle queues: what counts as use, and when a queue goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from partibus.amqp.codec.types import Int
from partibus.client.messages import OutgoingMessage
from partibus.errors import StoreUnavailable
from partibus.filters.model import Rule, TrueFilter
from partibus.node.idle import IdleQueues
from tests.unit.frontends.harness import World, message

MINUTE_MS = 60_000
IDLE_MS = 10 * MINUTE_MS

Use = Callable[[World], None]


class IdleWorld(World):
    """A broker that looks for idle queues once a minute."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.idle = IdleQueues(self.namespaces, self.timeline)

    def pass_time(self, ms: int) -> None:
        for _ in range(ms // MINUTE_MS):
            self.wait(MINUTE_MS - 1_000)
            self.idle.check()
            self.wait(1_000)

    def has(self, name: str) -> bool:
        return self.namespace.find(name) is not None


@pytest.fixture
def world(tmp_path: Path) -> IdleWorld:
    return IdleWorld(tmp_path)


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_queue_that_nobody_uses_goes_with_its_messages(world: IdleWorld, partitioned: bool) -> None:
    world.queue("q", AutoDeleteOnIdle="PT10M", EnablePartitioning=partitioned)
    world.queue("stays", EnablePartitioning=partitioned)
    client = world.client()
    client.send(client.sender("q"), message())
    world.pass_time(IDLE_MS - MINUTE_MS)
    assert world.has("q")
    world.pass_time(3 * MINUTE_MS)
    assert not world.has("q")
    assert world.has("stays")
    world.queue("q", EnablePartitioning=partitioned)
    assert client.receive(client.receiver("q"), 1) == []


def send(world: World) -> None:
    client = world.client()
    client.send(client.sender("q"), message())
    client.lose()


def receive_nothing(world: World) -> None:
    client = world.client()
    client.receive(client.receiver("q"), 1)
    client.lose()


def receive_dead_letters(world: World) -> None:
    client = world.client()
    client.receive(client.receiver("q/$DeadLetterQueue"), 1)
    client.lose()


def peek(world: World) -> None:
    body = {"from-sequence-number": 0, "message-count": Int(1)}
    client = world.client()
    client.request("q/$management", "com.microsoft:peek-message", body)
    client.lose()


def update(world: World) -> None:
    world.broker.update("q", {"UserMetadata": "changed"})


@pytest.mark.parametrize("use", [send, receive_nothing, receive_dead_letters, peek, update])
def test_use_puts_the_end_off(world: IdleWorld, use: Use) -> None:
    world.queue("q", AutoDeleteOnIdle="PT10M")
    world.pass_time(IDLE_MS - 2 * MINUTE_MS)
    use(world)
    world.pass_time(IDLE_MS - MINUTE_MS)
    assert world.has("q")
    world.pass_time(3 * MINUTE_MS)
    assert not world.has("q")


def look_at_it(world: World) -> None:
    world.client().request("$management", "partibus:get-entity", {"name": "q"})


def list_all(world: World) -> None:
    world.client().request("$management", "partibus:list-entities", {})


@pytest.mark.parametrize("look", [look_at_it, list_all])
def test_looking_at_counts_is_no_use(world: IdleWorld, look: Use) -> None:
    world.queue("q", AutoDeleteOnIdle="PT10M")
    world.pass_time(IDLE_MS - 2 * MINUTE_MS)
    look(world)
    world.pass_time(3 * MINUTE_MS)
    assert not world.has("q")


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_receiver_that_waits_keeps_the_queue(world: IdleWorld, partitioned: bool) -> None:
    client = world.client()
    link = client.receiver(world.queue("q", AutoDeleteOnIdle="PT10M", EnablePartitioning=partitioned))
    link.grant(1)
    world.pass_time(3 * IDLE_MS)
    assert world.has("q")
    link.drain()
    world.pass_time(IDLE_MS + 2 * MINUTE_MS)
    assert not world.has("q")
    assert client.refusal(link).condition == "amqp:not-found"


def test_a_scheduled_message_keeps_the_queue_until_it_is_idle_again(world: IdleWorld) -> None:
    client = world.client()
    sender = client.sender(world.queue("q", AutoDeleteOnIdle="PT10M"))
    due_ms = world.timeline.now_ms() + 2 * IDLE_MS + 5 * MINUTE_MS
    client.send(sender, OutgoingMessage(body=b"later", scheduled_ms=due_ms))
    world.pass_time(2 * IDLE_MS + 14 * MINUTE_MS)
    assert world.has("q"), "active for nine minutes"
    world.pass_time(4 * MINUTE_MS)
    assert not world.has("q")


def test_a_message_that_becomes_active_between_two_looks_counts(world: IdleWorld) -> None:
    client = world.client()
    sender = client.sender(world.queue("q", AutoDeleteOnIdle="PT10M"))
    due_ms = world.timeline.now_ms() + 6 * MINUTE_MS
    client.send(sender, OutgoingMessage(body=b"later", scheduled_ms=due_ms))
    world.pass_time(15 * MINUTE_MS)
    assert world.has("q"), "active for nine minutes"
    world.pass_time(4 * MINUTE_MS)
    assert not world.has("q")


def test_a_queue_whose_store_is_away_stays_until_it_is_back(world: IdleWorld) -> None:
    world.queue("q", AutoDeleteOnIdle="PT10M")
    servant = world.store_of("q")
    servant.runtime.failure = "the disk is away"
    world.pass_time(2 * IDLE_MS)
    assert world.has("q")
    assert world.idle.asking == 0
    servant.runtime.failure = None
    world.pass_time(2 * MINUTE_MS)
    assert not world.has("q")


def test_a_queue_that_could_not_be_deleted_is_tried_again(world: IdleWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise StoreUnavailable("no room for the catalog")

    world.queue("q", AutoDeleteOnIdle="PT10M")
    with monkeypatch.context() as patched:
        patched.setattr(world.broker, "delete", refuse)
        world.pass_time(2 * IDLE_MS)
    assert world.has("q")
    world.pass_time(2 * MINUTE_MS)
    assert not world.has("q")


def test_every_queue_counts_as_used_when_the_broker_starts(world: IdleWorld) -> None:
    world.queue("q", AutoDeleteOnIdle="PT10M")
    world.pass_time(IDLE_MS - 2 * MINUTE_MS)
    world.idle = IdleQueues(world.namespaces, world.timeline)
    world.pass_time(IDLE_MS - MINUTE_MS)
    assert world.has("q")
    world.pass_time(3 * MINUTE_MS)
    assert not world.has("q")


def test_an_update_can_begin_and_end_it(world: IdleWorld) -> None:
    world.queue("q")
    world.queue("kept", AutoDeleteOnIdle="PT10M")
    world.pass_time(2 * IDLE_MS // 3)
    world.broker.update("q", {"AutoDeleteOnIdle": "PT5M"})
    world.broker.update("kept", {"AutoDeleteOnIdle": "P10675199D"})
    world.pass_time(4 * MINUTE_MS)
    assert world.has("q")
    world.pass_time(3 * MINUTE_MS)
    assert not world.has("q")
    world.pass_time(2 * IDLE_MS)
    assert world.has("kept")


def test_only_so_many_go_at_a_time(world: IdleWorld) -> None:
    for number in range(5):
        world.queue(f"q{number}", AutoDeleteOnIdle="PT5M")
    world.wait(5 * MINUTE_MS)
    for left in (3, 1, 0):
        world.idle.check(most=2)
        world.wait()
        assert len(world.namespace) == left


def test_a_clock_that_stands_still_is_exact(world: IdleWorld) -> None:
    """Note before each move, and check after it, as when the clock is moved by hand."""
    world.queue("q", AutoDeleteOnIdle="PT10M")
    send(world)
    world.idle.note()
    world.timeline.time_ms += IDLE_MS - 1
    world.idle.check()
    world.wait(0)
    assert world.has("q")
    world.idle.note()
    world.timeline.time_ms += 1
    world.idle.check()
    assert world.idle.asking == 0
    assert not world.has("q")


def topic(world: IdleWorld, *, topic_idle: str = "P1D", subscription_idle: str = "P1D") -> None:
    world.broker.create_topic("t", {"AutoDeleteOnIdle": topic_idle, "EnablePartitioning": True})
    world.broker.create_subscription("t", "s", {"AutoDeleteOnIdle": subscription_idle})
    world.broker.create_subscription("t", "stays", {})


def publish(world: World) -> None:
    client = world.client()
    client.send(client.sender("t"), message())
    client.lose()


def take(world: World) -> None:
    client = world.client()
    assert client.receive(client.receiver("t/Subscriptions/s"), 1)
    client.lose()


def add_rule(world: World) -> None:
    world.broker.create_rule("t/Subscriptions/s", Rule("r", TrueFilter()))


def test_a_topic_that_nobody_publishes_to_goes_with_its_subscriptions(world: IdleWorld) -> None:
    topic(world, topic_idle="PT10M", subscription_idle="PT10M")
    for _ in range(3):
        world.pass_time(IDLE_MS - 2 * MINUTE_MS)
        assert world.has("t")
        publish(world)
        take(world)
    world.pass_time(IDLE_MS - 2 * MINUTE_MS)
    add_rule(world)
    assert world.has("t")
    world.pass_time(3 * MINUTE_MS)
    assert [queue.name for queue in world.namespace] == []
    assert world.idle.asking == 0


@pytest.mark.parametrize("use", [take, add_rule])
def test_a_subscription_is_kept_by_receivers_and_rules_and_not_by_its_topic(world: IdleWorld, use: Use) -> None:
    topic(world, subscription_idle="PT10M")
    publish(world)
    world.pass_time(IDLE_MS - 2 * MINUTE_MS)
    use(world)
    for _ in range(2):
        world.pass_time(IDLE_MS // 2 - MINUTE_MS)
        publish(world)
    assert world.has("t/Subscriptions/s")
    world.pass_time(4 * MINUTE_MS)
    assert [queue.name for queue in world.namespace] == ["t", "t/Subscriptions/stays"]
    publish(world)
    client = world.client()
    assert len(client.receive(client.receiver("t/Subscriptions/stays"), 10)) == 4


def test_a_subscription_without_rules_is_deleted_and_a_used_queue_stays(world: IdleWorld) -> None:
    topic(world, subscription_idle="PT10M")
    world.broker.delete_rule("t/Subscriptions/s", "$Default")
    world.queue("used", AutoDeleteOnIdle="PT10M")
    for _ in range(3):
        world.pass_time(IDLE_MS // 2)
        client = world.client()
        client.send(client.sender("used"), message())
        client.lose()
    assert not world.has("t/Subscriptions/s")
    assert world.has("used")


def test_a_look_that_fails_forgets_no_use(world: IdleWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(queue: object) -> bool:
        raise RuntimeError("a look that fails")

    world.queue("q", AutoDeleteOnIdle="PT10M")
    world.pass_time(IDLE_MS - MINUTE_MS)
    send(world)
    world.idle.note()
    with monkeypatch.context() as patched:
        patched.setattr(world.idle, "_is_used", fail)
        with pytest.raises(RuntimeError, match="a look that fails"):
            world.idle.note()
    world.pass_time(2 * MINUTE_MS)
    assert world.has("q")


def publish_elsewhere(world: IdleWorld, name: str) -> None:
    """Send through another broker: nothing of it is noted at this one."""
    client = world.client()
    client.send(client.sender(name.partition("/")[0]), message())
    client.lose()
    for queue in world.namespace:
        world.namespaces.entity_of(queue).route.take_used()


@pytest.mark.parametrize(("name", "stays"), [("q", True), ("t/Subscriptions/s", False)])
def test_a_message_that_another_broker_has_accepted_meanwhile_keeps_the_queue(
    world: IdleWorld, name: str, stays: bool
) -> None:
    world.queue("q", AutoDeleteOnIdle="PT10M")
    topic(world, subscription_idle="PT10M")
    world.wait(IDLE_MS)
    world.idle.watch(world.idle.note())
    world.wait(1_000)
    publish_elsewhere(world, name)
    world.idle.check()
    world.wait(1_000)
    assert world.has(name) == stays
    world.wait(IDLE_MS)
    world.idle.watch(world.idle.note())
    world.wait(1_000)
    world.idle.check()
    world.wait(1_000)
    assert not world.has(name)


class Others:
    """The other brokers: of each answer, the ids of the queues used, or None while one is silent."""

    def __init__(self, world: IdleWorld, *answers: list[int] | None) -> None:
        self._world = world
        self._answers = list(answers)
        self.asked: list[bool] = []
        """Whether a broker asked `surely`."""

    async def used(self, *, surely: bool = False) -> list[int] | None:
        self.asked.append(surely)
        self._world.wait(1_000)
        return self._answers.pop(0)


@pytest.mark.parametrize(
    ("idle_ms", "answers", "asked", "stays"),
    [
        (MINUTE_MS, [[]], [False], True),  # it is not idle
        (IDLE_MS, [None], [False], True),  # another broker deletes idle queues
        (IDLE_MS, [[], None], [False, True], True),  # a broker is silent
        (IDLE_MS, [[], []], [False, True], False),
    ],
)
def test_nothing_is_deleted_before_all_brokers_have_reported_their_use(
    world: IdleWorld, idle_ms: int, answers: list[list[int] | None], asked: list[bool], stays: bool
) -> None:
    world.queue("q", AutoDeleteOnIdle="PT10M")
    world.wait(idle_ms)
    others = Others(world, *answers)
    asyncio.run(world.idle.check_all(others))
    world.wait(1_000)
    assert others.asked == asked
    assert world.has("q") == stays


@pytest.mark.parametrize("report", [0, 1])
def test_use_that_another_broker_reports_keeps_the_queue(world: IdleWorld, report: int) -> None:
    world.queue("q", AutoDeleteOnIdle="PT10M")
    queue = world.namespace.find("q")
    assert queue is not None
    world.wait(IDLE_MS)
    others = Others(world, *([queue.entity_id] if number == report else [] for number in range(2)))
    asyncio.run(world.idle.check_all(others))
    world.wait(1_000)
    assert world.has("q")
