"""The mover: it carries out one move of slots between two partitions of an entity (ADR 0026).

```text
 take (target) ─▶ give (source) ─▶ screen (target) ─▶ route (catalog) ─▶ drain (source) ─▶ finish (target, catalog)
                                                                          └─▶ groups are opened one by one
```

The broker that owns the target's store runs the mover. Each step can be repeated, so another broker may begin again
with the first one at any time, and two movers do no harm.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any

from partibus.partition.protocol.commands import (
    UNTIL_GIVEN,
    AskGroups,
    AwaitHeld,
    Command,
    FinishSlots,
    GiveSlots,
    Inspect,
    ListSessions,
    OpenCursor,
    OpenGroups,
    ScanSlots,
    SetStates,
    TakeSlots,
)
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.replies import (
    CursorInfo,
    Done,
    Failed,
    GroupsGone,
    GroupsHeld,
    Inspected,
    Sessions,
    SlotsGiven,
    SlotsScanned,
)
from partibus.partition.protocol.slots import Run, slot_for_key, slots_in
from partibus.routing.entity import EntityRoute
from partibus.routing.fault_injections import CallLater
from partibus.routing.partitions import PartitionHandle

SLACK = 1 << 20
"""Sequence counters that the source may give out between two steps. They are never used; a partition has 2^39."""
RETRY_MS = 100.0
ASK_MS_MIN = 10.0
ASK_MS_MAX = 250.0
"""The longest pause between two questions whether the source has groups left that receivers wait for."""
SCAN_MS_MIN = 100.0
SCAN_MS_MAX = 5_000.0
ASKED_MAX = 256
"""Groups in one question."""
POLLED_MAX = 1_024
"""Groups that are asked for again in one round: some 20 ms of a reader."""
PAGE = 1_000
_WITH_CURSORS = (SubqueueKind.ACTIVE, SubqueueKind.DEAD_LETTER)


class SlotMover:
    """One move, from the first command to the last."""

    def __init__(
        self,
        route: EntityRoute,
        source: int,
        target: int,
        version: int,
        runs: Sequence[Run],
        screen_until: Callable[[], int],
        first_sequence: int,
        *,
        has_sessions: bool,
        call_later: CallLater,
        on_given: Callable[[], None],
        on_finished: Callable[[], None],
    ) -> None:
        """Prepare a move.

        ``screen_until`` returns the time until which the source is asked for duplicates, if it gives the slots now.
        ``first_sequence`` is above the counters of a removed partition that may have had the target's id.
        ``on_given`` is called when the source refuses messages of the slots: the catalog's map may name the target.
        ``on_finished`` is called when the source has nothing of them.
        """
        self._route = route
        self._source = source
        self._target = target
        self._version = version
        self._runs = list(runs)
        self._wanted = set(slots_in(runs))
        self._screen_until = screen_until
        self._first_sequence = first_sequence
        self._has_sessions = has_sessions
        self._call_later = call_later
        self._on_given = on_given
        self._on_finished = on_finished
        self._after: str | None = None
        self._pause_ms = SCAN_MS_MIN
        self.step = "begin"
        """The mover's current step, for operators."""
        self.over = False

    def start(self) -> None:
        """Begin with the first step."""
        self._ask(self._source, Inspect, self._inspected)

    def stop(self) -> None:
        """Do nothing more: another broker goes on."""
        self.over = True

    # -- commands ----------------------------------------------------------------------------------------------------

    def _ask(self, place: int, make: Callable[[int], Command], on_reply: Callable[[Any], None]) -> None:
        """Ask a partition; after a failure begin again."""
        if self.over:
            return
        partition = self._route.partition(place)
        if partition is None or not partition.available:
            self._again()
            return

        def answered(reply: Any) -> None:
            if not self.over:
                on_reply(reply)

        partition.submit(make(self._route.numbers.next()), answered)

    def _again(self) -> None:
        self._call_later(RETRY_MS, lambda: None if self.over else self.start())

    # -- steps -------------------------------------------------------------------------------------------------------

    def _inspected(self, reply: Any) -> None:
        if not isinstance(reply, Inspected):
            self._again()
            return
        first = max(reply.end_pos + SLACK, self._first_sequence)
        self.step = "open cursors"
        self._open_cursors(
            [cursor for cursor in reply.cursors if cursor.kind in _WITH_CURSORS],
            lambda: self._take(first, UNTIL_GIVEN, lambda: self._give(first)),
        )

    def _open_cursors(self, cursors: list[CursorInfo], done: Callable[[], None]) -> None:
        """Open the source's cursors at the target: they keep what leaves it, from its first message on."""
        if not cursors:
            done()
            return
        cursor, *others = cursors

        def opened(reply: Any) -> None:
            if isinstance(reply, Failed):
                self._again()
            else:  # a refused one: the target has as many as it may
                self._open_cursors(others, done)

        self._ask(
            self._target,
            lambda number: OpenCursor(
                number,
                cursor.kind,
                cursor.name,
                dispositions=cursor.disposition_position >= 0,
                bound_bytes=cursor.bound_bytes,
            ),
            opened,
        )

    def _take(self, first_sequence: int, until_ms: int, done: Callable[[], None]) -> None:
        self.step = "take" if until_ms == UNTIL_GIVEN else "screen"

        def taken(reply: Any) -> None:
            if isinstance(reply, Done):
                done()
            else:
                self._again()

        self._ask(
            self._target,
            lambda number: TakeSlots(number, self._source, self._version, self._runs, until_ms, first_sequence),
            taken,
        )

    def _give(self, sequence_max: int) -> None:
        self.step = "give"

        def given(reply: Any) -> None:
            if isinstance(reply, SlotsGiven) and reply.given:
                self._take(sequence_max, self._screen_until(), self._route_and_drain)
            else:
                self._again()

        self._ask(
            self._source,
            lambda number: GiveSlots(number, self._target, self._version, self._runs, sequence_max),
            given,
        )

    def _route_and_drain(self) -> None:
        self.step = "route"
        self._on_given()
        self.step = "drain"
        self._scan()

    def _scan(self) -> None:
        """Look whether the source has groups of the slots left; it gets no new ones, so each name is passed once."""
        if not self._has_sessions:
            self._finish()
            return

        def scanned(reply: Any) -> None:
            if not isinstance(reply, SlotsScanned):
                self._again()
            elif reply.names:
                pause_ms, self._pause_ms = self._pause_ms, min(2 * self._pause_ms, SCAN_MS_MAX)
                self._call_later(pause_ms, lambda: None if self.over else self._scan())
            elif reply.after is not None:
                self._after = reply.after
                self._scan()
            else:
                self._move_states(None)

        self._ask(self._source, lambda number: ScanSlots(number, self._runs, self._after), scanned)

    def _move_states(self, after: str | None) -> None:
        """Move the states of sessions without messages, those behind a name; the source gets no new ones."""

        def listed(reply: Any) -> None:
            if not isinstance(reply, Sessions):
                self._again()
                return
            names = [name for name in reply.sessions if slot_for_key(name) in self._wanted]
            last = reply.sessions[-1] if len(reply.sessions) == PAGE else None
            if names:
                move_states(self._route, self._source, self._target, names, partial(moved, names, last))
            else:
                go_on(last)

        def moved(names: list[str], last: str | None, gone: list[str] | None) -> None:
            if self.over:
                return
            if gone is None or len(gone) < len(names):  # a session is held still
                self._again()
            else:
                go_on(last)

        def go_on(last: str | None) -> None:
            if last is None:
                self._finish()
            else:
                self._move_states(last)

        self._ask(self._source, lambda number: ListSessions(number, 0, PAGE, None, after), listed)

    def _finish(self) -> None:
        self.step = "finish"

        def finished(reply: Any) -> None:
            if isinstance(reply, Done):
                self.over = True
                self._on_finished()
            else:
                self._again()

        self._ask(self._target, lambda number: FinishSlots(number, self._version), finished)


