"""What a broker promised and whether it kept it, seen from outside: by what was sent, answered and delivered.

Each check raises `BrokenPromise` at the moment of the breach. The oracle looks at the disk only to learn what is
durable, never at the broker's memory.
"""

from collections import Counter
from dataclasses import dataclass, field

from partibus.partition.entry import Entry
from partibus.partition.keys import entry_key, subqueue_key
from partibus.store.memory import MemoryDisk

MARK = b"\x00\x53\x75\xa0\x08"
"""Start of the data section that carries a message's name, eight bytes."""


class BrokenPromise(AssertionError):
    """The broker broke one of its promises."""


@dataclass(slots=True)
class Held:
    """A lock that a consumer was given."""

    lock_id: int
    granted_ms: int
    until_ms: int


@dataclass
class Oracle:
    """Knows every message by its name."""

    disk: MemoryDisk
    ordered: set[int]
    """Partition rows whose first deliveries come in order: nobody keeps messages in a cache."""
    lock_written_ms: float
    """A lock that is older than this is surely in the store."""
    sent: dict[int, bool | None] = field(default_factory=dict)
    """Name -> True accepted, False surely not stored, None not known (yet)."""
    delivered: Counter[int] = field(default_factory=Counter)
    finished: set[int] = field(default_factory=set)
    """Completed and told so, or received and deleted: never seen again."""
    maybe_finished: set[int] = field(default_factory=set)
    """A settlement's outcome is not known."""
    abandoned: Counter[int] = field(default_factory=Counter)
    """Abandons that were confirmed."""
    locks: dict[int, Held] = field(default_factory=dict)
    highest: dict[int, int] = field(default_factory=dict)
    """Partition row -> highest sequence of a first delivery."""
    lost_hand_outs: int = 0
    """Receive-and-delete: how many could be removed and never arrive, because everything stopped in between."""

    def accepted(self, names: list[int], row: int, first_sequence: int) -> None:
        """A sender was told that its messages are stored."""
        if self._durable_end(row) < first_sequence + len(names):
            raise BrokenPromise(f"messages {names} were acknowledged before they were durable")
        for name in names:
            self.sent[name] = True

    def refused(self, names: list[int], executed: bool | None) -> None:
        """A sender was told that they are not, or that nobody knows."""
        for name in names:
            self.sent[name] = executed

    def granted(
        self, row: int, kind: int, entries: list[Entry], lock_id: int, until_ms: int, now_ms: int, *, delete: bool
    ) -> None:
        """A consumer got messages."""
        for entry in entries:
            name = name_of(entry)
            if self.sent.get(name, False) is False:
                raise BrokenPromise(f"message {name} was delivered, and was never sent or surely not stored")
            if self._durable_end(row) <= entry.sequence:
                raise BrokenPromise(f"message {name} was delivered before it was durable")
            if name in self.finished:
                raise BrokenPromise(f"message {name} was delivered after it was finished")
            if entry.delivery_count < self.abandoned[name]:
                raise BrokenPromise(
                    f"message {name} has delivery count {entry.delivery_count} after {self.abandoned[name]} abandons"
                )
            held = self.locks.get(name)
            if held is not None and held.until_ms > now_ms:
                raise BrokenPromise(f"message {name} was delivered while under lock until {held.until_ms}")
            if row in self.ordered and kind == 0 and entry.delivery_count == 0 and not self.delivered[name]:
                if entry.sequence <= self.highest.get(row, 0):
                    raise BrokenPromise(f"message {name} was overtaken on its first delivery")
                self.highest[row] = entry.sequence
            self.delivered[name] += 1
            if delete:
                if self._on_disk(row, kind, entry.pos):
                    raise BrokenPromise(f"message {name} was handed out before its removal was durable")
                self.finished.add(name)
            else:
                self.locks[name] = Held(lock_id, now_ms, until_ms)

    def holds(self, name: int, lock_id: int) -> int | None:
        """Until when a consumer holds a lock that must not be lost; None when it may be."""
        held = self.locks.get(name)
        return held.until_ms if held is not None and held.lock_id == lock_id else None

    def unlocked(self, names: list[int], lock_id: int) -> None:
        """A consumer settles: from here on the lock counts no more."""
        for name in names:
            if (held := self.locks.get(name)) is not None and held.lock_id == lock_id:
                del self.locks[name]

    def completed(self, row: int, kind: int, name: int, pos: int) -> None:
        """A consumer was told that its message is finished."""
        if self._on_disk(row, kind, pos):
            raise BrokenPromise(f"message {name} was confirmed as completed before its removal was durable")
        self.finished.add(name)

    def memory_lost(self, now_ms: int) -> None:
        """The process or the store failed: the latest locks may be gone, older ones must not be."""
        latest_ms = now_ms - self.lock_written_ms
        self.locks = {name: held for name, held in self.locks.items() if held.granted_ms <= latest_ms}

    def check_rest(self, found: list[int], deleting: set[int]) -> None:
        """The end: ``found`` is still stored; ``deleting`` are the messages sent to where they are removed before they
        are handed out."""
        for name, times in Counter(found).items():
            if times > 1:
                raise BrokenPromise(f"message {name} is stored {times} times")
            if self.sent.get(name, False) is False:
                raise BrokenPromise(f"message {name} is stored, and was never sent or surely not stored")
            if name in self.finished:
                raise BrokenPromise(f"message {name} is stored after it was finished")
        accepted = {name for name, outcome in self.sent.items() if outcome}
        missing = accepted.difference(found, self.finished, self.maybe_finished)
        if lost := missing - deleting:
            raise BrokenPromise(f"messages {sorted(lost)} were acknowledged and are gone")
        if len(missing) > self.lost_hand_outs:
            raise BrokenPromise(f"{len(missing)} messages are gone, {self.lost_hand_outs} could be on their way")

    def _durable_end(self, row: int) -> int:
        return self.disk.durable.partitions.get(row, (0, 0))[0]

    def _on_disk(self, row: int, kind: int, pos: int) -> bool:
        return entry_key(subqueue_key(row, kind), pos) in self.disk.durable.entries


def name_of(entry: Entry) -> int:
    """The name in a message's body."""
    assert entry.data is not None, "a delivery has its body"
    start = entry.data.index(MARK) + len(MARK)
    return int.from_bytes(entry.data[start : start + 8], "big")
