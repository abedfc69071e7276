"""Counters of one namespace's credits in one broker, for metrics and tests.

They are bounded: one number per kind of operation, whatever names clients use.
"""

from enum import IntEnum


class Operation(IntEnum):
    """Operations that cost credits. The values are indexes into the lists of `Counters`."""

    SEND = 0
    """A message sent or scheduled."""
    FILTER = 1
    """A rule evaluated on a message to a topic."""
    RECEIVE = 2
    """A message delivered."""
    PEEK = 3
    """A message peeked at."""
    MANAGEMENT = 4
    """A request about entities, rules or policies."""


OPERATIONS = tuple(operation.name.lower() for operation in Operation)
"""Their names as labels."""


class Counters:
    """Counters since this broker knows the namespace. They only rise."""

    __slots__ = ("throttled", "used", "would_throttle")

    def __init__(self) -> None:
        self.used = [0] * len(OPERATIONS)
        """Credits used, by `Operation`. Under the policy observe they include requests that would have been refused."""
        self.throttled = [0] * len(OPERATIONS)
        """Refused requests, and receivers made to wait for the next period, by `Operation`.

        A send to a topic counts as `Operation.SEND`.
        """
        self.would_throttle = [0] * len(OPERATIONS)
        """Requests served under the policy observe that enforce would have refused."""
