"""A text that is no filter or action is refused with the place where it stops making sense, and what was expected."""

from __future__ import annotations

import pickle

import pytest

from partibus.errors import ArgumentError
from partibus.filters.model import NESTING_MAX, STATEMENTS_MAX, TEXT_CHARS_MAX, SqlAction, SqlFilter
from partibus.filters.sql import compile_action, compile_filter


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("", "line 1, column 1", "a condition was expected, but the text ends"),
        ("a", "line 1, column 2", "a comparison, such as = or LIKE was expected, but the text ends"),
        ("a = ", "line 1, column 5", "a value was expected, but the text ends"),
        ("a = 1 OR", "line 1, column 9", "a condition was expected"),
        ("a = 1\n  b = 2", "line 2, column 3", "the end or AND or OR was expected, not 'b'"),
        ("a = 1;", "line 1, column 6", "not ';'"),
        ("a = 1 = 2", "line 1, column 7", "not '='"),
        ("(a = 1", "line 1, column 7", ") was expected, but the text ends"),
        ("a = 1)", "line 1, column 6", "not ')'"),
        ("a IN ()", "line 1, column 7", "a value was expected, not ')'"),
        ("a IN 1", "line 1, column 6", "( was expected, not '1'"),
        ("a NOT 5", "line 1, column 7", "LIKE was expected, not '5'"),
        ("a IS 5", "line 1, column 6", "NOT or NULL was expected, not '5'"),
        ("1 IS NULL", "line 1, column 3", "not 'IS'"),
        ("EXISTS(5)", "line 1, column 8", "a property was expected, not '5'"),
        ("EXISTS a", "line 1, column 8", "( was expected, not 'a'"),
        ("TRUE", "line 1, column 5", "such as = or LIKE was expected"),
        ("order = 1 and set = 2", "line 1, column 15", "write [set] for a property of that name"),
        ("foo.a = 1", "line 1, column 1", "the scope sys or user was expected, not foo"),
        ("sys.a.b = 1", "line 1, column 6", "not '.'"),
        ("now() = 1", "line 1, column 1", "newid(), property(name) or p(name) was expected, not now()"),
        ("lower(a) = 'x'", "line 1, column 1", "not lower(…)"),
        ("a = 'it", "line 1, column 5", "a text in single quotes is not closed"),
        ("[] = 1", "line 1, column 1", "a name in brackets is empty or not closed"),
        ('"a = 1', "line 1, column 1", "a name in double quotes is empty or not closed"),
        ("_a = 1", "line 1, column 1", "'_' has no meaning here"),
        ("a == 1", "line 1, column 4", "a value was expected, not '='"),
        ("a = 5x", "line 1, column 6", "not 'x'"),
        ("9223372036854775809 = a", "line 1, column 1", "a whole number up to 9223372036854775807"),
        ("a = 1 AND b > @least", "line 1, column 15", "the parameter @least has no value"),
    ],
)
def test_filters(text: str, place: str, problem: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        compile_filter(SqlFilter(text))
    assert type(caught.value) is ArgumentError
    assert place in str(caught.value)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a LIKE 'x' ESCAPE 'xy'", "must be one character"),
        ("a LIKE 'x!' ESCAPE '!'", "ends with its escape character"),
        ("a LIKE 5", "LIKE takes a text as its pattern"),
        ("a LIKE 'x' ESCAPE 5", "one character as its escape"),
        ("a = 1 OR " * 120 + "a = 1", f"at most {TEXT_CHARS_MAX} characters, not 1085"),
        ("NOT " * NESTING_MAX + "a = 1", f"at most {NESTING_MAX} levels of nesting"),
        ("-" * 1000 + "a = 1", "levels of nesting"),
        ("(a+" * 200 + "a" + ")" * 200 + "=1", "levels of nesting"),
        ("p(" * 300 + "'a'" + ")" * 300 + "=1", "levels of nesting"),
    ],
)
def test_filters_that_are_wrong_in_no_one_place(text: str, problem: str) -> None:
    with pytest.raises(ArgumentError, match="must be an SQL filter") as caught:
        compile_filter(SqlFilter(text))
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "REMOVE or SET was expected, but the text ends"),
        ("a = 1", "REMOVE or SET was expected, not 'a'"),
        ("SET a", "= was expected, but the text ends"),
        ("SET a = (b = 1)", "column 12, near"),
        ("SET a = 1,, SET b = 1", "the end or REMOVE or SET was expected, not ','"),
        ("SET a = 1 REMOVE b", "the end or , or ; was expected, not 'REMOVE'"),
        ("SET p('a') = 1", "not '('"),
        ("REMOVE", "a property was expected"),
        ("SET sys.SequenceNumber = 1", "a system property that can be set was expected, not sys.sequencenumber"),
        ("SET sys.Colour = 1", "a system property that can be set was expected, not sys.colour"),
        ("REMOVE sys.Size", "not sys.size"),
        ("REMOVE sys.MessageId", "can be removed was expected, not sys.MessageId"),
        ("SET a = @x", "the parameter @x has no value"),
        ("SET a = 1;" * (STATEMENTS_MAX + 1), f"at most {STATEMENTS_MAX} statements were expected, not 33"),
    ],
)
def test_actions(text: str, problem: str) -> None:
    with pytest.raises(ArgumentError, match="must be an SQL action") as caught:
        compile_action(SqlAction(text))
    assert problem in str(caught.value)


def test_as_much_as_is_allowed() -> None:
    compile_filter(SqlFilter("(" * 509 + "a = 1" + ")" * 509))
    compile_filter(SqlFilter("(" * 510 + "a" + ")" * 510 + "=1"))
    compile_filter(SqlFilter("a=1 OR " * 145 + "a=1"))
    compile_filter(SqlFilter("a+" * 500 + "a = 1"))
    compile_filter(SqlFilter("a = '" + "x" * (TEXT_CHARS_MAX - 6) + "'"))
    compile_action(SqlAction("SET a = 1;" * STATEMENTS_MAX))


def test_the_error_names_the_callers_field_and_travels_between_brokers() -> None:
    with pytest.raises(
        ArgumentError, match=r"^Filter of rule r is 'a =', but must be an SQL filter\. At line"
    ) as caught:
        compile_filter(SqlFilter("a ="), "Filter of rule r")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
