"""Topics and subscriptions in memory: what is found, what changes, what other brokers have changed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from partibus.clock import ManualClock
from partibus.errors import ArgumentError, EntityChanged, EntityNotFound, InvalidOperation
from partibus.filters.model import CorrelationFilter, Rule, SqlAction, SqlFilter, TrueFilter
from partibus.namespace.catalog import Catalog
from partibus.namespace.entities import EntityDescription, EntityKind, EntityOptions, EntityStatus, SqsOptions
from partibus.namespace.namespace import Namespace, Queue, Subscription, Topic
from tests.unit.namespace.tiered import limited

PATH = "T/Subscriptions/S"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    catalog = Catalog(tmp_path, 16)
    yield catalog
    catalog.close()


@pytest.fixture
def namespace(catalog: Catalog, clock: ManualClock) -> Namespace:
    return Namespace(catalog, clock)


@pytest.fixture
def elsewhere(catalog: Catalog, clock: ManualClock, namespace: Namespace) -> Namespace:
    """The memory of another broker over the same catalog."""
    return Namespace(catalog, clock)


def topic(namespace: Namespace, name: str = "T", **options: object) -> Topic:
    made = namespace.make(EntityDescription(name, EntityOptions(**options), EntityKind.TOPIC))  # type: ignore[arg-type]
    assert isinstance(made, Topic)
    return made


def subscription(namespace: Namespace, path: str = PATH, rule: Rule | None = None, **options: object) -> Subscription:
    described = EntityDescription(path, EntityOptions(**options), EntityKind.SUBSCRIPTION)  # type: ignore[arg-type]
    made = namespace.make(described, rule=rule)
    assert isinstance(made, Subscription)
    return made


def shape(namespace: Namespace) -> list[object]:
    return [
        (one.name, one.kind, one.entity_id, one.partitions, one.description, one.updated_ms, one.policies)
        + ((one.topic.entity_id, one.rules) if isinstance(one, Subscription) else ())
        for one in namespace
    ]


def test_entities_are_found_by_path_and_kind(namespace: Namespace) -> None:
    queue, made = namespace.create("q"), topic(namespace)
    own = subscription(namespace)
    assert namespace.entity("t/subscriptions/s") is namespace.queue(PATH) is namespace.subscription("t", "s") is own
    assert namespace.entity("t") is namespace.topic("T") is own.topic is made
    assert (own.name, own.short_name, made.subscription("S")) == (PATH, "S", own)
    assert (namespace.queues, namespace.topics, made.subscriptions) == ([queue], [made], [own])
    assert list(namespace) == [queue, made, own]
    with pytest.raises(EntityNotFound):
        namespace.topic("q")
    with pytest.raises(EntityNotFound):
        namespace.queue("t")
    with pytest.raises(EntityNotFound, match="'T/Subscriptions/x'"):
        made.subscription("x")


def test_a_topic_takes_and_a_subscription_gives(catalog: Catalog, namespace: Namespace) -> None:
    limited(catalog, message_kb=1024)
    made = topic(namespace, max_message_size_kb=512, max_size_mb=2048)
    own = subscription(namespace, max_delivery_count=3)
    assert (made.can_send, made.can_receive, own.can_send, own.can_receive) == (True, False, False, True)
    assert (own.message_size_max_bytes, own.partition_size_max_bytes) == (512 * 1024, None)
    namespace.update("t", EntityOptions(max_message_size_kb=1024, status=EntityStatus.DISABLED))
    assert (own.message_size_max_bytes, made.can_send, own.can_receive) == (1024 * 1024, False, True)


def test_a_subscription_begins_with_a_rule(namespace: Namespace) -> None:
    made = topic(namespace)
    assert subscription(namespace).rules == (Rule("$Default", TrueFilter(), created_ms=1_000),)
    own = subscription(namespace, "t/Subscriptions/other", Rule("mine", CorrelationFilter(label="x")))
    assert own.rules == (Rule("mine", CorrelationFilter(label="x"), created_ms=1_000),)
    assert (made.sql_filter_count, made.correlation_filter_count) == (1, 1)


def test_every_change_of_rules_is_another_version(namespace: Namespace, clock: ManualClock) -> None:
    made = topic(namespace)
    own = subscription(namespace)
    versions = [made.version]
    clock.advance(500)
    added = namespace.add_rule(PATH, Rule("a", SqlFilter("a = 1"), SqlAction("SET b = 2")))
    versions.append(made.version)
    assert (added.created_ms, own.rule("A"), own.touched_ms) == (1_500, added, 1_500)
    replaced = namespace.replace_rule(PATH, Rule("A", SqlFilter("a = 1.0")))
    versions.append(made.version)
    assert own.rules == (Rule("$Default", TrueFilter(), created_ms=1_000), replaced)
    assert (replaced.name, replaced.created_ms) == ("a", 1_500)
    namespace.delete_rule(PATH, "$default")
    versions.append(made.version)
    namespace.update(PATH, EntityOptions(lock_duration_ms=5_000))
    versions.append(made.version)
    namespace.delete(PATH)
    versions.append(made.version)
    assert versions == sorted(set(versions))


@pytest.mark.parametrize(
    "rule",
    [
        Rule("r", SqlFilter("a =")),
        Rule("r", TrueFilter(), SqlAction("SET sys.Nothing = 1")),
        Rule("r", CorrelationFilter()),
        Rule("a/b", TrueFilter()),
        Rule("x" * 51, TrueFilter()),
        Rule("$other", TrueFilter()),
    ],
)
def test_what_can_be_no_rule_is_refused_and_changes_nothing(namespace: Namespace, rule: Rule) -> None:
    made = topic(namespace)
    before = subscription(namespace).rules, made.version
    for attempt in (
        lambda: namespace.add_rule(PATH, rule),
        lambda: subscription(namespace, "T/Subscriptions/new", rule),
    ):
        with pytest.raises(ArgumentError):
            attempt()
    assert (namespace.subscription("t", "s").rules, made.version) == before
    assert len(made.subscriptions) == 1


def test_a_topic_is_deleted_with_its_subscriptions(namespace: Namespace) -> None:
    made, own = topic(namespace), subscription(namespace)
    row = made.partitions[0].partition_row
    assert namespace.topics_by_row[row] == (made, 0)
    assert namespace.delete("t") == [made, own]
    assert (made.deleted, own.deleted, len(namespace), namespace.topics_by_row) == (True, True, 0, {})


def test_an_update_of_what_was_changed_in_between_is_refused(namespace: Namespace) -> None:
    queue = namespace.create("q")
    seen = queue.updated_ms
    namespace.change("q", lambda options: options, updated_ms=seen)
    with pytest.raises(EntityChanged, match="'q' was changed in between"):
        namespace.change("q", lambda _: EntityOptions(max_delivery_count=1), updated_ms=seen)
    assert queue.max_delivery_count == 10


def test_a_restart_finds_the_same(namespace: Namespace, catalog: Catalog, clock: ManualClock) -> None:
    topic(namespace, partitioned=True)
    subscription(namespace, rule=Rule("r", SqlFilter("a = 1")))
    namespace.create("q")
    assert shape(Namespace(catalog, clock)) == shape(namespace)


def test_other_brokers_follow_every_change(namespace: Namespace, elsewhere: Namespace) -> None:
    def both(path: str) -> None:
        elsewhere.follow(path)
        assert shape(elsewhere) == shape(namespace)
        assert elsewhere.follow(path) == ([], None), "idempotent"

    topic(namespace, partitioned=True)
    both("T")
    subscription(namespace)
    both(PATH)
    namespace.add_rule(PATH, Rule("r", SqlFilter("a = 1")))
    both(PATH)
    before = elsewhere.topic("t").version
    namespace.replace_rule(PATH, Rule("r", SqlFilter("a = 1", {"@x": 1})))
    both(PATH)
    namespace.replace_rule(PATH, Rule("r", SqlFilter("a = 1", {"@x": True})))
    both(PATH)
    assert elsewhere.topic("t").version >= before + 2, "types count"
    namespace.update(PATH, EntityOptions(max_delivery_count=3))
    both(PATH)
    namespace.delete(PATH)
    both(PATH)
    subscription(namespace)
    both(PATH)
    namespace.delete("T")
    both("T")


def test_what_is_followed_late_or_out_of_order_is_right_all_the_same(
    namespace: Namespace, elsewhere: Namespace
) -> None:
    topic(namespace)
    subscription(namespace)
    elsewhere.follow(PATH)
    assert shape(elsewhere) == shape(namespace)
    held = elsewhere.topic("T"), elsewhere.subscription("T", "S")
    namespace.delete("T")
    topic(namespace)
    subscription(namespace)
    assert elsewhere.follow(PATH).gone == list(held)
    assert all(one.deleted for one in held)
    assert shape(elsewhere) == shape(namespace)


def test_a_topic_that_others_have_changed_is_deleted_whole(namespace: Namespace, elsewhere: Namespace) -> None:
    topic(namespace)
    elsewhere.follow("T")
    subscription(namespace)
    assert [gone.name for gone in elsewhere.delete("T")] == ["T", PATH]
    assert len(elsewhere) == 0


@pytest.mark.row("F2")
def test_a_target_keeps_the_spelling_of_its_client(namespace: Namespace) -> None:
    namespace.create("Target/One")
    topic(namespace)
    queue = namespace.create("q", EntityOptions(forward_to="target/one", forward_dead_lettered_to="t"))
    assert (queue.forward_to, queue.forward_dead_lettered_to) == ("target/one", "t")
    namespace.update("q", EntityOptions())
    assert (queue.forward_to, queue.forward_dead_lettered_to) == (None, None)


def test_a_target_exists_when_it_is_set_and_may_go_later(namespace: Namespace) -> None:
    with pytest.raises(ArgumentError, match=r"ForwardTo is 'gone', but must be an existing queue or topic\. Create it"):
        namespace.create("q", EntityOptions(forward_to="gone"))
    assert namespace.find("q") is None
    namespace.create("gone")
    namespace.create("q", EntityOptions(forward_to="gone"))
    namespace.delete("gone")
    assert namespace.update("q", EntityOptions(forward_to="gone", max_delivery_count=3)).max_delivery_count == 3
    with pytest.raises(ArgumentError, match="ForwardDeadLetteredMessagesTo is 'gone'"):
        namespace.update("q", EntityOptions(forward_to="gone", forward_dead_lettered_to="gone"))


def chain(namespace: Namespace, *names: str) -> Queue:
    """Queues that forward from the first to the last."""
    made = namespace.create(names[-1])
    for name, target in zip(names[-2::-1], names[:0:-1], strict=True):
        made = namespace.create(name, EntityOptions(forward_to=target))
    return made


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (EntityOptions(forward_to="A"), r"c -> a -> b -> c\."),
        (EntityOptions(forward_dead_lettered_to="b"), r"c -> b -> c\."),
    ],
)
def test_a_way_back_is_refused_with_its_names(namespace: Namespace, last: EntityOptions, words: str) -> None:
    chain(namespace, "a", "b", "c")
    with pytest.raises(InvalidOperation, match=words):
        namespace.update("c", last)
    assert namespace.queue("c").forward_to is None


def test_a_way_back_through_a_topic_is_found(namespace: Namespace) -> None:
    topic(namespace)
    chain(namespace, "a", "b")
    subscription(namespace, forward_to="a")
    with pytest.raises(InvalidOperation, match="b -> T -> T/Subscriptions/S -> a -> b"):
        namespace.update("b", EntityOptions(forward_to="t"))
    subscription(namespace, "T/Subscriptions/other", forward_to="T")
    with pytest.raises(InvalidOperation, match="T/Subscriptions/third -> T"):
        subscription(namespace, "T/Subscriptions/third", forward_to="T")


def test_a_queue_may_forward_to_itself(namespace: Namespace) -> None:
    assert namespace.create("Q", EntityOptions(forward_to="q")).forward_to == "q"
    namespace.create("other")
    both = EntityOptions(forward_to="other", forward_dead_lettered_to="OTHER")
    updated = namespace.update("other", both)
    assert (updated.forward_to, updated.forward_dead_lettered_to) == ("other", "OTHER")


def test_a_subscription_may_forward_to_its_own_topic(namespace: Namespace) -> None:
    topic(namespace)
    assert subscription(namespace, forward_to="T", forward_dead_lettered_to="t").forward_dead_lettered_to == "t"
    with pytest.raises(InvalidOperation, match="T/Subscriptions/other -> T"):
        subscription(namespace, "T/Subscriptions/other", forward_dead_lettered_to="T")


def test_a_name_that_comes_back_closes_no_circle(namespace: Namespace) -> None:
    chain(namespace, "a", "b")
    namespace.delete("b")
    with pytest.raises(InvalidOperation, match="b -> a -> b"):
        namespace.create("b", EntityOptions(forward_to="a"))


def test_a_very_long_chain_is_walked(namespace: Namespace) -> None:
    names = [f"q{number}" for number in range(60)]
    chain(namespace, *names)
    with pytest.raises(InvalidOperation, match=r"q59 -> q0 -> q1 -> .*\(\d+ more\).* -> q58 -> q59"):
        namespace.update("q59", EntityOptions(forward_to="q0"))


def test_a_subscription_without_rules_was_touched_when_it_changed(namespace: Namespace) -> None:
    topic(namespace)
    own = subscription(namespace)
    namespace.delete_rule(PATH, "$default")
    assert (own.rules, own.touched_ms) == ((), own.updated_ms)


def redriving(target: str) -> EntityOptions:
    """Options of a queue of SQS with a redrive policy."""
    return EntityOptions(forward_dead_lettered_to=target, sqs=SqsOptions())


def test_queues_of_sqs_may_be_the_dead_letter_queues_of_each_other(namespace: Namespace) -> None:
    for name, target in (("a", ""), ("b", "a"), ("c", "b")):
        namespace.create(name, redriving(target))
    assert namespace.update("a", redriving("c")).forward_dead_lettered_to == "c"
    namespace.update("b", redriving("b"))
    assert namespace.update("a", redriving("b")).forward_dead_lettered_to == "b"
    assert namespace.update("c", redriving("a")).forward_dead_lettered_to == "a"


def test_a_way_back_that_is_not_of_sqs_alone_is_refused(namespace: Namespace) -> None:
    namespace.create("a", redriving(""))
    namespace.create("b", EntityOptions(forward_dead_lettered_to="a"))
    with pytest.raises(InvalidOperation, match="a -> b -> a"):
        namespace.update("a", redriving("b"))
    namespace.update("b", EntityOptions())
    namespace.update("a", redriving("b"))
    for options in (EntityOptions(forward_dead_lettered_to="a"), EntityOptions(forward_to="a")):
        with pytest.raises(InvalidOperation, match="b -> a -> b"):
            namespace.update("b", options)
    with pytest.raises(InvalidOperation, match="b -> a -> b"):
        namespace.update("b", EntityOptions(forward_to="a", sqs=SqsOptions()))
