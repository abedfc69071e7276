"""What a broker has counted of one namespace's credits: for metrics, tests and whoever wants to know what it costs.

Bounded: a number per kind of operation, whatever names clients use.
"""

from enum import IntEnum


class Operation(IntEnum):
    """What credits are paid for; the values are places in the lists of `Counters`."""

    SEND = 0
    """A message that is sent or scheduled."""
    FILTER = 1
    """A rule that a message to a topic was compared with."""
    RECEIVE = 2
    """A message that was delivered."""
    PEEK = 3
    """A message that was shown and stays."""
    MANAGEMENT = 4
    """A request about entities, rules or policies."""


OPERATIONS = tuple(operation.name.lower() for operation in Operation)
"""As labels."""


class Counters:
    """Since this broker knows the namespace; they only rise."""

    __slots__ = ("throttled", "used", "would_throttle")

    def __init__(self) -> None:
        self.used = [0] * len(OPERATIONS)
        """Credits, by `Operation`. Under the policy observe also those of what would have been refused."""
        self.throttled = [0] * len(OPERATIONS)
        """Requests that were refused, and receivers that were made to wait for the next period, by `Operation`. What is
        sent to a topic counts as `Operation.SEND`."""
        self.would_throttle = [0] * len(OPERATIONS)
        """As above, under the policy observe: what was done all the same."""
