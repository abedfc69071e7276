"""The use of a broker process by its namespaces, ten times a second, and its consequences (rows R11-R13).

`partibus.units.fair_scheduler` charges the time that it measures. The rest of the process's time (commits and replies,
deliveries, requests of other brokers, the system's part) is divided by the bytes that were moved for each namespace.
Where threads wait for one another, or the machine has less time than assumed, more was measured than existed: then all
is scaled down.

A premium namespace whose units are overloaded is refused until its load falls. Each of several brokers adds up the
reports of all, about four times a second, and so all get the same result. One of them, the leader, changes the number
of units (`partibus.units.scaling`).
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from partibus.clock import Clock
from partibus.errors import PartibusError
from partibus.frontends.amqp.server import PeerProtocol
from partibus.limits import UnitLimits
from partibus.namespace.broker import Broker
from partibus.namespace.namespace_options import NamespaceOptions
from partibus.namespace.namespaces import Namespaces
from partibus.namespace.tiers import Tier
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.units.account import Asked
from partibus.units.fair_scheduler import FairScheduler
from partibus.units.scaling import LOOKS, UNITS, Load, Scaling, check_units, left_of

log = logging.getLogger(__name__)

LOOK_S: Final = 1 / LOOKS
SELDOM_S: Final = 1.0
"""The pause with one namespace without units, only to count, and with `MANY`: each takes 1.5 us."""
MANY: Final = 100
"""The number of namespaces without units above which work after decoding is charged once a second."""

Used = Mapping[str, tuple[float, float, int]]
"""`partibus.units.scaling.Load.here` by the numbers of premium namespaces, which JSON wants as texts."""


class UnitWatch:
    """One broker process's. All on the loop."""

    def __init__(
        self,
        namespaces: Namespaces,
        scheduler: FairScheduler,
        protocols: Collection[PeerProtocol],
        runtimes: Callable[[], Iterable[StoreRuntime]],
        clock: Clock,
        limits: UnitLimits,
        loop: asyncio.AbstractEventLoop,
        cpu_s: Callable[[], float],
        brokers_max: int,
    ) -> None:
        """``cpu_s``: processor time of the process so far. ``brokers_max``: as many as there may be."""
        self.leads = False
        """Whether this broker changes the number of units."""
        self.asked = Asked()
        """Requests of other brokers."""
        self._namespaces = namespaces
        self._scheduler = scheduler
        self._protocols = protocols
        self._runtimes = runtimes
        self._clock = clock
        self._limits = limits
        self._loop = loop
        self._cpu_s = cpu_s
        self._last_cpu_s = cpu_s()
        self._brokers = 1
        self._brokers_max = brokers_max
        self._loads: dict[int, Load] = {}
        """The loads of the premium namespaces."""
        self._scalings: dict[int, Scaling] = {}
        self._elsewhere: Used = {}
        self._looks = 0
        self._timer: asyncio.TimerHandle | None = None
        self._interval_s = 0.0
        namespaces.check_units = self._check
        namespaces.on_changed.append(lambda _: self._follow())
        namespaces.on_deleted.append(lambda _: self._follow())

    def begin(self) -> None:
        """Start, once the namespaces are known."""
        self._follow()

    def stop(self) -> None:
        """Stop measuring. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- among several brokers ---------------------------------------------------------------------------------------

    def follow(self, brokers: int, brokers_max: int) -> None:
        """Apply the present and the largest number of broker processes."""
        if (brokers, brokers_max) != (self._brokers, self._brokers_max):
            self._brokers, self._brokers_max = max(1, brokers), max(brokers, brokers_max)
            self._follow()

    def add_up(self, elsewhere: Iterable[Mapping[str, Any]]) -> None:
        """Add the other brokers' use in their last second."""
        sums: dict[str, tuple[float, float, int]] = {}
        for used in elsewhere:
            for number, (busy_s, all_s, held_bytes) in used.items():
                busy, total, held = sums.get(number, (0.0, 0.0, 0))
                sums[number] = (busy + busy_s, total + all_s, held + held_bytes)
        self._elsewhere = sums

    @property
    def used(self) -> Used:
        """The use of premium namespaces, for the other brokers."""
        return {str(number): load.here for number, load in self._loads.items()}

    @property
    def units(self) -> int:
        """The units of all premium namespaces."""
        return sum(_units(broker) for broker in self._namespaces)

    # -- what namespaces may have ------------------------------------------------------------------------------------

    def _check(
        self, name: str, old: NamespaceOptions | None, new: NamespaceOptions, others: Iterable[NamespaceOptions]
    ) -> None:
        """Check a change of a namespace's units. Raises `ArgumentError` when the brokers have too few left.

        A namespace keeps the units that it has.
        """
        if _units_of(new) > (0 if old is None else _units_of(old)):
            theirs = sum(map(_units_of, others))
            check_units(name, new.units, theirs, self._brokers_max, self._limits.per_broker)

    def _follow(self) -> None:
        """Namespaces or brokers have changed."""
        premium = {broker.namespace.record.namespace_id: broker for broker in self._namespaces if _units(broker)}
        self._loads = {number: self._loads.get(number) or Load() for number in premium}
        self._scalings = {number: self._scalings.get(number) or Scaling() for number in premium}
        for broker in self._namespaces:
            own = _units(broker)
            self._scheduler.follow(broker.account, own / self._brokers if own else None)
            if not own:
                account = broker.account
                account.closed, account.cpu_load, account.memory_load, account.held_bytes = False, 0.0, 0.0, 0
                broker.throttle.overload(None)
        self._scheduler.left = left_of(self.units, self._brokers, self._limits.per_broker)
        self._scheduler.all = self._scheduler.left + self.units / self._brokers
        interval_s = LOOK_S if premium or 1 < len(self._namespaces) <= MANY else SELDOM_S
        if interval_s != self._interval_s:
            self._interval_s = interval_s
            self._deal()  # what was used until now is not of the first tenth
            self.stop()
            self._timer = self._loop.call_later(interval_s, self._look)

    # -- measuring ---------------------------------------------------------------------------------------------------

    def _deal(self) -> dict[int, tuple[float, float]]:
        """Charge the process's time since the last call.

        Returns seconds of work and of refusals, by the numbers of namespaces.
        """
        now_s = self._cpu_s()
        spent_ns, self._last_cpu_s = (now_s - self._last_cpu_s) * 1e9, now_s
        accounts = {broker.namespace.record.namespace_id: broker.account for broker in self._namespaces}
        for row, asked_bytes in self.asked.take().items():
            queue = self._namespaces.queue_of(row)
            account = None if queue is None else accounts.get(queue.namespace_id)
            if account is not None:
                account.moved += asked_bytes
        timed_ns = sum([account.busy_ns + account.closed_ns for account in accounts.values()])
        moved = sum([account.moved for account in accounts.values()])
        scale = min(1.0, spent_ns / timed_ns) if timed_ns else 1.0
        rest_ns = max(0.0, spent_ns - timed_ns) / moved if moved else 0.0
        dealt = {}
        for number, account in accounts.items():
            later_ns = rest_ns * account.moved
            busy_ns, closed_ns = account.busy_ns * scale, account.closed_ns * scale
            if account.closed:
                closed_ns += later_ns
            else:
                busy_ns += later_ns
            account.credit_ns -= int(later_ns)
            account.busy_ns = account.closed_ns = account.moved = 0
            account.cpu_s += (busy_ns + closed_ns) / 1e9
            dealt[number] = (busy_ns / 1e9, closed_ns / 1e9)
        return dealt

    def _look(self) -> None:
        self._timer = self._loop.call_later(self._interval_s, self._look)
        self._looks += 1
        if self._looks % LOOKS == 0:
            self._weigh()
        dealt = self._deal()
        for broker in self._namespaces:
            number = broker.namespace.record.namespace_id
            load = self._loads.get(number)
            if load is not None:
                busy_s, closed_s = dealt[number]
                share = min(_units(broker), self._brokers * self._limits.per_broker) / self._limits.per_broker
                busy_there, all_there, held_there = self._elsewhere.get(str(number), (0.0, 0.0, 0))
                load.elsewhere = (busy_there, all_there, held_there)
                held_bytes = broker.account.held_bytes
                load.look(busy_s, busy_s + closed_s, held_bytes, share, int(share * self._limits.memory_bytes))
                broker.account.closed = load.exhausted is not None
                broker.account.cpu_load, broker.account.memory_load = load.cpu, load.memory
                broker.throttle.overload(None if load.exhausted is None else load.exhausted.value)
                if self.leads and self._looks % LOOKS == 0:
                    self._scale(broker, load.cpu)

    def _weigh(self) -> None:
        """Measure the memory of premium namespaces that is released without a new request.

        It is released when clients read, settle or leave, or locks expire. Other memory must not count, or a
        namespace refused because of it would be refused for ever.
        """
        of = {broker.account: 0 for broker in self._namespaces if _units(broker)}
        for protocol in self._protocols:
            if protocol.account in of:
                of[protocol.account] += protocol.held_bytes
        rows = {
            placement.partition_row: broker.account
            for broker in self._namespaces
            if broker.account in of
            for queue in broker.namespace
            if broker.in_use(queue) is not None
            for placement in queue.partitions
        }
        for runtime in self._runtimes() if rows else ():
            for row, held_bytes in runtime.held_bytes():
                if row in rows:
                    of[rows[row]] += held_bytes
        for account, held_bytes in of.items():
            account.held_bytes = held_bytes

    # -- scaling -----------------------------------------------------------------------------------------------------

    def _scale(self, broker: Broker, cpu: float) -> None:
        record = broker.namespace.record
        options = record.options
        least, most = options.units_min, options.units_max
        if least == most:
            return
        units = self._scalings[record.namespace_id].look(self._clock.now_ms(), cpu, options.units, least, most)
        free = self._brokers_max * self._limits.per_broker - self.units + options.units
        if units > options.units:  # it keeps what it has, also while few brokers are present
            units = max([options.units, *(one for one in UNITS if one <= min(units, free))])
        if units == options.units:
            return
        try:
            self._namespaces.update(record.name, lambda options: replace(options, units=units))
            log.info("namespace %s has %d units instead of %d", record.name, units, options.units)
        except PartibusError as error:
            log.warning("namespace %s can't get %d units now: %s", record.name, units, error)


def _units(broker: Broker) -> int:
    """Return the namespace's units; 0: none."""
    return _units_of(broker.namespace.record.options)


def _units_of(options: NamespaceOptions) -> int:
    return options.units if options.tier is Tier.PREMIUM else 0
