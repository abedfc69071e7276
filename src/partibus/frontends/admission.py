"""Limits on connections that have shown no claim, and the choice of which one to drop.

Every connection counts from its first moment, over AMQP, websockets and HTTP, and stops counting with its first claim.
When there is one too many, the broker drops the oldest one of the address that has the most. A client shows its claim
within moments, so the oldest is unlikely ever to show one. The broker never refuses a new connection because of the
others, so clients get in as long as they show their claims faster than a stranger refills the whole limit.

Bodies of requests over HTTP and SQS are read before the claim is checked, so their bytes have a limit over all such
connections. Past it the broker drops the one that has held a large body for the longest time.

File descriptors are limited too. A connection takes one, and stores and the catalog need some of their own, so the
number of all connections has a limit. If claimed connections reach it, the broker drops a new connection at once.
"""

import logging
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final, Protocol

from partibus.errors import Unauthorized
from partibus.limits import AdmissionLimits
from partibus.namespace.sas import parse_token

log = logging.getLogger(__name__)

LOG_EVERY_S: Final = 10.0
FAILURES_BURST: Final = 20
"""Failures of one address and policy before answers become slow: some clients may still have an old key."""
ADDRESS_BURST: Final = 200
"""Failures of one address over all policies."""
FAILURES_A_SECOND: Final = 0.5
"""Failures forgiven per second."""
SLOW_S: Final = 2.0
SLOW_MAX: Final = 64
"""Slow answers to one address and policy that wait at the same time."""
ADDRESS_SLOW_MAX: Final = 4 * SLOW_MAX
"""The same for one address over all policies: a client with an old key never uses it up alone."""
TRUSTED_S: Final = 3_600.0
NOTED_S: Final = 1.0
"""How often a good key is noted: over HTTP each request shows one."""
TALLIES_MAX: Final = 10_000
POLICY_CHARS: Final = 64
"""The characters of a policy's name that are compared here."""
_NETWORK_BITS: Final = 64
"""The network part of an IPv6 address: a single customer gets that many bits to choose from."""


class Connection(Protocol):
    """A connection that can be dropped, compared by identity."""

    def drop(self) -> None:
        """End without a reply. `Admission.leave` may be called for it later."""
        ...


