"""The stores of another broker, reached over a channel: another form of `partibus.routing.store_access.StoreAccess`.

```text
 submit ─┬─▶ stores messages: a bounded part of it unanswered, the rest is held   ─┬─▶ Outbox ─▶ peer
         └─▶ everything else, settlements among it: at once (own ready list, D22) ─────────┘
 answers ─▶ the asker of the request, or the receiver
```

A channel is used once. When it is lost, its requests are answered. A request that never left this process, or that
leaves no trace, was surely not executed. Sends, settlements and transactions that were sent wait for the next owner,
which knows (`partibus.cluster.in_doubt`); the outcome of the others is unknown. Settlements and renewals that were
surely not executed are sent again to that owner. Receivers are told, and the routes lead nowhere, until that owner is
known.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from partibus.cluster.channel import Outbox
from partibus.cluster.forms import to_form
from partibus.cluster.in_doubt import Asked, InDoubt
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
    encode_frame,
    encode_options,
    value_of,
)
from partibus.limits import PeerLimits
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.host import overloaded_stores
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.runtime.commits import OnFound
from partibus.partition.runtime.dispatcher import OnReply
from partibus.routing.store_access import CAN_WAIT, StoreRoute
from partibus.throttling.allocator import Ask as CreditAsk
from partibus.throttling.allocator import Grant

_OPTIONS_KEPT_MAX = 4_096
_LEAVES_NOTHING = frozenset(
    (
        c.AcceptSession,
        c.CancelAccept,
        c.CancelReceive,
        c.CancelReceiveGroups,
        c.GetSessionState,
        c.Inspect,
        c.ListSessions,
        c.Peek,
        c.ReadDispositions,
        c.ReadRange,
        c.TakeNumbers,
    )
)
"""Commands without a trace after the loss of their owner: they may be sent again. Session locks are in its memory only,
and unreported numbers are as if never taken.
"""
_NEVER = 1 << 63
"""The number of a batch that will not leave."""


class _Asked(NamedTuple):
    """A request that was not answered yet."""

    on_reply: OnReply
    store: "RemoteStore"
    batch: int
    """The number of the batch that contains it; `_NEVER` when that makes no difference."""
    bulk_bytes: int
    """Its use of the store's room."""
    recorded: type | None = None
    """The kind of a command whose execution its store records."""
    again: tuple[int, PartitionOptions, c.Command] | None = None
    """The row, options and command for a request to the next owner."""


class _Held(NamedTuple):
    """A request that waits for room."""

    frame: bytes
    request: int
    """The request; 0: without an answer."""


