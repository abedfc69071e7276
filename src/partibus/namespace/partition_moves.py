"""The owners of an entity's slots, and the moves of slots between its partitions, in the catalog (ADR 0026)."""

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct, convert, to_builtins
from msgspec.structs import replace

from partibus.routing.slots import Run, SlotMap, runs_of, slots_in

HISTORY_MAX = 100
"""Finished moves that are remembered."""


REBALANCED, PLANNED = "rebalance", "plan"
"""The reasons of moves that an operator has asked for."""


class Move(Struct, frozen=True):
    """Slots on their way from one partition to another."""

    version: int
    source: int
    target: int
    runs: tuple[Run, ...]
    began_ms: int
    until_ms: int
    """The time until which the source is asked for duplicates; before the move is routed, if it were so at once."""
    why: str
    is_routed: bool = False
    """Whether the map names the target. Partitions know of the move before."""

    @property
    def slots(self) -> int:
        """The number of slots."""
        return sum(last - first + 1 for first, last in self.runs)

    def screened_until(self, given_ms: int) -> int:
        """Return the time until which the source is asked for duplicates, if it gave the slots at ``given_ms``."""
        return self.until_ms if self.is_routed else given_ms + self.until_ms - self.began_ms


class PastMove(Struct, frozen=True):
    """A finished move."""

    version: int
    source: int
    target: int
    runs: tuple[Run, ...]
    began_ms: int
    ended_ms: int
    until_ms: int
    why: str

    @property
    def slots(self) -> int:
        """The number of slots."""
        return sum(last - first + 1 for first, last in self.runs)


class EntitySlots(Struct, frozen=True):
    """The slots of one entity. The default is the frozen formula, without moves."""

    version: int = 0
    """Rises with each change; the number of the last move."""
    runs: tuple[tuple[int, int], ...] = ()
    """(first slot, partition); empty: the formula over `partitions`."""
    partitions: int = 0
    """The number of partitions of the formula, where ``runs`` are empty."""
    moves: tuple[Move, ...] = ()
    history: tuple[PastMove, ...] = ()
    """The last finished moves, oldest first."""
    first_sequence: int = 1
    """Partitions that are added give out sequence counters from here on: an earlier one may have had their id."""

    def map(self, partitions: int) -> SlotMap:
        """Return the map of an entity with so many partitions."""
        if self.runs:
            return SlotMap(partitions, self.version, self.runs)
        if self.partitions and self.partitions != partitions:
            return SlotMap(partitions, max(1, self.version), SlotMap.formula_runs(self.partitions))
        return SlotMap(partitions)

    def unsettled(self) -> set[int]:
        """Return the slots whose move is not finished; they can't move again."""
        return {slot for move in self.moves for slot in slots_in(move.runs)}

    @property
    def changed_ms(self) -> int:
        """When a broker last began to move slots; 0: never."""
        changes: tuple[Move | PastMove, ...] = (*self.history, *self.moves)
        return max((move.began_ms for move in changes), default=0)

    @property
    def is_arranged(self) -> bool:
        """Whether the last moves were an operator's, so that partitions may differ in their slots."""
        changes: tuple[Move | PastMove, ...] = (*self.history, *self.moves)
        last = max(changes, key=lambda move: move.version, default=None)
        return last is not None and last.why in (REBALANCED, PLANNED)

    def lately_at(self, now_ms: int) -> dict[int, set[int]]:
        """Return the partitions that a slot may not go back to yet, by slot: duplicates are still looked up there."""
        found: dict[int, set[int]] = {}
        for past in self.history:
            if past.until_ms > now_ms:
                for slot in slots_in(past.runs):
                    found.setdefault(slot, set()).update((past.source, past.target))
        return found

    def planned(
        self, wanted: Iterable[tuple[int, int, Iterable[Run]]], partitions: int, now_ms: int, until_ms: int, why: str
    ) -> "EntitySlots":
        """Return these slots with more moves: (source, target, runs). ``partitions`` is the number without new ones."""
        version = self.version
        moves = list(self.moves)
        for source, target, runs in wanted:
            version += 1
            moves.append(Move(version, source, target, tuple(runs), now_ms, until_ms, why))
        return replace(self, version=version, moves=tuple(moves), partitions=self.partitions or partitions)

    def routed(self, version: int, partitions: int, now_ms: int) -> "EntitySlots":
        """Return these slots with a move in the map, after its source has given the slots."""
        move = self.move(version)
        if move is None or move.is_routed:
            return self
        moved = self.map(partitions).moved(move.runs, move.target, partitions)
        there = replace(move, is_routed=True, until_ms=move.screened_until(now_ms))
        moves = tuple(there if one.version == version else one for one in self.moves)
        return replace(self, version=self.version + 1, runs=moved.runs, moves=moves)

    def finished(self, version: int, now_ms: int) -> "EntitySlots":
        """Return these slots with a move in the history."""
        move = self.move(version)
        if move is None:
            return self
        past = PastMove(
            move.version, move.source, move.target, move.runs, move.began_ms, now_ms, move.until_ms, move.why
        )
        moves = tuple(one for one in self.moves if one.version != version)
        history = [*self.history, past]
        while len(history) > HISTORY_MAX and history[0].until_ms <= now_ms:
            del history[0]
        return replace(self, version=self.version + 1, moves=moves, history=tuple(history))

    def move(self, version: int) -> Move | None:
        """Return a move that is not finished."""
        return next((one for one in self.moves if one.version == version), None)


