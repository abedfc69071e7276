"""Filters against a slow evaluator of their own, and against garbage.

Expressions are generated as trees, written out with as few parentheses as the grammar needs or with more, in any
case and layout, read and evaluated. The reference below knows three-valued logic and C#'s numbers a second time, in
the plainest way.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from partibus.amqp.codec.types import Float, Int, Symbol, Timestamp, UByte, ULong
from partibus.amqp.section_encoding import encode_application_properties
from partibus.errors import ArgumentError
from partibus.filters.like import like
from partibus.filters.matcher import Matcher, Subscription
from partibus.filters.model import (
    Constant,
    CorrelationFilter,
    EvaluationError,
    FalseFilter,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from partibus.filters.plain import from_plain, same, to_plain
from partibus.filters.sql import compile_action, compile_filter
from partibus.filters.view import GivenView, application_properties, by_name, read_user
from tests.unit.filters.messages import NOW_MS, message


class Failed(Exception):
    """The reference's error."""


class Node(NamedTuple):
    """An expression: its text, how tightly its outermost operator binds (see `LEVELS`), and what it is."""

    text: str
    level: int
    evaluate: Callable[[dict[str, object]], object]


LEVELS = {"or": 0, "and": 1, "not": 2, "test": 3, "sum": 4, "product": 5, "sign": 6, "atom": 7}


def wrapped(node: Node, level: str) -> str:
    """The text of an operand of an operator of that level."""
    return node.text if node.level >= LEVELS[level] else f"({node.text})"


# Values --------------------------------------------------------------------------------------------------------------

NAMES = ["a", "b", "c", "missing"]
texts = st.text(st.sampled_from("ab'%_é "), max_size=4)
values = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.sampled_from([0.0, 0.5, 2.0, -3.0, 1e10]), texts,
    st.sampled_from([2**63 - 1, -(2**63), 2**53 + 1]),
)  # fmt: skip
usual = st.fixed_dictionaries(
    {"a": st.integers(-3, 3) | st.sampled_from([0.5, 2.0, 2**62]), "b": texts}, optional={"c": values}
)
properties = usual | st.dictionaries(st.sampled_from(NAMES[:-1]), values)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def constant(value: object) -> Node:
    if value is None:
        text = "NULL"
    elif isinstance(value, bool):
        text = str(value)
    elif isinstance(value, str):
        text = quoted(value)
    else:
        text = repr(value).replace("e+", "E")
        if text.startswith("-"):
            return Node(text, LEVELS["sign"], lambda _: value)
    return Node(text, LEVELS["atom"], lambda _: value)


def a_property(name: str, spelling: int) -> Node:
    text = [name, name.upper(), f"user.{name}", f"[{name}]", f'"{name}"', f"p('{name}')", f"USER . {name}"][spelling]
    return Node(text, LEVELS["atom"], lambda given: given.get(name))


atoms = st.builds(constant, values) | st.builds(a_property, st.sampled_from(NAMES), st.integers(0, 6))


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _simple(operator: str, left: float, right: float) -> float:
    return left + right if operator == "+" else left - right if operator == "-" else left * right


def calculated(operator: str, left: object, right: object) -> object:
    if left is None or right is None:
        return None
    if isinstance(left, str) and isinstance(right, str) and operator == "+":
        return left + right
    if not is_number(left) or not is_number(right):
        raise Failed
    assert isinstance(left, int | float)
    assert isinstance(right, int | float)
    if isinstance(left, float) or isinstance(right, float):
        left, right = float(left), float(right)
        if operator in "/%" and right == 0:
            raise Failed("infinities are left to the examples")
        if operator == "%":
            return math.fmod(left, right)
        return left / right if operator == "/" else _simple(operator, left, right)
    if operator in "/%" and right == 0:
        raise Failed
    if operator == "/":
        result: float = abs(left) // abs(right) * (1 if (left >= 0) == (right >= 0) else -1)
    elif operator == "%":
        result = abs(left) % abs(right) * (1 if left >= 0 else -1)
    else:
        result = _simple(operator, left, right)
    if not -(2**63) <= result < 2**63:
        raise Failed
    return result


def arithmetic(level: str, first: Node, rest: list[tuple[str, Node]]) -> Node:
    above = "product" if level == "sum" else "sign"
    text = wrapped(first, above) + "".join(f" {operator} {wrapped(operand, above)}" for operator, operand in rest)

    def evaluate(given: dict[str, object]) -> object:
        result = first.evaluate(given)
        for operator, operand in rest:
            result = calculated(operator, result, operand.evaluate(given))
        return result

    return Node(text, LEVELS[level], evaluate)


