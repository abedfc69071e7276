"""Rules as the catalog keeps them, and as a Config.json has them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from partibus.errors import Unsupported
from partibus.filters.model import CorrelationFilter, FalseFilter, Rule, SqlAction, SqlFilter, TrueFilter
from partibus.filters.plain import from_config, from_plain, same, to_config, to_plain

RULES = [
    Rule("$Default", TrueFilter(), created_ms=5),
    Rule("no", FalseFilter()),
    Rule("sql", SqlFilter("a = 1"), SqlAction("SET b = 1")),
    Rule(
        "parameters",
        SqlFilter("a > @a", {"@a": 1, "@b": 1.0, "@c": True, "@d": "text", "@e": float("inf")}),
        SqlAction("SET b = @t", {"@t": datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC), "@d": -timedelta(1, 2, 3)}),
    ),
    Rule(
        "correlation", CorrelationFilter(label="", to="t", properties={"n": 5.0, "when": datetime(1, 1, 1, tzinfo=UTC)})
    ),
    Rule("empty", CorrelationFilter()),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.name))
def test_rules_survive_being_kept(rule: Rule) -> None:
    kept = from_plain(json.loads(json.dumps(to_plain(rule))))
    assert kept == rule
    assert same(kept, rule)


@pytest.mark.parametrize(
    "plain",
    [
        {},
        {"name": "r", "created_ms": 0, "filter": {"type": "regex"}},
        {"name": "r", "created_ms": 0, "filter": "1=1"},
        {"name": "r", "created_ms": 0, "filter": {"type": "sql", "expression": "a=1"}},
        {"name": "r", "created_ms": 0, "filter": {"type": "sql", "expression": "a=1", "parameters": {"@a": [1]}}},
        {
            "name": "r",
            "created_ms": 0,
            "filter": {"type": "sql", "expression": "", "parameters": {"@a": {"time": 2**70}}},
        },
    ],
)
def test_other_objects_are_no_rules(plain: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"is no (rule|type|constant)"):
        from_plain(plain)


def test_rules_are_the_same_by_what_they_say() -> None:
    sql = Rule("r", SqlFilter("a = @a", {"@a": 1}))
    assert same(sql, Rule("R", SqlFilter("a = @a", {"@a": 1}), created_ms=9))
    for other in (
        Rule("s", SqlFilter("a = @a", {"@a": 1})),
        Rule("r", SqlFilter("a = @a", {"@a": 1.0})),
        Rule("r", SqlFilter("a = @a", {"@a": True})),
        Rule("r", SqlFilter("A = @a", {"@a": 1})),
        Rule("r", SqlFilter("a = @a", {"@a": 1}), SqlAction("SET a = 1")),
        Rule("r", TrueFilter()),
    ):
        assert not same(sql, other)


def test_config_json() -> None:
    declared = {
        "FilterType": "Correlation",
        "CorrelationFilter": {
            "ContentType": "c",
            "CorrelationId": "i",
            "Label": "l",
            "MessageId": "m",
            "ReplyTo": "r",
            "ReplyToSessionId": "rs",
            "SessionId": "s",
            "To": "t",
            "Properties": {"n": 5, "x": "y", "z": True},
        },
        "Action": {"SqlExpression": "SET a = 1"},
    }
    rule = from_config("r", declared)
    assert rule == Rule(
        "r",
        CorrelationFilter("i", "m", "t", "r", "l", "s", "rs", "c", {"n": 5, "x": "y", "z": True}),
        SqlAction("SET a = 1"),
    )
    assert to_config(rule) == {"Name": "r", "Properties": declared}


@pytest.mark.parametrize(
    ("declared", "rule"),
    [
        ({"FilterType": "Sql", "SqlFilter": {"SqlExpression": "a = 1"}}, Rule("r", SqlFilter("a = 1"))),
        ({"FilterType": "Sql", "SqlFilter": {"SqlExpression": "1=1"}}, Rule("r", TrueFilter())),
        ({"FilterType": "Sql", "SqlFilter": {"SqlExpression": "1=0"}}, Rule("r", FalseFilter())),
        ({"FilterType": "Correlation", "CorrelationFilter": {"To": "t"}}, Rule("r", CorrelationFilter(to="t"))),
    ],
)
def test_config_json_both_ways(declared: dict[str, object], rule: Rule) -> None:
    assert from_config("r", declared) == rule
    assert from_config("r", declared | {"Action": {}}) == rule
    assert to_config(rule) == {"Name": "r", "Properties": declared}


@pytest.mark.parametrize(
    "rule",
    [
        Rule("r", SqlFilter("a = @a", {"@a": 1})),
        Rule("r", TrueFilter(), SqlAction("SET a = @a", {"@a": 1})),
        Rule("r", CorrelationFilter(properties={"t": timedelta(1)})),
    ],
)
def test_what_config_json_has_no_form_for_is_refused(rule: Rule) -> None:
    with pytest.raises(Unsupported, match="Rule 'r' with"):
        to_config(rule)
