"""A broker's side of ownership: its own stores, and the ways to those of other brokers (D1, D19).

```text
                        ┌─▶ StoreRuntime      taken: opened here, until given up
 StoreRoute per store ──┼─▶ a peer's access   another broker has it
                        └─▶ nowhere           it has no owner at the moment
```
"""

from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial
from typing import NamedTuple, Protocol

from partibus.partition.protocol.host import Host
from partibus.partition.protocol.ports import Store
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.routing.store_access import StoreAccess, StoreRoute

OpenStore = Callable[[int], Store]
"""Opens the store with a number. The call blocks. Raises `partition.protocol.ports.StoreError`."""

MakeRuntime = Callable[[int, Callable[[], Store]], StoreRuntime]
"""Makes a runtime for a store that is not open yet."""


class Identity(NamedTuple):
    """One run of one broker."""

    broker: str
    incarnation: str

    @property
    def run(self) -> str:
        """The identity as one text, under which requests are recorded."""
        return f"{self.broker}/{self.incarnation}"


class Peers(Protocol):
    """The way to other brokers."""

    def lead(self, route: StoreRoute, owner: tuple[str, str], store_no: int) -> None:
        """Lead a route to a store that another broker owns, as soon as and as long as that broker can be reached."""
        ...

    def keep(self, present: Set[tuple[str, str]]) -> None:
        """Keep only the channels to these brokers, which own a store or are present."""
        ...


class Serving(Protocol):
    """The way of other brokers to the stores of this one (`partibus.cluster.serving.Serving`)."""

    def open(self, number: int, store: StoreAccess) -> None:
        """Add a store of this broker."""
        ...

    def close(self, number: int, why: str) -> None:
        """Remove a store that this broker gives up."""
        ...

    def asker_of(self, request: int) -> tuple[str, int] | None:
        """Return the run of the remote broker behind a request, and its own number of it."""
        ...


class Stores:
    """All stores of the data directory, by number, as one broker reaches them."""

    def __init__(
        self,
        names: Sequence[str],
        us: Identity,
        host: Host,
        peers: Peers,
        serving: Serving,
        open_store: OpenStore,
        make_runtime: MakeRuntime,
    ) -> None:
        """Begin without stores; ``serving`` gives the peers access to stores owned here."""
        self.names = names
        self._us = us
        self._host = host
        self._peers = peers
        self._serving = serving
        self._open_store = open_store
        self._make_runtime = make_runtime
        self.routes = [StoreRoute(name, host.call_soon, host.call_later) for name in names]
        self.runtimes: dict[int, StoreRuntime] = {}
        """The stores that this broker owns."""
        self.on_owners: Callable[[Sequence[Identity | None]], None] = lambda owners: None
        """Called with the owners of all stores whenever one changes; None: no owner."""
        self._leads_to: dict[int, Identity] = {}
        """The owners of other brokers' stores."""
        self._version = 0
        self._present: Set[str] = frozenset()
        """The runs of the brokers that are present."""

    def take(self, store_no: int, taken: Callable[[StoreRuntime], None]) -> None:
        """Open a store, off the loop, and run its partitions here. ``taken`` is called after the first attempt.

        A store that can't be opened is owned all the same: its `failure` gives the reason, and opening is tried again.
        """
        runtime = self._make_runtime(store_no, partial(self._open_store, store_no))
        runtime.executed.asker_of = self._serving.asker_of
        runtime.run = self._us.run
        runtime.is_present = self._is_present
        self.runtimes[store_no] = runtime

        def begun() -> None:
            self._leads_to.pop(store_no, None)
            self.routes[store_no].lead_to(runtime)
            self._serving.open(store_no, runtime)
            self.on_owners(self._owners())
            taken(runtime)

        runtime.begin(begun)

    def give_up(self, store_no: int, given: Callable[[], None]) -> None:
        """Commit pending rows, close a store, and call ``given``.

        Its users here are told to wait for the next owner. Another call joins the first one.
        """
        runtime = self.runtimes.get(store_no)
        if runtime is None:
            self._host.call_soon(given)
            return
        why = f"{self.names[store_no]} is being handed over to another broker"
        self.routes[store_no].lead_nowhere(why)
        # Peers that went on asking could keep the runtime from ever running out of commits.
        self._serving.close(store_no, why)
        self.on_owners(self._owners())

        def closed() -> None:
            if self.runtimes.get(store_no) is runtime:
                del self.runtimes[store_no]
            given()

        runtime.close(closed)

    def follow(self, version: int, owners: Sequence[Identity | None], present: Iterable[Identity]) -> None:
        """Take the owners by store number and the running brokers, as the supervisor knows them.

        Older news than the last are ignored. Sessions of a broker that has ended are free (D21).
        """
        if version <= self._version:
            return
        self._version = version
        there = set(present)
        before, self._present = self._present, {owner.run for owner in there}
        if before - self._present:
            for runtime in list(self.runtimes.values()):
                runtime.release_gone()
        # A broker without stores may still be giving them up. If the channel to it ended before, it would take back the
        # sessions that are held over it, which must go on at the next owner.
        self._peers.keep((there | {owner for owner in owners if owner is not None}) - {self._us})
        for store_no, owner in enumerate(owners):
            if owner == self._us or store_no in self.runtimes:
                continue  # what is taken and given here is known here first
            route = self.routes[store_no]
            if owner is None:
                self._leads_to.pop(store_no, None)
                route.lead_nowhere(f"no broker has {self.names[store_no]} at the moment")
            elif self._leads_to.get(store_no) != owner:
                self._leads_to[store_no] = owner
                route.lead_nowhere(f"{self.names[store_no]} has gone to {owner.broker}")
                self._peers.lead(route, owner, store_no)
        self.on_owners(self._owners())

    def _owners(self) -> list[Identity | None]:
        """Return the owners by number; ours are the stores open here and not being given up."""
        return [
            self._us
            if route.access is not None and route.access is self.runtimes.get(store_no)
            else self._leads_to.get(store_no)
            for store_no, route in enumerate(self.routes)
        ]

    def _is_present(self, run: str) -> bool:
        return run in self._present or run == self._us.run
