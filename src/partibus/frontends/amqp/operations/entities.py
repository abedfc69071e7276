"""Entities of the namespace: create, get, list, update, delete, on the `$management` node that belongs to no entity.

Operations of our own, so that one address and one connection string are enough for the command line.
"""

from collections.abc import Callable, Mapping

from partibus.amqp.codec.types import Int
from partibus.errors import ArgumentError, Unsupported
from partibus.frontends.amqp.node import Respond
from partibus.frontends.amqp.operations.arguments import body_of, text
from partibus.frontends.amqp.operations.status import success
from partibus.namespace.broker import Broker, Entity
from partibus.namespace.properties import queue_properties
from partibus.partition.commands import Inspected
from partibus.partition.keys import SubqueueKind
from partibus.routing.inspect import inspect_all

CREATE = "partibus:create-entity"
GET = "partibus:get-entity"
LIST = "partibus:list-entities"
UPDATE = "partibus:update-entity"
DELETE = "partibus:delete-entity"

OnDescribed = Callable[[dict[object, object]], None]


def create(broker: Broker, body: object, respond: Respond) -> None:
    """Make a queue; reply with what it became."""
    arguments = body_of(body)
    kind = arguments.get("kind", "queue")
    if kind != "queue":
        raise Unsupported(f"An entity of the kind {kind!r}", "Create a queue.")
    entity = broker.create_queue(text(arguments, "name"), _properties(arguments))
    _describe(entity, lambda one: respond(success(one)))


def update(broker: Broker, body: object, respond: Respond) -> None:
    """Change the properties that are given and leave the others; reply with what it became, once every partition
    whose store can be used goes by it."""
    arguments = body_of(body)
    entity = broker.update_queue(text(arguments, "name"), _properties(arguments))
    _describe(entity, lambda one: respond(success(one)))


def get(broker: Broker, body: object, respond: Respond) -> None:
    """Reply with one entity."""
    _describe(broker.entity(text(body_of(body), "name")), lambda one: respond(success(one)))


def delete(broker: Broker, body: object, respond: Respond) -> None:
    """Take an entity out with its messages."""
    broker.delete_queue(text(body_of(body), "name"))
    respond(success())


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


def _describe(entity: Entity, then: OnDescribed) -> None:
    """Properties by the service's names, and counts over all partitions; counts are left out where a store is away."""
    queue = entity.queue
    description: dict[object, object] = {
        "kind": "queue",
        "name": queue.name,
        "properties": dict(queue_properties(queue.description.options)),
        "partitions": Int(len(queue.partitions)),
        "status": queue.description.options.status.value,
    }

    def counted(found: list[Inspected]) -> None:
        active = [one.subqueues[SubqueueKind.ACTIVE] for one in found]
        dead = [one.subqueues[SubqueueKind.DEAD_LETTER] for one in found]
        then(
            description
            | {
                "availability": "Available",
                "messages": sum(one.messages for one in active),
                "dead-letter-messages": sum(one.messages for one in dead),
                "size-bytes": sum(one.size_bytes for one in active + dead),
            }
        )

    inspect_all(entity.route, counted, lambda _: then(description | {"availability": "Limited"}))


def _properties(arguments: Mapping[object, object]) -> dict[str, object]:
    """The request's properties, by the service's names. Raises `ArgumentError`."""
    properties = arguments.get("properties")
    if properties is None:
        return {}
    if not isinstance(properties, dict) or not all(isinstance(key, str) for key in properties):
        raise ArgumentError("properties", type(properties).__name__, "a map from property names to values")
    return {str(key): _plain(value) for key, value in properties.items()}


def _plain(value: object) -> object:
    """AMQP's narrow types are subclasses of Python's: property rules compare with the plain ones."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return str(value)
    return value
