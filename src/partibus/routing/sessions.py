"""Who gets which session (row K4).

```text
 named ─▶ the partition of its key (row K3) ───────────────────▶ held, or held by somebody else
 next  ─▶ one partition after the other, none of them waits ───▶ the first that has one wins
          none has one: all wait ──────────────────────────────▶ the first wins, the others are told to stop
```

Asking one after the other first keeps a search from locking, for a moment, sessions that it will not take; where many
sessions wait the first partition has one. Searches begin at different partitions in turn. A partition whose store can't
be used is passed over, and asked by those who still wait when it is back.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from partibus.errors import PartibusError, SessionCannotBeLocked, StoreUnavailable, Timeout
from partibus.partition.answers import OnReply
from partibus.partition.commands import (
    AcceptSession,
    CancelAccept,
    Failed,
    ReleaseSession,
    SessionAccepted,
    SessionHeld,
)
from partibus.routing.partitions import Numbers, PartitionHandle, error_of
from partibus.routing.slots import partition_for_key


class SessionHold:
    """A session under lock for one receiver. Made with the request for it; ``session``, ``lock_id`` and ``until_ms``
    are true from the partition's answer on."""

    __slots__ = ("_listener", "lock_id", "partition", "receiver", "session", "until_ms")

    def __init__(self, partition: PartitionHandle, receiver: int) -> None:
        self.partition = partition
        self.receiver = receiver
        self.session = ""
        self.lock_id = 0
        self.until_ms = 0
        self._listener: OnReply | None = None
        partition.register(receiver, self._tell)

    def listen(self, listener: OnReply) -> None:
        """Say where the session's messages and its end go."""
        self._listener = listener

    def release(self) -> None:
        """The holder is gone: what was handed out goes back to its place, uncounted."""
        self.forget()
        self.partition.submit(ReleaseSession(self.lock_id))

    def forget(self) -> None:
        """Nobody listens any more."""
        self._listener = None
        self.partition.unregister(self.receiver)

    def _tell(self, reply: Any) -> None:
        # Before the session is held only its store's failure can come here; the request is told of it, too.
        if self._listener is not None:
            self._listener(reply)


OnFound = Callable[[SessionHold | PartibusError], None]


class SessionDesk:
    """Where the receivers of one entity get their sessions."""

    def __init__(self, entity: str, partitions: list[PartitionHandle], numbers: Numbers, first_turn: int) -> None:
        self.entity = entity
        self.partitions = partitions
        self.numbers = numbers
        self._turn = first_turn
        self._waiting: set[SessionSearch] = set()
        self._awaited: set[int] = set()
        """Indexes of partitions whose stores were away when somebody waited: each tells once when it is back."""

    def search(self, session: str | None, on_found: OnFound) -> "SessionSearch":
        """A search for a session, or for the next one that is free and has messages. `SessionSearch.start` begins it;
        ``on_found`` is called at most once."""
        return SessionSearch(self, session, on_found)

    def next_turn(self) -> int:
        """The index of the partition that a search begins with."""
        self._turn = (self._turn + 1) % len(self.partitions)
        return self._turn

    def waits(self, search: "SessionSearch") -> None:
        """Every partition has been asked; this search waits for the first to have something."""
        self._waiting.add(search)

    def waits_no_more(self, search: "SessionSearch") -> None:
        self._waiting.discard(search)

    def await_partition(self, index: int) -> None:
        """Have those who wait ask this partition when its store is back."""
        if index in self._awaited:
            return
        self._awaited.add(index)

        def usable() -> None:
            self._awaited.discard(index)
            for search in list(self._waiting):
                search.ask_waiting(index)

        self.partitions[index].when_usable(usable)


