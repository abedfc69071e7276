"""What a rule is told to be, as the admin API, Config.json and the catalog say it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

Constant = bool | int | float | str | datetime | timedelta
"""A value that a filter compares with: a parameter of an SQL text, or a property of a correlation filter."""

DEFAULT_RULE = "$Default"
"""Name of the rule that a subscription begins with."""


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """Selects the messages for which an expression is true (dialect section 11.4)."""

    expression: str
    parameters: Mapping[str, Constant] = field(default_factory=dict)
    """By name, with the leading ``@``."""


@dataclass(frozen=True, slots=True)
class TrueFilter:
    """Selects every message."""


@dataclass(frozen=True, slots=True)
class FalseFilter:
    """Selects none."""


@dataclass(frozen=True, slots=True)
class CorrelationFilter:
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


Filter = SqlFilter | TrueFilter | FalseFilter | CorrelationFilter


@dataclass(frozen=True, slots=True)
class SqlAction:
    """Statements that change the copy of a message (dialect section 11.4)."""

    expression: str
    parameters: Mapping[str, Constant] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a subscription. Names compare without case."""

    name: str
    filter: Filter
    action: SqlAction | None = None
    created_ms: int = 0
