"""Operations for the operator: the state of the cluster, copies of stores, traffic of entities, fault injection.

Fault injection (`partibus:rehearse-failure` and others) makes partitions unavailable or slow. Its operations are on the
namespace's `$management` node, which answers when every broker of the namespace applies them. A request names either
``store`` or ``entity``; with an entity, ``partitions`` may name some of its partitions.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

from partibus.advice.facts import Traffic
from partibus.amqp.codec.types import Int
from partibus.errors import ArgumentError, InvalidOperation, PartibusError
from partibus.frontends.amqp.node import Respond
from partibus.frontends.amqp.operations.request import (
    body_of,
    boolean,
    failure,
    integer,
    items,
    optional_text,
    success,
    text,
)
from partibus.frontends.traffic import traffic_of
from partibus.namespace.broker import Broker
from partibus.routing.fault_injections import Effect, to_plain

TRAFFIC: Final = "partibus:traffic"
PAGE_MAX: Final = 100
"""The most entities of one reply: a reply is made at once, and a hundred take some milliseconds."""
SKIP_MAX: Final = 1_000_000


def traffic(broker: Broker, body: object, respond: Respond) -> None:
    """Reply with ``entities``, the busiest first, and ``more``: whether others follow.

    ``skip`` leaves out so many, ``entity`` selects one.
    """
    arguments = body_of(body)
    skip = integer(arguments, "skip", 0, SKIP_MAX, 0)
    name = arguments.get("entity")
    path = broker.namespace.entity(name).name if isinstance(name, str) else None

    def known(measured: object) -> None:
        if isinstance(measured, PartibusError):
            respond(failure(measured))
            return
        found = traffic_of(measured, broker.namespace.name, path)  # type: ignore[arg-type]
        page = list(found.items())[skip : skip + PAGE_MAX]
        respond(
            success(
                {
                    "entities": [{"entity": name, **_plain(one)} for name, one in page],
                    "namespace": broker.namespace.name,
                    "tier": broker.namespace.record.options.tier.value,
                    "more": len(found) > skip + PAGE_MAX,
                }
            )
        )

    broker.ask_measured(known)


def _plain(traffic: Traffic) -> dict[str, object]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(traffic).items()}


BACK_UP = "partibus:back-up"


def back_up(broker: Broker, body: object, respond: Respond) -> None:
    """Reply with the copied ``stores``, a map from name to bytes, and those ``left_out``.

    The reply also says whether all copies are of one moment.
    """
    arguments = body_of(body)
    stores = items(arguments, "stores", "names of stores") if arguments.get("stores") is not None else []
    names = [str(name) for name in stores if isinstance(name, str)]
    if len(names) != len(stores):
        raise ArgumentError("stores", stores, "a list of names of stores")

    def answer(result: dict[object, object] | PartibusError) -> None:
        respond(failure(result) if isinstance(result, PartibusError) else success(result))

    broker.back_up(text(arguments, "directory"), names, answer)


STATUS = "partibus:cluster-status"


def status(broker: Broker, body: object, respond: Respond) -> None:
    """Reply with ``brokers`` and ``stores`` as their operator knows them; every broker replies the same."""
    broker.ask_status(lambda known: respond(success(known)))


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
