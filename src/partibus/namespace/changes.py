"""Changes and what follows them: announcements to other brokers, new access policies, deletion of dropped partitions.

The rows of deleted entities' partitions are deleted as soon as their store can be used. The catalog records such
partitions until the rows are deleted, so a stop of the broker postpones that to the next start.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from partibus.errors import EntityNotFound
from partibus.namespace.access import AccessPolicies, SasPolicy
from partibus.namespace.namespace import Namespace
from partibus.namespace.policies import check_not_fixed, policy_path, regenerated, with_policy, without
from partibus.routing.partitions import Numbers, PartitionHandle

Change = Mapping[str, Any]
"""A change for other brokers, as JSON values.

``entity`` is the path of an entity that was made, changed or deleted (empty: the namespace, whose policies changed) in
the ``namespace`` of that number. ``rehearsals`` are all injected faults. ``namespaces``: a namespace was made, changed
or deleted.
"""

Announce = Callable[[Change, Callable[[], None]], None]
"""Announces a change to the other brokers, and calls when all have followed."""


def nobody_else(change: Change, followed: Callable[[], None]) -> None:
    """Announce to no one: the `Announce` of a broker that is alone."""
    followed()


class Announcer:
    """The announcements of one broker, for all of its namespaces."""

    def __init__(self, announce: Announce = nobody_else) -> None:
        self._announce = announce
        self._last = _Announcement()
        self._last.end()

    @property
    def is_alone(self) -> bool:
        """Whether there are no other brokers."""
        return self._announce is nobody_else

    def spread(self, change: Change) -> None:
        """Announce a change to the others."""
        self._last = _Announcement()
        self._announce(change, self._last.end)

    def when_followed(self, call: Callable[[], None]) -> None:
        """Call when every broker follows the last change; at once where there is only this one.

        The caller asks right after the change.
        """
        if self._last.followed:
            call()
        else:
            self._last.calls.append(call)


class _Announcement:
    """A change that other brokers may not have followed yet."""

    __slots__ = ("calls", "followed")

    def __init__(self) -> None:
        self.followed = False
        self.calls: list[Callable[[], None]] = []

    def end(self) -> None:
        self.followed = True
        calls, self.calls = self.calls, []
        for call in calls:
            call()


class PolicyChanges:
    """The changes of policies in one namespace. ``path`` names an entity; empty, the namespace itself."""

    def __init__(
        self,
        namespace: Namespace,
        access: AccessPolicies,
        catch_up: Callable[[str], None],
        tell: Callable[[str], None],
    ) -> None:
        """``catch_up`` with what other brokers have made of a path, and ``tell`` them of a change."""
        self._namespace = namespace
        self._access = access
        self._catch_up = catch_up
        self._tell = tell

    def of(self, path: str) -> tuple[SasPolicy, ...]:
        """Return the present policies. Raises `EntityNotFound`."""
        return self._namespace.entity(path).policies if path else tuple(self._access)

    def set(self, path: str, policy: SasPolicy) -> SasPolicy:
        """Make or change a policy; empty keys are generated.

        Raises `ArgumentError`, `EntityNotFound`, `QuotaExceeded`, and `EntityExists` for a policy of the keys file.
        """
        self._change(path, policy.name, lambda known: with_policy(known, policy))
        return self._find(path, policy.name)

    def regenerate_key(self, path: str, name: str, *, secondary: bool = False) -> SasPolicy:
        """Replace a key; tokens that were signed with the old one become invalid. Raises `EntityNotFound`."""
        self._change(path, name, lambda known: regenerated(known, path, name, secondary=secondary))
        return self._find(path, name)

    def delete(self, path: str, name: str) -> None:
        """Delete a policy; its keys and tokens become invalid. Raises `EntityNotFound`."""
        self._change(path, name, lambda known: without(known, path, name))

    def _change(self, path: str, name: str, change: Callable[[Sequence[SasPolicy]], Iterable[SasPolicy]]) -> None:
        self._catch_up(path)
        if path:
            queue = self._namespace.change(path, lambda options: options, policies=change)
            self._access.follow(queue.name, queue.policies)
        else:
            check_not_fixed(self._access.is_fixed(name), name)
            self._namespace.change_policies(change)
            self._access.follow("", self._namespace.policies)
        self._tell(path)

    def _find(self, path: str, name: str) -> SasPolicy:
        for policy in self.of(path):
            if policy.name == name:
                return policy
        raise EntityNotFound(policy_path(path, name))


FORGOTTEN_AT_ONCE = 512
"""Partitions whose end the catalog is told in one change."""


class DroppedPartition:
    """One of them. A store that fails in between is asked again when it is back (row A2)."""

    __slots__ = ("_numbers", "_on_gone", "_partition", "_receiver")

    def __init__(self, partition: PartitionHandle, numbers: Numbers, on_gone: Callable[[int], None]) -> None:
        """``on_gone`` gets the row when nothing is left."""
        self._partition = partition
        self._numbers = numbers
        self._receiver = 0
        """Waits for no messages: that its store fails is told to receivers."""
        self._on_gone = on_gone

    def start(self) -> None:
        """Ask the store, now or when it can be used."""
        if not self._partition.available:
            self._partition.when_usable(self.start)
            return
        self._receiver = self._numbers.next()
        self._partition.register(self._receiver, self._failed)
        self._partition.drop(self._gone)

    def _failed(self, _: Any) -> None:
        self._partition.unregister(self._receiver)
        self._partition.when_usable(self.start)

    def _gone(self, row: int) -> None:
        self._partition.unregister(self._receiver)
        self._on_gone(row)


def in_batches(count: int, forget: Callable[[list[int]], None]) -> Callable[[int], None]:
    """Return a function that takes each of ``count`` finished rows and passes them to ``forget``, many at a time.

    Each call of ``forget`` costs the catalog a sync.
    """
    missing = count
    gone: list[int] = []

    def dropped(row: int) -> None:
        nonlocal missing
        missing -= 1
        gone.append(row)
        if not missing or len(gone) >= FORGOTTEN_AT_ONCE:
            rows = gone.copy()
            gone.clear()
            forget(rows)

    return dropped


def drop(partitions: Sequence[PartitionHandle], numbers: Numbers, forget: Callable[[list[int]], None]) -> None:
    """Delete the rows of partitions in their stores; ``forget`` gets finished ones, many at a time."""
    dropped = in_batches(len(partitions), forget)
    for partition in partitions:
        DroppedPartition(partition, numbers, dropped).start()