def signed(sign: str, operand: Node) -> Node:
    def evaluate(given: dict[str, object]) -> object:
        value = operand.evaluate(given)
        if value is None:
            return None
        if not is_number(value):
            raise Failed
        if sign == "+":
            return value
        if value == -(2**63) and isinstance(value, int):
            raise Failed
        return -value  # type: ignore[operator]

    return Node(sign + " " + wrapped(operand, "sign"), LEVELS["sign"], evaluate)


def operations(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    def runs(operators: str) -> st.SearchStrategy[list[tuple[str, Node]]]:
        return st.lists(st.tuples(st.sampled_from(operators), inner), min_size=1, max_size=3)

    return st.one_of(
        st.builds(signed, st.sampled_from("+-"), inner),
        st.builds(arithmetic, st.just("sum"), inner, runs("+-")),
        st.builds(arithmetic, st.just("product"), inner, runs("*/%")),
    )


figures = st.integers(-3, 3) | st.integers(-3, 3) | st.sampled_from([0.5, 2.0, -3.0, 7.25, 2**62, 2**53 + 1])
numbers = st.recursive(
    figures.map(constant) | st.builds(a_property, st.just("a"), st.integers(0, 6)), operations, max_leaves=3
)
joins = st.recursive(
    texts.map(constant) | st.builds(a_property, st.just("b"), st.integers(0, 6)),
    lambda inner: st.builds(lambda one, other: arithmetic("sum", one, [("+", other)]), inner, inner),
    max_leaves=3,
)
mixtures = st.recursive(atoms, operations, max_leaves=5)
expressions = numbers | joins | mixtures
"""Most of them of one kind, so that they have a value: ``a`` is a number nearly always, and ``b`` a text."""

# Conditions ----------------------------------------------------------------------------------------------------------


def compared(operator: str, left: object, right: object) -> bool | None:
    if left is None or right is None:
        return None
    if is_number(left) and is_number(right):
        if type(left) is not type(right):
            left, right = float(left), float(right)  # type: ignore[arg-type]
    elif type(left) is not type(right) or (isinstance(left, bool) and operator in ("<", "<=", ">", ">=")):
        return None
    if operator in ("=", "<>", "!="):
        return (left == right) == (operator == "=")
    order = (left > right) - (left < right)  # type: ignore[operator]
    not_a_number = left != left or right != right
    return not not_a_number and {"<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}[operator]


def negated(value: object) -> bool | None:
    return None if value is None else not value


def comparison(operator: str, left: Node, right: Node) -> Node:
    text = f"{wrapped(left, 'sum')}{operator}{wrapped(right, 'sum')}"
    return Node(text, LEVELS["test"], lambda given: compared(operator, left.evaluate(given), right.evaluate(given)))


def membership(operand: Node, members: list[Node], negative: bool) -> Node:
    listed = ", ".join(wrapped(member, "sum") for member in members)

    def evaluate(given: dict[str, object]) -> bool | None:
        value = operand.evaluate(given)
        if value is None:
            return None
        result: bool | None = False
        for member in members:
            same_value = compared("=", value, member.evaluate(given))
            if same_value:
                result = True
                break
            result = None if same_value is None else result
        return negated(result) if negative else result

    return Node(f"{wrapped(operand, 'sum')} {'NOT ' * negative}IN ({listed})", LEVELS["test"], evaluate)


def reference_like(pattern: str, escape: str | None, text: str) -> bool:
    parts = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            following = next(characters, None)
            if following is None:
                raise Failed
            parts.append(re.escape(following))
        else:
            parts.append({"%": ".*", "_": "."}.get(character, re.escape(character)))
    return re.fullmatch("".join(parts), text, re.DOTALL) is not None


def pattern_test(operand: Node, pattern: str, negative: bool) -> Node:
    def evaluate(given: dict[str, object]) -> bool | None:
        value = operand.evaluate(given)
        if not isinstance(value, str):
            return None
        result = reference_like(pattern, None, value)
        return not result if negative else result

    return Node(f"{wrapped(operand, 'sum')} {'not ' * negative}like {quoted(pattern)}", LEVELS["test"], evaluate)


def null_test(name: str, negative: bool) -> Node:
    return Node(
        f"{name} IS {'NOT ' * negative}NULL", LEVELS["test"], lambda given: (given.get(name) is None) != negative
    )


OPERATORS = st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="])
tests = st.one_of(
    st.builds(comparison, OPERATORS, expressions, expressions),
    st.builds(comparison, OPERATORS, numbers, numbers),
    st.builds(comparison, OPERATORS, joins, joins),
    st.builds(membership, expressions, st.lists(expressions, min_size=1, max_size=3), st.booleans()),
    st.builds(membership, numbers, st.lists(numbers | atoms, min_size=1, max_size=3), st.booleans()),
    st.builds(membership, atoms, st.lists(texts.map(constant), min_size=1, max_size=3), st.booleans()),
    st.builds(pattern_test, joins, texts, st.booleans()),
    st.builds(null_test, st.sampled_from(NAMES), st.booleans()),
    st.sampled_from(NAMES).map(lambda name: Node(f"EXISTS({name})", LEVELS["test"], lambda given: name in given)),
)


def joined(word: str, operands: list[Node]) -> Node:
    decisive = word == "or"

    def evaluate(given: dict[str, object]) -> bool | None:
        result: bool | None = not decisive
        for operand in operands:
            value = operand.evaluate(given)
            if value is decisive:
                return decisive
            if value is None:
                result = None
        return result

    above = "not" if word == "and" else "and"
    return Node(f" {word.upper()} ".join(wrapped(operand, above) for operand in operands), LEVELS[word], evaluate)


def inverted(operand: Node) -> Node:
    return Node(f"NOT {wrapped(operand, 'not')}", LEVELS["not"], lambda given: negated(operand.evaluate(given)))


def combinations(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    several = st.lists(inner, min_size=2, max_size=3)
    return st.one_of(
        several.map(lambda operands: joined("and", operands)),
        several.map(lambda operands: joined("or", operands)),
        inner.map(inverted),
        inner.map(lambda node: Node(f"( {node.text} )", LEVELS["atom"], node.evaluate)),
    )


conditions = st.recursive(tests, combinations, max_leaves=6).filter(lambda node: len(node.text) <= 1024)

# What is shown -------------------------------------------------------------------------------------------------------


@pytest.mark.row("C38")
@settings(max_examples=200)
@given(expressions, properties)
def test_expressions_have_the_value_that_the_reference_gives(
    expression: Node, given_properties: dict[str, object]
) -> None:
    view = GivenView(given_properties, {})
    text = wrapped(expression, "sum")
    try:
        expected = expression.evaluate(given_properties)
    except Failed as failure:
        if not failure.args:
            with pytest.raises(EvaluationError):
                compile_filter(SqlFilter(f"{text} = 1")).test(view)
        return
    if expected is None:
        assert compile_filter(SqlFilter(f"{text} = 1")).test(view) is None
    else:
        assert isinstance(expected, bool | int | float | str)
        assert compile_filter(SqlFilter(f"{text} = @value", {"@value": expected})).test(view) is True


@pytest.mark.row("C38")
@settings(max_examples=200)
@given(conditions, properties)
def test_filters_say_what_the_reference_says(condition: Node, given_properties: dict[str, object]) -> None:
    test = compile_filter(SqlFilter(condition.text)).test
    try:
        expected = condition.evaluate(given_properties)
    except Failed as failure:
        if failure.args:
            return
        expected = Failed
    try:
        found: object = test(GivenView(given_properties, {}))
    except EvaluationError:
        found = Failed
    assert found is expected


@given(
    st.text(st.sampled_from("ab%_!é"), max_size=8),
    st.none() | st.just("!"),
    st.text(st.sampled_from("ab%_!é"), max_size=10),
)
def test_like_is_like_a_regular_expression(pattern: str, escape: str | None, text: str) -> None:
    try:
        expected: object = reference_like(pattern, escape, text)
    except Failed:
        with pytest.raises(EvaluationError):
            like(pattern, escape)
        return
    assert like(pattern, escape)(text) is expected


WORDS = [
    "a", "sys.", "user.", "[a]", '"b"', "'x'", "1", "2.5", "9223372036854775808", "@p", "(", ")", ",", ";", "=", "<>",
    "<", "+", "-", "*", "/", "%", "AND", "OR", "NOT", "IN", "IS", "NULL", "LIKE", "ESCAPE", "EXISTS", "TRUE", "SET",
    "REMOVE", "newid()", "p(", "label", "é", "'", "[", "\n",
]  # fmt: skip
repeated = st.sampled_from([*WORDS, "NOT ", "a=1 OR ", "(a="])
garbage = st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join),
    st.builds(lambda text, times: text * times, repeated, st.integers(1, 1100)),
    st.builds(
        lambda node, at, more: node.text[:at] + more + node.text[at:],
        conditions,
        st.integers(0, 80),
        st.sampled_from(WORDS),
    ),
)


@given(garbage, properties)
@example("(" * 1024, {})
@example("NOT " * 256, {})
@example("-" * 1024, {})
@example("\ud800 = 1", {})
@example("a = '\0'", {})
def test_any_text_is_a_filter_or_an_action_or_an_argument_error(text: str, given_properties: dict[str, object]) -> None:
    refusals = []
    try:
        found = compile_filter(SqlFilter(text, {"@p": 5})).test(GivenView(given_properties, {}))
        assert found in (True, False, None)
    except ArgumentError as error:
        refusals.append(str(error))
    except EvaluationError as error:
        assert error.args  # noqa: PT017
    try:
        compile_action(SqlAction(text, {"@p": 5}))
    except ArgumentError as error:
        refusals.append(str(error))
    assert refusals, "nothing is both"
    assert all("must be an SQL" in refusal for refusal in refusals)


moments = st.datetimes(min_value=datetime(1, 1, 1), timezones=st.just(UTC))
constants: st.SearchStrategy[Constant] = st.one_of(
    st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5), moments, st.timedeltas()
)
named = st.dictionaries(st.text(max_size=5), constants, max_size=3)
short = st.none() | st.text(max_size=5)
correlations = st.builds(CorrelationFilter, short, short, short, short, short, short, short, short, named)
filters = st.just(TrueFilter()) | st.just(FalseFilter()) | st.builds(SqlFilter, st.text(), named) | correlations
rules = st.builds(Rule, st.text(), filters, st.none() | st.builds(SqlAction, st.text(), named), st.integers())


