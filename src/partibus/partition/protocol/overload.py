"""The stores that have more pending work than their limits allow (D24).

A store joins when its queue passes the limits, and leaves when it has caught up. Back-pressure is asked for after every
read of a client, and there is nearly always none: while the set is empty no store needs to be asked.
"""

from typing import Final

overloaded_stores: Final[set[object]] = set()
"""The overloaded routes to stores in this process. A member may have caught up already; none is missing."""