class RemoteBroker:
    """One peer as the owner of stores, over one channel. All calls are on the loop."""

    def __init__(
        self,
        name: str,
        outbox: Outbox,
        call_soon: Callable[[Callable[[], None]], Any],
        limits: PeerLimits,
        run: str = "",
        in_doubt: InDoubt | None = None,
    ) -> None:
        """Use a channel. ``run``: the run of the broker. ``in_doubt`` resolves the requests in doubt after its loss."""
        self.run = run
        self._in_doubt = in_doubt
        self.recalls: dict[int, OnFound] = {}
        self.questions = 0
        self.name = name
        self.limits = limits
        self.outbox = outbox
        self.call_soon = call_soon
        self.lost_because: str | None = None
        self.requests: dict[int, _Asked] = {}
        self.receivers: dict[int, tuple[OnReply, RemoteStore]] = {}
        self.leaving: dict[int, OnReply] = {}
        """Ended receivers, until the owner's last grant to them: they return such grants."""
        self.drops: dict[tuple[int, int], Callable[[Any], None]] = {}
        self.measures: deque[Callable[[bytes | None], None]] = deque()
        """Callbacks for measurements, in the order of asking."""
        self._grants: deque[Callable[[Grant | None], None]] = deque()
        """Callbacks for credits, in the order of asking."""
        self._stores: dict[int, RemoteStore] = {}
        self._conditions: dict[int, Condition] = {}
        """The last reported condition of each store: the owner reports changes only."""
        self._options: dict[int, tuple[PartitionOptions, bytes]] = {}
        """Encoded options by identity; an entity's options change rarely."""

    def store(self, number: int, route: StoreRoute) -> "RemoteStore":
        """Return the way to one of the peer's stores, as the target of ``route``. One at a time for each number."""
        store = self._stores[number] = RemoteStore(self, number, route)
        if number in self._conditions:
            store.follow(self._conditions[number])
        if self.lost_because is not None:
            store.failure = self.lost_because
        return store

    def encoded(self, options: PartitionOptions) -> bytes:
        """Return options in their encoded form."""
        known = self._options.get(id(options))
        if known is None:
            if len(self._options) >= _OPTIONS_KEPT_MAX:
                self._options.clear()
            known = self._options[id(options)] = (options, encode_options(options))
        return known[1]

    def measure(self, brokers: int, on_measured: Callable[[bytes | None], None]) -> None:
        """Ask for the peer's measurements (`partibus.cluster.wire.Measured`); None when it is lost before."""
        if self.lost_because is not None:
            self.call_soon(lambda: on_measured(None))
            return
        self.measures.append(on_measured)
        self.outbox.put(Measure(brokers))

    def ask_credits(self, namespace: int, ask: CreditAsk, on_grant: Callable[[Grant | None], None]) -> None:
        """Ask the allocator of a namespace.

        ``on_grant`` gets None when it is not at the peer, or the peer is lost before.
        """
        if self.lost_because is not None:
            self.call_soon(lambda: on_grant(None))
            return
        self._grants.append(on_grant)
        self.outbox.put(AskCredits(namespace, list(ask)))

    def receive(self, frames: list[Any]) -> None:
        """Handle the peer's frames. Raises `WireError`."""
        touched: dict[RemoteStore, None] = {}
        for frame in frames:
            match frame:
                case Condition():
                    self._conditions[frame.store] = frame
                    if (store := self._stores.get(frame.store)) is not None:
                        store.follow(frame)
                        touched[store] = None
                case Dropped():
                    on_dropped = self.drops.pop((frame.store, frame.row), None)
                    if on_dropped is not None:
                        on_dropped(frame.row)
                case Measured():
                    if self.measures:
                        self.measures.popleft()(frame.text)
                case Credits():
                    if self._grants:
                        grant = Grant(frame.period, frame.credits, frame.spent, frame.debt)
                        self._grants.popleft()(grant if frame.here else None)
                case Recalled():
                    if (found := self.recalls.pop(frame.question, None)) is not None:
                        found(frame.found)
                case Forgotten():
                    self.leaving.pop(frame.number, None)
                    if (asked := self.requests.pop(frame.number, None)) is not None:
                        asked.store.answered(asked.bulk_bytes)
                        touched[asked.store] = None
                case _:
                    self._answer(value_of(frame), touched)
        for store in touched:
            store.go_on()

    def _answer(self, reply: r.Reply, touched: dict["RemoteStore", None]) -> None:
        if isinstance(reply, r.Granted | r.SessionEnded):
            number = reply.receiver
            known = self.receivers.get(number)
            on_granted = self.leaving.get(number) if known is None else known[0]
            if on_granted is not None:
                on_granted(reply)
            return
        if isinstance(reply, r.ReceiveRefused):
            if (known := self.receivers.get(reply.receiver)) is not None:
                known[0](reply)
            return
        asked = self.requests.pop(reply.request, None)
        if asked is not None:
            if asked.bulk_bytes:
                asked.store.answered(asked.bulk_bytes)
                touched[asked.store] = None
            if type(reply) is r.Failed and reply.executed is False and asked.again is not None:
                asked.store.route.hold(*asked.again, asked.on_reply)
            else:
                asked.on_reply(reply)
        elif isinstance(reply, r.Failed) and (known := self.receivers.pop(reply.request, None)) is not None:
            known[0](reply)

    def lost(self, why: str) -> None:
        """End all requests after the loss of the channel. Idempotent."""
        if self.lost_because is not None:
            return
        self.lost_because = why
        self.outbox.close()
        stores, self._stores = self._stores, {}
        for store in stores.values():
            store.failure = why
            overloaded_stores.discard(store)
        for store in stores.values():
            store.leave(why)
        requests, self.requests = self.requests, {}
        self.leaving.clear()
        self.drops.clear()
        measures, self.measures = self.measures, deque()
        for on_measured in measures:
            on_measured(None)
        grants, self._grants = self._grants, deque()
        for on_grant in grants:
            on_grant(None)
        left = self.outbox.left
        recalls, self.recalls = self.recalls, {}
        for found in recalls.values():
            found(None)
        open_questions: dict[StoreRoute, dict[int, Asked]] = {}
        for number, asked in requests.items():
            executed = None if asked.batch <= left else False
            if executed is None and asked.recorded is not None and self._in_doubt is not None:
                question = Asked(asked.recorded, asked.on_reply, asked.again)
                open_questions.setdefault(asked.store.route, {})[number] = question
            elif asked.again is not None and (executed is False or asked.recorded is None):
                asked.store.route.hold(*asked.again, asked.on_reply)  # of the latter twice is as good as once
            else:
                asked.on_reply(r.Failed(number, executed, False, why))
        if self._in_doubt is not None:
            for route, waiting in open_questions.items():
                self._in_doubt.hold(route, self.run, waiting, why)


