"""The budget of a namespace per period and the cost of each operation: options of the namespace (rows R1-R5, D23).

A namespace gets ``credits_per_s`` credits per second, granted at the start of each period. Periods are aligned with the
clock: period n goes from n * ``period_ms`` to (n + 1) * ``period_ms`` of the broker's time. So every broker numbers
them alike, and a manual clock moves them. The defaults are those of the standard tier (seed 1, `docs/dialect.md` 7.4).
"""

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import force_setattr

from partibus.errors import ArgumentError

CREDITS_PER_S_MAX = 1_000_000_000
"""More than a broker could ever use; it keeps sums small integers."""
PERIOD_MIN_MS = 100
"""A shorter period would be over before a grant from another broker arrives."""
PERIOD_MAX_MS = 60_000
COST_MAX = 1_000_000

_COSTS = ("send_credits", "receive_credits", "peek_credits", "management_credits", "filter_credits")


class ThrottlingPolicy(StrEnum):
    """The treatment of a namespace without credits."""

    OFF = "off"
    """The broker counts nothing."""
    OBSERVE = "observe"
    """The broker counts everything and refuses nothing; it also counts what it would have refused."""
    ENFORCE = "enforce"
    """The broker refuses requests and withholds deliveries until there are credits again."""


class ThrottlingSettings(Struct, frozen=True):
    """The throttling of one namespace.

    Raises ArgumentError, which names the field, its value and what is allowed.
    """

    policy: ThrottlingPolicy = ThrottlingPolicy.OFF
    credits_per_s: int = 1_000
    period_ms: int = 1_000
    send_credits: int = 1
    """Per message; a batch costs the sum of its messages."""
    receive_credits: int = 1
    """Per message delivered: by a link, by number or over HTTP."""
    peek_credits: int = 1
    """Per message shown, by a peek or as part of a range."""
    management_credits: int = 10
    """Per creation, read, update or deletion of entities, rules and access policies."""
    filter_credits: int = 1
    """Per message sent to a topic and rule of its subscriptions, in addition to the send."""

    def __post_init__(self) -> None:
        force_setattr(self, "policy", _policy(self.policy))  # may be given as its text
        _check("credits_per_s", self.credits_per_s, 1, CREDITS_PER_S_MAX)
        _check("period_ms", self.period_ms, PERIOD_MIN_MS, PERIOD_MAX_MS)
        for name in _COSTS:
            _check(name, getattr(self, name), 0, COST_MAX)
        if self.credits_per_s * self.period_ms % 1_000:
            raise ArgumentError(
                "period_ms",
                self.period_ms,
                f"such that {self.credits_per_s} credits per second are a whole number of credits per period",
                "Use 1000.",
            )

    @property
    def period_credits(self) -> int:
        """The credits that each period begins with; at least one."""
        return self.credits_per_s * self.period_ms // 1_000


def _policy(text: object) -> ThrottlingPolicy:
    try:
        return ThrottlingPolicy(str(text))
    except ValueError:
        raise ArgumentError("policy", text, "one of off, observe, enforce") from None


def _check(name: str, value: object, least: int, most: int) -> None:
    # To Python a bool is an int; here it is a mistake.
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ArgumentError(name, value, f"a whole number from {least} to {most}")
