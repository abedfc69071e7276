"""Elastic queues, whose partitions follow the load (ADR 0026), and queues with an enforced throughput.

Each second every broker looks at the elastic queues that its clients use (`partibus.routing.elastic` decides), and
begins moves. Brokers tell each other the load through them. A partition without slots is removed when it is empty and
no duplicates are looked up there.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from partibus.clock import Clock
from partibus.errors import ArgumentError, InvalidOperation, OutcomeUnknown, QuotaExceeded, StoreUnavailable
from partibus.limits import ElasticLimits
from partibus.namespace.catalog_entities import EntityRecord
from partibus.namespace.entity import Entity
from partibus.namespace.moving import ChangeSlots, plan
from partibus.namespace.namespace import Queue
from partibus.namespace.partition_moves import EntitySlots, even_counts, even_moves
from partibus.routing.elastic import Action, Elastic, Told, owners_used
from partibus.routing.entity import inspect_all
from partibus.routing.fault_injections import CallLater

log = logging.getLogger(__name__)

LOOK_MS = 1_000.0
UNEVEN = 64
"""Slots by which partitions may differ. They do when some could not move, since their last move was not finished."""


class ElasticQueues:
    """The elastic queues of a namespace that this broker's clients use, and those with an enforced throughput."""

    def __init__(
        self,
        change_slots: ChangeSlots,
        clock: Clock,
        call_later: CallLater | None,
        limits: ElasticLimits | None = None,
    ) -> None:
        """Begin without queues; without ``call_later`` their partitions stay as they are."""
        self._change_slots = change_slots
        self._clock = clock
        self._call_later = call_later
        self.limits = limits or ElasticLimits()
        self._entities: dict[int, Entity] = {}
        self._is_waiting = False
        self._goals: dict[int, int] = {}
        """The number of partitions that share the slots in the end, by entity."""
        self._inspected: set[int] = set()
        """Ids of the entities whose last partition is being looked at."""

    def note(self, entity: Entity) -> None:
        """Look at an entity that is used for the first time, or has changed."""
        queue, route = entity.queue, entity.route
        if not queue.is_elastic and not queue.enforces_throughput:
            self._entities.pop(queue.entity_id, None)
            entity.elastic = route.on_sent = None
            return
        limits = limits_of(queue, self.limits)
        if entity.elastic is not None:
            entity.elastic.limits = limits
        else:
            elastic = entity.elastic = Elastic(route.load, limits)

            def sent(parts: dict[int, int]) -> None:
                now_ms = self._clock.now_ms()
                for partition, messages in parts.items():
                    elastic.note(partition, Action.SEND, messages, now_ms)

            route.on_sent = sent
        self._entities[queue.entity_id] = entity
        self._look_later()

    # -- among several brokers ---------------------------------------------------------------------------------------

    @property
    def told(self) -> dict[str, Told]:
        """The load of the queues through this broker for the others, by entity id."""
        now_ms = self._clock.now_ms()
        loads = {
            str(entity_id): of.told(now_ms) for entity_id, entity in self._entities.items() if (of := entity.elastic)
        }
        return {number: load for number, load in loads.items() if load}

    def hear(self, elsewhere: Sequence[Mapping[str, Told]]) -> None:
        """Take what each of the other brokers has `told` last."""
        for entity_id, entity in self._entities.items():
            if entity.elastic is not None:
                number = str(entity_id)
                entity.elastic.hear([there[number] for there in elsewhere if number in there])

    # -- looking -----------------------------------------------------------------------------------------------------

    def _look_later(self) -> None:
        if self._is_waiting or self._call_later is None:
            return
        self._is_waiting = True

        def look() -> None:
            self._is_waiting = False
            self.look()

        self._call_later(LOOK_MS, look)

    def look(self) -> None:
        """Decide on all elastic queues in use."""
        for entity_id, entity in list(self._entities.items()):
            if entity.queue.deleted:
                del self._entities[entity_id]
            if entity.queue.deleted or not entity.queue.is_elastic:
                continue
            try:
                self._look_at(entity)
            except Exception:  # a bug of ours: the other queues are looked at all the same
                log.exception("internal error: the partitions of '%s' stay as they are", entity.queue.name)
        if self._entities:
            self._look_later()

    def _look_at(self, entity: Entity) -> None:
        queue, elastic = entity.queue, entity.elastic
        assert elastic is not None, "noted"
        slots = entity.route.slots
        used = owners_used(slots)
        now_ms = self._clock.now_ms()
        if any(not move.is_routed for move in queue.slots.moves):
            # The targets of moves that are not routed yet have no measurement.
            return
        most = queue.description.options.elastic_partitions
        decision = elastic.decide(slots, used, most, now_ms, queue.slots.changed_ms)
        entity.hot_slot = None if decision is None else decision.hot_slot
        if decision is not None and decision.partitions != used:
            self._goals[queue.entity_id] = decision.partitions
            self._resize(entity, decision.partitions, decision.why)
        elif queue.slots.moves or queue.slots.lately_at(now_ms):
            return
        elif not queue.slots.is_arranged and self._is_uneven(entity):
            self._resize(entity, self._goals[queue.entity_id], "slots could not move before")
        elif len(queue.partitions) > used:
            self._remove_last(entity)

    def _is_uneven(self, entity: Entity) -> bool:
        """Tell whether slots could not move at the last decision; after a start none is known."""
        counts = entity.route.slots.counts()
        goal = self._goals.setdefault(entity.queue.entity_id, owners_used(entity.route.slots))
        if goal > len(counts):
            return True
        wanted = even_counts(len(counts), goal)
        return max(abs(have - want) for have, want in zip(counts, wanted, strict=True)) > UNEVEN

    def _resize(self, entity: Entity, partitions: int, why: str) -> None:
        def change(old: EntityRecord) -> tuple[EntitySlots, int]:
            if old.entity_id != entity.queue.entity_id or old.slots.version != entity.queue.slots.version:
                return old.slots, len(old.placements)
            return resized(old, partitions, self._clock.now_ms(), why)

        self._try(entity, change)

    def _remove_last(self, entity: Entity) -> None:
        """Remove the last partition, which owns no slots, if nothing is left in it."""
        queue = entity.queue
        last = len(queue.partitions) - 1
        now_ms = self._clock.now_ms()
        if queue.entity_id in self._inspected or any(
            past.until_ms > now_ms for past in queue.slots.history if last in (past.source, past.target)
        ):
            return
        self._inspected.add(queue.entity_id)

        def looked(found: list[Any]) -> None:
            self._inspected.discard(queue.entity_id)
            there = found[last] if len(found) > last else None
            if there is None or any(info.messages for info in there.subqueues.values()) or there.cursors:
                return

            def change(old: EntityRecord) -> tuple[EntitySlots, int]:
                if old.entity_id != queue.entity_id or old.slots.version != queue.slots.version:
                    return old.slots, len(old.placements)
                first = max(old.slots.first_sequence, there.end_pos)
                return replace(old.slots, version=old.slots.version + 1, first_sequence=first), last

            self._try(entity, change)

        inspect_all(entity.route, looked, lambda _: self._inspected.discard(queue.entity_id))

    def _try(self, entity: Entity, change: Callable[[EntityRecord], tuple[EntitySlots, int]]) -> None:
        """Change an entity now, or decide again later."""
        try:
            self._change_slots(entity.queue.name, change)
        except (InvalidOperation, ArgumentError, QuotaExceeded, StoreUnavailable, OutcomeUnknown):
            return


def limits_of(queue: Queue, limits: ElasticLimits) -> ElasticLimits:
    """Return the limits of one queue: its own properties, and the broker's where a property is 0."""
    options = queue.description.options
    split_at = options.partition_split_percent / 100 or limits.split_at
    return ElasticLimits(
        options.partition_requests or limits.requests_per_s,
        options.partition_messages or limits.messages_per_s,
        split_at=split_at,
        window_ms=limits.window_ms,
        # One of the two may be the broker's.
        merge_below=min(split_at, options.partition_merge_percent / 100 or limits.merge_below),
        calm_ms=options.partition_calm_ms or limits.calm_ms,
        cool_ms=limits.cool_ms,
        hot_share=limits.hot_share,
    )


def resized(old: EntityRecord, partitions: int, now_ms: int, why: str) -> tuple[EntitySlots, int]:
    """Plan the moves after which so many partitions share the slots evenly. Raises what `plan` raises."""
    have = max(len(old.placements), partitions)
    slots = old.slots.map(len(old.placements))
    lately = old.slots.lately_at(now_ms)
    fixed = old.slots.unsettled() | lately.keys()
    return plan(old, even_moves(slots, even_counts(have, partitions), fixed), have, now_ms, why)
