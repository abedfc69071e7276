"""The memory of the partitions in use, bounded for the whole process (D25).

A partition in use has a machine, and windows on its waiting entries. The store has all of that too. So when the
partitions of a broker hold more than the bound, the least recently used ones *go cold*. One with nothing but windows is
dropped, and its next command loads it anew. One with locks, receivers or sessions drops its windows.

The least recently used one is found with the clock algorithm: a command marks its partition as used. The hand clears
the mark and passes on, or finds none and makes the partition go cold. It moves by a bounded number of partitions per
turn of the event loop, and only past marks that a command has set, so a command pays for one of its steps.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from partibus.limits import StoreLimits

STEPS = 16
"""Partitions that one turn of the loop looks at."""


COLD_MAX = 10_000
"""Partitions of one store of which something is remembered while they are cold: some 2 MB."""


class Cold(NamedTuple):
    """The state that memory keeps of a partition that went cold, while the store has the same owner."""

    next_number: int
    """0: not known any longer."""
    next_reservation: int
    activated_ms: int
    trim_ms: int | None
    """When ids of duplicate detection leave their window."""


class ColdPartitions:
    """The state that memory keeps of the cold partitions of one store.

    Above `COLD_MAX` the oldest are dropped: those partitions skip numbers when they are loaded, as after a start.
    """

    __slots__ = ("_known", "_next_reservation")

    def __init__(self) -> None:
        self._known: dict[int, Cold] = {}
        self._next_reservation = 1

    def add(self, row: int, cold: Cold) -> None:
        """Remember a partition."""
        self._known[row] = cold
        # No reservation is made twice: a front end may still name one that has lapsed.
        self._next_reservation = max(self._next_reservation, cold.next_reservation)
        if len(self._known) > COLD_MAX:
            del self._known[next(iter(self._known))]

    def take(self, row: int) -> Cold:
        """Remove and return the state for the next machine of a row, which is in use from now on."""
        known = self._known.pop(row, None)
        return Cold(0, self._next_reservation, 0, None) if known is None else known

    def activated_ms(self, row: int) -> int:
        """Return when a scheduled message of a row last became active; 0: not known."""
        known = self._known.get(row)
        return 0 if known is None else known.activated_ms

    def discard(self, row: int) -> None:
        """Forget a partition."""
        self._known.pop(row, None)

    def clear(self) -> None:
        """Forget all: the store gets another epoch."""
        self._known.clear()
        self._next_reservation = 1


class Resident(Protocol):
    """A partition in use, as it is counted here."""

    is_used: bool
    """A command came since the hand has passed."""
    size_bytes: int


R = TypeVar("R", bound=Resident)


class Residency:
    """The partitions in use of all stores that a broker owns, and their memory."""

    __slots__ = ("_asked", "_ring", "bytes_max", "size_bytes", "went_cold", "windows_dropped")

    def __init__(self, bytes_max: int = StoreLimits().partition_bytes) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0
        """The memory of the partitions in use, as they report it."""
        self.went_cold = 0
        """Partitions that were forgotten since the process began."""
        self.windows_dropped = 0
        """Times that a partition in use has let its windows go."""
        self._ring: OrderedDict[Resident, Callable[[Any], None]] = OrderedDict()
        """Each partition in use, in the order of the hand, and how it goes cold."""
        self._asked = False

    def __len__(self) -> int:
        """Partitions in use."""
        return len(self._ring)

    @property
    def is_over(self) -> bool:
        """The partitions in use hold more than they may."""
        return self.size_bytes > self.bytes_max

    def join(self, slot: R, go_cold: Callable[[R], None]) -> None:
        """Add a partition. ``go_cold`` makes it drop as much as it can."""
        self._ring[slot] = go_cold

    def leave(self, slot: Resident) -> None:
        """Remove a partition, if it is there."""
        if self._ring.pop(slot, None) is not None:
            self.weigh(slot, 0)

    def weigh(self, slot: Resident, size_bytes: int) -> None:
        """Note the memory of a partition."""
        self.size_bytes += size_bytes - slot.size_bytes
        slot.size_bytes = size_bytes

    def ask(self, call_soon: Callable[[Callable[[], None]], None]) -> None:
        """Make partitions go cold after the current event."""
        if not self._asked:
            self._asked = True
            call_soon(lambda: self._turn(call_soon))

    def _turn(self, call_soon: Callable[[Callable[[], None]], None]) -> None:
        """Move the hand until the bound is kept, or for so many steps; go on in the next turn if that has helped."""
        self._asked = False
        ring = self._ring
        has_helped = False
        for _ in range(min(STEPS, len(ring))):
            if not self.is_over:
                return
            slot, go_cold = next(iter(ring.items()))
            ring.move_to_end(slot)
            if slot.is_used:
                slot.is_used = False
                has_helped = True
            else:
                before = self.size_bytes
                go_cold(slot)
                has_helped = has_helped or self.size_bytes < before
        if self.is_over and has_helped:
            self.ask(call_soon)
