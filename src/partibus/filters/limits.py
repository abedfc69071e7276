"""What a rule may ask for (dialect sections 11.2, 11.4). A bound that is passed is refused when the rule is made, or
fails the message that would pass it."""

from typing import Final

TEXT_CHARS_MAX: Final = 1024
"""Characters of a filter or an action."""
STATEMENTS_MAX: Final = 32
"""Statements of one action."""
NESTING_MAX: Final = 100
"""Levels of an expression in one another. Each is a call or two in Python, which allows a thousand in all; parentheses
alone, and long runs of AND, OR, + or *, are no levels."""
PROPERTY_CHARS_MAX: Final = 32 * 1024
"""Characters that joining texts may give: 32 statements that each double a property would make gigabytes of it."""
PROPERTIES_BYTES_MAX: Final = 64 * 1024
"""Properties and headers of a message that an action has changed."""
KEY_CHARS_MAX: Final = 128
"""Message id, session id and partition key that an action sets."""

INTEGER_MIN: Final = -(2**63)
INTEGER_MAX: Final = 2**63 - 1
