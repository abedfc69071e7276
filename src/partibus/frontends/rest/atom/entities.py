"""Requests that create, change, show and delete queues, topics and subscriptions.

A change is answered when every broker of the namespace has applied it. While a partition's messaging store is away, the
entity is neither changed nor deleted: the request fails as a whole, and can be repeated (row A2). If a store goes away
after that check, the answer says so, and the partition follows when it is back.
"""

from starlette.responses import Response

from partibus.errors import OutcomeUnknown, StoreUnavailable, Unauthorized
from partibus.frontends.rest.atom.calls import Call
from partibus.frontends.rest.atom.counts import ask_counts, counts_of
from partibus.frontends.rest.atom.descriptions import (
    ELEMENTS,
    Described,
    description_xml,
    own_properties,
    read_description,
)
from partibus.frontends.rest.atom.envelope import Entry
from partibus.frontends.rest.atom.rules import read_default_rule
from partibus.frontends.rest.requests import answer_of, check_api_version
from partibus.namespace.access import NOT_OPERATOR, SasPolicy
from partibus.namespace.entities import EntityKind
from partibus.namespace.entity import Entity
from partibus.namespace.names import subscription_path
from partibus.namespace.namespace import Queue, Subscription
from partibus.namespace.properties import FORWARD_DEAD_LETTERED_TO, FORWARD_TO
from partibus.namespace.values import TargetValue
from partibus.routing.entity import Inspection

_KINDS = {element: kind for kind, element in ELEMENTS.items()}
_TARGET_HEADERS = {
    FORWARD_TO: "ServiceBusSupplementaryAuthorization",
    FORWARD_DEAD_LETTERED_TO: "ServiceBusDlqSupplementaryAuthorization",
}


async def get_entity(call: Call) -> Response:
    """Show a queue or topic."""
    return await _show(call, _known(call, call.resource.entity))


async def get_subscription(call: Call) -> Response:
    """Show a subscription."""
    return await _show(call, _known(call, path_of(call)))


async def put_entity(call: Call) -> Response:
    """Make a queue or topic, or change it."""
    description = await call.description(ELEMENTS[EntityKind.QUEUE], ELEMENTS[EntityKind.TOPIC])
    kind = _KINDS[description.name]
    name, namespace = call.resource.entity, call.broker.namespace.record.options
    if call.if_match is not None:
        described = read_description(kind, description, namespace, _known(call, name).queue)
        return await _update(call, kind, name, described)
    described = read_description(kind, description, namespace)
    check_api_version(call.request, name, partitioned=described.properties.get("EnablePartitioning") is True)
    _check_targets(call, described)
    create = call.broker.create_queue if kind is EntityKind.QUEUE else call.broker.create_topic
    return await _created(call, create(name, described.properties, policies=_policies(call, described)))


async def put_subscription(call: Call) -> Response:
    """Make a subscription with its first rule, or change it."""
    description = await call.description(ELEMENTS[EntityKind.SUBSCRIPTION])
    described = read_description(EntityKind.SUBSCRIPTION, description, call.broker.namespace.record.options)
    if call.if_match is not None:
        return await _update(call, EntityKind.SUBSCRIPTION, path_of(call), described)
    _check_targets(call, described)
    entity = call.broker.create_subscription(
        call.resource.entity,
        call.resource.subscription,
        described.properties,
        rule=None if described.default_rule is None else read_default_rule(described.default_rule),
    )
    return await _created(call, entity)


async def delete_entity(call: Call) -> Response:
    """Delete a queue or topic."""
    return await _delete(call, call.resource.entity)


async def delete_subscription(call: Call) -> Response:
    """Delete a subscription."""
    return await _delete(call, path_of(call))


def path_of(call: Call) -> str:
    """Return the path of the request's subscription."""
    return subscription_path(call.resource.entity, call.resource.subscription)


