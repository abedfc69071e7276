"""Any bytes and any JSON make a configuration or one ConfigError, never another failure; what a configuration makes can
be written down as one."""

import contextlib
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from partibus.clock import ManualClock
from partibus.namespace.catalog import Catalog
from partibus.namespace.config_document import ConfigError
from partibus.namespace.config_export import export_config
from partibus.namespace.config_json import parse_config_json
from partibus.namespace.durations import format_duration
from partibus.namespace.entities import EntityKind
from partibus.namespace.namespace import Namespace
from partibus.namespace.properties import PROPERTIES, QUEUE_PROPERTIES

NAMES = st.sampled_from(
    ["UserConfig", "Namespaces", "Name", "Queues", "Topics", "Subscriptions", "Rules", "Properties", "FilterType"]
    + ["CorrelationFilter", "SqlFilter", "Action", "SqlExpression", "Logging", "Type"]
    + [prop.name for prop in QUEUE_PROPERTIES]
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.just("PT1M")
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(), inner, max_size=5)
)


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes(text: bytes) -> None:
    with contextlib.suppress(ConfigError):
        parse_config_json(text)


@given(TREES, TREES, TREES)
def test_any_tree_at_any_depth(tree: object, queue: object, topic: object) -> None:
    namespace = {"Name": "ns", "Queues": [{"Name": "q", "Properties": queue}, queue], "Topics": [topic]}
    for root in (tree, {"UserConfig": tree}, {"UserConfig": {"Namespaces": [namespace]}}):
        with contextlib.suppress(ConfigError):
            parse_config_json(json.dumps(root).encode())


def _properties(kind: EntityKind) -> st.SearchStrategy[dict[str, object]]:
    values: dict[str, st.SearchStrategy[object]] = {
        "LockDuration": st.sampled_from(["PT5S", "PT1M", "PT4M59.999S"]),
        "MaxDeliveryCount": st.integers(1, 2**31 - 1),
        "DefaultMessageTimeToLive": st.integers(1, 10**9).map(format_duration),
        "DeadLetteringOnMessageExpiration": st.booleans(),
        "DeadLetteringOnFilterEvaluationExceptions": st.booleans(),
        "EnablePartitioning": st.booleans(),
        "MaxSizeInMegabytes": st.sampled_from([1024, 5120]),
        "AutoDeleteOnIdle": st.integers(300_000, 10**9).map(format_duration),
        "Status": st.sampled_from(["Active", "Disabled", "SendDisabled", "ReceiveDisabled"]),
        "UserMetadata": st.text(max_size=20),
        "RequiresSession": st.booleans(),
        "RequiresDuplicateDetection": st.booleans(),
    }
    known = {prop.name for prop in PROPERTIES[kind]}
    return st.fixed_dictionaries({}, optional={name: value for name, value in values.items() if name in known})


NAME = st.text("abXY09._~-", min_size=1, max_size=8).filter(lambda text: text.strip("."))
TEXT = st.text(min_size=1, max_size=10)
CONSTANT = st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXT
RULE = st.builds(
    lambda name, properties: {"Name": name, "Properties": properties},
    NAME | st.just("$Default"),
    st.one_of(
        st.sampled_from(["1=1", "1=0", "a = 1", "sys.Label LIKE 'x%'"]).map(
            lambda text: {"FilterType": "Sql", "SqlFilter": {"SqlExpression": text}}
        ),
        st.fixed_dictionaries(
            {"To": TEXT},
            optional={
                "Label": TEXT,
                "Properties": st.dictionaries(
                    TEXT, st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXT, max_size=3
                ),
            },
        ).map(lambda members: {"FilterType": "Correlation", "CorrelationFilter": members}),
    ).flatmap(
        lambda filtered: st.sampled_from(
            [filtered, {**filtered, "Action": {"SqlExpression": "SET a = 1; REMOVE b"}}],
        )
    ),
)


def _named(what: st.SearchStrategy[Any], most: int) -> st.SearchStrategy[list[Any]]:
    return st.lists(what, max_size=most, unique_by=lambda one: one["Name"].lower())


def _entity(kind: EntityKind, **more: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"Name": NAME}, optional={"Properties": _properties(kind), **more})


SUBSCRIPTION = _entity(EntityKind.SUBSCRIPTION, Rules=_named(RULE, 3))
TOPIC = _entity(EntityKind.TOPIC, Subscriptions=_named(SUBSCRIPTION, 3))
ENTITIES = _named(st.one_of(_entity(EntityKind.QUEUE).map(lambda one: {**one, "queue": True}), TOPIC.map(dict)), 5)


@settings(max_examples=30)
@given(ENTITIES, st.data())
def test_what_is_exported_makes_the_same_namespace(entities: list[dict[str, Any]], data: st.DataObject) -> None:
    """Applied, exported, applied to an empty namespace, exported: the same text, and nothing is left out."""
    names = [one["Name"] for one in entities]
    for index, one in enumerate(entities):
        queue = one.pop("queue", False)
        if queue and index and data.draw(st.booleans()):
            properties = one.setdefault("Properties", {})
            properties.pop("RequiresSession", None)
            properties["ForwardTo"] = data.draw(st.sampled_from(names[:index]))
        one["is_queue"] = queue
    document: dict[str, Any] = {"Name": "ns", "Queues": [], "Topics": []}
    for one in entities:
        document["Queues" if one.pop("is_queue") else "Topics"].append(one)
    text = json.dumps({"UserConfig": {"Namespaces": [document]}})
    exported = []
    for _ in range(2):
        with TemporaryDirectory() as folder:
            catalog = Catalog(Path(folder), 16)
            namespace = Namespace(catalog, ManualClock())
            namespace.apply(parse_config_json(text.encode()))
            exported.append(export_config(namespace))
            assert namespace.apply(parse_config_json(text.encode())).updated == 0
            catalog.close()
        text = exported[-1].text
    assert exported[0] == exported[1]
    assert exported[0].left_out == []
    assert text.count('"Name"') >= 1 + len(entities)
