"""The brokers and stores of a namespace: an operation of its `$management` node."""

from collections.abc import Mapping
from dataclasses import dataclass

from partibus.client.client import Client
from partibus.client.values import integer, maps, text


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


def cluster_status(client: Client) -> ClusterStatus:
    """Return the state of the cluster, which is the same from every broker. Needs the Manage right."""
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
