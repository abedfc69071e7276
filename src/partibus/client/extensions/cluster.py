"""The brokers and stores of a server: their state, backups, injected faults, and the partitions of entities.

All are operations of the namespace's `$management` node. Every call raises the `ClientError` of the broker's reply.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from partibus.amqp.codec.types import Int
from partibus.client.management import Requests, integer, items, maps, text

PLAN_VERSION: Final = 1
"""The version of plan files, which `partibus pipeline plan` writes and `partibus partition rebalance` reads."""
BACKUP_S: Final = 24 * 3600.0
"""The time limit of a backup: long, because a lost broker shows by its connection."""


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A broker as its supervisor sees it."""

    id: str
    state: str
    """``serving``, ``starting`` or ``away``."""
    pid: int | None
    """The process id; None while the broker is away, as are ``incarnation`` and ``lag_ms``."""
    incarnation: str | None
    """The id of this run of the broker, which writes it into the stores that it owns."""
    stores: int
    connections: int
    restarts: int
    lag_ms: float | None
    """The duration of the broker's last answer to a probe."""


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """A messaging store."""

    name: str
    owner: str | None
    """The broker that runs the store's partitions; None if there is none."""
    epoch: int | None
    """The number of ownership changes; None while the store is unavailable, as is ``last_commit``."""
    last_commit: int | None
    durability: str | None
    """The places where an acknowledged commit is stored: "1 copy", "2 copies, synchronous"."""
    trouble: str | None
    """The reason why sends or receives fail at present; None when both work."""


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The brokers and stores of a namespace."""

    brokers: list[BrokerInfo]
    stores: list[StoreInfo]


def cluster_status(client: Requests) -> ClusterStatus:
    """Return the state of the cluster, which is the same from every broker. Needs the Manage right."""
    body = client.request("", "partibus:cluster-status", {})
    return ClusterStatus(
        [
            BrokerInfo(
                text(one, "id"),
                text(one, "state"),
                _number(one, "pid"),
                _text(one, "incarnation"),
                integer(one, "stores"),
                integer(one, "connections"),
                integer(one, "restarts"),
                _lag(one),
            )
            for one in maps(body, "brokers")
        ],
        [
            StoreInfo(
                text(one, "name"),
                _text(one, "owner"),
                _number(one, "epoch"),
                _number(one, "last_commit"),
                _text(one, "durability"),
                _text(one, "trouble"),
            )
            for one in maps(body, "stores")
        ],
    )


def _number(one: Mapping[str, object], key: str) -> int | None:
    return None if one.get(key) is None else integer(one, key)


def _text(one: Mapping[str, object], key: str) -> str | None:
    return None if one.get(key) is None else text(one, key)


def _lag(one: Mapping[str, object]) -> float | None:
    value = one.get("lag_ms")
    return float(value) if isinstance(value, int | float) else None


class BackupInfo(NamedTuple):
    """A completed backup."""

    stores: dict[str, int]
    """The size in bytes of each store's copy, by store name."""
    left_out: list[str]
    """The names of stores that the backup does not contain."""
    is_one_moment: bool
    """Whether all copies show the same moment."""


def back_up(client: Requests, directory: Path, stores: Sequence[str] = ()) -> BackupInfo:
    """Have the broker back up all stores, or some, to a directory of its own machine."""
    body: dict[str, object] = {"directory": str(directory)}
    if stores:
        body["stores"] = list(stores)
    reply = client.request("", "partibus:back-up", body, timeout=BACKUP_S)
    sizes = reply.get("stores")
    copied = {str(name): int(size) for name, size in sizes.items()} if isinstance(sizes, dict) else {}
    return BackupInfo(copied, [str(name) for name in items(reply, "left_out")], reply.get("is_one_moment") is True)


@dataclass(frozen=True, slots=True)
class FaultInjectionInfo:
    """A fault injected into a store, or into one partition of an entity."""

    store: str
    """The store; empty for a partition."""
    entity: str
    partition: int
    fails: bool
    delay_ms: int
    """The delay of every command, unless the commands fail."""


class FaultInjections:
    """Fault injection on a namespace.

    A target is a store, or an entity and some of its partitions (all if none are named).
    """

    def __init__(self, client: Requests) -> None:
        self._client = client

    def fail(self, *, store: str = "", entity: str = "", partitions: Sequence[int] = ()) -> None:
        """Make the broker treat the target as lost."""
        self._client.request("", "partibus:rehearse-failure", _target(store, entity, partitions))

    def slow(self, delay_ms: int, *, store: str = "", entity: str = "", partitions: Sequence[int] = ()) -> None:
        """Delay every command to the target."""
        body = _target(store, entity, partitions) | {"delay-ms": delay_ms}
        self._client.request("", "partibus:rehearse-delay", body)

    def heal(self, *, store: str = "", entity: str = "", partitions: Sequence[int] = ()) -> int:
        """End the faults of a target, or all faults without a target; return how many ended."""
        body = _target(store, entity, partitions) if store or entity else {"all": True}
        return integer(self._client.request("", "partibus:end-rehearsals", body), "ended")

    def all(self) -> list[FaultInjectionInfo]:
        """Return all current faults."""
        found = maps(self._client.request("", "partibus:list-rehearsals", {}), "rehearsals")
        return [
            FaultInjectionInfo(
                text(one, "store"),
                text(one, "entity"),
                integer(one, "partition"),
                one.get("fails") is True,
                integer(one, "delay-ms"),
            )
            for one in found
        ]


def _target(store: str, entity: str, partitions: Sequence[int]) -> dict[str, object]:
    if store:
        return {"store": store}
    target: dict[str, object] = {"entity": entity}
    if partitions:
        target["partitions"] = [Int(partition) for partition in partitions]
    return target


class Partitions:
    """The partitions of the entities of a namespace, and moves of slots between them."""

    def __init__(self, client: Requests) -> None:
        self._client = client

    def of(self, entity: str) -> dict[str, object]:
        """Return ``partitions``, ``moves`` in progress and the ``history`` of moves."""
        return self._client.request("", "partibus:list-partitions", {"entity": entity})

    def rebalance(
        self,
        entity: str,
        *,
        dry_run: bool = False,
        any_order: bool = False,
        slots: Sequence[Sequence[int]] | None = None,
    ) -> dict[str, object]:
        """Move hot slots to less busy partitions, or only plan it; return the plan.

        ``slots`` are (first slot, last slot, partition) of a plan, which is carried out instead.
        """
        body: dict[str, object] = {"entity": entity, "dry-run": dry_run, "any-order": any_order}
        if slots is not None:
            body["slots"] = [[Int(number) for number in run] for run in slots]
        return self._client.request("", "partibus:rebalance-partitions", body)
