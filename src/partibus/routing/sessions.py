"""Assignment of sessions to receivers (row K4).

```text
 named ─▶ the partition of its key (row K3) ───────────────────▶ held, or held by another receiver
 next  ─▶ one partition after the other, without waiting ──────▶ the first with a session wins
          no session: the receiver waits at the desk ──────────▶ the longest waiter gets the next session
```

A search first asks the partitions one after the other, so that it does not briefly lock sessions that it will not take.
Where many sessions wait, the first partition has one. Searches begin at different partitions in turn.

The desk asks every partition for as many sessions as receivers wait, up to a bound. A partition knows only the desk,
not its waiting receivers, which may be thousands. The desk skips a partition whose store is unavailable, and asks it
again when it is back.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from partibus.errors import PartibusError, SessionCannotBeLocked, StoreUnavailable, Timeout
from partibus.partition.protocol.replies import (
    CursorHeld,
    Failed,
    NoSession,
    ReceiveRefused,
    SessionAccepted,
    SessionElsewhere,
)
from partibus.routing.partitions import Numbers, PartitionHandle, error_of
from partibus.routing.session_source import SessionHold
from partibus.routing.slots import SlotMap

ASKED_MAX = 64
"""The number of sessions that one partition is asked for at a time. As many receivers get theirs at once when as many
sessions arrive together; then the desk asks for the next ones.
"""

HOPS_MAX = 16
"""The most times that a search follows a session whose slot has moved."""

OnFound = Callable[[SessionHold | PartibusError], None]


class SessionDesk:
    """The place where the receivers of one entity get their sessions."""

    def __init__(
        self,
        entity: str,
        partitions: list[PartitionHandle],
        numbers: Numbers,
        first_turn: int,
        partition_of: Callable[[str], int] | None = None,
    ) -> None:
        self.entity = entity
        self.partitions = partitions
        self.partition_of = partition_of or SlotMap(len(partitions)).partition_of
        """The function from a session's name to its partition; the default is the formula."""
        self.catch_up: Callable[[], None] = lambda: None
        """Reads the entity's partitions from the catalog."""
        self.numbers = numbers
        self._turn = first_turn
        self._waiting: dict[SessionSearch, None] = {}
        """The waiting searches, the longest-waiting first."""
        self._asked: list[dict[SessionHold, None]] = [{} for _ in partitions]
        """The unanswered requests by partition."""
        self._away: set[int] = set()
        """Indexes of partitions whose stores are unavailable; each reports its return once."""

    def search(self, session: str | None, on_found: OnFound) -> "SessionSearch":
        """Return a search for a session, or for the next free one with messages.

        `SessionSearch.start` begins it. ``on_found`` is called at most once.
        """
        return SessionSearch(self, session, on_found)

    def resize(self) -> None:
        """Follow partitions that were added or removed at the end of the list."""
        count = len(self.partitions)
        while len(self._asked) > count:
            for hold in self._asked.pop():
                hold.cancel()
            self._away.discard(len(self._asked))
        self._turn %= count
        self._asked += [{} for _ in range(count - len(self._asked))]
        self._balance()

    def next_turn(self) -> int:
        """Return the index of the partition with which a search begins."""
        self._turn = (self._turn + 1) % len(self.partitions)
        return self._turn

    def join(self, search: "SessionSearch") -> None:
        """Add a search that has asked every partition to the waiting ones."""
        self._waiting[search] = None
        self._balance()

    def leave(self, search: "SessionSearch") -> None:
        """Remove a search from the waiting ones. Idempotent."""
        if search in self._waiting:
            del self._waiting[search]
            self._balance()

    # -- asking ------------------------------------------------------------------------------------------------------

    def _balance(self) -> None:
        """Adjust the number of requests at every partition to the number of waiting searches.

        A partition may answer before `SessionHold.ask` returns, so each step reads the current state.
        """
        for index, asked in enumerate(self._asked):
            while len(asked) > len(self._waiting):
                asked.popitem()[0].cancel()
            while len(asked) < min(len(self._waiting), ASKED_MAX) and self._is_usable(index):
                hold = SessionHold(self.partitions[index], self.numbers)
                asked[hold] = None
                hold.ask(None, self._answered(index, hold), wait=True)
        if self._waiting and not any(self._asked):
            # All partitions are unavailable: tell the receivers at once to retry.
            waiting, self._waiting = self._waiting, {}
            for search in waiting:
                search.end(StoreUnavailable(f"No messaging store of '{self.entity}' can be used now, try again."))

    def _is_usable(self, index: int) -> bool:
        if not self.partitions[index].available:
            self._await(index)
        return index not in self._away

    def _await(self, index: int) -> None:
        """Resume with a partition when its store is back."""
        if index in self._away:
            return
        self._away.add(index)

        def usable() -> None:
            self._away.discard(index)
            self._balance()

        self.partitions[index].when_usable(usable)

    def _answered(self, index: int, hold: SessionHold) -> Callable[[Any], None]:
        asked = self._asked[index]

        def answered(reply: Any) -> None:
            wanted = hold in asked
            asked.pop(hold, None)
            if isinstance(reply, SessionAccepted):
                hold.accepted(reply)
                search = next(iter(self._waiting), None) if wanted else None
                if search is None:
                    hold.release()
                else:
                    search.end(hold)
            elif wanted and isinstance(reply, CursorHeld | ReceiveRefused):
                hold.forget()
                # The same cursor reads the other partitions: end all searches, which also ends the requests.
                waiting, self._waiting = self._waiting, {}
                for search in waiting:
                    search.end(error_of(reply, self.entity))
                self._balance()
            elif wanted:
                hold.forget()
                self._await(index)
                self._balance()

        return answered


