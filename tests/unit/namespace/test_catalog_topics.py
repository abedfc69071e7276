"""Topics, subscriptions, rules and policies in the catalog, in a file and on a server."""

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

import pytest

from partibus.clock import ManualClock
from partibus.errors import (
    ArgumentError,
    EntityExists,
    EntityNotFound,
    InvalidOperation,
    QuotaExceeded,
    StoreUnavailable,
)
from partibus.filters.model import CorrelationFilter, FalseFilter, Rule, SqlAction, SqlFilter, TrueFilter
from partibus.namespace import catalog_rows
from partibus.namespace.access import Right, SasPolicy
from partibus.namespace.catalog import Catalog
from partibus.namespace.catalog_database import FORMAT_VERSION, CatalogDatabase
from partibus.namespace.catalog_file import CatalogFile
from partibus.namespace.entities import EntityDescription, EntityKind, EntityOptions
from partibus.namespace.namespace import Namespace, Subscription
from tests.contract.stores import new_catalog
from tests.unit.namespace.tiered import limited

STORES = 16
EVERYTHING = Rule("$Default", TrueFilter(), created_ms=5)
POLICY = SasPolicy("send", Right.SEND, "one", "two", 1, 2)

Open = Callable[[], CatalogDatabase]


@pytest.fixture(params=["file", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    if request.param == "file":
        return lambda: CatalogFile(tmp_path)
    return new_catalog()


@pytest.fixture
def catalog(database: Open) -> Iterator[Catalog]:
    catalog = Catalog(database(), STORES)
    yield catalog
    catalog.close()


def topic(name: str = "t", **options: bool) -> EntityDescription:
    return EntityDescription(name, EntityOptions(**options), EntityKind.TOPIC)  # type: ignore[arg-type]


def subscription(path: str, **options: int) -> EntityDescription:
    return EntityDescription(path, EntityOptions(**options), EntityKind.SUBSCRIPTION)  # type: ignore[arg-type]


def test_everything_is_there_after_reopening_as_it_was_made(catalog: Catalog, database: Open) -> None:
    rules = [
        Rule("a", CorrelationFilter(label="x", properties={"n": 1, "m": 1.5}), SqlAction("SET a = 1"), 7),
        Rule("B", SqlFilter("a = @b", {"@b": True}), created_ms=8),
    ]
    made = [
        catalog.create(topic("T", partitioned=True), 1_000, policies=[POLICY]),
        catalog.create(subscription("T/Subscriptions/S", max_delivery_count=3), 2_000, rules=rules),
    ]
    catalog.close()
    catalog = Catalog(database(), STORES)
    assert catalog.list_entities() == made
    assert [catalog.get("t"), catalog.get("t/subscriptions/s")] == made
    assert made[0].policies == (POLICY,)
    assert list(made[1].rules) == rules
    assert [type(value) for value in made[1].rules[0].filter.properties.values()] == [int, float]  # type: ignore[union-attr]
    assert [record.description.kind for record in made] == [EntityKind.TOPIC, EntityKind.SUBSCRIPTION]
    catalog.close()


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_subscription_lies_beside_its_topic(catalog: Catalog, partitioned: bool) -> None:
    catalog.create(EntityDescription("q"), 0)
    of_topic = catalog.create(topic(partitioned=partitioned), 0)
    own = catalog.create(subscription("t/Subscriptions/s"), 0)
    assert [(place.partition_no, place.store_no) for place in own.placements] == [
        (place.partition_no, place.store_no) for place in of_topic.placements
    ]
    assert not {place.partition_row for place in own.placements} & {
        place.partition_row for place in of_topic.placements
    }
    assert own.description.options.partitioned is partitioned
    assert catalog.create(EntityDescription("r"), 0).placements[0].store_no == 2, "a subscription takes no turn"


def test_names_are_shared_and_subscriptions_have_their_topics(catalog: Catalog) -> None:
    catalog.create(topic("a"), 0)
    catalog.create(topic("b"), 0)
    for name in ("a", "b"):
        catalog.create(subscription(f"{name}/Subscriptions/s"), 0)
    with pytest.raises(EntityExists):
        catalog.create(EntityDescription("A"), 0)
    with pytest.raises(EntityExists):
        catalog.create(subscription("A/subscriptions/S"), 0)
    with pytest.raises(EntityNotFound, match="'c'"):
        catalog.create(subscription("c/Subscriptions/s"), 0)
    with pytest.raises(ArgumentError):
        catalog.create(subscription("a/Subscriptions/" + "x" * 51), 0)
    catalog.create(EntityDescription("q"), 0)
    with pytest.raises(InvalidOperation, match="'q' is a queue and has no subscriptions"):
        catalog.create(subscription("q/Subscriptions/s"), 0)


def test_a_subscription_is_called_by_its_topics_own_name(catalog: Catalog) -> None:
    catalog.create(topic("Topic"), 0)
    assert catalog.create(subscription("TOPIC/subscriptions/s"), 0).description.name == "Topic/Subscriptions/s"


def test_a_subscription_needs_all_stores_of_its_topic(catalog: Catalog) -> None:
    placed = catalog.create(topic(), 0).placements[0].store_no
    with pytest.raises(StoreUnavailable, match="Nothing was made"):
        catalog.create(subscription("t/Subscriptions/s"), 0, frozenset({placed}))
    assert catalog.create(subscription("t/Subscriptions/s"), 0, frozenset({placed + 1})).placements


def test_a_topic_goes_with_all_that_it_has(catalog: Catalog) -> None:
    made = [
        catalog.create(topic(partitioned=True), 0, policies=[POLICY]),
        catalog.create(subscription("t/Subscriptions/a"), 0, rules=[EVERYTHING]),
        catalog.create(subscription("t/Subscriptions/b"), 0, rules=[EVERYTHING]),
    ]
    kept = catalog.create(topic("u"), 0)
    kept_too = catalog.create(subscription("u/Subscriptions/a"), 0, rules=[EVERYTHING])
    assert catalog.delete("T") == made
    assert catalog.list_entities() == [kept, kept_too]
    assert catalog.dropped_partitions() == [
        (place.partition_row, place.store_no) for record in made for place in record.placements
    ]
    again = catalog.create(topic(), 0)
    assert (catalog.subscriptions_of(again), again.policies) == ([], ())


def test_one_subscription_goes_alone(catalog: Catalog) -> None:
    kept = catalog.create(topic(), 0)
    gone = catalog.create(subscription("t/Subscriptions/a"), 0, rules=[EVERYTHING])
    assert catalog.delete("t/subscriptions/A") == [gone]
    assert catalog.list_entities() == [kept]
    assert catalog.create(subscription("t/Subscriptions/a"), 0).rules == ()


def test_rules_are_added_replaced_and_removed(catalog: Catalog) -> None:
    catalog.create(topic(), 0)
    path = "t/Subscriptions/s"
    catalog.create(subscription(path), 0, rules=[EVERYTHING])
    first = Rule("First", SqlFilter("a = 1"), created_ms=10)
    assert catalog.add_rule(path, first).rules == (EVERYTHING, first)
    with pytest.raises(EntityExists, match="t/Subscriptions/s/Rules/FIRST"):
        catalog.add_rule(path, Rule("FIRST", FalseFilter()))
    replaced = catalog.replace_rule(path, Rule("FIRST", FalseFilter(), created_ms=99)).rules[1]
    assert replaced == Rule("First", FalseFilter(), created_ms=10)
    with pytest.raises(EntityNotFound, match="s/Rules/other"):
        catalog.replace_rule(path, Rule("other", FalseFilter()))
    assert catalog.remove_rule(path, "$default").rules == (replaced,)
    with pytest.raises(EntityNotFound, match="s/Rules/\\$Default"):
        catalog.remove_rule(path, "$Default")
    assert catalog.get(path).rules == (replaced,)
    with pytest.raises(InvalidOperation, match="'t' is a topic and has no rules"):
        catalog.add_rule("t", first)


def test_a_rule_that_is_refused_leaves_the_old_one(database: Open) -> None:
    catalog = limited(Catalog(database(), STORES), sql_filters=1, correlation_filters=1)
    catalog.create(topic(), 0)
    path = "t/Subscriptions/s"
    sql, correlation = Rule("a", SqlFilter("a = 1")), Rule("b", CorrelationFilter(label="x"))
    catalog.create(subscription(path), 0, rules=[sql, correlation])
    with pytest.raises(QuotaExceeded, match="quota of 1 SQL filters"):
        catalog.replace_rule(path, Rule("b", TrueFilter()))
    with pytest.raises(QuotaExceeded, match="quota of 1 correlation filters"):
        catalog.add_rule(path, Rule("c", CorrelationFilter(label="x")))
    assert catalog.get(path).rules == (sql, correlation)
    catalog.close()


@pytest.mark.row("C37")
def test_quotas_are_of_one_topic(database: Open) -> None:
    catalog = limited(Catalog(database(), STORES), entities=2, partitioned_entities=1, subscriptions=2, sql_filters=2)
    catalog.create(topic("t", partitioned=True), 0)
    for name in ("a", "b"):
        catalog.create(subscription(f"t/Subscriptions/{name}"), 0, rules=[EVERYTHING])
    with pytest.raises(QuotaExceeded, match="'t' is at its quota of 2 subscriptions"):
        catalog.create(subscription("t/Subscriptions/c"), 0)
    catalog.create(topic("u"), 0)
    catalog.create(subscription("u/Subscriptions/a"), 0, rules=[EVERYTHING])
    with pytest.raises(QuotaExceeded, match="quota of 2 entities"):
        catalog.create(topic("v"), 0)
    catalog.close()


def test_policies_are_kept_per_entity_and_of_the_namespace(database: Open) -> None:
    catalog = limited(Catalog(database(), STORES), policies=2)
    catalog.create(topic(), 100, policies=[POLICY])
    other = SasPolicy("manage", Right.MANAGE, "three", "", 3, 4)
    catalog.replace_namespace_policies([other])
    updated = catalog.update("t", EntityOptions(), 100, [POLICY, other])
    assert updated.policies == (other, POLICY)
    assert updated.updated_ms == 101, "every change is told by it, also two of one ms"
    with pytest.raises(QuotaExceeded, match="'t' is at its quota of 2 authorization rules"):
        catalog.update("t", EntityOptions(), 0, [POLICY, other, SasPolicy("listen", Right.LISTEN, "k", "")])
    assert catalog.update("t", EntityOptions(), 0).policies == (other, POLICY), "not given: as they are"
    assert catalog.namespace_policies() == (other,)
    catalog.delete("t")
    assert catalog.namespace_policies() == (other,)
    catalog.close()


def test_a_catalog_of_the_format_before_is_led_to_this_one_after_a_copy(tmp_path: Path) -> None:
    """Format 1 knew queues only."""
    path = tmp_path / "catalog.db"
    schema = resources.files("partibus.namespace").joinpath("ddl/1_sqlite.sql").read_text("utf-8")
    with sqlite3.connect(path) as old:
        old.executescript(schema)
        old.execute("UPDATE format SET version = 1")
        old.execute("INSERT INTO entity VALUES (1, 'q', 'Q', 'queue', '{\"MaxDeliveryCount\": 3}', 5, 6)")
        old.execute("INSERT INTO placement VALUES (1, 0, 2, 1)")
        old.execute("UPDATE numbers SET next_entity_id = 2, next_partition_row = 2")
    old.close()
    path.chmod(0o600)
    before = shutil.copy(path, tmp_path / "before")
    catalog = Catalog(tmp_path, STORES)
    record = catalog.get("q")
    assert (record.description.name, record.description.options.max_delivery_count) == ("Q", 3)
    assert (record.description.kind, record.placements[0].store_no, record.updated_ms) == (EntityKind.QUEUE, 2, 6)
    catalog.create(topic(), 0)
    assert catalog.create(subscription("t/Subscriptions/s"), 0, rules=[EVERYTHING]).rules == (EVERYTHING,)
    catalog.close()
    copy = sqlite3.connect(tmp_path / f"catalog.db.before-format-{FORMAT_VERSION}.copy")
    assert copy.execute("SELECT version FROM format").fetchone() == (1,)
    assert list(copy.iterdump()) == list(sqlite3.connect(before).iterdump())
    copy.close()


@pytest.mark.parametrize("count", [50, 500])
def test_a_change_of_a_rule_reads_that_rule_only(catalog: Catalog, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    clock = ManualClock(1_000)
    namespace = Namespace(catalog, clock)
    namespace.make(topic())
    path = "t/Subscriptions/s"
    namespace.make(subscription(path))
    rules = [Rule(f"r{number:04}", CorrelationFilter(label=str(number))) for number in range(count)]
    catalog.replace_rules(path, rules)
    namespace.follow(path)
    parse = catalog_rows._from_text.__wrapped__
    read: list[str] = []

    def read_one(content: str) -> Rule:
        read.append(content)
        return parse(content)

    with monkeypatch.context() as patched:
        patched.setattr(catalog_rows, "_from_text", read_one)
        namespace.add_rule(path, Rule("More", CorrelationFilter(label="x")))
        namespace.replace_rule(path, Rule("R0002", CorrelationFilter(label="y")))
        namespace.delete_rule(path, "r0001")
    assert len(read) <= 3, "the added one, and the replaced one before and after"
    known = namespace.find(path)
    assert isinstance(known, Subscription)
    assert known.rules == catalog.get(path).rules
    assert [rule.name for rule in known.rules[:3]] == ["More", "r0000", "r0002"]


def test_a_change_of_a_rule_of_a_subscription_made_again_reads_its_rules(catalog: Catalog) -> None:
    here, elsewhere = Namespace(catalog, ManualClock(1_000)), Namespace(catalog, ManualClock(1_000))
    here.make(topic())
    path = "t/Subscriptions/s"
    here.make(subscription(path), rule=Rule("old", TrueFilter()))
    elsewhere.follow(path)
    elsewhere.delete(path)
    elsewhere.make(subscription(path), rule=Rule("new", TrueFilter()))
    here.add_rule(path, Rule("more", TrueFilter()))
    known = here.find(path)
    assert isinstance(known, Subscription)
    assert [rule.name for rule in known.rules] == ["more", "new"]