@given(rules)
def test_rules_survive_being_kept(rule: Rule) -> None:
    kept = from_plain(to_plain(rule))
    assert kept == rule
    assert same(kept, rule)


ACTIONS = ["SET a = 1", "SET b = a + 'x'; REMOVE a", "SET sys.Label = a", "SET a = a - 1", "SET sys.To = NULL"]
usable_filters = (
    st.sampled_from([TrueFilter(), FalseFilter(), CorrelationFilter(label="l")])
    | conditions.map(lambda node: SqlFilter(node.text))
    | st.builds(
        lambda value: CorrelationFilter(properties={"a": value}), values.filter(lambda value: value is not None)
    )
)
usable_rules = st.lists(
    st.builds(Rule, st.just("r"), usable_filters, st.none() | st.sampled_from(ACTIONS).map(SqlAction)), max_size=3
)


@given(st.lists(usable_rules, max_size=4), st.lists(st.dictionaries(st.sampled_from("abc"), values), max_size=3))
def test_a_topic_of_many_subscriptions_is_many_topics_of_one(
    subscriptions: list[list[Rule]], published: list[dict[str, object]]
) -> None:
    """Sharing between subscriptions and rules (the index, equal filters, views) changes no result."""
    messages = [message(user, subject="l") for user in published]
    together = Matcher([Subscription(key, each) for key, each in enumerate(subscriptions)]).match(messages, NOW_MS)
    for key, each in enumerate(subscriptions):
        for at, one in enumerate(messages):
            alone = Matcher([Subscription(key, each)]).match([one], NOW_MS)
            plain = [rule for rule in each if rule.action is None]
            copies = alone.shares.get(key, [])
            assert copies.count(one) == (
                one in Matcher([Subscription(key, plain)]).match([one], NOW_MS).shares.get(key, [])
            )
            assert len([failure for failure in alone.failures if failure.key == key]) <= 1
            assert alone.failures == [
                failure for failure in together.failures if failure.key == key and failure.message is messages[at]
            ]
        separately = [
            copy.data
            for one in messages
            for copy in Matcher([Subscription(key, each)]).match([one], NOW_MS).shares.get(key, [])
        ]
        assert [copy.data for copy in together.shares.get(key, [])] == separately


