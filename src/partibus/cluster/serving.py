"""The owner's side of a channel: what a guest asks is put to the stores of this broker, and answered.

A guest numbers its requests and receivers itself. Here they get a base that no other guest has, so that they can stand
beside those of this broker and of other guests.

When a guest is gone, what only made sense with it goes back at once: its receivers wait no more, its reservations and
sessions are free. Message locks stay: consumers can settle through another broker (D12). While a guest is there it
keeps its sessions, whoever the owner of a store is: the stored lock names its run (D21).
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from partibus.cluster.forms import renumber, to_form
from partibus.cluster.outbox import Outbox
from partibus.cluster.wire import (
    Ask,
    AskCredits,
    Condition,
    Credits,
    Drop,
    Dropped,
    Forget,
    Forgotten,
    Measure,
    Measured,
    Recall,
    Recalled,
    Register,
    Unregister,
    WireError,
    decode_options,
    value_of,
)
from partibus.partition import commands as c
from partibus.partition import replies as r
from partibus.partition.answers import OnReply
from partibus.partition.options import PartitionOptions
from partibus.routing.store_access import StoreAccess, memory_of
from partibus.throttling.allocator import Ask as CreditAsk
from partibus.throttling.allocator import Grant
from partibus.units.asked import Asked

BASE_BITS = 48
"""Room for the numbers of one guest: at a million requests a second, nine years."""

_Condition = tuple[str | None, bool]
"""(Why a store can't be used, more waits for it than its limits allow)."""

options_of = lru_cache(maxsize=4_096)(decode_options)
"""Equal bytes give the same object, by which a partition sees at a glance that nothing has changed."""


class Serving:
    """The stores of this broker, for all its guests. Its supervisor says which stores these are."""

    def __init__(self) -> None:
        self.measure: Callable[[int, Callable[[bytes], None]], None] | None = None
        """Asks what this broker counts and measures, and calls with the text of a `partibus.cluster.wire.Measured`."""
        self.grant: Callable[[int, CreditAsk], Grant | None] = lambda namespace, ask: None
        """What the allocator of a namespace says; None when it is not here."""
        self.stores: dict[int, StoreAccess] = {}
        self.asked = Asked()
        """By guests."""
        self._guests: set[Guest] = set()
        self._bases = 0
        self._askers: dict[int, str] = {}
        """By base: the run of the broker behind a guest. They stay: what it asked for may be under way."""

    def open(self, number: int, store: StoreAccess) -> None:
        """This broker owns a store now. Guests that asked for it before are told."""
        self.stores[number] = store
        for guest in self._guests:
            guest.look(number, "the store has just been opened")

    def close(self, number: int, why: str) -> None:
        """This broker is about to give a store up: nothing more is asked of it. What was is still answered."""
        self.stores.pop(number, None)
        for guest in self._guests:
            guest.look(number, why)

    def asker_of(self, request: int) -> tuple[str, int] | None:
        """See `partibus.partition.executed.AskerOf`."""
        base = request >> BASE_BITS
        asker = self._askers.get(base) if base else None
        return None if asker is None else (asker, request - (base << BASE_BITS))

    def guest(self, outbox: Outbox, asker: str | None = None) -> "Guest":
        """A broker that asks over a new channel, by its run; None: nothing of its requests is noted."""
        self._bases += 1
        if asker is not None:
            self._askers[self._bases] = asker
        guest = Guest(self, outbox, self._bases << BASE_BITS, asker)
        self._guests.add(guest)
        return guest

    def leave(self, guest: "Guest") -> None:
        """Its channel has ended."""
        self._guests.discard(guest)


class Guest:
    """One broker that asks, over one channel."""

    def __init__(self, serving: Serving, outbox: Outbox, base: int, asker: str | None = None) -> None:
        self.outbox = outbox
        self.asker = asker
        self.base = base
        self.asked = serving.asked
        self.gone = False
        self._serving = serving
        self._tables: dict[int, _Table] = {}

    def receive(self, frames: list[Any]) -> None:
        """What the guest has sent. Raises `WireError`."""
        touched: dict[_Table, None] = {}
        for frame in frames:
            if self.gone:
                return
            if type(frame) is Measure:
                self._measure(frame.brokers)
                continue
            if type(frame) is AskCredits:
                self._grant(frame)
                continue
            if type(frame) is Recall:
                self._recall(frame)
                continue
            table = self._table(frame.store)
            touched[table] = None
            match frame:
                case Ask():
                    table.ask(frame)
                case Register():
                    table.register(frame.receiver + self.base)
                case Unregister():
                    table.unregister(frame.receiver + self.base)
                    self.outbox.put(Forgotten(frame.receiver))
                case Forget():
                    table.forget(frame.request + self.base)
                    self.outbox.put(Forgotten(frame.request))
                case Drop():
                    table.drop(frame.row)
        for table in touched:
            table.tell_condition()

    def _measure(self, brokers: int) -> None:
        if self._serving.measure is not None:

            def measured(text: bytes) -> None:
                self.outbox.put(Measured(text))

            self._serving.measure(brokers, measured)

    def _grant(self, frame: AskCredits) -> None:
        if len(frame.ask) != len(CreditAsk._fields):
            raise WireError(f"a question for credits has {len(frame.ask)} numbers, not {len(CreditAsk._fields)}")
        grant = self._serving.grant(frame.namespace, CreditAsk(*frame.ask))
        self.outbox.put(Credits(False) if grant is None else Credits(True, *grant))

    def _recall(self, frame: Recall) -> None:
        def found(known: Mapping[int, int | None] | None) -> None:
            self.outbox.put(Recalled(frame.question, None if known is None else dict(known)))

        memory = memory_of(self._serving.stores.get(frame.store))
        if self.asker is None or memory is None:
            found(None)
        else:
            memory.find_executed(self.asker, frame.requests, found)

    def _table(self, number: int) -> "_Table":
        table = self._tables.get(number)
        if table is None:
            table = self._tables[number] = _Table(self, number, self._serving.stores.get(number))
        return table

    def look(self, number: int, why: str) -> None:
        """A store has come or gone: say so if the guest has asked for it."""
        old = self._tables.get(number)
        if old is not None:
            old.end(why)
            new = self._tables[number] = _Table(self, number, self._serving.stores.get(number), why, told=old.told)
            new.tell_condition()

    def lost(self) -> None:
        """The channel has ended. Idempotent."""
        if self.gone:
            return
        self.gone = True
        self.outbox.close()
        self._serving.leave(self)
        for table in self._tables.values():
            table.give_back()

    def send(self, reply: r.Reply) -> None:
        """An answer, with the guest's own numbers."""
        try:
            form = to_form(reply)
            renumber(form, -self.base)
            self.outbox.put(form)
        except (ValueError, TypeError) as error:
            number = getattr(reply, "request", 0) or getattr(reply, "receiver", 0)
            text = f"the answer ({type(reply).__name__}) can't be sent: {error}"
            self.outbox.put(to_form(r.Failed(number - self.base, None, False, text)))


class _Table:
    """One store of this broker as one guest uses it. ``store`` is None while it is not here."""

    def __init__(
        self,
        guest: Guest,
        number: int,
        store: StoreAccess | None,
        why_not: str | None = None,
        *,
        told: _Condition = (None, False),
    ) -> None:
        self.guest = guest
        self.store = store
        self.told = told
        """What the guest knows of the store."""
        self.sessions: dict[tuple[int, int], PartitionOptions] = {}
        """By (row, lock id): held by the guest."""
        self.reservations: dict[tuple[int, int, int], _Reservation] = {}
        """By (row, kind, reservation): kept by the guest."""
        self.accepting: dict[int, _Accepting] = {}
        """By request: sessions that the guest waits for."""
        self._number = number
        self._why_not = why_not or f"the owner of store {number} is another broker"
        self._waiting = False
        self._receivers: dict[int, _Receiver] = {}
        self.over = False
        """The store has gone, or come: another table is the guest's now."""

    # -- what the guest asks -----------------------------------------------------------------------------------------

    def ask(self, frame: Ask) -> None:
        """A command. Raises `WireError`."""
        command = value_of(frame.command)
        options = options_of(frame.options)
        renumber(command, self.guest.base)
        row = frame.row
        if self.store is None:
            self._refuse(command, awaited=frame.awaited)
            return
        on_reply: OnReply | None = self.reply if frame.awaited else None
        kind = type(command)
        messages = command.messages if kind is c.Enqueue else ()
        self.guest.asked.note(row, len(messages), len(messages[0].data) if messages else 0)
        if kind is c.Settle or kind is c.Enqueue:  # most are, and nothing is to be remembered of them
            self.store.submit(row, options, command, on_reply, holdable=frame.holdable)
            return
        match command:
            case c.Receive():
                receiver = self._receivers.get(command.receiver)
                if receiver is None:
                    return  # it has failed: word of it has left, or it left itself
                receiver.asks(row, options, command)
            case c.LockReserved():
                self._use_reserved(row, command.kind, command.tokens)
                if frame.awaited:
                    on_reply = _Locking(self, row, options, command.kind).reply
            case c.ReturnReserved():
                self._use_reserved(row, command.kind, command.tokens)
            case c.AcceptSession():
                on_reply = self._accept(row, options, command)
            case c.ReleaseSession():
                self.sessions.pop((row, command.session), None)
            case c.ReceiveDeferred() if frame.awaited:
                on_reply = _Locking(self, row, options, command.kind).reply
        self.store.submit(row, options, command, on_reply, holdable=frame.holdable)

    def register(self, number: int) -> None:
        """A receiver will ask."""
        receiver = self._receivers[number] = _Receiver(self, number)
        if self.store is not None:
            self.store.register(number, receiver.reply)

    def unregister(self, number: int) -> None:
        """A receiver is gone."""
        receiver = self._receivers.pop(number, None)
        if receiver is not None and self.store is not None:
            receiver.gone = True
            self.store.unregister(number)

    def forget(self, request: int) -> None:
        """An answer is not wanted any more."""
        accepting = self.accepting.pop(request, None)
        if accepting is not None:
            accepting.wanted = False
        if self.store is not None:
            self.store.forget(request)

    def drop(self, row: int) -> None:
        """An entity was deleted."""

        def dropped(row: int) -> None:
            self.guest.outbox.put(Dropped(self._number, row))

        if self.store is not None:
            self.store.drop(row, dropped)

    def _accept(self, row: int, options: PartitionOptions, command: c.AcceptSession) -> OnReply:
        command.holder = self.guest.asker or ""
        accepting = self.accepting[command.request] = _Accepting(self, row, options)
        return accepting.reply

    def _refuse(self, command: c.Command, *, awaited: bool) -> None:
        """The store is not here."""
        self.tell_condition()
        if isinstance(command, c.Receive):
            if self._receivers.pop(command.receiver, None) is not None:
                self.guest.send(r.Failed(command.receiver, False, False, self._why_not))
        elif awaited:
            self.guest.send(r.refused(command, self._why_not))

    def _use_reserved(self, row: int, kind: int, tokens: list[c.LockToken]) -> None:
        reservations = self.reservations
        for number, _ in tokens:
            reservation = reservations.get((row, kind, number))
            if reservation is not None:
                reservation.left -= 1
                if not reservation.left:
                    del reservations[row, kind, number]

    # -- what the store says -----------------------------------------------------------------------------------------

    @property
    def gives(self) -> bool:
        """Messages and sessions can be given to the guest."""
        return not (self.over or self.guest.gone)

    def reply(self, reply: r.Reply) -> None:
        """An answer that gives nothing which would have to be taken back. A store that is given up still answers what
        was asked of it."""
        if not self.guest.gone:
            if isinstance(reply, r.Failed):
                self.tell_condition()
            self.guest.send(reply)

    def receiver_failed(self, failed: r.Failed) -> None:
        """Every receiver is told when a store has failed: its memory is gone, and with it all that was held."""
        self.reservations.clear()
        self.sessions.clear()
        if self._receivers.pop(failed.request, None) is not None and self.store is not None:
            self.store.unregister(failed.request)
        self.reply(failed)

    def tell_condition(self) -> None:
        """Say how the store is, if that has changed. What is bad is looked at again when it has become good."""
        store = self.store
        condition = (self._why_not, False) if store is None else (store.failure, store.overloaded)
        if condition != self.told and not self.over:
            self.told = condition
            self.guest.outbox.put(Condition(self._number, *condition))
        if store is not None and condition != (None, False) and not self._waiting:
            self._waiting = True
            store.when_usable(self._look_again)

    def _look_again(self) -> None:
        self._waiting = False
        if self.gives:
            self.tell_condition()

    # -- the end -----------------------------------------------------------------------------------------------------

    def end(self, why: str) -> None:
        """The store has come or gone: receivers are told, and register anew. Requests are still answered."""
        self.over = True
        receivers, self._receivers = self._receivers, {}
        for number in receivers:
            if self.store is not None:
                self.store.unregister(number)
            self.guest.send(r.Failed(number, False, False, why))

    def give_back(self) -> None:
        """The guest is gone: nothing waits or is kept for it any more."""
        store = self.store
        if store is None:
            return
        # A store without a valid lease fails at the first of these, and receivers are told that while this goes on.
        for number, receiver in list(self._receivers.items()):
            store.unregister(number)
            if receiver.options is not None:
                store.submit(receiver.row, receiver.options, c.CancelReceive(0, receiver.kind, number))
        for request, accepting in list(self.accepting.items()):
            store.forget(request)
            store.submit(accepting.row, accepting.options, c.CancelAccept(0, request))
        for (row, lock_id), options in list(self.sessions.items()):
            store.submit(row, options, c.ReleaseSession(lock_id))
        for (row, kind, number), reservation in list(self.reservations.items()):
            tokens = [(number, pos) for pos in reservation.positions]
            store.submit(row, reservation.options, c.ReturnReserved(kind, tokens))

    def take_back(self, row: int, options: PartitionOptions, command: c.Command) -> None:
        """What was given to nobody is free again at once."""
        if self.store is not None:
            self.store.submit(row, options, command)


class _Receiver:
    """A receiver of the guest, and how it is ended for it."""

    __slots__ = ("_number", "_reserves", "_table", "gone", "kind", "options", "row")

    def __init__(self, table: _Table, number: int) -> None:
        self._table = table
        self._number = number
        self._reserves = False
        self.gone = False
        self.row = 0
        self.options: PartitionOptions | None = None
        """None: it has not asked for anything."""
        self.kind = 0

    def asks(self, row: int, options: PartitionOptions, command: c.Receive) -> None:
        """It waits for messages."""
        self.row, self.options, self.kind = row, options, command.kind
        self._reserves = command.reserve

    def reply(self, reply: r.Granted | r.SessionEnded | r.ReceiveRefused | r.Failed) -> None:
        table = self._table
        if isinstance(reply, r.Failed):
            table.receiver_failed(reply)
            return
        if isinstance(reply, r.SessionEnded):
            table.sessions.pop((self.row, reply.lock_id), None)
        elif self.gone or not table.gives:
            if isinstance(reply, r.Granted):
                self._take_back(reply)
            return
        elif isinstance(reply, r.Granted) and self._reserves and reply.entries and self.options is not None:
            positions = [entry.pos for entry in reply.entries]
            table.reservations[self.row, reply.kind, reply.lock_id] = _Reservation(self.options, positions)
        if isinstance(reply, r.Granted) and reply.entries:
            table.guest.asked.note(self.row, len(reply.entries), reply.entries[0].size_bytes)
        table.reply(reply)

    def _take_back(self, granted: r.Granted) -> None:
        """What was deleted is lost, as it is to a receiver whose connection breaks."""
        tokens = [(granted.lock_id, entry.pos) for entry in granted.entries]
        if self.options is None or not tokens or not granted.lock_id:
            return
        command: c.Settle | c.ReturnReserved = c.Settle(0, granted.kind, c.Outcome.RELEASE, tokens)
        if self._reserves:
            command = c.ReturnReserved(granted.kind, tokens)
        self._table.take_back(self.row, self.options, command)


class _Accepting:
    """A session that the guest has asked for."""

    __slots__ = ("_table", "options", "row", "wanted")

    def __init__(self, table: _Table, row: int, options: PartitionOptions) -> None:
        self._table = table
        self.row = row
        self.options = options
        self.wanted = True

    def reply(self, reply: r.SessionAccepted | r.SessionHeld | r.NoSession | r.Failed) -> None:
        table = self._table
        table.accepting.pop(reply.request, None)
        if isinstance(reply, r.SessionAccepted):
            if not (self.wanted and table.gives):
                table.take_back(self.row, self.options, c.ReleaseSession(reply.lock_id))
                if self.wanted:
                    table.reply(r.Failed(reply.request, False, False, "the store is being given to another broker"))
                return
            table.sessions[self.row, reply.lock_id] = self.options
        table.reply(reply)


class _Locking:
    """Messages by name that the guest has asked for: deferred ones, or reserved ones."""

    __slots__ = ("_kind", "_options", "_row", "_table")

    def __init__(self, table: _Table, row: int, options: PartitionOptions, kind: int) -> None:
        self._table = table
        self._row = row
        self._options = options
        self._kind = kind

    def reply(self, reply: r.Locked | r.DeferredGranted | r.NotFound | r.SessionLost | r.Failed) -> None:
        table = self._table
        if not table.guest.gone:
            table.reply(reply)
        elif isinstance(reply, r.Locked | r.DeferredGranted) and reply.lock_id:
            tokens = [(reply.lock_id, entry.pos) for entry in reply.entries]
            table.take_back(self._row, self._options, c.Settle(0, self._kind, c.Outcome.RELEASE, tokens))


class _Reservation:
    """Messages that are reserved for the guest."""

    __slots__ = ("left", "options", "positions")

    def __init__(self, options: PartitionOptions, positions: list[int]) -> None:
        self.options = options
        self.positions = positions
        self.left = len(positions)
        """Not handed out or returned yet."""
