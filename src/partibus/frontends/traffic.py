"""The traffic of entities from the measurements of all brokers, for `partibus advise` and the portal (row C27)."""

from collections.abc import Mapping
from typing import Any, Final

from partibus.advice.facts import Traffic
from partibus.partition.core.meters import COMMITTED, PARTITION_NUMBERS, TALLIED
from partibus.partition.protocol.keys import SubqueueKind

_ACTIVE: Final = str(int(SubqueueKind.ACTIVE))
_WIDTH: Final = len(PARTITION_NUMBERS)
_PARTITION, _RECEIVED, _MESSAGES = (PARTITION_NUMBERS.index(name) for name in ("partition", "received", "messages"))


def traffic_of(
    measured: Mapping[str, Mapping[str, Any]], namespace: str, path: str | None = None
) -> dict[str, Traffic]:
    """Return the traffic of a namespace's entities by path, or of one entity, busiest first.

    ``measured``: what `partibus.node.metrics.Measuring.measure` returns, by broker.
    """
    counted_ms = min((one["counted_ms"] for one in measured.values()), default=0)
    found: dict[str, Traffic] = {}

    def add(name: str, traffic: Traffic) -> None:
        known = found.get(name)
        found[name] = traffic if known is None else known.plus(traffic)

    for one in measured.values():
        for entity in one["entities"]:
            if entity[0] == namespace and path in (None, entity[1]):
                add(entity[1], _stored(entity, counted_ms))
        for use in one["uses"]:
            if use["namespace"] == namespace and path in (None, use["path"]):
                add(use["path"], Traffic.of({**use, "counted_ms": counted_ms}))
    busiest = sorted(found, key=lambda name: found[name].received + found[name].delivered, reverse=True)
    return {name: found[name] for name in busiest}


def _stored(entity: Any, counted_ms: int) -> Traffic:
    """Return the part that the owner of stores knows, from one entity of `partibus.node.metrics`."""
    tallied = dict(zip(TALLIED, entity[3], strict=True))
    committed = dict(zip(COMMITTED, entity[4], strict=True))
    numbers = entity[7]
    count = max(numbers[_PARTITION::_WIDTH], default=-1) + 1
    received, messages = [0] * count, [0] * count
    for first in range(0, len(numbers), _WIDTH):
        received[numbers[first + _PARTITION]] = numbers[first + _RECEIVED]
        messages[numbers[first + _PARTITION]] = numbers[first + _MESSAGES]
    return Traffic(
        received=tallied["received"],
        delivered=tallied["delivered"],
        completed=tallied["completed"],
        locks_expired=tallied["locks_expired"],
        commits=committed["commits"],
        operations=committed["operations"],
        waited_s=committed["waited_s"],
        messages=entity[5].get(_ACTIVE, (0, 0))[0],
        counted_ms=counted_ms,
        partition_received=tuple(received),
        partition_messages=tuple(messages),
    )
