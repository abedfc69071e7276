"""The mapping from key to slot to partition (D7).

```text
 slot      = top 14 bits of BLAKE2b-64(UTF-8 of the key)          0 .. 16383
 partition = slot * partitions >> 14                              partition p owns one contiguous run of slots
```

The formula is frozen (vectors in the tests): stored messages were placed by it, and a key's order lives in one
partition. Slots that move to another partition are recorded in the entity's `SlotMap` (ADR 0026), which then decides.
"""

from collections.abc import Iterable, Sequence

from partibus.partition.protocol.slots import SLOT_BITS, SLOT_COUNT, Run, runs_of, slot_for_key, slots_in

__all__ = [
    "SLOT_COUNT",
    "Run",
    "SlotMap",
    "partition_for_key",
    "partition_for_slot",
    "runs_of",
    "slot_for_key",
    "slots_in",
]


def partition_for_slot(slot: int, partition_count: int) -> int:
    """Return the partition that owns a slot, 0 .. ``partition_count`` - 1."""
    return slot * partition_count >> SLOT_BITS


def partition_for_key(key: str, partition_count: int) -> int:
    """Return the partition of a key among ``partition_count`` (1 .. `SLOT_COUNT`).

    Equal keys have equal partitions (K1).
    """
    return slot_for_key(key) * partition_count >> SLOT_BITS


class SlotMap:
    """The owner of each slot, for one entity: a partition id per slot, kept as runs of neighbouring slots.

    A map is immutable. ``version`` rises with each change. Version 0 is the frozen formula over the entity's
    partitions, which needs no row in the catalog.
    """

    __slots__ = ("_owners", "owning", "partitions", "runs", "version")

    def __init__(self, partitions: int, version: int = 0, runs: Iterable[tuple[int, int]] = ()) -> None:
        """Build a map.

        ``runs`` are (first slot, partition id), ascending from slot 0; without them the formula applies. Raises
        ValueError for runs that are no map.
        """
        self.partitions = partitions
        self.version = version
        given = tuple((int(first), int(owner)) for first, owner in runs)
        if given:
            firsts = [first for first, _ in given]
            ascending = firsts[0] == 0 and firsts[-1] < SLOT_COUNT and all(map(int.__lt__, firsts, firsts[1:]))
            if not ascending or any(not 0 <= owner < partitions for _, owner in given):
                raise ValueError(f"{len(given)} runs are no map of {SLOT_COUNT} slots to {partitions} partitions")
        else:
            given = SlotMap.formula_runs(partitions)
        self.runs = given
        self.owning = frozenset([owner for _, owner in given])
        """The ids of the partitions that own slots."""
        self._owners: list[int] | None = None
        """The owner by slot; None for the formula, which needs no table."""
        if version or given != SlotMap.formula_runs(partitions):
            self._owners = _expanded(given)

    @staticmethod
    def formula_runs(partitions: int) -> tuple[tuple[int, int], ...]:
        """Return the runs of the frozen formula."""
        # Rounded up: the first slot whose product with the count reaches the partition.
        return tuple((-(-(owner << SLOT_BITS) // partitions), owner) for owner in range(partitions))

    def owner(self, slot: int) -> int:
        """Return the partition id of a slot."""
        owners = self._owners
        return slot * self.partitions >> SLOT_BITS if owners is None else owners[slot]

    def partition_of(self, key: str) -> int:
        """Return the partition id of a key."""
        if self.partitions == 1:
            return 0
        slot = slot_for_key(key)
        owners = self._owners
        return slot * self.partitions >> SLOT_BITS if owners is None else owners[slot]

    def slots_of(self, partition: int) -> list[Run]:
        """Return the slots of a partition as runs."""
        ends = [*(first for first, _ in self.runs[1:]), SLOT_COUNT]
        return [(first, end - 1) for (first, owner), end in zip(self.runs, ends, strict=True) if owner == partition]

    def counts(self) -> list[int]:
        """Return the number of slots of each partition."""
        found = [0] * self.partitions
        ends = [*(first for first, _ in self.runs[1:]), SLOT_COUNT]
        for (first, owner), end in zip(self.runs, ends, strict=True):
            found[owner] += end - first
        return found

    def moved(self, runs: Iterable[Run], target: int, partitions: int | None = None) -> "SlotMap":
        """Return the next version, in which ``target`` owns these slots."""
        owners = list(self._owners) if self._owners is not None else _expanded(self.runs)
        for first, last in runs:
            owners[first : last + 1] = [target] * (last + 1 - first)
        compact = [(slot, owner) for slot, owner in enumerate(owners) if not slot or owners[slot - 1] != owner]
        return SlotMap(partitions or max(self.partitions, target + 1), self.version + 1, compact)

    def resized(self, partitions: int) -> "SlotMap":
        """Return the same map for another number of partitions; surplus ones own no slot."""
        return SlotMap(partitions, self.version + 1, self.runs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SlotMap) and (self.partitions, self.version, self.runs) == (
            other.partitions,
            other.version,
            other.runs,
        )

    def __hash__(self) -> int:
        return hash((self.partitions, self.version, self.runs))

    def __repr__(self) -> str:
        return f"<SlotMap version {self.version}, {self.partitions} partitions, {len(self.runs)} runs>"


def _expanded(runs: Sequence[tuple[int, int]]) -> list[int]:
    ends = [*(first for first, _ in runs[1:]), SLOT_COUNT]
    owners: list[int] = []
    for (first, owner), end in zip(runs, ends, strict=True):
        owners += [owner] * (end - first)
    return owners
