"""The entries of a sub-queue that may be granted: by position, or in fair queues by tenant.

Arrivals and pages come in order and go to the end of a deque. Returned entries (abandoned, released, lock expired) go
to a heap: they belong before the waiting ones, and several can return in any order (D10: a released message returns to
its place).

In a fair queue, message groups of a standard queue are tenants, and a noisy one delays no other (SQS). A tenant is
*noisy* once it has 30 messages in flight and more than a tenth of the queue's, or more than a tenth of the recent
processing time. Its messages wait while other tenants have visible ones; of several noisy tenants, the one with the
fewest in flight comes first. It is quiet again when its backlog is empty, or when it has sent nothing for five minutes.
Messages without a group are each a tenant of their own, so they are never noisy.

Memory knows the first messages of a long backlog and the latest arrivals. Behind a noisy backlog the store is asked for
messages of other tenants, by its index of groups. Among noisy tenants only messages in memory are compared.

Without noisy tenants messages are handed out by position, as from any queue.
"""

from collections import deque
from collections.abc import Collection, Iterable
from heapq import heapify, heappop, heappush
from typing import Final

from partibus.partition.protocol.keys import Entry


class ReadyQueue:
    """A queue by position. Its bytes are those in memory: an entry without its body counts as nothing."""

    __slots__ = ("_in_order", "_returned", "count", "size_bytes")

    def __init__(self) -> None:
        self._in_order: deque[Entry] = deque()
        self._returned: list[tuple[int, Entry]] = []
        self.count = 0
        """Its length. Hot path: each step asks for it several times."""
        self.size_bytes = 0

    def __len__(self) -> int:
        return self.count

    def extend(self, entries: Collection[Entry], size_bytes: int) -> None:
        """Append entries whose positions are above all that came this way before."""
        self._in_order.extend(entries)
        self.count += len(entries)
        self.size_bytes += size_bytes

    def requeue(self, entry: Entry) -> None:
        """Return an entry to its place."""
        heappush(self._returned, (entry.pos, entry))
        self.count += 1
        if entry.data is not None:
            self.size_bytes += entry.size_bytes

    def head(self) -> Entry | None:
        """Return the entry that `pop` would take."""
        if self._returned and (not self._in_order or self._returned[0][0] < self._in_order[0].pos):
            return self._returned[0][1]
        return self._in_order[0] if self._in_order else None

    @property
    def in_order(self) -> deque[Entry] | None:
        """The entries as `pop` takes them, from the left; None if others are among them.

        A taker of several may take them there, and subtracts their number and bytes.
        """
        return None if self._returned else self._in_order

    def lowest(self) -> int | None:
        """Return the lowest position."""
        head = self.head()
        return None if head is None else head.pos

    def pop(self) -> Entry:
        """Take the entry with the lowest position."""
        returned = self._returned
        if returned and (not self._in_order or returned[0][0] < self._in_order[0].pos):
            entry = heappop(returned)[1]
        else:
            entry = self._in_order.popleft()
        self.count -= 1
        if entry.data is not None:
            self.size_bytes -= entry.size_bytes
        return entry

    def bodyless(self, most: int) -> list[Entry]:
        """Up to ``most`` returned entries whose body was let go, lowest position first.

        Only returned entries can be without: arrivals and pages bring theirs along.
        """
        missing = sorted(pair for pair in self._returned if pair[1].data is None)
        return [entry for _, entry in missing[:most]]

    def attach_body(self, entry: Entry, data: bytes) -> None:
        """Give an entry of this queue its body again."""
        entry.data = data
        self.size_bytes += entry.size_bytes

    def positions(self) -> set[int]:
        """Return the positions of the entries."""
        positions = {entry.pos for entry in self._in_order}
        positions.update(pos for pos, _ in self._returned)
        return positions

    def remove(self, positions: Collection[int]) -> list[Entry]:
        """Take entries out by their positions; the ones that are here."""
        removed = [entry for pos, entry in self._returned if pos in positions]
        if removed:
            self._returned = [pair for pair in self._returned if pair[0] not in positions]
            heapify(self._returned)
        if self._in_order and positions and min(positions) <= self._in_order[-1].pos:
            arrived = [entry for entry in self._in_order if entry.pos in positions]
            if arrived:
                self._in_order = deque(entry for entry in self._in_order if entry.pos not in positions)
                removed += arrived
        self.count -= len(removed)
        self.size_bytes -= sum(entry.size_bytes for entry in removed if entry.data is not None)
        return removed


IN_FLIGHT_MAX: Final = 120_000
"""Messages in flight of a queue, as in the service. At the bound receivers get nothing."""
IN_FLIGHT_MIN: Final = 30
SHARE: Final = 10
"""A tenant with more than one part of so many is noisy."""
QUIET_MS: Final = 5 * 60_000
HALF_LIFE_MS: Final = 60_000
"""Processing time counts half after so long."""
BUSY_MIN_MS: Final = 30_000
"""The processing time that makes a tenant noisy at the least: that of 30 messages for a second."""
TENANTS_MAX: Final = 10_000
"""Tenants whose processing time is remembered. More are, up to twice as many as have messages in flight."""


