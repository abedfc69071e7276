"""The brokers and stores of a namespace: an operation of its `$management` node."""

from collections.abc import Mapping
from dataclasses import dataclass

from partibus.client.client import Client
from partibus.client.values import integer, maps, text


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A broker as its supervisor knows it."""

    id: str
    state: str
    """``serving``, ``starting`` or ``away``."""
    pid: int | None
    """None while it is away, as ``incarnation`` and ``lag_ms``."""
    incarnation: str | None
    """Of this run of the broker; it writes it into the stores that it owns."""
    stores: int
    connections: int
    restarts: int
    lag_ms: float | None
    """How long it took to answer a question the last time."""


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """A messaging store."""

    name: str
    owner: str | None
    """The broker that runs its partitions; None while there is none."""
    epoch: int | None
    """How often it was taken over; None while it can't be used, as ``last_commit``."""
    last_commit: int | None
    durability: str | None
    """Where a commit is once it is acknowledged: "1 copy", "2 copies, synchronous"."""
    trouble: str | None
    """Why sends or receives do not work right now; None when both do."""


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """All of them."""

    brokers: list[BrokerInfo]
    stores: list[StoreInfo]


def cluster_status(client: Client) -> ClusterStatus:
    """The same whichever broker answers. Needs the Manage right."""
    body = client.management().request("partibus:cluster-status", {})
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
