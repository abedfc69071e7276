"""What a namespace may do per period and what each operation costs: data that its options hold (rows R1-R5, D23).

A namespace gets ``credits_per_s`` credits per second, handed out at the start of each period. Periods are aligned with
the clock: period n of a namespace goes from n * ``period_ms`` to (n + 1) * ``period_ms`` of the broker's time, so that
every broker names them alike and a manual clock moves them. The defaults are those of the standard tier (seed 1,
`docs/dialect.md` 7.4).
"""

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import force_setattr

from partibus.errors import ArgumentError

CREDITS_PER_S_MAX = 1_000_000_000
"""What a broker could never reach; a bound so that sums stay small integers."""
PERIOD_MIN_MS = 100
"""Shorter ones would be gone before a grant has come from another broker."""
PERIOD_MAX_MS = 60_000
COST_MAX = 1_000_000

_COSTS = ("send_credits", "receive_credits", "peek_credits", "management_credits", "filter_credits")


class ThrottlingPolicy(StrEnum):
    """What is done about a namespace that is out of credits."""

    OFF = "off"
    """Nothing is counted."""
    OBSERVE = "observe"
    """Everything is counted and nothing refused; what would have been refused is counted, too."""
    ENFORCE = "enforce"
    """Requests are refused and deliveries withheld until there are credits again."""


class ThrottlingSettings(Struct, frozen=True):
    """How one namespace is throttled.

    Raises ArgumentError, which names the field, its value and what is allowed.
    """

    policy: ThrottlingPolicy = ThrottlingPolicy.OFF
    credits_per_s: int = 1_000
    period_ms: int = 1_000
    send_credits: int = 1
    """Per message; a batch costs what its messages cost."""
    receive_credits: int = 1
    """Per message delivered: by a link, by number or over HTTP."""
    peek_credits: int = 1
    """Per message shown, by a peek or as part of a range."""
    management_credits: int = 10
    """Per creation, read, update or removal of entities, rules and access policies."""
    filter_credits: int = 1
    """Per message sent to a topic and rule of its subscriptions, besides the cost of the send."""

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
        """What each period begins with; at least one."""
        return self.credits_per_s * self.period_ms // 1_000


def setting_names() -> tuple[str, ...]:
    """Every field of `ThrottlingSettings`, in their order."""
    return ThrottlingSettings.__struct_fields__


def _policy(text: object) -> ThrottlingPolicy:
    try:
        return ThrottlingPolicy(str(text))
    except ValueError:
        raise ArgumentError("policy", text, "one of off, observe, enforce") from None


def _check(name: str, value: object, least: int, most: int) -> None:
    # A bool is an int to Python and a mistake here.
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ArgumentError(name, value, f"a whole number from {least} to {most}")
