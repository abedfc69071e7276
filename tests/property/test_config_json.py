"""Any bytes and any JSON make a configuration or one ConfigError, never another failure."""

import contextlib
import json

from hypothesis import given
from hypothesis import strategies as st

from partibus.namespace.config_document import ConfigError
from partibus.namespace.config_json import parse_config_json
from partibus.namespace.properties import QUEUE_PROPERTIES

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
