"""Slots that have moved to or from a partition, and the groups that it holds back for them (ADR 0026).

A *move* gives slots of one partition, the source, to another one, the target. The messages stay where they are. From
its `GiveSlots` on the source stores no further messages of the slots and names the target instead. The target stores
them, but offers a group (a session, or the messages of an SQS message group) only when the source has none of it left.

```text
 group of a taken slot ──▶ held back ──▶ asked for at the source ──▶ none there: opened
                               ▲                │
                               └── some there ◀─┘      (the mover asks again)
```

The rules are durable: they are rows of the marks that each partition has (`PartitionState.inbound_marks`), under keys
that no source of messages has. A group that is absent at the source stays absent, because the source refuses new
messages of it. So what the target knows of groups is in memory only, and may be forgotten.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from partibus.message import Message
from partibus.partition.core.events import MarkRaised
from partibus.partition.core.step import Step
from partibus.partition.protocol.commands import AcceptSession, AwaitHeld, Enqueue
from partibus.partition.protocol.generations import History, keys_of, mark_key
from partibus.partition.protocol.replies import GroupsHeld, Moved, ScreenFirst
from partibus.partition.protocol.slots import Run, runs_of, slot_for_key, slots_in

RULES_KEY = -(1 << 63) + 1
"""The mark with the number of rules; the rules follow. Keys of sources are above -2^62."""
_FIELDS = 3
_GIVEN, _SCREENED, _HELD, _CAME = range(4)
OPENED_MAX = 65_536
"""Groups known to be absent at the source; a forgotten one is asked for again."""
HELD_MAX = 8_192
"""Groups held back in memory: the end of a move offers them in one step, about 12 ms. The store has the others, and a
scan finds them when there is room.
"""
HELD_AT_ONCE = 256
"""Groups in one `GroupsHeld`."""


class Taken(NamedTuple):
    """A slot that came from another partition."""

    source: int
    version: int
    until_ms: int
    """The time until which the source is asked for duplicates; 0: it is not."""
    is_held: bool
    """Whether groups are held back: the source may have messages of the slot."""


class Given(NamedTuple):
    """A slot that went to another partition."""

    target: int
    version: int


class Gate:
    """The groups that a target holds back."""

    __slots__ = ("_opened", "_told", "accepts", "asker", "has_dropped", "held")

    def __init__(self) -> None:
        self.held: OrderedDict[str, None] = OrderedDict()
        """Groups with messages here that may have messages at the source."""
        self._opened: OrderedDict[str, None] = OrderedDict()
        self._told: set[str] = set()
        """Groups that the mover was told of, among those that are held back or asked for."""
        self.accepts: dict[str, list[AcceptSession]] = {}
        """Requests for a named group that wait for the source's answer."""
        self.asker: AwaitHeld | None = None
        """The mover's open request."""
        self.has_dropped = False
        """Whether a group was not noted for lack of room."""

    def is_open(self, name: str) -> bool:
        """Tell whether the source is known to have nothing of a group."""
        return name in self._opened

    def open(self, name: str) -> None:
        """Note that the source has nothing of a group."""
        self._opened[name] = None
        if len(self._opened) > OPENED_MAX:
            self._opened.popitem(last=False)
        self.let_go(name)

    def hold(self, name: str) -> None:
        """Hold a group back."""
        if name in self.held or len(self.held) < HELD_MAX:
            self.held[name] = None
        else:
            self.has_dropped = True

    def has_room_again(self) -> bool:
        """Tell whether groups were not noted for lack of room, and half of the room is free; forget them then.

        Half: a scan reads all groups of the store, so it must not come after each group that is opened.
        """
        if not self.has_dropped or 2 * len(self.held) > HELD_MAX:
            return False
        self.has_dropped = False
        return True

    def let_go(self, name: str) -> None:
        """Hold a group back no longer."""
        self.held.pop(name, None)
        self._told.discard(name)

    def close_all(self) -> None:
        """Forget all knowledge of the source: slots came back."""
        self._opened.clear()
        self._told.clear()

    def begin(self, asker: AwaitHeld) -> AwaitHeld | None:
        """Take the mover's request; return the one that it replaces."""
        before, self.asker = self.asker, asker
        if asker.anew:
            self._told.clear()
        return before

    def untold(self) -> list[str]:
        """Return groups that the mover does not know of, and note that it does."""
        names: list[str] = []
        for name in (*self.accepts, *self.held):
            if name not in self._told:
                self._told.add(name)
                names.append(name)
                if len(names) == HELD_AT_ONCE:
                    break
        return names

    @property
    def has_untold(self) -> bool:
        """Whether the mover has to be told of groups."""
        return len(self._told) < len(self.held) + sum(name not in self.held for name in self.accepts)

    def ask_for(self, name: str, command: AcceptSession) -> None:
        """Keep a request for a named group. The mover asks the source, also when it knows that the group waits."""
        self.accepts.setdefault(name, []).append(command)
        self._told.discard(name)

    def cancel(self, request: int) -> None:
        """Forget a request for a named group."""
        for name, asked in list(self.accepts.items()):
            self.accepts[name] = [one for one in asked if one.request != request]
            if len(self.accepts[name]) < len(asked) and not self.accepts[name]:
                self.answered(name)

    def answered(self, name: str) -> list[AcceptSession]:
        """Take the requests that wait for a group."""
        if name not in self.held:
            self._told.discard(name)
        return self.accepts.pop(name, [])


