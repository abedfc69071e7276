"""Counts of an entity, collected from all partitions."""

from collections.abc import Callable
from typing import Any, NamedTuple

from partibus.partition.protocol.commands import Inspect
from partibus.partition.protocol.replies import Failed, Inspected
from partibus.routing.entity import EntityRoute


class Inspection(NamedTuple):
    """The answers of an entity's partitions, by partition index."""

    found: dict[int, Inspected]
    failed: dict[int, Failed]
    """The partitions whose stores are unavailable (row A4), so that ``found`` is incomplete."""


def inspect_each(
    route: EntityRoute, on_inspected: Callable[[Inspection], None], *, count_scheduled: bool = False
) -> None:
    """Ask every partition for its counts; the callback runs once, when each has answered or failed.

    ``count_scheduled`` includes the number of scheduled messages.
    """
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
    """Ask every partition for its counts, all or none.

    Exactly one callback runs, once: ``on_inspected`` with the answers in the order of the partitions, or ``on_failed``
    with one of the failures.
    """

    def inspected(inspection: Inspection) -> None:
        if inspection.failed:
            on_failed(next(iter(inspection.failed.values())))
        else:
            on_inspected([inspection.found[index] for index in range(len(route.partitions))])

    inspect_each(route, inspected)
