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
LIKE_CHARS_MAX: Final = 1024
"""Characters of a pattern, also of one that comes out of a message: as many as a text has that holds one."""
RULE_WORK_MAX: Final = 100_000
"""Units of work of one rule on one message. A unit is what reading one character in Python takes, a tenth of a
microsecond. Comparisons and arithmetic are not counted: a text has room for some hundreds, each takes less than a
microsecond."""
MESSAGE_WORK_MAX: Final = 400_000
"""Units of work of all rules of a topic on one message: 40 ms, since the rules of a message are evaluated in one go."""
CHARS_PER_UNIT: Final = 64
"""Characters of two texts that are joined in a unit of work."""
COPY_UNITS: Final = 10
"""Units of work for each application property of a copy that an action changes: it is written again."""
COPY_BYTES_PER_UNIT: Final = 1000
"""Bytes of such a copy that are copied in a unit of work."""
KEY_CHARS_MAX: Final = 128
"""Message id, session id and partition key that an action sets."""

INTEGER_MIN: Final = -(2**63)
INTEGER_MAX: Final = 2**63 - 1
