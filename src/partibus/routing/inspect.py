"""Counts of an entity: asked of every partition, answered together."""

from collections.abc import Callable
from typing import Any, NamedTuple

from partibus.partition.protocol.commands import Inspect
from partibus.partition.protocol.replies import Failed, Inspected
from partibus.routing.entity import EntityRoute


class Inspection(NamedTuple):
    """What the partitions of an entity answered, by the number of the partition."""

    found: dict[int, Inspected]
    failed: dict[int, Failed]
    """Those whose stores are away (row A4): what is found is a part of the whole."""


def inspect_each(
    route: EntityRoute, on_inspected: Callable[[Inspection], None], *, count_scheduled: bool = False
) -> None:
    """Ask every partition for its counts; called once, when each has answered or could not. ``count_scheduled``: also
    for the number of messages that wait for their time."""
    inspection = Inspection({}, {})
    missing = len(route.partitions)

    def collect(index: int) -> Callable[[Any], None]:
        def answered(reply: Any) -> None:
            nonlocal missing
            if isinstance(reply, Failed):
                inspection.failed[index] = reply
            else:
                inspection.found[index] = reply
            missing -= 1
            if not missing:
                on_inspected(inspection)

        return answered

    for index, partition in enumerate(route.partitions):
        partition.submit(Inspect(route.numbers.next(), count_scheduled), collect(index))


def inspect_all(
    route: EntityRoute, on_inspected: Callable[[list[Inspected]], None], on_failed: Callable[[Failed], None]
) -> None:
    """As `inspect_each` for who needs all or nothing: exactly one of the two is called, once: the answers in the order
    of the partitions, or one of the failures."""

    def inspected(inspection: Inspection) -> None:
        if inspection.failed:
            on_failed(next(iter(inspection.failed.values())))
        else:
            on_inspected([inspection.found[index] for index in range(len(route.partitions))])

    inspect_each(route, inspected)
