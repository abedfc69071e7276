"""A broker's side of ownership: the stores that it has, and the ways to those that others have (D1, D19).

```text
                        ┌─▶ StoreRuntime      taken: opened here, until given up
 StoreRoute per store ──┼─▶ a peer's access   another broker has it
                        └─▶ nowhere           nobody has it at the moment
```
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from partibus.partition.host import Host
from partibus.partition.ports import Store
from partibus.partition.runtime import StoreRuntime
from partibus.routing.store_access import StoreAccess, StoreRoute

OpenStore = Callable[[int], Store]
"""Opens the store with a number; blocks. Raises `partibus.partition.ports.StoreError`."""

MakeRuntime = Callable[[Callable[[], Store]], StoreRuntime]
"""A runtime for a store that is not open yet."""


class Owner(NamedTuple):
    """One run of a broker, as its peers know it."""

    broker: str
    incarnation: str


class Peers(Protocol):
    """The way to other brokers."""

    def access(self, owner: Owner, store_no: int) -> StoreAccess:
        """A store that another broker owns. It says by its `failure` when that broker can't be reached."""
        ...

    def keep(self, present: set[Owner]) -> None:
        """Only these brokers are there now: connections to others are lost."""
        ...


class Stores:
    """All stores of the data directory, by number, as one broker reaches them."""

    def __init__(
        self, names: Sequence[str], us: Owner, host: Host, peers: Peers, open_store: OpenStore, make_runtime: MakeRuntime
    ) -> None:
        self.names = names
        self._us = us
        self._host = host
        self._peers = peers
        self._open_store = open_store
        self._make_runtime = make_runtime
        self.routes = [StoreRoute(name, host.call_soon) for name in names]
        self.runtimes: dict[int, StoreRuntime] = {}
        """Of the stores that this broker owns."""
        self._opened: dict[int, Store] = {}
        """The same stores, as they were opened last."""
        self._leads_to: dict[int, Owner] = {}
        self._version = 0

    def take(self, store_no: int, taken: Callable[[StoreRuntime], None]) -> None:
        """Open a store, off the loop, and have its partitions run here. ``taken`` is called when that was tried: a
        store that can't be opened is owned all the same, its `failure` says why, and opening goes on being tried."""
        runtime = self._make_runtime(partial(self._open, store_no))
        self.runtimes[store_no] = runtime

        def begun() -> None:
            self._leads_to[store_no] = self._us
            self.routes[store_no].lead_to(runtime)
            taken(runtime)

        runtime.begin(begun)

    def give_up(self, store_no: int, given: Callable[[], None]) -> None:
        """Commit what is pending and close a store; then call. Who uses it here is told to wait for the next owner."""
        runtime = self.runtimes[store_no]
        self._lead_nowhere(store_no, f"{self.names[store_no]} is being handed over to another broker")

        def closed() -> None:
            del self.runtimes[store_no]
            self._opened.pop(store_no, None)
            given()

        runtime.close(closed)

    def follow(self, version: int, owners: Sequence[Owner | None]) -> None:
        """The owners by store number, as the supervisor knows them; older news than the last are passed over."""
        if version <= self._version:
            return
        self._version = version
        self._peers.keep({owner for owner in owners if owner is not None and owner != self._us})
        for store_no, owner in enumerate(owners):
            if owner == self._us or store_no in self.runtimes:
                continue  # what is taken and given here is known here first
            if owner is None:
                self._lead_nowhere(store_no, f"no broker has {self.names[store_no]} at the moment")
            elif self._leads_to.get(store_no) != owner:
                self._leads_to[store_no] = owner
                self.routes[store_no].lead_to(self._peers.access(owner, store_no))

    def facts(self) -> dict[str, Mapping[str, Any]]:
        """By name, of the stores that this broker owns: what status and health show."""
        facts = {}
        for store_no, runtime in self.runtimes.items():
            store: Any = self._opened.get(store_no)
            facts[self.names[store_no]] = {
                "trouble": runtime.trouble,
                "epoch": getattr(store, "epoch", None),
                "last_commit": getattr(store, "last_commit", None),
            }
        return facts

    def close(self, closed: Callable[[], None]) -> None:
        """Give up all stores; then call."""
        remaining = len(self.runtimes)
        if not remaining:
            closed()

        def given() -> None:
            nonlocal remaining
            remaining -= 1
            if not remaining:
                closed()

        for store_no in list(self.runtimes):
            self.give_up(store_no, given)

    def _open(self, store_no: int) -> Store:
        store = self._opened[store_no] = self._open_store(store_no)
        return store

    def _lead_nowhere(self, store_no: int, why: str) -> None:
        self._leads_to.pop(store_no, None)
        self.routes[store_no].lead_nowhere(why)
