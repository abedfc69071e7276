"""Administration of the namespace's entities over AMQP: operations of the namespace's `$management` node."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from partibus.client.client import Client
from partibus.client.values import integer, integers, maps, text, texts


@dataclass(frozen=True, slots=True)
class EntityInfo:
    """An entity as the broker describes it now."""

    kind: str
    """``queue``, ``topic`` or ``subscription``."""
    name: str
    """Of a subscription its path, ``topic/Subscriptions/name``."""
    partitions: int
    status: str
    availability: str
    """``Available``, or ``Limited`` while stores are away."""
    messages: int
    """In the partitions that can be reached, as the counts below."""
    dead_letter_messages: int
    size_bytes: int
    partitions_away: tuple[int, ...] = ()
    """Ids of the partitions that can't: the counts are partial."""
    properties: Mapping[str, object] = field(default_factory=dict)
    """By the service's property names, as in Config.json."""
    subscriptions: int | None = None
    """Of a topic."""
    rules: int | None = None
    """Of a subscription."""


class Entities:
    """Every call raises the `ClientError` that the broker answered with (`AlreadyExists`, `NotFound`, ...)."""

    def __init__(self, client: Client) -> None:
        self._node = client.management()

    def create_queue(self, name: str, properties: Mapping[str, object]) -> EntityInfo:
        """Properties by the service's names; what is left out has the service's default."""
        return self._create("queue", name, properties)

    def create_topic(self, name: str, properties: Mapping[str, object]) -> EntityInfo:
        """As `create_queue`."""
        return self._create("topic", name, properties)

    def create_subscription(self, topic: str, name: str, properties: Mapping[str, object]) -> EntityInfo:
        """As `create_queue`; it gets every message until its rule ``$Default`` is removed."""
        return self._create("subscription", subscription_path(topic, name), properties)

    def _create(self, kind: str, name: str, properties: Mapping[str, object]) -> EntityInfo:
        body = {"kind": kind, "name": name, "properties": dict(properties)}
        return _info(self._node.request("partibus:create-entity", body))

    def update(self, name: str, properties: Mapping[str, object]) -> EntityInfo:
        """Change properties, with effect at once; what is left out stays."""
        return _info(self._node.request("partibus:update-entity", {"name": name, "properties": dict(properties)}))

    def get(self, name: str) -> EntityInfo:
        return _info(self._node.request("partibus:get-entity", {"name": name}))

    def list(self) -> list[EntityInfo]:
        """By name."""
        found = maps(self._node.request("partibus:list-entities", {}), "entities")
        return sorted(map(_info, found), key=lambda info: info.name.lower())

    def delete(self, name: str) -> None:
        """The entity with all its messages; a topic with its subscriptions."""
        self._node.request("partibus:delete-entity", {"name": name})

    def export(self) -> tuple[str, Sequence[str]]:
        """All entities as the text of a Config.json, and what such a file can't say."""
        found = self._node.request("partibus:export", {})
        return text(found, "config"), texts(found, "left-out")


def subscription_path(topic: str, name: str) -> str:
    """Where a subscription is found."""
    return f"{topic}/Subscriptions/{name}"


def _info(body: Mapping[str, object]) -> EntityInfo:
    properties = body.get("properties")
    return EntityInfo(
        kind=text(body, "kind"),
        name=text(body, "name"),
        partitions=integer(body, "partitions"),
        status=text(body, "status"),
        availability=text(body, "availability"),
        messages=integer(body, "messages"),
        dead_letter_messages=integer(body, "dead-letter-messages"),
        size_bytes=integer(body, "size-bytes"),
        partitions_away=tuple(integers(body, "partitions-away")),
        properties={str(key): value for key, value in properties.items()} if isinstance(properties, dict) else {},
        subscriptions=integer(body, "subscriptions") if "subscriptions" in body else None,
        rules=integer(body, "rules") if "rules" in body else None,
    )
