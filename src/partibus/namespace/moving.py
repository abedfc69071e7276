"""The moves of slots of a namespace's entities, as far as this broker carries them out (ADR 0026).

The catalog has all moves. A move is carried out by the broker that owns the store of its target, so another broker goes
on with it after a loss. Each broker looks for such moves every moment, as long as there are moves.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

from partibus.clock import Clock
from partibus.errors import ArgumentError, InvalidOperation, OutcomeUnknown, QuotaExceeded, StoreUnavailable
from partibus.namespace.catalog_entities import EntityRecord
from partibus.namespace.entities import EntityKind
from partibus.namespace.entity import Entity
from partibus.namespace.namespace import Queue
from partibus.namespace.partition_moves import EntitySlots, Move
from partibus.routing.fault_injections import CallLater
from partibus.routing.slot_mover import GroupOpener, SlotMover
from partibus.routing.slots import SLOT_COUNT, Run, slots_in

log = logging.getLogger(__name__)

LOOK_MS = 250.0
SCREEN_MS = 10 * 60_000
"""The least time for which former owners of slots are asked for duplicates: forwarded messages may come again, too."""

ChangeSlots = Callable[[str, Callable[[EntityRecord], tuple[EntitySlots, int]]], Entity]
Wanted = Iterable[tuple[int, int, Sequence[Run]]]
"""Moves: (source, target, runs)."""


class Movers:
    """The movers of one namespace."""

    def __init__(
        self,
        entity_of: Callable[[Queue], Entity],
        change_slots: ChangeSlots,
        clock: Clock,
        call_later: CallLater | None,
    ) -> None:
        """Begin without moves; without ``call_later`` none are carried out here."""
        self._entity_of = entity_of
        self._change_slots = change_slots
        self._clock = clock
        self._call_later = call_later
        self._queues: dict[int, Queue] = {}
        """The entities with moves, by id."""
        self._movers: dict[tuple[int, int], SlotMover] = {}
        """The movers by entity and version of the move."""
        self._openers: dict[tuple[int, int], GroupOpener] = {}
        """The openers by entity and target."""
        self._is_waiting = False
        self.on_step: list[Callable[[Queue, Move, str], None]] = []
        """Functions to call after slots have got their new owner (``route``), and at the end of a move (``finish``)."""
        self.on_finished: list[Callable[[Queue], None]] = []
        """Functions to call after a move of an entity has finished here."""

    def note(self, queue: Queue) -> None:
        """Look at an entity that is new or has changed."""
        if self._call_later is None:
            return
        if queue.slots.moves and not queue.deleted:
            self._queues[queue.entity_id] = queue
        if queue.entity_id in self._queues:
            self.look_soon()

    def step_of(self, queue: Queue, version: int) -> str | None:
        """Return the present step of a move; None: another broker carries it out."""
        mover = self._movers.get((queue.entity_id, version))
        return None if mover is None else mover.step

    def look_soon(self, delay_ms: float = 0.0) -> None:
        """Look at all moves after a delay."""
        if self._is_waiting or self._call_later is None:
            return
        self._is_waiting = True

        def look() -> None:
            self._is_waiting = False
            self.look()

        self._call_later(delay_ms, look)

    def look(self) -> None:
        """Begin with moves that this broker carries out, and stop with those that it does not."""
        for entity_id, queue in list(self._queues.items()):
            moves = [] if queue.deleted else list(queue.slots.moves)
            if not moves:
                del self._queues[entity_id]
            try:
                self._look_at(queue, moves)
            except Exception:  # a bug of ours: the moves of other queues go on
                log.exception("internal error: moves of slots of '%s' can't be carried out now", queue.name)
        if self._queues:
            self.look_soon(LOOK_MS)

    def _look_at(self, queue: Queue, moves: Sequence[Move]) -> None:
        entity_id = queue.entity_id
        here: set[tuple[int, int]] = set()
        targets: set[tuple[int, int]] = set()
        if moves:
            route = self._entity_of(queue).route
            for move in moves:
                target = route.partition(move.target)
                if target is not None and target.is_local:
                    here.add((entity_id, move.version))
                    targets.add((entity_id, move.target))
        for key in [key for key in self._movers if key[0] == entity_id and key not in here]:
            self._movers.pop(key).stop()
        for key in [key for key in self._openers if key[0] == entity_id and key not in targets]:
            self._openers.pop(key).stop()
        for key in here - self._movers.keys():
            self._begin(queue, key[1])
        if queue.has_sessions:
            for key in targets:
                opener = self._openers.get(key)
                if opener is None or opener.over:
                    self._open(queue, key[1])

    def _begin(self, queue: Queue, version: int) -> None:
        move = queue.slots.move(version)
        if move is None:  # the catalog was read since
            return
        assert self._call_later is not None, "movers have timers"
        mover = SlotMover(
            self._entity_of(queue).route,
            move.source,
            move.target,
            version,
            move.runs,
            lambda: move.screened_until(self._clock.now_ms()),
            queue.slots.first_sequence,
            has_sessions=queue.has_sessions,
            call_later=self._call_later,
            on_given=lambda: self._routed(queue, version),
            on_finished=lambda: self._finished(queue, version),
        )
        self._movers[queue.entity_id, version] = mover
        mover.start()

    def _open(self, queue: Queue, target: int) -> None:
        assert self._call_later is not None, "movers have timers"

        def source_of(slot: int) -> int | None:
            for move in queue.slots.moves:
                if move.target == target and any(first <= slot <= last for first, last in move.runs):
                    return move.source
            return None

        opener = GroupOpener(self._entity_of(queue).route, target, source_of, self._call_later)
        self._openers[queue.entity_id, target] = opener
        opener.start()

    def _routed(self, queue: Queue, version: int) -> None:
        move = queue.slots.move(version)
        now_ms = self._clock.now_ms()
        self._change(queue, lambda old: old.slots.routed(version, len(old.placements), now_ms))
        if move is not None and not move.is_routed:
            self._tell(queue, move, "route")

    def _tell(self, queue: Queue, move: Move, step: str) -> None:
        for call in self.on_step:
            call(queue, move, step)

    def _finished(self, queue: Queue, version: int) -> None:
        move = queue.slots.move(version)
        if move is not None:
            self._tell(queue, move, "finish")
        now_ms = self._clock.now_ms()

        def change(old: EntityRecord) -> EntitySlots:
            # The catalog may not have been told yet who owns the slots: it could not be used at that moment.
            return old.slots.routed(version, len(old.placements), now_ms).finished(version, now_ms)

        self._change(queue, change)
        for call in self.on_finished:
            call(queue)

    def _change(self, queue: Queue, change: Callable[[EntityRecord], EntitySlots]) -> None:
        """Change the slots of an entity in the catalog, now or when the catalog can be used again."""
        if queue.deleted:
            return

        def changed(old: EntityRecord) -> tuple[EntitySlots, int]:
            same = old.entity_id == queue.entity_id  # else another entity of that name
            return (change(old) if same else old.slots), len(old.placements)

        try:
            self._change_slots(queue.name, changed)
        except (StoreUnavailable, OutcomeUnknown):
            assert self._call_later is not None, "movers have timers"
            self._call_later(1_000.0, lambda: self._change(queue, change))


def plan(record: EntityRecord, wanted: Wanted, partitions: int, now_ms: int, why: str) -> tuple[EntitySlots, int]:
    """Return an entity's slots with more moves, and its number of partitions, for `Catalog.change_slots`.

    Raises InvalidOperation for an entity whose slots can't move, and ArgumentError for moves that can't begin now.
    """
    description = record.description
    name, options = description.name, description.options
    if description.kind is not EntityKind.QUEUE:
        raise InvalidOperation(
            f"'{name}' is a {description.kind.value}, whose keys stay in their partitions. "
            "Move keys of queues, or forward its messages to a queue."
        )
    if options.express:
        raise InvalidOperation(f"'{name}' is express, so its keys stay in their partitions. Set EnableExpress false.")
    slots, count = record.slots, len(record.placements)
    if partitions > SLOT_COUNT:
        raise QuotaExceeded(f"'{name}'", SLOT_COUNT, "partitions", "Use several queues.")
    owners = slots.map(count)
    unsettled, lately = slots.unsettled(), slots.lately_at(now_ms)
    moves = [(source, target, tuple(runs)) for source, target, runs in wanted]
    seen: set[int] = set()
    for source, target, runs in moves:
        if not 0 <= target < partitions or source == target:
            raise ArgumentError("target", target, f"another partition below {partitions}", "Make the plan again.")
        for slot in slots_in(runs):
            if not 0 <= slot < SLOT_COUNT or owners.owner(slot) != source or slot in seen:
                raise ArgumentError("slot", slot, f"a slot of partition {source}", "Make the plan again.")
            if slot in unsettled:
                raise InvalidOperation(f"Slot {slot} of '{name}' is moving already. Wait until that has finished.")
            if target in lately.get(slot, ()):
                raise InvalidOperation(
                    f"Slot {slot} of '{name}' has come from partition {target} a moment ago. Wait until the window of "
                    "duplicate detection has passed."
                )
            seen.add(slot)
    window_ms = options.duplicate_detection_window_ms if options.requires_duplicate_detection else 0
    until_ms = now_ms + max(window_ms, SCREEN_MS)
    return slots.planned(moves, count, now_ms, until_ms, why), max(partitions, count)
