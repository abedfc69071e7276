"""An operator's view of an entity's partitions: slots, load, messages, moves."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from partibus.limits import ElasticLimits
from partibus.namespace.broker import Broker
from partibus.namespace.entity import Entity
from partibus.namespace.partition_moves import Move, PastMove
from partibus.routing.entity import Inspection, inspect_each


class PartitionLine(NamedTuple):
    """One partition."""

    partition: int
    store: str
    slots: int
    share: float
    """The share of the keyed messages that this broker's clients have sent of late."""
    use: float
    """The use of its capacity, of an elastic queue: 1 is all."""
    messages: int
    size_bytes: int
    is_available: bool


class PartitionReport(NamedTuple):
    """All partitions of an entity."""

    entity: str
    version: int
    partitions: Sequence[PartitionLine]
    moves: Sequence[tuple[Move, str | None]]
    """Moves in progress, with the mover's step if it is here."""
    history: Sequence[PastMove]
    hot_slot: int | None
    limits: ElasticLimits | None
    """The capacity and thresholds of a queue whose load is measured; None: it is not."""
    partitions_max: int
    """The most partitions of an elastic queue; 0: their number is fixed."""


def report(broker: Broker, entity: Entity, on_report: Callable[[PartitionReport], None]) -> None:
    """Collect the report; the callback runs once."""
    queue, route = entity.queue, entity.route

    def inspected(inspection: Inspection) -> None:
        slots = route.slots
        counts = slots.counts()
        shares = [0.0] * len(counts)
        for slot, load in route.load.by_slot.items():
            shares[slots.owner(slot)] += load
        total = sum(shares) or 1.0
        uses = {} if entity.elastic is None else entity.elastic.use_of(broker.clock.now_ms())
        lines = []
        for place in broker.places_of(entity):
            number = place.partition.partition_id
            found = inspection.found.get(number)
            infos = [] if found is None else list(found.subqueues.values())
            lines.append(
                PartitionLine(
                    number,
                    place.store,
                    counts[number] if number < len(counts) else 0,
                    shares[number] / total if number < len(shares) else 0.0,
                    uses.get(number, 0.0),
                    sum(info.messages for info in infos),
                    sum(info.size_bytes for info in infos),
                    found is not None,
                )
            )
        moves = [(move, broker.movers.step_of(queue, move.version)) for move in queue.slots.moves]
        limits = None if entity.elastic is None else entity.elastic.limits
        most = queue.description.options.elastic_partitions if queue.is_elastic else 0
        on_report(
            PartitionReport(
                queue.name, queue.slots.version, lines, moves, queue.slots.history, entity.hot_slot, limits, most
            )
        )

    inspect_each(route, inspected)
