"""Rules, filters and values as elements."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partibus.errors import ArgumentError
from partibus.filters.model import (
    Constant,
    CorrelationFilter,
    FalseFilter,
    Filter,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from partibus.frontends.rest.atom import lists
from partibus.frontends.rest.atom.calls import PAGE_MAX
from partibus.frontends.rest.atom.rules import read_default_rule, read_rule, rule_xml
from partibus.frontends.rest.atom.xml import INSTANCE, SERVICE, Element, element, parse_xml

SCHEMA = "http://www.w3.org/2001/XMLSchema"
CREATED_MS = 1_700_000_000_123


def described(content: str) -> Element:
    return parse_xml(element("RuleDescription", content, {"xmlns": SERVICE, "xmlns:i": INSTANCE}).encode())


TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"), max_size=20)
CONSTANTS: st.SearchStrategy[Constant] = st.one_of(
    TEXT,
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.datetimes(timezones=st.just(UTC)),
    st.integers(0, 10**12).map(lambda ms: timedelta(milliseconds=ms)),
)
PAIRS = st.dictionaries(TEXT, CONSTANTS, max_size=4)
EXPRESSIONS = TEXT.filter(str.strip)
FILTERS: st.SearchStrategy[Filter] = st.one_of(
    st.builds(SqlFilter, EXPRESSIONS, PAIRS),
    st.builds(TrueFilter),
    st.builds(FalseFilter),
    st.builds(
        CorrelationFilter,
        correlation_id=st.none() | TEXT,
        message_id=st.none() | TEXT,
        to=st.none() | TEXT,
        reply_to=st.none() | TEXT,
        label=st.none() | TEXT,
        session_id=st.none() | TEXT,
        reply_to_session_id=st.none() | TEXT,
        content_type=st.none() | TEXT,
        properties=PAIRS,
    ),
)


@given(st.builds(Rule, st.just("r"), FILTERS, st.none() | st.builds(SqlAction, EXPRESSIONS, PAIRS)))
def test_a_rule_that_is_shown_is_read_back(rule: Rule) -> None:
    assert read_rule(described(rule_xml(rule)), "r") == rule


def test_a_rule_is_written_in_the_dialect_that_javascript_reads() -> None:
    """Trap 30: the attribute is spelled ``i:type``, and its value has a prefix of four characters."""
    rule = Rule("r", CorrelationFilter(label="a&b", properties={"n": 2**40, "d": 0.5}), None, CREATED_MS)
    value = f'<Value i:type="d6p1:{{}}" xmlns:d6p1="{SCHEMA}">{{}}</Value>'
    pair = "<KeyValueOfstringanyType><Key>{}</Key>{}</KeyValueOfstringanyType>"
    assert rule_xml(rule) == (
        '<Filter i:type="CorrelationFilter"><Label>a&amp;b</Label><Properties>'
        + pair.format("n", value.format("int", 2**40))
        + pair.format("d", value.format("double", 0.5))
        + '</Properties></Filter><Action i:type="EmptyRuleAction"/>'
        "<CreatedAt>2023-11-14T22:13:20.123Z</CreatedAt><Name>r</Name>"
    )


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("string", "", ""),
        ("long", "-5", -5),
        ("int", " 7 ", 7),
        ("double", "INF", float("inf")),
        ("boolean", "1", True),
        ("boolean", "False", False),
        ("dateTime", "2020-02-29T12:00:00.1234567+02:00", datetime(2020, 2, 29, 10, 0, 0, 123456, UTC)),
        ("dateTime", "2020-02-29T12:00:00", datetime(2020, 2, 29, 12)),
        ("duration", "P1DT1S", timedelta(days=1, seconds=1)),
    ],
)
def test_values_are_read_by_their_type_whatever_the_prefix(kind: str, text: str, value: Constant) -> None:
    content = (
        f'<Filter i:type="CorrelationFilter"><Properties><KeyValueOfstringanyType><Key>k</Key>'
        f'<Value i:type="l28:{kind}" xmlns:l28="{SCHEMA}">{text}</Value></KeyValueOfstringanyType>'
        "</Properties></Filter>"
    )
    found = read_rule(described(content), "r").filter
    assert isinstance(found, CorrelationFilter)
    assert found.properties == {"k": value}


PROPERTIES = '<Filter i:type="CorrelationFilter"><Properties>{}</Properties></Filter>'
PAIR = "<KeyValueOfstringanyType><Key>k</Key>{}</KeyValueOfstringanyType>"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("<Filter/>", "The type of the Filter is ''"),
        ('<Filter i:type="DateFilter"/>', "SqlFilter, CorrelationFilter, TrueFilter or FalseFilter"),
        ('<Filter i:type="SqlFilter"/>', "SqlExpression is ''"),
        ('<Filter i:type="SqlFilter"><SqlExpression> </SqlExpression></Filter>', "SqlExpression is ''"),
        ('<Action i:type="SqlRuleAction"/>', "since Action has the type SqlRuleAction"),
        ('<Action i:type="Other"/>', "SqlRuleAction or EmptyRuleAction"),
        (PROPERTIES.format(PAIR.format("")), "a Key and a Value"),
        (PROPERTIES.format(PAIR.format('<Value i:type="x:int">many</Value>')), "a value of the type int"),
        (PROPERTIES.format(PAIR.format('<Value i:type="x:duration">-P1D</Value>')), "a value of the type duration"),
        (PROPERTIES.format(PAIR.format('<Value i:type="x:guid">g</Value>')), "The type of a Value is 'guid'"),
        (PROPERTIES.format(2 * PAIR.format('<Value i:type="x:string"/>')), "different from the other keys"),
    ],
)
def test_what_is_no_rule_is_refused_by_its_name(content: str, says: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        read_rule(described(content), "r")
    assert says in str(refused.value)


def test_what_is_left_out_selects_everything_and_changes_nothing() -> None:
    assert read_rule(described(""), "r") == Rule("r", TrueFilter())
    assert read_default_rule(described("")).name == "$Default"
    assert read_default_rule(described("<Name>first</Name>")).name == "first"


def test_a_list_of_rules_lets_others_have_their_turn_between_two() -> None:
    rules = tuple(Rule(f"r{number:03}", CorrelationFilter(label="x")) for number in range(2 * PAGE_MAX))
    subscription = SimpleNamespace(name="t/Subscriptions/s", rules=rules)
    call: Any = SimpleNamespace(
        broker=SimpleNamespace(namespace=SimpleNamespace(subscription=lambda *_: subscription)),
        resource=SimpleNamespace(entity="t", subscription="s"),
        page=lambda: (0, PAGE_MAX),
        show_page=lambda title, path, entries, page: [entry.title for entry in entries],
    )
    listing: Any = lists.list_rules(call)
    for _ in range(PAGE_MAX):
        listing.send(None)
    with pytest.raises(StopIteration) as ended:
        listing.send(None)
    assert ended.value.value == [rule.name for rule in rules[:PAGE_MAX]]


def test_an_element_that_stands_for_no_value_is_as_one_that_is_left_out() -> None:
    nil = {"i:nil": "true"}
    names = ("CorrelationId", "Label", "Properties")
    content = element("To", "x") + "".join(element(name, "", nil) for name in names)
    chosen = element("Filter", content, {"i:type": "CorrelationFilter"})
    assert read_rule(described(chosen + element("Action", "", nil)), "r") == Rule("r", CorrelationFilter(to="x"))
    sql = element("SqlExpression", "a = 1") + element("Parameters", "", nil)
    assert read_rule(described(element("Filter", sql, {"i:type": "SqlFilter"})), "r") == Rule("r", SqlFilter("a = 1"))
    assert read_rule(described(element("Filter", "", nil)), "r") == Rule("r", TrueFilter())


@pytest.mark.parametrize(("skip", "top", "more"), [(0, 0, False), (0, 2, True), (1, 2, False), (5, 2, False)])
def test_a_page_names_a_next_one_only_if_following_it_ends(skip: int, top: int, more: bool) -> None:
    rules = tuple(Rule(f"r{number}", CorrelationFilter(label="x")) for number in range(3))
    subscription = SimpleNamespace(name="t/Subscriptions/s", rules=rules)
    call: Any = SimpleNamespace(
        broker=SimpleNamespace(namespace=SimpleNamespace(subscription=lambda *_: subscription)),
        resource=SimpleNamespace(entity="t", subscription="s"),
        page=lambda: (skip, top),
        show_page=lambda title, path, entries, page: page.more,
    )
    found: Any = asyncio.run(lists.list_rules(call))
    assert found is more
