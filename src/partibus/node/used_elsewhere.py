"""The use of queues through the other brokers of several machines, for the broker that deletes idle queues."""

from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from partibus.cluster.ownership import Identity
from partibus.errors import StoreUnavailable


class Reports(Protocol):
    """The reports of the other brokers; `partibus.cluster.membership.Membership` is one."""

    absences: int
    """How often this broker was silent for a lease or lost the catalog: it may have missed reports of use."""

    async def take_used(self) -> list[int]:
        """Return the entities that other brokers have used since the last call. Raises `StoreUnavailable`."""
        ...

    async def all_report(self) -> bool:
        """Wait until each other broker has reported its use before this call; return False if one is silent."""
        ...


class Lead(Protocol):
    """Whether this broker deletes idle queues; `partibus.node.unit_watch.UnitWatch` knows it."""

    leads: bool


class UsedElsewhere:
    """Knows the queues used through the other brokers.

    ``on_unknown`` is called when use may not be known, so that every queue counts as just used.
    """

    def __init__(self, reports: Reports, lead: Lead, on_unknown: Callable[[], None]) -> None:
        self._reports = reports
        self._lead = lead
        self._on_unknown = on_unknown
        self._runs: Collection[Identity] = ()
        """The brokers last seen."""
        self._absences = 0
        """The number of absences that are taken into account."""

    def see(self, brokers: Collection[Identity]) -> None:
        """Take the brokers of the cluster. Use through the former run of a broker may not be known."""
        before = {one.broker: one for one in self._runs}
        if any(before.get(one.broker, one) != one for one in brokers):
            self._on_unknown()
        self._runs = brokers

    async def take(self, *, surely: bool = False) -> Iterable[int] | None:
        """Return the queues used since the last call.

        ``surely``: after a heartbeat of each broker that began later. None while a broker is silent: its clients may
        still reach its stores.
        """
        if not self._lead.leads:
            return None
        if surely and not (await self._reports.all_report() and self._lead.leads):
            return None
        try:
            used = await self._reports.take_used()
        except StoreUnavailable:  # nothing can be deleted now either; `absences` counts it
            return None
        if self._reports.absences != self._absences:  # another broker may have learned of use, or nobody
            self._absences = self._reports.absences
            self._on_unknown()
        return used
