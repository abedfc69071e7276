"""The messages, sessions and requests of a remote broker in a store, which are returned when it is lost."""

from typing import TYPE_CHECKING

from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.options import PartitionOptions

if TYPE_CHECKING:
    from partibus.cluster.served_store import ServedStore


class RemoteReceiver:
    """A receiver of the remote broker, and how to end it."""

    __slots__ = ("_number", "_reserves", "_store", "gone", "kind", "options", "row")

    def __init__(self, store: "ServedStore", number: int) -> None:
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

    def __init__(self, store: "ServedStore", row: int, options: PartitionOptions) -> None:
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

    def __init__(self, store: "ServedStore", row: int, options: PartitionOptions) -> None:
        self._store = store
        self.row = row
        self.options = options

    def reply(self, reply: r.GroupsGranted | r.CursorHeld | r.Failed) -> None:
        """Pass the reply on, or return the messages if the remote broker is lost."""
        store = self._store
        store.receiving.pop(reply.request, None)
        if store.gives:
            store.reply(reply)
        elif isinstance(reply, r.GroupsGranted) and reply.entries:
            tokens = [(reply.lock_id, entry.pos) for entry in reply.entries]
            store.take_back(self.row, self.options, c.Settle(0, SubqueueKind.ACTIVE, c.Outcome.RELEASE, tokens))


class Locking:
    """A request of the remote broker for deferred or reserved messages."""

    __slots__ = ("_kind", "_options", "_row", "_store")

    def __init__(self, store: "ServedStore", row: int, options: PartitionOptions, kind: int) -> None:
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