NO_MOVES = EntitySlots()


def to_plain(slots: EntitySlots) -> object:
    """Return slots as JSON can hold them."""
    return to_builtins(slots)


def from_plain(document: object) -> EntitySlots:
    """Return slots from JSON. Raises ValidationError."""
    return convert(document, EntitySlots)


def even_moves(slots: SlotMap, counts: Sequence[int], fixed: Iterable[int] = ()) -> list[tuple[int, int, list[Run]]]:
    """Return the moves (source, target, runs) after which each partition has as many slots as ``counts`` says.

    ``fixed`` slots stay. The fewest slots move, and the last ones of a partition: keys are spread evenly over slots, so
    any are as good, and neighbouring ones make few runs.
    """
    stay = set(fixed)
    have = [*slots.counts(), *([0] * (len(counts) - slots.partitions))]
    missing = [max(0, wanted - had) for wanted, had in zip(counts, have, strict=True)]
    moves: list[tuple[int, int, list[Run]]] = []
    for source in range(slots.partitions):
        spare = have[source] - counts[source]
        if spare <= 0:
            continue
        movable = [slot for slot in slots_in(slots.slots_of(source)) if slot not in stay]
        spare = min(spare, len(movable))
        chosen = movable[len(movable) - spare :]
        at, lacking = 0, sum(missing)
        for target, wanted in enumerate(missing):
            # In proportion, since there may be fewer slots that can move than are missing
            end = at + min(wanted, -(-wanted * len(chosen) // lacking) if lacking else 0, len(chosen) - at)
            if end > at:
                moves.append((source, target, runs_of(chosen[at:end])))
                missing[target] -= end - at
                at = end
    return moves


def moves_to(
    slots: SlotMap, wanted: Iterable[tuple[int, int, int]], fixed: Callable[[int, int], bool]
) -> tuple[list[tuple[int, int, list[Run]]], int]:
    """Return the moves after which slots have the wanted owners, and the number of slots that can't move now.

    ``wanted`` are (first slot, last slot, partition). ``fixed`` tells whether a slot may not go to a partition now.
    """
    chosen: dict[tuple[int, int], list[int]] = {}
    waiting = 0
    for first, last, target in wanted:
        for slot in range(first, last + 1):
            source = slots.owner(slot)
            if source == target:
                continue
            if fixed(slot, target):
                waiting += 1
            else:
                chosen.setdefault((source, target), []).append(slot)
    return [(*ends, runs_of(sorted(set(some)))) for ends, some in sorted(chosen.items())], waiting


def even_counts(partitions: int, used: int, slot_count: int = 1 << 14) -> list[int]:
    """Return slots per partition, dealt out evenly over the first ``used`` ones."""
    return [(n + 1) * slot_count // used - n * slot_count // used if n < used else 0 for n in range(partitions)]
