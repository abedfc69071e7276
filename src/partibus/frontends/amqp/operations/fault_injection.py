"""Fault injection (`partibus:rehearse-failure` and others): makes partitions unavailable or slow.

The operations are on the namespace's `$management` node, which answers when every broker of the namespace applies them.
A request names either ``store`` or ``entity``; with an entity, ``partitions`` may name some of its partitions.
"""

from collections.abc import Mapping
from typing import Final

from partibus.amqp.codec.types import Int
from partibus.errors import ArgumentError, InvalidOperation
from partibus.frontends.amqp.node import Respond
from partibus.frontends.amqp.operations.arguments import body_of, boolean, integer, items, optional_text
from partibus.frontends.amqp.operations.status import success
from partibus.namespace.broker import Broker
from partibus.routing.fault_injections import to_plain
from partibus.routing.faulty_route import Effect

FAIL: Final = "partibus:rehearse-failure"
SLOW: Final = "partibus:rehearse-delay"
HEAL: Final = "partibus:end-rehearsals"
LIST: Final = "partibus:list-rehearsals"
DELAY_MAX_MS: Final = 3_600_000


def fail(broker: Broker, body: object, respond: Respond) -> None:
    """Refuse commands to the partitions as with an unavailable store, and tell their receivers."""
    _begin(broker, body_of(body), Effect(fails=True))
    broker.when_followed(lambda: respond(success()))


def slow(broker: Broker, body: object, respond: Respond) -> None:
    """Delay every command to the partitions by ``delay-ms``."""
    arguments = body_of(body)
    _begin(broker, arguments, Effect(delay_ms=integer(arguments, "delay-ms", 1, DELAY_MAX_MS)))
    broker.when_followed(lambda: respond(success()))


def heal(broker: Broker, body: object, respond: Respond) -> None:
    """End matching faults, or with ``all`` every fault; reply with their number, ``ended``."""
    arguments = body_of(body)
    fault_injections = broker.fault_injections
    if boolean(arguments, "all"):
        _check_operator(broker)
        ended = fault_injections.heal_all()
    else:
        store, entity = _target(arguments)
        if store:
            _check_operator(broker)
            ended = fault_injections.heal_store(store)
        else:
            ended = fault_injections.heal_partitions(broker.qualified(entity), _partitions(arguments))
            if not ended:
                broker.entity(entity)
    broker.when_followed(lambda: respond(success({"ended": Int(ended)})))


def list_all(broker: Broker, body: object, respond: Respond) -> None:
    """Reply with all active ``rehearsals``."""
    _check_operator(broker)
    respond(success({"rehearsals": [dict(rule) for rule in to_plain(broker.fault_injections.all())]}))


def _begin(broker: Broker, arguments: Mapping[object, object], effect: Effect) -> None:
    store, entity_name = _target(arguments)
    if store:
        _check_operator(broker)
        broker.fault_injections.inject_store_fault(store, effect)
        return
    entity = broker.entity(entity_name)
    places = broker.places_of(entity)
    chosen = _partitions(arguments) or list(range(len(places)))
    for number in chosen:
        if not 0 <= number < len(places):
            raise ArgumentError("partitions", number, f"partitions of '{entity.queue.name}', 0 to {len(places) - 1}")
    broker.fault_injections.inject_partition_faults([places[number] for number in chosen], effect)


def _check_operator(broker: Broker) -> None:
    """Check that the client is the operator: stores are shared by all namespaces."""
    if not broker.is_default:
        raise InvalidOperation(
            f"Stores and all injected faults are the server's, and '{broker.namespace.name}' is a namespace of it. "
            "Name an entity, or ask the default namespace."
        )


def _target(arguments: Mapping[object, object]) -> tuple[str, str]:
    """Return store and entity; one of them is empty."""
    store, entity = optional_text(arguments, "store") or "", optional_text(arguments, "entity") or ""
    if bool(store) == bool(entity):
        raise ArgumentError("entity", entity, "the name of an entity where no store is named, and only there")
    return store, entity


def _partitions(arguments: Mapping[object, object]) -> list[int]:
    if arguments.get("partitions") is None:
        return []
    found: list[int] = []
    for value in items(arguments, "partitions", "partition ids"):
        if not isinstance(value, int) or isinstance(value, bool):
            raise ArgumentError("partitions", value, "a list of partition ids")
        found.append(int(value))
    return found
