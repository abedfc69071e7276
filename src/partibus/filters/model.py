"""What a rule is told to be, as the admin API, Config.json and the catalog say it."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct, field

Constant = bool | int | float | str | datetime | timedelta
"""A value that a filter compares with: a parameter of an SQL text, or a property of a correlation filter."""

DEFAULT_RULE = "$Default"
"""Name of the rule that a subscription begins with."""


class SqlFilter(Struct, frozen=True):
    """Selects the messages for which an expression is true (dialect section 11.4)."""

    expression: str
    parameters: Mapping[str, Constant] = field(default_factory=dict)
    """By name, with the leading ``@``."""


class TrueFilter(Struct, frozen=True):
    """Selects every message."""


class FalseFilter(Struct, frozen=True):
    """Selects none."""


class CorrelationFilter(Struct, frozen=True):
    """Selects the messages that have all of these values; None: not compared."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Mapping[str, Constant] = field(default_factory=dict)
    """Application properties, compared by value and type."""


TRUE_EXPRESSION: Final = "1=1"
FALSE_EXPRESSION: Final = "1=0"
"""True and false filters, where there are SQL filters only: in Config.json, in JavaScript's add-rule, in ATOM."""


def sql_filter(expression: str, parameters: Mapping[str, Constant] | None = None) -> "Filter":
    """The filter of an expression: true and false filters are known by their text, blanks aside."""
    match expression.replace(" ", ""):
        case "1=1":
            return TrueFilter()
        case "1=0":
            return FalseFilter()
    return SqlFilter(expression, parameters or {})


Filter = SqlFilter | TrueFilter | FalseFilter | CorrelationFilter


class SqlAction(Struct, frozen=True):
    """Statements that change the copy of a message (dialect section 11.4)."""

    expression: str
    parameters: Mapping[str, Constant] = field(default_factory=dict)


class Rule(Struct, frozen=True):
    """One rule of a subscription. Names compare without case."""

    name: str
    filter: Filter
    action: SqlAction | None = None
    created_ms: int = 0
