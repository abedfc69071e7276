"""The expectations of clients about sessions: their holders, and the states written last."""

from dataclasses import dataclass, field

from tests.kit import invariants as i

Session = tuple[int, str]
"""(partition row, session id)."""


@dataclass(slots=True)
class SessionHeld:
    """A session that a consumer was given."""

    lock_id: int
    until_ms: int


@dataclass
class SessionOracle:
    """Sessions of every partition."""

    held: dict[Session, SessionHeld] = field(default_factory=dict)
    states: dict[Session, set[bytes | None]] = field(default_factory=dict)
    """The possible states: several where the outcome of a write is not known."""
    writing: dict[Session, int] = field(default_factory=dict)
    """Writes that were not answered yet."""
    overlapped: set[Session] = field(default_factory=set)
    """Sessions with several writes under way, or answered since there were none."""
    accepted_times: int = 0
    read_times: int = 0

    def accepted(self, session: Session, lock_id: int, until_ms: int, now_ms: int) -> None:
        """A consumer was told that it holds a session."""
        holder = self.held.get(session)
        i.i15_one_holder_per_session(session[1], None if holder is None else holder.until_ms, now_ms)
        self.held[session] = SessionHeld(lock_id, until_ms)
        self.accepted_times += 1

    def holds(self, session: Session, lock_id: int) -> int | None:
        """Return the end of a consumer's lock; None when it holds none."""
        held = self.held.get(session)
        return held.until_ms if held is not None and held.lock_id == lock_id else None

    def renewed(self, session: Session, lock_id: int, until_ms: int) -> None:
        """Its holder was told that it holds it longer."""
        if self.holds(session, lock_id) is not None:
            self.held[session].until_ms = until_ms

    def given_up(self, session: Session, lock_id: int) -> None:
        """Its holder has released it."""
        if self.holds(session, lock_id) is not None:
            del self.held[session]

    def lost(self, session: Session, lock_id: int, now_ms: int) -> None:
        """A consumer was told that it has lost the session."""
        i.i08_no_lock_ends_early(f"session {session}", self.holds(session, lock_id), now_ms)

    def memory_lost(self) -> None:
        """Locks of sessions are in memory only."""
        self.held.clear()

    # -- state -------------------------------------------------------------------------------------------------------

    def possible(self, session: Session) -> set[bytes | None]:
        """Return the states that a read may answer."""
        return self.states.setdefault(session, {None})

    def write(self, session: Session, state: bytes | None) -> None:
        """A holder sets the state."""
        self.possible(session).add(state)
        self.writing[session] = self.writing.get(session, 0) + 1
        if self.writing[session] > 1:
            self.overlapped.add(session)

    def written(self, session: Session, state: bytes | None, *, done: bool | None, now: set[bytes | None]) -> None:
        """The write was answered. ``now`` is what the state could be when it was sent."""
        self.writing[session] -= 1
        if self.writing[session]:
            return
        if done:
            self.states[session] = {state}
        elif done is False and session not in self.overlapped:  # else another write may have been done since
            self.states[session] = now
        self.overlapped.discard(session)

    def unanswered(self, session: Session) -> None:
        """A write will get no answer."""
        self.writing[session] -= 1

    def read(self, session: Session, state: bytes | None) -> None:
        """A holder was told the state."""
        i.i16_state_is_the_last_written(session[1], state, self.possible(session))
        self.read_times += state is not None
        if not self.writing.get(session):
            self.states[session] = {state}
