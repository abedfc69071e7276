"""The shared context of a connection's links that deliver messages."""

from collections.abc import Callable

from msgspec import Struct

from partibus.frontends.amqp.completions import Completions
from partibus.frontends.amqp.congested_links import CongestedLinks
from partibus.limits import ConnectionLimits
from partibus.routing.transactions import Transactions
from partibus.throttling.throttle import Throttle


class LinkContext(Struct):
    """The shared context: made once per connection to a namespace, and passed to each of its links."""

    transactions: Transactions
    """The transactions that settlements may be part of (section 8)."""
    throttle: Throttle
    """The throttle of the namespace's credits."""
    limits: ConnectionLimits
    congested_links: CongestedLinks
    """Links that wait for room on the connection."""
    completions: Completions
    """Completions gathered over its links."""
    flush: Callable[[], None]
    """Requests that pending output is sent when this turn of the loop ends."""
