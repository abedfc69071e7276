"""One store of this broker as one remote broker uses it: its requests, the replies, and the returns.

It keeps the messages, sessions and requests of the remote broker, and returns them when that broker is lost.
"""

from functools import lru_cache
from typing import Protocol

from partibus.cluster.channel import Outbox
from partibus.cluster.forms import renumber
from partibus.cluster.wire import Ask, Condition, Dropped, decode_options, value_of
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.runtime.dispatcher import OnReply
from partibus.routing.store_access import StoreAccess
from partibus.units.account import Asked

StoreCondition = tuple[str | None, bool]
"""(The reason why a store can't be used, whether more work waits for it than its limits allow)."""

options_of = lru_cache(maxsize=4_096)(decode_options)
"""Equal bytes give the same object, so a partition sees by identity that nothing has changed."""


class Asker(Protocol):
    """The remote broker that a store is served to."""

    asker: str | None
    """The run of the broker; None: its requests are not recorded."""
    base: int
    """Added to the numbers of its requests and receivers."""
    asked: Asked
    gone: bool
    outbox: Outbox

    def send(self, reply: r.Reply) -> None:
        """Send a reply."""
        ...


class ServedStore:
    """One store for one remote broker. ``store`` is None while another broker owns it."""

    def __init__(
        self,
        remote_broker: Asker,
        number: int,
        store: StoreAccess | None,
        why_not: str | None = None,
        *,
        told: StoreCondition = (None, False),
    ) -> None:
        self.remote_broker = remote_broker
        self.store = store
        self.told = told
        """The last condition reported to the remote broker."""
        self.sessions: dict[tuple[int, int], PartitionOptions] = {}
        """Sessions of the remote broker by (row, lock id)."""
        self.reservations: dict[tuple[int, int, int], Reservation] = {}
        """Reservations of the remote broker by (row, kind, reservation)."""
        self.receiving: dict[int, Receiving] = {}
        """Waiting requests for messages of message groups, by request."""
        self.accepting: dict[int, Accepting] = {}
        """Sessions that the remote broker waits for, by request."""
        self._number = number
        self._why_not = why_not or f"the owner of store {number} is another broker"
        self._waiting = False
        self._receivers: dict[int, RemoteReceiver] = {}
        self.over = False
        """Whether the store was given up or taken: another `ServedStore` is in use."""

    # -- requests of the remote broker -------------------------------------------------------------------------------

    def ask(self, frame: Ask) -> None:
        """Handle a command. Raises `WireError`."""
        command = value_of(frame.command)
        options = options_of(frame.options)
        renumber(command, self.remote_broker.base)
        row = frame.row
        if self.store is None:
            self._refuse(command, awaited=frame.awaited)
            return
        on_reply: OnReply | None = self.reply if frame.awaited else None
        kind = type(command)
        messages = command.messages if kind is c.Enqueue else ()
        self.remote_broker.asked.note(row, len(messages), len(messages[0].data) if messages else 0)
        if kind is c.Settle or kind is c.Enqueue:  # most commands, which need no bookkeeping
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
                    on_reply = Locking(self, row, options, command.kind).reply
            case c.ReturnReserved():
                self._use_reserved(row, command.kind, command.tokens)
            case c.AcceptSession():
                on_reply = self._accept(row, options, command)
            case c.ReceiveGroups():
                receiving = self.receiving[command.request] = Receiving(self, row, options)
                on_reply = receiving.reply
            case c.ReleaseSession():
                self.sessions.pop((row, command.session), None)
            case c.ReceiveDeferred() if frame.awaited:
                on_reply = Locking(self, row, options, command.kind).reply
        self.store.submit(row, options, command, on_reply, holdable=frame.holdable)

    def register(self, number: int) -> None:
        """Register a receiver."""
        receiver = self._receivers[number] = RemoteReceiver(self, number)
        if self.store is not None:
            self.store.register(number, receiver.reply)

    def unregister(self, number: int) -> None:
        """Unregister a receiver."""
        receiver = self._receivers.pop(number, None)
        if receiver is not None and self.store is not None:
            receiver.gone = True
            self.store.unregister(number)

    def forget(self, request: int) -> None:
        """Drop the answer of a request."""
        accepting = self.accepting.pop(request, None)
        if accepting is not None:
            accepting.wanted = False
        if self.store is not None:
            self.store.forget(request)

    def drop(self, row: int) -> None:
        """Delete the rows of a deleted entity's partition."""

        def dropped(row: int) -> None:
            self.remote_broker.outbox.put(Dropped(self._number, row))

        if self.store is not None:
            self.store.drop(row, dropped)

    def _accept(self, row: int, options: PartitionOptions, command: c.AcceptSession) -> OnReply:
        command.holder = self.remote_broker.asker or ""
        accepting = self.accepting[command.request] = Accepting(self, row, options)
        return accepting.reply

    def _refuse(self, command: c.Command, *, awaited: bool) -> None:
        """Answer a command for a store that is not here."""
        self.tell_condition()
        if isinstance(command, c.Receive):
            if self._receivers.pop(command.receiver, None) is not None:
                self.remote_broker.send(r.Failed(command.receiver, False, False, self._why_not))
        elif awaited:
            self.remote_broker.send(r.refused(command, self._why_not))

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
        """Whether messages and sessions can be given to the remote broker."""
        return not (self.over or self.remote_broker.gone)

    def reply(self, reply: r.Reply) -> None:
        """Send a reply without messages or sessions to return.

        A store that is given up still answers earlier requests.
        """
        if not self.remote_broker.gone:
            if isinstance(reply, r.Failed):
                self.tell_condition()
            self.remote_broker.send(reply)

    def receiver_failed(self, failed: r.Failed) -> None:
        """Tell a receiver that its store has failed, and its messages with it."""
        self.reservations.clear()
        self.sessions.clear()
        if self._receivers.pop(failed.request, None) is not None and self.store is not None:
            self.store.unregister(failed.request)
        self.reply(failed)

    def tell_condition(self) -> None:
        """Report the store's condition, if it has changed. A bad one is checked again when it has become good."""
        store = self.store
        condition = (self._why_not, False) if store is None else (store.failure, store.overloaded)
        if condition != self.told and not self.over:
            self.told = condition
            self.remote_broker.outbox.put(Condition(self._number, *condition))
        if store is not None and condition != (None, False) and not self._waiting:
            self._waiting = True
            store.when_usable(self._look_again)

    def _look_again(self) -> None:
        self._waiting = False
        if self.gives:
            self.tell_condition()

    # -- the end -----------------------------------------------------------------------------------------------------

    def end(self, why: str) -> None:
        """End the receivers, which register anew: the store has come or gone. Requests are still answered."""
        self.over = True
        receivers, self._receivers = self._receivers, {}
        for number in receivers:
            if self.store is not None:
                self.store.unregister(number)
            self.remote_broker.send(r.Failed(number, False, False, why))

    def give_back(self) -> None:
        """Return everything that the lost remote broker held or waited for."""
        store = self.store
        if store is None:
            return
        # A store without a valid lease fails at the first of these, and tells its receivers meanwhile.
        for number, receiver in list(self._receivers.items()):
            store.unregister(number)
            if receiver.options is not None:
                store.submit(receiver.row, receiver.options, c.CancelReceive(0, receiver.kind, number))
        for request, accepting in list(self.accepting.items()):
            store.forget(request)
            store.submit(accepting.row, accepting.options, c.CancelAccept(0, request))
        for request, receiving in list(self.receiving.items()):
            store.submit(receiving.row, receiving.options, c.CancelReceiveGroups(0, request))
        for (row, lock_id), options in list(self.sessions.items()):
            store.submit(row, options, c.ReleaseSession(lock_id))
        for (row, kind, number), reservation in list(self.reservations.items()):
            tokens = [(number, pos) for pos in reservation.positions]
            store.submit(row, reservation.options, c.ReturnReserved(kind, tokens))

    def take_back(self, row: int, options: PartitionOptions, command: c.Command) -> None:
        """Free a grant without a receiver at once."""
        if self.store is not None:
            self.store.submit(row, options, command)


