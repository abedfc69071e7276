"""A Config.json with topics is applied whole or not at all, again without effect, and can be had back."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from partibus.clock import ManualClock
from partibus.filters.model import CorrelationFilter, FalseFilter, Rule, SqlAction, SqlFilter, TrueFilter
from partibus.namespace.access import Right, SasPolicy
from partibus.namespace.catalog import Catalog
from partibus.namespace.config_document import ConfigError
from partibus.namespace.config_export import export_config
from partibus.namespace.config_json import Config, parse_config_json
from partibus.namespace.entities import EntityDescription, EntityKind, EntityOptions
from partibus.namespace.namespace import Applied, Namespace
from tests.unit.namespace.catalogs import open_catalog

WHERE = "$.UserConfig.Namespaces[0]"


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


def config(queues: list[Any] | None = None, topics: list[Any] | None = None) -> Config:
    document = {"UserConfig": {"Namespaces": [{"Name": "ns", "Queues": queues or [], "Topics": topics or []}]}}
    return parse_config_json(json.dumps(document).encode())


def sql(name: str, expression: str) -> dict[str, Any]:
    return {"Name": name, "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": expression}}}


def topology() -> Config:
    return config(
        [{"Name": "in", "Properties": {"ForwardTo": "T"}}, {"Name": "out"}],
        [
            {
                "Name": "T",
                "Properties": {"EnablePartitioning": True, "MaxSizeInMegabytes": 2048},
                "Subscriptions": [
                    {"Name": "all"},
                    {"Name": "some", "Properties": {"ForwardTo": "out"}, "Rules": [sql("r", "a = 1")]},
                ],
            }
        ],
    )


@pytest.mark.row("P27", "F2")
def test_a_topology_is_made_at_once_and_left_alone_again(
    namespace: Namespace, catalog: Catalog, clock: ManualClock
) -> None:
    assert namespace.apply(topology()) == Applied(created=5, updated=0, unchanged=0)
    assert namespace.queue("in").forward_to == "T"
    assert len(namespace.topic("t").partitions) == 16
    assert namespace.subscription("t", "all").rules == (Rule("$Default", TrueFilter(), created_ms=1_000),)
    some = namespace.subscription("t", "some")
    assert (some.forward_to, some.rules) == ("out", (Rule("r", SqlFilter("a = 1"), created_ms=1_000),))
    before = catalog.list_entities()
    clock.advance(1)
    again = Namespace(catalog, clock)
    assert again.apply(topology()) == Applied(0, 0, 5)
    assert catalog.list_entities() == before


def test_what_differs_is_brought_to_what_the_file_says(namespace: Namespace) -> None:
    namespace.apply(topology())
    namespace.add_rule("T/Subscriptions/all", Rule("more", FalseFilter()))
    namespace.update("T/Subscriptions/some", EntityOptions(max_delivery_count=3, partitioned=True))
    namespace.make(EntityDescription("T/Subscriptions/own", kind=EntityKind.SUBSCRIPTION))
    version = namespace.topic("T").version
    assert namespace.apply(topology()) == Applied(0, 2, 3)
    assert [rule.name for rule in namespace.subscription("T", "all").rules] == ["$Default"]
    assert (namespace.subscription("T", "some").forward_to, namespace.subscription("T", "own").deleted) == (
        "out",
        False,
    )
    assert namespace.topic("T").version > version


@pytest.mark.parametrize(
    ("wrong", "path", "words"),
    [
        (config([{"Name": "new"}, {"Name": "T"}]), f"{WHERE}.Queues[1]", "'T' is a topic already"),
        (
            config([{"Name": "new"}], [{"Name": "T"}]),
            f"{WHERE}.Topics[0].Properties.EnablePartitioning",
            "of the topic 'T' is true for life",
        ),
        (
            config([{"Name": "new", "Properties": {"ForwardTo": "nothing"}}]),
            f"{WHERE}.Queues[0].Properties",
            "must be an existing queue or topic",
        ),
        (
            config(
                [{"Name": "new", "Properties": {"ForwardTo": "x"}}, {"Name": "x", "Properties": {"ForwardTo": "new"}}]
            ),
            f"{WHERE}.Queues[1].Properties",
            "x -> new -> x",
        ),
    ],
)
def test_what_can_not_be_applied_changes_nothing(
    namespace: Namespace, catalog: Catalog, wrong: Config, path: str, words: str
) -> None:
    namespace.apply(topology())
    before = catalog.list_entities()
    with pytest.raises(ConfigError) as caught:
        namespace.apply(wrong)
    assert [(problem.path, words in problem.text) for problem in caught.value.problems] == [(path, True)]
    assert catalog.list_entities() == before
    assert namespace.find("new") is None


@pytest.mark.row("P27")
def test_what_is_exported_makes_the_same_again(namespace: Namespace, tmp_path: Path, clock: ManualClock) -> None:
    namespace.apply(topology())
    namespace.add_rule(
        "T/Subscriptions/some",
        Rule("z", CorrelationFilter(label="ü", properties={"a b": 1, "c": True}), SqlAction("SET x = 'y'")),
    )
    namespace.add_rule("T/Subscriptions/some", Rule("never", FalseFilter()))
    exported = export_config(namespace)
    assert exported.left_out == []
    document = json.loads(exported.text)["UserConfig"]["Namespaces"][0]
    assert document["Queues"] == [{"Name": "in", "Properties": {"ForwardTo": "T"}}, {"Name": "out"}]
    assert document["Topics"][0]["Subscriptions"][0] == {"Name": "all"}
    folder = tmp_path / "other"
    folder.mkdir()
    other = Namespace(open_catalog(folder), clock)
    other.apply(parse_config_json(exported.text.encode()))
    assert export_config(other) == exported
    assert [(one.name, one.description) for one in other] == [(one.name, one.description) for one in namespace]
    assert namespace.apply(parse_config_json(exported.text.encode())) == Applied(0, 0, 5)


def test_what_the_file_can_not_say_is_told(namespace: Namespace) -> None:
    policy = SasPolicy("p", Right.SEND, "secret-1-of-16-chars", "secret-2-of-16-chars")
    namespace.make(EntityDescription("T", kind=EntityKind.TOPIC), policies=[policy])
    namespace.change_policies(lambda _: [policy])
    parameters = Rule("parameters", SqlFilter("a = @b", {"@b": 1}))
    namespace.make(EntityDescription("T/Subscriptions/a", kind=EntityKind.SUBSCRIPTION), rule=parameters)
    namespace.make(EntityDescription("T/Subscriptions/none", kind=EntityKind.SUBSCRIPTION))
    namespace.delete_rule("T/Subscriptions/none", "$Default")
    exported = export_config(namespace)
    assert [one.path for one in exported.left_out] == [
        "AuthorizationRules/p",
        "T/AuthorizationRules/p",
        "T/Subscriptions/a/Rules/parameters",
        "T/Subscriptions/none",
    ]
    assert "secret" not in str(exported)
