"""Rules as a namespace takes them: names that can be, filters and actions that can be compiled."""

from collections.abc import Sequence

from partibus.errors import ArgumentError
from partibus.filters.correlation import compares_nothing
from partibus.filters.model import DEFAULT_RULE, CorrelationFilter, Rule, SqlFilter, TrueFilter
from partibus.filters.plain import same
from partibus.namespace.names import check_rule_name, fold_name


def default_rule() -> Rule:
    """What a subscription begins with unless another rule is given."""
    return Rule(DEFAULT_RULE, TrueFilter())


def check_rule(rule: Rule) -> None:
    """ArgumentError when it can't be a rule: for its name, for a text that is none of the language, for a filter that
    compares nothing."""
    check_rule_name(rule.name)
    if isinstance(rule.filter, CorrelationFilter) and compares_nothing(rule.filter):
        raise ArgumentError("CorrelationFilter", "empty", "a filter that compares at least one property")
    if isinstance(rule.filter, SqlFilter) or rule.action is not None:
        # Where there are no such rules nobody pays for the language: it takes a tenth of a second to load.
        from partibus.filters.sql import compile_action, compile_filter

        if isinstance(rule.filter, SqlFilter):
            compile_filter(rule.filter)
        if rule.action is not None:
            compile_action(rule.action, "Action")


def same_rules(some: Sequence[Rule], others: Sequence[Rule]) -> bool:
    """The same ones in any order; when they were made does not count."""
    by_name = {fold_name(rule.name): rule for rule in others}
    return len(some) == len(by_name) and all(
        (other := by_name.get(fold_name(rule.name))) is not None and same(rule, other) for rule in some
    )
