"""The membership of a broker among those of a namespace on several machines, and the reports of the others (D19).

Once a second, and whenever a broker has news, it reports its stores to a registry that all reach (the catalog's
server), and reads the reports of the others. While the registry is away every broker keeps its stores, by the lease in
the store itself.

A broker counts as ended when its row has not changed for as long as a lease, on the clock of the broker that reads it:
the clock of the registry may be set. After an outage of the registry that time begins anew, since no broker could
write.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple, Protocol

from partibus.cluster.assignment import Member
from partibus.cluster.ownership import Identity
from partibus.errors import InvalidOperation, StoreUnavailable

log = logging.getLogger(__name__)

BEAT_S = 1.0
RETRY_S = 0.5
CATCH_UP_S = 0.1
"""The time until the next heartbeat when the catalog could not be read, so a change was not followed."""

HEARTBEATS_SEEN = 3
"""Readings of a broker's row, all different, until it surely has reported what happened before the first one: the
second heartbeat may have begun earlier, the third began after the second.
"""

LATE_S = 1.0
"""A broker is late when a second reading of its row has found no heartbeat."""

Row = tuple[str, str, str, str, int, str]
"""A broker: its name, incarnation, address (empty after an orderly end), the version of its row, which each of its
heartbeats changes, the version of the last change that it has applied, and its facts as JSON.
"""


class HeartbeatReply(Protocol):
    """The answer of `Registry.beat`."""

    @property
    def brokers(self) -> Sequence[Row]:
        """The rows of all brokers."""
        ...

    @property
    def changes(self) -> Sequence[tuple[int, str]]:
        """Version and JSON of each change that this broker has not applied yet, in order."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether these are all; False: earlier changes were deleted."""
        ...


class Registry(Protocol):
    """`partibus.store.postgresql.registry.Registry`; its calls block. They raise `StoreUnavailable`."""

    def beat(self, followed: int, facts: str, used: Iterable[int], *, tell: bool) -> HeartbeatReply:
        """Report this broker, and read the news. Raises `InvalidOperation` if another run has taken its name."""
        ...

    def wait(self, seconds: float) -> None:
        """Wait until an announcement or `wake`, at most ``seconds``."""
        ...

    def wake(self) -> None:
        """Let `wait` return."""
        ...

    def announce(self, body: Mapping[str, Any]) -> None:
        """Announce to all brokers a change that the catalog does not hold."""
        ...

    def take_used(self) -> list[int]:
        """Return the entities that other brokers have used since the last call."""
        ...

    def leave(self) -> None:
        """Report an orderly end. Never raises."""
        ...

    def close(self) -> None:
        """Close the connection. Idempotent."""
        ...


class MemberInfo(NamedTuple):
    """A broker of the namespace."""

    member: Member
    address: str
    """HOST:PORT of its listener for other brokers."""
    followed: int
    facts: Mapping[str, Any]
    is_late: bool
    """Whether its heartbeat is overdue: it may be lost."""


class Us(Protocol):
    """The interface of the member broker. All calls are on the loop."""

    def describe(self) -> Mapping[str, Any]:
        """Return the report for the others, as JSON values.

        In it are ``owned``, epochs by the stores' numbers as texts, and ``leaving``.
        """
        ...

    def take_used(self) -> list[int]:
        """Return the ids of the entities used since the last call."""
        ...

    def follow(self, change: Mapping[str, Any]) -> None:
        """Apply a change that another broker has made. Idempotent.

        Raises `StoreUnavailable`; then the change is delivered again.
        """
        ...

    def follow_all(self) -> None:
        """Reload everything, since anything may have changed. Raises as `follow` does."""
        ...

    def seen(self, brokers: Sequence[MemberInfo]) -> None:
        """Take the reports of all brokers, this one included."""
        ...

    def replaced(self, why: str) -> None:
        """End, since another run of this broker has taken its place."""
        ...


