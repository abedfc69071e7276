"""Administration of entities and access policies: operations of the namespace's `$management` node."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from partibus.client.management import Requests, integer, integers, maps, text, texts

GET_ENTITY: Final = "partibus:get-entity"


@dataclass(frozen=True, slots=True)
class EntityInfo:
    """An entity as the broker describes it."""

    kind: str
    """``queue``, ``topic`` or ``subscription``."""
    name: str
    """The name; for a subscription its path, ``topic/Subscriptions/name``."""
    partitions: int
    status: str
    availability: str
    """``Available``, or ``Limited`` while stores are unavailable."""
    messages: int
    """The number of messages in the reachable partitions. The counts below cover the same partitions."""
    dead_letter_messages: int
    size_bytes: int
    partitions_away: tuple[int, ...] = ()
    """The ids of unreachable partitions. If there are any, the counts are partial."""
    properties: Mapping[str, object] = field(default_factory=dict)
    """The properties by the service's names, as in Config.json."""
    subscriptions: int | None = None
    """The number of subscriptions of a topic."""
    rules: int | None = None
    """The number of rules of a subscription."""
    transfer_dead_letter_messages: int = 0
    """The number of messages that the broker could not forward."""


class Entities:
    """The entities of a namespace.

    Every call raises the `ClientError` of the broker's reply (`AlreadyExists`, `NotFound`, ...).
    """

    def __init__(self, client: Requests) -> None:
        self._client = client

    def create_queue(self, name: str, properties: Mapping[str, object]) -> EntityInfo:
        """Create a queue with properties by the service's names; omitted ones have the service's defaults."""
        return self._create("queue", name, properties)

    def create_topic(self, name: str, properties: Mapping[str, object]) -> EntityInfo:
        """Create a topic, with properties as in `create_queue`."""
        return self._create("topic", name, properties)

    def create_subscription(self, topic: str, name: str, properties: Mapping[str, object]) -> EntityInfo:
        """Create a subscription, with properties as in `create_queue`.

        The subscription gets every message until its rule ``$Default`` is removed.
        """
        return self._create("subscription", subscription_path(topic, name), properties)

    def _create(self, kind: str, name: str, properties: Mapping[str, object]) -> EntityInfo:
        body = {"kind": kind, "name": name, "properties": dict(properties)}
        return entity_in(self._client.request("", "partibus:create-entity", body))

    def update(self, name: str, properties: Mapping[str, object]) -> EntityInfo:
        """Change the given properties at once and keep the others."""
        body = {"name": name, "properties": dict(properties)}
        return entity_in(self._client.request("", "partibus:update-entity", body))

    def get(self, name: str) -> EntityInfo:
        """Return the description of an entity."""
        return entity_in(self._client.request("", GET_ENTITY, {"name": name}))

    def list(self) -> list[EntityInfo]:
        """Return all entities, sorted by name."""
        found = maps(self._client.request("", "partibus:list-entities", {}), "entities")
        return sorted(map(entity_in, found), key=lambda info: info.name.lower())

    def delete(self, name: str) -> None:
        """Delete an entity with all its messages, and a topic with its subscriptions."""
        self._client.request("", "partibus:delete-entity", {"name": name})

    def export(self) -> tuple[str, Sequence[str]]:
        """Return all entities as the text of a Config.json, and the settings that such a file can't express."""
        found = self._client.request("", "partibus:export", {})
        return text(found, "config"), texts(found, "left-out")


def subscription_path(topic: str, name: str) -> str:
    """Return the path of a subscription."""
    return f"{topic}/Subscriptions/{name}"


_TRANSFER = "transfer-dead-letter-messages"
"""A count that earlier brokers do not reply."""


def entity_in(body: Mapping[str, object]) -> EntityInfo:
    """Read the description of an entity in a reply."""
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
        transfer_dead_letter_messages=integer({_TRANSFER: 0, **body}, _TRANSFER),
    )


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """A shared access policy. Its keys are not part of its ``repr``."""

    name: str
    rights: tuple[str, ...]
    """The rights: some of Manage, Send and Listen."""
    primary_key: str = field(repr=False)
    secondary_key: str = field(repr=False)


class Policies:
    """The access policies of an entity, or of the namespace if the path ``entity`` is empty.

    Every call raises the `ClientError` of the broker's reply.
    """

    def __init__(self, client: Requests, entity: str = "") -> None:
        self._client = client
        self._entity = entity

    def list(self) -> list[PolicyInfo]:
        """Return all policies, sorted by name."""
        found = maps(self._client.request("", "partibus:list-policies", {"entity": self._entity}), "policies")
        return sorted(map(_info, found), key=lambda policy: policy.name.lower())

    def set(self, name: str, rights: Sequence[str]) -> PolicyInfo:
        """Create a policy with new keys, or change the rights of an existing one."""
        return self._ask("partibus:set-policy", name, rights=list(rights))

    def regenerate(self, name: str, *, secondary: bool = False) -> PolicyInfo:
        """Replace one key by a new one, which locks out users of the old key at once."""
        return self._ask("partibus:regenerate-key", name, secondary=secondary)

    def delete(self, name: str) -> None:
        """Delete a policy, which locks out its users at once."""
        self._client.request("", "partibus:delete-policy", {"entity": self._entity, "name": name})

    def _ask(self, operation: str, name: str, **more: object) -> PolicyInfo:
        return _info(self._client.request("", operation, {"entity": self._entity, "name": name, **more}))


def _info(body: Mapping[str, object]) -> PolicyInfo:
    return PolicyInfo(
        text(body, "name"), tuple(texts(body, "rights")), text(body, "primary-key"), text(body, "secondary-key")
    )
