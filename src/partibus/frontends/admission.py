"""Connections that have shown no claim: how many there may be, and which one goes when there are too many.

Every connection counts from its first moment, over AMQP, websockets and HTTP, and stops counting with its first claim.
When one is too many the broker drops the oldest of the address that has the most: a client shows its claim within
moments, so the oldest is one that never will. A new connection is never refused for the others, so clients get in as
long as they show their claims faster than a stranger fills the whole bound anew.

File descriptors are bounded too. A connection takes one, and stores and the catalog need some of their own, so the
number of all connections has a bound; where claimed connections take all of it, a new one is dropped at once.
"""

import logging
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import Final, Protocol

from partibus.limits import AdmissionLimits

log = logging.getLogger(__name__)

LOG_EVERY_S: Final = 10.0
_NETWORK_BITS: Final = 64
"""Of an IPv6 address: a single customer gets that many to choose from."""


class Connection(Protocol):
    """What can be dropped. Told apart by identity."""

    def drop(self) -> None:
        """End without a word. `Admission.leave` may be called for it later."""
        ...


class Admission:
    """Of one broker process."""

    def __init__(self, limits: AdmissionLimits, now_s: Callable[[], float]) -> None:
        """``now_s``: seconds from whenever on, for what is logged."""
        self.limits = limits
        self.connections_max: int | None = None
        """Of all, claimed or not; None: no bound."""
        self.dropped = 0
        """Connections, since the start."""
        self._now_s = now_s
        self._unclaimed: dict[Connection, str] = {}
        """By age, with their addresses."""
        self._by_address: dict[str, dict[Connection, None]] = {}
        self._claimed: set[Connection] = set()
        self._logged_s = -LOG_EVERY_S
        self._dropped_since = 0

    @property
    def unclaimed(self) -> int:
        """Connections that have shown no claim."""
        return len(self._unclaimed)

    @property
    def unclaimed_max(self) -> int:
        """Half of all connections at most: the others are for those with claims."""
        most = self.limits.unclaimed_max
        return most if self.connections_max is None else max(1, min(most, self.connections_max // 2))

    def enter(self, connection: Connection, host: str | None) -> bool:
        """Count a new connection from ``host``. False: it was dropped, since claimed ones take all that there is."""
        address = address_of(host)
        self._unclaimed[connection] = address
        beside = self._by_address.setdefault(address, {})
        beside[connection] = None
        if len(beside) > self.limits.unclaimed_of_address_max:
            self._drop(next(iter(beside)), f"{address} has {self.limits.unclaimed_of_address_max}")
        elif len(self._unclaimed) > self.unclaimed_max:
            self._drop_one(f"there are {self.unclaimed_max}")
        elif self.connections_max is not None and self._total > self.connections_max:
            self._drop_one(f"there are {self.connections_max} connections, with claims or without,")
        return connection in self._unclaimed

    def claim(self, connection: Connection) -> None:
        """It has shown a claim."""
        if connection in self._unclaimed:
            self._remove(connection)
            self._claimed.add(connection)

    def leave(self, connection: Connection) -> None:
        """It has ended. Idempotent."""
        self._claimed.discard(connection)
        if connection in self._unclaimed:
            self._remove(connection)

    @property
    def _total(self) -> int:
        return len(self._unclaimed) + len(self._claimed)

    def _drop_one(self, why: str) -> None:
        most = max(self._by_address.values(), key=len)
        self._drop(next(iter(most)), why)

    def _drop(self, connection: Connection, why: str) -> None:
        self._remove(connection)
        self.dropped += 1
        self._dropped_since += 1
        now_s = self._now_s()
        if now_s - self._logged_s >= LOG_EVERY_S:
            log.warning(
                "%d connections without a claim were dropped, the oldest: %s of them already", self._dropped_since, why
            )
            self._logged_s, self._dropped_since = now_s, 0
        connection.drop()

    def _remove(self, connection: Connection) -> None:
        address = self._unclaimed.pop(connection)
        beside = self._by_address[address]
        del beside[connection]
        if not beside:
            del self._by_address[address]


def address_of(host: str | None) -> str:
    """What connections of one client have in common: an IPv4 address, or the network of an IPv6 address."""
    try:
        address = ip_address((host or "").partition("%")[0])
    except ValueError:
        return ""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return f"{IPv6Address(int(address) >> _NETWORK_BITS << _NETWORK_BITS)}/{_NETWORK_BITS}"
    return str(address)
