"""Fault injection for partitions and stores: operations of the namespace's `$management` node."""

from collections.abc import Sequence
from dataclasses import dataclass

from partibus.amqp.codec.types import Int
from partibus.client.client import Client
from partibus.client.values import integer, maps, text


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

    A target is a store, or an entity and some of its partitions (all if none are named). Every call raises the
    `ClientError` of the broker's reply.
    """

    def __init__(self, client: Client) -> None:
        self._node = client.management()

    def fail(self, *, store: str = "", entity: str = "", partitions: Sequence[int] = ()) -> None:
        """Make the broker treat the target as lost."""
        self._node.request("partibus:rehearse-failure", _target(store, entity, partitions))

    def slow(self, delay_ms: int, *, store: str = "", entity: str = "", partitions: Sequence[int] = ()) -> None:
        """Delay every command to the target."""
        body = _target(store, entity, partitions) | {"delay-ms": delay_ms}
        self._node.request("partibus:rehearse-delay", body)

    def heal(self, *, store: str = "", entity: str = "", partitions: Sequence[int] = ()) -> int:
        """End the faults of a target, or all faults without a target; return how many ended."""
        body = _target(store, entity, partitions) if store or entity else {"all": True}
        return integer(self._node.request("partibus:end-rehearsals", body), "ended")

    def all(self) -> list[FaultInjectionInfo]:
        """Return all current faults."""
        found = maps(self._node.request("partibus:list-rehearsals", {}), "rehearsals")
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
