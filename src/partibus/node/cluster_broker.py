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
from typing import Any

from partibus.clock import SystemClock
from partibus.cluster.credits import Credits
from partibus.cluster.handshake import Identity
from partibus.cluster.membership import MemberInfo, Membership
from partibus.cluster.ownership import Owner, Stores
from partibus.cluster.peers import PeerChannels
from partibus.cluster.serving import Serving
from partibus.cluster.share import Member, owners_of, steps_of
from partibus.cluster.sockets import Address, TcpAddress, listen_tls
from partibus.errors import InvalidOperation, StartError, StoreUnavailable
from partibus.namespace.announcing import Change
from partibus.namespace.broker import Broker
from partibus.namespace.catalog import Catalog
from partibus.namespace.config_json import read_config_json
from partibus.namespace.config_namespaces import apply_namespaces
from partibus.node.front import Front
from partibus.node.host import StoreHosts
from partibus.node.joining import Joined, catalog_address, join, version
from partibus.node.metrics import Measurements, packed, unpacked
from partibus.node.ready_file import first_keys, ready_document, write_ready_file
from partibus.node.settings import Settings
from partibus.node.stored_time import stored_time
from partibus.node.telemetry import Telemetry
from partibus.node.tls import make_context, prepare_certificate
from partibus.partition.protocol.ports import Store
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.store.opening import Opener
from partibus.store.owner import Owner as StoreOwner
from partibus.store.sqlite.directory import lock_data_directory

log = logging.getLogger(__name__)

RETRY_S = 0.5
"""The pause between attempts to open a store: the former owner may have a lease, or the database is away."""
SETTLE_S = 10.0
"""The longest wait of a start until every store has a broker. A lease that was left ends before."""
NOBODY = "no broker has it at the moment"


