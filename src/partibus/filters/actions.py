"""Compilation of an action's statements to functions that change a draft in order."""

from collections.abc import Callable, Iterable

from partibus.filters.compiler import Compiler, Value
from partibus.filters.draft import SETTABLE, Draft
from partibus.filters.errors import SqlTextError
from partibus.filters.syntax import Assignment, Statement, SystemProperty

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