class SlotRules:
    """The slots that a partition has given away or taken."""

    __slots__ = ("_slots", "came", "gate", "given", "taken")

    def __init__(self, marks: Mapping[int, int]) -> None:
        self.given: dict[int, Given] = {}
        """Slots that were given away."""
        self.taken: dict[int, Taken] = {}
        """Slots that were taken; one may have been taken and given since."""
        self.came: set[int] = set()
        """Slots that have ever come here with a move."""
        self.gate = Gate()
        self._slots: dict[str, int] = {}
        """The slots of the groups met last."""
        count = marks.get(RULES_KEY, 0)
        for key in range(RULES_KEY + 1, RULES_KEY + 1 + count * _FIELDS, _FIELDS):
            where, version, until_ms = (marks[key + index] for index in range(_FIELDS))
            run, other, kind = (where >> 34, where >> 20 & 0x3FFF), where >> 4 & 0xFFFF, where & 3
            for slot in slots_in([run]):
                if kind == _GIVEN:
                    self.given[slot] = Given(other, version)
                elif kind == _CAME:
                    self.came.add(slot)
                else:
                    self.taken[slot] = Taken(other, version, until_ms, kind == _HELD)

    def marks(self) -> dict[int, int]:
        """Return the rules as marks."""
        rows: dict[tuple[int, int, int, int], list[int]] = {}
        for slot in sorted(self.given):
            rule = self.given[slot]
            rows.setdefault((rule.target, _GIVEN, rule.version, 0), []).append(slot)
        for slot in sorted(self.taken):
            took = self.taken[slot]
            kind = _HELD if took.is_held else _SCREENED
            rows.setdefault((took.source, kind, took.version, took.until_ms), []).append(slot)
        if self.came:
            rows[0, _CAME, 0, 0] = sorted(self.came)
        marks: dict[int, int] = {}
        key = RULES_KEY + 1
        for (other, kind, version, until_ms), slots in rows.items():
            for first, last in runs_of(slots):
                marks[key] = first << 34 | last << 20 | other << 4 | kind
                marks[key + 1], marks[key + 2] = version, until_ms
                key += _FIELDS
        marks[RULES_KEY] = (key - RULES_KEY - 1) // _FIELDS
        return marks

    def slot_of(self, name: str) -> int:
        """Return the slot of a group; the last ones are remembered, since each message asks."""
        slot = self._slots.get(name)
        if slot is None:
            if len(self._slots) >= OPENED_MAX:
                self._slots.clear()
            slot = self._slots[name] = slot_for_key(name)
        return slot

    def has_version(self, version: int, *, taken: bool) -> bool:
        """Tell whether a move was recorded here."""
        rules: Iterable[Taken | Given] = (self.taken if taken else self.given).values()
        return any(rule.version == version for rule in rules)

    def take(self, runs: Iterable[Run], rule: Taken) -> None:
        """Record slots that come."""
        for slot in slots_in(runs):
            self.taken[slot] = rule
            self.came.add(slot)
            self.given.pop(slot, None)
        self.gate.close_all()

    def screen_until(self, version: int, until_ms: int) -> bool:
        """Ask the source of a move for duplicates until this time, if it is earlier; tell whether it is."""
        later = [slot for slot, rule in self.taken.items() if rule.version == version and rule.until_ms > until_ms]
        for slot in later:
            self.taken[slot] = self.taken[slot]._replace(until_ms=until_ms)
        return bool(later)

    def give(self, runs: Iterable[Run], rule: Given) -> None:
        """Record slots that go."""
        for slot in slots_in(runs):
            self.given[slot] = rule

    def finish(self, version: int, now_ms: int) -> None:
        """Stop holding back the groups of a move. Rules without any use are forgotten."""
        for slot, rule in list(self.taken.items()):
            is_held = rule.is_held and rule.version != version
            if not is_held and rule.until_ms <= now_ms:
                del self.taken[slot]
            elif is_held != rule.is_held:
                self.taken[slot] = rule._replace(is_held=is_held)

    # -- groups ------------------------------------------------------------------------------------------------------

    def holds(self, name: str) -> bool:
        """Tell whether a group has to be held back."""
        if self.gate.is_open(name):
            return False
        slot = self.slot_of(name)
        rule = self.taken.get(slot)
        return rule is not None and rule.is_held and slot not in self.given

    def lets_pass(self, name: str) -> bool:
        """Tell whether a group may be offered; otherwise hold it back."""
        if not self.holds(name):
            return True
        self.gate.hold(name)
        return False

    def open_slots(self) -> Iterator[str]:
        """Iterate over the groups held back without a reason since the rules changed; they are held back no longer."""
        for name in list(self.gate.held):
            if not self.holds(name):
                self.gate.let_go(name)
                yield name

    # -- messages ----------------------------------------------------------------------------------------------------

    def divert(self, command: Enqueue, now_ms: int, *, detects: bool) -> Moved | ScreenFirst | None:
        """Return where messages belong instead of here, or which partitions have to be asked for duplicates first.

        ``detects``: the entity detects duplicates.
        """
        if command.via:
            return None
        given, taken = self.given, self.taken
        places: dict[int, int] = {}
        sources: dict[int, list[int]] = {}
        screens = command.screened is None and (detects or command.origin is not None)
        for index, message in enumerate(command.messages):
            key = message.key
            if key is None:
                continue
            slot = self.slot_of(key)
            if given and (rule := given.get(slot)) is not None:
                places[index] = rule.target
            elif screens and (took := taken.get(slot)) is not None and took.until_ms > now_ms:
                sources.setdefault(took.source, []).append(index)
        if places:
            return Moved(command.request, places)
        return ScreenFirst(command.request, sources) if sources else None

    def others(self) -> list[int]:
        """Return the partitions that slots have come from or gone to; there may be more behind those."""
        return list({*(rule.target for rule in self.given.values()), *(took.source for took in self.taken.values())})

    def older_sources(self, keys: Iterable[str | None], now_ms: int) -> list[int]:
        """Return the partitions that had the slots of keys before, and may know ids that are not here."""
        found: dict[int, None] = {}
        for key in keys:
            took = None if key is None else self.taken.get(self.slot_of(key))
            if took is not None and took.until_ms > now_ms:
                found[took.source] = None
        return list(found)

    def forwarded_before(self, command: Enqueue, marks: dict[int, int], step: Step) -> list[int]:
        """Return the indexes of forwarded messages that have come before; the others count as come from now on.

        Where slots have moved, each slot has a mark of its own. Messages of one source ascend in a slot, but not in a
        partition to which slots came.
        """
        assert command.origin is not None, "forwarded"
        source, positions = command.origin
        known = self.forwarded(command.messages, command.origin, command.history, marks)
        already = set(known)
        raised: dict[int, int] = {}
        for index, (message, pos) in enumerate(zip(command.messages, positions, strict=True)):
            if index not in already:
                raised[self._mark_key(source, message.key)] = pos
        for key, pos in raised.items():
            marks[key] = pos
            step.events.append(MarkRaised(key, pos))
        return known

    def forwarded(
        self,
        messages: Sequence[Message],
        origin: tuple[int, list[int]],
        history: History | None,
        marks: Mapping[int, int],
    ) -> list[int]:
        """Return the indexes of forwarded messages that have come here before."""
        source, positions = origin
        sources = keys_of(source, history, marks)
        plain = max([marks.get(source, 0) for source in sources])
        known = []
        for index, (message, pos) in enumerate(zip(messages, positions, strict=True)):
            key = message.key
            # The source's own mark is older than the first move. It says nothing of slots that came with one.
            is_own = key is None or self.slot_of(key) not in self.came
            if (is_own and pos <= plain) or any(pos <= marks.get(self._mark_key(one, key), 0) for one in sources):
                known.append(index)
        return known

    def _mark_key(self, source: int, key: str | None) -> int:
        if key is None:
            return source
        return mark_key(source, str(self.slot_of(key)))


def record_rules(rules: SlotRules, known: dict[int, int], step: Step) -> None:
    """Make the rules durable; ``known`` are the partition's marks."""
    for key, value in rules.marks().items():
        if known.get(key) != value:
            known[key] = value
            step.events.append(MarkRaised(key, value))


def tell_held(rules: SlotRules, step: Step) -> None:
    """Answer the mover, if there are groups that it does not know of."""
    gate = rules.gate
    if gate.asker is not None and gate.has_untold and (names := gate.untold()):
        step.replies.append(GroupsHeld(gate.asker.request, names))
        gate.asker = None
