"""The owner's side of a channel: requests of remote brokers to the stores of this broker.

A remote broker numbers its requests and receivers itself. Here they get a base that no other remote broker has, so that
they differ from those of this broker and of the others.

When a remote broker is lost, its receivers end and its reservations and sessions are free at once. Message locks stay:
consumers can settle through another broker (D12). A running remote broker keeps its sessions when a store changes its
owner: the stored lock names its run (D21).
"""

from collections.abc import Callable, Mapping
from typing import Any

from partibus.cluster.channel import Outbox
from partibus.cluster.forms import renumber, to_form
from partibus.cluster.served_store import ServedStore
from partibus.cluster.wire import (
    Ask,
    AskCredits,
    Credits,
    Drop,
    Forget,
    Forgotten,
    Measure,
    Measured,
    Recall,
    Recalled,
    Register,
    Unregister,
    WireError,
)
from partibus.partition.protocol import replies as r
from partibus.routing.store_access import StoreAccess, memory_of
from partibus.throttling.allocator import Ask as CreditAsk
from partibus.throttling.allocator import Grant
from partibus.units.account import Asked

BASE_BITS = 48
"""Room for the numbers of one remote broker: at a million requests a second, nine years."""


class Serving:
    """The stores of this broker, for all remote brokers. Its supervisor decides which stores these are."""

    def __init__(self) -> None:
        self.measure: Callable[[int, Callable[[bytes], None]], None] | None = None
        """Gathers this broker's metrics, and calls with the text of a `partibus.cluster.wire.Measured`."""
        self.grant: Callable[[int, CreditAsk], Grant | None] = lambda namespace, ask: None
        """Returns the answer of a namespace's allocator; None when it is not here."""
        self.stores: dict[int, StoreAccess] = {}
        self.asked = Asked()
        """The requests of remote brokers."""
        self._remote_brokers: set[ServedBroker] = set()
        self._bases = 0
        self._askers: dict[int, str] = {}
        """The run of the broker behind each base. They stay, because requests may be under way."""

    def open(self, number: int, store: StoreAccess) -> None:
        """Add a store of this broker. Remote brokers that asked for it before are told."""
        self.stores[number] = store
        for remote_broker in list(self._remote_brokers):  # one whose channel is lost on the way leaves
            remote_broker.look(number, "the store has just been opened")

    def close(self, number: int, why: str) -> None:
        """Remove a store that this broker gives up. Earlier requests are still answered."""
        self.stores.pop(number, None)
        for remote_broker in list(self._remote_brokers):
            remote_broker.look(number, why)

    def asker_of(self, request: int) -> tuple[str, int] | None:
        """Return the asker of a request (`partition.runtime.executed.AskerOf`)."""
        base = request >> BASE_BITS
        asker = self._askers.get(base) if base else None
        return None if asker is None else (asker, request - (base << BASE_BITS))

    def remote_broker(self, outbox: Outbox, asker: str | None = None) -> "ServedBroker":
        """Return the handler of a new channel of a broker, by its run; None: its requests are not recorded."""
        self._bases += 1
        if asker is not None:
            self._askers[self._bases] = asker
        remote_broker = ServedBroker(self, outbox, self._bases << BASE_BITS, asker)
        self._remote_brokers.add(remote_broker)
        return remote_broker

    def leave(self, remote_broker: "ServedBroker") -> None:
        """Remove a remote broker whose channel has ended."""
        self._remote_brokers.discard(remote_broker)


class ServedBroker:
    """One broker that asks, over one channel."""

    def __init__(self, serving: Serving, outbox: Outbox, base: int, asker: str | None = None) -> None:
        self.outbox = outbox
        self.asker = asker
        self.base = base
        self.asked = serving.asked
        self.gone = False
        self._serving = serving
        self.stores: dict[int, ServedStore] = {}
        """The stores that it has asked for, by number."""

    def receive(self, frames: list[Any]) -> None:
        """Handle frames of the remote broker. Raises `WireError`."""
        touched: dict[ServedStore, None] = {}
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
            store = self._store(frame.store)
            touched[store] = None
            match frame:
                case Ask():
                    store.ask(frame)
                case Register():
                    store.register(frame.receiver + self.base)
                case Unregister():
                    store.unregister(frame.receiver + self.base)
                    self.outbox.put(Forgotten(frame.receiver))
                case Forget():
                    store.forget(frame.request + self.base)
                    self.outbox.put(Forgotten(frame.request))
                case Drop():
                    store.drop(frame.row)
        for store in touched:
            store.tell_condition()

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

    def _store(self, number: int) -> ServedStore:
        store = self.stores.get(number)
        if store is None:
            store = self.stores[number] = ServedStore(self, number, self._serving.stores.get(number))
        return store

    def look(self, number: int, why: str) -> None:
        """Report that a store has come or gone, if the remote broker has asked for it."""
        old = self.stores.get(number)
        if old is not None:
            old.end(why)
            new = self.stores[number] = ServedStore(self, number, self._serving.stores.get(number), why, told=old.told)
            new.tell_condition()

    def lost(self) -> None:
        """Return everything of the remote broker: the channel has ended. Idempotent."""
        if self.gone:
            return
        self.gone = True
        self.outbox.close()
        self._serving.leave(self)
        for store in self.stores.values():
            store.give_back()

    def send(self, reply: r.Reply) -> None:
        """Send a reply, with the remote broker's own numbers."""
        try:
            form = to_form(reply)
            renumber(form, -self.base)
            self.outbox.put(form)
        except (ValueError, TypeError) as error:
            number = getattr(reply, "request", 0) or getattr(reply, "receiver", 0)
            text = f"the answer ({type(reply).__name__}) can't be sent: {error}"
            self.outbox.put(to_form(r.Failed(number - self.base, None, False, text)))