WIRE_VALUES = [
    Int(-1),
    UByte(200),
    ULong(2**64 - 1),
    Timestamp(5),
    Symbol("s"),
    UUID(int=7),
    b"x",
    ["list"],
    Float(0.5),
]
wire_properties = st.dictionaries(
    st.sampled_from(["a", "A", "b", "Größe", "x" * 300]) | st.text(max_size=3),
    st.none() | st.booleans() | st.integers(-300, 300) | st.text(max_size=4) | st.sampled_from(WIRE_VALUES),
    max_size=5,
)


@settings(max_examples=150)
@given(wire_properties, st.data())
def test_properties_read_in_line_are_what_the_decoder_reads(wire: dict[str, object], data: st.DataObject) -> None:
    """Also of a section that is damaged somewhere."""
    section = encode_application_properties(wire)
    assert read_user(section) == by_name(application_properties(section))
    damaged = bytearray(section)
    damaged[data.draw(st.integers(3, len(section) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(3, len(section)))])
    assert read_user(cut) == by_name(application_properties(cut))


@pytest.mark.row("C38")
def test_durations_of_parameters_are_exact() -> None:
    """A duration is kept in microseconds, and compared in ticks of 100 ns."""
    described = SqlFilter("@a < @b", {"@a": timedelta(microseconds=1), "@b": timedelta(microseconds=2)})
    assert compile_filter(described).constant is None
    assert compile_filter(described).test(GivenView({}, {})) is True