class _Busy:
    """Processing time: the integral of messages in flight over time, of which old parts fade."""

    __slots__ = ("at_ms", "in_flight", "total")

    def __init__(self, now_ms: int) -> None:
        self.at_ms = now_ms
        self.in_flight = 0
        self.total = 0.0

    def at(self, now_ms: int) -> float:
        """Return the processing time, after counting that of the messages in flight."""
        passed = now_ms - self.at_ms
        if passed > 0:
            self.total = (self.total + self.in_flight * passed) * 0.5 ** (passed / HALF_LIFE_MS)
            self.at_ms = now_ms
        return self.total


class Fairness:
    """The tenants of one queue: their messages in flight, and which of them are noisy."""

    __slots__ = ("_all", "_sweep_at", "_tenants", "is_on", "noisy", "now_ms", "version")

    def __init__(self) -> None:
        self._tenants: dict[str, _Busy] = {}
        self._sweep_at = TENANTS_MAX
        """The number of tenants at which those without messages in flight are forgotten."""
        self._all = _Busy(0)
        self.noisy: dict[str, int] = {}
        """Noisy tenants -> when they last sent."""
        self.version = 0
        """A number that rises when a tenant becomes noisy, or quiet again."""
        self.is_on = True
        """Whether tenants can become noisy: not in a queue that forwards its messages, which keep their order."""
        self.now_ms = 0
        """The time of the command that is handled."""

    @property
    def is_full(self) -> bool:
        """Whether the queue has as many messages in flight as it may."""
        return self._all.in_flight >= IN_FLIGHT_MAX

    def in_flight(self, tenant: str) -> int:
        """Return a tenant's messages in flight."""
        busy = self._tenants.get(tenant)
        return 0 if busy is None else busy.in_flight

    def hand_out(self, entries: Iterable[Entry]) -> None:
        """Note messages that receivers got."""
        now_ms, everything = self.now_ms, self._all
        everything.at(now_ms)
        for entry in entries:
            everything.in_flight += 1
            if entry.session is None:
                continue
            busy = self._tenants.get(entry.session)
            if busy is None:
                busy = self._tenants[entry.session] = _Busy(now_ms)
            processing = busy.at(now_ms)
            busy.in_flight += 1
            if (
                self.is_on
                and entry.session not in self.noisy
                and (
                    (busy.in_flight >= IN_FLIGHT_MIN and busy.in_flight * SHARE > everything.in_flight)
                    or (processing >= BUSY_MIN_MS and processing * SHARE > everything.total)
                )
            ):
                self.noisy[entry.session] = now_ms
                self.version += 1

    def take_back(self, entries: Iterable[Entry]) -> None:
        """Note messages that are in flight no longer."""
        now_ms, everything = self.now_ms, self._all
        everything.at(now_ms)
        for entry in entries:
            everything.in_flight -= 1
            busy = None if entry.session is None else self._tenants.get(entry.session)
            if busy is not None:
                busy.at(now_ms)
                busy.in_flight -= 1
        if len(self._tenants) > self._sweep_at:
            self._tenants = {name: busy for name, busy in self._tenants.items() if busy.in_flight}
            self._sweep_at = max(TENANTS_MAX, 2 * len(self._tenants))

    def sent(self, tenants: Iterable[str | None]) -> None:
        """Note what tenants sent."""
        for tenant in tenants:
            if tenant in self.noisy:
                self.noisy[tenant] = self.now_ms

    def calm(self, tenant: str) -> None:
        """Take a tenant for quiet again: its backlog is empty."""
        if self.noisy.pop(tenant, None) is not None:
            self.version += 1

    def turn(self, *, on: bool) -> None:
        """Begin or end to look for noisy tenants."""
        self.is_on = on
        if not on:
            for tenant in list(self.noisy):
                self.calm(tenant)

    def look(self, now_ms: int) -> None:
        """Note the time, and take noisy tenants that have sent nothing for long for quiet."""
        if not self.now_ms:  # after a restart it is not known when they sent last
            self.noisy = dict.fromkeys(self.noisy, now_ms)
        self.now_ms = now_ms
        if self.noisy:
            for tenant in [name for name, sent_ms in self.noisy.items() if now_ms >= sent_ms + QUIET_MS]:
                self.calm(tenant)


