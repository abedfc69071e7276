"""Rehearsing the loss of partitions and stores: operations of the namespace's `$management` node."""

from collections.abc import Sequence
from dataclasses import dataclass

from partibus.amqp.codec.types import Int
from partibus.client.client import Client
from partibus.client.values import integer, maps, text


@dataclass(frozen=True, slots=True)
class RehearsalInfo:
    """What goes on with a store, or with one partition of an entity."""

    store: str
    """Empty where it is a partition."""
    entity: str
    partition: int
    fails: bool
    delay_ms: int
    """Of every command, where it does not fail."""


class Rehearsals:
    """What names a target takes a store, or an entity and some of its partitions (none named: all). Every call raises
    the `ClientError` that the broker answered with."""

    def __init__(self, client: Client) -> None:
        self._node = client.management()

    def fail(self, *, store: str = "", entity: str = "", partitions: Sequence[int] = ()) -> None:
        """Have the broker treat them as lost."""
        self._node.request("partibus:rehearse-failure", _target(store, entity, partitions))

    def slow(self, delay_ms: int, *, store: str = "", entity: str = "", partitions: Sequence[int] = ()) -> None:
        """Delay every command to them."""
        body = _target(store, entity, partitions) | {"delay-ms": delay_ms}
        self._node.request("partibus:rehearse-delay", body)

    def heal(self, *, store: str = "", entity: str = "", partitions: Sequence[int] = ()) -> int:
        """End what goes on with them, or without a target with all; how many rehearsals ended."""
        body = _target(store, entity, partitions) if store or entity else {"all": True}
        return integer(self._node.request("partibus:end-rehearsals", body), "ended")

    def all(self) -> list[RehearsalInfo]:
        """What goes on."""
        found = maps(self._node.request("partibus:list-rehearsals", {}), "rehearsals")
        return [
            RehearsalInfo(
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
