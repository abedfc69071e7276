"""Producers and consumers of the simulation. They live outside of the broker's process and outlive it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partibus.partition import commands as c
from partibus.partition.entry import Entry
from partibus.testing.oracle import BrokenPromise, name_of

if TYPE_CHECKING:
    from partibus.testing.simulation import Simulation

OUTCOMES = (
    *[c.Outcome.COMPLETE] * 12, *[c.Outcome.ABANDON] * 3, c.Outcome.RELEASE, c.Outcome.DEAD_LETTER, None, None,
)  # fmt: skip
"""None: the consumer forgets the message and its lock runs out."""


class Producer:
    """Sends small batches, a few at once."""

    def __init__(self, world: Simulation, row: int) -> None:
        self.requests: dict[int, list[int]] = {}
        """Request -> names of its messages."""
        self._world = world
        self._row = row
        self._at_once = world.random.randint(1, 3)
        self.disconnected()

    def disconnected(self) -> None:
        """The connection broke: whether the messages under way are stored is not known."""
        self.requests.clear()
        for _ in range(self._at_once):
            self._send_later()

    def _send_later(self) -> None:
        world = self._world
        runtime = world.runtime
        delay_ms = world.random.choice((0.0, 1.0, 30.0, 300.0)) * world.random.random()
        world.timeline.call_later(delay_ms, lambda: self._send() if world.runtime is runtime else None)

    def _send(self) -> None:
        world = self._world
        if world.stopping:
            return
        names, messages = zip(*(world.new_message(self._row) for _ in range(world.random.randint(1, 6))), strict=True)
        request = world.number()
        self.requests[request] = list(names)
        world.submit(self._row, c.Enqueue(request, list(messages)), self._answered)

    def _answered(self, reply: c.Accepted | c.Failed) -> None:
        names = self.requests.pop(reply.request)
        if isinstance(reply, c.Accepted):
            self._world.oracle.accepted(names, self._row, reply.first_sequence)
        else:
            self._world.oracle.refused(names, reply.executed)
        self._send_later()


class Consumer:
    """Receives, thinks for a while, settles; goes on settling what it holds after the broker was gone."""

    def __init__(self, world: Simulation, row: int, kind: int, *, delete: bool, reserve: bool) -> None:
        self.requests: dict[int, tuple[c.Settle, list[Entry]]] = {}
        self._world = world
        self._row = row
        self._kind = kind
        self._delete = delete
        self._reserve = reserve
        self._receiver = 0
        self._credit = 0
        self._connect_later()

    def disconnected(self) -> None:
        """The connection broke: the outcome of settlements under way is not known."""
        self._world.oracle.lost_hand_outs += self._credit if self._delete else 0
        for settle, entries in self.requests.values():
            if settle.outcome is c.Outcome.COMPLETE:
                self._world.oracle.maybe_finished.update(map(name_of, entries))
        self.requests.clear()
        self._connect_later()

    def _connect_later(self) -> None:
        world = self._world
        runtime = world.runtime
        self._receiver = self._credit = 0
        world.timeline.call_later(
            300 * world.random.random(), lambda: self._connect() if world.runtime is runtime else None
        )

    def _connect(self) -> None:
        if not self._world.stopping:
            self._receiver = self._world.number()
            self._world.runtime.register(self._receiver, self._granted)
            self._ask()

    def _ask(self) -> None:
        world = self._world
        if self._receiver and not self._credit and not world.stopping:
            self._credit = world.random.randint(1, 8)
            max_bytes = world.random.choice((1, 300, 100_000))
            world.submit(
                self._row,
                c.Receive(self._kind, self._receiver, self._credit, max_bytes, self._delete, self._reserve),
            )

    def _granted(self, reply: c.Granted | c.Failed) -> None:
        world = self._world
        if isinstance(reply, c.Failed):
            world.oracle.memory_lost(world.timeline.now_ms())
            world.oracle.lost_hand_outs += self._credit if self._delete else 0
            self._connect_later()
            return
        self._credit = 0 if reply.ended else self._credit - len(reply.entries)
        if self._reserve:
            self._lock_later(reply)
        else:
            self._take(reply)
        world.timeline.call_later(20 * world.random.random(), self._ask)

    def _lock_later(self, reserved: c.Granted) -> None:
        """Keep reservations for a while, then hand them out or give them back."""
        world = self._world
        runtime = world.runtime
        tokens = [(reserved.lock_id, entry.pos) for entry in reserved.entries]

        def decide() -> None:
            if world.runtime is not runtime or world.stopping:
                return
            if world.random.random() < 0.2:
                world.submit(self._row, c.ReturnReserved(self._kind, tokens))
                return
            receiver = world.number()
            runtime.register(receiver, self._locked)
            world.submit(self._row, c.LockReserved(self._kind, receiver, tokens))

        world.timeline.call_later(250 * world.random.random(), decide)

    def _locked(self, reply: c.Granted | c.Failed) -> None:
        if isinstance(reply, c.Granted) and reply.entries:
            self._take(reply)

    def _take(self, reply: c.Granted) -> None:
        world = self._world
        entries = [*reply.entries]
        world.oracle.granted(
            self._row, self._kind, entries, reply.lock_id, reply.until_ms, world.timeline.now_ms(), delete=self._delete
        )
        if self._delete:
            return
        while entries:
            some = entries[: world.random.randint(1, 4)]
            del entries[: len(some)]
            self._settle_later(reply.lock_id, some)

    def _settle_later(self, lock_id: int, entries: list[Entry]) -> None:
        world = self._world
        outcome = world.random.choice(OUTCOMES)
        if outcome is not None:
            delay_ms = world.random.choice((0.0, 10.0, 500.0)) * world.random.random()
            world.timeline.call_later(delay_ms, lambda: self._settle(lock_id, entries, outcome))

    def _settle(self, lock_id: int, entries: list[Entry], outcome: c.Outcome) -> None:
        world = self._world
        if world.stopping:
            return
        tokens = [(lock_id, entry.pos) for entry in entries]
        reason = world.random.choice((None, "not wanted"))
        settle = c.Settle(world.number(), self._kind, outcome, tokens, reason)
        held = [world.oracle.holds(name_of(entry), lock_id) for entry in entries]
        world.oracle.unlocked(list(map(name_of, entries)), lock_id)
        self.requests[settle.request] = (settle, entries)

        def settled(reply: c.Settled | c.Failed) -> None:
            del self.requests[reply.request]
            if isinstance(reply, c.Failed):
                if reply.executed is None and outcome is c.Outcome.COMPLETE:
                    world.oracle.maybe_finished.update(map(name_of, entries))
                return
            for index, entry in enumerate(entries):
                name = name_of(entry)
                if index not in reply.lost:
                    self._confirmed(name, entry.pos, outcome)
                elif (until_ms := held[index]) is not None and until_ms > world.timeline.now_ms():
                    raise BrokenPromise(f"the lock of message {name} was lost before its end at {until_ms} ms")

        world.submit(self._row, settle, settled)

    def _confirmed(self, name: int, pos: int, outcome: c.Outcome) -> None:
        oracle = self._world.oracle
        if outcome is c.Outcome.COMPLETE:
            oracle.completed(self._row, self._kind, name, pos)
        elif outcome is c.Outcome.ABANDON:
            oracle.abandoned[name] += 1