class SessionSearch:
    """One receiver's way to a session."""

    __slots__ = ("_asked", "_desk", "_given_up", "_on_found", "_over", "_session", "_trouble", "_untried", "_waiting")

    def __init__(self, desk: SessionDesk, session: str | None, on_found: OnFound) -> None:
        self._desk = desk
        self._session = session
        self._on_found = on_found
        self._asked: dict[int, tuple[int, SessionHold]] = {}
        """Index of a partition -> the request that it has not answered, and what that may become."""
        self._untried: deque[int] = deque()
        self._trouble: PartibusError | None = None
        """Why a partition could not be asked."""
        self._waiting = False
        self._given_up = False
        self._over = False

    def start(self) -> None:
        """Ask the first partition."""
        count = len(self._desk.partitions)
        if self._session is not None:
            self._ask(partition_for_key(self._session, count), wait=False)
            return
        first = self._desk.next_turn()
        self._untried.extend((first + i) % count for i in range(count))
        self._ask_next()

    def give_up(self) -> None:
        """The receiver waits no longer: `Timeout`, once every partition has been asked and has nothing."""
        self._given_up = True
        if self._waiting:
            self._time_out()

    def cancel(self) -> None:
        """The receiver is gone: nothing stays locked for it, and nobody is told."""
        if self._over:
            return
        self._over = True
        self._desk.waits_no_more(self)
        for request, hold in self._asked.values():
            hold.forget()
            hold.partition.submit(CancelAccept(0, request))
            hold.partition.forget(request)
        self._asked.clear()

    def ask_waiting(self, index: int) -> None:
        """Have a partition tell when it has a session, unless it has been asked already."""
        if not self._over and index not in self._asked:
            self._ask(index, wait=True)

    # -- asking ------------------------------------------------------------------------------------------------------

    def _ask_next(self) -> None:
        """Ask the next partition whose store can be used, without waiting there."""
        while self._untried:
            index = self._untried.popleft()
            if self._desk.partitions[index].available:
                self._ask(index, wait=False)
                return
        self._wait()

    def _wait(self) -> None:
        """No partition has a session now: wait for the first that gets one."""
        if self._given_up:
            self._time_out()
            return
        self._waiting = True
        self._desk.waits(self)
        for index, partition in enumerate(self._desk.partitions):
            if self._over:
                return
            if partition.available:
                self._ask(index, wait=True)
            else:
                self._desk.await_partition(index)
        self._end_without_partitions()

    def _end_without_partitions(self) -> None:
        """Not one partition is left to wait for: the receiver is told at once, to try again."""
        if not self._over and not self._asked:
            away = StoreUnavailable(f"No messaging store of '{self._desk.entity}' can be used now, try again.")
            self._end(self._trouble or away)

    def _ask(self, index: int, *, wait: bool) -> None:
        numbers = self._desk.numbers
        hold = SessionHold(self._desk.partitions[index], numbers.next())
        request = numbers.next()
        self._asked[index] = (request, hold)
        hold.partition.submit(
            AcceptSession(request, hold.receiver, self._session, wait),
            lambda reply: self._answered(index, hold, reply),
        )

    # -- answers -----------------------------------------------------------------------------------------------------

    def _answered(self, index: int, hold: SessionHold, reply: Any) -> None:
        asked = self._asked.get(index)
        if asked is None or asked[1] is not hold:  # it was cancelled: what still comes is given back
            if isinstance(reply, SessionAccepted):
                hold.partition.submit(ReleaseSession(reply.lock_id))
            return
        del self._asked[index]
        if isinstance(reply, SessionAccepted):
            hold.session, hold.lock_id, hold.until_ms = reply.session, reply.lock_id, reply.until_ms
            self._end(hold)
            return
        hold.forget()
        if isinstance(reply, SessionHeld):
            self._end(SessionCannotBeLocked(self._desk.entity, self._session or ""))
        elif isinstance(reply, Failed):
            self._failed(index, error_of(reply, self._desk.entity))
        elif not self._waiting:
            self._ask_next()
        else:
            self._end_without_partitions()

    def _failed(self, index: int, error: PartibusError) -> None:
        """A session has one partition (rows K2, K3); the next one may come from another."""
        self._trouble = error
        if self._session is not None:
            self._end(error)
        elif self._waiting:
            self._desk.await_partition(index)
            self._end_without_partitions()
        else:
            self._ask_next()

    def _time_out(self) -> None:
        self._end(
            Timeout(
                f"No session of '{self._desk.entity}' was free and had messages in the time that the receiver waits. "
                "Try again, or wait longer."
            )
        )

    def _end(self, found: SessionHold | PartibusError) -> None:
        if not self._over:
            self.cancel()
            self._on_found(found)
