"""One broker of several machines, which share a catalog and stores in PostgreSQL, without a leader (ADR 0009).

```text
 machine 1               machine 2
  broker-a ◀── TLS ──▶ broker-b        commands and replies, as between brokers of one machine (ADR 0006)
     │ └────┐     ┌────┘ │
     │     catalog       │             entities; brokers, their stores, and the changes that they have followed
     ▼                   ▼
     stores in PostgreSQL              the owner of a store, and its lease, are written in the store
```
"""

import asyncio
import json
import logging
import os
import signal
import ssl
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from partibus.clock import SystemClock
from partibus.cluster.admin import NO_OWNER, broker_status
from partibus.cluster.assignment import Member, owners_of, steps_of
from partibus.cluster.membership import MemberInfo, Membership
from partibus.cluster.ownership import Identity
from partibus.cluster.sockets import Address, TcpAddress, listen_tls
from partibus.errors import InvalidOperation, StartError, StoreUnavailable
from partibus.namespace.catalog import Catalog
from partibus.namespace.changes import Change
from partibus.node.joining import Joined, catalog_address, join, version
from partibus.node.metrics import Measurements, packed, unpacked
from partibus.node.node import Broker
from partibus.node.ready_file import prepare_namespaces, remove_ready_file
from partibus.node.settings import Settings
from partibus.node.shared_stores import SharedStores
from partibus.node.tls import make_context
from partibus.node.used_elsewhere import UsedElsewhere
from partibus.partition.protocol.ports import Store
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.store.acknowledged import Acknowledged
from partibus.store.generations import Owner
from partibus.store.opening import Opener
from partibus.store.sqlite.directory import lock_data_directory

log = logging.getLogger(__name__)

RETRY_S = 0.5
"""The pause between attempts to open a store: the former owner may have a lease, or the database is away."""
SETTLE_S = 10.0
"""The longest wait of a start until every store has a broker. A lease that was left ends before."""
_LAST = ("pid", "lag_ms")
"""The facts that the status shows of a broker that is away."""


def make_broker(settings: Settings, loop: asyncio.AbstractEventLoop) -> Broker:
    """Join the other brokers; serve no client yet. Raises `StartError`, `StoreError`, `ConfigError`, OSError."""
    if settings.brokers_most != 1:
        raise StartError(
            f"--brokers is {settings.brokers_most}, but must be 1 with --catalog. Start one broker for each core, "
            "each with its own --data, ports and --broker-name."
        )
    if settings.manual_clock:
        raise StartError(
            "--clock manual is not for brokers of several machines, which go by the time of their own. Leave it "
            "out, or --catalog."
        )
    address = catalog_address(settings)
    clock = SystemClock()
    lock = lock_data_directory(settings.data, Owner(settings.cluster.broker or "a broker", "new"))
    remove_ready_file(settings)
    joined = join(settings, address, clock.now_ms())
    try:
        from partibus.store.postgresql.catalog import CatalogSchema

        schema = CatalogSchema(joined.catalog, f"partibus {joined.us.broker}"[:60], joined.record)
        catalog = Catalog(schema, len(joined.places))
        keys = prepare_namespaces(settings, catalog, clock.now_ms())
        broker = Broker(
            joined.us,
            settings,
            loop,
            clock,
            joined.places,
            catalog,
            lambda broker: Clustered(broker, joined),
            lock.release,
            keys,
        )
        if (fault_injections := joined.registry.fault_injections()) is not None:
            broker.front.broker.follow(json.loads(fault_injections))
        return broker
    except BaseException:
        joined.listener.close()
        joined.registry.leave()
        joined.registry.close()
        raise


