"""Fault injection: partitions that are unavailable or slow on purpose, for operators and tests.

A fault lasts until it is healed or the broker restarts. A store's fault covers every partition in it, including those
of entities created later. Of several faults for one partition a failure outranks a delay, and the longest delay
applies. Each broker process applies faults to its own routes, so they cover partitions of other brokers as well.
`on_changed` gets the complete list, and another broker's `follow` adopts it.

A faulty route stands in front of a store:

```text
 PartitionHandle ─▶ StoreAccess                without a fault: a direct route
 PartitionHandle ─▶ Detour ─▶ StoreAccess      refused, or passed on with a delay, in order
```

It refuses commands as an unavailable store does: surely not executed, to be retried. The partition's owner does not
know of the fault, so message locks continue and expire there. Commands that only return a reservation or a session are
passed on regardless. Their loss would be invisible, and other receivers would have to wait until they expire.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from partibus.errors import ArgumentError, InvalidOperation
from partibus.partition.protocol.commands import (
    CancelAccept,
    CancelReceive,
    Command,
    Inspect,
    Outcome,
    Receive,
    ReleaseSession,
    ReturnReserved,
    Settle,
)
from partibus.partition.protocol.host import overloaded_stores
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.replies import Failed, refused
from partibus.partition.runtime.dispatcher import OnReply
from partibus.routing.partitions import PartitionHandle

LATE_MAX = 5_000
"""The number of delayed commands past which the partition counts as overloaded, as for a store (D24)."""


class Timer(Protocol):
    """The result of `CallLater`."""

    def cancel(self) -> None:
        """Cancel the call. Idempotent."""
        ...


CallLater = Callable[[float, Callable[[], None]], Timer]
"""A function that calls another one after so many ms."""


class Effect(NamedTuple):
    """The effect of fault injection on a partition."""

    fails: bool = False
    delay_ms: int = 0
    """The delay of every command."""


NO_EFFECT = Effect()


class FaultyRoute:
    """A `partibus.routing.store_access.StoreAccess` for one partition, between its handle and its store."""

    def __init__(self, partition: PartitionHandle, call_later: CallLater) -> None:
        """Insert this route between the partition and its store."""
        self._partition = partition
        self._call_later = call_later
        self._store = partition.reroute(self)
        self._effect = NO_EFFECT
        self._why = ""
        self._late: deque[tuple[Timer, Callable[[], None]]] = deque()
        self._waiting: list[Callable[[], None]] = []
        """Calls to make at the end of the failure or overload."""

    def begin(self, effect: Effect, why: str) -> None:
        """Replace the current effect; ``why`` is the reason in refusals."""
        failed, self._effect, self._why = self._effect.fails, effect, why
        if effect.fails and not failed:
            self._run_late()  # earlier commands are refused as well, in order
            receivers, self._partition.receivers = self._partition.receivers, {}
            for receiver, on_granted in receivers.items():
                self._store.unregister(receiver)
                on_granted(Failed(receiver, False, False, why))
        elif failed and not effect.fails:
            for receiver, on_granted in self._partition.receivers.items():
                self._store.register(receiver, on_granted)
        if not effect.fails and not effect.delay_ms:
            self._run_late()
        self._tell_usable()

    def end(self) -> None:
        """Restore the direct route."""
        self.begin(NO_EFFECT, "")
        self._partition.reroute(self._store)
        # The entity may have changed meanwhile. Reading counts updates the partition, and does not count as use.
        self._partition.submit(Inspect(0))

    # -- StoreAccess -------------------------------------------------------------------------------------------------

    @property
    def beneath(self) -> object:
        """The route that this one stands in."""
        return self._store

    @property
    def failure(self) -> str | None:
        """The reason why the partition is unavailable; None while it is available."""
        return self._why if self._effect.fails else self._store.failure

    @property
    def overloaded(self) -> bool:
        """Whether too many commands wait, here or for the store."""
        return not self._effect.fails and (len(self._late) > LATE_MAX or self._store.overloaded)

    def submit(
        self,
        row: int,
        options: PartitionOptions,
        command: Command,
        on_reply: OnReply | None = None,
        *,
        holdable: bool = False,
    ) -> None:
        """Pass a command on, at once or delayed, or refuse it."""
        self._in_time(lambda: self._submit(row, options, command, on_reply, holdable=holdable))

    def register(self, receiver: int, on_granted: OnReply) -> None:
        # During a failure only the handle knows the receivers; `begin` registers them when it ends.
        """Register a receiver with the store, unless the partition fails."""
        if not self._effect.fails:
            self._store.register(receiver, on_granted)

    def unregister(self, receiver: int) -> None:
        """Remove a receiver from the store."""
        self._in_time(lambda: self._store.unregister(receiver))

    def forget(self, request: int) -> None:
        """Discard the answer to a request."""
        self._in_time(lambda: self._store.forget(request))

    def when_usable(self, call: Callable[[], None]) -> None:
        """Call once, when the partition is available and not overloaded."""
        if self._effect.fails or len(self._late) > LATE_MAX:
            self._waiting.append(call)
        else:
            self._store.when_usable(call)

    def drop(self, row: int, on_dropped: Callable[[Any], None]) -> None:
        """Delete a partition's rows, unless the partition fails: as with a lost store, no callback follows then."""
        if not self._effect.fails:
            self._in_time(lambda: self._store.drop(row, on_dropped))

    def retire(self, why: str) -> list[Callable[[], None]]:
        """Retire the store's route."""
        return self._store.retire(why)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _submit(
        self, row: int, options: PartitionOptions, command: Command, on_reply: OnReply | None, *, holdable: bool
    ) -> None:
        if not self._effect.fails or _only_gives_back(command):
            self._store.submit(row, options, command, on_reply, holdable=holdable)
        elif isinstance(command, Receive):
            on_granted = self._partition.receivers.get(command.receiver)
            if on_granted is not None:
                on_granted(Failed(command.receiver, False, False, self._why))
        elif on_reply is not None:
            on_reply(refused(command, self._why))

    def _in_time(self, call: Callable[[], None]) -> None:
        """Make a call now, or with the delay. Calls keep their order even if the delay changes."""
        if self._effect.delay_ms and not self._effect.fails:
            self._late.append((self._call_later(self._effect.delay_ms, self._run_oldest), call))
            if len(self._late) > LATE_MAX:
                overloaded_stores.add(self)
        else:
            call()

    def _run_oldest(self) -> None:
        self._late.popleft()[1]()
        if 2 * len(self._late) < LATE_MAX:
            overloaded_stores.discard(self)
            self._tell_usable()

    def _run_late(self) -> None:
        late, self._late = self._late, deque()
        overloaded_stores.discard(self)
        for timer, call in late:
            timer.cancel()
            call()

    def _tell_usable(self) -> None:
        if self._waiting and not self._effect.fails:
            calls, self._waiting = self._waiting, []
            for call in calls:
                if self._store.failure is None and not self._store.overloaded:
                    self._call_later(0, call)
                else:
                    self._store.when_usable(call)


def _only_gives_back(command: Command) -> bool:
    """Tell whether a command only returns resources and has no reply."""
    match command:
        case ReturnReserved() | ReleaseSession() | CancelReceive(request=0) | CancelAccept(request=0):
            return True
        case Settle(request=0, outcome=Outcome.RELEASE):
            return True
    return False


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
