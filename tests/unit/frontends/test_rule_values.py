"""Rules on the wire."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from partibus.amqp.codec.decoder import decode
from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.types import Described, Int, Symbol, Timestamp, ULong
from partibus.errors import ArgumentError
from partibus.filters.model import CorrelationFilter, FalseFilter, Rule, SqlAction, SqlFilter, TrueFilter
from partibus.frontends.amqp.operations.rules import read_rule, write_rule


def test_an_sql_filter_with_an_action_is_read() -> None:
    described: dict[object, object] = {
        "rule-name": "r",
        "sql-filter": {"expression": "a = 1"},
        "sql-rule-action": {"expression": "SET b = 2"},
    }
    assert read_rule("r", described) == Rule("r", SqlFilter("a = 1"), SqlAction("SET b = 2"))


@pytest.mark.parametrize(("text", "filter"), [("1=1", TrueFilter()), ("1 = 1", TrueFilter()), ("1=0", FalseFilter())])
def test_true_and_false_come_as_sql(text: str, filter: object) -> None:
    assert read_rule("r", {"sql-filter": {"expression": text}, "sql-rule-action": None}).filter == filter


def test_a_correlation_filter_takes_nulls_for_what_is_not_compared() -> None:
    described: dict[object, object] = {
        "correlation-filter": {
            "correlation-id": None,
            "label": "red",
            "properties": {
                Symbol("count"): Int(3),
                "ok": True,
                "at": Timestamp(1_500),
                "share": 0.5,
            },
        }
    }
    read = read_rule("r", described)
    assert read.filter == CorrelationFilter(
        label="red",
        properties={"count": 3, "ok": True, "at": datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC), "share": 0.5},
    )
    assert isinstance(read.filter, CorrelationFilter)
    assert type(read.filter.properties["count"]) is int


@pytest.mark.parametrize(
    ("described", "names"),
    [
        ({}, "rule-description"),
        ({"sql-filter": {"expression": "a"}, "correlation-filter": {}}, "rule-description"),
        ({"sql-filter": "a = 1"}, "sql-filter"),
        ({"sql-filter": {}}, "expression"),
        ({"sql-filter": {"expression": 7}}, "expression"),
        ({"correlation-filter": []}, "correlation-filter"),
        ({"correlation-filter": {"label": 1}}, "label"),
        ({"correlation-filter": {"properties": {"a": b"x"}}}, "properties.a"),
        ({"sql-filter": {"expression": "a=1"}, "sql-rule-action": "SET a = 1"}, "sql-rule-action"),
    ],
)
def test_what_is_no_rule_is_refused_by_name(described: dict[object, object], names: str) -> None:
    with pytest.raises(ArgumentError, match=names):
        read_rule("r", described)


@pytest.mark.parametrize(
    ("rule", "filter_code", "fields", "action_code"),
    [
        (Rule("r", SqlFilter("a = 1"), None, 5), 0x1370000006, ["a = 1", 20], 0x13700000005),
        (Rule("r", TrueFilter(), SqlAction("SET a = 1"), 5), 0x1370000007, [], 0x13700000006),
        (Rule("r", FalseFilter(), None, 5), 0x1370000008, [], 0x13700000005),
        (
            Rule("r", CorrelationFilter(to="t", properties={"d": timedelta(seconds=1)}), None, 5),
            0x1370000009,
            [None, None, "t", None, None, None, None, None, {"d": 10_000_000}],
            0x13700000005,
        ),
    ],
)
def test_a_rule_is_written_as_described_lists(
    rule: Rule, filter_code: int, fields: list[object], action_code: int
) -> None:
    written, _ = decode(encode(write_rule(rule)))
    assert isinstance(written, Described)
    assert written.descriptor == ULong(0x13700000004)
    parts: Any = written.value
    described_filter, action, name, created = parts
    assert (described_filter.descriptor, described_filter.value) == (filter_code, fields)
    assert action.descriptor == action_code
    assert (name, created) == ("r", Timestamp(5))
