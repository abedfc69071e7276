"""Telemetry of one broker process (D28): counters and, where it is wanted, a recorder with its writer."""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

from partibus.namespace.namespaces import Namespaces
from partibus.node.settings import Settings
from partibus.partition.meters import Meters
from partibus.telemetry.settings import OFF

if TYPE_CHECKING:
    from partibus.telemetry.recorder import Place


class Telemetry:
    """Of a broker: made before its stores, since their runtimes record from the start."""

    def __init__(self, settings: Settings, broker: str, run: str, loop: asyncio.AbstractEventLoop) -> None:
        """``run``: of that broker, in the names of the files."""
        self._feed = None
        if settings.telemetry.mode != OFF:
            from partibus.telemetry.feed import Feed

            self._feed = Feed(settings.telemetry, settings.data, broker, run, loop)
        self.meters = Meters(perf_counter, None if self._feed is None else self._feed.recorder)

    def begin(self, namespaces: Namespaces) -> None:
        """The entities are known: start the writer."""
        if self._feed is not None:
            self._feed.recorder.place_of = _places_of(namespaces)
            self._feed.start()

    def close(self) -> None:
        """The stores are closed: have the writer finish. Blocks for some seconds at most."""
        if self._feed is not None:
            self._feed.close()


def _places_of(namespaces: Namespaces) -> "Callable[[int], Place]":
    from partibus.telemetry.recorder import Place

    def place_of(row: int) -> Place:
        queue = namespaces.queue_of(row)
        if queue is None:
            return Place("", 0, 0)
        place = queue.partitions[queue.index_of(row)]
        name = namespaces.broker_of(queue).namespace.name
        return Place(queue.name, place.partition_no, place.store_no, name)

    return place_of
