"""The definition of a rule, as the admin API, Config.json and the catalog express it: its limits and its errors.

The limits are those of the service (dialect sections 11.2, 11.4). A rule that exceeds a limit is refused when it is
created, or fails for the message that would exceed it.
"""

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


class SqlTextError(Exception):
    """Error for a filter or action that is not valid SQL. `partibus.filters.sql` turns it into an `ArgumentError`."""

    def __init__(self, at: int | None, problem: str) -> None:
        super().__init__(at, problem)
        self.at = at
        """The index of the first invalid character; None where the error has no single place."""
        self.problem = problem
        """The expected and the actual text, as a sentence without a full stop."""


class EvaluationError(Exception):
    """Error for a rule that fails on a message. Its text gives the reason as a whole sentence."""


class HeadersTooLarge(EvaluationError):
    """Error for a copy whose properties exceed the limit of a message after an action (dialect section 11.2)."""


TEXT_CHARS_MAX: Final = 1024
"""Characters of a filter or an action."""
STATEMENTS_MAX: Final = 32
"""Statements of one action."""
NESTING_MAX: Final = 100
"""The nesting depth of an expression. Each level takes one or two calls in Python, which allows a thousand in all.
Parentheses alone, and long runs of AND, OR, + or *, add no levels.
"""
PROPERTY_CHARS_MAX: Final = 32 * 1024
"""Characters of a concatenated text: 32 statements that each double a property would otherwise make gigabytes of it."""
PROPERTIES_BYTES_MAX: Final = 64 * 1024
"""Bytes of the properties and headers of a message that an action has changed."""
LIKE_CHARS_MAX: Final = 1024
"""Characters of a pattern, also of one from a message. The bound is the same as that of a text with a pattern."""
RULE_WORK_MAX: Final = 100_000
"""Units of work of one rule on one message. A unit is the time to read one character in Python, a tenth of a
microsecond. Comparisons and arithmetic are free: a text has room for some hundreds, and each takes less than a
microsecond.
"""
MESSAGE_WORK_MAX: Final = 400_000
"""Units of work of all rules of a topic on one message: 40 ms, since the rules of a message are evaluated without a
pause.
"""
CHARS_PER_UNIT: Final = 64
"""Characters of two texts that are concatenated in one unit of work."""
COPY_UNITS: Final = 10
"""Units of work for each application property of a copy that an action changes, because each is encoded again."""
COPY_BYTES_PER_UNIT: Final = 1000
"""Bytes of such a copy that are copied in one unit of work."""
KEY_CHARS_MAX: Final = 128
"""Characters of a message id, session id or partition key that an action sets."""

INTEGER_MIN: Final = -(2**63)
INTEGER_MAX: Final = 2**63 - 1
