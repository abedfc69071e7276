"""Counts of an entity: asked of every partition, answered together."""

from collections.abc import Callable
from typing import Any

from partibus.partition.commands import Failed, Inspect, Inspected
from partibus.routing.entity import EntityRoute


def inspect_all(
    route: EntityRoute, on_inspected: Callable[[list[Inspected]], None], on_failed: Callable[[Failed], None]
) -> None:
    """Ask every partition for its counts; exactly one of the two is called, once: the answers in the order of the
    partitions, or the first failure."""
    found: dict[int, Inspected] = {}
    failed = False

    def collect(index: int) -> Callable[[Any], None]:
        def answered(reply: Any) -> None:
            nonlocal failed
            if isinstance(reply, Failed):
                if not failed:
                    failed = True
                    on_failed(reply)
                return
            found[index] = reply
            if len(found) == len(route.partitions):
                on_inspected([found[i] for i in range(len(route.partitions))])

        return answered

    for index, partition in enumerate(route.partitions):
        partition.submit(Inspect(route.numbers.next()), collect(index))
