"""The definition of a rule, as the admin API, Config.json and the catalog express it."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct, field

Constant = bool | int | float | str | datetime | timedelta
"""A value in a comparison: a parameter of an SQL text, or a property of a correlation filter."""

DEFAULT_RULE = "$Default"
"""The name of a new subscription's first rule."""


class SqlFilter(Struct, frozen=True):
    """A filter that selects the messages for which an expression is true (dialect section 11.4)."""

    expression: str
    parameters: Mapping[str, Constant] = field(default_factory=dict)
    """The parameters by name, with the leading ``@``."""


class TrueFilter(Struct, frozen=True):
    """A filter that selects every message."""


class FalseFilter(Struct, frozen=True):
    """A filter that selects no message."""


class CorrelationFilter(Struct, frozen=True):
    """A filter that selects the messages with all of these values; None is not compared."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Mapping[str, Constant] = field(default_factory=dict)
    """The application properties, compared by value and type."""


TRUE_EXPRESSION: Final = "1=1"
FALSE_EXPRESSION: Final = "1=0"
"""The false filter's text where only SQL filters exist: in Config.json, in JavaScript's add-rule, in ATOM."""


def sql_filter(expression: str, parameters: Mapping[str, Constant] | None = None) -> "Filter":
    """Return the filter of an expression, a true or false filter for their texts (ignoring blanks)."""
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
