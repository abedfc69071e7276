"""SQL filters and actions ready for use, remembered by their texts and parameters.

The parser's library is imported with the first text, so that a broker without SQL filters starts without it.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from partibus.errors import ArgumentError, shown
from partibus.filters.errors import EvaluationError, SqlTextError
from partibus.filters.model import Constant, SqlAction, SqlFilter
from partibus.filters.view import GivenView, MessageView
from partibus.message import Message

if TYPE_CHECKING:
    from partibus.filters.actions import Change
    from partibus.filters.compiler import Test
    from partibus.filters.syntax import Predicate

REMEMBERED_MAX: Final = 8_192
"""Texts that stay compiled, so that a change of one rule of a topic costs nothing for the other 1,999. A text takes a
fifth of a millisecond to parse and some kilobytes to keep."""
_NEAR_CHARS: Final = 20
"""Characters around an error that its text repeats, on each side."""


class CompiledFilter(Struct, frozen=True):
    """``test`` says of a view of a message true, false or None (unknown); only true selects."""

    test: "Test"
    constant: bool | None
    """What it says of every message, None where that depends on the message; unknown selects as little as false."""


class CompiledAction(Struct, frozen=True):
    """Makes a changed copy of a message."""

    _changes: "tuple[Change, ...]"

    def __call__(self, view: MessageView, rule_name: str) -> Message:
        """The copy for one rule. Raises `EvaluationError`."""
        from partibus.filters.draft import Draft

        draft = Draft(view)
        for change in self._changes:
            change(draft)
        return draft.message(rule_name)


def compile_filter(described: SqlFilter, field: str = "SqlExpression") -> CompiledFilter:
    """Raises `ArgumentError`, whose text says where the expression stops making sense and what was expected; ``field``
    is what the caller calls it."""
    try:
        return _filter(described.expression, _hashable(described.parameters))
    except SqlTextError as error:
        raise _refusal(field, "an SQL filter", described.expression, error) from None


def compile_action(described: SqlAction, field: str = "SqlExpression") -> CompiledAction:
    """As `compile_filter`."""
    try:
        return _action(described.expression, _hashable(described.parameters))
    except SqlTextError as error:
        raise _refusal(field, "an SQL action", described.expression, error) from None


_Parameters = tuple[tuple[str, type, Constant], ...]


def _hashable(parameters: Mapping[str, Constant]) -> _Parameters:
    """With the types, since 1, 1.0 and true are equal."""
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
    from partibus.filters.actions import changes
    from partibus.filters.compiler import Compiler
    from partibus.filters.parser import parse_action

    compiler = Compiler({name: value for name, _, value in parameters})
    return CompiledAction(tuple(changes(parse_action(expression), compiler)))


def _constant(node: "Predicate", test: "Test") -> bool | None:
    """The answer of the way in which true and false filters are written: two constants, such as 1=1, compared."""
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
    """What an expression says of a message with these properties: true, false, None for unknown, or the text of the
    error that it ends with. Raises `ArgumentError` for an expression that is none."""
    compiled = compile_filter(SqlFilter(expression))
    try:
        return compiled.test(GivenView(dict(user), dict(system)))
    except EvaluationError as error:
        return str(error)