class Admission:
    """The admission of connections to one broker process."""

    def __init__(self, limits: AdmissionLimits, now_s: Callable[[], float]) -> None:
        """Begin without connections. ``now_s`` returns seconds from any origin, for log messages."""
        self.limits = limits
        self.connections_max: int | None = None
        """The limit on all connections, claimed or not; None: no limit."""
        self.dropped = 0
        """Dropped connections since the start."""
        self._now_s = now_s
        self._unclaimed: dict[Connection, str] = {}
        """Connections by age, with their addresses."""
        self._by_address: dict[str, dict[Connection, None]] = {}
        self._claimed: set[Connection] = set()
        self._body_bytes: dict[Connection, int] = {}
        """Bytes of large bodies, by connections without a claim, the longest held ones first."""
        self._bodies_bytes = 0
        self._logged_s = -LOG_EVERY_S
        self._dropped_since = 0

    @property
    def unclaimed(self) -> int:
        """The number of connections that have shown no claim."""
        return len(self._unclaimed)

    @property
    def unclaimed_max(self) -> int:
        """The limit on unclaimed connections: at most half of all; the rest is for those with claims."""
        most = self.limits.unclaimed_max
        return most if self.connections_max is None else max(1, min(most, self.connections_max // 2))

    def enter(self, connection: Connection, host: str | None) -> bool:
        """Count a new connection from ``host``; return False if it was dropped for lack of connections."""
        address = address_of(host)
        self._unclaimed[connection] = address
        beside = self._by_address.setdefault(address, {})
        beside[connection] = None
        if len(beside) > self.limits.unclaimed_of_address_max:
            self._drop(next(iter(beside)), f"{address} has {self.limits.unclaimed_of_address_max} of them already")
        elif len(self._unclaimed) > self.unclaimed_max:
            self._drop_one(f"there are {self.unclaimed_max} of them already")
        elif self.connections_max is not None and self._total > self.connections_max:
            self._drop_one(f"there are {self.connections_max} connections already, with claims or without")
        return connection in self._unclaimed

    def hold_body(self, connection: Connection, size_bytes: int) -> None:
        """Count the bytes held of a request's body: 0 at the end of the request, and nothing after a claim."""
        if connection not in self._unclaimed:
            return
        if size_bytes <= self.limits.body_bytes_free:
            self._let_go_body(connection)
            return
        self._bodies_bytes += size_bytes - self._body_bytes.get(connection, 0)
        self._body_bytes[connection] = size_bytes
        while self._bodies_bytes > self.limits.bodies_bytes_max:
            longest = next(iter(self._body_bytes))
            self._drop(longest, f"their bodies have more than {self.limits.bodies_bytes_max} bytes")

    def claim(self, connection: Connection) -> None:
        """Note that a connection has shown a claim."""
        if connection in self._unclaimed:
            self._remove(connection)
            self._claimed.add(connection)

    def leave(self, connection: Connection) -> None:
        """Remove a connection that has ended. Idempotent."""
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
            log.warning("%d connections without a claim were dropped, the oldest: %s", self._dropped_since, why)
            self._logged_s, self._dropped_since = now_s, 0
        connection.drop()

    def _remove(self, connection: Connection) -> None:
        if connection in self._body_bytes:
            self._let_go_body(connection)
        address = self._unclaimed.pop(connection)
        beside = self._by_address[address]
        del beside[connection]
        if not beside:
            del self._by_address[address]

    def _let_go_body(self, connection: Connection) -> None:
        self._bodies_bytes -= self._body_bytes.pop(connection, 0)


@lru_cache(1_024)
def address_of(host: str | None) -> str:
    """Return what the connections of one client share: an IPv4 address, or the network of an IPv6 address."""
    try:
        address = ip_address((host or "").partition("%")[0])
    except ValueError:
        return ""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return f"{IPv6Address(int(address) >> _NETWORK_BITS << _NETWORK_BITS)}/{_NETWORK_BITS}"
    return str(address)


class SignIns:
    """Failed attempts to show a key or token, by address and policy.

    A good key is accepted at once, whatever other clients at its address did: a stranger behind the same address locks
    out no client. Past a burst of failures the answer to a further one waits for `SLOW_S`. While `SLOW_MAX` of them
    wait, or `ADDRESS_SLOW_MAX` of that address over all policies, the broker does not check an attempt, unless the
    policy's key was shown from that address within the last hour. So a guesser without a legitimate client at its
    address gets `SLOW_MAX / SLOW_S` guesses a second at one policy, however many connections it makes. It never finds
    a key of 16 random characters; this limit keeps it from taking the broker's time.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.refused = 0
        """Refused attempts since the start."""
        self._now_s = now_s
        self._tallies: dict[tuple[str, str], _Tally] = {}
        """Tallies by address and policy, the least recently used first."""
        self._logged_s = -LOG_EVERY_S

    def may_try(self, host: str | None, policy: str) -> bool:
        """Tell whether to check an attempt."""
        address, now_s = address_of(host), self._now_s()
        tally = self._tallies.get((address, policy[:POLICY_CHARS]))
        if tally is not None:
            if tally.good_s is not None and now_s - tally.good_s < TRUSTED_S:
                return True
            if tally.waiting(now_s) >= SLOW_MAX:
                return False
        of_address = self._tallies.get((address, ""))
        return of_address is None or of_address.waiting(now_s) < ADDRESS_SLOW_MAX

    def is_noted(self, host: str | None, policy: str) -> bool:
        """Tell whether a good key was noted just now: then `may_try` is true, and `succeeded` has nothing to note."""
        tally = self._tallies.get((address_of(host), policy[:POLICY_CHARS]))
        return tally is not None and tally.good_s is not None and self._now_s() - tally.good_s < NOTED_S

    def failed(self, host: str | None, policy: str) -> float:
        """Count a failure; return how many seconds its answer waits."""
        self.refused += 1
        now_s = self._now_s()
        address = address_of(host)
        tallies = [(self._tally(address, policy), FAILURES_BURST), (self._tally(address, ""), ADDRESS_BURST)]
        is_slow = False
        for tally, burst in tallies:
            tally.failures = max(0.0, tally.failures - (now_s - tally.counted_s) * FAILURES_A_SECOND) + 1
            tally.counted_s = now_s
            is_slow |= tally.failures > burst
        if not is_slow:
            return 0.0
        (of_policy, _), (of_address, _) = tallies
        if of_policy.waiting(now_s) < SLOW_MAX:  # a trusted policy may have more
            of_address.slow(now_s)
        of_policy.slow(now_s)
        if now_s - self._logged_s >= LOG_EVERY_S:
            self._logged_s = now_s
            log.warning(
                "keys or tokens of the access policy %.100r from %s are refused again and again; the answers wait for "
                "%g s each",
                policy,
                address or "an unknown address",
                SLOW_S,
            )
        return SLOW_S

    def succeeded(self, host: str | None, policy: str) -> None:
        """Note that a good key or token was shown."""
        if not self.is_noted(host, policy):
            self._tally(address_of(host), policy).good_s = self._now_s()

    def _tally(self, address: str, policy: str) -> "_Tally":
        key = (address, policy[:POLICY_CHARS])
        tally = self._tallies.pop(key, None)
        if tally is None:
            tally = _Tally(self._now_s())
            if len(self._tallies) >= TALLIES_MAX:
                del self._tallies[next(iter(self._tallies))]
        self._tallies[key] = tally
        return tally


class _Tally:
    __slots__ = ("_slow", "counted_s", "failures", "good_s")

    def __init__(self, now_s: float) -> None:
        self.failures = 0.0
        self.counted_s = now_s
        self.good_s: float | None = None
        self._slow: deque[float] = deque(maxlen=ADDRESS_SLOW_MAX)
        """Start times of the last slow answers."""

    def slow(self, now_s: float) -> None:
        """Note one more slow answer."""
        self._slow.append(now_s)

    def waiting(self, now_s: float) -> int:
        """Return how many slow answers wait, including those whose connections have ended."""
        while self._slow and now_s - self._slow[0] >= SLOW_S:
            self._slow.popleft()
        return len(self._slow)


def policy_of(token: str) -> str:
    """Return the policy whose keys a token is checked with; "(token)" for none, or an identity provider's."""
    try:
        return parse_token(token).policy_names[-1][:POLICY_CHARS] or "(token)"
    except Unauthorized:
        return "(token)"