class FairQueue(ReadyQueue):
    """Ready entries in lanes by tenant. `head` is the next one by fairness, not always that of the lowest position."""

    __slots__ = ("_aside", "_fairness", "_lanes", "_order", "_version")

    def __init__(self, fairness: Fairness) -> None:
        super().__init__()
        self._fairness = fairness
        self._lanes: dict[str, ReadyQueue] = {}
        """Entries with a tenant; the others are in the queue itself. No lane is empty."""
        self._order: list[tuple[int, str]] = []
        """A heap of the heads of lanes; some of it is out of date."""
        self._aside: dict[str, None] = {}
        """Lanes of noisy tenants, which are not in the order."""
        self._version = fairness.version

    @property
    def has_quiet(self) -> bool:
        """Whether it has an entry of a tenant that is not noisy."""
        return bool(self._in_order or self._returned) or any(name not in self._fairness.noisy for name in self._lanes)

    def extend(self, entries: Collection[Entry], size_bytes: int) -> None:
        """Append entries whose positions are above all that came this way before."""
        self.count += len(entries)
        self.size_bytes += size_bytes
        in_order = self._in_order
        for entry in entries:
            if entry.session is None:
                in_order.append(entry)
            else:
                self._lane(entry.session).extend((entry,), entry.size_bytes)
                self._note_head(entry.session)

    def requeue(self, entry: Entry) -> None:
        """Return an entry to its place."""
        if entry.session is None:
            super().requeue(entry)
            return
        self.count += 1
        if entry.data is not None:
            self.size_bytes += entry.size_bytes
        self._lane(entry.session).requeue(entry)
        self._note_head(entry.session)

    def _lane(self, name: str) -> ReadyQueue:
        """Return the lane that gets another entry."""
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = ReadyQueue()
        return lane

    def _note_head(self, name: str) -> None:
        """Put the head of a lane into the order, or remove an empty lane."""
        lane = self._lanes[name]
        head = lane.head()
        if head is None:
            del self._lanes[name]
            self._aside.pop(name, None)
        elif name not in self._aside and (not self._order or self._order[0] != (head.pos, name)):
            heappush(self._order, (head.pos, name))

    @property
    def in_order(self) -> deque[Entry] | None:
        """The entries as `pop` takes them; see `ReadyQueue.in_order`."""
        return None if self._returned or self._lanes else self._in_order

    def head(self) -> Entry | None:
        """Return the entry that `pop` would take."""
        name = self._next_lane() if self._lanes else None
        return super().head() if name is None else self._lanes[name].head()

    def pop(self) -> Entry:
        """Take the entry that fairness has chosen."""
        name = self._next_lane() if self._lanes else None
        if name is None:
            return super().pop()
        entry = self._lanes[name].pop()
        self.count -= 1
        if entry.data is not None:
            self.size_bytes -= entry.size_bytes
        self._note_head(name)
        return entry

    def _next_lane(self) -> str | None:
        """Return the lane whose turn it is; None for the entries without a tenant."""
        noisy, order, aside = self._fairness.noisy, self._order, self._aside
        if self._version != self._fairness.version:
            self._version = self._fairness.version
            for name in [name for name in aside if name not in noisy]:
                del aside[name]
                self._note_head(name)
        first = super().head()
        while order:
            pos, name = order[0]
            lane = self._lanes.get(name)
            head = None if lane is None else lane.head()
            if head is None or head.pos != pos or name in aside:
                heappop(order)  # the present head of its lane is in the order, too
            elif name in noisy:
                heappop(order)
                aside[name] = None
            else:
                return name if first is None or pos < first.pos else None
        if first is not None:
            return None
        in_flight = self._fairness.in_flight
        return min(aside, key=lambda name: (in_flight(name), self._head_pos(name)))

    def _head_pos(self, name: str) -> int:
        head = self._lanes[name].head()
        assert head is not None, "no lane is empty"
        return head.pos

    def lowest(self) -> int | None:
        """Return the lowest position."""
        found = [self._head_pos(name) for name in self._lanes]
        first = super().head()
        if first is not None:
            found.append(first.pos)
        return min(found, default=None)

    def bodyless(self, most: int) -> list[Entry]:
        """Return up to ``most`` returned entries whose body was let go; the head comes first."""
        head = self.head()
        found = [head] if head is not None and head.data is None else []
        for queue in self._lanes.values():
            found += [entry for entry in queue.bodyless(most) if entry is not head]
        found += [entry for entry in super().bodyless(most) if entry is not head]
        return found[:most]

    def positions(self) -> set[int]:
        """Return the positions of the entries."""
        return super().positions().union(*(lane.positions() for lane in self._lanes.values()))

    def remove(self, positions: Collection[int]) -> list[Entry]:
        """Take entries out by their positions; the ones that are here."""
        removed = super().remove(positions)
        for name, lane in list(self._lanes.items()):
            taken = lane.remove(positions)
            if taken:
                self.count -= len(taken)
                self.size_bytes -= sum(entry.size_bytes for entry in taken if entry.data is not None)
                removed += taken
                self._note_head(name)
        return removed

    def has_of(self, tenant: str) -> bool:
        """Tell whether a tenant has ready entries."""
        return tenant in self._lanes
