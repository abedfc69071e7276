"""The limits of a rule (dialect sections 11.2, 11.4).

A rule that exceeds a limit is refused when it is created, or fails for the message that would exceed it.
"""

from typing import Final

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