class Clustered:
    """The coordinator of a broker of several machines (`partibus.node.coordinator.Coordinator`)."""

    def __init__(self, broker: Broker, joined: Joined) -> None:
        """Prepare the coordinator. Raises `UnusableFile` for a certificate."""
        self._broker = broker
        self._us = broker.us
        self._places = broker.places
        self._loop = broker.loop
        self._registry = joined.registry
        self._listener = joined.listener
        self._followed = joined.followed
        self._inbound, self._certificate = _cluster_certificate(broker.settings)
        self._outbound = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._outbound.check_hostname = False
        self._outbound.verify_mode = ssl.CERT_NONE  # the handshake proves whose certificate it is (ADR 0006)
        self._openers = [
            Opener(
                place,
                Owner(*broker.us),
                broker.settings.data,
                evict=False,
                check_time=broker.check_time,
                reported=partial(self._reported, place.store_id),
                ended=joined.ended,
            )
            for place in broker.places
        ]
        """The owners' watches; they last as long as the broker, since each remembers what it saw of its store."""
        self._just_opened: dict[int, Store] = {}
        """Opened stores that their runtimes have not taken yet."""
        self._opening: set[int] = set()
        self._giving: set[int] = set()
        self._epochs: dict[int, int] = {}
        """The epochs of the stores that this broker has."""
        self._failed: dict[int, str] = {}
        """Why a store that this broker should have could not be opened the last time."""
        self._brokers: Sequence[MemberInfo] = ()
        self._late: set[Identity] = set()
        """The brokers whose heartbeat is overdue."""
        self._versions = 0
        self._settled = asyncio.Event()
        self._membership: Membership | None = None
        self.stores = SharedStores(broker, joined.secret, self._address_of, self._open_again)
        self.stores.served.measure = self._measure

    async def join(self) -> None:
        """Accept the other brokers, and open this broker's part of the stores.

        Raises `StartError` when no store can be opened.
        """
        from partibus.store.postgresql.registry import LEASE_S

        self._broker.front.units.asked = self.stores.served.asked
        self._server = await listen_tls(
            self._listener,
            lambda: self.stores.peers.make_answering(self._certificate),
            self._inbound,
            self._loop,
            self._broker.settings.limits.peer.handshake_s,
        )
        front = self._broker.front
        self._membership = Membership(self._registry, self._us, self, self._followed, LEASE_S, self._loop.time)
        self._used_elsewhere = UsedElsewhere(self._membership, front.units, front.idle.begin)
        self._broker.on_state = self._membership.tell
        try:
            await asyncio.wait_for(self._settled.wait(), SETTLE_S)
        except TimeoutError:
            if self._failed and not any(one is not None for one in self._owners()):
                raise StartError(next(iter(self._failed.values()))) from None

    async def leave(self) -> None:
        """Leave the membership, and end the channels to the other brokers."""
        async with AsyncExitStack() as leaving:  # the last of these first, also after an exception
            leaving.callback(self.stores.peers.close)
            if self._membership is not None:
                leaving.callback(self._server.close)
                leaving.push_async_callback(self._membership.leave)

    @property
    def _is_leaving(self) -> bool:
        return self._broker.state == "leaving"

    # -- stores ------------------------------------------------------------------------------------------------------

    def _address_of(self, peer: Identity) -> Address:
        for one in self._brokers:
            if tuple(one.member.owner) == tuple(peer):
                host, _, port = one.address.rpartition(":")
                return TcpAddress(host.strip("[]"), int(port), self._outbound)
        raise AssertionError(f"{peer} is not in the cluster membership")

    def _members(self) -> list[Member]:
        """Return the brokers as all report themselves; this one as it is now."""
        others = [one.member for one in self._brokers if one.member.owner != self._us]
        return [*others, Member(self._us, True, self._is_leaving, self._owned())]

    def _owned(self) -> dict[int, int]:
        for store_no, runtime in self.stores.runtimes.items():
            epoch: int | None = getattr(runtime.store, "epoch", None)
            if epoch is not None:
                self._epochs[store_no] = epoch
        return {store_no: self._epochs.get(store_no, 0) for store_no in self.stores.runtimes}

    def _owners(self) -> list[Identity | None]:
        return owners_of(len(self._places), self._members())

    def _reconcile(self) -> None:
        """Reconcile with the current owners."""
        members = self._members()
        owners = owners_of(len(self._places), members)
        on_membership = {one.member.owner for one in self._brokers} | {self._us}
        self._versions += 1
        present = {member.owner for member in members if member.is_there}
        self.stores.follow(self._versions, [owner if owner in on_membership else None for owner in owners], present)
        if self._is_leaving:
            return
        steps = steps_of(self._us, len(self._places), members, self.stores.runtimes)
        for store_no in steps.give:
            if store_no not in self._giving:
                self._give(store_no)
        for store_no in steps.take:
            if store_no not in self._opening:
                self._take(store_no)
        for store_no in self._failed.keys() - set(steps.take):
            del self._failed[store_no]
        self._broker.lead(min(owner.broker for owner in present) == self._us.broker)
        if not steps.take and not self._opening and all(owner in present for owner in owners):
            reached = all(route.failure is None for route in self.stores.routes)
            if reached:
                self._settled.set()
            elif not self._settled.is_set():
                self._loop.call_later(0.05, self._reconcile)

    def _reported(self, store_id: str) -> Acknowledged | None:
        """Return the last commit of a store that an owner has reported."""
        return self._registry.acknowledged.get(store_id)

    def _take(self, store_no: int) -> None:
        """Open a store without an owner; from then on it is this broker's. A store with an owner is no error."""
        self._opening.add(store_no)
        place = self._places[store_no]

        def tried(result: Any) -> None:
            if isinstance(result, BaseException):
                if store_no not in self._failed:
                    log.info("%s can't be taken over yet: %s", place.store_id, result)
                self._failed[store_no] = str(result)
                self._loop.call_later(RETRY_S, again)
                return
            if self._is_leaving:
                self._broker.hosts.of(place).write(result.close, lambda _: self._opening.discard(store_no))
                return
            self._epochs[store_no] = result.epoch
            self._just_opened[store_no] = result
            self.stores.take(store_no, lambda runtime: self._taken(store_no, runtime))

        def again() -> None:
            self._opening.discard(store_no)
            self._reconcile()

        self._broker.hosts.of(place).write(self._openers[store_no], tried)

    def _watch(self, late: Collection[Identity]) -> None:
        """Look at the stores that this broker would take if ``late`` brokers are lost.

        The owner of a store counts as alive until its row has not changed for the time of a lease, from the first look.
        A look now lets most of that time pass before the brokers count as lost.
        """
        members = [one._replace(is_there=one.is_there and one.owner not in late) for one in self._members()]
        for store_no in steps_of(self._us, len(self._places), members, self.stores.runtimes).take:
            if store_no not in self._opening:
                self._broker.hosts.of(self._places[store_no]).write(self._openers[store_no].watch, lambda _: None)

    def _taken(self, store_no: int, runtime: StoreRuntime) -> None:
        self._opening.discard(store_no)
        self._failed.pop(store_no, None)
        self._broker.opened(store_no, runtime)
        self._broker.on_state()
        self._reconcile()

    def _give(self, store_no: int) -> None:
        self._giving.add(store_no)

        def given() -> None:
            self._giving.discard(store_no)
            self._epochs.pop(store_no, None)
            self._broker.on_state()

        self.stores.give_up(store_no, given)

    def _open_again(self, store_no: int) -> Store:
        """Open a store for its runtime, on a thread: the one just opened, and after a failure the same store anew."""
        opened = self._just_opened.pop(store_no, None)
        return self._openers[store_no]() if opened is None else opened

    # -- what `partibus.cluster.membership.Us` asks for ---------------------------------------------------------------

    def describe(self) -> Mapping[str, Any]:
        """Report this broker to the others."""
        names = self.stores.names
        return {
            **version()._asdict(),
            **self._broker.report(),
            "leaving": self._is_leaving,
            "owned": {str(store_no): epoch for store_no, epoch in sorted(self._owned().items())},
            "failed": {names[store_no]: why for store_no, why in self._failed.items()},
            "lag_ms": 0.0 if self._membership is None else round(self._membership.lag_s * 1_000, 1),
            **self._broker.front.told,
        }

    def take_used(self) -> list[int]:
        """Return the queues used since the last call."""
        return [] if self._broker.front.units.leads else self._broker.front.idle.take_used()

    def follow(self, change: Mapping[str, Any]) -> None:
        """Follow a change that another broker announced."""
        self._broker.front.namespaces.follow(change)

    def follow_all(self) -> None:
        """Follow the whole catalog."""
        self._broker.front.namespaces.follow_all()

    def seen(self, brokers: Sequence[MemberInfo]) -> None:
        """React to the brokers in the catalog."""
        self._log_lost_brokers(brokers)
        self._used_elsewhere.see([one.member.owner for one in brokers])
        self._brokers = brokers
        there = [one for one in brokers if one.member.is_there and one.member.owner != self._us]
        self._broker.front.units.follow(len(there) + 1, len(there) + 1)
        self._broker.front.hear([one.facts for one in there])
        late = {one.member.owner for one in there if one.is_late}
        if not late <= self._late:
            self._watch(late)
        self._late = late
        self._reconcile()

    def _log_lost_brokers(self, brokers: Sequence[MemberInfo]) -> None:
        """Log the brokers that have ended, and those that are back.

        Brokers that stop in good order report it themselves, and leave the membership.
        """
        before = {one.member.owner: one.member.is_there for one in self._brokers}
        for one in brokers:
            owner, is_there, _, owned = one.member
            if owner != self._us and before.get(owner, is_there) != is_there:
                said = "is there again" if is_there else f"no longer sends heartbeats; {len(owned)} stores have lost it"
                log.warning("%s (run %s) %s", owner.broker, owner.incarnation, said)

    def replaced(self, why: str) -> None:
        """End, since another broker has taken this one's name."""
        print(f"partibus: {why}", file=sys.stderr)
        os.kill(os.getpid(), signal.SIGTERM)

    # -- what the broker asks for ------------------------------------------------------------------------------------

    def announce(self, change: Change, followed: Callable[[], None]) -> None:
        """Announce a change to the other brokers."""

        async def tell() -> None:
            assert self._membership is not None, "the broker has joined"
            try:
                await self._membership.announce(change, is_noted="rehearsals" not in change)
            except StoreUnavailable as error:
                log.warning("other brokers can't be told of a change now: %s", error)
            followed()

        self._broker.front.spawn(tell())

    async def status(self) -> dict[str, Any]:
        """Return the status known here; that of other brokers is as of their last heartbeat."""
        said = {one.member.owner: one.facts for one in self._brokers if one.member.is_there}
        said[self._us] = self.describe()
        refusals: dict[str, str] = {}
        for facts in said.values():
            refusals |= facts.get("failed", {})
        stores = []
        for route, owner in zip(self.stores.routes, self._owners(), strict=True):
            if owner is None or owner not in said:
                why = refusals.get(route.name, NO_OWNER)
                stores.append({"name": route.name, "owner": None, "trouble": why})
                continue
            facts = said[owner].get("stores", {}).get(route.name, {"trouble": None})
            stores.append(
                {"name": route.name, "owner": owner.broker, **facts, "trouble": facts["trouble"] or route.failure}
            )
        brokers = [broker_status(self._us.broker, said[self._us])]
        for one in self._brokers:
            owner, facts = one.member.owner, one.facts
            if owner != self._us:
                known = {"state": "starting", **facts} if owner in said else {name: facts.get(name) for name in _LAST}
                brokers.append(broker_status(owner.broker, {**known, "incarnation": owner.incarnation}))
        return {"brokers": sorted(brokers, key=lambda one: str(one["id"])), "stores": stores}

    async def measurements(self) -> Mapping[str, Measurements]:
        """Return the measurements of this broker and of the owners of stores that it has a channel to."""
        brokers = len(self._brokers) or 1
        own, texts = await asyncio.gather(
            self._broker.front.measuring.measure(brokers), self.stores.peers.measure(brokers)
        )
        return {self._us.broker: own} | await unpacked(texts.items())

    def _measure(self, brokers: int, on_measured: Callable[[bytes], None]) -> None:
        """Measure for another broker."""

        async def measure() -> None:
            on_measured(packed(await self._broker.front.measuring.measure(brokers)).encode())

        self._broker.front.spawn(measure())

    async def advance(self, milliseconds: int) -> int:
        """Move the manual clock."""
        raise InvalidOperation("The clock of brokers on several machines is the real one, and can't be moved.")

    async def used(self, *, surely: bool = False) -> Iterable[int] | None:
        """Return the queues used through other brokers since the last call (`UsedElsewhere.take`)."""
        return None if self._membership is None else await self._used_elsewhere.take(surely=surely)


def _cluster_certificate(settings: Settings) -> tuple[ssl.SSLContext, bytes]:
    """Return the certificate for other brokers, with its DER form. Raises `UnusableFile`."""
    path, key = settings.cluster.certificate, settings.cluster.certificate_key
    if path is None:
        from partibus.node.certificates import default_names, ensure_development, now_utc

        path, key = ensure_development(settings.data / "cluster", default_names(), now_utc()).server, None
    context = make_context(path, key)
    pem = path.read_text()
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    start = pem.index(begin)
    return context, ssl.PEM_cert_to_DER_cert(pem[start : pem.index(end, start) + len(end)])