class RemoteReceiver:
    """A receiver of the remote broker, and how to end it."""

    __slots__ = ("_number", "_reserves", "_store", "gone", "kind", "options", "row")

    def __init__(self, store: ServedStore, number: int) -> None:
        self._store = store
        self._number = number
        self._reserves = False
        self.gone = False
        self.row = 0
        self.options: PartitionOptions | None = None
        """The options of its last request; None before its first one."""
        self.kind = 0

    def asks(self, row: int, options: PartitionOptions, command: c.Receive) -> None:
        """Add a demand for messages."""
        self.row, self.options, self.kind = row, options, command.kind
        self._reserves = command.reserve

    def reply(self, reply: r.Granted | r.SessionEnded | r.ReceiveRefused | r.Failed) -> None:
        """Pass a reply on, or return its messages if the remote broker is lost."""
        store = self._store
        if isinstance(reply, r.Failed):
            store.receiver_failed(reply)
            return
        if isinstance(reply, r.SessionEnded):
            store.sessions.pop((self.row, reply.lock_id), None)
        elif self.gone or not store.gives:
            if isinstance(reply, r.Granted):
                self._take_back(reply)
            return
        elif isinstance(reply, r.Granted) and self._reserves and reply.entries and self.options is not None:
            positions = [entry.pos for entry in reply.entries]
            store.reservations[self.row, reply.kind, reply.lock_id] = Reservation(self.options, positions)
        if isinstance(reply, r.Granted) and reply.entries:
            store.remote_broker.asked.note(self.row, len(reply.entries), reply.entries[0].size_bytes)
        store.reply(reply)

    def _take_back(self, granted: r.Granted) -> None:
        """Return granted messages. Deleted ones are lost, as to a receiver whose connection breaks."""
        tokens = [(granted.lock_id, entry.pos) for entry in granted.entries]
        if self.options is None or not tokens or not granted.lock_id:
            return
        command: c.Settle | c.ReturnReserved = c.Settle(0, granted.kind, c.Outcome.RELEASE, tokens)
        if self._reserves:
            command = c.ReturnReserved(granted.kind, tokens)
        self._store.take_back(self.row, self.options, command)