class ClusterBroker:
    """A broker process."""

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
        """Join the others; serves no client yet. Raises `StartError`, `StoreError`, `ConfigError`, OSError."""
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
        self._settings = settings
        self._loop = loop
        self._clock = SystemClock()
        self._lock = lock_data_directory(settings.data, StoreOwner(settings.cluster.broker or "a broker", "new"))
        joined = join(settings, address, self._clock.now_ms())
        try:
            self._make(joined)
        except BaseException:
            joined.listener.close()
            joined.registry.leave()
            joined.registry.close()
            raise

    def _make(self, joined: Joined) -> None:
        settings, loop = self._settings, self._loop
        self._us = joined.us
        self._registry = joined.registry
        self._places = joined.places
        self._access = joined.access
        self._listener = joined.listener
        self._followed = joined.followed
        self._ended = joined.ended
        self._inbound, self._certificate = _cluster_certificate(settings)
        self._outbound = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._outbound.check_hostname = False
        self._outbound.verify_mode = ssl.CERT_NONE  # the handshake proves whose certificate it is (ADR 0006)
        names = [place.store_id for place in self._places]
        self._hosts = StoreHosts(loop)
        self._telemetry = Telemetry(settings, *self._us, loop)
        self._meters = self._telemetry.meters
        self._openers: dict[int, Opener] = {}
        self._just_opened: dict[int, Store] = {}
        """Opened stores that their runtimes have not taken yet."""
        self._opening: set[int] = set()
        self._giving: set[int] = set()
        self._epochs: dict[int, int] = {}
        """The epochs of the stores that this broker has."""
        self._failed: dict[int, str] = {}
        """Why a store that this broker should have could not be opened the last time."""
        self._brokers: Sequence[MemberInfo] = ()
        self._late: set[Owner] = set()
        """The brokers whose heartbeat is overdue."""
        self._versions = 0
        self._has_joined = False
        self._is_serving = False
        self._is_leaving = False
        self._is_janitor = False
        self._settled = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        serving = Serving()
        serving.measure = self._measure
        self._peers = PeerChannels(
            Identity(*self._us), joined.secret, self._address_of, serving, loop, settings.limits.peer
        )
        self.stores = Stores(
            names, self._us, self._hosts.near, self._peers, serving, self._open_again, self._make_runtime
        )
        from partibus.store.postgresql.catalog import CatalogSchema

        catalog = Catalog(CatalogSchema(joined.catalog, f"partibus {self._us.broker}"[:60], joined.record), len(names))
        if settings.config is not None:
            apply_namespaces(catalog, read_config_json(settings.config), self._clock.now_ms())
        self._keys = first_keys(catalog)
        prepare_certificate(settings, self._keys)
        credits = Credits(self._us, len(names), self._peers, self._clock, loop.time)
        self.stores.on_owners = credits.follow
        serving.grant = credits.grant
        self._front = Front(
            settings,
            loop,
            self._clock,
            catalog,
            self._access,
            {route.name: route for route in self.stores.routes},
            self.stores.runtimes.values,
            self,
            self._meters,
            credits,
            self._us.broker,
        )
        self._front.units.asked = serving.asked
        self._telemetry.begin(self._front.namespaces)
        if (fault_injections := self._registry.fault_injections()) is not None:
            self._front.broker.follow(json.loads(fault_injections))
        self._membership: Membership

    @property
    def broker(self) -> Broker:
        """The entities."""
        return self._front.broker

    async def start(self) -> None:
        """Serve; writes the ready file last.

        Raises `StartError` when no store can be opened, OSError when a port is taken.
        """
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        from partibus.store.postgresql.registry import LEASE_S

        settings = self._settings
        self._server = await listen_tls(
            self._listener,
            lambda: self._peers.make_answering(self._certificate),
            self._inbound,
            self._loop,
            settings.limits.peer.handshake_s,
        )
        self._membership = Membership(self._registry, self._us, self, self._followed, LEASE_S)
        self._has_joined = True
        try:
            await asyncio.wait_for(self._settled.wait(), SETTLE_S)
        except TimeoutError:
            if self._failed and not any(one is not None for one in self._owners()):
                raise StartError(next(iter(self._failed.values()))) from None
        ports = await self._front.listen(settings.host, settings.ports)
        self._is_serving = True
        self._membership.tell()
        brokers = [{"id": self._us.broker, "pid": os.getpid(), "stores": len(self.stores.runtimes)}]
        self.ready = ready_document(settings, self._access, os.getpid(), ports, brokers, self._keys)
        if settings.ready_file is not None:
            write_ready_file(settings.ready_file, self.ready)

    async def stop(self) -> None:
        """Tell clients to go, hand the stores over, end. Idempotent."""
        if self._is_leaving:
            return
        self._is_leaving = True
        if self._has_joined:
            self._membership.tell()
        async with AsyncExitStack() as stopping:  # the last of these first, whatever another one raises
            stopping.callback(self._lock.release)
            stopping.callback(self._front.close)
            stopping.callback(self._telemetry.close)
            stopping.callback(self._hosts.stop)
            stopping.callback(self._peers.close)
            if self._has_joined:
                stopping.callback(self._server.close)
                stopping.push_async_callback(self._membership.leave)
            stopping.push_async_callback(self._close_stores)
            stopping.push_async_callback(self._front.drain)

    async def _close_stores(self) -> None:
        closed = asyncio.Event()
        self.stores.close(closed.set)
        await closed.wait()

    def reload(self) -> None:
        """Reload the certificate from its files."""
        self._front.reload()

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

    def _owners(self) -> list[Owner | None]:
        return owners_of(len(self._places), self._members())

    def _go_on(self) -> None:
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
        self._lead(min(owner.broker for owner in present) == self._us.broker)
        if not steps.take and not self._opening and all(owner in present for owner in owners):
            reached = all(route.failure is None for route in self.stores.routes)
            if reached:
                self._settled.set()
            elif not self._settled.is_set():
                self._loop.call_later(0.05, self._go_on)

    def _lead(self, is_janitor: bool) -> None:
        """Let one of all brokers look after idle queues."""
        if is_janitor and not self._is_janitor:
            self._front.idle.begin()
        self._is_janitor = self._front.units.leads = is_janitor

    def _take(self, store_no: int) -> None:
        """Open a store without an owner; from then on it is this broker's. A store with an owner is no error."""
        self._opening.add(store_no)
        place = self._places[store_no]
        opener = self._opener_of(store_no)

        def tried(result: Any) -> None:
            if isinstance(result, BaseException):
                if store_no not in self._failed:
                    log.info("%s can't be taken over yet: %s", place.store_id, result)
                self._failed[store_no] = str(result)
                self._loop.call_later(RETRY_S, again)
                return
            if self._is_leaving:
                self._hosts.of(place).write(result.close, lambda _: self._opening.discard(store_no))
                return
            self._epochs[store_no] = result.epoch
            self._just_opened[store_no] = result
            self.stores.take(store_no, lambda runtime: self._taken(store_no, runtime))

        def again() -> None:
            self._opening.discard(store_no)
            self._go_on()

        self._hosts.of(place).write(opener, tried)

    def _opener_of(self, store_no: int) -> Opener:
        """Return the opener of a store. It lasts as long as the broker, since it remembers what it saw of the store."""
        opener = self._openers.get(store_no)
        if opener is None:
            place = self._places[store_no]
            opener = self._openers[store_no] = Opener(
                place,
                StoreOwner(*self._us),
                self._settings.data,
                evict=False,
                check_time=stored_time(self._clock, self._settings, self._front.time_jumped, self._loop),
                reported=lambda: self._registry.acknowledged.get(place.store_id),
                ended=self._ended,
            )
        return opener

    def _watch(self, late: Collection[Owner]) -> None:
        """Look at the stores that this broker would take if ``late`` brokers are lost.

        The owner of a store counts as alive until its row has not changed for the time of a lease, from the first look.
        A look now lets most of that time pass before the brokers count as lost.
        """
        members = [one._replace(is_there=one.is_there and one.owner not in late) for one in self._members()]
        for store_no in steps_of(self._us, len(self._places), members, self.stores.runtimes).take:
            if store_no not in self._opening:
                self._hosts.of(self._places[store_no]).write(self._opener_of(store_no).watch, lambda _: None)

    def _taken(self, store_no: int, runtime: StoreRuntime) -> None:
        self._opening.discard(store_no)
        self._failed.pop(store_no, None)
        self._front.forwarder.opened(store_no, runtime)
        try:
            self._front.drop_leftovers(store_no, runtime)
        except StoreUnavailable as error:
            log.warning("what deleted entities have left in %s stays for now: %s", self.stores.names[store_no], error)
        self._membership.tell()
        self._go_on()

    def _give(self, store_no: int) -> None:
        self._giving.add(store_no)

        def given() -> None:
            self._giving.discard(store_no)
            self._epochs.pop(store_no, None)
            self._membership.tell()

        self.stores.give_up(store_no, given)

    def _open_again(self, store_no: int) -> Store:
        """Open a store for its runtime, on a thread: the one just opened, and after a failure the same store anew."""
        opened = self._just_opened.pop(store_no, None)
        return self._openers[store_no]() if opened is None else opened

    def _make_runtime(self, store_no: int, open_one: Callable[[], Store]) -> StoreRuntime:
        return self._front.make_runtime(open_one, self._hosts.of(self._places[store_no]), self._clock, self._meters)

    # -- what `partibus.cluster.membership.Us` asks for ---------------------------------------------------------------

    def describe(self) -> Mapping[str, Any]:
        """Report this broker to the others."""
        names = self.stores.names
        return {
            **version()._asdict(),
            "pid": os.getpid(),
            "state": "leaving" if self._is_leaving else "serving" if self._is_serving else "starting",
            "leaving": self._is_leaving,
            "owned": {str(store_no): epoch for store_no, epoch in sorted(self._owned().items())},
            "stores": self.stores.facts(),
            "failed": {names[store_no]: why for store_no, why in self._failed.items()},
            "connections": self._front.connections,
            "namespaces": self._front.connections_by_namespace,
            "lag_ms": round(self._membership.lag_s * 1_000, 1),
            **self._front.told,
        }

    def take_used(self) -> list[int]:
        """Return the queues used since the last call."""
        return [] if self._is_janitor else self._front.idle.take_used()

    def follow(self, change: Mapping[str, Any]) -> None:
        """Follow a change that another broker announced."""
        self._front.namespaces.follow(change)

    def follow_all(self) -> None:
        """Follow the whole catalog."""
        self._front.namespaces.follow_all()

    def seen(self, brokers: Sequence[MemberInfo]) -> None:
        """React to the brokers in the catalog."""
        self._tell_who_is_gone(brokers)
        self._brokers = brokers
        there = [one for one in brokers if one.member.is_there and one.member.owner != self._us]
        self._front.units.follow(len(there) + 1, len(there) + 1)
        self._front.hear([one.facts for one in there])
        late = {one.member.owner for one in there if one.is_late}
        if not late <= self._late:
            self._watch(late)
        self._late = late
        self._go_on()

    def _tell_who_is_gone(self, brokers: Sequence[MemberInfo]) -> None:
        """Report brokers that have ended.

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

    # -- what `partibus.node.front.ClusterAdmin` asks for -------------------------------------------------------------

    def announce(self, change: Change, followed: Callable[[], None]) -> None:
        """Announce a change to the other brokers."""

        async def tell() -> None:
            try:
                await self._membership.announce(change, is_noted="rehearsals" not in change)
            except StoreUnavailable as error:
                log.warning("other brokers can't be told of a change now: %s", error)
            followed()

        task = self._loop.create_task(tell())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def health(self) -> Mapping[str, str]:
        """Return the health of each store (`ClusterAdmin`)."""
        return {store["name"]: store["trouble"] or "ok" for store in (await self.status())["stores"]}

    async def status(self) -> dict[str, Any]:
        """Return the status known here; that of other brokers is as of their last heartbeat."""
        ours = self.describe()
        said = {one.member.owner: one.facts for one in self._brokers if one.member.is_there} | {self._us: ours}
        refusals: dict[str, str] = {}
        for facts in said.values():
            refusals |= facts.get("failed", {})
        stores = []
        for route, owner in zip(self.stores.routes, self._owners(), strict=True):
            if owner is None or owner not in said:
                why = refusals.get(route.name, NOBODY)
                stores.append({"name": route.name, "owner": None, "trouble": why})
                continue
            facts = said[owner].get("stores", {}).get(route.name, {"trouble": None})
            stores.append(
                {"name": route.name, "owner": owner.broker, **facts, "trouble": facts["trouble"] or route.failure}
            )
        rows = [*(one for one in self._brokers if one.member.owner != self._us)]
        brokers = [_status_of(one.member.owner, one.facts, one.member.is_there) for one in rows]
        brokers.append(_status_of(self._us, ours, True))
        return {"brokers": sorted(brokers, key=lambda one: str(one["id"])), "stores": stores}

    async def measurements(self) -> Mapping[str, Measurements]:
        """Return the measurements of this broker and of the owners of stores that it has a channel to."""
        brokers = len(self._brokers) or 1
        own, texts = await asyncio.gather(self._front.measuring.measure(brokers), self._peers.measure(brokers))
        return {self._us.broker: own} | await unpacked(texts.items())

    def _measure(self, brokers: int, on_measured: Callable[[bytes], None]) -> None:
        """Measure for another broker."""

        async def measure() -> None:
            on_measured(packed(await self._front.measuring.measure(brokers)).encode())

        task = self._loop.create_task(measure())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def advance(self, milliseconds: int) -> int:
        """Move the manual clock (`ClusterAdmin`)."""
        raise InvalidOperation("The clock of brokers on several machines is the real one, and can't be moved.")

    async def used(self) -> Iterable[int] | None:
        """Return the queues used since the last call (`ClusterAdmin`)."""
        if not self._is_janitor:
            return None
        try:
            return await self._membership.take_used()
        except StoreUnavailable:  # nothing can be deleted now either
            return None


def _status_of(owner: Owner, facts: Mapping[str, Any], is_there: bool) -> dict[str, Any]:
    return {
        "id": owner.broker,
        "pid": facts.get("pid"),
        "incarnation": owner.incarnation,
        "state": facts.get("state", "starting") if is_there else "away",
        "stores": len(facts.get("owned", ())) if is_there else 0,
        "connections": facts.get("connections", 0) if is_there else 0,
        "namespaces": facts.get("namespaces", {}) if is_there else {},
        "restarts": 0,
        "lag_ms": facts.get("lag_ms"),
    }


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
