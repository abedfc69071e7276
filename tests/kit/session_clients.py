"""Clients of the simulation that receive from sessions, and that use transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.keys import Entry, SubqueueKind
from tests.kit.clients import OUTCOMES, Consumer
from tests.kit.oracle import Transaction, name_of

if TYPE_CHECKING:
    from tests.kit.simulation import Simulation

SESSIONS = ("a", "b", "c", "")


class SessionConsumer(Consumer):
    """Accepts a session, named or the next one, works on it for a while, and releases it or forgets it."""

    def __init__(self, world: Simulation, row: int, *, delete: bool) -> None:
        self._name = ""
        super().__init__(world, row, SubqueueKind.ACTIVE, delete=delete)

    def _connect_later(self) -> None:
        self._session = 0
        super()._connect_later()

    def _connect(self) -> None:
        world = self._world
        receiver = world.number()
        world.runtime.register(receiver, lambda reply: self._told(receiver, reply))
        named = world.random.random() < 0.4
        command = c.AcceptSession(
            0, receiver, world.random.choice(SESSIONS) if named else None, world.random.random() < 0.7
        )

        def answered(reply: Any) -> None:
            if not isinstance(reply, r.SessionAccepted):
                self._connect_later()
                return
            self._receiver, self._session, self._name = receiver, reply.lock_id, reply.session
            world.oracle.sessions.accepted(
                (self._row, reply.session), reply.lock_id, reply.until_ms, world.timeline.now_ms()
            )
            self._receive()
            for most_ms in (60, 200, 600):
                self._later(most_ms, self._use_session)
            self._later(world.random.choice((100, 2_000)), lambda: self._part(reply.lock_id))

        number = self._ask(command, answered)
        if command.session is None and command.wait:
            self._later(500, lambda: self._give_up(number))

    def _give_up(self, accept: int) -> None:
        """Wait no longer; what is accepted all the same is given back."""
        if accept not in self.requests:
            return
        del self.requests[accept]
        world = self._world
        world.runtime.forget(accept)
        self._ask(c.CancelAccept(0, accept), lambda _: self._connect_later())

    def _told(self, receiver: int, reply: r.Granted | r.SessionEnded | r.Failed) -> None:
        world = self._world
        if isinstance(reply, r.SessionEnded):
            world.oracle.sessions.lost((self._row, self._name), reply.lock_id, world.timeline.now_ms())
            if self._session == reply.lock_id:
                self._leave(reply.lock_id)
        elif receiver == self._receiver:
            self._granted(reply)

    def _settle_later(self, lock_id: int, entries: list[Entry]) -> None:
        """Settle as long as the connection lives: the tokens of a session's messages are of no use on another one."""
        outcome = self._world.random.choice(OUTCOMES)
        if outcome is not None:
            self._later(self._world.random.choice((0.0, 10.0, 500.0)), lambda: self._settle(lock_id, entries, outcome))

    def _part(self, lock_id: int) -> None:
        """Release the session; sometimes forget it."""
        if self._session == lock_id and self._world.random.random() < 0.7:
            self._leave(lock_id)
            self._world.submit(self._row, c.ReleaseSession(lock_id))

    def _leave(self, lock_id: int) -> None:
        oracle = self._world.oracle
        oracle.lost_budget[self._row] += self._credit if self._delete else 0
        oracle.sessions.given_up((self._row, self._name), lock_id)
        oracle.session_over(self._row, lock_id)
        self._connect_later()

    def _use_session(self) -> None:
        """Renew it, or read or write its state."""
        if not self._session:
            return
        world, lock_id = self._world, self._session
        session = (self._row, self._name)
        oracle = world.oracle.sessions

        def renewed(reply: r.SessionRenewed | r.SessionLost | r.Failed) -> None:
            if isinstance(reply, r.SessionRenewed):
                self._renewing_sessions.discard(lock_id)
                oracle.renewed(session, lock_id, reply.until_ms)
                world.oracle.renewed(self._row, lock_id, None, reply.until_ms)
            elif isinstance(reply, r.SessionLost):
                oracle.lost(session, lock_id, world.timeline.now_ms())

        def read(reply: r.SessionState | r.SessionLost | r.Failed) -> None:
            if isinstance(reply, r.SessionState):
                oracle.read(session, reply.state)
            elif isinstance(reply, r.SessionLost):
                oracle.lost(session, lock_id, world.timeline.now_ms())

        before = {*oracle.possible(session)}
        state = world.random.choice((None, b"", world.random.randbytes(4)))

        def written(reply: r.Done | r.SessionLost | r.Failed) -> None:
            done = isinstance(reply, r.Done)
            failed = isinstance(reply, r.Failed) and reply.executed is not False
            oracle.written(session, state, done=None if failed else done, now=before)
            if isinstance(reply, r.SessionLost):
                oracle.lost(session, lock_id, world.timeline.now_ms())

        chosen = world.random.random()
        if chosen < 0.4:
            self._renewing_sessions.add(lock_id)
            self._ask(c.RenewSession(0, lock_id), renewed)
        elif chosen < 0.7:
            self._ask(c.GetSessionState(0, lock_id), read)
        else:
            oracle.write(session, state)
            self._ask(c.SetSessionState(0, lock_id, state), written, lambda: oracle.unanswered(session))


class TransactionalConsumer(Consumer):
    """Completes messages and sends others, all or nothing."""

    def _settle(self, lock_id: int, entries: list[Entry], outcome: c.Outcome) -> None:
        world, oracle = self._world, self._world.oracle
        if outcome is not c.Outcome.COMPLETE or world.stopping:
            super()._settle(lock_id, entries, outcome)
            return
        names = [name_of(entry) for entry in entries]
        sent = [world.new_message(self._row) for _ in range(world.random.randint(0, 3))]
        sends = [name for name, _ in sent]
        oracle.unlocked(names, lock_id)
        oracle.removals.update(names)
        transaction = Transaction(sends, {name: oracle.delivered[name] for name in names})
        oracle.transactions.append(transaction)
        parts: list[c.Enqueue | c.Settle] = [self.settlement(lock_id, entries, outcome)]
        parts.insert(world.random.randint(0, 1), c.Enqueue(0, [message for _, message in sent]))

        def unknown() -> None:
            oracle.maybe_gone.update(names)

        def answered(reply: r.Transacted | r.TransactionRefused | r.Failed) -> None:
            if isinstance(reply, r.Transacted):
                transaction.done = True
                oracle.accepted(sends, self._row, None, world.timeline.now_ms())
                for entry in entries:
                    self._confirmed(entry, outcome)
            elif isinstance(reply, r.TransactionRefused) or reply.executed is False:
                transaction.done = False
                oracle.refused(sends, executed=False)
            else:
                unknown()

        self._ask(c.Transact(0, parts), answered, unknown)