class GroupOpener:
    """Opener of the groups that one target holds back, once their sources have nothing left of them."""

    def __init__(
        self, route: EntityRoute, target: int, source_of: Callable[[int], int | None], call_later: CallLater
    ) -> None:
        """Prepare for a target.

        ``source_of`` returns the source of a slot whose move is not finished, or None.
        """
        self._route = route
        self._target = target
        self._source_of = source_of
        self._call_later = call_later
        self._left: dict[str, None] = {}
        """Groups that their sources have."""
        self._asking = 0
        self._pause_ms = ASK_MS_MIN
        self._is_waiting = False
        self.over = False

    def start(self) -> None:
        """Begin to wait for groups."""
        self._await(anew=True)

    def stop(self) -> None:
        """Do nothing more."""
        self.over = True

    def _partition(self, place: int) -> PartitionHandle | None:
        partition = self._route.partition(place)
        return partition if partition is not None and partition.available else None

    def _await(self, *, anew: bool) -> None:
        if self.over:
            return
        target = self._partition(self._target)

        def later() -> None:
            self._left.clear()
            self._await(anew=True)

        def held(reply: Any) -> None:
            if self.over:
                return
            if not isinstance(reply, GroupsHeld):
                self._call_later(RETRY_MS, later)
            elif reply.names:
                self._pause_ms = ASK_MS_MIN
                self._ask(reply.names, is_first=True)
                self._await(anew=False)
            else:  # another opener has begun
                self.over = True

        if target is None:
            self._call_later(RETRY_MS, later)
        else:
            target.submit(AwaitHeld(self._route.numbers.next(), anew), held)

    def _ask(self, names: Iterable[str], *, is_first: bool) -> None:
        """Ask the sources of groups whether they have something of them."""
        by_source: dict[int, list[str]] = {}
        for name in names:
            source = self._source_of(slot_for_key(name))
            if source is not None:  # else the move has finished, and the target offers the group
                by_source.setdefault(source, []).append(name)
        for source, some in by_source.items():
            for start in range(0, len(some), ASKED_MAX):
                self._ask_source(source, some[start : start + ASKED_MAX], is_first=is_first)

    def _ask_source(self, source: int, names: list[str], *, is_first: bool) -> None:
        self._asking += 1

        def moved(gone: list[str] | None) -> None:
            self._asking -= 1
            if self.over:
                return
            there = [name for name in names if name not in set(gone or ())]
            self._left.update(dict.fromkeys(there))
            target = self._partition(self._target)
            if target is not None and (gone or is_first):
                number = self._route.numbers.next()
                target.submit(OpenGroups(number, gone or [], there if is_first else []), lambda _: None)
            if self._left:
                self._wait()

        move_states(self._route, source, self._target, names, moved)

    def _wait(self) -> None:
        if self._is_waiting:
            return
        self._is_waiting = True
        pause_ms, self._pause_ms = self._pause_ms, min(2 * self._pause_ms, ASK_MS_MAX)

        def again() -> None:
            self._is_waiting = False
            if self.over:
                return
            if self._asking:
                self._wait()
                return
            names = list(islice(self._left, POLLED_MAX))
            for name in names:
                del self._left[name]
            self._ask(names, is_first=False)

        self._call_later(pause_ms, again)


