"""Fault injection: partitions that are unavailable or slow on purpose, for operators and tests.

A fault lasts until it is healed or the broker restarts. A store's fault covers every partition in it, including those
of entities created later. Of several faults for one partition a failure outranks a delay, and the longest delay
applies. Each broker process applies faults to its own routes, so they cover partitions of other brokers as well.
`on_changed` gets the complete list, and another broker's `follow` adopts it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from partibus.errors import ArgumentError, InvalidOperation
from partibus.routing.faulty_route import NO_EFFECT, CallLater, Effect, FaultyRoute
from partibus.routing.partitions import PartitionHandle

_HINT = "end it with `partibus partition heal`"


class Place(NamedTuple):
    """A partition as the operator names it."""

    entity: str
    store: str
    partition: PartitionHandle


class FaultInjection(NamedTuple):
    """One fault: of a store, or of one partition of an entity."""

    store: str
    """The store; empty for a partition."""
    entity: str
    partition_id: int
    row: int
    """The unique row of the partition; 0 for a store."""
    effect: Effect


class FaultInjections:
    """All faults of a broker."""

    def __init__(self, stores: Sequence[str], call_later: CallLater | None = None) -> None:
        """Build the list; without ``call_later`` it stays empty."""
        self.stores = stores
        self.places: list[Callable[[], Iterable[Place]]] = []
        """Functions that return the partitions in use, one for each namespace. `join` adds others."""
        self._call_later = call_later
        self._rules: dict[tuple[str, int], FaultInjection] = {}
        """Faults by store and row; one of the two is empty."""
        self._faulty_routes: dict[int, tuple[Place, FaultyRoute]] = {}
        """Routes by row of the partition."""
        self.on_changed: Callable[[list[FaultInjection]], None] | None = None

    def inject_store_fault(self, store: str, effect: Effect) -> None:
        """Set the fault of a store. Raises `ArgumentError` for an unknown store."""
        self._check_store(store)
        self._rules[store, 0] = FaultInjection(store, "", 0, 0, effect)
        self._changed()

    def inject_partition_faults(self, places: Iterable[Place], effect: Effect) -> None:
        """Set the fault of some partitions."""
        for entity, _, partition in places:
            rule = FaultInjection("", entity, partition.partition_id, partition.row, effect)
            self._rules["", partition.row] = rule
        self._changed()

    def heal_store(self, store: str) -> int:
        """End the fault of a store and return how many ended.

        Raises `ArgumentError` for an unknown store.
        """
        self._check_store(store)
        return self._heal(lambda rule: rule.store == store)

    def heal_partitions(self, entity: str, partition_ids: Sequence[int]) -> int:
        """End the faults of an entity's partitions, of all for []; return how many ended.

        The entity may have been deleted.
        """
        return self._heal(
            lambda rule: (
                bool(rule.entity)
                and rule.entity.casefold() == entity.casefold()
                and (not partition_ids or rule.partition_id in partition_ids)
            )
        )

    def heal_all(self) -> int:
        """End all faults and return how many ended."""
        return self._heal(lambda _: True)

    def all(self) -> list[FaultInjection]:
        """Return all faults, sorted by store, then by entity and partition."""
        return sorted(self._rules.values(), key=lambda rule: (not rule.store, rule.store, rule.entity, rule.row))

    def follow(self, rules: Iterable[FaultInjection]) -> None:
        """Adopt the faults of another broker of the namespace."""
        self._rules = {(rule.store, rule.row): rule for rule in rules}
        self._apply()

    def join(self, places: Iterable[Place]) -> None:
        """Apply the faults to partitions that come into use."""
        if self._rules:
            for place in places:
                self._apply_to(place)

    def fails(self, store: str) -> bool:
        """Tell whether a fault makes the store unavailable."""
        rule = self._rules.get((store, 0))
        return rule is not None and rule.effect.fails

    def trouble(self, store: str) -> str | None:
        """Return the description of a fault that makes the store unavailable."""
        return f"{store} fails by fault injection; {_HINT}" if self.fails(store) else None

    # -- inside ------------------------------------------------------------------------------------------------------

    def _check_store(self, store: str) -> None:
        if store not in self.stores:
            raise ArgumentError("store", store, f"one of {', '.join(self.stores)}")

    def _heal(self, healed: Callable[[FaultInjection], bool]) -> int:
        before = len(self._rules)
        self._rules = {key: rule for key, rule in self._rules.items() if not healed(rule)}
        if len(self._rules) != before:
            self._changed()
        return before - len(self._rules)

    def _changed(self) -> None:
        self._apply()
        if self.on_changed is not None:
            self.on_changed(self.all())

    def _apply(self) -> None:
        injected = [place for place, _ in self._faulty_routes.values()]  # including deleted partitions
        for place in (*injected, *(place for places in self.places for place in places())):
            self._apply_to(place)

    def _apply_to(self, place: Place) -> None:
        row = place.partition.row
        effect = self._effect_on(place)
        known = self._faulty_routes.get(row)
        if effect == NO_EFFECT:
            if known is not None:
                del self._faulty_routes[row]
                known[1].end()
            return
        if known is None:
            if self._call_later is None:
                raise InvalidOperation("This broker does not inject faults.")
            known = self._faulty_routes[row] = place, FaultyRoute(place.partition, self._call_later)
        known[1].begin(
            effect, f"partition {place.partition.partition_id} ({place.store}) fails by fault injection; {_HINT}"
        )

    def _effect_on(self, place: Place) -> Effect:
        effect = NO_EFFECT
        for key in ((place.store, 0), ("", place.partition.row)):
            rule = self._rules.get(key)
            if rule is not None:
                fails = effect.fails or rule.effect.fails
                effect = Effect(fails, 0 if fails else max(effect.delay_ms, rule.effect.delay_ms))
        return effect


def to_plain(rules: Iterable[FaultInjection]) -> list[dict[str, object]]:
    """Convert faults to plain values for the wire or for display."""
    return [
        {
            "store": rule.store,
            "entity": rule.entity,
            "partition": rule.partition_id,
            "row": rule.row,
            "fails": rule.effect.fails,
            "delay-ms": rule.effect.delay_ms,
        }
        for rule in rules
    ]


def from_plain(rules: Iterable[Mapping[str, object]]) -> list[FaultInjection]:
    """Convert the result of `to_plain` back to faults."""
    return [
        FaultInjection(
            str(rule["store"]),
            str(rule["entity"]),
            int(str(rule["partition"])),
            int(str(rule["row"])),
            Effect(bool(rule["fails"]), int(str(rule["delay-ms"]))),
        )
        for rule in rules
    ]
