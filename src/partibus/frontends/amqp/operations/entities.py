"""Entities: create, get, list, update, delete, on the namespace's `$management` node.

These are extensions, so that one address and one connection string suffice for the command line. The node answers a
change when every broker of the namespace applies it.
"""

from collections.abc import Callable, Mapping

from partibus.amqp.codec.types import Int
from partibus.errors import ArgumentError, OutcomeUnknown
from partibus.frontends.amqp.node import Respond
from partibus.frontends.amqp.operations.request import body_of, failure, success, text
from partibus.namespace.broker import Broker
from partibus.namespace.config_export import export_config
from partibus.namespace.entities import EntityKind
from partibus.namespace.entity import Entity
from partibus.namespace.names import parse_address
from partibus.namespace.namespace import Subscription, Topic
from partibus.namespace.properties import properties_of
from partibus.partition.protocol.keys import SubqueueKind
from partibus.routing.entity import Inspection, inspect_each

CREATE = "partibus:create-entity"
GET = "partibus:get-entity"
LIST = "partibus:list-entities"
UPDATE = "partibus:update-entity"
DELETE = "partibus:delete-entity"
EXPORT = "partibus:export"

AWAY = "partitions-away"
"""Ids of the partitions whose stores are unavailable."""

OnDescribed = Callable[[dict[object, object]], None]


def create(broker: Broker, body: object, respond: Respond) -> None:
    """Make a queue, a topic, or a subscription; reply with its description.

    A subscription's ``name`` is its path, and its first rule selects everything.
    """
    arguments = body_of(body)
    name, kind, properties = text(arguments, "name"), _kind(arguments), _properties(arguments)
    match kind:
        case EntityKind.QUEUE:
            entity = broker.create_queue(name, properties)
        case EntityKind.TOPIC:
            entity = broker.create_topic(name, properties)
        case EntityKind.SUBSCRIPTION:
            address = parse_address(name)
            if not address.subscription:
                raise ArgumentError("name", name, "topic/Subscriptions/name")
            entity = broker.create_subscription(address.entity, address.subscription, properties)
    broker.when_followed(lambda: _describe(entity, lambda one: respond(success(one))))


def update(broker: Broker, body: object, respond: Respond) -> None:
    """Change the given properties only; reply with the result, once every partition applies it.

    Fails if the store of a partition is unavailable; the partition applies it when the store is back (row A2).
    """
    arguments = body_of(body)
    entity = broker.update(text(arguments, "name"), _properties(arguments))

    def described(one: dict[object, object]) -> None:
        away = entity.away
        respond(failure(_not_everywhere(entity, "is changed", "follow", away)) if away else success(one))

    broker.when_followed(lambda: _describe(entity, described))


def get(broker: Broker, body: object, respond: Respond) -> None:
    """Reply with one entity."""
    _describe(broker.entity(text(body_of(body), "name")), lambda one: respond(success(one)))


def delete(broker: Broker, body: object, respond: Respond) -> None:
    """Delete an entity with its messages; a topic with its subscriptions.

    Fails if a partition's store is unavailable: the entity is deleted, and its messages are removed when the store is
    back (row A2).
    """
    entity = broker.entity(text(body_of(body), "name"))
    away = entity.away
    broker.delete(entity.queue.name)
    reply = failure(_not_everywhere(entity, "is deleted", "are emptied", away)) if away else success()
    broker.when_followed(lambda: respond(reply))


def list_all(broker: Broker, body: object, respond: Respond) -> None:
    """Reply with all entities, in order of name."""
    entities = list(broker)
    described: dict[int, dict[object, object]] = {}
    if not entities:
        respond(success({"entities": []}))

    def collect(index: int) -> OnDescribed:
        def described_one(one: dict[object, object]) -> None:
            described[index] = one
            if len(described) == len(entities):
                respond(success({"entities": [described[i] for i in range(len(entities))]}))

        return described_one

    for index, entity in enumerate(entities):
        _describe(entity, collect(index))


def export(broker: Broker, body: object, respond: Respond) -> None:
    """Reply with all entities as the text of a Config.json, and with what such a file can't express."""
    config, left_out = export_config(broker.namespace)
    respond(success({"config": config, "left-out": [f"{path}: {why}" for path, why in left_out]}))


def _describe(entity: Entity, then: OnDescribed) -> None:
    """Describe an entity by the service's property names, with counts over all partitions.

    With unavailable stores the availability is limited, and the counts are of the other partitions (rows A3, A4).
    """
    queue = entity.queue
    description: dict[object, object] = {
        "kind": queue.kind.value,
        "name": queue.name,
        "properties": dict(properties_of(queue.kind, queue.description.options)),
        "partitions": Int(len(queue.partitions)),
        "status": queue.description.options.status.value,
    }
    match queue:
        case Topic():
            description["subscriptions"] = Int(len(queue.subscriptions))
        case Subscription():
            description["rules"] = Int(len(queue.rules))

    def counted(inspection: Inspection) -> None:
        active = [one.subqueues[SubqueueKind.ACTIVE] for one in inspection.found.values()]
        dead = [one.subqueues[SubqueueKind.DEAD_LETTER] for one in inspection.found.values()]
        subqueues = [one.subqueues.get(SubqueueKind.TRANSFER_DEAD_LETTER) for one in inspection.found.values()]
        lost = [one for one in subqueues if one is not None]
        then(
            description
            | {
                "availability": "Limited" if inspection.failed else "Available",
                AWAY: [Int(partition) for partition in sorted(inspection.failed)],
                "messages": sum(one.messages for one in active),
                "dead-letter-messages": sum(one.messages for one in dead),
                "transfer-dead-letter-messages": sum(one.messages for one in lost),
                "size-bytes": sum(one.size_bytes for one in active + dead + lost)
                + sum(one.subscriptions_bytes for one in inspection.found.values()),
            }
        )

    inspect_each(entity.route, counted)


def _kind(arguments: Mapping[object, object]) -> EntityKind:
    kind = arguments.get("kind", EntityKind.QUEUE.value)
    try:
        return EntityKind(kind)
    except ValueError:
        raise ArgumentError("kind", kind, ", ".join(known.value for known in EntityKind)) from None


def _not_everywhere(entity: Entity, done: str, later: str, away: list[int]) -> OutcomeUnknown:
    partitions = entity.route.partitions
    numbers = ", ".join(str(partition_id) for partition_id in away)
    return OutcomeUnknown(
        f"'{entity.queue.name}' {done}, but of its {len(partitions)} partitions {len(away)} can't be reached now, "
        f"number {numbers}: they {later} when their messaging stores are back ({partitions[away[0]].failure})."
    )


def _properties(arguments: Mapping[object, object]) -> dict[str, object]:
    """Return the request's properties, by the service's names. Raises `ArgumentError`."""
    properties = arguments.get("properties")
    if properties is None:
        return {}
    if not isinstance(properties, dict) or not all(isinstance(key, str) for key in properties):
        raise ArgumentError("properties", type(properties).__name__, "a map from property names to values")
    return {str(key): _plain(value) for key, value in properties.items()}


def _plain(value: object) -> object:
    """Convert AMQP's narrow types, subclasses of Python's, to the plain types that property rules compare with."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return str(value)
    return value
