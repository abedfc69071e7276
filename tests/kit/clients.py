"""Producers and consumers of the simulation. They live outside of the broker's process and outlive it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.keys import Entry, SubqueueKind
from tests.kit.invariants import BrokenPromise, i09_expired_lock_cannot_settle
from tests.kit.oracle import name_of

if TYPE_CHECKING:
    from tests.kit.simulation import Simulation

OUTCOMES = (
    *[c.Outcome.COMPLETE] * 12, *[c.Outcome.ABANDON] * 3, c.Outcome.RELEASE, c.Outcome.DEAD_LETTER, c.Outcome.DEFER,
    None, None,
)  # fmt: skip
"""None: the consumer forgets the message and its lock runs out."""


class Administrator:
    """Changes the duplicate window of a partition between half of the options' and the whole of it, at any time."""

    def __init__(self, world: Simulation, row: int) -> None:
        self._world = world
        self._row = row
        self._longest_ms = world.options[row].duplicate_window_ms or 0
        world.oracle.windows_ms[row] = (self._longest_ms // 2, self._longest_ms)
        self._later()

    def _later(self) -> None:
        world = self._world
        world.timeline.call_later(world.random.choice((3, 300)) * world.random.random(), self._change)

    def _change(self) -> None:
        world = self._world
        window_ms = world.random.choice((self._longest_ms, self._longest_ms // 2))
        world.options[self._row] = replace(world.options[self._row], duplicate_window_ms=window_ms)
        if not world.stopping:
            self._later()


class Client:
    """The port through which a client talks to one partition."""

    def __init__(self, world: Simulation, row: int) -> None:
        self.requests: dict[int, Callable[[], None]] = {}
        """Request -> what to do when it will never be answered."""
        self._world = world
        self._row = row
        self.disconnected()

    def disconnected(self) -> None:
        """The connection broke, or there was none yet."""
        unanswered, self.requests = self.requests, {}
        for given_up in unanswered.values():
            given_up()
        self._connect_later()

    def _connect_later(self) -> None:
        self._later(300, self._connect)

    def _connect(self) -> None:
        raise NotImplementedError

    def _later(self, most_ms: float, call: Callable[[], object]) -> None:
        """Some time from now, unless the process or the test is over by then."""
        world = self._world
        runtime = world.runtime
        world.timeline.call_later(
            most_ms * world.random.random(),
            lambda: call() if world.runtime is runtime and not world.stopping else None,
        )

    def _ask(self, command: Any, on_reply: Callable[[Any], None], given_up: Callable[[], None] | None = None) -> int:
        """Give a command that is answered, and fill in its number. ``given_up`` is called when the answer is lost."""
        number: int = self._world.number()
        command.request = number
        self.requests[number] = given_up or (lambda: None)

        def answered(reply: Any) -> None:
            if self.requests.pop(number, None) is not None:
                on_reply(reply)

        self._world.submit(self._row, command, answered)
        return number


class Producer(Client):
    """Sends small batches, a few at once; cancels some of those that are scheduled."""

    def __init__(self, world: Simulation, row: int) -> None:
        self._at_once = world.random.randint(1, 3)
        super().__init__(world, row)

    def _connect_later(self) -> None:
        for _ in range(self._at_once):
            self._send_later()

    def _send_later(self) -> None:
        self._later(self._world.random.choice((1.0, 300.0, 300.0, 600.0)), self._send)

    def _send(self) -> None:
        world = self._world
        sent = [world.new_message(self._row) for _ in range(world.random.randint(1, 6))]
        names = [name for name, _ in sent]

        def answered(reply: r.Accepted | r.Failed) -> None:
            if isinstance(reply, r.Accepted):
                world.oracle.accepted(names, self._row, reply.first_sequence, world.timeline.now_ms())
                for sequence, (name, message) in enumerate(sent, reply.first_sequence):
                    if message.scheduled_ms is not None and world.random.random() < 0.4:
                        self._cancel_later(name, sequence)
            else:
                world.oracle.refused(names, reply.executed)
            self._send_later()

        self._ask(c.Enqueue(0, [message for _, message in sent]), answered)

    def _cancel_later(self, name: int, sequence: int) -> None:
        oracle = self._world.oracle

        def unknown() -> None:
            oracle.maybe_gone.add(name)

        def answered(reply: r.Done | r.NotFound | r.Failed) -> None:
            if isinstance(reply, r.Done):
                oracle.cancelled(name)
            elif isinstance(reply, r.NotFound):
                oracle.not_cancelled(name, self._world.timeline.now_ms())
            elif reply.executed is not False:
                unknown()

        command = c.CancelScheduled(0, SubqueueKind.ACTIVE, [sequence])
        self._later(self._world.random.choice((100, 2_000)), lambda: self._ask(command, answered, unknown))


class Purger(Client):
    """Removes a few messages now and then."""

    def _connect(self) -> None:
        world = self._world
        count = world.random.randint(1, 3)

        def removed(most: int) -> None:
            world.oracle.lost_budget[self._row] += most

        def answered(reply: r.Purged | r.Failed) -> None:
            if isinstance(reply, r.Purged):
                removed(reply.count)
            elif reply.executed is not False:
                removed(count)
            self._connect_later()

        command = c.Purge(0, SubqueueKind.ACTIVE, count, world.timeline.now_ms())
        self._ask(command, answered, lambda: removed(count))


class Consumer(Client):
    """Receives, thinks for a while, settles; goes on settling what it holds after the broker was gone."""

    def __init__(self, world: Simulation, row: int, kind: int, *, delete: bool = False, reserve: bool = False) -> None:
        self._kind = kind
        self._delete = delete
        self._reserve = reserve
        self._receiver = 0
        self._renewing: set[tuple[int, int]] = set()
        """(lock id, name) of renewals without an answer: their locks may hold longer than any client knows."""
        self._renewing_sessions: set[int] = set()
        """Lock ids, the same."""
        self._credit = 0
        self._session = 0
        """The lock id of the session that it holds."""
        super().__init__(world, row)

    def disconnected(self) -> None:
        """Allow the loss of messages that were being received and deleted."""
        self._world.oracle.lost_budget[self._row] += self._credit if self._delete else 0
        super().disconnected()

    def _connect_later(self) -> None:
        self._receiver = self._credit = 0
        super()._connect_later()

    def _connect(self) -> None:
        self._receiver = self._world.number()
        self._world.runtime.register(self._receiver, self._granted)
        self._receive()

    def _receive(self) -> None:
        world = self._world
        if self._receiver and not self._credit and not world.stopping:
            self._credit = world.random.randint(1, 8)
            max_bytes = world.random.choice((1, 300, 100_000))
            world.submit(
                self._row,
                c.Receive(
                    self._kind, self._receiver, self._credit, max_bytes, self._delete, self._reserve, self._session
                ),
            )

    def _granted(self, reply: r.Granted | r.Failed) -> None:
        world = self._world
        if isinstance(reply, r.Failed):
            world.oracle.memory_lost(world.timeline.now_ms())
            world.oracle.lost_budget[self._row] += self._credit if self._delete else 0
            self._connect_later()
            return
        self._credit = 0 if reply.ended else self._credit - len(reply.entries)
        if self._reserve:
            self._lock_later(reply)
        else:
            self._take(reply)
        self._later(20, self._receive)

    def _lock_later(self, reserved: r.Granted) -> None:
        """Keep reservations for a while, then hand them out or give them back."""
        world = self._world
        tokens = [(reserved.lock_id, entry.pos) for entry in reserved.entries]

        def decide() -> None:
            if world.random.random() < 0.2:
                world.submit(self._row, c.ReturnReserved(self._kind, tokens))
                return
            self._ask(c.LockReserved(0, self._kind, tokens), self._locked)

        self._later(250, decide)

    def _locked(self, reply: r.Locked | r.Failed) -> None:
        if isinstance(reply, r.Locked) and reply.entries:
            self._take(reply)

    def _take(self, reply: r.Granted | r.Locked | r.DeferredGranted, *, by_number: bool = False) -> None:
        world = self._world
        entries = [*reply.entries]
        world.oracle.granted(
            self._row, self._kind, entries, reply.lock_id, reply.until_ms, world.timeline.now_ms(),
            delete=self._delete, by_number=by_number, session=bool(self._session),
        )  # fmt: skip
        if self._delete:
            return
        while entries:
            some = entries[: world.random.randint(1, 4)]
            del entries[: len(some)]
            if not self._session and world.random.random() < 0.15:
                self._renew_later(reply.lock_id, some)
            self._settle_later(reply.lock_id, some)

    # -- what is done with messages ----------------------------------------------------------------------------------

    def _renew_later(self, lock_id: int, entries: list[Entry]) -> None:
        world = self._world
        names = [name_of(entry) for entry in entries]

        asked = {(lock_id, name) for name in names}

        def answered(reply: r.LocksRenewed | r.Settled | r.Failed) -> None:
            if isinstance(reply, r.LocksRenewed):
                self._renewing -= asked
                world.oracle.renewed(self._row, lock_id, names, min(reply.until_ms))

        def ask() -> None:
            self._renewing |= asked
            self._ask(c.RenewLocks(0, self._kind, tokens), answered)

        tokens = [(lock_id, entry.pos) for entry in entries]
        self._later(100, ask)

    def _settle_later(self, lock_id: int, entries: list[Entry]) -> None:
        outcome = self._world.random.choice(OUTCOMES)
        if outcome is not None:
            self._world.timeline.call_later(
                self._world.random.choice((0.0, 10.0, 500.0)) * self._world.random.random(),
                lambda: self._settle(lock_id, entries, outcome),
            )

    def settlement(self, lock_id: int, entries: list[Entry], outcome: c.Outcome) -> c.Settle:
        """One of many ways to settle."""
        world = self._world
        tokens = [(lock_id, entry.pos) for entry in entries]
        settle = c.Settle(0, self._kind, outcome, tokens, world.random.choice((None, "not wanted")))
        if outcome not in (c.Outcome.COMPLETE, c.Outcome.RELEASE) and world.random.random() < 0.3:
            settle.properties = {"tried": world.random.randint(1, 3)}
            for entry in entries:
                world.oracle.sent[name_of(entry)].edited = True
        if outcome is c.Outcome.ABANDON and not self._session and world.random.random() < 0.3:
            settle.delay_ms = world.random.randint(1, 800)
        return settle

    def _settle(self, lock_id: int, entries: list[Entry], outcome: c.Outcome) -> None:
        world, oracle = self._world, self._world.oracle
        if world.stopping:
            return
        settle = self.settlement(lock_id, entries, outcome)
        names = [name_of(entry) for entry in entries]
        asked_ms = world.timeline.now_ms()
        held = [oracle.holds(name, lock_id) for name in names]
        renewing = [self._renews(lock_id, name) for name in names]
        oracle.unlocked(names, lock_id)
        session = self._session
        for entry, name in zip(entries, names, strict=True):
            if outcome is c.Outcome.DEFER:
                oracle.maybe_deferred[name, self._kind] = entry.sequence
            oracle.removals[name] += outcome is c.Outcome.COMPLETE
            if outcome is c.Outcome.DEAD_LETTER:  # to the end of the dead letters, wherever it was
                oracle.deferred.pop((name, SubqueueKind.DEAD_LETTER), None)

        def unknown() -> None:
            if outcome is c.Outcome.COMPLETE:
                oracle.maybe_gone.update(names)

        def settled(reply: r.Settled | r.Failed) -> None:
            if isinstance(reply, r.Failed):
                if reply.executed is not False:
                    unknown()
                return
            for index, entry in enumerate(entries):
                until_ms = held[index]
                if index not in reply.lost:
                    if (until_ms is not None or session) and not renewing[index]:
                        i09_expired_lock_cannot_settle(f"message {names[index]}", until_ms, asked_ms)
                    self._confirmed(entry, outcome)
                elif until_ms is not None and until_ms > world.timeline.now_ms() and self._session == session:
                    raise BrokenPromise(f"the lock of message {names[index]} was lost before its end at {until_ms} ms")

        self._ask(settle, settled, unknown)

    def _renews(self, lock_id: int, name: int) -> bool:
        return lock_id in self._renewing_sessions or (lock_id, name) in self._renewing

    def _confirmed(self, entry: Entry, outcome: c.Outcome) -> None:
        oracle = self._world.oracle
        name = name_of(entry)
        if outcome is c.Outcome.COMPLETE:
            oracle.completed(self._row, self._kind, name, entry.pos)
        elif outcome is c.Outcome.ABANDON:
            oracle.abandoned[name] += self._kind == SubqueueKind.ACTIVE  # elsewhere the count stands still
        elif outcome is c.Outcome.DEFER:
            oracle.deferred[name, self._kind] = entry.sequence
            self._later(600, lambda: self._receive_deferred(name, entry.sequence))

    def _receive_deferred(self, name: int, sequence: int) -> None:
        world = self._world
        session = self._session
        budget = 1 if self._delete else 0

        def unknown() -> None:
            world.oracle.lost_budget[self._row] += budget

        def answered(reply: r.DeferredGranted | r.NotFound | r.SessionLost | r.Failed) -> None:
            if isinstance(reply, r.DeferredGranted) and (self._delete or self._session == session):
                self._take(reply, by_number=True)
            elif isinstance(reply, r.Failed) and reply.executed is not False:
                unknown()
            elif isinstance(reply, r.NotFound) and name not in world.oracle.dispositions:
                self._later(1_000, lambda: self._receive_deferred(name, sequence))

        self._ask(c.ReceiveDeferred(0, self._kind, [sequence], self._delete, session), answered, unknown)
