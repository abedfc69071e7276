"""The port between a broker and the way in which it comes to own stores (D2, D19).

```text
                        ┌─▶ SingleProcess   this process owns every store
 Broker ─▶ Coordinator ─┼─▶ Supervised      a supervisor of several processes on one machine assigns the stores
                        └─▶ Clustered       brokers on several machines agree through a catalog in PostgreSQL
```
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from partibus.cluster.credits import Credits
from partibus.namespace.changes import Change
from partibus.node.metrics import Measurements
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.routing.store_access import StoreAccess


class BrokerStores(Protocol):
    """All stores of the namespace, as one broker reaches them."""

    @property
    def access(self) -> Mapping[str, StoreAccess]:
        """The way to each store by its name, in the order of the stores' numbers."""
        ...

    @property
    def runtimes(self) -> Mapping[int, StoreRuntime]:
        """The stores that this broker owns at the moment, by number."""
        ...

    @property
    def credits(self) -> Credits | None:
        """The way to the allocators of credits; None where no other broker can have one."""
        ...

    def give_up(self, store_no: int, given: Callable[[], None]) -> None:
        """Commit pending rows, close a store, and call ``given``."""
        ...


class Coordinator(Protocol):
    """The port of a broker to the brokers as a whole. A client gets the same answer from each of them."""

    @property
    def stores(self) -> BrokerStores:
        """The stores."""
        ...

    async def join(self) -> None:
        """Begin to own stores; return when the broker can serve. Raises `StartError`, OSError."""
        ...

    async def leave(self) -> None:
        """End the connections to the other brokers. This broker has given up its stores."""
        ...

    def announce(self, change: Change, followed: Callable[[], None]) -> None:
        """Announce a change (`partibus.namespace.changes.Announce`)."""
        ...

    async def status(self) -> dict[str, Any]:
        """Return ``brokers`` and ``stores``: lists of their status (`partibus.cluster.admin`)."""
        ...

    async def measurements(self) -> Mapping[str, Measurements]:
        """Return the measurements of the brokers that answer."""
        ...

    async def advance(self, milliseconds: int) -> int:
        """Move the manual clock; return the new time when everything due has run and is durable."""
        ...

    async def used(self, *, surely: bool = False) -> Iterable[int] | None:
        """Return ids of the queues used through other brokers since the last call.

        ``surely``: all that were used before this call; it may wait for the other brokers. None when another broker
        deletes idle queues, or a broker can't be asked.
        """
        ...
