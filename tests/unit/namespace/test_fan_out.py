"""The subscriptions as owners of topics' partitions know them."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from partibus.clock import ManualClock
from partibus.filters.model import CorrelationFilter, Rule, SqlAction, SqlFilter
from partibus.limits import Limits
from partibus.message import Message
from partibus.namespace.catalog import Catalog
from partibus.namespace.entities import EntityDescription, EntityKind, EntityOptions
from partibus.namespace.fan_out import TopicFanOut, TopicSubscribers
from partibus.namespace.namespace import Namespace, Queue
from partibus.node.options import partition_options
from partibus.partition.protocol.options import PartitionOptions
from tests.unit.filters.messages import message


class World:
    """A topic ``t`` whose options are counted when they are made."""

    def __init__(self, catalog: Catalog, *, partitioned: bool = True) -> None:
        self.made = 0
        self.namespace = Namespace(catalog, ManualClock(1_000))
        options = EntityOptions(partitioned=partitioned)
        self.namespace.make(EntityDescription("t", options, EntityKind.TOPIC))
        self.topic = self.namespace.topic("t")
        self.subscribers = TopicSubscribers(self.namespace.topics_by_row, self._options)

    def _options(self, queue: Queue) -> PartitionOptions:
        self.made += 1
        return partition_options(queue, Limits())

    def subscribe(self, name: str, rule: Rule | None = None, **options: object) -> None:
        described = EntityOptions(**options)  # type: ignore[arg-type]
        path = f"t/Subscriptions/{name}"
        self.namespace.make(EntityDescription(path, described, EntityKind.SUBSCRIPTION), rule=rule)

    def row(self, name: str, partition: int = 0) -> int:
        return self.namespace.subscription("t", name).partitions[partition].partition_row

    def shares(self, *messages: Message, partition: int = 0) -> dict[str, list[Message]]:
        """Return the messages by name of the subscription."""
        fan_out = self.subscribers.fan_out(self.topic.partitions[partition].partition_row)
        assert fan_out is not None
        shares = fan_out.plan(messages, 0, 1_000_000).shares
        names = {self.row(one.short_name, partition): one.short_name for one in self.topic.subscriptions}
        return {names[row]: share for row, share in shares.items()}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    catalog = Catalog(tmp_path, 16)
    yield World(catalog)
    catalog.close()


@pytest.mark.row("C38")
def test_each_partition_gives_to_the_rows_beside_it(world: World) -> None:
    world.subscribe("b", Rule("r", CorrelationFilter(label="x")))
    world.subscribe("a")
    one, other = message(subject="x"), message(subject="y")
    for partition in (0, 15):
        assert world.shares(one, other, partition=partition) == {"a": [one, other], "b": [one]}
    fan_out = world.subscribers.fan_out(world.topic.partitions[7].partition_row)
    assert fan_out is not None
    assert list(fan_out.rows) == [world.row("a", 7), world.row("b", 7)]


def test_an_action_changes_a_copy_and_a_failure_is_told_by_its_row(world: World) -> None:
    world.subscribe("changed", Rule("r", SqlFilter("a = 1"), SqlAction("SET b = 2")))
    world.subscribe("failing", Rule("r", SqlFilter("a / 0 = 1")))
    world.subscribe("careless", Rule("r", SqlFilter("a / 0 = 1")), dead_lettering_on_filter_exceptions=False)
    sent = message({"a": 1})
    fan_out = world.subscribers.fan_out(world.topic.partitions[0].partition_row)
    assert fan_out is not None
    plan = fan_out.plan([sent], 0, 1_000_000)
    (copy,) = plan.shares[world.row("changed")]
    assert copy is not sent
    assert [(one.row, one.message) for one in plan.unfiltered] == [(world.row("failing"), sent)]


def test_a_change_counts_for_the_next_message(world: World) -> None:
    sent = message(subject="x")
    assert world.shares(sent) == {}
    world.subscribe("s", Rule("r", CorrelationFilter(label="y")))
    assert world.shares(sent) == {}
    world.namespace.add_rule("t/Subscriptions/s", Rule("more", CorrelationFilter(label="x")))
    assert world.shares(sent) == {"s": [sent]}
    world.namespace.delete_rule("t/Subscriptions/s", "more")
    assert world.shares(sent) == {}
    world.namespace.replace_rule("t/Subscriptions/s", Rule("r", SqlFilter("sys.Label = 'x'")))
    assert world.shares(sent) == {"s": [sent]}
    world.namespace.delete("t/Subscriptions/s")
    assert world.shares(sent) == {}


def test_options_are_the_same_object_until_the_subscription_is_updated(world: World) -> None:
    world.subscribe("a", lock_duration_ms=5_000)
    world.subscribe("b")
    rows = world.topic.partitions[0].partition_row, world.topic.partitions[1].partition_row

    def options(name: str, partition: int) -> PartitionOptions:
        fan_out = world.subscribers.fan_out(rows[partition])
        assert fan_out is not None
        return fan_out.options_of(world.row(name, partition))

    before = options("a", 0)
    assert (before.lock_duration_ms, before.topic, before.size_bytes_max) == (5_000, False, None)
    assert options("a", 1) is before
    world.namespace.add_rule("t/Subscriptions/a", Rule("r", SqlFilter("x = 1")))
    world.namespace.update("t/Subscriptions/b", EntityOptions(max_delivery_count=3))
    assert options("a", 1) is before
    assert options("b", 0).max_delivery_count == 3
    assert world.made == 2


def test_nothing_is_made_until_it_is_needed(world: World) -> None:
    for number in range(3):
        world.subscribe(f"s{number}")
    row = world.topic.partitions[0].partition_row
    fan_out = world.subscribers.fan_out(row)
    assert fan_out is not None
    assert world.subscribers.fan_out(row) is fan_out
    fan_out.plan([message()], 0, 1_000_000)
    assert world.made == 0, "options of a partition that nobody loads"


def test_what_is_no_topic_any_more_has_no_subscribers(world: World) -> None:
    row = world.topic.partitions[0].partition_row
    queue = world.namespace.create("q")
    assert world.subscribers.fan_out(queue.partitions[0].partition_row) is None
    assert world.subscribers.fan_out(row) is not None
    world.namespace.delete("t")
    assert world.subscribers.fan_out(row) is None


def test_compiled_rules_end_with_their_topic(world: World) -> None:
    world.subscribe("s", Rule("r", SqlFilter("a = 1")))
    before = fan_outs()
    world.shares(message({"a": 1}))
    assert fan_outs() == before + 1
    del world.topic
    world.namespace.delete("t")
    assert fan_outs() == before


def fan_outs() -> int:
    """Count the fan-outs in memory."""
    gc.collect()
    return sum(isinstance(one, TopicFanOut) for one in gc.get_objects())