def entry_of(call: Call, entity: Entity, inspection: Inspection) -> Entry:
    """Return the entry of an entity with its counts."""
    queue = entity.queue
    return Entry(
        queue.name,
        queue.short_name if isinstance(queue, Subscription) else queue.name,
        ELEMENTS[queue.kind],
        description_xml(
            queue, counts_of(inspection, forwards=bool(queue.forward_to)), call.host, keys=call.grant.operates
        ),
        queue.created_ms,
        queue.updated_ms,
    )


async def _update(call: Call, kind: EntityKind, path: str, described: Described) -> Response:
    entity = _known(call, path)
    queue = entity.queue
    seen = call.check_tag(queue.name, tag_of(queue))
    _check_targets(call, described)
    check_all_there(entity, "changed")
    entity = call.broker.update(
        path,
        own_properties(queue) | described.properties,
        whole=True,
        policies=_policies(call, described),
        kind=kind,
        updated_ms=queue.updated_ms if seen else None,
    )
    await call.followed()
    _check_still_there(entity, "is changed", "follow")
    return await _show(call, entity)


async def _delete(call: Call, path: str) -> Response:
    entity = _known(call, path)
    call.check_tag(entity.queue.name, tag_of(entity.queue))
    check_all_there(entity, "deleted")
    call.broker.delete(path)
    await call.followed()
    _check_still_there(entity, "is deleted", "are emptied")
    return Response()


def _known(call: Call, path: str) -> Entity:
    """Return an entity.

    Raises EntityNotFound, or InvalidOperation when the request's api-version does not know such entities (row P20).
    """
    entity = call.broker.entity(path)
    check_api_version(call.request, entity.queue.name, partitioned=entity.queue.partitioned)
    return entity


async def _created(call: Call, entity: Entity) -> Response:
    await call.followed()
    return await _show(call, entity, 201)


async def _show(call: Call, entity: Entity, status: int = 200) -> Response:
    inspection = await answer_of(ask_counts(entity.route))
    return call.show(entry_of(call, entity, inspection), tag_of(entity.queue), status)


def tag_of(queue: Queue) -> str:
    """Return the tag of an entity's present state: each change and each entity has another one."""
    return f'"{queue.entity_id}.{queue.updated_ms}"'


def _policies(call: Call, described: Described) -> list[SasPolicy] | None:
    """Return the new policies; None leaves the present ones. Raises `Unauthorized`.

    Only a key of the operator reads and writes policies. An empty list of another client changes nothing: some
    libraries send one where they have read none.
    """
    if call.grant.operates:
        return described.policies
    if described.policies:
        raise Unauthorized(f"AuthorizationRules can't be set here. {NOT_OPERATOR}")
    return None


def _check_targets(call: Call, described: Described) -> None:
    """Check the right to manage the targets of an entity's forwarding. Raises `Unauthorized`."""
    for name, header in _TARGET_HEADERS.items():
        text = described.properties.get(name)
        try:
            target = TargetValue().parse(text)
        except ValueError:
            continue  # The namespace refuses it, with its name and bound.
        if target:
            call.claims.check_target(call.request, call.grant, header, tuple(target.lower().split("/")))


def check_all_there(entity: Entity, done: str) -> None:
    """StoreUnavailable when partitions are away."""
    if entity.away:
        raise StoreUnavailable(
            f"'{entity.queue.name}' can't be {done} now: {_which(entity)}. Nothing was {done}; try again."
        )


def _check_still_there(entity: Entity, done: str, later: str) -> None:
    """OutcomeUnknown when partitions have gone away meanwhile."""
    if entity.away:
        raise OutcomeUnknown(
            f"'{entity.queue.name}' {done}, but {_which(entity)}: they {later} when their messaging stores are back."
        )


def _which(entity: Entity) -> str:
    partitions = entity.route.partitions
    numbers = ", ".join(str(number) for number in entity.away)
    failure = next((partition.failure for partition in partitions if not partition.available), None)
    return f"of its {len(partitions)} partitions {len(entity.away)} can't be reached, number {numbers}" + (
        f" ({failure})" if failure else ""
    )
