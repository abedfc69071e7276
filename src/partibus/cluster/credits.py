"""The location of each namespace's allocator of credits, and the way to it (D23).

The allocator of a namespace lives with its *home store*, the one whose number is the namespace's modulo the number of
stores: the owner of that store has the allocator. While that store has no owner, the accounts wait for `VACANT_S`, and
then turn to the owner of the next one. Every broker computes that from the owners it knows; a broker that knows better
refuses.

No part of it is stored. A new allocator grants nothing before the next full period (`partibus.throttling.allocator`),
and accounts tell it the debts of the namespace.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from partibus.clock import Clock
from partibus.throttling.allocator import Allocator, Ask, Grant
from partibus.throttling.settings import ThrottlingSettings

VACANT_S = 3.0
"""A take-over takes less (D21)."""

OnGrant = Callable[[Grant | None], None]
Owner = tuple[str, str]


class Channels(Protocol):
    """The way to other brokers."""

    def ask_credits(self, owner: Owner, namespace: int, ask: Ask, on_grant: OnGrant) -> None:
        """Ask a broker. ``on_grant`` gets None when that broker can't be reached, or has no allocator."""
        ...


class _Here(NamedTuple):
    """An allocator of this broker."""

    store_no: int
    since_ms: int
    settings: ThrottlingSettings
    allocator: Allocator


class Credits:
    """One broker's view of the allocators. All calls are on the loop."""

    def __init__(self, us: Owner, stores: int, channels: Channels, clock: Clock, time_s: Callable[[], float]) -> None:
        """Follow ``stores`` stores. ``time_s`` is real time, also with a manual clock."""
        self._us = us
        self._channels = channels
        self._clock = clock
        self._time_s = time_s
        self._owners: list[Owner | None] = [None] * stores
        self._since_ms: dict[int, int] = {}
        """The time since which a store is ours, by its number."""
        self._vacant_s = dict.fromkeys(range(stores), time_s())
        """When each store lost its owner, by number of a store without one."""
        self._allocators: dict[int, _Here] = {}
        """The allocators of this broker, by namespace."""
        self.settings_of: Callable[[int], ThrottlingSettings | None] = lambda namespace: None
        """Returns the settings of a namespace by its number; set by the owner of the namespaces."""
        self.on_moved: Callable[[], None] = lambda: None
        """Called when allocators may have moved."""

    def follow(self, owners: Sequence[Owner | None]) -> None:
        """Take the present owners of the stores."""
        now_ms, now_s = self._clock.now_ms(), self._time_s()
        if list(owners) == self._owners:
            return
        self._owners = list(owners)
        for store_no, owner in enumerate(self._owners):
            if owner is None:
                self._vacant_s.setdefault(store_no, now_s)
            else:
                self._vacant_s.pop(store_no, None)
            if owner == self._us:
                self._since_ms.setdefault(store_no, now_ms)
            else:
                self._since_ms.pop(store_no, None)
        self.on_moved()

    def bank(self, namespace: int) -> "NamespaceBank":
        """Return the way of a namespace's account."""
        return NamespaceBank(self, namespace)

    def ask(self, namespace: int, ask: Ask, on_grant: OnGrant) -> None:
        """Ask the allocator of a namespace (`partibus.throttling.account.Bank`)."""
        store_no = self._home(namespace)
        owner = None if store_no is None else self._owners[store_no]
        if owner is None:
            on_grant(None)
        elif owner == self._us:
            on_grant(self.grant(namespace, ask))
        else:
            self._channels.ask_credits(owner, namespace, ask, on_grant)

    def grant(self, namespace: int, ask: Ask) -> Grant | None:
        """Return the answer of the allocator here; None when it is not here."""
        allocator = self._allocator(namespace)
        return None if allocator is None else allocator.grant(ask, self._clock.now_ms())

    def _allocator(self, namespace: int) -> Allocator | None:
        store_no, settings = self._home(namespace), self.settings_of(namespace)
        if store_no is None or settings is None or self._owners[store_no] != self._us:
            self._allocators.pop(namespace, None)
            return None
        here = self._allocators.get(namespace)
        now_ms = self._clock.now_ms()
        # A stand-in begins only now: the home store's owner had the allocator until a moment ago.
        stands_in = store_no != namespace % len(self._owners)
        since_ms = self._since_ms[store_no]
        if here is None or here.store_no != store_no or not (stands_in or here.since_ms == since_ms):
            since_ms = now_ms if stands_in else since_ms
            here = _Here(store_no, since_ms, settings, Allocator(settings, since_ms))
        elif here.settings != settings:
            here.allocator.change(settings, now_ms)
            here = here._replace(settings=settings)
        self._allocators[namespace] = here
        return here.allocator

    def _home(self, namespace: int) -> int | None:
        """Return the store whose owner allocates the credits; None while it is unknown."""
        count, now_s = len(self._owners), self._time_s()
        for offset in range(count):
            store_no = (namespace + offset) % count
            if self._owners[store_no] is not None:
                return store_no
            if now_s < self._vacant_s[store_no] + VACANT_S:
                return None
        return None


class NamespaceBank:
    """The `partibus.throttling.account.Bank` of one namespace."""

    alone = False

    def __init__(self, credits: Credits, namespace: int) -> None:
        self._credits = credits
        self._namespace = namespace

    def ask(self, ask: Ask, on_grant: OnGrant) -> None:
        """Ask the allocator of the namespace (`Bank`)."""
        self._credits.ask(self._namespace, ask, on_grant)