def move_states(
    route: EntityRoute, source: int, target: int, names: list[str], on_moved: Callable[[list[str] | None], None]
) -> None:
    """Ask a source which groups it has nothing of, and move the states of their sessions.

    ``on_moved`` gets the names, or None after a failure. A state is stored at the target before the source forgets it,
    and the session is offered after that: so a state that a new holder sets is not replaced by the old one.
    """
    former, owner = route.partition(source), route.partition(target)
    if former is None or owner is None:
        on_moved(None)
        return

    def answered(reply: Any) -> None:
        if not isinstance(reply, GroupsGone):
            on_moved(None)
            return
        gone = [name for name, _ in reply.gone]
        states = [(name, value) for name, value in reply.gone if value is not None]
        if not states:
            on_moved(gone)
            return

        def stored(reply: Any) -> None:
            if isinstance(reply, Done):
                cleared: list[tuple[str, bytes | None]] = [(name, None) for name, _ in states]
                size = sum(len(value) for _, value in states)
                former.submit(SetStates(route.numbers.next(), cleared, size), forgotten)
            else:
                on_moved(None)

        def forgotten(reply: Any) -> None:
            on_moved(gone if isinstance(reply, Done) else None)

        owner.submit(SetStates(route.numbers.next(), list(states)), stored)

    former.submit(AskGroups(route.numbers.next(), names), answered)
