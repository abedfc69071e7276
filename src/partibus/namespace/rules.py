"""Rules as a namespace takes them: names that can be, filters and actions that can be compiled."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from partibus.errors import ArgumentError
from partibus.filters.correlation import compares_nothing
from partibus.filters.model import (
    DEFAULT_RULE,
    INTEGER_MAX,
    INTEGER_MIN,
    PROPERTY_CHARS_MAX,
    Constant,
    CorrelationFilter,
    Filter,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from partibus.filters.plain import same
from partibus.namespace.names import check_rule_name, fold_name

_MICROSECOND: Final = timedelta(microseconds=1)


def default_rule() -> Rule:
    """Return the first rule of a subscription that is made without rules."""
    return Rule(DEFAULT_RULE, TrueFilter())


def check_rule(rule: Rule) -> None:
    """Check a rule.

    Raises `ArgumentError` for its name, for a text that is not in the language, for a filter that compares nothing, and
    for a value that no message has.
    """
    check_rule_name(rule.name)
    _check_constants("Properties" if isinstance(rule.filter, CorrelationFilter) else "Parameters", rule.filter)
    _check_constants("Parameters of the Action", rule.action)
    if isinstance(rule.filter, CorrelationFilter) and compares_nothing(rule.filter):
        raise ArgumentError("CorrelationFilter", "empty", "a filter that compares at least one property")
    if isinstance(rule.filter, SqlFilter) or rule.action is not None:
        # The import is here because the language takes a tenth of a second to load, and most brokers have no such
        # rules.
        from partibus.filters.sql import compile_action, compile_filter

        if isinstance(rule.filter, SqlFilter):
            compile_filter(rule.filter)
        if rule.action is not None:
            compile_action(rule.action, "Action")


def _check_constants(field: str, described: Filter | SqlAction | None) -> None:
    """Everything that a rule compares with can be kept, shown and compared: it has a form in AMQP."""
    match described:
        case CorrelationFilter():
            constants = described.properties
        case SqlFilter() | SqlAction():
            constants = described.parameters
        case _:
            return
    for name, value in constants.items():
        bound = _bound_passed(value)
        if bound:
            raise ArgumentError(f"{name} of {field}", str(value), bound)
    characters = sum(len(name) + (len(value) if isinstance(value, str) else 0) for name, value in constants.items())
    if characters > PROPERTY_CHARS_MAX:
        raise ArgumentError(
            field, f"{characters} characters", f"at most {PROPERTY_CHARS_MAX}, names and texts together"
        )


def _bound_passed(value: Constant) -> str:
    """Return the bound that a value exceeds; empty when it is within."""
    if isinstance(value, datetime):
        try:
            (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC)
        except OverflowError:
            return "a time that is in the years 1 to 9999 in UTC, too"
    elif isinstance(value, timedelta):
        if not INTEGER_MIN <= value // _MICROSECOND * 10 <= INTEGER_MAX:
            return "a duration of less than 29,000 years"
    elif isinstance(value, int) and not INTEGER_MIN <= value <= INTEGER_MAX:
        return "a whole number of 64 bits"
    return ""


def same_rules(some: Sequence[Rule], others: Sequence[Rule]) -> bool:
    """Tell whether the rules are the same in any order; their creation times do not count."""
    by_name = {fold_name(rule.name): rule for rule in others}
    return len(some) == len(by_name) and all(
        (other := by_name.get(fold_name(rule.name))) is not None and same(rule, other) for rule in some
    )
