"""Compiled SQL filters and actions, cached by their texts and parameters.

The parser's library is imported with the first text, so that a broker without SQL filters starts without it.

An action's statements become functions that change a draft in order.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from partibus.errors import ArgumentError, shown
from partibus.filters.model import Constant, EvaluationError, SqlAction, SqlFilter, SqlTextError
from partibus.filters.view import GivenView, MessageView
from partibus.message import Message

if TYPE_CHECKING:
    from partibus.filters.compiler import Test
    from partibus.filters.syntax import Predicate
from collections.abc import Callable, Iterable

from partibus.filters.compiler import Compiler, Value
from partibus.filters.draft import SETTABLE, Draft
from partibus.filters.syntax import Assignment, Statement, SystemProperty

REMEMBERED_MAX: Final = 8_192
"""The number of cached texts: a change of one rule of a topic must not recompile the other 1,999. A text takes a fifth
of a millisecond to parse and some kilobytes to keep.
"""
_NEAR_CHARS: Final = 20
"""The number of characters on each side of an error that its text repeats."""


class CompiledFilter(Struct, frozen=True):
    """A compiled filter.

    ``test`` returns true, false or None (unknown) for a view of a message; only true selects.
    """

    test: "Test"
    constant: bool | None
    """The filter's result if it is the same for every message, else None; unknown selects no message, as false."""


class CompiledAction(Struct, frozen=True):
    """A compiled action, which makes a changed copy of a message."""

    _changes: "tuple[Change, ...]"

    def __call__(self, view: MessageView, rule_name: str) -> Message:
        """Return the copy for one rule. Raises `EvaluationError`."""
        from partibus.filters.draft import Draft

        draft = Draft(view)
        for change in self._changes:
            change(draft)
        return draft.message(rule_name)


def compile_filter(described: SqlFilter, field: str = "SqlExpression") -> CompiledFilter:
    """Compile a filter.

    Raises `ArgumentError` whose text gives the position of the error and the expected text. ``field`` is the
    caller's name of the expression.
    """
    try:
        return _filter(described.expression, _hashable(described.parameters))
    except SqlTextError as error:
        raise _refusal(field, "an SQL filter", described.expression, error) from None


def compile_action(described: SqlAction, field: str = "SqlExpression") -> CompiledAction:
    """Compile an action. Raises as `compile_filter` does."""
    try:
        return _action(described.expression, _hashable(described.parameters))
    except SqlTextError as error:
        raise _refusal(field, "an SQL action", described.expression, error) from None


_Parameters = tuple[tuple[str, type, Constant], ...]


def _hashable(parameters: Mapping[str, Constant]) -> _Parameters:
    """Return the parameters with their types, since 1, 1.0 and true are equal."""
    return tuple(sorted(((name, type(value), value) for name, value in parameters.items()), key=lambda each: each[0]))


@lru_cache(REMEMBERED_MAX)
def _filter(expression: str, parameters: _Parameters) -> CompiledFilter:
    from partibus.filters.compiler import Compiler
    from partibus.filters.parser import parse_filter

    node = parse_filter(expression)
    test = Compiler({name: value for name, _, value in parameters}).rule(node)
    return CompiledFilter(test, _constant(node, test))


@lru_cache(REMEMBERED_MAX)
def _action(expression: str, parameters: _Parameters) -> CompiledAction:
    from partibus.filters.compiler import Compiler
    from partibus.filters.parser import parse_action

    compiler = Compiler({name: value for name, _, value in parameters})
    return CompiledAction(tuple(changes(parse_action(expression), compiler)))


def _constant(node: "Predicate", test: "Test") -> bool | None:
    """Return the result of a comparison of two constants, such as 1=1, as true and false filters are written."""
    from partibus.filters.syntax import Comparison
    from partibus.filters.syntax import Constant as ConstantNode

    if isinstance(node, Comparison) and isinstance(node.left, ConstantNode) and isinstance(node.right, ConstantNode):
        return test(GivenView({}, {})) is True
    return None


def _refusal(field: str, what: str, text: str, error: SqlTextError) -> ArgumentError:
    if error.at is None:
        return ArgumentError(field, text, f"{what}: {error.problem}")
    before, after = text[: error.at], text[error.at :]
    line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
    near = before[-_NEAR_CHARS:] + "»" + after[:_NEAR_CHARS]
    return ArgumentError(field, text, f"{what}. At line {line}, column {column}, near {shown(near)}: {error.problem}")


def explain(expression: str, user: Mapping[str, object], system: Mapping[str, object]) -> bool | str | None:
    """Evaluate an expression for a message with these properties.

    Returns true, false, None for unknown, or the text of the evaluation error. Raises `ArgumentError` for an invalid
    expression.
    """
    compiled = compile_filter(SqlFilter(expression))
    try:
        return compiled.test(GivenView(dict(user), dict(system)))
    except EvaluationError as error:
        return str(error)


Change = Callable[[Draft], None]


def changes(statements: Iterable[Statement], compiler: Compiler) -> list[Change]:
    """Return one function for each statement.

    Raises `SqlTextError` for an error that shows without a message.
    """
    return [_change(statement, compiler) for statement in statements]


def _change(statement: Statement, compiler: Compiler) -> Change:
    subject = statement.subject
    value = compiler.value(statement.value) if isinstance(statement, Assignment) else None
    if isinstance(subject, SystemProperty):
        _check_settable(subject, removed=value is None)
        return _set_system(subject.name, value)
    name, spelled = subject.name, subject.spelled
    if value is None:
        return lambda draft: draft.remove_user(name)
    return lambda draft: draft.set_user(name, spelled, value(draft))


def _set_system(name: str, value: Value | None) -> Change:
    if value is None:
        return lambda draft: draft.set_system(name, None)
    return lambda draft: draft.set_system(name, value(draft))


def _check_settable(subject: SystemProperty, *, removed: bool) -> None:
    if subject.name not in SETTABLE:
        raise SqlTextError(subject.at, f"a system property that can be set was expected, not sys.{subject.name[:60]}")
    if removed and subject.name == "messageid":
        raise SqlTextError(subject.at, "a system property that can be removed was expected, not sys.MessageId")