class Accepting:
    """A request of the remote broker for a session."""

    __slots__ = ("_store", "options", "row", "wanted")

    def __init__(self, store: ServedStore, row: int, options: PartitionOptions) -> None:
        self._store = store
        self.row = row
        self.options = options
        self.wanted = True

    def reply(self, reply: r.SessionAccepted | r.SessionHeld | r.NoSession | r.Failed) -> None:
        """Pass the reply on, or release the session if the remote broker is lost."""
        store = self._store
        store.accepting.pop(reply.request, None)
        if isinstance(reply, r.SessionAccepted):
            if not (self.wanted and store.gives):
                store.take_back(self.row, self.options, c.ReleaseSession(reply.lock_id))
                if self.wanted:
                    store.reply(r.Failed(reply.request, False, False, "the store is being given to another broker"))
                return
            store.sessions[self.row, reply.lock_id] = self.options
        store.reply(reply)


class Receiving:
    """A request of a remote broker for messages of message groups."""

    __slots__ = ("_store", "options", "row")

    def __init__(self, store: ServedStore, row: int, options: PartitionOptions) -> None:
        self._store = store
        self.row = row
        self.options = options

    def reply(self, reply: r.GroupsGranted | r.CursorHeld | r.Failed) -> None:
        """Pass the reply on, or return the messages if the remote broker is lost."""
        store = self._store
        store.receiving.pop(reply.request, None)
        if not store.remote_broker.gone:  # also while the store is given up: its next owner knows the locks
            store.reply(reply)
        elif isinstance(reply, r.GroupsGranted) and reply.entries:
            tokens = [(reply.lock_id, entry.pos) for entry in reply.entries]
            store.take_back(self.row, self.options, c.Settle(0, SubqueueKind.ACTIVE, c.Outcome.RELEASE, tokens))


class Locking:
    """A request of the remote broker for deferred or reserved messages."""

    __slots__ = ("_kind", "_options", "_row", "_store")

    def __init__(self, store: ServedStore, row: int, options: PartitionOptions, kind: int) -> None:
        self._store = store
        self._row = row
        self._options = options
        self._kind = kind

    def reply(self, reply: r.Locked | r.DeferredGranted | r.NotFound | r.SessionLost | r.Failed) -> None:
        """Pass the reply on, or return the messages if the remote broker is lost."""
        store = self._store
        if not store.remote_broker.gone:
            store.reply(reply)
        elif isinstance(reply, r.Locked | r.DeferredGranted) and reply.lock_id:
            tokens = [(reply.lock_id, entry.pos) for entry in reply.entries]
            store.take_back(self._row, self._options, c.Settle(0, self._kind, c.Outcome.RELEASE, tokens))


class Reservation:
    """Messages that are reserved for the remote broker."""

    __slots__ = ("left", "options", "positions")

    def __init__(self, options: PartitionOptions, positions: list[int]) -> None:
        self.options = options
        self.positions = positions
        self.left = len(positions)
        """The number of messages neither handed out nor returned yet."""