class Membership:
    """The membership of one broker. All calls are on the loop; the registry is asked on a thread of its own."""

    def __init__(
        self,
        registry: Registry,
        us: Identity,
        here: Us,
        followed: int,
        lease_s: float,
        now_s: Callable[[], float],
    ) -> None:
        """Set up the membership.

        ``followed`` is the last change when the catalog was read, ``lease_s`` the registry's lease. ``now_s`` is a
        clock that nobody sets.
        """
        self.followed = followed
        self.failure: str | None = None
        """The reason why the registry can't be asked now."""
        self.lag_s = 0.0
        """The duration of its last answer."""
        self._registry = registry
        self._us = us
        self._here = here
        self._lease_s = lease_s
        self._now_s = now_s
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "partibus-membership")
        self._rows: dict[Identity, tuple[str, float]] = {}
        """The version of each broker's row, and the time at which it was first read."""
        self._told = ""
        """The last reported part of the report that others must know at once."""
        self._unsaid: list[int] = []
        """Entities that were used and are not reported yet."""
        self._announced: list[_Announced] = []
        self._awaited: list[_Awaited] = []
        self.absences = 0
        """How often this broker was silent for a lease, so that others may have done without it, or lost the registry,
        which may have lost reports of use, or its answer with them.
        """
        self._reported_s = self._now_s()
        """The time at which its last successful heartbeat began."""
        self._begun = 0
        """The number of heartbeats begun."""
        self._unreadable: dict[Identity, str] = {}
        """The facts that could not be read last, by broker: they are logged once."""
        self._ending = False
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(_report)

    # -- for the broker ----------------------------------------------------------------------------------------------

    def tell(self) -> None:
        """Send a report soon: this broker's has changed, or it wants the others'."""
        self._registry.wake()

    async def announce(self, change: Mapping[str, Any], *, is_noted: bool) -> None:
        """Announce a change, and return when all brokers have applied it.

        ``is_noted``: it was stored with the change itself. Waits while the registry is away. Raises `StoreUnavailable`
        for one that can't be stored.
        """
        if not is_noted:
            await self._ask(self._registry.announce, change)
        announced = _Announced(self._begun + 1, None, self._loop.create_future())
        self._announced.append(announced)
        self.tell()
        await announced.followed

    async def take_used(self) -> list[int]:
        """Return the entities that other brokers have used since the last call. Raises `StoreUnavailable`."""
        used: list[int] = await self._ask(self._registry.take_used)
        return used

    async def all_report(self) -> bool:
        """Wait until each other broker has reported its use before this call.

        Returns False when one of them is silent and did not end in order, or when the registry is away.
        """
        awaited = _Awaited(self._begun + 1, {}, self._loop.create_future())
        self._awaited.append(awaited)
        return await awaited.reported

    async def leave(self) -> None:
        """Leave the membership: this broker has no stores."""
        self._ending = True
        self._give_up_waiting()
        with ExitStack() as leaving:  # the last of these first, also after an exception
            leaving.callback(self._thread.shutdown)
            leaving.callback(self._registry.close)
            self._registry.wake()
            await asyncio.gather(self._task, return_exceptions=True)
            await self._loop.run_in_executor(self._thread, self._registry.leave)

    # -- beats -------------------------------------------------------------------------------------------------------

    async def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        answer = self._loop.run_in_executor(self._thread, call, *arguments)
        self._registry.wake()
        try:
            return await answer
        except StoreUnavailable:
            self.absences += 1
            raise

    async def _run(self) -> None:
        while not self._ending:
            try:
                await self._beat()
            except StoreUnavailable as error:
                if self.failure is None:
                    log.warning("what other brokers do can't be seen: %s", error)
                self.failure = str(error)
                self.absences += 1
                self._rows.clear()
                self._give_up_waiting()
                await asyncio.sleep(RETRY_S)
            except InvalidOperation as error:
                self._here.replaced(str(error))
                return
            except Exception as error:
                # A bug of ours. Without heartbeats this broker would count as lost, and every announcement would wait.
                log.exception("internal error: a heartbeat failed; the next one follows in %g s", RETRY_S)
                self.failure = f"internal error: {type(error).__name__}: {error}"
                await asyncio.sleep(RETRY_S)

    async def _beat(self) -> None:
        self._begun = number = self._begun + 1
        facts = self._here.describe()
        self._unsaid += self._here.take_used()
        urgent = json.dumps([facts["owned"], facts["leaving"], self.followed])
        used, self._unsaid = self._unsaid, []
        asked_s = self._now_s()
        try:
            heard = await self._loop.run_in_executor(
                self._thread,
                lambda: self._registry.beat(self.followed, json.dumps(facts), used, tell=urgent != self._told),
            )
        except Exception:
            self._unsaid += used
            raise
        self._told = urgent
        self.lag_s = self._now_s() - asked_s
        self.absences += self._now_s() - self._reported_s > self._lease_s
        self._reported_s = asked_s
        if self.failure is not None:
            log.warning("other brokers can be seen again")
        self.failure = None
        latest = heard.changes[-1][0] if heard.changes else self.followed
        caught_up = self._follow(heard)
        brokers = [self._present(row, asked_s) for row in heard.brokers if row[2]]
        self._rows = {one.member.owner: self._rows[one.member.owner] for one in brokers}
        self._here.seen(brokers)
        self._see_followed(number, latest, brokers)
        self._see_reports(number, brokers)
        if not caught_up:
            await asyncio.sleep(CATCH_UP_S)
        elif self.followed == latest and heard.changes:
            return  # say so at once: a caller waits for it
        await self._loop.run_in_executor(self._thread, self._registry.wait, BEAT_S)

    def _follow(self, heard: HeartbeatReply) -> bool:
        try:
            if not heard.is_complete:
                self._here.follow_all()
            for version, body in heard.changes:
                self._follow_one(version, body)
                self.followed = version
        except StoreUnavailable as error:
            log.warning("a change of another broker can't be followed yet: %s", error)
            return False
        return True

    def _follow_one(self, version: int, body: str) -> None:
        """Apply one change. One that can't be applied must not stand in the way of later ones: read everything."""
        try:
            self._here.follow(json.loads(body))
        except StoreUnavailable:
            raise
        except Exception:
            log.exception("internal error: change %d of another broker can't be applied; all is read again", version)
            self._here.follow_all()

    def _present(self, row: Row, asked_s: float) -> MemberInfo:
        """Judge a broker by its row. A pause of this process while it asked does not count as silence of others."""
        broker, incarnation, address, version, followed, said = row
        owner = Identity(broker, incarnation)
        if self._rows.get(owner, ("",))[0] != version:
            self._rows[owner] = version, self._now_s()
        silent_s = asked_s - self._rows[owner][1]
        facts, owned = self._read_facts(owner, said)
        member = Member(owner, silent_s <= self._lease_s, bool(facts.get("leaving")), owned)
        return MemberInfo(member, address, followed, facts, silent_s >= LATE_S)

    def _read_facts(self, owner: Identity, said: str) -> tuple[dict[str, Any], dict[int, int]]:
        """Read the facts and the owned stores of a broker; none of a broker of another version that can't be read.

        Its stores stay its own all the same: their leases say so.
        """
        try:
            facts = json.loads(said)
            owned = {int(store_no): int(epoch) for store_no, epoch in facts.get("owned", {}).items()}
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            if self._unreadable.get(owner) != said:
                self._unreadable = {owner: said}
                log.warning(
                    "the report of broker %s (incarnation %s) can't be read (%s); let all brokers have one version of "
                    "partibus",
                    *owner,
                    error,
                )
            return {}, {}
        return facts, owned

    def _see_followed(self, number: int, latest: int, brokers: Sequence[MemberInfo]) -> None:
        """Note how far the brokers have followed.

        A missing one is not waited for: it reads everything when it returns.
        """
        slowest = min(
            (one.followed for one in brokers if one.member.is_there and one.member.owner != self._us),
            default=self.followed,
        )
        waiting, self._announced = self._announced, []
        for announced in waiting:
            version = announced.version
            if version is None and number >= announced.beat:
                version = latest
            if version is not None and min(slowest, self.followed) >= version:
                announced.followed.set_result(None)
            else:
                self._announced.append(announced._replace(version=version))

    def _see_reports(self, number: int, brokers: Sequence[MemberInfo]) -> None:
        """Note the brokers that have reported since someone waits for all of them."""
        others = [one.member for one in brokers if one.member.owner != self._us]
        waiting, self._awaited = self._awaited, []
        for awaited in waiting:
            if number < awaited.beat:
                self._awaited.append(awaited)
                continue
            for one in others:
                awaited.seen.setdefault(one.owner, set()).add(self._rows[one.owner][0])
            if not all(one.is_there for one in others):
                awaited.tell(False)
            elif all(len(awaited.seen[one.owner]) >= HEARTBEATS_SEEN for one in others):
                awaited.tell(True)
            else:
                self._awaited.append(awaited)

    def _give_up_waiting(self) -> None:
        waiting, self._awaited = self._awaited, []
        for awaited in waiting:
            awaited.tell(False)


class _Awaited(NamedTuple):
    """A wait for the reports of all brokers."""

    beat: int
    """The number of the first heartbeat that began after it."""
    seen: dict[Identity, set[str]]
    """The versions of each broker's row since."""
    reported: asyncio.Future[bool]

    def tell(self, has_reported: bool) -> None:
        """End the wait."""
        if not self.reported.done():
            self.reported.set_result(has_reported)


class _Announced(NamedTuple):
    """A change that all brokers should apply."""

    beat: int
    """The number of the first heartbeat that began after it was made."""
    version: int | None
    """A version at least as high as its own; known after that heartbeat."""
    followed: asyncio.Future[None]


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("internal error: the broker has left the cluster membership", exc_info=error)