class RemoteStore:
    """One store of a peer, with the contract of `StoreAccess`."""

    def __init__(self, broker: RemoteBroker, number: int, route: StoreRoute) -> None:
        self._broker = broker
        self._number = number
        self.route = route
        self._owner_overloaded = False
        self._bulk_bytes_max = broker.limits.unanswered_bytes
        self._bulk_bytes = 0
        """Bytes sent and not answered."""
        self._held: deque[_Held] = deque()
        self._held_bytes = 0
        self._awaiting_relief: list[Callable[[], None]] = []
        self._awaiting_return: list[Callable[[], None]] = []
        self._retired = False
        self.failure: str | None = None

    @property
    def overloaded(self) -> bool:
        """Whether more waits than the limits allow."""
        return self.failure is None and (
            self._owner_overloaded or self._bulk_bytes + self._held_bytes > self._bulk_bytes_max
        )

    def _look(self) -> None:
        """Join or leave the overloaded stores."""
        if self.overloaded:
            overloaded_stores.add(self)
        else:
            overloaded_stores.discard(self)

    @property
    def run(self) -> str:
        """The run of the broker that owns the store."""
        return self._broker.run

    def find_executed(self, asker: str, requests: Sequence[int], found: OnFound) -> None:
        """Ask which requests were executed (`partibus.routing.store_access.Remembers`); the peer knows the asker."""
        broker = self._broker
        if broker.lost_because is not None:
            broker.call_soon(lambda: found(None))
            return
        broker.questions += 1
        broker.recalls[broker.questions] = found
        broker.outbox.put(Recall(self._number, broker.questions, list(requests)))

    @property
    def unanswered_bytes(self) -> int:
        """Bytes of messages that were sent and not answered, or are held back."""
        return self._bulk_bytes + self._held_bytes

    def when_usable(self, call: Callable[[], None]) -> None:
        """Call once the store is usable."""
        if self.failure is not None:
            self._awaiting_return.append(call)
        elif self.overloaded:
            self._awaiting_relief.append(call)
        else:
            self._broker.call_soon(call)

    # -- the way out -------------------------------------------------------------------------------------------------

    def submit(
        self,
        row: int,
        options: PartitionOptions,
        command: c.Command,
        on_reply: OnReply | None = None,
        *,
        holdable: bool = False,
    ) -> None:
        """Send a command for a partition."""
        broker = self._broker
        if broker.lost_because is not None:
            self._refuse(command, on_reply, broker.lost_because)
            return
        try:
            form = to_form(command)
            frame = Ask(self._number, row, broker.encoded(options), holdable, on_reply is not None, form)
            if isinstance(command, c.Enqueue | c.Transact):
                self._submit_bulk(command.request, encode_frame(frame), on_reply, type(command))
                return
            if on_reply is not None:  # first: the channel may be lost while the frame is put, and tells its askers
                kind = type(command)
                batch = _NEVER if kind in _LEAVES_NOTHING else broker.outbox.batch
                recorded = c.Settle if kind is c.Settle else None
                again = (row, options, command) if kind in CAN_WAIT else None
                broker.requests[r.request_of(command)] = _Asked(on_reply, self, batch, 0, recorded, again)
            broker.outbox.put(frame)
        except (ValueError, TypeError) as error:
            if on_reply is not None:
                broker.requests.pop(r.request_of(command), None)
            self._refuse(command, on_reply, f"a {type(command).__name__} can't be sent to {broker.name}: {error}")

    def _submit_bulk(self, request: int, frame: bytes, on_reply: OnReply | None, recorded: type) -> None:
        broker = self._broker
        size_bytes = len(frame)
        if self._held or (self._bulk_bytes and self._bulk_bytes + size_bytes > self._bulk_bytes_max):
            if on_reply is not None:
                broker.requests[request] = _Asked(on_reply, self, _NEVER, 0, recorded)
            self._held.append(_Held(frame, request if on_reply is not None else 0))
            self._held_bytes += size_bytes
            self._look()
            return
        if on_reply is not None:
            broker.requests[request] = _Asked(on_reply, self, broker.outbox.batch, size_bytes, recorded)
            self._bulk_bytes += size_bytes
            self._look()
        broker.outbox.put_encoded(frame)

    def _refuse(self, command: c.Command, on_reply: OnReply | None, why: str) -> None:
        """Answer a command that was surely not executed."""
        if on_reply is not None:
            on_reply(r.refused(command, why))
        elif isinstance(command, c.Receive):
            known = self._broker.receivers.pop(command.receiver, None)
            if known is not None:
                known[0](r.Failed(command.receiver, False, False, why))

    def register(self, receiver: int, on_granted: OnReply) -> None:
        """Register a receiver."""
        self._broker.receivers[receiver] = (on_granted, self)
        self._tell(Register(self._number, receiver))

    def unregister(self, receiver: int) -> None:
        """Unregister a receiver."""
        broker = self._broker
        known = broker.receivers.pop(receiver, None)
        if known is not None and broker.lost_because is None:
            broker.leaving[receiver] = known[0]
            broker.outbox.put(Unregister(self._number, receiver))

    def forget(self, request: int) -> None:
        """Drop the answer of a request."""
        if request in self._broker.requests:
            self._tell(Forget(self._number, request))

    def drop(self, row: int, on_dropped: Callable[[Any], None]) -> None:
        """Delete the rows of a partition."""
        broker = self._broker
        if broker.lost_because is None:
            broker.drops[self._number, row] = on_dropped
            # The frame goes behind held messages: they would create the partition again.
            frame = encode_frame(Drop(self._number, row))
            if self._held:
                self._held.append(_Held(frame, 0))
                self._held_bytes += len(frame)
                self._look()
            else:
                broker.outbox.put_encoded(frame)

    def _tell(self, frame: Any) -> None:
        if self._broker.lost_because is None:
            self._broker.outbox.put(frame)

    # -- what the peer says ------------------------------------------------------------------------------------------

    def follow(self, condition: Condition) -> None:
        """Take the owner's report on its store."""
        if self._retired:
            return
        self.failure = condition.failure
        self._owner_overloaded = condition.overloaded
        self._look()

    def answered(self, bulk_bytes: int) -> None:
        """Free the room of an answered request."""
        self._bulk_bytes -= bulk_bytes

    def go_on(self) -> None:
        """Send held requests as far as there is room, and make the due callbacks."""
        held, requests, outbox = self._held, self._broker.requests, self._broker.outbox
        while held and (not self._bulk_bytes or self._bulk_bytes + len(held[0].frame) <= self._bulk_bytes_max):
            frame, request = held.popleft()
            size_bytes = len(frame)
            self._held_bytes -= size_bytes
            if (asked := requests.get(request)) is not None:
                requests[request] = _Asked(asked.on_reply, self, outbox.batch, size_bytes, asked.recorded)
                self._bulk_bytes += size_bytes
            outbox.put_encoded(frame)
        self._look()
        if not self.overloaded:
            self._call(self._awaiting_relief)
        if self.failure is None:
            self._call(self._awaiting_return)

    def _call(self, waiting: list[Callable[[], None]]) -> None:
        calls = waiting[:]
        waiting.clear()
        for call in calls:
            self._broker.call_soon(call)

    # -- the end -----------------------------------------------------------------------------------------------------

    def leave(self, why: str) -> None:
        """End the store's receivers after the loss of the channel."""
        if self.route.access is self:
            self.route.lead_nowhere(why)
        elif not self._retired:
            self.retire(why)

    def retire(self, why: str) -> list[Callable[[], None]]:
        """Return the callbacks that wait for relief: this store no longer blocks them."""
        self._retired = True
        self.failure = why
        overloaded_stores.discard(self)
        self._call(self._awaiting_relief)
        waiting, self._awaiting_return = self._awaiting_return, []
        broker = self._broker
        held, self._held, self._held_bytes = self._held, deque(), 0
        for _, request in held:
            if (asked := broker.requests.pop(request, None)) is not None:
                asked.on_reply(r.Failed(request, False, False, why))
        for number in [number for number, (_, store) in broker.receivers.items() if store is self]:
            on_granted, _ = broker.receivers.pop(number)
            self._tell(Unregister(self._number, number))
            on_granted(r.Failed(number, False, False, why))
        return waiting
