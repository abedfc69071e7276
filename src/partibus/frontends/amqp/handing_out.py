"""What links that hand messages out have in common on one connection."""

from collections.abc import Callable

from msgspec import Struct

from partibus.frontends.amqp.completions import Completions
from partibus.frontends.amqp.held_back import HeldBack
from partibus.limits import ConnectionLimits
from partibus.routing.transactions import Transactions
from partibus.throttling.throttle import Throttle


class HandingOut(Struct):
    """Made once for a connection to a namespace; each link gets it beside what is its own."""

    transactions: Transactions
    """Those that settlements may be part of (section 8)."""
    throttle: Throttle
    """What counts the namespace's credits."""
    limits: ConnectionLimits
    held_back: HeldBack
    """Links that wait for room on the connection."""
    completions: Completions
    """Gathered over its links."""
    flush: Callable[[], None]
    """Have what was said sent when this turn of the loop ends."""