class SessionSearch:
    """The search of one receiver for a session."""

    __slots__ = ("_asked", "_desk", "_given_up", "_hops", "_on_found", "_over", "_session", "_untried", "_waiting")

    def __init__(self, desk: SessionDesk, session: str | None, on_found: OnFound) -> None:
        self._desk = desk
        self._session = session
        self._on_found = on_found
        self._asked: SessionHold | None = None
        self._untried: deque[int] = deque()
        """Indexes of partitions to ask before the search waits."""
        self._waiting = False
        self._given_up = False
        self._hops = 0
        """The number of times that a partition has named another one."""
        self._over = False

    def start(self) -> None:
        """Ask the first partition."""
        count = len(self._desk.partitions)
        if self._session is not None:
            self._ask(self._desk.partition_of(self._session))
            return
        first = self._desk.next_turn()
        self._untried.extend((first + i) % count for i in range(count))
        self._ask_next()

    def give_up(self) -> None:
        """End with `Timeout` once every partition has been asked without success."""
        self._given_up = True
        if self._waiting:
            self._time_out()

    def cancel(self) -> None:
        """Cancel the search: no session stays locked, and no callback runs."""
        if self._over:
            return
        self._over = True
        if self._asked is not None:
            self._asked.cancel()
            self._asked = None
        self._desk.leave(self)

    def end(self, found: SessionHold | PartibusError) -> None:
        """Report the result."""
        if not self._over:
            self.cancel()
            self._on_found(found)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _ask_next(self) -> None:
        """Ask the next partition with an available store; wait when all have been asked."""
        while self._untried:
            index = self._untried.popleft()
            if index < len(self._desk.partitions) and self._desk.partitions[index].available:
                self._ask(index)
                return
        if self._given_up:
            self._time_out()
        else:
            self._waiting = True
            self._desk.join(self)

    def _ask(self, index: int, *, resident: bool = False) -> None:
        hold = self._asked = SessionHold(self._desk.partitions[index], self._desk.numbers)

        def answered(reply: Any) -> None:
            self._answered(hold, reply, resident=resident)

        hold.ask(self._session, answered, wait=False, resident=resident)

    def _answered(self, hold: SessionHold, reply: Any, *, resident: bool) -> None:
        wanted = self._asked is hold
        if wanted:
            self._asked = None
        if isinstance(reply, SessionAccepted):
            hold.accepted(reply)
            if wanted:
                self.end(hold)
            else:
                hold.release()
        elif wanted:
            hold.forget()
            if self._session is not None and self._hops < HOPS_MAX and isinstance(reply, SessionElsewhere):
                self._hops += 1
                self._ask_elsewhere(reply)
            elif self._session is not None and self._hops < HOPS_MAX and resident and isinstance(reply, NoSession):
                # The former partition has nothing left of the session, and the present one may have.
                self._hops += 1
                self._ask(self._desk.partition_of(self._session))
            else:
                self._denied(reply)

    def _ask_elsewhere(self, reply: SessionElsewhere) -> None:
        """Go on at the partition that has the session (ADR 0026)."""
        if reply.partition >= len(self._desk.partitions):
            self._desk.catch_up()
        if reply.partition >= len(self._desk.partitions):
            self.end(StoreUnavailable(f"The partition {reply.partition} of '{self._desk.entity}' is new, try again."))
        else:
            self._ask(reply.partition, resident=reply.resident)

    def _denied(self, reply: Any) -> None:
        """End the search, or continue it for a next session.

        A named session has one partition (rows K2, K3), while the next session may come from another one. An exclusive
        cursor reads all partitions.
        """
        if isinstance(reply, CursorHeld | ReceiveRefused):
            self.end(error_of(reply, self._desk.entity))
        elif self._session is None:
            self._ask_next()
        elif isinstance(reply, Failed):
            # The outcome of the request does not matter: a lock in memory was lost with the store.
            text = f"The messaging store of this session of '{self._desk.entity}' can't be used now, try again"
            self.end(StoreUnavailable(f"{text}: {reply.message}"))
        else:
            self.end(SessionCannotBeLocked(self._desk.entity, self._session))

    def _time_out(self) -> None:
        self.end(
            Timeout(
                f"No session of '{self._desk.entity}' was free and had messages in the time that the receiver waits. "
                "Try again, or wait longer."
            )
        )
